"""Node table of the search: numbers, domains, and an order independent of names.

Built once for each snapshot and workload. Groups of the domain tree are contiguous. Their order
depends on their contents only, so the answer stays the same when nodes or domains are renamed or
reordered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...fingerprints.sensitivity import (
    COMPUTE,
    PCIE,
    SPEED_MIN,
    Singles,
    WorkloadNeeds,
    expected_slowdowns,
)
from ..arrays import Codes, Flags, Floats, Indexes
from ..model import HealthState
from ..scoring.evaluate import Judgement
from ..scoring.node_facts import NodeFacts
from ..scoring.score import SPEED_UNKNOWN
from ..scoring.score_columns import EXCLUDED
from .repeatability import lasting_speeds
from .requirements import PRICED_TIERS, Tier
from .transfers import NO_TRANSFERS, TransferEffects, Transfers, transfer_effects

#: Speed of a reporting idle node, with its 90 % interval: 0.5 % of hosts are 10 % slow, the others
#: spread by 2 to 3 % (assumed, `design`: public figures of same-model GPUs).
SPEED_IDLE = (0.99, 0.94, 1.03)
#: Speed of a node without current data, with the interval of its score (assumed).
SPEED_SILENT = (0.90, *SPEED_UNKNOWN)

_TREE_ROWS = [tier.row for tier in PRICED_TIERS]

_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class TreeOrder:
    """An order of all nodes. `tree` and `domains` are in it: (levels, nodes), the widest first."""

    nodes: Indexes  # node indexes, in order
    tree: Codes
    domains: Codes
    groups: Indexes  # number of each node's narrowest group, in order


class JobLoss(NamedTuple):
    """The share of its speed that a running job with *gpus* GPUs would lose, with the limits of 90 %."""

    job: str
    gpus: int
    share: float
    lower: float
    upper: float


class NeighborPrediction(NamedTuple):
    """The prediction for a gang on one node. `ratio`: its time there over that alone; 1 if `abstained` gives a reason."""

    jobs: tuple[str, ...]
    ratio: float = 1.0
    lower: float = 1.0
    upper: float = 1.0
    losses: tuple[JobLoss, ...] = ()
    binding: str = ""
    abstained: str = ""


@dataclass(frozen=True)
class NodeTable:
    """Columns by node index, of one snapshot and one workload. Hazards include spot preemption."""

    snapshot: Judgement
    hazard: Floats
    hazard_lower: Floats
    hazard_upper: Floats
    speed: Floats
    speed_lower: Floats
    speed_upper: Floats
    measured: Flags  #: the speed is current
    excluded: Flags  #: UNHEALTHY, out, or ended
    workload_source: str = ""
    #: The part of the hazard by spot preemption. Empty: none.
    preemption: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float64))
    #: By node index: predictions for the gang beside running jobs (`neighbors.py`). `speed` includes them.
    neighbors: Mapping[int, NeighborPrediction] = field(default_factory=dict)
    #: Links of the nodes and the effect of transfers; None: neither a workload nor transfers are requested.
    transfers: TransferEffects | None = None
    _orders: dict[Tier | None, TreeOrder] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.hazard.size)

    @property
    def facts(self) -> NodeFacts:
        """Locations and GPUs."""
        return self.snapshot.facts

    @cached_property
    def numbers(self) -> Floats:
        """Hazards and speeds with their intervals, in the order of `Members`: (6, nodes)."""
        hazards = [self.hazard, self.hazard_lower, self.hazard_upper]
        if self.preemption.size:
            hazards = [np.maximum(rates - self.preemption, 0.0) for rates in hazards]
        return np.stack((*hazards, self.speed, self.speed_lower, self.speed_upper))

    @cached_property
    def gpu_prices(self) -> Floats | None:
        """Price of a GPU-hour with its interval, in currency: (3, nodes).

        None if no price is declared. A node without a declared price has the median of the others'
        prices, with their range as interval.
        """
        declared = self.facts.costs.price.astype(np.float64)
        known = declared[np.isfinite(declared)]
        if not known.size:
            return None
        unknown = ~np.isfinite(declared)
        prices = np.stack((declared, declared, declared))
        prices[:, unknown] = np.array([np.median(known), known.min(), known.max()])[:, None]
        return prices

    @cached_property
    def domain_counts(self) -> Codes:
        """Number of domains of each priced tier."""
        return np.array([len(self.facts.domains.names[row]) for row in _TREE_ROWS], dtype=np.int32)

    @cached_property
    def tier_ids(self) -> Codes:
        """The domains of the priced tiers, by node index: (tiers, nodes)."""
        return np.ascontiguousarray(self.facts.domains.ids[_TREE_ROWS], dtype=np.int32)

    def repaired(self, nodes: Indexes, like: int) -> NodeTable:
        """Return the table with hazard and speed of *like* for *nodes*; spot capacity stays."""
        columns: dict[str, Any] = {}
        for name in (
            "hazard", "hazard_lower", "hazard_upper", "speed", "speed_lower", "speed_upper",
        ):  # fmt: skip
            values: Floats = getattr(self, name).copy()
            values[nodes] = values[like]
            if self.preemption.size and name.startswith("hazard"):
                values[nodes] += self.preemption[nodes] - self.preemption[like]
            columns[name] = values
        return replace(self, _orders={}, **columns)

    def order(self, segment_tier: Tier | None) -> TreeOrder:
        """Return the order for whole segments of *segment_tier*; None: no segments."""
        if segment_tier not in self._orders:
            self._orders[segment_tier] = _order(self, segment_tier)
        return self._orders[segment_tier]


def node_table(
    snapshot: Judgement,
    needs: WorkloadNeeds | None = None,
    workload_source: str = "",
    excluded: Flags | None = None,
    transfers: Transfers | None = None,
) -> NodeTable:
    """Return the nodes of *snapshot* for *needs* and *transfers*. *excluded*: default, those excluded now."""
    columns, facts = snapshot.columns, snapshot.facts
    count = columns.hazard_per_hour.size
    hazard = columns.hazard_per_hour.astype(np.float64)
    reach = facts.speed_reach
    measured = np.isfinite(reach)
    relative = columns.relative_speed.astype(np.float64)
    components = snapshot.component_speeds
    before = np.zeros(count, dtype=bool)
    if facts.speed_before.size == count:
        # An idle host has the speed of its last computation: parts differ permanently.
        before = ~measured & np.isfinite(facts.speed_before)
        components = components.copy()
        components[before, COMPUTE] = np.minimum(components, facts.speed_before[:, None])[
            before, COMPUTE
        ]
    if facts.variation.seconds.size == count:
        # A difference that does not last is ignored. A host with a symptom keeps its speed.
        healthy = columns.state == HealthState.HEALTHY
        speeds = np.where(healthy & measured, relative, np.nan)
        if before.any():
            speeds[healthy & before] = facts.speed_before[healthy & before]
        lasting = lasting_speeds(speeds, facts.variation.within.astype(np.float64))
        change = np.where(np.isfinite(lasting), lasting - speeds, 0.0)
        relative = relative + change
        components = components.copy()
        components[:, COMPUTE] = np.clip(components[:, COMPUTE] + change, SPEED_MIN, 1.0)
    may_be_faster = np.ones(count)
    if facts.pace_before.size == count:
        # A host slow in a gang at a normal clock stays slow until a gang finds otherwise.
        pace = facts.pace_before
        with np.errstate(invalid="ignore"):
            is_remembered = components.min(axis=1) > pace
        may_be_faster[is_remembered] = pace[is_remembered]
        relative = np.minimum(relative, pace)
        components = np.minimum(components, pace[:, None])
    effects = None
    if needs is not None or transfers is not None:
        effects = transfer_effects(snapshot, transfers or NO_TRANSFERS)
    known_lower, known, known_upper = _speeds(needs, components, relative, effects)
    has_value = np.isfinite(known) & facts.is_reporting
    is_seen = measured | before
    speed = np.where(has_value, np.where(is_seen, known, known * SPEED_IDLE[0]), SPEED_SILENT[0])
    broken = (columns.state == HealthState.UNHEALTHY) & ~np.isfinite(known)
    speed = np.maximum(np.where(broken, SPEED_MIN, speed), SPEED_MIN)
    half = np.where(measured, reach, 0.0)
    lower = np.where(measured, speed - half, known * SPEED_IDLE[1])
    upper = np.where(measured, speed + half, known * SPEED_IDLE[2]) / may_be_faster
    if effects is not None and effects.is_declared:
        lower, upper = lower * (known_lower / known), upper * (known_upper / known)
    lower = np.where(has_value, lower, np.minimum(SPEED_SILENT[1], speed))
    upper = np.where(has_value, upper, SPEED_SILENT[2])
    out = excluded_now(snapshot) if excluded is None else excluded
    assert facts.gpus.size == count
    lowest, highest = hazard / facts.hazard_down, hazard * facts.hazard_up
    preemption = np.zeros(0, dtype=np.float64)
    if facts.costs.preemption.any():
        preemption = facts.costs.preemption.astype(np.float64)
        hazard, lowest, highest = hazard + preemption, lowest + preemption, highest + preemption
    return NodeTable(
        snapshot=snapshot,
        hazard=hazard,
        hazard_lower=lowest,
        hazard_upper=highest,
        speed=speed,
        speed_lower=np.clip(lower, 0.0, speed),
        speed_upper=np.maximum(upper, speed),
        measured=measured,
        excluded=out,
        workload_source=workload_source,
        preemption=preemption,
        transfers=effects,
    )


def _speeds(
    needs: WorkloadNeeds | None,
    components: Singles,
    relative: Floats,
    effects: TransferEffects | None,
) -> tuple[Floats, Floats, Floats]:
    """Return the speed of each node with the limits that transfers leave open; NaN if unknown."""
    if needs is not None and effects is not None:
        components = components.copy()
        components[:, PCIE] = np.minimum(components[:, PCIE], effects.shares[0])
        # For an idle host only its symptoms are known, not its spread.
        longer = expected_slowdowns(needs, components, effects.longer).astype(np.float64)
        speeds = 1.0 / (1.0 + longer)
    else:
        others = components.astype(np.float64)
        if effects is not None:  # declared transfers say how much these components slow
            others[:, effects.transfers.components] = 1.0
        with np.errstate(invalid="ignore"):
            speeds = np.where(np.isfinite(relative), relative, others.min(axis=1))
        if effects is not None:
            speeds = 1.0 / (1.0 / speeds + sum(effects.longer.values(), start=0.0))
    if speeds.ndim == 1:
        return speeds, speeds, speeds
    upper, value, lower = speeds
    return lower, value, upper


def excluded_now(snapshot: Judgement) -> Flags:
    """Return nodes that *snapshot* excludes."""
    columns = snapshot.columns
    states = [int(state) for state in EXCLUDED]
    return np.isin(columns.state, states) | columns.ended


def excluded_since(snapshot: Judgement, before: tuple[int, Flags] | None) -> Flags:
    """Return the same; while degraded, only nodes of *before*: (dictionary version, flags)."""
    now = excluded_now(snapshot)
    if not snapshot.degraded_reason or before is None or before[0] != snapshot.dictionary_version:
        return now
    known = np.zeros(now.size, dtype=bool)
    known[: before[1].size] = before[1]
    # A simulated host that ended no longer exists, whatever else is degraded.
    return (now & known) | snapshot.columns.ended


_Hashes = NDArray[np.uint64]


def _mixed(values: _Hashes) -> _Hashes:
    """Scatter bits (splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return np.asarray(values ^ (values >> np.uint64(31)))


def _order(table: NodeTable, segment_tier: Tier | None) -> TreeOrder:
    domains = table.facts.domains.ids[_TREE_ROWS]
    tree = domains if segment_tier is None else _nested(domains, PRICED_TIERS.index(segment_tier))
    groups = _groups(tree)
    value = _mixed(table.hazard.view(np.uint64) + _mixed(table.speed.view(np.uint64)))
    costs = table.facts.costs
    if np.isfinite(costs.price).any() or table.preemption.size:
        for declared in (costs.price, costs.preemption):
            value = _mixed(value + declared.view(np.uint32).astype(np.uint64))
    # The nodes that share power or cooling with a node are part of its identity, because a gang
    # may be spread over these domains.
    for row in (Tier.POWER_DOMAIN.row, Tier.COOLING_DOMAIN.row):
        ids = table.facts.domains.ids[row]
        if ids.size and ids.max() >= 0:
            value = _mixed(value + _sums(value, ids + 1)[ids + 1])
    hashes: list[_Hashes] = []
    for level in range(len(PRICED_TIERS) - 1, -1, -1):
        sums = _sums(value, groups[level])
        hashes.insert(0, sums)
        value = _mixed(value + sums[groups[level]])
    rank = np.zeros(len(table), dtype=np.int64)
    for level, sums in enumerate(hashes):
        # Order groups by the rank of their parent, then by their own hash, then by their number.
        parents = np.zeros(sums.size, dtype=np.int64)
        parents[groups[level]] = rank
        by = np.lexsort((np.arange(sums.size), sums, parents))
        ranks = np.empty(sums.size, dtype=np.int64)
        ranks[by] = np.arange(sums.size)
        rank = ranks[groups[level]]
    nodes = np.lexsort((value, -table.speed, table.hazard, rank))
    ordered = np.ascontiguousarray(tree[:, nodes], dtype=np.int32)
    begins = np.zeros(len(table), dtype=np.intp)
    begins[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    return TreeOrder(
        nodes, ordered, np.ascontiguousarray(domains[:, nodes], dtype=np.int32), np.cumsum(begins)
    )


def _groups(tree: Codes) -> list[NDArray[np.int64]]:
    """Return each node's group number at each level; groups share all wider groups."""
    groups: list[NDArray[np.int64]] = []
    before = np.zeros(tree.shape[1], dtype=np.int64)
    for ids in tree:
        width = int(ids.max(initial=-1)) + 2
        _, numbers = np.unique(before * width + ids + 1, return_inverse=True)
        before = np.asarray(numbers, dtype=np.int64).reshape(-1)
        groups.append(before)
    return groups


def _sums(values: _Hashes, groups: NDArray[np.int64]) -> _Hashes:
    """Return the sum of *values* of each group, modulo 2**64, independent of the order."""
    sums = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.uint64)
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if order.size else order
    if order.size:
        sums[ordered[starts]] = np.add.reduceat(values[order], starts)
    return sums


def _nested(domains: Codes, level: int) -> Codes:
    """Return *domains* as a tree: each lies in the wider domain of most of its nodes."""
    tree = domains.copy()
    ids = domains[level]
    inside = ids >= 0
    for wider in range(level):
        width = int(domains[wider].max(initial=-1)) + 2
        pairs, counts = np.unique(
            ids[inside].astype(np.int64) * width + domains[wider][inside] + 1, return_counts=True
        )
        by = np.lexsort((pairs, counts))  # the most frequent pair of each domain comes last
        parents = np.full(int(ids.max(initial=-1)) + 1, -1, dtype=np.int32)
        parents[pairs[by] // width] = pairs[by] % width - 1
        tree[wider][inside] = parents[ids[inside]]
    return tree
