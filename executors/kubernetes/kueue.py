"""An admission check for Kueue: a workload waits while it fits only if nodes count that are out or unhealthy.

Kueue owns the workload: its quota, its eviction, and the replacement of nodes. This module writes only the state of its own
check, and only while this state is Pending.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..model import SchedulerError
from .api import JSON_PATCH, MERGE_PATCH, ApiError, ApiServer
from .jobs import GangPod, count_gpus, gpus_of_pod
from .marks import BUCKET_LABEL, KubernetesNode, node_of
from .watch import WatchedObjects

log = logging.getLogger(__name__)

CONTROLLER_NAME, CHECK_NAME = "gangline.io/health", "gangline"
GROUP = "kueue.x-k8s.io"
#: Supported versions of Kueue's API, the newest first: each has all fields that this module writes.
VERSIONS = ("v1beta2", "v1beta1")
#: Timeout of the first list, and period of the search for Kueue in a cluster without Kueue.
LIST_SECONDS_MAX, ABSENT_SECONDS = 60.0, 60.0
#: Workloads are checked again after this time, even without a change.
TURN_SECONDS = 5.0
#: A node with a greater bucket is unhealthy.
BUCKET_MAX = 2
#: First delay before Kueue retries a workload, and its maximum; the delay doubles each time.
REQUEUE_SECONDS, REQUEUE_SECONDS_MAX = 60, 900
PENDING, READY, RETRY = "Pending", "Ready", "Retry"
NODES_SHOWN_MAX, MESSAGE_CHARACTERS_MAX = 5, 1000
POD_SETS_MAX, PODS_MAX = 8, 100_000


@dataclass(frozen=True, slots=True)
class PodSet:
    """Identical pods of a workload. `selector`: required node labels, also those of the flavors."""

    name: str
    count: int
    gpus: int
    selector: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KueueWorkload:
    """A workload of Kueue. `checks`: its admission checks in Kueue's order: (name, state, retries)."""

    namespace: str
    name: str
    pod_sets: tuple[PodSet, ...]
    checks: tuple[tuple[str, str, int], ...]
    has_quota: bool
    #: Pod set -> its assigned resource flavors.
    flavors: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """The check's new state for a workload, with a message. `node_selector` applies to the pod sets in `pod_sets`."""

    state: str
    message: str
    requeue_seconds: int = 0
    node_selector: Mapping[str, str] = field(default_factory=dict)
    pod_sets: tuple[str, ...] = ()


def parse_workload(document: Any, gpu_resources: Collection[str]) -> KueueWorkload:
    """Return the Workload of *document*, the API server's JSON.

    Raises KeyError, TypeError, ValueError, AttributeError.
    """
    metadata, status = document["metadata"], document.get("status") or {}
    pod_sets = []
    for one in (document["spec"].get("podSets") or [])[:POD_SETS_MAX]:
        template = one["template"]["spec"]
        gpus = gpus_of_pod(template, gpu_resources)
        selector = {str(key): str(v) for key, v in (template.get("nodeSelector") or {}).items()}
        pod_sets.append(
            PodSet(str(one.get("name", "main")), min(int(one["count"]), PODS_MAX), gpus, selector)
        )
    checks = tuple(
        (str(one["name"]), str(one["state"]), int(one.get("retryCount") or 0))
        for one in status.get("admissionChecks") or []
    )
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or []}
    assignments = (status.get("admission") or {}).get("podSetAssignments") or []
    flavors = {
        str(one.get("name", "main")): frozenset(map(str, (one.get("flavors") or {}).values()))
        for one in assignments
    }
    has_quota = conditions.get("QuotaReserved") == "True" and conditions.get("Finished") != "True"
    return KueueWorkload(str(metadata["namespace"]), str(metadata["name"]), tuple(pod_sets), checks, has_quota, flavors)  # fmt: skip


def refusals(
    nodes: Iterable[KubernetesNode], usual_taints: Iterable[str], common: frozenset[str]
) -> dict[str, str]:
    """Return node -> why the node is out or unhealthy, and therefore does not count."""
    patterns, found = tuple(usual_taints), dict[str, str]()
    for node in nodes:
        shown = node_of(node, patterns, common)
        if node.holds:
            found[node.name] = (
                "held for "
                f"{', '.join(sorted(name.removeprefix('gangline_') for name in node.holds))}"
            )
        elif shown.out or shown.down:
            found[node.name] = shown.out or shown.down
        elif (node.bucket or 0) > BUCKET_MAX:
            found[node.name] = f"bucket {node.bucket}"
    return found


@dataclass(frozen=True, slots=True)
class AdmissionView:
    """Snapshot of the cluster for a check. `out`: the result of `refusals`."""

    nodes: Mapping[str, KubernetesNode]
    out: Mapping[str, str]
    pods: Iterable[GangPod]
    gpu_resources: Collection[str]

    def free_gpus(self) -> dict[str, int]:
        """Return the GPUs that no pod has, by node."""
        free = {
            name: count_gpus(node.gpus, self.gpu_resources) for name, node in self.nodes.items()
        }
        for pod in self.pods:
            if pod.is_live and pod.node in free:
                free[pod.node] -= pod.gpus
        return {name: count for name, count in free.items() if count > 0}


def check_workload(
    workload: KueueWorkload, view: AdmissionView, *, retries: int = 0, select_bucket: bool = False
) -> CheckAnswer:
    """Return the check's answer: RETRY only if the workload fits with the nodes that are out, and not without them.

    With *select_bucket*, a workload that fits on the nodes of bucket 0 gets a node selector for these nodes.
    """
    nodes, out = view.nodes, view.out
    wanted = sorted(
        (one for one in workload.pod_sets if one.gpus and one.count), key=lambda one: -one.gpus
    )
    if not wanted:
        return CheckAnswer(READY, "it asks for no GPU")
    free = view.free_gpus()
    usable = {name: count for name, count in free.items() if name not in out}
    if not (missing := _missing(wanted, nodes, usable)):
        best = {name: count for name, count in usable.items() if nodes[name].bucket == 0}
        selects = any(BUCKET_LABEL in one.selector for one in wanted)
        if select_bucket and not selects and not _missing(wanted, nodes, best):
            names = tuple(one.name for one in wanted)
            return CheckAnswer(READY, "it fits on nodes of bucket 0", node_selector={BUCKET_LABEL: "0"}, pod_sets=names)  # fmt: skip
        return CheckAnswer(READY, "it fits on healthy nodes")
    if _missing(wanted, nodes, free):
        return CheckAnswer(READY, "no node that is out would make it fit: the decision is Kueue's")
    pod_set, count = missing
    blocking = [
        name
        for name in sorted(out)
        if free.get(name, 0) >= pod_set.gpus and _matches(nodes[name], pod_set)
    ]
    shown = "; ".join(f"{name} ({out[name]})" for name in blocking[:NODES_SHOWN_MAX])
    more = f" and {len(blocking) - NODES_SHOWN_MAX} more" if len(blocking) > NODES_SHOWN_MAX else ""
    message = f"{count} of {pod_set.count} pods with {pod_set.gpus} GPUs ({pod_set.name}) fit on no healthy node; out: {shown}{more}"
    seconds = min(REQUEUE_SECONDS << min(retries, 10), REQUEUE_SECONDS_MAX)
    return CheckAnswer(RETRY, message[:MESSAGE_CHARACTERS_MAX], seconds)


def _matches(node: KubernetesNode, pod_set: PodSet) -> bool:
    return all(node.labels.get(key) == value for key, value in pod_set.selector.items())


def _missing(
    wanted: Sequence[PodSet], nodes: Mapping[str, KubernetesNode], free: Mapping[str, int]
) -> tuple[PodSet, int] | None:
    """Return the first of *wanted* that does not fit, and the number of its pods that do not fit; None if all fit."""
    left = dict(free)
    for pod_set in wanted:
        count = pod_set.count
        for name, gpus in left.items():
            if not count:
                break
            if _matches(nodes[name], pod_set):
                here = min(gpus // pod_set.gpus, count)
                left[name], count = gpus - here * pod_set.gpus, count - here
        if count:
            return pod_set, count
    return None


def check_patch(
    workload: KueueWorkload, index: int, answer: CheckAnswer, now: float
) -> list[dict[str, Any]]:
    """Return the JSON patch that answers the check at *index*; it applies only while this check is Pending."""
    name = workload.checks[index][0]
    path = f"/status/admissionChecks/{index}"
    value: dict[str, Any] = {
        "name": name,
        "state": answer.state,
        "message": answer.message,
        "lastTransitionTime": _stamp(now),
    }
    if answer.state == RETRY:
        value["requeueAfterSeconds"] = answer.requeue_seconds
        # Kueue itself increases retryCount, in versions that have this field.
    if workload.checks[index][2]:
        value["retryCount"] = workload.checks[index][2]
    if answer.node_selector:
        value["podSetUpdates"] = [
            {"name": one, "nodeSelector": dict(answer.node_selector)} for one in answer.pod_sets
        ]
    return [
        {"op": "test", "path": f"{path}/name", "value": name},
        {"op": "test", "path": f"{path}/state", "value": PENDING},
        {"op": "replace", "path": path, "value": value},
    ]


def active_patch(is_active: bool, message: str, generation: int, now: float) -> dict[str, Any]:
    """Return the merge patch that sets the condition Active of an AdmissionCheck."""
    condition = {
        "type": "Active",
        "status": "True" if is_active else "False",
        "reason": "Active" if is_active else "Stopped",
        "message": message,
        "lastTransitionTime": _stamp(now),
        "observedGeneration": generation,
    }
    return {"status": {"conditions": [condition]}}


def _stamp(now: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))


@dataclass(frozen=True, slots=True)
class OwnCheck:
    """An AdmissionCheck that names this controller."""

    name: str
    generation: int
    is_active: bool


def parse_check(document: Any) -> OwnCheck | None:
    """Return the AdmissionCheck in *document*; None if it names another controller. Raises KeyError, TypeError."""
    if document["spec"].get("controllerName") != CONTROLLER_NAME:
        return None
    conditions = (document.get("status") or {}).get("conditions") or []
    active = any(one.get("type") == "Active" and one.get("status") == "True" for one in conditions)
    return OwnCheck(
        str(document["metadata"]["name"]), int(document["metadata"].get("generation") or 1), active
    )


class KueueController:
    """Answers the admission checks of this controller; `run` in a thread with its own *api*."""

    def __init__(
        self,
        api: ApiServer,
        read_view: Callable[[], AdmissionView],
        *,
        gpu_resources: Collection[str],
        select_bucket: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """*read_view*: returns the current view; raises SchedulerError."""
        self._api, self._read_view = api, read_view
        self._gpu_resources, self._select_bucket, self._wall = gpu_resources, select_bucket, wall
        self._base = ""
        self._workloads: WatchedObjects[KueueWorkload] | None = None
        self._checks: WatchedObjects[OwnCheck] | None = None
        self._flavors: WatchedObjects[Mapping[str, str]] | None = None
        self._wake = threading.Event()
        self._problem = ""
        self._has_created = False
        #: (namespace, workload) -> number of answers RETRY.
        self._retries: dict[tuple[str, str], int] = {}

    def run(self, stopped: threading.Event) -> None:
        """Answer checks until *stopped* is set."""
        while not stopped.is_set():
            self._wake.clear()
            pause = self.turn()
            end = time.monotonic() + pause
            # Check *stopped* every second, even if nothing changes.
            while not stopped.is_set() and time.monotonic() < end and not self._wake.wait(1.0):
                pass
        self.close()

    def close(self) -> None:
        """End the watches."""
        self._end_watches()
        self._api.close()

    def _end_watches(self) -> None:
        for watched in (self._workloads, self._checks, self._flavors):
            if watched is not None:
                watched.close()
        self._workloads = self._checks = self._flavors = None

    def turn(self) -> float:
        """Answer pending checks; return the seconds until the next turn. Failures of the API server are only logged."""
        try:
            if not self._begin():
                return ABSENT_SECONDS
            self._create_check()
            self._activate(True, "nodes' health is checked")
            self._answer()
        except SchedulerError as error:
            if str(error) != self._problem:
                log.warning("admission checks of Kueue wait: %s", error)
            self._problem = str(error)
        else:
            self._problem = ""
        return TURN_SECONDS

    def _begin(self) -> bool:
        """Start the watches; return whether the cluster has a supported Kueue.

        After a problem Kueue's versions are read again, because an upgrade of Kueue removes older versions.
        """
        if self._base and not self._problem:
            return True
        base = self._offered_base()
        if base == self._base:
            return bool(base)
        self._end_watches()
        self._base = base
        if not base:
            return False
        resources = self._gpu_resources
        self._workloads = WatchedObjects(
            self._api,
            f"{self._base}/workloads",
            lambda thing: parse_workload(thing, resources),
            lambda thing: f"{thing['metadata']['namespace']}/{thing['metadata']['name']}",
        )
        self._checks = WatchedObjects(
            self._api, f"{self._base}/admissionchecks", parse_check, _name_of
        )
        path = f"{self._base}/resourceflavors"
        self._flavors = WatchedObjects(self._api, path, _node_labels, _name_of)
        self._workloads.wake = self._checks.wake = self._wake.set
        return True

    def _offered_base(self) -> str:
        """Return the path of the newest version of VERSIONS on the API server; for none log the reason, return ""."""
        try:
            group = self._api.call("GET", f"/apis/{GROUP}")
        except ApiError as error:
            if error.status != 404:
                raise
            self._note("Kueue is not in this cluster")
            return ""
        offered = {str(one.get("version")) for one in group.get("versions") or []}
        version = next((one for one in VERSIONS if one in offered), None)
        if version is None:
            self._note(
                f"Kueue offers {', '.join(sorted(offered))}, and {' or '.join(VERSIONS)} is needed"
            )
            return ""
        return f"/apis/{GROUP}/{version}"

    def _create_check(self) -> None:
        """Create the AdmissionCheck, once per process, if none names this controller.

        A manifest cannot do this, because no API version is served by all versions of Kueue.
        """
        if self._has_created or self._current(self._checks):
            return
        self._has_created = True
        group_version = self._base.removeprefix("/apis/")
        body = {
            "apiVersion": group_version,
            "kind": "AdmissionCheck",
            "metadata": {"name": CHECK_NAME},
            "spec": {"controllerName": CONTROLLER_NAME},
        }
        try:
            created = self._api.call("POST", f"{self._base}/admissionchecks", body)
        except ApiError as error:
            if error.status != 403 and not error.is_conflict:
                self._has_created = False
                raise
            log.warning(
                "cannot create the AdmissionCheck %s: %s; apply the present kueue-rights.yaml, or create it with apiVersion %s "
                "and controllerName %s",
                CHECK_NAME,
                error,
                group_version,
                CONTROLLER_NAME,
            )
            return
        log.info("created the AdmissionCheck %s (%s)", CHECK_NAME, group_version)
        assert self._checks is not None
        self._checks.store(created)

    def _note(self, line: str) -> None:
        if line != self._problem:
            log.warning("admission checks of Kueue: %s", line)
        self._problem = line

    def _current(self, watched: WatchedObjects[Any] | None) -> dict[str, Any]:
        assert watched is not None
        watched.start(LIST_SECONDS_MAX)
        return watched.current()

    def _activate(self, is_active: bool, message: str) -> list[str]:
        """Set the condition Active of each of this controller's checks; return the names of the changed checks."""
        changed = []
        for check in self._current(self._checks).values():
            if check.is_active != is_active:
                path = f"{self._base}/admissionchecks/{urllib.parse.quote(check.name)}"
                patch = active_patch(is_active, message, check.generation, self._wall())
                assert self._checks is not None
                self._checks.store(self._api.call("PATCH", f"{path}/status", patch, MERGE_PATCH))
                changed.append(check.name)
        return changed

    def _answer(self) -> None:
        own = self._current(self._checks).keys()
        workloads = self._current(self._workloads)
        self._retries = {key: n for key, n in self._retries.items() if "/".join(key) in workloads}
        flavors = self._current(self._flavors)
        for workload in workloads.values():
            for index, (name, state, _) in enumerate(workload.checks):
                if name in own and state == PENDING and workload.has_quota:
                    self._write(workload, index, self._decide(workload, flavors))

    def _decide(
        self, workload: KueueWorkload, flavors: Mapping[str, Mapping[str, str]]
    ) -> CheckAnswer:
        key = workload.namespace, workload.name
        answer = check_workload(
            with_flavors(workload, flavors),
            self._read_view(),
            retries=self._retries.get(key, 0),
            select_bucket=self._select_bucket,
        )
        if answer.state == RETRY:
            self._retries[key] = self._retries.get(key, 0) + 1
        else:
            self._retries.pop(key, None)
        return answer

    def _write(self, workload: KueueWorkload, index: int, answer: CheckAnswer) -> None:
        assert self._workloads is not None
        path = f"{self._base}/namespaces/{workload.namespace}/workloads/{urllib.parse.quote(workload.name)}/status"
        try:
            patch = check_patch(workload, index, answer, self._wall())
            self._workloads.store(self._api.call("PATCH", path, patch, JSON_PATCH))
            log.info(
                "%s/%s: %s: %s", workload.namespace, workload.name, answer.state, answer.message
            )
        except ApiError as error:
            # The workload no longer exists, or another client changed it first: the watch will show the new state.
            if error.status != 404 and not error.is_conflict:
                raise

    def undo(self) -> list[str]:
        """Answer all pending checks READY, and mark the checks as not served.

        Return the completed actions. Raises SchedulerError.
        """
        if not self._begin():
            return []
        own = self._current(self._checks).keys()
        done = []
        for workload in self._current(self._workloads).values():
            for index, (name, state, _) in enumerate(workload.checks):
                if name in own and state == PENDING:
                    undone = "the controller was undone: nothing was checked"
                    self._write(workload, index, CheckAnswer(READY, undone))
                    done.append(f"admission check of {workload.namespace}/{workload.name}")
        stopped = self._activate(
            False, "the controller was undone; take the check out of the ClusterQueue"
        )
        return [*done, *(f"admission check {name} is inactive" for name in stopped)]


def with_flavors(
    workload: KueueWorkload, flavors: Mapping[str, Mapping[str, str]]
) -> KueueWorkload:
    """Return *workload* with the node labels of its assigned flavors in the selectors of its pod sets."""
    pod_sets = []
    for one in workload.pod_sets:
        selector = dict(one.selector)
        for flavor in sorted(workload.flavors.get(one.name, ())):
            selector.update(flavors.get(flavor, {}))
        pod_sets.append(PodSet(one.name, one.count, one.gpus, selector))
    return KueueWorkload(workload.namespace, workload.name, tuple(pod_sets), workload.checks, workload.has_quota, workload.flavors)  # fmt: skip


def _node_labels(flavor: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in (flavor["spec"].get("nodeLabels") or {}).items()}


def _name_of(thing: Any) -> str:
    return str(thing["metadata"]["name"])
