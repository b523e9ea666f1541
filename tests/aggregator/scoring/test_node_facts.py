"""The speed of a host without current readings is its last measured speed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gangline.aggregator.decisions.node_table import SPEED_IDLE, node_table
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.node_facts import (
    SPEED_SECONDS,
    GangVerdicts,
    NodeFacts,
    node_facts,
)
from gangline.aggregator.scoring.results import Hosts
from gangline.fingerprints.sensitivity import COMPUTE, WorkloadNeeds
from tests.aggregator.decisions.fleets import Node, snapshot_of
from tests.worlds import World, gpu_of

SLOW = 0.93


def idle(world: World) -> None:
    """End the job on the first host."""
    host = world.hosts[0]
    for gpu in range(8):
        host.set(
            "gpu_1s",
            gpu_of(host, gpu),
            utilization_ratio=0.0,
            power_watts=75.0,
            sm_clock_hertz=3.45e8,
            clock_event_reasons_flags=1,
        )
        host.grow("gpu_1s", gpu_of(host, gpu), energy_joules=75.0)


def test_a_slow_host_is_still_slow_when_it_idles() -> None:
    """A gang starts on idle hosts: the slow ones among them looked like any other."""
    world = World(6, spread=0.0)
    clock = 1.755e9
    for gpu in range(8):
        world.hosts[0].set("gpu_1s", gpu_of(world.hosts[0], gpu), sm_clock_hertz=SLOW * clock)
    before = world.run(30).facts.speed_before
    assert before[0] == pytest.approx(SLOW, abs=0.02) and before[1] == pytest.approx(1.0, abs=0.02)
    idle(world)
    snapshot = world.run(120)
    assert np.isnan(snapshot.facts.speed_reach[0])
    assert snapshot.facts.speed_before[0] == pytest.approx(float(before[0]), abs=0.01)
    table = node_table(snapshot)
    assert table.speed[0] == pytest.approx(float(snapshot.facts.speed_before[0]), abs=0.02)
    assert table.speed_lower[0] < table.speed[0] < table.speed_upper[0]


def test_what_never_computed_is_assumed_and_a_workload_feels_what_it_uses() -> None:
    """A slow clock does not matter for work that does not compute."""
    snapshot = snapshot_of([Node("a", speed=float("nan")), Node("b", speed=float("nan"))])
    facts = replace(
        snapshot.facts, speed_reach=np.full(2, np.nan, dtype=np.float32),
        speed_before=np.array([np.nan, SLOW], dtype=np.float32),
    )  # fmt: skip
    known = replace(snapshot, facts=facts)
    assert node_table(known).speed.tolist() == pytest.approx([SPEED_IDLE[0], SLOW])
    shares = [0.0] * 7
    needs = WorkloadNeeds(tuple(shares), tuple(shares))
    assert node_table(known, needs).speed[1] == pytest.approx(1.0)
    shares[COMPUTE] = 1.0
    needs = WorkloadNeeds(tuple(shares), tuple(shares))
    assert node_table(known, needs).speed[1] == pytest.approx(SLOW, abs=1e-6)
    assert SPEED_SECONDS == 3600.0


def test_whom_a_gang_waited_for_stays_slow_until_a_gang_says_otherwise() -> None:
    """Slow at a normal clock: an hour after its job ended, the next gang waited for it again."""
    snapshot = World(3).run(1)
    hosts, domains = snapshot.hosts, snapshot.facts.domains
    assert isinstance(hosts, Hosts)

    def after(previous: NodeFacts | None, verdicts: GangVerdicts) -> NodeFacts:
        return node_facts(hosts, domains, previous, 1.0, None, verdicts)

    waited = after(None, GangVerdicts(slow={1: 0.9}))
    silent = after(waited, GangVerdicts())
    assert silent.pace_before.tolist() == pytest.approx([1.0, 0.9, 1.0])
    assert after(silent, GangVerdicts(alike=frozenset({0}))).pace_before[1] == pytest.approx(0.9)
    assert after(silent, GangVerdicts(alike=frozenset({1}))).pace_before.tolist() == [1.0] * 3
    both = after(silent, GangVerdicts(slow={1: 0.8}, alike=frozenset({1})))
    assert both.pace_before[1] == pytest.approx(0.8)
    maintained = hosts.with_scores({1: replace(hosts[1], state=HealthState.MAINTENANCE)})
    assert node_facts(maintained, domains, silent).pace_before.tolist() == [1.0] * 3


def test_a_plan_takes_whom_a_gang_waited_for_as_slow() -> None:
    """The slow pace also applies at a normal clock; the upper bound allows full speed."""
    snapshot = snapshot_of([Node("a"), Node("b"), Node("c", speed=0.8), Node("d", speed=float("nan"))])  # fmt: skip
    pace = np.array([1.0, 0.9, 0.9, 0.9], dtype=np.float32)
    facts = replace(snapshot.facts, pace_before=pace)
    table = node_table(replace(snapshot, facts=facts))
    assert table.speed[:3].tolist() == pytest.approx([1.0, 0.9, 0.8])
    assert table.speed[3] <= 0.9
    assert table.speed_upper[1] >= 1.0 and table.speed_lower[1] < 0.9
    shares = tuple(float(number == COMPUTE) for number in range(7))
    needs = WorkloadNeeds(shares, shares)
    assert node_table(replace(snapshot, facts=facts), needs).speed[1] == pytest.approx(0.9)
