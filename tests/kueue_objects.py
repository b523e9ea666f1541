"""Custom resources of exactly the fields that Kueue and Kubernetes' DRA have, as far as Gangline reads and writes them; and objects of them."""

from __future__ import annotations

import subprocess
from typing import Any

from gangline.executors.kubernetes.api import ApiError, ApiServer
from tests.kubernetes_cluster import ADMIN_TOKEN, MANIFESTS, UsedCluster, path_of, until

STRING: dict[str, Any] = {"type": "string"}
COUNT: dict[str, Any] = {"type": "integer", "format": "int32", "minimum": 0}
WORDS: dict[str, Any] = {"type": "object", "additionalProperties": STRING}
ANYTHING: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TIME: dict[str, Any] = {"type": "string", "format": "date-time"}
CONDITION: dict[str, Any] = {
    "type": "object", "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {"type": STRING, "status": {"type": "string", "enum": ["True", "False", "Unknown"]}, "reason": STRING,
                   "message": STRING, "lastTransitionTime": TIME, "observedGeneration": {"type": "integer", "format": "int64"}},
}  # fmt: skip
CONDITIONS: dict[str, Any] = {"type": "array", "items": CONDITION, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}  # fmt: skip
POD_SET_UPDATE: dict[str, Any] = {
    "type": "object", "required": ["name"],
    "properties": {"name": STRING, "labels": WORDS, "annotations": WORDS, "nodeSelector": WORDS, "tolerations": {"type": "array", "items": ANYTHING}},
}  # fmt: skip
CHECK_STATE: dict[str, Any] = {
    "type": "object", "required": ["name", "state", "lastTransitionTime", "message"],
    "properties": {
        "name": STRING, "state": {"type": "string", "enum": ["Pending", "Ready", "Retry", "Rejected"]}, "lastTransitionTime": TIME,
        "message": {"type": "string", "maxLength": 32768}, "requeueAfterSeconds": COUNT, "retryCount": COUNT,
        "podSetUpdates": {"type": "array", "maxItems": 8, "items": POD_SET_UPDATE},
    },
}  # fmt: skip
WORKLOAD: dict[str, Any] = {
    "spec": {"type": "object", "properties": {"queueName": STRING, "podSets": {"type": "array", "maxItems": 8, "items": {
        "type": "object", "required": ["count", "template"], "properties": {"name": STRING, "count": COUNT, "template": ANYTHING}}}}},
    "status": {"type": "object", "properties": {
        "conditions": CONDITIONS,
        "admission": {"type": "object", "properties": {"clusterQueue": STRING, "podSetAssignments": {"type": "array", "items": {
            "type": "object", "properties": {"name": STRING, "flavors": WORDS, "count": COUNT}}}}},
        "admissionChecks": {"type": "array", "items": CHECK_STATE, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    }},
}  # fmt: skip
ADMISSION_CHECK: dict[str, Any] = {
    "spec": {"type": "object", "required": ["controllerName"], "properties": {"controllerName": STRING}},
    "status": {"type": "object", "properties": {"conditions": CONDITIONS}},
}  # fmt: skip
FLAVOR: dict[str, Any] = {"spec": {"type": "object", "properties": {"nodeLabels": WORDS}}}
DEVICE_TAINT_RULE: dict[str, Any] = {
    "spec": {"type": "object", "required": ["taint"], "properties": {
        "deviceSelector": {"type": "object", "properties": {"driver": STRING, "pool": STRING, "device": STRING}},
        "taint": {"type": "object", "required": ["key", "effect"], "properties": {
            "key": STRING, "value": STRING, "timeAdded": TIME, "effect": {"type": "string", "enum": ["None", "NoSchedule", "NoExecute"]}}},
    }},
    "status": {"type": "object", "properties": {"conditions": CONDITIONS}},
}  # fmt: skip
DEVICE: dict[str, Any] = {"type": "object", "required": ["name"], "properties": {"name": STRING, "attributes": {
    "type": "object", "additionalProperties": {"type": "object", "properties": {"string": STRING, "int": {"type": "integer"}, "bool": {"type": "boolean"}, "version": STRING}}}}}  # fmt: skip
RESOURCE_SLICE: dict[str, Any] = {
    "spec": {"type": "object", "required": ["driver", "pool"], "properties": {
        "driver": STRING, "nodeName": STRING, "pool": {"type": "object", "properties": {"name": STRING, "generation": {"type": "integer"}, "resourceSliceCount": {"type": "integer"}}},
        "devices": {"type": "array", "items": DEVICE}}},
}  # fmt: skip

KUEUE, DRA = "kueue.x-k8s.io", "resource.k8s.io"


def definition(group: str, versions: tuple[str, ...], plural: str, kind: str, properties: dict[str, Any], *, namespaced: bool = False) -> Any:  # fmt: skip
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    subresources: dict[str, Any] = {"status": {}} if "status" in properties else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"}},
        "spec": {
            "group": group, "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {"name": version, "served": True, "storage": index == 0, "schema": schema, "subresources": subresources}
                for index, version in enumerate(versions)
            ],
        },
    }  # fmt: skip


DEFINITIONS = (
    definition(KUEUE, ("v1beta1",), "workloads", "Workload", WORKLOAD, namespaced=True),
    definition(KUEUE, ("v1beta1",), "admissionchecks", "AdmissionCheck", ADMISSION_CHECK),
    definition(KUEUE, ("v1beta1",), "resourceflavors", "ResourceFlavor", FLAVOR),
    definition(DRA, ("v1alpha3",), "devicetaintrules", "DeviceTaintRule", DEVICE_TAINT_RULE),
    definition(DRA, ("v1",), "resourceslices", "ResourceSlice", RESOURCE_SLICE),
)


def define_all(cluster: UsedCluster) -> None:
    """Offer all of DEFINITIONS, once, and give the executor the rights of executors/kubernetes/manifests to them."""
    api = cluster.people.api
    for entry in DEFINITIONS:
        if cluster.define is not None:
            cluster.define(entry)
            continue
        try:
            api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", entry)
        except ApiError as error:
            assert error.status == 409, error
    for entry in DEFINITIONS:
        spec = entry["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        until(lambda path=path: _answers(api, path), path)  # type: ignore[misc]
    if cluster.real:
        kubectl = path_of("kubectl")
        assert kubectl
        config = cluster.real.kubeconfig(ADMIN_TOKEN)
        for name in ("kueue-rights.yaml", "devices-rights.yaml"):
            subprocess.run(
                [kubectl, f"--kubeconfig={config}", "apply", "-f", str(MANIFESTS / name)],
                check=True, capture_output=True, timeout=60,
            )  # fmt: skip


def _answers(api: ApiServer, path: str) -> bool:
    try:
        api.list_all(path)
    except ApiError:
        return False
    return True
