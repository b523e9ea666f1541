"""Small fleets for plans, set by hand, and a checker of plans that is written from the promises alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, isnan, nan

import numpy as np

from gangline.aggregator.decisions import price as prices
from gangline.aggregator.decisions import relaxations as blockers
from gangline.aggregator.decisions.node_table import NodeTable, node_table
from gangline.aggregator.decisions.planner import Candidates, members_of
from gangline.aggregator.decisions.requirements import GangRequirements, Tier
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.scoring.node_facts import DOMAIN_FIELDS, NodeCosts, NodeDomains, NodeFacts
from gangline.aggregator.scoring.reported_factors import ReportedFactor, ReportedFactors
from gangline.aggregator.scoring.score_columns import Columns

#: Of a cluster whose leaves are slow to cross and whose restarts are quick.
REPORTS = ReportedFactors(
    {
        "detect": ReportedFactor(0.2, 0.1, 0.4, 9),
        "restart": ReportedFactor(0.02, 0.01, 0.04, 9),
        "act.free_node": ReportedFactor(0.5, 0.2, 1.0, 9),
        "act.restart": ReportedFactor(0.01, 0.005, 0.02, 9),
        "topology.leaf": ReportedFactor(2.0, 1.0, 3.0, 9),
        "topology.spine": ReportedFactor(0.0, 0.0, 0.1, 9),
    }
)


@dataclass(frozen=True)
class Node:
    """One node as a test sets it. Places by DOMAIN_FIELDS; "" where nobody said."""

    name: str
    hazard: float = 1.8e-4
    speed: float = 1.0
    state: HealthState = HealthState.HEALTHY
    gpus: int = 8
    places: tuple[str, ...] = ("",) * len(DOMAIN_FIELDS)
    rails: str = ""
    free: bool = True
    job: str = ""
    price: float = nan  # of a GPU-hour, declared
    preemption: float = 0.0  # per hour, declared

    def place(self, tier: Tier) -> str:
        """Return its domain of *tier*."""
        return self.places[DOMAIN_FIELDS.index(tier.name.lower())]


def snapshot_of(nodes: Sequence[Node], degraded: str = "") -> Judgement:
    """Return a judgement that has these nodes."""
    count = len(nodes)
    hazards = np.array([node.hazard for node in nodes])
    numbers: list[dict[str, int]] = [{} for _ in DOMAIN_FIELDS]
    ids = np.full((len(DOMAIN_FIELDS), count), -1, dtype=np.int32)
    rails: dict[str, int] = {}
    rail_ids = np.full(count, -1, dtype=np.int32)
    for at, node in enumerate(nodes):
        for row, domain in enumerate(node.places):
            if domain:
                ids[row, at] = numbers[row].setdefault(domain, len(numbers[row]))
        if node.rails:
            rail_ids[at] = rails.setdefault(node.rails, len(rails))
    facts = NodeFacts(
        NodeDomains(
            (1, count, 1), ids, tuple(tuple(each) for each in numbers), rail_ids, len(rails)
        ),
        np.array([node.gpus for node in nodes], dtype=np.int32),
        np.full(count, 3.0, dtype=np.float32),
        np.full(count, 3.0, dtype=np.float32),
        np.full(count, 0.02, dtype=np.float32),
        np.ones(count, dtype=bool),
        costs=NodeCosts(
            price=np.array([node.price for node in nodes], dtype=np.float32),
            preemption=np.array([node.preemption for node in nodes], dtype=np.float32),
        ),
    )
    columns = Columns(
        score=np.exp(-8.0 * hazards).astype(np.float32),
        hazard_per_hour=hazards.astype(np.float32),
        relative_speed=np.array([node.speed for node in nodes], dtype=np.float32),
        state=np.array([node.state for node in nodes], dtype=np.uint8),
        bucket=np.zeros(count, dtype=np.uint8),
        reason=np.zeros(count, dtype=np.uint8),
        ended=np.zeros(count, dtype=bool),
        simulated=np.zeros(count, dtype=bool),
    )
    return Judgement(
        version=1, computed_ns=1_700_000_000_000_000_000, horizon_seconds=28800.0, hosts=(),
        degraded_reason=degraded, dictionary_version=7, names=tuple(node.name for node in nodes),
        columns=columns, facts=facts, component_speeds=np.ones((count, 7), dtype=np.float32),
        jobs={at: node.job for at, node in enumerate(nodes) if node.job},
    )  # fmt: skip


def table_of(nodes: Sequence[Node]) -> tuple[NodeTable, Candidates]:
    """Return the nodes as the planner takes them, and those that are free."""
    table = node_table(snapshot_of(nodes))
    return table, Candidates(np.array([node.free for node in nodes], dtype=bool))


# ----------------------------------------------------------------------
# The checker.


def violations(nodes: Sequence[Node], chosen: Sequence[int], needs: GangRequirements) -> list[str]:
    """Return what of the promises a plan breaks, in words: all or nothing, every invariant, nobody who is out."""
    found: list[str] = []
    members = [nodes[at] for at in chosen]
    if len(set(chosen)) != len(chosen):
        found.append("a node is listed twice")
    if len(members) != needs.nodes:
        found.append(f"{len(members)} nodes for {needs.nodes}")
    found += [f"{one.name} is no candidate" for one in members if not one.free]
    out = HealthState.UNHEALTHY, HealthState.MAINTENANCE
    found += [f"{one.name} is {one.state.name}" for one in members if one.state in out]
    found += [
        f"{one.name} has {one.gpus} GPUs" for one in members if one.gpus < needs.gpus_per_node
    ]
    found += [
        f"{one.name} is below the floor"
        for one in members
        if np.float32(exp(-8.0 * one.hazard)) < np.float32(needs.score_min)
    ]
    if needs.within is not None:
        domains = {one.place(needs.within) for one in members}
        if len(domains) != 1 or "" in domains:
            found.append(f"not within one {needs.within.name}: {sorted(domains)}")
    if needs.same_rails and (len({one.rails for one in members}) != 1 or not members[0].rails):
        found.append("not of the same rails")
    if needs.segment_nodes > 1 and needs.segment_tier is not None:
        for at in range(0, len(members), needs.segment_nodes):
            segment = members[at : at + needs.segment_nodes]
            domains = {one.place(needs.segment_tier) for one in segment}
            if len(domains) != 1 or "" in domains:
                found.append(f"segment {at // needs.segment_nodes} is not whole: {sorted(domains)}")
    if needs.spread_over is not None:
        counts = Counter(one.place(needs.spread_over) for one in members)
        if "" in counts or max(counts.values(), default=0) > needs.spread_nodes_max:
            found.append(f"not spread: {dict(counts)}")
    if needs.survival_min:
        hazards = [
            float(np.float32(one.hazard)) + float(np.float32(one.preemption)) for one in members
        ]
        shared = prices.SHARED_HAZARD_PER_HOUR[0] if needs.nodes > 1 else 0.0
        survival = exp(-(sum(hazards) + shared) * needs.hours)
        if survival < needs.survival_min:
            found.append(f"survival {survival}")
    return found


def holds_for_some_order(
    nodes: Sequence[Node], chosen: Iterable[int], needs: GangRequirements
) -> bool:
    """Whether some rank order of *chosen* breaks nothing: whole segments are a matter of counts."""
    tier = needs.segment_tier
    order = sorted(chosen, key=lambda at: nodes[at].place(tier)) if tier else list(chosen)
    return not violations(nodes, order, needs)


def cheapest(
    nodes: Sequence[Node], needs: GangRequirements, efficiency: float = 1.0
) -> float | None:
    """Return the price of the best plan, by trying all subsets; None: nothing fits. *efficiency*: the share of lost GPU-hours that counts."""
    table, _ = table_of(nodes)
    lost = prices.lost_time(needs, needs.nodes * (needs.gpus_per_node or 8))
    best: float | None = None
    for subset in combinations(range(len(nodes)), needs.nodes):
        if holds_for_some_order(nodes, subset, needs):
            members = members_of(table, np.array(subset))
            price = prices.price(members, lost, needs.hours, needs.preferences)
            cost = efficiency * (price.total.value - price.beside.value) + price.beside.value
            assert not isnan(cost)
            best = cost if best is None else min(best, cost)
    return best


# ----------------------------------------------------------------------
# Requests with constraints removed, as the blockers' names have it.


def repaired(nodes: list[Node]) -> list[Node]:
    """Return the fleet after repairs: those that were out are as the middle one of the others."""
    out = HealthState.UNHEALTHY, HealthState.MAINTENANCE
    others = sorted(node.hazard for node in nodes if node.state not in out)
    middle = others[(len(others) - 1) // 2] if others else min(node.hazard for node in nodes)
    return [
        replace(node, state=HealthState.HEALTHY, hazard=middle) if node.state in out else node
        for node in nodes
    ]


def without(
    nodes: list[Node], needs: GangRequirements, constraints: Iterable[str]
) -> tuple[list[Node], GangRequirements]:
    """Return fleet and gang with these constraints removed, as the messages name them."""
    for one in sorted(constraints, key=lambda each: each == blockers.NODES):
        if one == blockers.CANDIDATES:
            nodes = [replace(node, free=True) for node in nodes]
        elif one == blockers.STATES:
            nodes = repaired(nodes)
        elif one == blockers.NODES:
            needs = replace(needs, nodes=needs.segment_nodes)
        elif one == blockers.GPUS:
            needs = replace(needs, gpus_per_node=1)
        elif one == blockers.FLOOR:
            needs = replace(needs, score_min=0.0)
        elif one == blockers.SURVIVAL:
            needs = replace(needs, survival_min=0.0)
        elif one == blockers.WITHIN:
            needs = replace(needs, within=None)
        elif one == blockers.SEGMENTS:
            needs = replace(needs, segment_nodes=1, segment_tier=None)
        elif one == blockers.RAILS:
            needs = replace(needs, same_rails=False)
        else:
            assert one == blockers.SPREAD
            needs = replace(needs, spread_over=None, spread_nodes_max=0)
    return nodes, needs
