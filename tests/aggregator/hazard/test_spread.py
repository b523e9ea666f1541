"""The interval of a hazard: measured by differences of hosts, assumed where little is known."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.aggregator.arrays import Floats
from gangline.aggregator.hazard.events import FaultTable
from gangline.aggregator.hazard.history import ALL, units_of
from gangline.aggregator.hazard.model import SPREAD_ASSUMED, SPREAD_MAX
from gangline.aggregator.hazard.spread import VARIANCE_ASSUMED, factor_of, spread_of

DAYS = 196
REPAIR_DAYS = 0.3


def fleet(hazards_per_day: Floats, seed: int, days: int = DAYS) -> FaultTable:
    """Return the faults of hosts with these hazards: nodes x days, or one column for all days."""
    source = np.random.default_rng(seed)
    hazards = np.broadcast_to(hazards_per_day, (len(hazards_per_day), days))
    node, day = np.nonzero(source.random(hazards.shape) < -np.expm1(-hazards))
    start = day + source.uniform(0.0, 0.6, len(day))
    order = np.argsort(start)
    node, start = node[order], start[order]
    names = tuple(f"node-{number}" for number in range(len(hazards)))
    hardware = np.ones(len(node), dtype=bool)
    return FaultTable(names, node, start, start + REPAIR_DAYS, hardware, float(days))


def spread(faults: FaultTable) -> float:
    return spread_of(units_of(faults, 1), ALL)


@pytest.mark.parametrize("sigma", [0.05, 0.3, 0.7, 1.0, 1.5])
def test_the_factor_holds_nine_of_ten_of_a_lognormal(sigma: float) -> None:
    """At a factor of five, 1.645 deviations about the mean instead of the median held 86 %."""
    drawn = np.exp(np.random.default_rng(1).normal(-(sigma**2) / 2, sigma, 200_000))
    factor = factor_of(sigma)
    assert ((drawn >= 1 / factor) & (drawn <= factor)).mean() == pytest.approx(0.9, abs=0.005)
    assert factor_of(float(np.sqrt(np.log1p(VARIANCE_ASSUMED)))) == pytest.approx(SPREAD_ASSUMED)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("seed", [1, 2])
def test_nine_hosts_of_ten_are_within_it(sigma: float, seed: int) -> None:
    """A 90 % interval with a third of the hosts is useless, and so is a tenfold interval.

    It is about a mean: most hosts outside are better than its lower end.
    """
    source = np.random.default_rng(100 + seed)
    own = 0.01 * np.exp(sigma * source.normal(size=600) - sigma**2 / 2)
    factor = spread(fleet(own[:, None], seed))
    beyond = own / own.mean()
    assert (beyond > factor).mean() <= 0.05
    assert (beyond < 1.0 / factor).mean() <= (0.2 if sigma <= 1.0 else 0.3)
    assert factor <= 1.4 * factor_of(max(sigma, 0.05)) + 0.4


def test_a_level_that_moves_for_all_makes_it_wider() -> None:
    """If a fleet fails twice as often for a month, next month's level is unknown."""
    calm = np.full((400, DAYS), 0.01)
    moved = calm * np.where(np.arange(DAYS) // 28 % 2, 2.0, 0.5)
    assert spread(fleet(calm, 1)) < 1.4
    assert spread(fleet(moved, 1)) > 1.8


def test_bursts_after_a_repair_are_none_of_a_hosts_own() -> None:
    """Equal hosts that fail twice more at once, then stay up for months, do not differ."""
    first = fleet(np.full((600, 1), 0.003), 1)
    again = FaultTable(
        first.nodes,
        np.repeat(first.node, 3),
        (first.start[:, None] + [0.0, 1.0, 2.0]).ravel(),
        (first.end[:, None] + [0.0, 1.0, 2.0]).ravel(),
        np.repeat(first.hardware, 3),
        first.end_days,
    )
    assert spread(again) < 2.5
    lemons = np.where(np.arange(600) % 20 == 0, 0.06, 0.003)
    assert spread(fleet(lemons[:, None], 1)) > 3.0


def test_with_little_to_go_by_it_is_what_was_assumed() -> None:
    """A few faults show nothing about differences of hosts: a narrow interval would be wrong."""
    few = fleet(np.full((100, 1), 0.003), 3, days=60)
    assert 10 < len(few.node) < 40
    assert spread(few) == pytest.approx(SPREAD_ASSUMED, rel=0.35)


def test_it_has_an_end() -> None:
    """One host has nearly all faults: the factor stays below a silent host's factor."""
    hazards = np.full((2000, 1), 1e-5)
    hazards[0] = 2.0
    assert spread(fleet(hazards, 1)) == pytest.approx(SPREAD_MAX)
