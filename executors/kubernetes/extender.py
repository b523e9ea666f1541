"""Responses of the scheduler extender, from the mirror file: bytes in, bytes out. No I/O.

The responses are those of kube-scheduler's extender API v1 (ExtenderArgs, ExtenderFilterResult, HostPriorityList) and of
Volcano's plugin `extender`. A response contains only names from the request. Without a valid health table all nodes pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high
from typing import Any

from ..mirror_format import Mirror, MirrorNode

#: kube-scheduler's MaxExtenderPriority.
SCORE_MAX = 10
#: Score by bucket, from 0 (best) to 3.
BUCKET_SCORES = (SCORE_MAX, 7, 3, 0)
#: Reason of a node on which a job slows another. Other nodes of its bucket are preferred.
NEIGHBOR = "NEIGHBOR"
#: Score of each node if no node in the table is in service. Otherwise a node outside the table gets the median score of
#: the nodes in service: in a fleet with agents on only some nodes, the other nodes would otherwise stay empty.
UNKNOWN_SCORE = 5
#: Limit of nodes in a request; a Kubernetes cluster has fewer.
NODES_MAX = 20_000
NAME_CHARACTERS_MAX = 253
#: If a larger share of all nodes is out, no node is filtered: an error of Gangline is more likely than so many faults.
OUT_SHARE_MAX = 0.5
#: Volcano's code of a node that a task does not fit on.
VOLCANO_UNSCHEDULABLE = 2

#: A scheduler with nodeCacheCapable ends its request with this key and list. Quotes inside JSON strings are escaped, so
#: these bytes cannot be part of a string.
_NAMES_KEY, _NAMES_END = b'"NodeNames":["', b'"]}'
_SEPARATOR = b'","'
#: The characters of node names; JSON escapes none of them.
PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"


class RequestBodyError(ValueError):
    """The request body violates the API; the message names the expected form."""


@dataclass(frozen=True, slots=True)
class HealthTable:
    """The mirror's contents, prepared for answers. `reason`: why no node is filtered; "" if nodes may be filtered."""

    valid_until: float = 0.0
    #: Name of a filtered node -> reason.
    failed: Mapping[str, str] = field(default_factory=dict)
    #: Names of `failed`, as bytes.
    failed_names: frozenset[bytes] = frozenset()
    #: Name, as bytes -> the node's entry in a list of priorities.
    priorities: Mapping[bytes, bytes] = field(default_factory=dict)
    scores: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    unknown_score: int = UNKNOWN_SCORE


#: All nodes pass, with the same score.
NO_TABLE = HealthTable(reason="the mirror has not been read yet")


def table_of(mirror: Mirror, node_of_host: Callable[[str], str] = lambda host: host) -> HealthTable:
    """Return the table of *mirror*. *node_of_host*: returns the scheduler's name of a host, "" for none."""
    nodes = {node_of_host(node.name): node for node in mirror.nodes}
    nodes.pop("", None)
    scores = {name: _score(node) for name, node in nodes.items()}
    failed = {name: _refusal(node) for name, node in nodes.items() if not node.ready}
    reason = ""
    if mirror.degraded:
        reason = "the aggregator's data is degraded"
    elif len(failed) > OUT_SHARE_MAX * len(nodes):
        reason = f"{len(failed)} of {len(nodes)} nodes are out, which more likely is an error of Gangline"
    priorities = {name.encode(): _priority(name.encode(), score) for name, score in scores.items()}
    failed = {} if reason else failed
    names = frozenset(name.encode() for name in failed)
    in_service = [score for name, score in scores.items() if name not in failed]
    unknown = median_high(in_service) if in_service else UNKNOWN_SCORE
    return HealthTable(
        valid_until=mirror.valid_until_seconds,
        failed=failed,
        failed_names=names,
        priorities=priorities,
        scores=scores,
        reason=reason,
        unknown_score=unknown,
    )


def _score(node: MirrorNode) -> int:
    return max(BUCKET_SCORES[node.bucket] - (node.reason == NEIGHBOR), 0)


def _refusal(node: MirrorNode) -> str:
    cause = f" ({node.reason})" if node.reason else ""
    return f"gangline: {node.state}{cause}; gangline explain {node.name} says why"


def _priority(name: bytes, score: int) -> bytes:
    """Return an entry of a list of priorities. *name* must contain only PLAIN characters."""
    return b'{"Host":"%s","Score":%d}' % (name, score)


def plain_names(body: bytes) -> tuple[bytes, list[bytes]] | None:
    """Return the names at the end of *body*, as raw text and as a list; None for a body of another form.

    The caller then parses the whole body. The pod before the names is irrelevant to the answer and is not parsed.
    """
    at = body.rfind(_NAMES_KEY)
    if at < 0 or not body.endswith(_NAMES_END):
        return None
    text = body[at + len(_NAMES_KEY) : -len(_NAMES_END)]
    names = text.split(_SEPARATOR)
    if text.translate(None, PLAIN) != _SEPARATOR * (len(names) - 1) or len(names) > NODES_MAX:
        return None
    # Only the average length is checked here; if it is too large, the full parse checks each name.
    return (text, names) if len(text) <= NAME_CHARACTERS_MAX * len(names) else None


def filter_answer(body: bytes, table: HealthTable) -> bytes:
    """Return the ExtenderFilterResult of the ExtenderArgs in *body*. Raises RequestBodyError."""
    if plain := plain_names(body):
        text, found = plain
        out = table.failed_names.intersection(found)
        if out:
            text = _SEPARATOR.join([name for name in found if name not in out])
        names_text = b'["%s"]' % text if len(out) < len(found) and text else b"[]"
        failed = {name.decode(): table.failed[name.decode()] for name in sorted(out)}
        return _filter_result(b"null", names_text, failed)
    arguments = _parse(body)
    names = arguments.get("NodeNames")
    if names is not None:
        _check_names(names)
        failed = {name: table.failed[name] for name in names if name in table.failed}
        return _filter_result(
            b"null", _dump([name for name in names if name not in failed]), failed
        )
    items = _node_items(arguments)
    failed = {name: table.failed[name] for name, _ in items if name in table.failed}
    whole = [item for name, item in items if name not in failed]
    return _filter_result(b'{"metadata":{},"items":%s}' % _dump(whole), b"null", failed)


def _filter_result(nodes: bytes, names: bytes, failed: Mapping[str, str]) -> bytes:
    reasons = _dump(failed) if failed else b"{}"
    return b'{"Nodes":%s,"NodeNames":%s,"FailedNodes":%s,"Error":""}' % (nodes, names, reasons)


def prioritize_answer(body: bytes, table: HealthTable) -> bytes:
    """Return the HostPriorityList of the ExtenderArgs in *body*. Raises RequestBodyError."""
    known = table.priorities
    if plain := plain_names(body):
        _, found = plain
        try:
            return b"[%s]" % b",".join(map(known.__getitem__, found))
        except KeyError:
            return b"[%s]" % b",".join(
                [known.get(name) or _priority(name, table.unknown_score) for name in found]
            )
    arguments = _parse(body)
    names = arguments.get("NodeNames")
    if names is None:
        names = [name for name, _ in _node_items(arguments)]
    else:
        _check_names(names)
    return _dump(
        [{"Host": name, "Score": table.scores.get(name, table.unknown_score)} for name in names]
    )


def _node_items(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return (name, node) of the complete nodes that a scheduler without `nodeCacheCapable` sends."""
    nodes = arguments.get("Nodes")
    try:
        items = (nodes or {}).get("items") or []
        names = [one["metadata"]["name"] for one in items]
    except (AttributeError, KeyError, TypeError) as error:
        raise RequestBodyError(
            "Nodes: expected a NodeList, as {items: [{metadata: {name: ..}}]}"
        ) from error
    if nodes is None:
        raise RequestBodyError("expected ExtenderArgs with NodeNames, or with Nodes")
    _check_names(names)
    return list(zip(names, items, strict=True))


def predicate_answer(body: bytes, table: HealthTable) -> bytes:
    """Return the PredicateResponse of Volcano's PredicateRequest in *body*. Raises RequestBodyError."""
    (name,) = _volcano_names([_parse(body).get("node")])
    refusal = table.failed.get(name, "")
    # Volcano up to 1.5 reads `errorMessage`, later versions `status` and `code`.
    code = VOLCANO_UNSCHEDULABLE if refusal else 0
    return _dump({"status": refusal, "errorMessage": refusal, "code": code})


def volcano_prioritize_answer(body: bytes, table: HealthTable) -> bytes:
    """Return the PrioritizeResponse of Volcano's PrioritizeRequest in *body*. Raises RequestBodyError."""
    nodes = _parse(body).get("nodes")
    if not isinstance(nodes, list):
        raise RequestBodyError("nodes: expected a list of nodes with their Name")
    names = _volcano_names(nodes)
    scores = {name: table.scores.get(name, table.unknown_score) for name in names}
    return _dump({"nodeScore": scores, "errorMessage": ""})


def _volcano_names(nodes: Sequence[Any]) -> list[str]:
    try:
        names = [node["Name"] for node in nodes]
    except (KeyError, TypeError) as error:
        raise RequestBodyError("expected a node with its Name") from error
    _check_names(names)
    return names


def _parse(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestBodyError(f"the body is not JSON: {str(error)[:100]}") from error
    if not isinstance(document, dict):
        raise RequestBodyError("expected a JSON object")
    return document


def _check_names(names: Any) -> None:
    if not isinstance(names, list) or not set(map(type, names)) <= {str}:
        raise RequestBodyError("NodeNames: expected a list of names")
    if len(names) > NODES_MAX:
        raise RequestBodyError(f"{len(names)} nodes, expected at most {NODES_MAX}")
    if names and max(map(len, names)) > NAME_CHARACTERS_MAX:
        raise RequestBodyError(f"a name of a node has at most {NAME_CHARACTERS_MAX} characters")


def _dump(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


#: Path -> function that makes the answer.
ANSWERS: Mapping[str, Callable[[bytes, HealthTable], bytes]] = {
    "/extender/v1/filter": filter_answer,
    "/extender/v1/prioritize": prioritize_answer,
    "/volcano/v1/predicate": predicate_answer,
    "/volcano/v1/prioritize": volcano_prioritize_answer,
}
