"""The rights of executors/kubernetes/manifests, by the real API server with RBAC on: each needed right, and no others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from gangline.executors.kubernetes import doctor as kubernetes_doctor
from gangline.executors.kubernetes.api import ApiServer
from gangline.executors.kubernetes.doctor import DEVICE_RIGHTS, KUEUE_RIGHTS
from gangline.executors.kubernetes.settings import KubernetesConfig
from tests.kubernetes_cluster import (
    ADMIN_TOKEN,
    MANIFESTS,
    MISSING,
    NAMESPACE,
    UsedCluster,
    has_kubernetes,
    path_of,
)
from tests.kueue_objects import DEFINITIONS, DRA, KUEUE, define_all

pytestmark = pytest.mark.skipif(not has_kubernetes(), reason=MISSING)

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
LEASES = "coordination.k8s.io"
#: (group, resource with subresource, namespace, name) -> the verbs that the executor has, with all of the three manifests.
ALLOWED: dict[tuple[str, str, str, str], set[str]] = {
    ("", "nodes", "", ""): {"get", "list", "watch", "patch"},
    ("", "nodes/status", "", ""): {"patch"},
    ("", "pods", "", ""): {"list", "watch"},
    ("", "pods/eviction", "", ""): {"create"},
    ("policy", "poddisruptionbudgets", "", ""): {"list"},
    ("", "events", "default", ""): {"create", "get", "patch"},
    ("", "configmaps", "gangline", ""): {"create"},
    ("", "configmaps", "gangline", "gangline-executor"): {"create", "get", "update"},
    # Kubernetes cannot limit `create` to a name.
    ("", "configmaps", "gangline", "other"): {"create"},
    (LEASES, "leases", "gangline", ""): {"create"},
    (LEASES, "leases", "gangline", "gangline-executor"): {"create", "get", "update"},
    (KUEUE, "workloads", "", ""): {"list", "watch"},
    (KUEUE, "workloads/status", "", ""): {"patch"},
    (KUEUE, "admissionchecks", "", ""): {"list", "watch", "create"},
    (KUEUE, "admissionchecks/status", "", ""): {"patch"},
    (KUEUE, "resourceflavors", "", ""): {"list", "watch"},
    (DRA, "devicetaintrules", "", ""): {"list", "create", "patch", "delete"},
    (DRA, "resourceslices", "", ""): {"list"},
}
#: Resources without any right.
FORBIDDEN = (
    ("", "secrets", "", ""), ("", "secrets", "gangline", ""), ("", "configmaps", "", ""), ("", "configmaps", "kube-system", ""),
    (LEASES, "leases", "kube-system", ""), ("", "events", NAMESPACE, ""), ("", "namespaces", "", ""),
    ("", "pods/exec", "", ""), ("", "pods/status", "", ""), ("", "pods/binding", "", ""), ("", "nodes/proxy", "", ""), ("", "serviceaccounts", "", ""),
    ("", "serviceaccounts/token", "gangline", ""), ("apps", "deployments", "", ""), ("batch", "jobs", "", ""),
    ("rbac.authorization.k8s.io", "clusterroles", "", ""), ("rbac.authorization.k8s.io", "clusterrolebindings", "", ""),
    ("apiextensions.k8s.io", "customresourcedefinitions", "", ""), ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", ""),
    (KUEUE, "clusterqueues", "", ""), (KUEUE, "localqueues", "", ""), (KUEUE, "resourceflavors/status", "", ""),
    (DRA, "devicetaintrules/status", "", ""), (DRA, "resourceclaims", "", ""), (DRA, "deviceclasses", "", ""), ("*", "*", "", ""),
)  # fmt: skip


@pytest.fixture(scope="module")
def api(real_cluster: UsedCluster) -> Iterator[ApiServer]:
    define_all(real_cluster)
    with closing(ApiServer(real_cluster.access)) as api:
        yield api


def allowed_verbs(api: ApiServer, group: str, resource: str, namespace: str, name: str) -> set[str]:
    allowed = set()
    for verb in VERBS:
        kind, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": kind, "subresource": subresource, "namespace": namespace, "name": name}  # fmt: skip
        body: Any = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes},
        }  # fmt: skip
        answer = api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        if answer["status"].get("allowed"):
            allowed.add(verb)
    return allowed


@pytest.mark.parametrize("place", ALLOWED, ids=lambda place: "-".join(filter(None, place)).replace("/", "."))  # fmt: skip
def test_what_it_needs_and_no_other_verb(api: ApiServer, place: tuple[str, str, str, str]) -> None:
    """A needless verb could be used on the whole cluster with a stolen token."""
    assert allowed_verbs(api, *place) == ALLOWED[place]


def test_nothing_of_all_else(api: ApiServer) -> None:
    """Secrets, other namespaces, the rights themselves."""
    excess = {place: verbs for place in FORBIDDEN if (verbs := allowed_verbs(api, *place))}
    assert excess == {}


@pytest.mark.parametrize("name", ["executor.yaml", "extender.yaml"])
def test_the_api_server_takes_the_other_manifests(real_cluster: UsedCluster, api: ApiServer, name: str) -> None:  # fmt: skip
    """A misspelled field would be found only at a user's first `kubectl apply`."""
    kubectl = path_of("kubectl")
    assert kubectl and real_cluster.real
    done = subprocess.run(
        [kubectl, f"--kubeconfig={real_cluster.real.kubeconfig(ADMIN_TOKEN)}", "apply", "--dry-run=server", "-f", str(MANIFESTS / name)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_doctor_knows_the_rights_of_what_is_turned_on(api: ApiServer) -> None:
    """Each missing right is reported with the manifest that grants it."""
    config = KubernetesConfig(kueue=True, device_taints=True, kubeconfig="its own")
    assert [right.text for right in kubernetes_doctor._rights(api, config)] == [
        "has all rights that it needs"
    ]
    wanted = {(group, kind) for _, group, kind, _, _ in (*KUEUE_RIGHTS, *DEVICE_RIGHTS)}
    assert {group for group, _ in wanted} == {KUEUE, DRA} == set(kubernetes_doctor.MANIFESTS)


def test_the_table_names_all_that_the_manifests_name() -> None:
    """A right added to a manifest must be added here, with its reason in the review."""
    named = set[str]()
    for name in ("executor-rights.yaml", "kueue-rights.yaml", "devices-rights.yaml"):
        for line in re.findall(r"resources: \[(.*)\]", (MANIFESTS / name).read_text()):
            named |= set(re.findall(r'"([a-z/]+)"', line))
    assert named == {resource for _, resource, _, _ in ALLOWED}
    assert {definition["spec"]["names"]["plural"] for definition in DEFINITIONS} <= named
