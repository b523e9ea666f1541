"""Publishes the health of each node in Kubernetes: the condition `GanglineHealthy`, and a label with one of four buckets.

Condition and label are only information and keep no pod off a node. Each write patches only Gangline's keys, so other labels
and conditions stay.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..client import ClientError
from ..model import SchedulerError
from ..scores import NodeHealth, ReadHealth
from .api import MERGE_PATCH, STRATEGIC_PATCH, ApiError, ApiServer
from .marks import BUCKET_LABEL, BUCKET_UNTIL_ANNOTATION, HEALTH_CONDITION, KubernetesNode

log = logging.getLogger(__name__)

#: Period of reading scores.
HEALTH_SECONDS = 5.0
#: A better bucket is published after this time without a worse bucket; a worse bucket is published at once.
BETTER_SECONDS = 60.0
#: Published health expires this long after its last write, and is written again when half of this time is left. On a
#: node with holds the health expires with the last hold, so that a node that takes pods again does not look unhealthy.
VALID_SECONDS = 7200.0
#: A smaller change of the end is not written.
END_SECONDS = 60.0
#: Limit of nodes written in a turn: a change of the whole fleet takes many turns and does not overload the API server.
WRITES_PER_TURN = 100
MESSAGE_CHARACTERS_MAX = 200
#: Values of a condition's status; UNKNOWN: the node's agent does not report.
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


class BucketHysteresis:
    """Chooses the published bucket of each node: a worse bucket at once, a better bucket only after BETTER_SECONDS."""

    def __init__(self) -> None:
        #: Node -> (worst bucket since the improvement, time since which no worse bucket was seen).
        self._better: dict[str, tuple[int, float]] = {}

    def bucket(self, name: str, published: int | None, found: int, now: float) -> int:
        """Return the bucket to publish for *name*; *published*: the last; *found*: the new one."""
        if published is None or found >= published:
            self._better.pop(name, None)
            return found
        worst, since = self._better.get(name, (found, now))
        if found > worst:
            worst, since = found, now
        self._better[name] = worst, since
        if now - since < BETTER_SECONDS:
            return published
        del self._better[name]
        return worst

    def forget_all_but(self, names: Iterable[str]) -> None:
        """Forget all nodes except *names*."""
        present = set(names)
        self._better = {name: one for name, one in self._better.items() if name in present}


def condition_of(health: NodeHealth) -> tuple[str, str, str]:
    """Return (status, reason, message) of the condition for *health*."""
    words = "".join(part.capitalize() for part in health.state.split("_")) or "Unknown"
    cause = health.reason.lower().replace("_", " ")
    message = f"{health.state}{f': {cause}' if cause else ''}; gangline explain HOST shows why"
    if not health.is_known:
        return UNKNOWN, words, message[:MESSAGE_CHARACTERS_MAX]
    return TRUE if health.is_allowed else FALSE, words, message[:MESSAGE_CHARACTERS_MAX]


def label_patch(node: KubernetesNode, bucket: int | None, now: float) -> dict[str, Any] | None:
    """Return the merge patch that sets the label to *bucket*, or removes it for None; None if nothing changes."""
    if bucket is None:
        if node.bucket_label is None and node.bucket_until is None:
            return None
        value = end = None
    else:
        until, remaining = health_ends(node, now), node.bucket_ends - now
        if node.holds:
            is_current = abs(node.bucket_ends - until) < END_SECONDS
        else:
            is_current = VALID_SECONDS / 2 < remaining <= VALID_SECONDS + END_SECONDS
        if node.bucket == bucket and is_current:
            return None
        value, end = str(bucket), str(int(until))
    return {
        "metadata": {"labels": {BUCKET_LABEL: value}, "annotations": {BUCKET_UNTIL_ANNOTATION: end}}
    }


def health_ends(node: KubernetesNode, now: float) -> float:
    """Return when health that is written now ends: after VALID_SECONDS, or earlier with the last hold of *node*."""
    ends = max(node.holds.values(), default=0.0)
    return min(now + VALID_SECONDS, ends) if ends > now else now + VALID_SECONDS


def condition_patch(
    node: KubernetesNode, wanted: tuple[str, str, str] | None, now: float
) -> dict[str, Any] | None:
    """Return the strategic merge patch that sets the condition to *wanted*, or removes it; None if nothing changes.

    *wanted*: (status, reason, message); None to remove the condition.
    """
    before = node.health
    if wanted is None:
        if before is None:
            return None
        return _status({"$patch": "delete", "type": HEALTH_CONDITION})
    status, reason, message = wanted
    is_same = before is not None and (before.status, before.reason, before.message) == wanted
    if before is not None and is_same and now - before.heartbeat < VALID_SECONDS / 2:
        return None
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    condition = {
        "type": HEALTH_CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": stamp,
    }
    if before is None or before.status != status:
        condition["lastTransitionTime"] = stamp
    return _status(condition)


def _status(condition: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": {"conditions": [condition]}}


class NodeHealthPublisher:
    """Publishes the health that *read_health* returns. Call `run` in a separate thread, with a separate *api*."""

    def __init__(
        self,
        api: ApiServer,
        nodes: Callable[[], Mapping[str, KubernetesNode]],
        read_health: ReadHealth,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """*nodes*: returns the current nodes; raises SchedulerError."""
        self._api, self._nodes, self._read_health, self._wall = api, nodes, read_health, wall
        self._hysteresis = BucketHysteresis()
        self._problem = ""
        #: Whether the login may change the status of nodes; False after the first refusal.
        self._may_write_status = True

    def run(self, stopped: threading.Event) -> None:
        """Publish until *stopped* is set."""
        while not stopped.is_set():
            self.turn()
            stopped.wait(HEALTH_SECONDS)
        self._api.close()

    def turn(self) -> int:
        """Publish changed health, the worst buckets first; return the number of written nodes.

        Failures of the aggregator and of the API server are logged, not raised.
        """
        try:
            health = self._read_health()
            self._problem = ""
        except (SchedulerError, ClientError) as error:
            if str(error) != self._problem:
                log.warning("the health of nodes is not published: %s", error)
            self._problem = str(error)
            health = None
        try:
            # Expired health is removed even if no new health is known.
            return self._publish(health or {}, self._nodes())
        except SchedulerError as error:
            self._problem = str(error)
            return 0

    def _publish(
        self, health: Mapping[str, NodeHealth], nodes: Mapping[str, KubernetesNode]
    ) -> int:
        now = self._wall()
        self._hysteresis.forget_all_but(nodes)
        due = []
        for name, node in nodes.items():
            found = health.get(name)
            if found is None:
                patches = self._expired_patches(node, now)
                bucket = 0
            else:
                bucket = self._hysteresis.bucket(name, node.bucket, found.bucket, now)
                patches = (
                    label_patch(node, bucket, now),
                    condition_patch(node, condition_of(found), now),
                )
            if any(patches):
                due.append((-bucket, name, patches))
        due.sort(key=lambda one: one[:2])
        for _, name, patches in due[:WRITES_PER_TURN]:
            self._write(name, *patches)
        return min(len(due), WRITES_PER_TURN)

    def _expired_patches(
        self, node: KubernetesNode, now: float
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Return the patches that remove the expired health of a node without new health."""
        if node.bucket_ends > now:
            return None, None
        return label_patch(node, None, now), condition_patch(node, None, now)

    def _write(self, name: str, label: Any, condition: Any) -> None:
        path = f"/api/v1/nodes/{urllib.parse.quote(name)}"
        try:
            if condition is not None and self._may_write_status:
                self._write_status(path, condition)
            if label is not None:
                self._api.call("PATCH", path, label, MERGE_PATCH)
        except ApiError as error:
            if error.status != 404:  # 404: the node no longer exists
                raise

    def _write_status(self, path: str, condition: Any) -> None:
        try:
            self._api.call("PATCH", f"{path}/status", condition, STRATEGIC_PATCH)
        except ApiError as error:
            if error.status != 403:
                raise
            self._may_write_status = False
            log.warning("the condition %s is not published: %s", HEALTH_CONDITION, error)


def clear_health(api: ApiServer, nodes: Iterable[KubernetesNode]) -> tuple[list[str], list[str]]:
    """Remove label and condition from all *nodes*; return (completed actions, failures)."""
    done, failed = list[str](), list[str]()
    for node in nodes:
        path = f"/api/v1/nodes/{urllib.parse.quote(node.name)}"
        label, condition = label_patch(node, None, 0.0), condition_patch(node, None, 0.0)
        try:
            if label is not None:
                api.call("PATCH", path, label, MERGE_PATCH)
            if condition is not None:
                api.call("PATCH", f"{path}/status", condition, STRATEGIC_PATCH)
        except ApiError as error:
            failed.append(f"health of {node.name}: {error}")
            continue
        if label is not None or condition is not None:
            done.append(f"health of {node.name}")
    return done, failed
