"""What schedulers tell AdvisoryService: what runs where, and which nodes they took out themselves. Checked in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration

from ...fingerprints.wire import advisory_pb2 as wire
from ..advice.desk import Absent
from ..advice.events import Member, PutBack, TakenOut
from ..advice.gangs import Gang
from ..advice.limits import HOUR_NS, SECOND_NS
from ..refusals import Invalid
from .fields import ACTOR_CHARACTERS_MAX, bounded, node_of, timestamp, told_once

GANGS_MAX, ENDED_MAX, NODES_MAX, NODES_OF_ALL_MAX = 1000, 10_000, 10_000, 100_000
WORKLOAD_CHARACTERS_MAX, REASON_CHARACTERS_MAX = 256, 500
GPUS_MAX = 1_000_000
#: Of a checkpoint's interval, and for which anything is told.
SECONDS_MAX = 7 * 86_400
#: Names that are told of, of those that no agent has.
UNKNOWN_MAX = 100
#: Host -> what budgets count it by; None: no agent has registered under this name.
Members = Callable[[str], Member | None]


class Out(NamedTuple):
    """A request about nodes that are out, as events: one for each reason and end."""

    taken: tuple[TakenOut, ...]
    back: PutBack
    unknown: list[str]


def actor_of(actor: str) -> str:
    """Return who tells. Raises Invalid."""
    bounded("actor", actor, ACTOR_CHARACTERS_MAX)
    if not actor.strip():
        raise Invalid("actor", f"who tells, in 1 to {ACTOR_CHARACTERS_MAX} characters")
    return actor


def gangs_of(
    request: wire.ReportGangsRequest, by: str, members: Members, now_ns: int
) -> tuple[list[Gang], list[str]]:
    """Return the gangs of *request*, and the nodes in them that nobody knows. Raises Invalid."""
    _counted("gangs", len(request.gangs), GANGS_MAX)
    _counted("ended_workloads", len(request.ended_workloads), ENDED_MAX)
    for at, name in enumerate(request.ended_workloads):
        bounded(f"ended_workloads[{at}]", name, WORKLOAD_CHARACTERS_MAX)
    if sum(len(one.nodes) for one in request.gangs) > NODES_OF_ALL_MAX:
        raise Invalid("gangs", f"more than {NODES_OF_ALL_MAX} nodes in all; tell them in parts")
    found = [_gang(f"gangs[{at}]", one, by, now_ns) for at, one in enumerate(request.gangs)]
    told_once("gangs", request.gangs, "workload")
    if both := {one.workload for one in found} & set(request.ended_workloads):
        raise Invalid("ended_workloads", f"{min(both)!r} is told to run, and to have ended")
    unknown = _unknown((host for gang in found for host in gang.hosts), members)
    return found, unknown


def _gang(field: str, one: wire.Gang, by: str, now_ns: int) -> Gang:
    bounded(f"{field}.workload", one.workload, WORKLOAD_CHARACTERS_MAX)
    if not one.workload.strip():
        raise Invalid(f"{field}.workload", "its name, as outcomes will have it")
    if not 1 <= len(one.nodes) <= NODES_MAX:
        raise Invalid(f"{field}.nodes", f"{len(one.nodes)}, expected 1 to {NODES_MAX}")
    if one.gpus_count > GPUS_MAX:
        raise Invalid(f"{field}.gpus_count", f"{one.gpus_count}, expected 0 to {GPUS_MAX}")
    hosts = tuple(sorted({node_of(node, f"{field}.nodes") for node in one.nodes}))
    seconds = 0.0
    if one.HasField("checkpoint_interval"):
        otherwise = "none where it is not known"
        seconds = _span(f"{field}.checkpoint_interval", one.checkpoint_interval, otherwise)
    until_ns = _until(f"{field}.ttl", one, now_ns)
    return Gang(one.workload, hosts, one.gpus_count, seconds, until_ns, by, now_ns)


def out_of(
    request: wire.ReportUnavailableNodesRequest, by: str, members: Members, now_ns: int
) -> Out:
    """Return who is out, and who is back, by *request*. Raises Invalid."""
    _counted("nodes", len(request.nodes), NODES_MAX)
    _counted("returned_nodes", len(request.returned_nodes), NODES_MAX)
    told_once("nodes", request.nodes, "node")
    told: dict[str, tuple[str, int]] = {}
    for at, one in enumerate(request.nodes):
        field = f"nodes[{at}]"
        bounded(f"{field}.reason", one.reason, REASON_CHARACTERS_MAX)
        if not one.reason.strip():
            raise Invalid(f"{field}.reason", "why it is out, for whoever looks for room at night")
        until_ns = _until(f"{field}.ttl", one, now_ns)
        told[node_of(one.node, f"{field}.node")] = one.reason, until_ns
    back = tuple(node_of(node, "returned_nodes") for node in request.returned_nodes)
    if both := sorted(told.keys() & set(back)):
        raise Invalid("returned_nodes", f"{both[0]!r} is told to be out, and to be back")
    groups: dict[tuple[str, int], list[Member]] = {}
    for host, why in told.items():
        if (member := members(host)) is not None:
            groups.setdefault(why, []).append(member)
    taken = tuple(
        TakenOut(now_ns, by, words, until_ns, tuple(each))
        for (words, until_ns), each in groups.items()
    )
    return Out(taken, PutBack(now_ns, by, back), _unknown([*told, *back], members))


def unavailable(absent: Iterable[tuple[str, str, Absent]]) -> list[wire.UnavailableNode]:
    """Return (host, by, why) as the wire has it."""
    return [
        wire.UnavailableNode(
            node=f"nodes/{host}", reason=one.words, expire_time=timestamp(one.until_ns), actor=by,
            since_time=timestamp(one.since_ns),
        )
        for host, by, one in absent
    ]  # fmt: skip


def _unknown(hosts: Iterable[str], members: Members) -> list[str]:
    """Return the nodes that no agent has registered as, so many as are told of."""
    unknown = sorted({host for host in hosts if members(host) is None})
    return [f"nodes/{host}" for host in unknown[:UNKNOWN_MAX]]


def _until(field: str, one: wire.Gang | wire.UnavailableNode, now_ns: int) -> int:
    """Return when it ends unless it is told again. By a span: callers' clocks may be off."""
    if not one.HasField("ttl"):
        return now_ns + HOUR_NS
    return now_ns + int(_span(field, one.ttl, "none for an hour") * SECOND_NS)


def _span(field: str, span: Duration, otherwise: str) -> float:
    seconds = span.seconds + span.nanos / 1e9
    if not 1.0 <= seconds <= SECONDS_MAX:
        raise Invalid(field, f"{seconds:g} s, expected 1 s to 7 days, or {otherwise}")
    return seconds


def _counted(field: str, count: int, most: int) -> None:
    if count > most:
        raise Invalid(field, f"{count}, at most {most}; tell them in parts")
