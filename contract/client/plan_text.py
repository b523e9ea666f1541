"""Texts of placement plans, and the call for the names of nodes that they contain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from ...cli import json_object
from ..text import counted
from ..wire import placement_pb2 as wire
from ..wire import score_pb2
from ..wire.score_pb2_grpc import ScoreServiceStub

#: Time limit of a plan: with blockers in a large fleet it takes longer than a score.
DEADLINE_SECONDS = 20.0
TIERS = ("nvlink-domain", "rack", "leaf", "spine", "core", "power-domain", "cooling-domain")
NAMES_CHARACTERS = 96


def node_dictionary(
    channel: grpc.Channel, seconds: float = DEADLINE_SECONDS
) -> score_pb2.NodeDictionary:
    """Return the names of all nodes, by index."""
    stub: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
    dictionary: score_pb2.NodeDictionary = stub.GetNodeDictionary(
        score_pb2.GetNodeDictionaryRequest(), timeout=seconds
    )
    return dictionary


def message_json(reply: Message) -> str:
    """Return *reply* as JSON text for `--json`."""
    return json_object(MessageToDict(reply, preserving_proto_field_name=True))


def price_lines(price: wire.PlacementPrice, *, explain: bool = False) -> list[str]:
    """Return a price with a line for each part."""
    lines = [f"lost GPU-hours {price.total_gpu_hours.value:.1f}, of these:"]
    for part in price.parts:
        hours = part.gpu_hours
        source = wire.EstimateSource.Name(hours.source).rpartition("_")[2].lower()
        line = (
            f"  {hours.value:10.1f}  {part.name} ({hours.lower:.1f} to {hours.upper:.1f}, {source})"
        )
        lines.append(f"{line}: {hours.evidence}" if explain and hours.evidence else line)
    return lines


def option_lines(
    option: wire.PlacementOption, names: Sequence[str], *, explain: bool = False
) -> list[str]:
    """Return an option in full: price by parts, nodes, spares, and the capacity it strands."""
    lines = price_lines(option.price, explain=explain)
    if option.HasField("work_hours"):
        until = option.work_hours
        lines.append(
            f"work done in {until.value:.1f} h ({until.lower:.1f} to {until.upper:.1f}), "
            f"scaling efficiency {option.scaling_efficiency.value:.3f}"
        )
    lines.append(f"{counted(len(option.node_index), 'node')} in rank order:")
    lines += wrapped(fold_names([names[index] for index in option.node_index]))
    standbys = [names[index] for index in option.spare_node_index]
    lines.append(
        f"spares: {len(standbys)} of {option.spares_wanted} wanted (95 % quantile of failures within a repair)"
    )
    lines += wrapped(fold_names(standbys)) if standbys else []
    lines += _group_lines(option)
    for strand in option.strands:
        where = f"within one {tier_title(strand.tier)}" if strand.tier else "anywhere"
        lines.append(f"largest gang {where}: {strand.nodes_before} -> {strand.nodes_after} nodes")
    lines += [f"not satisfied: {violation}" for violation in option.violations]
    return lines


def _group_lines(option: wire.PlacementOption) -> list[str]:
    """Return lines on the domains that a gang's groups span."""
    stages = option.pipeline_stages_together
    pipeline = next((group.size for group in option.groups if group.kind == "pipeline"), 1)
    lines: list[str] = []
    if option.groups and pipeline > 1:
        aligned_first = "data groups first"
        if stages > 1:
            aligned_first = f"{stages} of {pipeline} stages of a pipeline together"
        lines.append(f"ranks: tensor, data, pipeline; aligned: {aligned_first}")
    for group in option.groups:
        crossing = ", ".join(f"{t.groups} {tier_title(t.tier)}" for t in group.crossing if t.groups)
        unknown = max((tier_crossing.unknown_groups for tier_crossing in group.crossing), default=0)
        lines.append(
            f"{counted(group.groups, f'{group.kind} group')} of {counted(group.size, 'GPU')}, {group.traffic_share.value:.0%} of the traffic; "
            f"in several domains: {crossing or 'none'}"
            + (f"; unknown for up to {unknown}" if unknown else "")
        )
    return lines


def blocker_lines(blocker: wire.Blocker) -> list[str]:
    """Return the constraint that prevents a plan, then the changes that help."""
    lines = [f"- {blocker.constraint}: {blocker.message}"]
    for relaxation in blocker.relaxations:
        total = relaxation.price.total_gpu_hours
        start = "starts now"
        if relaxation.HasField("start_p50"):
            start = f"starts in {relaxation.start_p50.seconds / 3600:.1f} h"
        lines.append(
            f"    {relaxation.change}: {start}, survival {relaxation.survival.value:.3f}, "
            f"{total.value:.1f} GPU-hours ({total.lower:.0f} to {total.upper:.0f})"
        )
    if not blocker.relaxations:
        lines.append("    no change to it helps")
    return lines


def tier_title(tier: int, count: int = 1) -> str:
    """Return the name of a tier, in the plural unless *count* is 1."""
    title = TIERS[tier - 1] if 0 < tier <= len(TIERS) else str(tier)
    return title if count == 1 else "leaves" if title == "leaf" else f"{title}s"


def fold_names(names: Sequence[str]) -> list[str]:
    """Return names with runs folded, in their order: gpu-[001-004] for gpu-001 to gpu-004."""
    runs: list[tuple[str, str, str]] = []  # prefix, first and last number ("" if the name has none)
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match is None:
            runs.append((name, "", ""))
            continue
        prefix, number = match[1], match[2]
        if runs and runs[-1][0] == prefix and len(runs[-1][2]) == len(number):
            before = runs[-1][2]
            if before and int(number) == int(before) + 1:
                runs[-1] = prefix, runs[-1][1], number
                continue
        runs.append((prefix, number, number))
    return [
        f"{prefix}[{first}-{last}]" if first != last else f"{prefix}{first}"
        for prefix, first, last in runs
    ]


def wrapped(names: Sequence[str]) -> list[str]:
    """Return names wrapped to a readable width."""
    lines, line = list[str](), "  "
    for name in names:
        if len(line) + len(name) > NAMES_CHARACTERS and line.strip():
            lines.append(line.rstrip())
            line = "  "
        line += f"{name} "
    return [*lines, line.rstrip()]
