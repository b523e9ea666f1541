"""The promise of `make run`: whatever the seed, the three broken hosts stand at the bottom, with the
right reason, and nobody else is blamed.

The whole way in one process with time handed in: physical model, the agent's framer, the wire's bytes,
the aggregator's fleet, its judge once a second. All figures here are of *simulated* faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from gangline.agent.framing import Framer
from gangline.agent.simulated.world.live import LiveWorld
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.reading import received
from gangline.aggregator.judgement.judge import judge
from gangline.aggregator.verdicts import SEVERITY, HostScore, Reason, Snapshot, State
from tests.simulation.readings import calm, struck, three

SEEDS = range(1, 10)
CONTROL_SEEDS = range(1, 5)
HOSTS = 32
SECOND_NS = 1_000_000_000
BOOTTIME_NS = 3_600 * SECOND_NS
WALL_NS = 1_700_000_000 * SECOND_NS
#: Seconds after the start by which all three must stand where they belong, and for how long at least.
FOUND_SECONDS, WATCHED_SECONDS = 60, 110

REASONS = {
    "thermal": Reason.THERMAL_THROTTLE,
    "rdma_link": Reason.FABRIC,
    "hbm": Reason.XID_FATAL,
}


def watched(model: LiveWorld, seconds: int) -> Iterator[Snapshot]:
    """Yield the judge's snapshot of every second."""
    fleet, snapshot = Fleet(), None
    framers = {name: Framer(name.encode().ljust(16), bytes(16)) for name in model.names}
    for name in model.names:
        fleet.register(
            name,
            simulated=True,
            boot_id=bytes(16),
            devices=cast(Any, model.devices(name)),  # a map field is no dict to the checker
        )
    for second in range(1, seconds + 1):
        passed_ns = second * SECOND_NS
        for name, blocks, events in model.step(1.0):
            data = framers[name].frame(second, BOOTTIME_NS + passed_ns, WALL_NS + passed_ns, blocks)
            fleet.observe(name, received(data), WALL_NS + passed_ns)
            for event in events:
                fleet.event(name, event, WALL_NS + passed_ns)
        snapshot = judge(fleet, WALL_NS + passed_ns, snapshot)
        yield snapshot


def worse_than_watch(host: HostScore) -> bool:
    return SEVERITY.index(host.state) < SEVERITY.index(State.WATCH)


@dataclass(frozen=True)
class Verdict:
    """What came of one seed."""

    truth: dict[str, Reason]
    bottoms: list[dict[str, Reason]]  # by second: the three worst and why
    blamed: set[str]  # others that were worse than WATCH at any second


def run(model: LiveWorld, truth: dict[str, Reason]) -> Verdict:
    bottoms, blamed = [], set()
    for snapshot in watched(model, WATCHED_SECONDS):
        worst = sorted(snapshot.hosts, key=lambda host: host.rank)
        bottoms.append({host.host: host.reason for host in worst[: len(truth)]})
        blamed |= {
            f"{host.host} {host.state.name} {host.reason.name}: {host.reason_words}"
            for host in worst
            if worse_than_watch(host) and host.host not in truth
        }
    return Verdict(truth, bottoms, blamed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_three_stand_at_the_bottom(seed: int) -> None:
    """And stay there: through checkpoints, and while a gang waits for its slow or its dead member."""
    model = three(seed, HOSTS)
    verdict = run(model, {struck(model, name).host: reason for name, reason in REASONS.items()})
    assert not verdict.blamed
    assert len(verdict.truth) == 3
    right = [bottom == verdict.truth for bottom in verdict.bottoms]
    assert True in right, verdict.bottoms[-1]
    assert right.index(True) < FOUND_SECONDS, f"not before second {right.index(True) + 1}"
    wrong = [s + 1 for s in range(FOUND_SECONDS, WATCHED_SECONDS) if not right[s]]
    assert not wrong, verdict.bottoms[wrong[0] - 1]


@pytest.mark.parametrize("seed", CONTROL_SEEDS)
def test_a_healthy_fleet_has_nobody_to_blame(seed: int) -> None:
    """Negative control: checkpoints, slow and hot parts, old errors, stray retransmissions, saturated
    counters, caps at full load. An alarm here is an alarm that operators learn to ignore."""
    verdict = run(calm(seed, HOSTS), {})
    assert not verdict.blamed
