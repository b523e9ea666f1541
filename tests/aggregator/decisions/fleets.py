"""Small fleets for plans, set by hand, and a checker of plans written from the promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import exp, isnan, nan

import numpy as np

from gangline.aggregator.decisions import price as prices
from gangline.aggregator.decisions import relaxations as blockers
from gangline.aggregator.decisions.node_search import Candidates
from gangline.aggregator.decisions.node_table import NodeTable, node_table
from gangline.aggregator.decisions.planner import members_of
from gangline.aggregator.decisions.requirements import NO_MEMORY, GangRequirements, Tier
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.scoring.node_facts import DOMAIN_FIELDS, NodeCosts, NodeDomains, NodeFacts
from gangline.aggregator.scoring.reported_factors import ReportedFactor, ReportedFactors
from gangline.aggregator.scoring.score_columns import Columns
from gangline.fingerprints.demand import SHARED_RESOURCES, HostSupply

#: Factors of a cluster whose leaves are slow to cross and whose restarts are quick.
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
    """A node of a test. Places are in the order of DOMAIN_FIELDS; "" is undeclared."""

    name: str
    hazard: float = 1.8e-4
    speed: float = 1.0
    state: HealthState = HealthState.HEALTHY
    gpus: int = 8
    places: tuple[str, ...] = ("",) * len(DOMAIN_FIELDS)
    rails: str = ""
    free: bool = True
    job: str = ""
    price: float = nan  # per GPU-hour, declared
    preemption: float = 0.0  # per hour, declared
    hbm_bytes: float = nan  # per GPU

    def place(self, tier: Tier) -> str:
        """Return the domain of *tier*."""
        return self.places[DOMAIN_FIELDS.index(tier.name.lower())]


def snapshot_of(nodes: Sequence[Node], degraded: str = "") -> Judgement:
    """Return a judgement of these nodes."""
    count = len(nodes)
    hazards = np.array([node.hazard for node in nodes])
    numbers: list[dict[str, int]] = [{} for _ in DOMAIN_FIELDS]
    ids = np.full((len(DOMAIN_FIELDS), count), -1, dtype=np.int32)
    rails: dict[str, int] = {}
    rail_ids = np.full(count, -1, dtype=np.int32)
    for index, node in enumerate(nodes):
        for row, domain in enumerate(node.places):
            if domain:
                ids[row, index] = numbers[row].setdefault(domain, len(numbers[row]))
        if node.rails:
            rail_ids[index] = rails.setdefault(node.rails, len(rails))
    facts = NodeFacts(
        NodeDomains(
            (1, count, 1),
            ids,
            tuple(tuple(domain_numbers) for domain_numbers in numbers),
            rail_ids,
            len(rails),
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
    supplies = HostSupply(
        np.full((count, len(SHARED_RESOURCES)), nan, dtype=np.float32),
        np.array([node.hbm_bytes for node in nodes], dtype=np.float32),
        gpu_models=tuple(f"GPU of {node.hbm_bytes / 1e9:.0f} GB" for node in nodes),
    )
    return Judgement(
        version=1, computed_ns=1_700_000_000_000_000_000, horizon_seconds=28800.0, hosts=(),
        degraded_reason=degraded, dictionary_version=7, names=tuple(node.name for node in nodes),
        columns=columns, facts=facts, component_speeds=np.ones((count, 7), dtype=np.float32),
        jobs={index: node.job for index, node in enumerate(nodes) if node.job}, supplies=supplies,
    )  # fmt: skip


def table_of(nodes: Sequence[Node]) -> tuple[NodeTable, Candidates]:
    """Return the planner's table of the nodes, and the free ones as candidates."""
    table = node_table(snapshot_of(nodes))
    return table, Candidates(np.array([node.free for node in nodes], dtype=bool))


def violations(nodes: Sequence[Node], chosen: Sequence[int], needs: GangRequirements) -> list[str]:
    """Return the promises that a plan breaks: all or nothing, every invariant, no excluded node."""
    broken: list[str] = []
    members = [nodes[index] for index in chosen]
    if len(set(chosen)) != len(chosen):
        broken.append("a node is listed twice")
    if len(members) != needs.nodes:
        broken.append(f"{len(members)} nodes for {needs.nodes}")
    broken += [f"{member.name} is no candidate" for member in members if not member.free]
    out = HealthState.UNHEALTHY, HealthState.MAINTENANCE
    broken += [f"{member.name} is {member.state.name}" for member in members if member.state in out]
    broken += [
        f"{member.name} has {member.gpus} GPUs"
        for member in members
        if member.gpus < needs.gpus_per_node
    ]
    broken += [
        f"{member.name} has GPUs of {member.hbm_bytes:g} bytes"
        for member in members
        if member.hbm_bytes < needs.memory.hbm_bytes
    ]
    broken += [
        f"{member.name} is below the floor"
        for member in members
        if np.float32(exp(-8.0 * member.hazard)) < np.float32(needs.score_min)
    ]
    if needs.within is not None:
        domains = {member.place(needs.within) for member in members}
        if len(domains) != 1 or "" in domains:
            broken.append(f"not within one {needs.within.name}: {sorted(domains)}")
    if needs.same_rails and (
        len({member.rails for member in members}) != 1 or not members[0].rails
    ):
        broken.append("not of the same rails")
    if needs.segment_nodes > 1 and needs.segment_tier is not None:
        for index in range(0, len(members), needs.segment_nodes):
            segment = members[index : index + needs.segment_nodes]
            domains = {member.place(needs.segment_tier) for member in segment}
            if len(domains) != 1 or "" in domains:
                broken.append(
                    f"segment {index // needs.segment_nodes} is not whole: {sorted(domains)}"
                )
    if needs.spread_over is not None:
        counts = Counter(member.place(needs.spread_over) for member in members)
        if "" in counts or max(counts.values(), default=0) > needs.spread_nodes_max:
            broken.append(f"not spread: {dict(counts)}")
    if needs.survival_min:
        hazards = [
            float(np.float32(member.hazard)) + float(np.float32(member.preemption))
            for member in members
        ]
        shared = prices.SHARED_HAZARD_PER_HOUR[0] if needs.nodes > 1 else 0.0
        survival = exp(-(sum(hazards) + shared) * needs.hours)
        if survival < needs.survival_min:
            broken.append(f"survival {survival}")
    return broken


def holds_for_some_order(
    nodes: Sequence[Node], chosen: Iterable[int], needs: GangRequirements
) -> bool:
    """Return whether a rank order of *chosen* keeps all promises: segments need only counts."""
    tier = needs.segment_tier
    order = sorted(chosen, key=lambda index: nodes[index].place(tier)) if tier else list(chosen)
    return not violations(nodes, order, needs)


def cheapest(
    nodes: Sequence[Node], needs: GangRequirements, efficiency: float = 1.0
) -> float | None:
    """Return the price of the best of all subsets; None: nothing fits.

    *efficiency*: share of the lost GPU-hours that counts.
    """
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


def repaired(nodes: list[Node]) -> list[Node]:
    """Return the fleet after repairs: repaired nodes get the median hazard of the others."""
    out = HealthState.UNHEALTHY, HealthState.MAINTENANCE
    hazards = sorted(node.hazard for node in nodes if node.state not in out)
    middle = hazards[(len(hazards) - 1) // 2] if hazards else min(node.hazard for node in nodes)
    return [
        replace(node, state=HealthState.HEALTHY, hazard=middle) if node.state in out else node
        for node in nodes
    ]


def without(
    nodes: list[Node], needs: GangRequirements, constraints: Iterable[str]
) -> tuple[list[Node], GangRequirements]:
    """Return fleet and gang without these constraints, named as in messages."""
    for constraint in sorted(constraints, key=lambda name: name == blockers.NODES):
        if constraint == blockers.CANDIDATES:
            nodes = [replace(node, free=True) for node in nodes]
        elif constraint == blockers.STATES:
            nodes = repaired(nodes)
        elif constraint == blockers.NODES:
            needs = replace(needs, nodes=needs.segment_nodes)
        elif constraint == blockers.GPUS:
            needs = replace(needs, gpus_per_node=1)
        elif constraint == blockers.FLOOR:
            needs = replace(needs, score_min=0.0)
        elif constraint == blockers.SURVIVAL:
            needs = replace(needs, survival_min=0.0)
        elif constraint == blockers.WITHIN:
            needs = replace(needs, within=None)
        elif constraint == blockers.SEGMENTS:
            needs = replace(needs, segment_nodes=1, segment_tier=None)
        elif constraint == blockers.RAILS:
            needs = replace(needs, same_rails=False)
        elif constraint == blockers.MEMORY:
            needs = replace(needs, memory=NO_MEMORY)
        else:
            assert constraint == blockers.SPREAD
            needs = replace(needs, spread_over=None, spread_nodes_max=0)
    return nodes, needs
