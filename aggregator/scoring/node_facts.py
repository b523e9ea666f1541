"""Inputs of decisions for each node besides its score: location, GPUs, and certainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

import numpy as np
from numpy.typing import NDArray

from ...fingerprints.sensitivity import SPEED_MIN
from ..arrays import Codes, Flags
from ..declared.host_placement import NOWHERE
from ..declared.model import Declared
from ..model import HealthState
from .results import Hosts
from .score import SPREAD_SILENT, Z90

Singles = NDArray[np.float32]
#: Fields of a host's place, the widest first. Crossing any of the first five has a price.
DOMAIN_FIELDS = (
    "core", "spine", "leaf", "rack", "nvlink_domain", "power_domain", "cooling_domain",
)  # fmt: skip

#: Time constant of the mean speed, and maximum time counted between two judgements.
SPEED_SECONDS, JUDGED_SECONDS_MAX = 3600.0, 10.0
#: Window of the variance of a speed, in seconds of computing.
VARIANCE_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class NodeDomains:
    """Domains of all nodes, numbered in order of appearance; -1: not declared."""

    key: tuple[int, int, int] = (0, 0, 0)
    ids: Codes = field(
        default_factory=lambda: np.zeros((len(DOMAIN_FIELDS), 0), dtype=np.int32)
    )  # by DOMAIN_FIELDS and node index
    names: tuple[tuple[str, ...], ...] = ((),) * len(DOMAIN_FIELDS)
    rails: Codes = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    rails_count: int = 0


@dataclass(frozen=True, slots=True)
class NodeCosts:
    """Declared costs of all nodes. Rebuilt for a new declaration, place or node."""

    key: tuple[int, int, int, int] = (0, 0, 0, 0)
    #: Price of a GPU-hour in the operators' currency; NaN if not declared.
    price: Singles = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    #: Preemptions per hour; 0 if the node is not declared as spot capacity.
    preemption: Singles = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


def _no_speeds() -> Singles:
    return np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class SpeedVariation:
    """Mean and variance over time of each node's relative speed, and the seconds counted."""

    mean: Singles = field(default_factory=_no_speeds)
    variance: Singles = field(default_factory=_no_speeds)
    seconds: Singles = field(default_factory=_no_speeds)

    def updated(self, now: Singles, seconds: float) -> SpeedVariation:
        """Return the variation after the speeds *now* (NaN: not measured), *seconds* later."""
        mean, variance, total = (
            np.concatenate((known[: now.size], np.zeros(max(now.size - known.size, 0), np.float32)))
            for known in (self.mean, self.variance, self.seconds)
        )
        measured = np.isfinite(now)
        elapsed = min(max(seconds, 0.0), JUDGED_SECONDS_MAX)
        is_new = measured & (total == 0.0)
        mean[is_new] = now[is_new]
        total[measured] = np.minimum(total[measured] + max(elapsed, 1e-3), VARIANCE_SECONDS)
        weight = elapsed / total[measured]
        change = now[measured] - mean[measured]
        mean[measured] += weight * change
        variance[measured] = (1.0 - weight) * (variance[measured] + weight * change * change)
        return SpeedVariation(mean, variance, total)

    @property
    def within(self) -> Singles:
        """The variance; NaN for a node that was measured for less than SPEED_SECONDS."""
        return np.where(self.seconds >= SPEED_SECONDS, self.variance, np.nan).astype(np.float32)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Columns by node index. Immutable."""

    domains: NodeDomains = field(default_factory=NodeDomains)
    gpus: Codes = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    #: Factors down and up to the 90 % interval of the hazard.
    hazard_down: Singles = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    hazard_up: Singles = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    #: Half of the 90 % interval of the relative speed; NaN if no speed is measured now.
    speed_reach: Singles = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    is_reporting: Flags = field(default_factory=lambda: np.zeros(0, dtype=bool))
    #: Relative speed when last computing, averaged over about an hour; NaN: never.
    speed_before: Singles = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    #: Speed at a normal clock by the last gang that could measure it; 1: not slow.
    pace_before: Singles = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    costs: NodeCosts = field(default_factory=NodeCosts)
    variation: SpeedVariation = field(default_factory=SpeedVariation)


@dataclass(frozen=True, slots=True)
class GangVerdicts:
    """Current verdicts of gangs: slow hosts, with their speed, and hosts that keep pace."""

    slow: Mapping[int, float] = field(default_factory=dict)
    alike: frozenset[int] = frozenset()


def node_domains(
    declared: Declared, names: Sequence[str], epoch: int, previous: NodeDomains | None = None
) -> NodeDomains:
    """Return the domains of the nodes *names*; *previous* if nothing changed since."""
    key = epoch, len(names), declared.places_version
    if previous is not None and previous.key == key:
        return previous
    numbers: list[dict[str, int]] = [{} for _ in DOMAIN_FIELDS]
    rails: dict[tuple[str, ...], int] = {}
    ids = np.full((len(DOMAIN_FIELDS), len(names)), -1, dtype=np.int32)
    rail_ids = np.full(len(names), -1, dtype=np.int32)
    for node, name in enumerate(names):
        place = declared.places.get(name, NOWHERE)
        if place is NOWHERE:
            continue
        for row, attribute in enumerate(DOMAIN_FIELDS):
            if domain := getattr(place, attribute):
                ids[row, node] = numbers[row].setdefault(domain, len(numbers[row]))
        if place.rails:
            rail_ids[node] = rails.setdefault(place.rails, len(rails))
    return NodeDomains(key, ids, tuple(tuple(d) for d in numbers), rail_ids, len(rails))


def node_costs(
    declared: Declared, names: Sequence[str], epoch: int, previous: NodeCosts | None = None
) -> NodeCosts:
    """Return the declared costs of the nodes *names*; *previous* if nothing changed since."""
    key = epoch, len(names), declared.number, declared.places_version
    if previous is not None and previous.key == key:
        return previous
    if not declared.node_costs:
        nothing = np.full(len(names), np.nan, dtype=np.float32)
        return NodeCosts(key, nothing, np.zeros(len(names), dtype=np.float32))
    costs = np.array([declared.cost(name) for name in names], dtype=np.float32).reshape(-1, 2)
    return NodeCosts(key, costs[:, 0].copy(), np.nan_to_num(costs[:, 1]))


def node_facts(
    hosts: Hosts,
    domains: NodeDomains,
    previous: NodeFacts | None = None,
    seconds: float = 0.0,
    costs: NodeCosts | None = None,
    verdicts: GangVerdicts = GangVerdicts(),
) -> NodeFacts:
    """Return the facts of all *hosts*. *previous*: facts of the same nodes *seconds* ago."""
    inputs = hosts.inputs
    down = np.where(inputs.is_reporting, inputs.spread, SPREAD_SILENT).astype(np.float32)
    up = down.copy()
    for node, host in hosts.computed_scores.items():
        low, high = host.hazard_interval
        # False for a score from before a restart
        if host.hazard_per_hour > 0.0 and low > 0.0 and high > 0.0:
            down[node], up[node] = host.hazard_per_hour / low, high / host.hazard_per_hour
        else:
            down[node] = up[node] = SPREAD_SILENT
    measured = np.isfinite(inputs.relative_speed) & inputs.is_reporting
    reach = np.where(measured, Z90 * inputs.speed_error, np.nan).astype(np.float32)
    now = np.where(measured, inputs.relative_speed, np.nan).astype(np.float32)
    before = _speed_before(now, previous, seconds)
    variation = previous.variation if previous is not None else SpeedVariation()
    return NodeFacts(
        domains, inputs.gpus.astype(np.int32), down, up, reach, inputs.is_reporting.copy(), before,
        _pace_before(hosts, previous, verdicts), costs or NodeCosts(), variation.updated(now, seconds),
    )  # fmt: skip


def _pace_before(hosts: Hosts, previous: NodeFacts | None, verdicts: GangVerdicts) -> Singles:
    """Return the last gang verdict on each host; 1 in maintenance, which may repair it."""
    pace = np.ones(len(hosts), dtype=np.float32)
    if previous is not None:
        known = previous.pace_before[: pace.size]
        pace[: known.size] = known
    pace[[host for host in verdicts.alike if host < pace.size]] = 1.0
    for host, speed in verdicts.slow.items():
        pace[host] = max(speed, SPEED_MIN)
    repaired = [
        host
        for host, score in hosts.computed_scores.items()
        if score.state is HealthState.MAINTENANCE
    ]
    pace[repaired] = 1.0
    return pace


def _speed_before(now: Singles, previous: NodeFacts | None, seconds: float) -> Singles:
    """Return the average that includes *now* (NaN: not measured)."""
    before = np.full(now.size, np.nan, dtype=np.float32)
    if previous is not None:
        known = previous.speed_before[: now.size]
        before[: known.size] = known
    # A gap in judging is not measured time.
    weight = 1.0 - exp(-min(max(seconds, 0.0), JUDGED_SECONDS_MAX) / SPEED_SECONDS)
    averaged = np.where(np.isfinite(before), before + np.float32(weight) * (now - before), now)
    return np.where(np.isfinite(now), averaged, before).astype(np.float32)
