"""Marks of an executor on a node: a taint, and an annotation with the end of each hold; computes JSON patches. Pure.

A node's taints are a single atomic list, so each patch tests the version of the node that it was computed from. Kubernetes
expires no taint, so the annotation records the end of the taint, and an executor or a person can remove it then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..core import OUR_HOLD
from ..model import EVICT_SUFFIX, HOLD_PREFIX, NODE_NAME, Node, NodeHold
from .jobs import parse_time

AVOID_TAINT, EVICT_TAINT = "gangline.io/avoid", "gangline.io/evict"
HOLDS_ANNOTATION = "gangline.io/holds"
#: Published health of a node: a condition, and a label whose end is in an annotation (`health.py`).
HEALTH_CONDITION = "GanglineHealthy"
BUCKET_LABEL, BUCKET_UNTIL_ANNOTATION = "gangline.io/bucket", "gangline.io/bucket-until"
#: Annotation in which a person may give the reason of a cordon: a cordon itself has none.
REASON_ANNOTATION = "gangline.io/reason"
#: Limit of holds on a node; further holds are not set.
NODE_HOLDS_MAX = 32
REASON_CHARACTERS_MAX = 200
#: A hold in the annotation: its name, and its end in seconds since the epoch.
HOLD_WORD = re.compile(rf"({OUR_HOLD.pattern})=([0-9]{{1,12}})", re.ASCII)

#: Taints that Kubernetes sets; they repeat the Ready condition or a cordon.
CONDITION_TAINTS = "node.kubernetes.io/*"
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
#: A taint key on a larger share of all nodes marks a kind of node, not a node out of service.
USUAL_SHARE_MAX = 0.5
HOLDING_EFFECTS = ("NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """A condition of a node. `heartbeat`: when the condition was last written, in seconds since the epoch; 0: never."""

    status: str
    reason: str = ""
    message: str = ""
    heartbeat: float = 0.0


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """Fields of a node that executors use; `taints` as JSON, because a patch writes all taints."""

    name: str
    version: str
    taints: tuple[Mapping[str, Any], ...] = ()
    has_annotations: bool = False
    holds_annotation: str | None = None
    reason: str = ""
    is_cordoned: bool = False
    #: Status of the Ready condition ("True", "False" or "Unknown"), and its reason.
    ready: str = "Unknown"
    ready_reason: str = ""
    bucket_label: str | None = None
    bucket_until: str | None = None
    #: The condition HEALTH_CONDITION, which executors write; None if the node lacks it.
    health: NodeCondition | None = None
    #: Allocatable count of each extended resource, for example `nvidia.com/gpu`.
    gpus: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def bucket(self) -> int | None:
        """The published bucket; None if the label is missing or invalid."""
        return int(self.bucket_label) if self.bucket_label in ("0", "1", "2", "3") else None

    @property
    def bucket_ends(self) -> float:
        """End of the label, in seconds since the epoch; 0 if the annotation is missing or invalid."""
        text = self.bucket_until or ""
        return float(text) if text.isascii() and text.isdecimal() and len(text) <= 12 else 0.0

    @property
    def is_tainted(self) -> bool:
        """Whether an executor's taint is set."""
        return any(_is_managed(taint) for taint in self.taints)

    @property
    def holds(self) -> dict[str, float]:
        """The holds on the node, with their ends; the end is 0 for an executor's taint without an annotation."""
        avoid = [taint for taint in self.taints if taint.get("key") == AVOID_TAINT]
        if not avoid:
            return {}
        found = parse_holds(self.holds_annotation or "")
        if found:
            return found
        name = f"{HOLD_PREFIX}{avoid[0].get('value', '')}"
        return {name if OUR_HOLD.fullmatch(name) else f"{HOLD_PREFIX}a0": 0.0}

    def foreign_taints(self) -> list[Mapping[str, Any]]:
        """Return the taints that keep work off the node and that no executor set."""
        return [t for t in self.taints if not _is_managed(t) and t.get("effect") in HOLDING_EFFECTS]


def _is_managed(taint: Mapping[str, Any]) -> bool:
    return taint.get("key") in (AVOID_TAINT, EVICT_TAINT)


def parse_node(document: Any) -> KubernetesNode:
    """Return the node of *document*, the API server's JSON. Raises KeyError, TypeError, ValueError."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    name = str(metadata["name"])
    if not NODE_NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not the name of a node")
    annotations = metadata.get("annotations")
    own = annotations or {}
    conditions = (document.get("status") or {}).get("conditions") or []
    ready: Mapping[str, Any] = next((one for one in conditions if one.get("type") == "Ready"), {})
    health = next((one for one in conditions if one.get("type") == HEALTH_CONDITION), None)
    reason = " ".join(str(own.get(REASON_ANNOTATION, "")).split())
    return KubernetesNode(
        name=name,
        version=str(metadata["resourceVersion"]),
        taints=tuple(dict(taint) for taint in spec.get("taints") or []),
        has_annotations=annotations is not None,
        holds_annotation=own.get(HOLDS_ANNOTATION),
        reason=reason[:REASON_CHARACTERS_MAX],
        is_cordoned=spec.get("unschedulable") is True,
        ready=str(ready.get("status", "Unknown")),
        ready_reason=str(ready.get("reason", "no status was reported")),
        bucket_label=(metadata.get("labels") or {}).get(BUCKET_LABEL),
        bucket_until=own.get(BUCKET_UNTIL_ANNOTATION),
        health=_condition(health),
        gpus=_counts((document.get("status") or {}).get("allocatable") or {}),
        labels={str(key): str(value) for key, value in (metadata.get("labels") or {}).items()},
    )


def _condition(condition: Any) -> NodeCondition | None:
    if condition is None:
        return None
    heartbeat = parse_time(condition.get("lastHeartbeatTime"))
    status, reason, message = (
        str(condition.get(key, "")) for key in ("status", "reason", "message")
    )
    return NodeCondition(status, reason, message, heartbeat)


def _counts(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Return the extended resources: whole numbers with a name such as `nvidia.com/gpu`."""
    return {
        name: int(count)
        for name, count in quantities.items()
        if "/" in name and str(count).isdecimal() and len(str(count)) <= 6
    }


def parse_holds(text: str) -> dict[str, float]:
    """Return the holds in the annotation *text*, with their ends; malformed words are skipped."""
    found = (HOLD_WORD.fullmatch(word) for word in text.split()[: 2 * NODE_HOLDS_MAX])
    return {match.group(1): float(match.group(2)) for match in found if match}


def format_holds(holds: Mapping[str, float]) -> str:
    """Return the annotation of *holds*, sorted by name."""
    return " ".join(f"{name}={int(ends)}" for name, ends in sorted(holds.items()))


def holds_patch(
    node: KubernetesNode, holds: Mapping[str, float], no_execute: bool
) -> list[dict[str, Any]]:
    """Return the JSON patch that makes *holds* the only holds of executors on *node*; [] if nothing changes.

    The patch applies only to the version of *node* that it was computed from. Foreign taints keep their order.
    """
    others = [taint for taint in node.taints if not _is_managed(taint)]
    taints = [*others, *_taints_of(holds, no_execute)]
    annotation = format_holds(holds) if holds else None
    if taints == list(node.taints) and annotation == node.holds_annotation:
        return []
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": node.version}
    ]
    if taints != list(node.taints):
        patch.append({"op": "add", "path": "/spec/taints", "value": taints})
    path = f"/metadata/annotations/{HOLDS_ANNOTATION.replace('/', '~1')}"
    if annotation is None and node.holds_annotation is not None:
        patch.append({"op": "remove", "path": path})
    elif annotation is not None and not node.has_annotations:
        patch.append(
            {"op": "add", "path": "/metadata/annotations", "value": {HOLDS_ANNOTATION: annotation}}
        )
    elif annotation is not None and annotation != node.holds_annotation:
        patch.append({"op": "add", "path": path, "value": annotation})
    return patch


def _taints_of(holds: Mapping[str, float], no_execute: bool) -> list[dict[str, str]]:
    if not holds:
        return []
    newest = max(map(_advisory_of, holds), key=lambda name: int(name[1:]))
    taints = [{"key": AVOID_TAINT, "value": newest, "effect": "NoSchedule"}]
    evicting = [_advisory_of(name) for name in holds if name.endswith(EVICT_SUFFIX)]
    if evicting and no_execute:
        newest = max(evicting, key=lambda name: int(name[1:]))
        taints.append({"key": EVICT_TAINT, "value": newest, "effect": "NoExecute"})
    return taints


def _advisory_of(hold: str) -> str:
    return hold.removeprefix(HOLD_PREFIX).removesuffix(EVICT_SUFFIX)


def standing_holds(node: KubernetesNode, now: float) -> dict[str, float]:
    """Return the holds of *node* that have not ended; a hold without an end counts as ended."""
    return {name: ends for name, ends in node.holds.items() if ends > now}


def has_expired(node: KubernetesNode, now: float) -> bool:
    """Return whether a taint or an annotation of executors on *node* is past its end or has no end.

    If a person removed the taint, only the annotation is left.
    """
    if standing_holds(node, now) != node.holds:
        return True
    if node.is_tainted and not node.holds:
        return True  # only EVICT_TAINT is left
    left = parse_holds(node.holds_annotation or "")
    return node.holds_annotation is not None and all(ends <= now for ends in left.values())


def usual_keys(nodes: Iterable[KubernetesNode]) -> frozenset[str]:
    """Return the keys of foreign taints on more than USUAL_SHARE_MAX of all nodes."""
    counts: dict[str, int] = {}
    total = 0
    for node in nodes:
        total += 1
        for key in {str(taint.get("key")) for taint in node.foreign_taints()}:
            counts[key] = counts.get(key, 0) + 1
    return frozenset(key for key, count in counts.items() if count > USUAL_SHARE_MAX * total)


def is_usual(key: str, patterns: Iterable[str], common: frozenset[str]) -> bool:
    """Return whether a taint with this key marks a kind of node or repeats a condition, and so is no outage."""
    if key == OUT_OF_SERVICE_TAINT:
        return False
    return key in common or any(fnmatchcase(key, one) for one in (CONDITION_TAINTS, *patterns))


def node_of(node: KubernetesNode, patterns: Iterable[str], common: frozenset[str]) -> Node:
    """Return *node* as a scheduler-independent Node. *patterns*, *common*: keys of taints that are no outage."""
    reasons = []
    if node.is_cordoned:
        reasons.append("cordoned")
    reasons += [
        f"tainted {taint.get('key')}={taint.get('value', '')}:{taint.get('effect')}"
        for taint in node.foreign_taints()
        if not is_usual(str(taint.get("key")), patterns, common)
    ]
    out = ", ".join(reasons[:3])
    if out and node.reason:
        out = f"{out}: {node.reason}"
    state = "Ready" if node.ready == "True" else "NotReady"
    down = "" if node.ready == "True" else f"NotReady: {node.ready_reason}"
    shown = f"{state},SchedulingDisabled" if node.is_cordoned else state
    return Node(node.name, shown, node.reason, node.ready != "Unknown", out, down)


def holds_of(nodes: Iterable[KubernetesNode]) -> dict[str, NodeHold]:
    """Return the executors' holds on all nodes by name; a hold on several nodes gets the latest of their ends."""
    found: dict[str, NodeHold] = {}
    for node in nodes:
        for name, ends in node.holds.items():
            before = found.get(name, NodeHold(name, frozenset()))
            found[name] = NodeHold(name, before.nodes | {node.name}, max(before.ends, ends))
    return found
