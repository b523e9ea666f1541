"""Kubernetes, through the API server: holds are taints with an end time, gangs are evicted by the eviction API.

Nodes and pods are read from watches, without a call. Each change of a node tests the resource version that it was computed
from, and is recomputed on a conflict. A cordon belongs to a person, so executors never set or remove a cordon.
"""

from __future__ import annotations

import logging
import re
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from .. import model
from ..scheduler_command import run_command, site_command
from .api import JSON_PATCH, STRATEGIC_PATCH, ApiError, ApiServer
from .devices import DeviceRules, device_holds
from .health import clear_health
from .jobs import GangHistory, GangPod, budget_refusal, parse_pod
from .kueue import AdmissionView, refusals
from .marks import (
    NODE_HOLDS_MAX,
    KubernetesNode,
    has_expired,
    holds_of,
    holds_patch,
    node_of,
    parse_node,
    usual_keys,
)
from .settings import KubernetesConfig
from .watch import WatchedObjects

log = logging.getLogger(__name__)

#: Timeout of the first list of all nodes and pods.
LIST_SECONDS_MAX = 60.0
#: Limit of attempts to change a node that other clients change at the same time.
ATTEMPTS_MAX = 8
#: Period of the search for expired device rules.
RULES_SECONDS = 30.0
#: An evicted pod counts as leaving for this long, even if the API server does not show its deletion.
LEAVING_SECONDS = 300.0
#: Holds are removed this long after their end, because the clocks of executors differ.
EXPIRED_MARGIN_SECONDS = 5.0
#: Namespace of the Events of nodes, which themselves have no namespace. `kubectl describe node` searches for the node's
#: name as uid, because kubelets write it there.
EVENT_NAMESPACE, EVENT_CHARACTERS_MAX = "default", 1000


class Kubernetes(model.Scheduler):
    """Kubernetes, through *api*. `close` ends the watches."""

    name = "kubernetes"

    def __init__(
        self,
        api: ApiServer,
        settings: KubernetesConfig | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings = settings or KubernetesConfig()
        self._devices = DeviceRules(api) if settings.device_taints else None
        self._rules_due = 0.0
        self._api, self._wall = api, wall
        self._nodes: WatchedObjects[KubernetesNode] = WatchedObjects(
            api, "/api/v1/nodes", parse_node, lambda thing: str(thing["metadata"]["name"])
        )
        self._pods: WatchedObjects[GangPod] = WatchedObjects(
            api,
            "/api/v1/pods",
            lambda thing: parse_pod(thing, settings.gpu_resources, settings.gang_labels),
            lambda thing: f"{thing['metadata']['namespace']}/{thing['metadata']['name']}",
        )
        self._history = GangHistory()
        self._leaving: dict[str, float] = {}
        self._eviction_version, self._budget_version = "policy/v1", "v1"
        self._capabilities: model.Capabilities | None = None

    def close(self) -> None:
        """End the watches."""
        self._nodes.close()
        self._pods.close()
        self._api.close()

    def capabilities(self) -> model.Capabilities:
        """Return the capabilities of this version."""
        if self._capabilities is None:
            version = self._api.call("GET", "/version")
            resources = self._api.call("GET", "/api/v1").get("resources") or []
            for one in resources:
                if one.get("name") == "pods/eviction":
                    self._eviction_version = f"{one.get('group')}/{one.get('version')}"
            group = self._api.call("GET", "/apis/policy")
            offered = {str(one.get("version")) for one in group.get("versions") or []}
            self._budget_version = "v1" if "v1" in offered else "v1beta1"
            self._capabilities = model.Capabilities(
                str(version.get("gitVersion", "")), has_drain=False
            )
        return self._capabilities

    def current_nodes(self) -> dict[str, KubernetesNode]:
        """Return all nodes from the watch."""
        self._nodes.start(LIST_SECONDS_MAX)
        return self._nodes.current()

    def read_nodes(self, names: Collection[str] | None = None) -> dict[str, model.Node]:
        """Return nodes by name; all if *names* is None."""
        nodes = self.current_nodes()
        common = usual_keys(nodes.values())
        wanted = nodes if names is None else {name: nodes[name] for name in names if name in nodes}
        return {
            name: node_of(node, self._settings.usual_taints, common)
            for name, node in wanted.items()
        }

    def read_jobs(self) -> dict[str, model.ScheduledJob]:
        """Return gangs as NAMESPACE/KIND/NAME."""
        now = self._wall()
        self._pods.start(LIST_SECONDS_MAX)
        self._leaving = {uid: until for uid, until in self._leaving.items() if until > now}
        return self._history.jobs(self._pods.current().values(), self._leaving, now)

    def read_holds(self) -> dict[str, model.NodeHold]:
        """Return the holds of executors, including expired holds whose taint is still set."""
        holds = holds_of(self.current_nodes().values())
        if self._devices is not None:
            holds = device_holds(self._devices.read()) | holds
        return holds

    def apply(self, steps: Iterable[model.Step]) -> dict[model.Step, str]:
        """Carry out *steps* in sequence."""
        errors: dict[model.Step, str] = {}
        for step in steps:
            try:
                self._apply_one(step)
            except model.SchedulerError as error:
                errors[step] = str(error)
        return errors

    def _apply_one(self, step: model.Step) -> None:
        match step:
            case model.PlaceHold(node=node):
                self._place(step)
                self._read_pods_on(node)
                self._post_event(node, step.hold, step.why)
            case model.ExtendHold(hold=hold, seconds=seconds):
                nodes = self._nodes_of(hold)
                extends_rules = self._devices is not None and self._devices.extend(
                    hold, self._wall() + seconds
                )
                if not nodes and not extends_rules:
                    raise model.SchedulerError(f"no node has the hold {hold}")
                for name in nodes:
                    self._edit(name, lambda holds: _with(holds, hold, self._wall() + seconds))
                    self._post_event(name, hold, step.why)
            case model.RemoveHold(hold=hold):
                if self._devices is not None:
                    self._devices.remove(hold)
                for name in self._nodes_of(hold):
                    self._edit(name, lambda holds: _without(holds, hold))
            case model.Requeue(job=job):
                self._evict_gang(job)
            case model.EndStep(job=job):
                self._evict_from(job, step.advisory)
            case model.StartNow():
                pass  # nothing delays a recreated pod
            case model.ResetGpus(node=node):
                if self._settings.release_command:
                    run_command(site_command(self._settings.release_command, node))
                run_command(site_command(self._settings.reset_command, node))
            case _:
                raise model.SchedulerError(f"{type(step).__name__} is not a step of Kubernetes")

    def _place(self, step: model.PlaceHold) -> None:
        """Hold only the devices of *step* if the API server supports it; else the node."""
        ends = self._wall() + step.seconds
        if self._devices is not None and step.devices:
            devices = self._devices.devices(step.node, step.devices)
            if devices:
                evicts = self._settings.no_execute and step.hold.endswith(model.EVICT_SUFFIX)
                self._devices.place(step.hold, step.node, devices, ends, evicts)
                return
        self._edit(step.node, lambda holds: _with(holds, step.hold, ends))

    def _read_pods_on(self, node: str) -> None:
        """Read the pods of *node* from the API server: the watch may lack pods that started just before the taint."""
        self._pods.start(LIST_SECONDS_MAX)
        selector = f"&fieldSelector=spec.nodeName%3D{urllib.parse.quote(node)}"
        pods, version = self._api.list_all("/api/v1/pods", selector)
        self._pods.store_list(pods, version)

    def _nodes_of(self, hold: str) -> list[str]:
        """Return the nodes that are tainted for *hold*."""
        found = holds_of(self.current_nodes().values()).get(hold)
        return sorted(found.nodes) if found else []

    def _edit(
        self, name: str, change: Callable[[Mapping[str, float]], Mapping[str, float]]
    ) -> None:
        """Change the holds of a node; after a conflict repeat, up to ATTEMPTS_MAX times.

        Each repetition begins with the newest version of the node. Raises SchedulerError, also if
        the node does not exist.
        """
        node = self.current_nodes().get(name)
        path = f"/api/v1/nodes/{urllib.parse.quote(name)}"
        for attempt in range(ATTEMPTS_MAX):
            try:
                if node is None or attempt:
                    node = parse_node(self._api.call("GET", path))
                patch = holds_patch(node, change(node.holds), self._settings.no_execute)
                if not patch:
                    return
                self._nodes.store(self._api.call("PATCH", path, patch, JSON_PATCH))
                return
            except ApiError as error:
                if error.status == 404:
                    raise model.SchedulerError(f"{name} is not a node of this cluster") from error
                if not error.is_conflict or attempt == ATTEMPTS_MAX - 1:
                    raise
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise model.SchedulerError(f"{name}: not a valid Node object: {error!r}") from error

    def _post_event(self, node: str, hold: str, why: str) -> None:
        """Write the reason of a hold as an Event, which `kubectl describe node` shows. A refusal is only logged.

        Each hold has a single Event, which counts how often the hold was set or extended. Kubernetes deletes an Event an hour
        after its last change.
        """
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall()))
        name = f"{node}.{hold.replace('_', '-')}"
        body = {
            "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "GanglineHold",
            "metadata": {"name": name, "namespace": EVENT_NAMESPACE},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
            "message": f"{hold}: {why}"[:EVENT_CHARACTERS_MAX], "source": {"component": "gangline-executor"},
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        }  # fmt: skip
        events = f"/api/v1/namespaces/{EVENT_NAMESPACE}/events"
        try:
            self._api.call("POST", events, body)
        except ApiError as error:
            if error.status == 409:
                self._count_event(f"{events}/{urllib.parse.quote(name)}", now)
            else:
                log.info("the Event of %s on %s was not written: %s", hold, node, error)

    def _count_event(self, path: str, now: str) -> None:
        try:
            found = self._api.call("GET", path).get("count")
            count = found + 1 if isinstance(found, int) else 2
            self._api.call("PATCH", path, {"count": count, "lastTimestamp": now}, STRATEGIC_PATCH)
        except ApiError as error:
            log.info("an Event was not counted: %s", error)

    def remove_expired(self) -> None:
        """Remove expired holds, including holds of other executors: Kubernetes itself expires no taint."""
        if self._capabilities is None:
            return
        now = self._wall() - EXPIRED_MARGIN_SECONDS
        if self._devices is not None and now >= self._rules_due:
            self._devices.remove_expired(now)
            self._rules_due = now + RULES_SECONDS
        for name, node in self.current_nodes().items():
            if has_expired(node, now):
                log.info(
                    "%s: removed what an executor had set, because it has expired or has no end",
                    name,
                )
                self._edit(name, lambda holds: {h: ends for h, ends in holds.items() if ends > now})

    def current_pods(self) -> list[GangPod]:
        """Return all pods with GPUs from the watch."""
        self._pods.start(LIST_SECONDS_MAX)
        return list(self._pods.current().values())

    def view(self) -> AdmissionView:
        """Return the nodes, those out of service, and the pods. Raises SchedulerError."""
        return AdmissionView(
            self.current_nodes(),
            self.out_of_service(),
            self.current_pods(),
            self._settings.gpu_resources,
        )

    def out_of_service(self) -> dict[str, str]:
        """Return why nodes are out of service or unhealthy, by name."""
        nodes = self.current_nodes().values()
        return refusals(nodes, self._settings.usual_taints, usual_keys(nodes))

    def clear_health(self) -> tuple[list[str], list[str]]:
        """Remove the health condition and the bucket label from all nodes."""
        return clear_health(self._api, self.current_nodes().values())

    def try_taint(self, name: str) -> None:
        """Ask the API server in a dry run to set an executor's taint on a node. Raises SchedulerError if it refuses."""
        node = self.current_nodes()[name]
        patch = holds_patch(
            node, {**node.holds, f"{model.HOLD_PREFIX}a0": self._wall() + 60}, False
        )
        self._api.call("PATCH", f"/api/v1/nodes/{name}?dryRun=All", patch, JSON_PATCH)

    def _evict_gang(self, job: str) -> None:
        """Evict all pods of a gang, or none: a part of a gang computes nothing, and keeps its GPUs."""
        pods = self._live_pods(job)
        if fixed := next((pod for pod in pods if not pod.may_requeue), None):
            raise model.SchedulerError(
                f"pod {fixed.namespace}/{fixed.name} has no controller that recreates it, or its "
                "owner forbids eviction"
            )
        self._evict(pods)

    def _evict_from(self, job: str, advisory: str) -> None:
        """Evict the pods of an elastic gang from the node of *advisory*; the gang's other pods continue."""
        nodes = {
            node
            for hold in self.read_holds().values()
            if re.fullmatch(rf"gangline_{re.escape(advisory)}(_evict)?", hold.name)
            for node in hold.nodes
        }
        self._evict([pod for pod in self._live_pods(job) if pod.node in nodes])

    def _live_pods(self, job: str) -> list[GangPod]:
        pods = [
            pod
            for pod in self._pods.current().values()
            if pod.gang == job and pod.is_live and pod.uid not in self._leaving
        ]
        if not pods:
            raise model.SchedulerError(f"{job} has no running pods")
        return sorted(pods, key=lambda pod: pod.name)

    def _evict(self, pods: list[GangPod]) -> None:
        if refusal := self._refusal(pods):
            raise model.SchedulerError(refusal)
        for count, pod in enumerate(pods):
            try:
                self._evict_pod(pod)
            except ApiError as error:
                # The pod no longer exists, or a new pod has its name.
                if error.status in (404, 409):
                    continue
                raise model.SchedulerError(
                    f"{count} of {len(pods)} pods were evicted, then: {error}"
                ) from error
            self._leaving[pod.uid] = self._wall() + LEAVING_SECONDS

    def _refusal(self, pods: list[GangPod]) -> str:
        """Return why the pods may not be evicted together; "" if they may.

        Checks the disruption budgets of the pods' namespaces, then the eviction of each pod in a dry run.
        """
        for namespace in sorted({pod.namespace for pod in pods}):
            path = (
                f"/apis/policy/{self._budget_version}/namespaces/{namespace}/poddisruptionbudgets"
            )
            budgets, _ = self._api.list_all(path)
            try:
                if refusal := budget_refusal(pods, budgets):
                    return refusal
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                return f"{path}: no disruption budget: {error!r}"
        for pod in pods:
            try:
                self._evict_pod(pod, dry_run=True)
            except ApiError as error:
                if error.status not in (404, 409):
                    return str(error)
        return ""

    def _evict_pod(self, pod: GangPod, dry_run: bool = False) -> None:
        options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
        if dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": self._eviction_version,
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": options,
        }
        name = urllib.parse.quote(pod.name)
        self._api.call("POST", f"/api/v1/namespaces/{pod.namespace}/pods/{name}/eviction", body)


def _with(holds: Mapping[str, float], hold: str, ends: float) -> dict[str, float]:
    if hold not in holds and len(holds) >= NODE_HOLDS_MAX:
        raise model.SchedulerError(f"the node has {NODE_HOLDS_MAX} holds; no more are set")
    return {**holds, hold: float(int(ends) + 1)}


def _without(holds: Mapping[str, float], hold: str) -> dict[str, float]:
    return {name: ends for name, ends in holds.items() if name != hold}
