"""The price: the effect of each factor, its source, and the interval of unknown values."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.decisions.planner import poisson_quantile
from gangline.aggregator.decisions.price import LostTime, Members, crossing_shares, lost_time, price
from gangline.aggregator.decisions.quantity import Quantity, QuantitySource
from gangline.aggregator.decisions.requirements import GangRequirements, Tier
from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared.model import NOTHING
from gangline.aggregator.scoring.node_facts import DOMAIN_FIELDS, node_domains
from tests.worlds import World

KNOWN = GangRequirements(
    4, hours=100.0, detect_hours=0.1, decide_hours=0.1, restart_hours=0.3, checkpoint_interval_hours=1.0,
    checkpoint_write_hours=0.01, communication_share=0.0,
)  # fmt: skip


def members(
    hazard: float = 1e-3,
    speed: float = 1.0,
    domains: tuple[int, ...] = (1,) * 5,
    unknown: tuple[int, ...] = (0,) * 5,
) -> Members:
    ones = np.ones(4)
    return Members(
        ones * hazard, ones * hazard / 3, ones * hazard * 3, np.array([speed, 1.0, 1.0, 1.0]),
        ones * speed * 0.9, ones * 1.1, domains, unknown,
    )  # fmt: skip


def lost(needs: GangRequirements = KNOWN) -> LostTime:
    return lost_time(needs, 32)


def test_a_price_by_hand() -> None:
    """32 GPUs, 100 h, slowest 0.9; 0.004/h and 0.002/h of hazard, 1 h each; 1 % of writes."""
    result = price(members(speed=0.9), lost(), 100.0)
    share = 1.0 - 0.01 - (0.004 + 0.002) * 1.0
    assert result.goodput.value == pytest.approx(0.9 * share)
    assert result.total.value == pytest.approx(3200 * (1.0 - 0.9 * share))
    parts = {part.name: part.gpu_hours.value for part in result.parts}
    assert parts["slowest member"] == pytest.approx(320.0)
    assert parts["interruptions by members"] == pytest.approx(3200 * 0.9 * 0.004)
    assert result.survival.value == pytest.approx(exp(-0.006 * 100))


MORE = [
    ("a hazard", members(hazard=2e-3), lost()),
    ("a slow member", members(speed=0.95), lost()),
    ("leaves", members(domains=(1, 1, 2, 1, 1)), lost(replace(KNOWN, communication_share=0.3))),
    ("a place that nobody knows", members(domains=(1, 1, 0, 1, 1), unknown=(0, 0, 4, 0, 0)),
     lost(replace(KNOWN, communication_share=0.3))),
    ("a slow restart", members(), lost(replace(KNOWN, restart_hours=1.0))),
    ("writes", members(), lost(replace(KNOWN, checkpoint_write_hours=0.05))),
]  # fmt: skip


@pytest.mark.parametrize(("_what", "of", "time"), MORE, ids=[one[0] for one in MORE])
def test_each_costs(_what: str, of: Members, time: LostTime) -> None:
    """A worse value costs more."""
    assert price(of, time, 100.0).total.value > price(members(), lost(), 100.0).total.value


def test_what_nobody_said_is_assumed_and_wide() -> None:
    """A request without restart times gets a response that marks them as assumed."""
    declared_price = price(members(), lost(), 100.0)
    assumed_price = price(members(), lost_time(GangRequirements(4, hours=100.0), 32), 100.0)
    assert (
        assumed_price.total.upper - assumed_price.total.lower
        > declared_price.total.upper - declared_price.total.lower
    )
    assert assumed_price.total.source is QuantitySource.ASSUMED
    assert assumed_price.topology.source is QuantitySource.ASSUMED
    assert "assumed" in assumed_price.topology.evidence


@given(
    hazard=st.floats(0.0, 60.0),
    speed=st.floats(0.01, 1.0),
    domains=st.tuples(*[st.integers(0, 4)] * 5),
    share=st.floats(0.0, 1.0),
    hours=st.floats(0.1, 8760.0),
)
def test_parts_sum_and_intervals_hold_their_values(
    hazard: float, speed: float, domains: tuple[int, ...], share: float, hours: float
) -> None:
    """Holds even if more than all of the time would be lost."""
    members_of_gang = members(hazard, speed, domains, tuple(4 - item for item in domains))
    result = price(
        members_of_gang, lost(replace(KNOWN, communication_share=share)), hours, {Tier.LEAF: 2.0}
    )
    assert result.total.value == pytest.approx(sum(item.gpu_hours.value for item in result.parts))
    assert 0.0 <= result.goodput.value <= 1.0
    for item in (result.total, result.survival, result.speed, result.topology, result.goodput):
        assert item.lower <= item.value + 1e-6 and item.value <= item.upper + 1e-6


def test_shares_that_cross() -> None:
    """With even traffic among d domains 1 - 1/d crosses; unknown domains give none to all."""
    assert crossing_shares(1, 0) == (0.0, 0.0, 0.0)
    assert crossing_shares(4, 0) == (0.75, 0.75, 0.75)
    assert crossing_shares(0, 4) == (0.375, 0.0, 0.75)


def test_a_value_lies_within_its_interval() -> None:
    """An interval that excludes its own value is a bug."""
    with pytest.raises(ValueError, match="2 is not within 0 to 1"):
        Quantity(2, 0, 1, QuantitySource.ASSUMED)


@pytest.mark.parametrize(
    ("mean", "count"), [(0.0, 0), (0.05, 0), (0.06, 1), (1.0, 3), (10.0, 15), (1000.0, 1053)]
)
def test_spares_of_a_mean(mean: float, count: int) -> None:
    """The 95 % quantile of a Poisson distribution, by tables."""
    assert poisson_quantile(mean, 0.95) == pytest.approx(count, abs=1 if mean > 700 else 0)


def test_domains_are_those_that_were_declared_and_made_once() -> None:
    """Ten thousand places are read once when one changes, not with each judgement."""
    world = World(3, 1)
    places = {
        "h0": HostPlacement(rack="r1", leaf="l1", rails=("a", "b")),
        "h2": HostPlacement(rack="r1"),
    }
    world.fleet.declared = replace(NOTHING, places=places, places_version=1)
    domains = world.run(3).facts.domains
    rack, leaf = (domains.ids[DOMAIN_FIELDS.index(name)].tolist() for name in ("rack", "leaf"))
    assert (rack, leaf, domains.rails.tolist()) == ([0, -1, 0], [0, -1, -1], [0, -1, -1])
    assert world.run(1).facts.domains is domains
    declared = replace(world.fleet.declared, places_version=2)
    assert node_domains(declared, ("h0", "h1", "h2"), 7, domains) is not domains
