"""Tensor, pipeline and data groups of a gang: ranks, traffic across tiers, order of nodes.

Each GPU has one rank, in the frameworks' default order: tensor fastest, then data, then pipeline. A
node has consecutive ranks. The order of nodes can place many members of one data group in a domain,
or several stages of one pipeline. The cost of each kind of traffic decides which is better (as in
Arnold: Tian et al., 2025). Tensor and data groups send evenly within the group; a pipeline sends
from each stage to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..arrays import Flags, Floats, Indexes
from .node_table import NodeTable
from .quantity import Quantity, QuantitySource, assumed, declared
from .requirements import PRICED_TIERS, SEGMENT_NODES_MAX, GangRequirements, Tier

TENSOR, PIPELINE, DATA = "tensor", "pipeline", "data"
#: Share of a gang's communication, with its range (assumed: tensor groups communicate most,
#: pipelines least).
TRAFFIC = {TENSOR: (0.5, 0.2, 0.8), PIPELINE: (0.2, 0.05, 0.5), DATA: (0.3, 0.1, 0.6)}
#: Maximum numbers of adjacent stages of a pipeline to try.
ORDERS_MAX = 8


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Sizes of groups in GPUs; their product is the gang's GPUs."""

    tensor: int
    pipeline: int
    data: int
    gpus_per_node: int

    @property
    def unit_nodes(self) -> int:
        """Number of nodes that hold whole tensor groups; 0: a tensor group ends within a node."""
        if self.gpus_per_node % self.tensor == 0:
            return 1
        return self.tensor // self.gpus_per_node if self.tensor % self.gpus_per_node == 0 else 0

    @property
    def text(self) -> str:
        """The sizes as text."""
        return f"{self.tensor} tensor x {self.pipeline} pipeline x {self.data} data"


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """Groups of one kind, and by priced tier how many cross (`crossing`) or may (`unknown`)."""

    kind: str
    size: int
    count: int
    traffic: Quantity
    crossing: tuple[int, ...]
    unknown: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupSpans:
    """The domains that a gang's groups span.

    `shares`: per priced tier, the share of communication that crosses it, with its interval.
    """

    layout: GroupLayout
    kinds: tuple[GroupTraffic, ...]
    shares: tuple[tuple[float, float, float], ...]
    stages_together: int = 1  #: stages of a pipeline on adjacent nodes

    @property
    def evidence(self) -> str:
        """The basis of the shares, as text."""
        weights = ", ".join(f"{kind.kind} {kind.traffic.value:.2g}" for kind in self.kinds)
        source = self.kinds[0].traffic.source.name.lower() if self.kinds else "assumed"
        return f"{self.layout.text} groups; shares of traffic {weights} ({source})"


def layout_of(needs: GangRequirements, nodes: int, gpus_per_node: int) -> GroupLayout | None:
    """Return the groups of a gang of *nodes*. None: not requested, or they do not add up to it."""
    tensor, pipeline = max(needs.tensor_parallel, 1), max(needs.pipeline_parallel, 1)
    gpus = nodes * gpus_per_node
    if not needs.has_groups or not needs.groups_make_up(gpus):
        return None
    return GroupLayout(tensor, pipeline, gpus // (tensor * pipeline), gpus_per_node)


def _members(layout: GroupLayout, nodes: int) -> dict[str, tuple[Indexes, int]]:
    """Return kind -> (positions of groups' nodes, groups per row), for groups of several GPUs."""
    ranks = np.arange(nodes * layout.gpus_per_node, dtype=np.int64) // layout.gpus_per_node
    places = ranks.reshape(layout.pipeline, layout.data, layout.tensor)
    step = min(layout.tensor, layout.gpus_per_node) if layout.unit_nodes else 1
    places = places[:, :, ::step]  # the rest of a tensor group is on the same nodes
    members: dict[str, tuple[Indexes, int]] = {}
    if layout.tensor > 1:
        members[TENSOR] = places.reshape(-1, places.shape[2]), 1
    if layout.pipeline > 1:
        members[PIPELINE] = places.transpose(1, 2, 0).reshape(-1, layout.pipeline), step
    if layout.data > 1:
        members[DATA] = places.transpose(0, 2, 1).reshape(-1, layout.data), step
    return members


def _distinct(values: Indexes) -> tuple[Indexes, Indexes]:
    """Return the numbers of distinct non-negative and of distinct negative values per row."""
    ordered = np.sort(values, axis=1)
    is_new = np.ones(ordered.shape, dtype=bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return (is_new & (ordered >= 0)).sum(axis=1), (is_new & (ordered < 0)).sum(axis=1)


def _crossing(kind: str, values: Indexes) -> tuple[Floats, Flags, Flags]:
    """Return (share of traffic that crosses, groups that cross, groups that may cross).

    *values*: the domain of each member (column) of each group (row); an unknown domain is a
    negative number, different for each node. The share is (lower, upper) by group.
    """
    known = values >= 0
    highest = np.where(known, values, -1).max(axis=1)
    lowest = np.where(known, values, np.iinfo(np.int64).max).min(axis=1)
    crosses = (highest >= 0) & (lowest != highest)
    may = ~crosses & (values.min(axis=1) != values.max(axis=1))
    if kind == PIPELINE:
        differs = values[:, 1:] != values[:, :-1]
        sure = differs & known[:, 1:] & known[:, :-1]
        return np.stack((sure.mean(axis=1), differs.mean(axis=1))), crosses, may
    domains, unknown = _distinct(values)
    lower = 1.0 - 1.0 / np.maximum(domains, 1)
    upper = 1.0 - 1.0 / np.maximum(domains + unknown, 1)
    return np.stack((lower, upper)), crosses, may


def _weights(kinds: Sequence[str], given: dict[str, float]) -> dict[str, Quantity]:
    """Return the weights of the communication, before normalization."""
    if any(given[kind] for kind in kinds):
        return {kind: declared(given[kind], "the request") for kind in kinds}
    return {kind: assumed(*TRAFFIC[kind], "assumed") for kind in kinds}


def _mixed(weights: Sequence[Quantity], shares: Sequence[float], ends: bool) -> tuple[float, float]:
    """Return the extreme means of *shares*; *ends*: over the intervals of the weights."""
    choices = [(weight.lower, weight.upper) if ends else (weight.value,) for weight in weights]
    means = [
        sum(weight * share for weight, share in zip(chosen, shares, strict=True)) / sum(chosen)
        for chosen in product(*choices)
        if sum(chosen)
    ]
    return min(means, default=0.0), max(means, default=0.0)


def group_spans(
    table: NodeTable, nodes: Indexes, layout: GroupLayout, needs: GangRequirements
) -> GroupSpans:
    """Return the spans of the groups of *nodes* in rank order."""
    members = _members(layout, nodes.size)
    given = {
        TENSOR: needs.tensor_traffic,
        PIPELINE: needs.pipeline_traffic,
        DATA: needs.data_traffic,
    }
    weights = _weights(list(members), given)
    values = list(weights.values())
    total = sum(weight.value for weight in values)
    shares: list[tuple[float, float, float]] = []
    counts: dict[str, list[tuple[int, int]]] = {kind: [] for kind in members}
    for ids in table.tier_ids[:, nodes].astype(np.int64):
        domains = np.where(ids < 0, -2 - np.arange(ids.size), ids)
        if ids[0] >= 0 and (ids == ids[0]).all():
            shares.append((0.0, 0.0, 0.0))
            for kind_counts in counts.values():
                kind_counts.append((0, 0))
            continue
        lower, upper = [], []
        for kind, (places, repeats) in members.items():
            crossing, crosses, may = _crossing(kind, domains[places])
            lower.append(float(crossing[0].mean()))
            upper.append(float(crossing[1].mean()))
            counts[kind].append((int(crosses.sum()) * repeats, int(may.sum()) * repeats))
        middle = [0.5 * (weight + other) for weight, other in zip(lower, upper, strict=True)]
        lowest, highest = _mixed(values, lower, ends=True)[0], _mixed(values, upper, ends=True)[1]
        value = _mixed(values, middle, ends=False)[0]
        shares.append((value, min(lowest, value), max(highest, value)))
    kinds = tuple(
        GroupTraffic(
            kind,
            places.shape[1] if kind != TENSOR else layout.tensor,
            len(places) * repeats,
            _share(weights[kind], values, total),
            tuple(crosses for crosses, _ in counts[kind]),
            tuple(may for _, may in counts[kind]),
        )
        for kind, (places, repeats) in members.items()
    )
    return GroupSpans(layout, kinds, tuple(shares))


def _share(weight: Quantity, weights: Sequence[Quantity], total: float) -> Quantity:
    """Return a weight as a share of all."""
    if weight.source is QuantitySource.DECLARED:
        return declared(weight.value / max(total, 1e-300), "traffic of the request")
    others = [other for other in weights if other is not weight]
    low = weight.lower / (weight.lower + sum(other.upper for other in others))
    high = weight.upper / (weight.upper + sum(other.lower for other in others))
    value = weight.value / total
    return assumed(value, min(low, value), max(high, value), "assumed for training in general")


def in_group_order(
    table: NodeTable, nodes: Indexes, layout: GroupLayout, needs: GangRequirements, costs: Floats
) -> tuple[Indexes, GroupSpans]:
    """Return *nodes* in the cheapest rank order of their groups, with the groups' spans.

    *costs*: relative cost of crossing each priced tier. Segments stay whole.
    """
    orders = [
        order
        for order in _orders(table, nodes, layout, needs.segment_nodes)
        if _keeps_segments(table, order[0], needs)
    ]
    best: tuple[float, Indexes, GroupSpans] | None = None
    for order, together in orders or [(nodes, 1)]:
        spans = replace(group_spans(table, order, layout, needs), stages_together=together)
        by_tier = zip(spans.shares, costs, strict=True)
        cost = float(sum(share[0] * cost_of_tier for share, cost_of_tier in by_tier))
        if best is None or cost < best[0] - 1e-12:
            best = cost, order, spans
        if cost == 0.0:
            break
    assert best is not None
    return best[1], best[2]


def _orders(
    table: NodeTable, nodes: Indexes, layout: GroupLayout, segment_nodes: int
) -> Iterator[tuple[Indexes, int]]:
    """Yield rank orders with the number of adjacent pipeline stages. Segments stay whole."""
    unit, stages, segment = layout.unit_nodes, layout.pipeline, max(segment_nodes, 1)
    if not unit or max(unit, segment) % min(unit, segment):
        return
    units = _bundled(table, nodes.reshape(-1, segment), max(unit, segment) // segment)
    unit = max(unit, segment)
    if units.shape[0] % stages:
        yield units.reshape(-1), 1
        return
    divisors = [count for count in range(1, stages + 1) if stages % count == 0]
    for together in (*divisors[: ORDERS_MAX - 1], *divisors[ORDERS_MAX - 1 :][-1:]):
        # Nodes are adjacent by block of stages, then by member of the data groups, then by stage.
        placed = _bundled(table, units, together).reshape(stages // together, -1, together, unit)
        yield placed.transpose(0, 2, 1, 3).reshape(-1), together


def _bundled(table: NodeTable, rows: Indexes, count: int) -> Indexes:
    """Return *rows* of nodes in bundles of *count*, each in as narrow a domain as possible."""
    if count == 1:
        return rows
    bundles: list[Indexes] = []
    left = np.arange(rows.shape[0])
    for level in range(len(PRICED_TIERS) - 1, -1, -1):
        ids = table.tier_ids[level][rows[left, 0]]
        by_domain = np.argsort(ids, kind="stable")
        ordered = ids[by_domain]
        starts = np.searchsorted(ordered, ordered)  # start of each row's domain
        sizes = np.searchsorted(ordered, ordered, side="right") - starts
        whole = (ordered >= 0) & (np.arange(ordered.size) - starts < sizes // count * count)
        bundles.append(left[by_domain[whole]].reshape(-1, count))
        taken = np.zeros(left.size, dtype=bool)
        taken[by_domain[whole]] = True
        left = left[~taken]
    bundled = np.concatenate((*bundles, left.reshape(-1, count)))
    bundled = bundled[np.argsort(bundled[:, 0], kind="stable")]
    return np.asarray(rows[bundled].reshape(bundled.shape[0], -1))


def _keeps_segments(table: NodeTable, nodes: Indexes, needs: GangRequirements) -> bool:
    if needs.segment_nodes <= 1 or needs.segment_tier is None:
        return True
    ids = table.facts.domains.ids[needs.segment_tier.row][nodes].reshape(-1, needs.segment_nodes)
    return bool((ids == ids[:, :1]).all())


def whole_groups(layout: GroupLayout, needs: GangRequirements) -> list[tuple[int, Tier]]:
    """Return sizes of tensor groups and pipelines of several nodes, with their best tiers."""
    unit = layout.unit_nodes
    wholes: list[tuple[int, Tier]] = []
    if unit > 1:
        wholes.append((unit, Tier.NVLINK_DOMAIN))
    pipeline = unit * layout.pipeline
    if (
        unit
        and layout.pipeline > 1
        and needs.nodes % pipeline == 0
        and pipeline <= SEGMENT_NODES_MAX
    ):
        wholes.append((pipeline, Tier.LEAF))
    return wholes


def regrouped(needs: GangRequirements, gpus: int) -> GangRequirements:
    """Return *needs* for a gang of *gpus* GPUs, without groups that do not add up to it."""
    if needs.groups_make_up(gpus):
        return needs
    fewer = replace(needs, data_parallel=0)
    if fewer.groups_make_up(gpus):
        return fewer
    return replace(fewer, tensor_parallel=0, pipeline_parallel=0)
