"""`gangline resize`: whether a running gang should grow, shrink, move or stay, and the gain."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ...contract.client import command_line, connection
from ...contract.client.command_line import seconds_of
from ...contract.client.plan_text import (
    DEADLINE_SECONDS,
    fold_names,
    message_json,
    node_dictionary,
    option_lines,
    wrapped,
)
from ...contract.client.terminal import table
from ...contract.text import counted
from ...contract.wire import placement_pb2 as wire
from ...contract.wire.placement_pb2_grpc import PlacementServiceStub
from .plan import add_gang_options, candidates_of, gang_of, node_indexes, read_host_names
from .plan_sizes import add_size_options, apply_sizes

KIND_TITLES = {
    wire.RESIZE_STAY: "stay",
    wire.RESIZE_GROW: "grow",
    wire.RESIZE_SHRINK: "shrink",
    wire.RESIZE_MOVE: "move",
}


def main(arguments: list[str]) -> int:
    """Print the ways, the advised one first. Exit codes: 1 refused; 3 no aggregator answers."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not (options.job or options.members):
        parser.error("name the gang: --job NAME, or --members HOSTS with its hosts in rank order")
    if options.sizes is None:
        parser.error("name its allowed sizes: --sizes 8..64:power-of-two")
    return connection.guarded("resize", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with connection.connected(connection.read_connection_options(options)) as channel:
        placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
        dictionary = node_dictionary(channel)
        reply = placement.PlanResize(_request(options, dictionary), timeout=DEADLINE_SECONDS)
    if options.json:
        print(message_json(reply))
    else:
        print(resize_text(reply, dictionary.names, explain=options.explain))
    return connection.OK


def _request(options: argparse.Namespace, dictionary: Any) -> wire.PlanResizeRequest:
    gang = gang_of(options)
    apply_sizes(gang, options)
    members = read_host_names(options.members) if options.members else []
    if options.members and not members:
        raise connection.CommandError(
            f"{options.members}: no names, expected the gang's hosts", connection.FAILED
        )
    request = wire.PlanResizeRequest(
        gang=gang,
        current_node_index=node_indexes(dictionary, members),
        candidates=candidates_of(options, dictionary),
        explain=options.explain,
        checkpoint_on_demand=options.checkpoint_on_demand,
        gain_gpu_hours_min=options.gain_min,
    )
    if options.reshard is not None:
        request.reshard.FromSeconds(options.reshard)
    if options.checkpoint_age is not None:
        request.checkpoint_age.FromSeconds(options.checkpoint_age)
    return request


def resize_text(
    reply: wire.PlanResizeResponse, names: Sequence[str], *, explain: bool = False
) -> str:
    """Return a table of the ways, then the first in full."""
    lines = [f"degraded: {reply.degraded_reason}"] if reply.degraded else []
    rows = [("", "NODES", "GAIN GPU-H", "90 %", "JOIN", "LEAVE", "AFTER", "STANDS", "WHY NOT")]
    for option in reply.options:
        gain, stop = option.gain_gpu_hours, option.stop_hours
        stays = option.kind == wire.RESIZE_STAY
        rows.append(
            (
                KIND_TITLES.get(option.kind, "?"),
                str(len(option.placement.node_index)),
                "-" if stays else f"{gain.value:.1f}",
                "-" if stays else f"{gain.lower:.0f} to {gain.upper:.0f}",
                str(len(option.joined_node_index)),
                str(len(option.left_node_index)),
                "-" if stays else f"{option.wait.seconds / 60:.0f} min",
                "-" if stays else f"{stop.value * 60:.0f} min",
                option.reason,
            )
        )
    lines += [table(rows), ""]
    first = reply.options[0]
    if first.kind == wire.RESIZE_STAY:
        lines.append(f"stay: no change gains more than {reply.gain_gpu_hours_min:.1f} GPU-hours")
    else:
        lines.append(
            f"{KIND_TITLES[first.kind]} to {counted(len(first.placement.node_index), 'node')}"
        )
        if explain:
            lines.append(f"gain: {first.gain_gpu_hours.evidence}")
        for title, nodes in (("join", first.joined_node_index), ("leave", first.left_node_index)):
            if nodes:
                lines += [f"{title}:", *wrapped(fold_names([names[index] for index in nodes]))]
    lines += option_lines(first.placement, names, explain=explain)
    lines += [f"note: {note}" for note in reply.notes]
    lines.append(
        f"decision {reply.decision_id}, snapshot {reply.score_version}; candidates: {reply.candidates_source}"
    )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline resize",
        description="Shows whether a running gang should grow, shrink, move to other nodes or stay: the gain over the remaining "
        "hours (--for) compared with the cost of the change. Does not start, move or stop anything.",
        epilog="exit codes: 0 an answer, 1 refused, 2 wrong usage, 3 no aggregator answers",
    )
    command_line.add_options(parser)
    add_gang_options(parser)
    add_size_options(parser)
    add = parser.add_argument
    add(
        "--members",
        metavar="HOSTS",
        help="the gang's hosts in rank order, as a set or a file of sets; default: those on which --job is seen",
    )
    add(
        "--reshard",
        type=seconds_of,
        metavar="5m",
        help="time to lay out the state for another size",
    )
    add(
        "--checkpoint-age",
        type=seconds_of,
        metavar="20m",
        help="age of the last complete checkpoint",
    )
    add("--checkpoint-on-demand", action="store_true", help="a checkpoint can be written now")
    add("--gain-min", type=float, default=0.0, metavar="H",
        help="no change for fewer GPU-hours (default 1 %% of the largest size's GPUs x --for)")  # fmt: skip
    add("--explain", action="store_true", help="show the inputs of each part of the price")
    return parser
