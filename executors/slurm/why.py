"""`gangline why JOB`: why a Slurm job is pending, which nodes remain, and which change helps."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from ...cli import json_object
from ...contract.client import command_line, connection
from ...contract.client.command_line import seconds_of
from ...contract.client.plan_text import (
    DEADLINE_SECONDS,
    TIERS,
    blocker_lines,
    node_dictionary,
    option_lines,
)
from ...contract.client.terminal import table
from ...contract.host_sets import fold_hosts
from ...contract.options import add_former_names
from ...contract.wire import placement_pb2 as wire
from ...contract.wire import score_pb2
from ...contract.wire.placement_pb2_grpc import PlacementServiceStub
from ...contract.wire.score_pb2_grpc import ScoreServiceStub
from ..mirror import nodes_of, scontrol_text
from ..mirror_format import MirrorError
from . import pending_job

NAMES_CHARACTERS, LENGTH_DEFAULT = 60, "24h"


def main(arguments: list[str]) -> int:
    """Print why a job waits.

    Exit codes: 1 Slurm does not respond; 3 no aggregator (only Slurm's part is printed); 4 unknown
    job.
    """
    options = _parser().parse_args(arguments)
    return connection.guarded("why", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    try:
        job = pending_job.parse_job(scontrol_text("-o", "show", "job", options.job))
        nodes = pending_job.parse_nodes(scontrol_text("-d", "-o", "show", "node"))
        reservations = pending_job.parse_reservations(scontrol_text("-o", "show", "reservation"))
    except MirrorError as error:
        unknown = "Invalid job id" in str(error)
        raise connection.CommandError(
            str(error), connection.NOT_FOUND if unknown else connection.FAILED
        ) from error
    connection_options = connection.read_connection_options(options)
    plan, trouble, names = None, "", list[str]()
    steps, left = pending_job.steps_of(job, nodes, reservations)
    try:
        with connection.connected(connection_options) as channel:
            fleet = _scored_fleet(channel, options.score_min)
            names = fleet.names
            steps, left = pending_job.steps_of(job, nodes, reservations, fleet.unfit)
            # The score floor is a condition of the plan itself, where it can be relaxed.
            candidates = pending_job.steps_of(job, nodes, reservations)[1]
            if job.state == "PENDING":
                plan = _plan(channel, options, job, candidates, fleet)
    except connection.CommandError as error:
        trouble = str(error)
    if options.json:
        print(json_object(_fields(job, steps, left, plan, trouble)))
    else:
        print("\n".join(_lines(job, steps, plan, names, trouble)))
    return connection.NO_ANSWER if trouble else connection.OK


@dataclass(frozen=True, slots=True)
class ScoredFleet:
    """All nodes, and why some are unfit. `version`: of the node dictionary."""

    names: list[str]
    version: int
    unfit: dict[str, str]


def _scored_fleet(channel: grpc.Channel, score_min: float) -> ScoredFleet:
    """Return the fleet with the nodes below *score_min* as unfit. Raises CommandError."""
    stub: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
    dictionary = node_dictionary(channel)
    request = score_pb2.ScoreNodesRequest(
        dictionary_version=dictionary.version, score_floor=score_min
    )
    reply = stub.ScoreNodes(request, timeout=DEADLINE_SECONDS)
    names = list(dictionary.names)
    if max(reply.node_index, default=-1) >= len(names):
        raise connection.CommandError(
            "the aggregator restarted between two calls; try again", connection.FAILED
        )
    unfit = {
        node.name: f"{node.state}: score {node.score:.3f}"
        for node in nodes_of(reply, names)
        if not node.ready
    }
    return ScoredFleet(names, dictionary.version, unfit)


def _plan(
    channel: grpc.Channel,
    options: argparse.Namespace,
    job: pending_job.PendingJob,
    candidates: Sequence[str],
    fleet: ScoredFleet,
) -> wire.PlanPlacementResponse:
    """Return the job's plan on Slurm's remaining nodes, or its blockers. Raises CommandError."""
    known = {name: index for index, name in enumerate(fleet.names)}
    chosen = [known[name] for name in candidates if name in known]
    if not chosen:
        raise connection.CommandError(
            "the aggregator knows none of the remaining nodes", connection.FAILED
        )
    bitmap = bytearray(-(-len(fleet.names) // 8))
    for index in chosen:
        bitmap[index // 8] |= 1 << index % 8
    tier: Any = TIERS.index(options.within) + 1 if options.within else 0
    gang = wire.GangRequirements(
        nodes=job.nodes,
        gpus_per_node=job.gpus_per_node,
        node_score_min=options.score_min,
        invariants=wire.PlacementInvariants(within=tier),
    )
    gang.length.FromSeconds(options.length)
    nodes = wire.PlacementCandidates(dictionary_version=fleet.version, node_bitmap=bytes(bitmap))
    request = wire.PlanPlacementRequest(gang=gang, candidates=nodes)
    stub: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
    reply: wire.PlanPlacementResponse = stub.PlanPlacement(request, timeout=DEADLINE_SECONDS)
    return reply


def _lines(
    job: pending_job.PendingJob,
    steps: Sequence[pending_job.NodeFilter],
    plan: wire.PlanPlacementResponse | None,
    names: Sequence[str],
    trouble: str,
) -> list[str]:
    rows = [("LEFT", "AFTER", "WITHOUT", "WHY")]
    for step in steps:
        without = fold_hosts(step.lost)
        cut = without if len(without) <= NAMES_CHARACTERS else f"{without[:NAMES_CHARACTERS]}..."
        why = ", ".join(f"{count} {reason}" for reason, count in step.why.items())
        rows.append((str(step.left), step.name, cut, why))
    lines = [pending_job.verdict(job, steps), "", table(rows)]
    if job.features is None:
        lines.append("its features are an expression and were not evaluated")
    if trouble:
        return [*lines, f"health, topology and prices are unknown: {trouble}"]
    if plan is None:
        return lines
    if plan.options:
        lines += ["", "Gangline would place it now:", *option_lines(plan.options[0], names)]
    else:
        proven = "no plan was found, which does not prove that none exists"
        if plan.proven:
            proven = "it does not fit"
        lines += [
            "",
            f"{proven}; below each constraint: changes after which it fits, the cheapest first",
        ]
        for blocker in plan.blockers:
            lines += blocker_lines(blocker)
    return lines


def _fields(
    job: pending_job.PendingJob,
    steps: Sequence[pending_job.NodeFilter],
    left: Sequence[str],
    plan: wire.PlanPlacementResponse | None,
    trouble: str,
) -> dict[str, Any]:
    return {
        "job": job.number,
        "nodes": job.nodes,
        "state": job.state,
        "slurm_reason": job.reason,
        "verdict": pending_job.verdict(job, steps),
        "steps": [asdict(step) for step in steps],
        "left": list(left),
        "plan": None if plan is None else MessageToDict(plan, preserving_proto_field_name=True),
        "trouble": trouble,
    }


def _job_number(text: str) -> str:
    if not re.fullmatch(r"\d{1,10}(?:_\d{1,7}|\+\d{1,5})?", text):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: expected a job number, such as 4711 or 4711_3"
        )
    return text


_share = command_line.number_option(0.0, 1.0, ": expected a score from 0 to 1")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline why",
        description="Shows why a Slurm job waits: first, from scontrol, how many nodes are left after each requirement of the job; "
        "then, from the aggregator, health and topology, and which change lets it start at what price.",
        epilog="exit codes: 0 done, 1 Slurm does not answer, 2 wrong usage, 3 no aggregator answers: prints only Slurm's part, "
        "4 no such job",
    )
    add = parser.add_argument
    add("job", type=_job_number, metavar="JOB", help="number of the job")
    add(
        "--score-min",
        type=_share,
        default=0.0,
        metavar="S",
        help="health floor of each node (default 0: only UNHEALTHY and MAINTENANCE are excluded)",
    )
    add("--within", choices=TIERS, default="", help="all nodes in one domain of this tier")
    length = add(
        "--for",
        dest="length",
        type=seconds_of,
        default=LENGTH_DEFAULT,
        metavar="24h",
        help=f"length of the job, such as 90m, 8h or 7d (default {LENGTH_DEFAULT})",
    )
    add_former_names(parser, length, "--length")
    command_line.add_options(parser)
    return parser
