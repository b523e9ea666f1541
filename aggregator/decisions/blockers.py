"""Why nothing fits: a minimal set of conflicting constraints, and the changes that resolve each.

QuickXplain (Junker, AAAI 2004) finds the set with few feasibility checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np

from ...contract.text import counted
from . import node_search
from .node_search import Candidates
from .node_table import NodeTable
from .price import shared_hazard
from .quantity import Quantity
from .relaxations import (
    CANDIDATES,
    FLOOR,
    GPUS,
    MEMORY,
    NODES,
    RAILS,
    SEGMENTS,
    SPREAD,
    STATES,
    SURVIVAL,
    WITHIN,
    BlockedRequest,
    PlanRelaxation,
    relaxations_of,
)
from .requirements import GangRequirements, MemoryRequirements, Tier


@dataclass(frozen=True, slots=True)
class PlanBlocker:
    """A constraint of the conflicting set."""

    constraint: str
    message: str
    nodes_excluded: int
    relaxations: tuple[PlanRelaxation, ...]


@dataclass(frozen=True, slots=True)
class PlanBlockers:
    """A minimal conflicting set.

    `is_proven`: it is certain that no plan fits; otherwise the search may have missed a plan.
    """

    blockers: tuple[PlanBlocker, ...]
    is_proven: bool


def quick_xplain(
    constraints: Sequence[str], conflicts: Callable[[Sequence[str]], bool]
) -> list[str]:
    """Return a minimal conflicting part of *constraints*. *conflicts* is monotonic."""

    def search(background: list[str], has_new: bool, rest: list[str]) -> list[str]:
        if has_new and conflicts(background):
            return []
        if len(rest) == 1:
            return rest
        half = len(rest) // 2
        first, second = rest[:half], rest[half:]
        of_second = search([*background, *first], bool(first), second)
        of_first = search([*background, *of_second], bool(of_second), first)
        return [*of_first, *of_second]

    if conflicts([]):
        return []
    return search([], False, list(constraints))


def find_blockers(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    communication: Quantity | None = None,
) -> PlanBlockers:
    """Return why no plan was found for *needs*."""
    # If any of several sizes fits, so does the smallest.
    needs = replace(needs, nodes=needs.elastic.allowed[0]) if needs.elastic else needs
    request = BlockedRequest(table, candidates, needs, communication)
    active = request.active()

    def conflicts(part: Sequence[str]) -> bool:
        return not request.fits(request.without([c for c in active if c not in part]))

    conflict = quick_xplain(active, conflicts) if active else []
    blockers = [
        PlanBlocker(
            constraint,
            _message(request, constraint),
            _excluded_count(request, constraint),
            relaxations_of(request, constraint, active),
        )
        for constraint in conflict
    ]
    if not conflict:
        message = "no suitable node is known: agents register hosts and their GPUs"
        blockers = [PlanBlocker(CANDIDATES, message, 0, ())]
    is_crosscut = needs.spread_over is not None and needs.segment_nodes > 1
    return PlanBlockers(tuple(blockers), not is_crosscut)


def _excluded_count(request: BlockedRequest, constraint: str) -> int:
    table, needs, ids = request.table, request.needs, request.table.facts.domains.ids
    tiers = {WITHIN: needs.within, SEGMENTS: needs.segment_tier, SPREAD: needs.spread_over}
    if constraint == CANDIDATES:
        return int(request.occupied().size)
    if constraint == STATES:
        return int(table.excluded.sum())
    if constraint == GPUS:
        return int((~node_search.roomy(table, request.candidates, needs)).sum())
    if constraint == MEMORY:
        return int((~node_search.has_memory(table, needs)).sum())
    if constraint == FLOOR:
        return int((table.snapshot.columns.score < np.float32(needs.score_min)).sum())
    if constraint == RAILS:
        return int((table.facts.domains.rails < 0).sum())
    tier = tiers.get(constraint)
    return int((ids[tier.row] < 0).sum()) if isinstance(tier, Tier) else 0


def _message(request: BlockedRequest, constraint: str) -> str:
    needs, table = request.needs, request.table
    count = _excluded_count(request, constraint)
    part = f"{count} of {counted(len(table), 'node')}"
    usable = int(node_search.usable(table, request.candidates, needs).sum())
    within, segment_tier, over = (
        tier.title if tier else "" for tier in (needs.within, needs.segment_tier, needs.spread_over)
    )
    withheld = request.occupied().size - request.obtainable().size
    protected = f"; {withheld} of them run jobs of at least the gang's priority"
    protected = protected if withheld else ""
    shared = exp(-shared_hazard(needs.nodes).value * needs.hours)
    return {
        NODES: f"requested: {'at least ' if needs.elastic else ''}{counted(needs.nodes, 'node')}; free, healthy and large enough: {usable}",
        CANDIDATES: f"not candidates: {part} ({request.candidates.source}){protected}",
        STATES: f"UNHEALTHY, in maintenance, or gone: {part}",
        GPUS: f"fewer than {counted(node_search.gpus_of(table, needs), 'free GPU')}: {part}",
        WITHIN: f"all nodes within one {within}; unknown for {counted(count, 'node')}",
        SEGMENTS: f"segments of {counted(needs.segment_nodes, 'node')}, each within one {segment_tier}; unknown for {counted(count, 'node')}",
        RAILS: f"the same rails; unknown for {counted(count, 'node')}",
        SPREAD: f"at most {counted(needs.spread_nodes_max, 'node')} in one {over}; unknown for {counted(count, 'node')}",
        SURVIVAL: f"the gang survives {needs.hours:g} h with at least {needs.survival_min:.4g}; shared causes alone leave {shared:.4g}",
        FLOOR: f"below the floor of {needs.score_min:.4g}: {part}",
        MEMORY: f"{memory_text(needs.memory)}: not on {part}{_largest_memory(table, needs)}",
    }[constraint]


def memory_text(memory: MemoryRequirements) -> str:
    """Describe the requested memory."""
    parts: list[str] = []
    if memory.hbm_bytes:
        parts.append(f"{memory.hbm_bytes / 1e9:.4g} GB of HBM per GPU ({memory.source})")
    if memory.page_cache_bytes:
        parts.append(f"{memory.page_cache_bytes / 1e9:.4g} GB of page cache per node")
    return " and ".join(parts)


def _largest_memory(table: NodeTable, needs: GangRequirements) -> str:
    """Describe the GPU with the largest memory of the fleet; "" if that memory is unknown or enough."""
    supplies = table.snapshot.supplies
    known = np.nan_to_num(supplies.hbm_bytes[: len(table)])
    if not known.size or not 0.0 < known.max() < needs.memory.hbm_bytes:
        return ""
    node = int(known.argmax())
    model = supplies.gpu_models[node] if node < len(supplies.gpu_models) else ""
    return f"; the largest GPU has {known[node] / 1e9:.4g} GB{f' ({model})' if model else ''}"
