"""Gangs in Kubernetes: groups pods into jobs, with their nodes, restarts and disruption budgets. Pure."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from ..model import ScheduledJob

#: Labels and annotations that name a pod's gang, with the kind for the gang's name; the label of the largest group
#: comes first.
GANG_LABELS = (
    ("kueue.x-k8s.io/pod-group-name", "podgroup"),
    ("jobset.sigs.k8s.io/jobset-name", "jobset"),
    ("ray.io/cluster", "raycluster"),
    ("training.kubeflow.org/job-name", "trainingjob"),
    ("scheduling.x-k8s.io/pod-group", "podgroup"),
    ("volcano.sh/job-name", "vcjob"),
    ("batch.kubernetes.io/job-name", "job"),
    ("job-name", "job"),
)
GANG_ANNOTATIONS = (("scheduling.k8s.io/group-name", "podgroup"),)

#: Annotations of pods, by which the owner of a job sets options.
CHECKPOINT_ANNOTATION = "gangline.io/checkpoint-seconds"
REQUEUE_ANNOTATION = "gangline.io/requeue"
ELASTIC_ANNOTATION = "gangline.io/elastic"
SAFE_TO_EVICT_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict"
CHECKPOINT_SECONDS_MAX = 7 * 86_400
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"

#: Resources that measure a share of a GPU, such as nvidia.com/gpumem, volcano.sh/vgpu-cores, tencent.com/vcuda-core.
SHARE = re.compile(r"mem|core|percent", re.ASCII)
GANG_CHARACTERS_MAX = 256
ENDED_PHASES = ("Succeeded", "Failed")
#: A pod that failed for these reasons lost its node.
NODE_FAIL_REASONS = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
#: An evicted gang counts as ended if it has no new pods after this time.
RECREATED_SECONDS_MAX = 60.0
#: A time in Kubernetes; fractions of a second are ignored.
TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)?Z", re.ASCII
)


@dataclass(frozen=True, slots=True)
class GangPod:
    """A pod that has GPUs, or waits for GPUs."""

    namespace: str
    name: str
    uid: str
    gang: str
    phase: str
    node: str = ""
    is_deleted: bool = False
    is_ready: bool = False
    reason: str = ""
    gpus: int = 0
    #: A controller recreates the pod, and the pod's owner does not forbid eviction.
    may_requeue: bool = False
    is_elastic: bool = False
    checkpoint_seconds: float = 0.0
    created: float = 0.0
    scheduled: float = 0.0
    ended: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    #: IP addresses of the pod and of its node.
    addresses: frozenset[str] = frozenset()

    @property
    def is_live(self) -> bool:
        """Whether the pod runs or waits, and is not being deleted."""
        return not self.is_deleted and self.phase not in ENDED_PHASES


def parse_pod(
    document: Any, gpu_resources: Collection[str], gang_labels: Sequence[str] = ()
) -> GangPod | None:
    """Return the pod of *document*, the API server's JSON.

    None for a pod without GPUs, a DaemonSet's pod or a static pod. *gang_labels*: the site's
    labels that name a gang; they precede GANG_LABELS. Raises KeyError, TypeError, ValueError.
    """
    metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    gpus = gpus_of_pod(spec, gpu_resources)
    if not gpus and not spec.get("resourceClaims"):
        return None
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    owner = _controller(metadata)
    if owner.get("kind") in ("DaemonSet", "Node") or MIRROR_ANNOTATION in annotations:
        return None
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    is_bound = scheduled.get("status") == "True"
    is_forbidden = "false" in (
        str(annotations.get(REQUEUE_ANNOTATION)),
        str(annotations.get(SAFE_TO_EVICT_ANNOTATION)),
    )
    namespace, name = str(metadata["namespace"]), str(metadata["name"])
    created = parse_time(metadata.get("creationTimestamp"))
    return GangPod(
        namespace=namespace,
        name=name,
        uid=str(metadata["uid"]),
        gang=_gang(namespace, name, labels, annotations, owner, gang_labels)[:GANG_CHARACTERS_MAX],
        phase=str(status.get("phase", "Pending")),
        node=str(spec.get("nodeName") or ""),
        is_deleted=bool(metadata.get("deletionTimestamp")),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        reason=str(status.get("reason") or ""),
        gpus=gpus,
        may_requeue=bool(owner) and not is_forbidden,
        is_elastic=annotations.get(ELASTIC_ANNOTATION) == "true",
        checkpoint_seconds=_checkpoint_seconds(annotations.get(CHECKPOINT_ANNOTATION)),
        created=created,
        scheduled=(parse_time(scheduled.get("lastTransitionTime")) if is_bound else 0.0) or created,
        ended=max((_finished(one) for one in status.get("containerStatuses") or []), default=0.0),
        labels={str(key): str(value) for key, value in labels.items()},
        addresses=frozenset(str(status[key]) for key in ("podIP", "hostIP") if status.get(key)),
    )


def _controller(metadata: Any) -> Mapping[str, Any]:
    for owner in metadata.get("ownerReferences") or []:
        if owner.get("controller"):
            return dict(owner)
    return {}


def _gang(
    namespace: str,
    name: str,
    labels: Mapping[str, Any],
    annotations: Mapping[str, Any],
    owner: Mapping[str, Any],
    gang_labels: Sequence[str],
) -> str:
    """Return the gang of a pod as NAMESPACE/KIND/NAME, by label, else by annotation, else by owner, else the pod."""
    site = tuple((key, key.rpartition("/")[2]) for key in gang_labels)
    for source, keys in ((labels, (*site, *GANG_LABELS)), (annotations, GANG_ANNOTATIONS)):
        for key, kind in keys:
            if source.get(key):
                return f"{namespace}/{kind}/{source[key]}"
    if owner:
        return f"{namespace}/{str(owner.get('kind', '')).lower()}/{owner.get('name', '')}"
    return f"{namespace}/pod/{name}"


def gpus_of_pod(spec: Any, gpu_resources: Collection[str]) -> int:
    """Return the number of GPUs that a pod needs: the sum of its containers, or the maximum of its init containers."""
    gpus = sum(gpus_of(container, gpu_resources) for container in spec.get("containers") or [])
    first = (gpus_of(container, gpu_resources) for container in spec.get("initContainers") or [])
    return max(gpus, *first, 0)


def gpus_of(container: Any, gpu_resources: Collection[str]) -> int:
    """Return the number of GPUs that a container requests."""
    resources = container.get("resources") or {}
    wanted = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return count_gpus(wanted, gpu_resources)


def count_gpus(quantities: Mapping[str, Any], gpu_resources: Collection[str]) -> int:
    """Return the number of GPUs among extended resources; shares alone count as one GPU."""
    counts = [
        (name, int(count))
        for name, count in ((name, str(one)) for name, one in quantities.items())
        if count.isdecimal() and 0 < len(count) < 8 and is_gpu_resource(name, tuple(gpu_resources))
    ]
    whole = sum(count for name, count in counts if not SHARE.search(name))
    return whole or int(any(count for _, count in counts))


@cache
def is_gpu_resource(name: str, gpu_resources: tuple[str, ...]) -> bool:
    """Return whether the extended resource *name* is a kind of GPU."""
    return any(fnmatchcase(name, pattern) for pattern in gpu_resources)


def _checkpoint_seconds(text: Any) -> float:
    word = str(text or "")
    seconds = int(word) if word.isdecimal() and len(word) < 8 else 0
    return float(seconds) if seconds <= CHECKPOINT_SECONDS_MAX else 0.0


def _finished(status: Any) -> float:
    return parse_time(((status.get("state") or {}).get("terminated") or {}).get("finishedAt"))


def parse_time(text: Any) -> float:
    """Return a time in Kubernetes as seconds since the epoch; 0 for a missing or invalid time."""
    match = TIME.fullmatch(str(text or ""))
    if match is None:
        return 0.0
    try:
        return float(calendar.timegm(time.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


@dataclass(slots=True)
class GangRun:
    """The observed state of a gang.

    `members`: uids of its pods with a node; `size`: their number when the gang was complete.
    `restarts`: how often the gang lost pods.
    """

    members: set[str] = field(default_factory=set)
    size: int = 0
    restarts: int = 0
    #: The gang lost a pod and is not complete again; further losses until then belong to the same restart.
    is_healing: bool = False
    #: An executor evicted the gang's pods, and the gang has no new pods yet. `gone`: when its last pod vanished; 0: it
    #: has pods.
    is_evicted: bool = False
    gone: float = 0.0
    job: ScheduledJob | None = None


class GangHistory:
    """Counts the restarts of gangs since the start of the process, because Kubernetes does not count them."""

    def __init__(self) -> None:
        self._runs: dict[str, GangRun] = {}

    def jobs(
        self, pods: Iterable[GangPod], leaving: Collection[str], now: float
    ) -> dict[str, ScheduledJob]:
        """Return the gangs of *pods* by name.

        *leaving*: uids of pods that this executor evicted; the watch may not show their deletion yet.
        """
        groups: dict[str, list[GangPod]] = {}
        for pod in pods:
            groups.setdefault(pod.gang, []).append(pod)
        jobs: dict[str, ScheduledJob] = {}
        for name, group in groups.items():
            run = self._runs.setdefault(name, GangRun())
            live = [pod for pod in group if pod.is_live and pod.uid not in leaving]
            _count_losses(run, group, live)
            run.is_evicted = not live and (
                run.is_evicted or any(pod.uid in leaving for pod in group)
            )
            run.gone = 0.0
            run.job = jobs[name] = _job(name, group, live, run.restarts)
        for name in self._runs.keys() - groups.keys():
            run = self._runs[name]
            is_evicted = run.is_evicted or not run.members.isdisjoint(leaving)
            run.gone = run.gone or now
            if run.job is None or not is_evicted or now - run.gone > RECREATED_SECONDS_MAX:
                del self._runs[name]
                continue
            run.is_evicted = True
            _count_losses(run, [], [])
            jobs[name] = replace(run.job, state="PENDING", nodes=frozenset(), restarts=run.restarts)
        return jobs


def _count_losses(run: GangRun, group: Iterable[GangPod], live: Iterable[GangPod]) -> None:
    bound = {pod.uid for pod in live if pod.node}
    succeeded = {pod.uid for pod in group if pod.phase == "Succeeded"}
    if run.members - bound - succeeded and not run.is_healing:
        run.restarts, run.is_healing = run.restarts + 1, True
    run.members = bound
    if not run.is_healing:
        run.size = len(bound)
    elif len(bound) >= run.size:
        run.is_healing = False


def _job(name: str, group: list[GangPod], live: list[GangPod], restarts: int) -> ScheduledJob:
    """Return a gang as a ScheduledJob, which runs while any of its pods has a node."""
    bound = [pod for pod in live if pod.node]
    known = live or group
    ended = 0.0
    if bound:
        state = "RUNNING"
    elif any(pod.phase not in ENDED_PHASES for pod in group):
        state = "PENDING"
    else:
        failed = [pod for pod in group if pod.phase == "Failed"]
        lost = any(pod.reason in NODE_FAIL_REASONS for pod in failed)
        state = "NODE_FAIL" if lost else "FAILED" if failed else "COMPLETED"
        ended = max(pod.ended or pod.scheduled for pod in group)
    return ScheduledJob(
        name=name,
        state=state,
        nodes=frozenset(pod.node for pod in bound),
        restarts=restarts,
        may_requeue=all(pod.may_requeue for pod in known),
        gpus=sum(pod.gpus for pod in live),
        submitted=min(pod.created for pod in known),
        started=max((pod.scheduled for pod in bound), default=0.0),
        ended=ended,
        checkpoint_seconds=max(pod.checkpoint_seconds for pod in known),
        restarts_itself=all(pod.is_elastic for pod in known),
        addresses=frozenset().union(*(pod.addresses for pod in bound)),
    )


def budget_refusal(pods: Sequence[GangPod], budgets: Iterable[Any]) -> str:
    """Return the disruption budget that forbids evicting all *pods*, as a message; "" if all may be evicted.

    The API server checks each pod separately, and would permit evicting a part of a gang. Raises KeyError, TypeError.
    """
    for budget in budgets:
        metadata, selector = budget["metadata"], (budget.get("spec") or {}).get("selector")
        covered = [
            pod
            for pod in pods
            if pod.namespace == metadata["namespace"]
            and selector is not None
            and selects(selector, pod.labels)
        ]
        healthy = sum(pod.is_ready for pod in covered)
        allowed = int((budget.get("status") or {}).get("disruptionsAllowed", 0))
        if healthy > allowed:
            return (
                f"disruption budget {metadata['namespace']}/{metadata['name']} allows {allowed} disruptions, "
                f"and {healthy} pods of the gang are under it"
            )
    return ""


def selects(selector: Any, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches *labels*; an empty selector matches all. Raises KeyError, TypeError."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for one in selector.get("matchExpressions") or []:
        key, operator, values = one["key"], one["operator"], one.get("values") or []
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }.get(operator)
        if not holds:
            return False
    return True
