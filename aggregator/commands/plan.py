"""`gangline plan`: the best nodes for a gang, their cost, and if nothing fits, why."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc

from ...contract.client.command_line import (
    add_options,
    host_set_option,
    number_option,
    read_hosts,
    seconds_of,
)
from ...contract.client.connection import (
    FAILED,
    OK,
    CommandError,
    connected,
    guarded,
    read_connection_options,
)
from ...contract.client.plan_text import (
    DEADLINE_SECONDS,
    TIERS,
    blocker_lines,
    message_json,
    node_dictionary,
    option_lines,
    tier_title,
)
from ...contract.client.terminal import table
from ...contract.host_sets import HOSTS_MAX, HostSetError
from ...contract.text import counted
from ...contract.wire import placement_pb2 as wire
from ...contract.wire import reservation_pb2
from ...contract.wire.placement_pb2_grpc import PlacementServiceStub
from ...contract.wire.reservation_pb2_grpc import ReservationServiceStub
from .plan_memory import add_memory_option
from .plan_picture import TIERS_SHOWN, PlanPicture, picture_lines, picture_svg, plan_picture
from .plan_sizes import add_size_options, apply_sizes, sizes_lines

#: Exchange rates: field of the request -> the cost of each unit.
RATE_OPTIONS = {
    "gpu_hours_per_delay_hour": "what an hour of delay costs, in GPU-hours",
    "gpu_hours_per_currency_unit": "what a unit of currency is worth, in GPU-hours",
    "gpu_hours_per_stranded_gpu_hour": "what a GPU stranded for an hour costs, in GPU-hours",
}
RATE_MAX = 1e9
_PRIORITY = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_GROUPS = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})(?:x([1-9][0-9]{0,5}))?", re.ASCII)


def main(arguments: list[str]) -> int:
    """Print a plan. Exit codes: 1 nothing fits, or refused; 3 no aggregator answers."""
    options = _parser().parse_args(arguments)
    return guarded("plan", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with connected(read_connection_options(options)) as channel:
        placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
        dictionary = node_dictionary(channel)
        if options.evaluate:
            request = wire.EvaluatePlacementRequest(
                gang=_planned_gang(options),
                dictionary_version=dictionary.version,
                node_index=node_indexes(dictionary, options.evaluate),
                explain=options.explain,
            )
            if options.sizes is None:
                request.gang.nodes = 0
            reply = placement.EvaluatePlacement(request, timeout=DEADLINE_SECONDS)
        else:
            reply = placement.PlanPlacement(
                _plan_request(options, dictionary), timeout=DEADLINE_SECONDS
            )
        reserved = _reserve(options, channel, dictionary, reply)
        picture = _picture(options, placement, dictionary, reply)
    if picture is not None and options.output:
        _write_picture(options.output, picture, reply)
    if options.json:
        print(message_json(reply))
    elif options.evaluate:
        lines = option_lines(reply.option, dictionary.names, explain=options.explain)
        print("\n".join([*lines, *(f"note: {note}" for note in reply.notes)]))
    else:
        print(plan_text(reply, dictionary.names, explain=options.explain))
    if picture is not None and options.map:
        print("\n".join(picture_lines(picture)))
    if reserved is not None:
        print(reserved_text(reserved, dictionary.names), file=sys.stderr if options.json else None)
        return OK if reserved.HasField("reservation") else FAILED
    return OK if options.evaluate or reply.options else FAILED


def _reserve(
    options: argparse.Namespace, channel: grpc.Channel, dictionary: Any, reply: Any
) -> reservation_pb2.ReserveResponse | None:
    """Reserve the first option's nodes and spares if --reserve is set; None if there is none."""
    if not options.reserve or options.evaluate or not reply.options:
        return None
    stub: Any = ReservationServiceStub(channel)  # type: ignore[no-untyped-call]
    best = reply.options[0]
    request = reservation_pb2.ReserveRequest(
        owner=options.reserve,
        node_index=[*best.node_index, *best.spare_node_index],
        dictionary_version=dictionary.version,
        workload=options.job or "",
        decision_id=reply.decision_id,
        option=1,
    )
    request.ttl.FromSeconds(options.ttl)
    response: reservation_pb2.ReserveResponse = stub.Reserve(request, timeout=DEADLINE_SECONDS)
    return response


def reserved_text(reply: reservation_pb2.ReserveResponse, names: Sequence[str]) -> str:
    """Return text on the reservation, or on the changes since the plan that prevented it."""
    if reply.HasField("reservation"):
        reservation = reply.reservation
        until = reservation.expire_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC")
        return (
            f"{reservation.name} for {reservation.owner}: {counted(len(reservation.node_index), 'node')} with spares until {until}, "
            f"fencing token {reservation.fencing_token}"
        )
    lines = [
        f"not reserved: {counted(reply.changed_count, 'node')} changed since the plan; plan again"
    ]
    lines += [f"  {names[change.node_index]}: {change.message}" for change in reply.changes]
    return "\n".join(lines)


def _picture(
    options: argparse.Namespace, placement: Any, dictionary: Any, reply: Any
) -> PlanPicture | None:
    """Return the first option on the topology; None if no picture is requested or nothing fits."""
    if not (options.map or options.output):
        return None
    option = reply.option if options.evaluate else next(iter(reply.options), None)
    if option is None:
        return None
    request = wire.ListTopologyDomainsRequest(candidates=candidates_of(options, dictionary))
    domains: dict[int, wire.ListTopologyDomainsResponse] = {}
    for tier in TIERS_SHOWN:
        request.tier = tier
        domains[tier] = placement.ListTopologyDomains(request, timeout=DEADLINE_SECONDS)
    segment = options.segments[0] if options.segments else 1
    return plan_picture(option, domains, len(dictionary.names), segment)


def _write_picture(path: Path, picture: PlanPicture, reply: Any) -> None:
    option = reply.option if isinstance(reply, wire.EvaluatePlacementResponse) else reply.options[0]
    total = option.price.total_gpu_hours
    title = f"{counted(len(option.node_index), 'node')}, {total.value:.0f} GPU-hours lost ({total.lower:.0f} to {total.upper:.0f})"
    notes = [
        (
            f"speed {option.speed.value:.3f}, topology {option.topology_factor.value:.3f}, survival {option.survival.value:.3f}, "
            f"goodput {option.goodput.value:.3f}; snapshot {reply.score_version}"
        )
    ]
    try:
        path.write_text(picture_svg(picture, title, notes))
    except OSError as error:
        raise CommandError(f"{path}: {error}. Name a writable file", FAILED) from error


def _plan_request(options: argparse.Namespace, dictionary: Any) -> wire.PlanPlacementRequest:
    request = wire.PlanPlacementRequest(
        gang=_planned_gang(options),
        options_max=options.options,
        explain=options.explain or options.sizes is not None,
    )
    request.candidates.CopyFrom(candidates_of(options, dictionary))
    return request


def candidates_of(options: argparse.Namespace, dictionary: Any) -> wire.PlacementCandidates:
    """Return the hosts of the candidates file; without it, unset: hosts without a visible job."""
    candidates = wire.PlacementCandidates()
    for job, priority in options.job_priority:
        candidates.job_priorities.add(job=job, priority=priority)
    if options.candidates:
        names = read_host_names(options.candidates)
        bitmap = bytearray(-(-len(dictionary.names) // 8))
        for index in node_indexes(dictionary, names):
            bitmap[index // 8] |= 1 << index % 8
        candidates.node_bitmap = bytes(bitmap)
        candidates.dictionary_version = dictionary.version
    return candidates


def read_host_names(text: str) -> list[str]:
    """Return the hosts of a set, or of a file of sets. Raises CommandError."""
    is_relative_path = not text.startswith(".") and os.path.isfile(text)
    try:
        return read_hosts(os.path.abspath(text) if is_relative_path else text, HOSTS_MAX)
    except HostSetError as error:
        raise CommandError(f"{text[:200]}: {error}", FAILED) from error


def node_indexes(dictionary: Any, names: Iterable[str]) -> list[int]:
    """Return the indexes of hosts. Raises CommandError for an unregistered name."""
    known = {name: index for index, name in enumerate(dictionary.names)}
    indexes: list[int] = []
    for name in names:
        if name not in known:
            raise CommandError(
                f"{name[:100]!r}: no host with this name has registered; see gangline hosts", FAILED
            )
        indexes.append(known[name])
    return indexes


def _planned_gang(options: argparse.Namespace) -> wire.GangRequirements:
    gang = gang_of(options)
    gang.nodes = options.nodes or (0 if options.sizes else 1)
    apply_sizes(gang, options)
    gang.node_score_min, gang.survival_min = options.score_min, options.survival_min
    return gang


def gang_of(options: argparse.Namespace) -> wire.GangRequirements:
    """Return the gang that the options of `add_gang_options` describe."""
    within = _tier(options.within)
    invariants = wire.PlacementInvariants(within=within, same_rails=options.same_rails)
    gang = wire.GangRequirements(gpus_per_node=options.gpus_per_node, invariants=invariants)
    gang.length.FromSeconds(options.length)
    if options.segments:
        gang.invariants.segment_nodes, tier = options.segments
        gang.invariants.segment_tier = _tier(tier)
    if options.spread:
        gang.invariants.spread_nodes_max, tier = options.spread
        gang.invariants.spread_over = _tier(tier)
    if options.job:
        gang.workload.job = options.job
    if options.memory is not None:
        gang.memory.CopyFrom(options.memory)
    gang.workload_name = options.workload
    gang.tenant = options.tenant
    if options.priority is not None:
        gang.priority = options.priority
    if options.groups:
        gang.groups.tensor, gang.groups.pipeline, gang.groups.data = options.groups
    for name in RATE_OPTIONS:
        if (rate := getattr(options, name)) is not None:
            setattr(gang, name, rate)
    return gang


def _tier(name: str) -> Any:
    return TIERS.index(name) + 1 if name else 0


def plan_text(
    reply: wire.PlanPlacementResponse, names: Sequence[str], *, explain: bool = False
) -> str:
    """Format a plan, or the constraints that prevent it."""
    lines: list[str] = []
    if reply.degraded:
        lines.append(f"degraded: {reply.degraded_reason}")
    if reply.options:
        if reply.sizes:
            lines += [*sizes_lines(reply.sizes, len(reply.options[0].node_index)), ""]
        lines += [_options_table(reply.options), ""]
        lines += option_lines(reply.options[0], names, explain=explain)
    else:
        certain = "no plan was found, which does not prove that none exists"
        if reply.proven:
            certain = "nothing fits"
        lines.append(
            f"{certain}. These constraints conflict; below each: changes after which the gang fits"
        )
        for blocker in reply.blockers:
            lines += blocker_lines(blocker)
    lines += [f"note: {note}" for note in reply.notes]
    lines.append(
        f"decision {reply.decision_id}, snapshot {reply.score_version}, "
        f"{reply.solve_time.ToNanoseconds() / 1e6:.1f} ms; candidates: {reply.candidates_source}"
    )
    return "\n".join(lines)


def _options_table(options: Sequence[wire.PlacementOption]) -> str:
    heads = (
        "OPTION",
        "NODES",
        "LOST GPU-H",
        "90 %",
        "GOODPUT",
        "SURVIVAL",
        "SPEED",
        "TOPOLOGY",
        "SPANS",
        "AT MOST BETTER BY",
    )
    rows: list[tuple[str, ...]] = [heads]
    for number, option in enumerate(options, 1):
        total = option.price.total_gpu_hours
        spans = ", ".join(
            f"{span.domains} {tier_title(span.tier, span.domains)}"
            for span in option.spanned
            if span.domains
        )
        rows.append(
            (
                str(number), str(len(option.node_index)), f"{total.value:.1f}", f"{total.lower:.0f} to {total.upper:.0f}",
                f"{option.goodput.value:.3f}", f"{option.survival.value:.3f}", f"{option.speed.value:.3f}",
                f"{option.topology_factor.value:.3f}", spans or "-", f"{option.gap_gpu_hours_max:.1f}",
            )
        )  # fmt: skip
    return table(rows)


def _count_and_tier(text: str) -> tuple[int, str]:
    number, colon, tier = text.partition(":")
    if not (
        colon and number.isascii() and number.isdecimal() and len(number) <= 6 and tier in TIERS
    ):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: expected NODES:TIER, as 4:rack; TIER is one of {', '.join(TIERS)}"
        )
    return int(number), tier


_share = number_option(0.0, 1.0, ": expected a number from 0 to 1")


def _priority(text: str) -> int:
    if not _PRIORITY.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: expected a whole number from -2147483648 to 2147483647"
        )
    return int(text)


def _job_priority(text: str) -> tuple[str, int]:
    job, equals, number = text.rpartition("=")
    if not (job and equals):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected JOB=PRIORITY, as 4711=100")
    return job, _priority(number)


def groups_option(text: str) -> tuple[int, int, int]:
    """Return the sizes of tensor, pipeline and data groups. Raises ArgumentTypeError."""
    match = _GROUPS.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: expected TENSORxPIPELINE or TENSORxPIPELINExDATA, as 8x4x16, each 1 to 999999"
        )
    return int(match[1]), int(match[2]), int(match[3] or 0)


_rate = number_option(0.0, RATE_MAX, f": expected GPU-hours, a number from 0 to {RATE_MAX:g}")


def count_of(text: str) -> int:
    """Return a whole number from 1. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and int(text)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected a number from 1 to 999999")
    return int(text)


def _svg(text: str) -> Path:
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text[:100]!r}: expected a file that ends in .svg")
    return Path(text)


def add_gang_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for a gang's requirements and its candidate hosts."""
    add = parser.add_argument
    add("--gpus-per-node", type=count_of, default=0, metavar="N", help="default: whole nodes")
    add(
        "--for",
        dest="length",
        type=seconds_of,
        default=86_400,
        metavar="24h",
        help="length of the job (default 24h)",
    )
    add("--job", default="", metavar="JOB", help="use each node's speed for this earlier job")
    add(
        "--workload",
        default="",
        metavar="NAME",
        help="use the throughput by size that outcomes of this workload reported (default: those of --job)",
    )
    add(
        "--groups",
        type=groups_option,
        metavar="TxPxD",
        help="tensor x pipeline x data parallel GPUs, as 8x4x16; ranks follow the groups",
    )
    add_memory_option(parser)
    add(
        "--priority",
        type=_priority,
        metavar="N",
        help="the plan may take nodes only from jobs with a lower --job-priority",
    )
    add(
        "--job-priority",
        type=_job_priority,
        action="append",
        default=[],
        metavar="JOB=N",
        help="priority of a running job; may be repeated",
    )
    add(
        "--tenant",
        default="",
        metavar="NAME",
        help="use the declared exchange rates of this tenant",
    )
    for name, text in RATE_OPTIONS.items():
        option = f"--{name.replace('_', '-')}"
        add(option, type=_rate, metavar="X", help=f"{text} (default: declared for --tenant)")
    add("--within", choices=TIERS, default="", help="all nodes in one domain of this tier")
    add(
        "--segments",
        type=_count_and_tier,
        metavar="N:TIER",
        help="segments of N nodes, each in one domain of TIER",
    )
    add(
        "--same-rails", action="store_true", help="all nodes have the same leaf switch on each rail"
    )
    add(
        "--spread",
        type=_count_and_tier,
        metavar="N:TIER",
        help="no more than N nodes in one domain of TIER",
    )
    add(
        "--candidates",
        metavar="HOSTS",
        help="hosts to choose from, as a set or a file of sets; default: hosts without a known job",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline plan",
        description="Shows where a gang runs best, by health, speed and topology, with the price in lost GPU-hours. Starts "
        "nothing. If nothing fits, it names the constraints in conflict, and for each the change that helps.",
        epilog="exit codes: 0 a plan, 1 nothing fits, or refused, 2 wrong usage, 3 no aggregator answers",
    )
    add_options(parser)
    add_gang_options(parser)
    add = parser.add_argument
    add("--nodes", type=count_of, metavar="N", help="number of nodes (default 1)")
    add_size_options(parser)
    add(
        "--reserve",
        default="",
        metavar="OWNER",
        help=(
            "reserve the best option's nodes and spares for OWNER, for example slurm-main, so "
            "that no other plan offers them"
        ),
    )
    add(
        "--ttl",
        type=seconds_of,
        default=300,
        metavar="5m",
        help="how long the reservation lasts unless renewed (at most 24h)",
    )
    add(
        "--score-min",
        type=_share,
        default=0.0,
        metavar="S",
        help="floor of each node's score over 8 hours",
    )
    add(
        "--survival-min",
        type=_share,
        default=0.0,
        metavar="P",
        help="minimum of the plan's survival: no interruption by members, shared causes or preemption",
    )
    add(
        "--options",
        type=count_of,
        default=1,
        metavar="N",
        help=(
            "up to N plans on the Pareto front, none better than another in every respect (at "
            "most 8)"
        ),
    )
    add(
        "--evaluate",
        type=host_set_option,
        metavar="HOSTS",
        help=(
            "instead of a plan, show the price of these hosts, in this order; for example "
            "gpu[001-016,020],head"
        ),
    )
    add("--map", action="store_true", help="also draw the first plan on the topology")
    add("-o", "--output", type=_svg, metavar="FILE.svg", help="also write that as a picture")
    add("--explain", action="store_true", help="show the inputs of each part of the price")
    return parser
