"""Checks of `gangline executor kubernetes doctor`: missing rights, taints that count as outages, features that this version lacks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...contract.text import counted
from ..model import DoctorFinding, DoctorLevel, Node, ScheduledJob, SchedulerError
from .api import ApiError, ApiServer, is_in_pod
from .devices import GROUP as DRA
from .jobs import is_gpu_resource
from .kueue import GROUP as KUEUE
from .marks import KubernetesNode
from .scheduler import EVENT_NAMESPACE, Kubernetes
from .settings import KubernetesConfig

#: Cluster-wide rights: (verb, group, resource, subresource, purpose).
RIGHTS = (
    ("list", "", "nodes", "", "read nodes"),
    ("watch", "", "nodes", "", "read nodes"),
    ("get", "", "nodes", "", "change a node that somebody else changes, too"),
    ("patch", "", "nodes", "", "set and remove its taints"),
    ("list", "", "pods", "", "know what runs where"),
    ("watch", "", "pods", "", "know what runs where"),
    ("create", "", "pods", "eviction", "carry out EVICT_NOW"),
    ("list", "policy", "poddisruptionbudgets", "", "evict a gang as a whole or not at all"),
)
#: Rights in the namespace of the Lease and the ledger.
STATE_RIGHTS = (
    ("create", "", "configmaps", "", "keep the ledger"),
    ("get", "", "configmaps", "", "keep the ledger"),
    ("update", "", "configmaps", "", "keep the ledger"),
    ("create", "coordination.k8s.io", "leases", "", "be one of several replicas"),
    ("get", "coordination.k8s.io", "leases", "", "be one of several replicas"),
    ("update", "coordination.k8s.io", "leases", "", "be one of several replicas"),
)
HEALTH_RIGHT = ("patch", "", "nodes", "status", "write the condition GanglineHealthy")
#: Rights for the setting kueue = true (KUEUE_RIGHTS) and for device_taints = true (DEVICE_RIGHTS).
KUEUE_RIGHTS = (
    *((verb, KUEUE, kind, "", "serve admission checks of Kueue") for kind in ("workloads", "admissionchecks", "resourceflavors") for verb in ("list", "watch")),
    ("create", KUEUE, "admissionchecks", "", "create the AdmissionCheck gangline"),
    *(("patch", KUEUE, kind, "status", "answer admission checks of Kueue") for kind in ("workloads", "admissionchecks")),
)  # fmt: skip
DEVICE_RIGHTS = (
    *(
        (verb, DRA, "devicetaintrules", "", "taint one GPU in place of its node")
        for verb in ("list", "create", "patch", "delete")
    ),
    ("list", DRA, "resourceslices", "", "find a GPU by its UUID"),
)
MANIFESTS = {KUEUE: "kueue-rights.yaml", DRA: "devices-rights.yaml"}
EVENT_RIGHTS = tuple(
    (verb, "", "events", "", "say in `kubectl describe node` why it was set")
    for verb in ("create", "get", "patch")
)
SHOWN_MAX = 5
#: Name of the service account in executor-rights.yaml.
SERVICE_ACCOUNT = "gangline-executor"
#: Names of extended resources that may be GPUs or other accelerators.
LIKE_A_GPU = re.compile(
    r"gpu|mig-|gaudi|cuda|dcu|gcu|mlu|xpu|npu|tpu|neuron|ascend|accelerator", re.IGNORECASE
)


def findings(
    api: ApiServer, scheduler: Kubernetes, config: KubernetesConfig, attempt: bool
) -> Iterator[DoctorFinding]:
    """Yield findings about the cluster; with *attempt*, also set an executor's taint in a dry run."""
    try:
        yield DoctorFinding(
            DoctorLevel.OK,
            f"Kubernetes {scheduler.capabilities().version} answers at {api.access.shown}",
        )
        yield from _rights(api, config)
        nodes, jobs = scheduler.read_nodes(), scheduler.read_jobs()
        yield from cluster_findings(nodes, jobs)
        yield from resource_findings(scheduler.current_nodes().values(), config.gpu_resources)
        if attempt and nodes:
            node = next(iter(nodes))
            scheduler.try_taint(node)
            yield DoctorFinding(DoctorLevel.OK, f"the API server would take a taint of node {node}")
    except SchedulerError as error:
        yield DoctorFinding(DoctorLevel.MISSING, str(error))


def _service_account(config: KubernetesConfig) -> dict[str, Any]:
    """Return the subject whose rights are checked: {} for the login itself, if it is the executor's own.

    A person's login, behind `kubectl proxy` or in kubectl's kubeconfig, has other rights than the service account.
    """
    is_own = not config.kubernetes_server and (config.kubeconfig or is_in_pod())
    if is_own or config.ledger:
        return {}
    namespace = config.namespace
    user = f"system:serviceaccount:{namespace}:{SERVICE_ACCOUNT}"
    groups = [
        "system:serviceaccounts",
        f"system:serviceaccounts:{namespace}",
        "system:authenticated",
    ]
    return {"user": user, "groups": groups}


def _rights(api: ApiServer, config: KubernetesConfig) -> Iterator[DoctorFinding]:
    wanted = [*((one, "") for one in RIGHTS), *((one, EVENT_NAMESPACE) for one in EVENT_RIGHTS)]
    if config.publish_health:
        wanted.append((HEALTH_RIGHT, ""))
    wanted += [(one, "") for one in (*(KUEUE_RIGHTS if config.kueue else ()), *(DEVICE_RIGHTS if config.device_taints else ()))]  # fmt: skip
    if not config.ledger:
        wanted += [(one, config.namespace) for one in STATE_RIGHTS]
    missing, account = 0, _service_account(config)
    user = account["user"] if account else ""
    for (verb, group, resource, subresource, purpose), namespace in wanted:
        attributes = {
            "verb": verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
        }
        # The manifests grant rights only for the ConfigMap and the Lease with the name `state_name`.
        is_named = namespace and verb != "create" and resource != "events"
        name = config.state_name if is_named else ""
        kind = "SubjectAccessReview" if account else "SelfSubjectAccessReview"
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "spec": {
                "resourceAttributes": {**attributes, "namespace": namespace, "name": name},
                **account,
            },
        }
        try:
            answer = api.call("POST", f"/apis/authorization.k8s.io/v1/{kind.lower()}s", body)
        except ApiError as error:
            if error.status != 403 or not account:
                raise
            yield DoctorFinding(
                DoctorLevel.NOTE,
                f"rights of {user} are unknown, because this login may not ask for them; "
                "run doctor in the executor's pod",
            )
            return
        status = answer.get("status") if isinstance(answer, dict) else None
        if not (status or {}).get("allowed"):
            missing += 1
            what = f"{verb} {resource}{f'/{subresource}' if subresource else ''}"
            yield DoctorFinding(
                DoctorLevel.MISSING,
                f"{user and user + ' '}may not {what}: it cannot {purpose}; kubectl apply -f "
                f"executors/kubernetes/manifests/{MANIFESTS.get(group, 'executor-rights.yaml')}",
            )
    if not missing:
        yield DoctorFinding(DoctorLevel.OK, f"{user and user + ' '}has all rights that it needs")


def resource_findings(
    nodes: Iterable[KubernetesNode], gpu_resources: tuple[str, ...]
) -> Iterator[DoctorFinding]:
    """Yield a finding about resources that look like GPUs and match no pattern of *gpu_resources*. Pure."""
    offered = {name for node in nodes for name, count in node.gpus.items() if count}
    unknown = sorted(
        name
        for name in offered
        if LIKE_A_GPU.search(name) and not is_gpu_resource(name, gpu_resources)
    )
    if unknown:
        yield DoctorFinding(
            DoctorLevel.NOTE,
            f"nodes offer {', '.join(unknown[:SHOWN_MAX])}, which gpu_resources does not match: "
            "pods with it are ignored, "
            "so a drain does not wait for them; add it to gpu_resources if it is a GPU",
        )


def cluster_findings(
    nodes: Mapping[str, Node], jobs: Mapping[str, ScheduledJob]
) -> Iterable[DoctorFinding]:
    """Yield findings about nodes and gangs. Pure."""
    yield DoctorFinding(
        DoctorLevel.OK, f"{counted(len(nodes), 'node')}, {len(jobs)} gangs with GPUs"
    )
    if not nodes:
        yield DoctorFinding(DoctorLevel.MISSING, "the cluster has no nodes")
    reasons = Counter(
        node.out.partition(",")[0].partition(":")[0] for node in nodes.values() if node.out
    )
    for reason, count in reasons.most_common(SHOWN_MAX):
        yield DoctorFinding(
            DoctorLevel.NOTE,
            f"{counted(count, 'node')} taken out by others: {reason}; add taints that only describe "
            "a node to usual_taints",
        )
    left = sorted(job.name for job in jobs.values() if job.is_running and not job.may_requeue)
    if left:
        yield DoctorFinding(
            DoctorLevel.SLOW,
            f"{len(left)} gangs are not evicted, because no controller recreates their pods, or "
            "their owner forbids it: " + ", ".join(left[:SHOWN_MAX]),
        )
