"""How placement in simulated fleets is measured: the truth is the world's, unlike the service's knowledge."""

from __future__ import annotations

import numpy as np
import pytest

from bench.quality.placement_simulated import (
    SLOW_AT_CLOCK,
    HostNumbers,
    SimulatedGain,
    base_table,
    fault_table,
    free_hosts,
    of_class,
    told_slow,
    true_rates,
    true_speeds,
    with_numbers,
)
from gangline.aggregator.decisions import planner
from gangline.aggregator.decisions.node_search import Candidates
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.simulator.incidents import DAY
from gangline.simulator.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return World("nvl72", 3, hosts=72)


def test_the_true_rates_are_those_at_which_faults_come(world: World) -> None:
    """An oracle of wrong rates is beaten by chance."""
    faults = fault_table(world, world.seconds)
    assert np.all(np.diff(faults.start) >= 0.0) and faults.end_days == pytest.approx(30.0)
    moments = np.arange(2.0, 29.0, 3.0) * DAY
    expected = np.mean([true_rates(world, now, 24.0).sum() for now in moments]) * 24.0 * 30.0
    assert 0.4 * faults.start.size < expected < 2.5 * faults.start.size


def test_true_speeds_have_what_stands_and_only_while_it_does(world: World) -> None:
    """A GPU that is hot for ten minutes hardly slows a day; a permanently slow GPU does."""
    schedule = world.schedule
    number = [class_.name for class_ in schedule.classes].index("slow_host")
    slow = np.unique(schedule.rows["host"][schedule.rows["cls"] == number])
    assert slow.size
    speeds = true_speeds(world, 10.0 * DAY, 24.0)
    assert np.median(speeds) == pytest.approx(1.0)
    assert speeds[slow].max() < 0.97
    assert (speeds > 0.0).all() and speeds.max() < 1.1


def test_a_slow_host_is_told_by_a_job_that_can(world: World) -> None:
    """A bound by observable facts must exclude unobservable ones."""
    now = 10.0 * DAY
    rows = world.schedule.rows[of_class(world, SLOW_AT_CLOCK)]
    slow = np.zeros(world.schedule.hosts, dtype=bool)
    slow[rows["host"]] = True
    ever, briefly = told_slow(world, [(0.0, now)]), told_slow(world, [(now, now + 60.0)])
    assert ever.any() and not ever[~slow].any()
    assert not briefly.any()  # a job takes two minutes to reveal it
    spans = [(now, now + 300.0)]
    seen = told_slow(world, spans)
    assert not seen[~told_slow(world, [(0.0, now + 300.0)])].any()
    for host in np.flatnonzero(seen).tolist():
        job = world.schedule.job_at(host, now + 150.0)
        assert job is not None and job.hosts.size >= 3
    known, unknown = (true_speeds(world, now, 24.0, hidden) for hidden in (None, slow))
    assert known[slow].max() < 0.97 and np.median(unknown[slow]) > 0.97


def test_free_hosts_are_up_and_the_oracle_takes_the_best_of_them(world: World) -> None:
    """A gang on a host in repair would gain an impossible speed."""
    now, source = 12.0 * DAY, np.random.default_rng(1)
    free = free_hosts(world, now, 36, source)
    assert np.unique(free).size == 36
    assert not any(world.schedule.is_away(host, now) for host in free.tolist())
    base = base_table(world)
    speeds = np.linspace(0.8, 1.0, len(base))
    none_slow = np.zeros(len(base), dtype=bool)
    flags = none_slow.copy()
    flags[free] = True
    placed = with_numbers(base, HostNumbers(np.full(len(base), 1e-4), speeds, none_slow))
    chosen = planner.plan(placed, Candidates(flags), GangRequirements(9, gpus_per_node=8))[0].nodes
    assert set(chosen.tolist()) <= set(free.tolist())
    blind = planner.plan(base, Candidates(flags), GangRequirements(9, gpus_per_node=8))[0].nodes
    assert speeds[chosen].min() >= speeds[blind].min()


def test_the_share_of_the_gain_is_against_the_blind_one() -> None:
    """0 equals the blind placement, 1 the oracle, and worse than blind is below zero."""
    gain = SimulatedGain("x", 8, 1, 100.0, 50.0, 42.0, 40.0, 55.0, 41.0, 44.0, 42.0)
    assert gain.share(gain.planned) == pytest.approx(0.8)
    assert gain.share(gain.control) == pytest.approx(-0.5)
