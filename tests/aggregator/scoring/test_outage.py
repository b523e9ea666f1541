"""An outage of the aggregator is not the hosts' fault."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest

from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared.model import NOTHING
from gangline.aggregator.hazard.features import FEATURE_NAMES as LEARNED
from gangline.aggregator.hazard.features import SCORE_FEATURE_COLUMN
from gangline.aggregator.hazard.model import HazardModel
from gangline.aggregator.model import HealthState
from gangline.aggregator.permits import Permits
from gangline.aggregator.scoring.evaluate import evaluate
from tests.worlds import World, gpu_of


@pytest.mark.parametrize(("silent", "ours"), [(4, True), (2, False)])
def test_past_a_twentieth_of_the_fleet_silent_within_a_minute_states_freeze(
    silent: int, ours: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A twentieth of the fleet silent at once is a fault of the network or the aggregator.

    No host is excluded for it, known faults stay, and no permit to bar hosts is given.
    """
    world = World(hosts=60, gpus=1)
    world.event(world.hosts[0], 79, gpu_of(world.hosts[0], 0))
    world.run(8)
    before = world.states()
    assert before["h0"] == "UNHEALTHY"
    for number, host in enumerate(world.hosts[:silent]):
        host.silent = True
        world.run(2 * (number < silent - 1))
    snapshot = world.run(20)
    went_stale = {name for name, state in world.states().items() if state == "STALE"}
    assert bool(snapshot.degraded_reason) is ours
    assert world.states()["h0"] == "UNHEALTHY"
    assert went_stale == (set() if ours else {"h1"})
    allowed = snapshot.columns.allowed(0.5)
    assert allowed[1:].all() and not allowed[0]
    permits = Permits(tmp_path_factory.mktemp("p"), 0.05, lambda: snapshot, lambda: world.now_ns)
    assert ("degraded" in permits.withheld_reason()) is ours
    assert HealthState.STALE not in {g.state for g in snapshot.gpus.of(5)}


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "apart_seconds", "ours"), [(3, 0, False), (4, 0, True), (4, 40, False)])  # fmt: skip
def test_a_twentieth_is_the_share_and_a_minute_the_time(
    silent: int, apart_seconds: int, ours: bool
) -> None:
    """In a fleet of 80, three silent hosts, or four at intervals of 40 s, are dead hosts."""
    world = World(hosts=80, gpus=1, seconds=8)
    for host in world.hosts[:silent]:
        host.silent = True
        world.run(apart_seconds)
    assert bool(world.run(20).degraded_reason) is ours
    assert list(world.states().values()).count("STALE") == (0 if ours else silent)


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "ours"), [(4, True), (2, False)])
def test_a_model_that_weighs_silence_counts_none_that_is_ours(silent: int, ours: bool) -> None:
    """The silence of an outage must not raise the hazard.

    A switch was down for ten minutes: hosts kept their states, but their hazards tripled, and a
    scheduler that filters by score left them out. The model would have learned from it at midnight.
    """
    weights = [0.5 * (name == "silent_seconds") for name in LEARNED]
    model = HazardModel("a test", False, "all classes", -5.0, tuple(weights))
    world = World(hosts=60, gpus=1)
    before = evaluate(world.fleet, world.run(8).computed_ns, world.snapshot, model)
    for host in world.hosts[:silent]:
        host.silent = True
    world.run(600, every_seconds=30)
    after = evaluate(world.fleet, world.now_ns, world.snapshot, model)
    same = [a.hazard_per_hour == b.hazard_per_hour for a, b in zip(before.hosts, after.hosts, strict=True)]  # fmt: skip
    assert same == [ours] * silent + [True] * (60 - silent)
    known = [isfinite(host.inputs.features[SCORE_FEATURE_COLUMN["silent_seconds"]]) for host in after.hosts if host.inputs]  # fmt: skip
    assert known == [not ours] * silent + [True] * (60 - silent)


@pytest.mark.slow
@pytest.mark.parametrize(("apart_seconds", "frozen"), [(25, 3), (50, 0)])
def test_hosts_booted_one_after_another_are_no_outage(apart_seconds: int, frozen: int) -> None:
    """Three hosts were booted 50 s apart: only the second was frozen, by overlapping windows."""
    world = World(hosts=20, gpus=1, seconds=8)
    for number, host in enumerate(world.hosts[:3]):
        host.silent = True
        world.run(apart_seconds if number < 2 else 20)
    assert list(world.states().values()).count("STALE") == 3 - frozen
    assert bool(world.run(1).degraded_reason) is bool(frozen)


@pytest.mark.slow
def test_hosts_that_are_gone_are_no_part_of_the_fleet_that_falls_silent() -> None:
    """After sixty of eighty hosts were switched off for good, three silent ones are an outage."""
    world = World(hosts=80, gpus=1, seconds=8)
    for host in world.hosts[20:]:
        host.silent = True
    world.run(920, every_seconds=30)
    for host in world.hosts[:3]:
        host.silent = True
    assert world.run(20).degraded_reason.startswith("3 of 80 hosts fell silent")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([HostPlacement(rack="r1", leaf="l1")] * 4, ", all in rack r1,"),
        ([HostPlacement(rack=f"r{at}", leaf="l1") for at in range(4)], ", all in leaf l1,"),
        (
            [
                HostPlacement(rack="r1"),
                HostPlacement(rack="r1"),
                HostPlacement(rack="r1"),
                HostPlacement(rack="r2"),
            ],
            "",
        ),
        (
            [
                HostPlacement(rack="r1"),
                HostPlacement(rack="r1"),
                HostPlacement(rack="r1"),
                HostPlacement(),
            ],
            "",
        ),
        ([HostPlacement(spine="s1")] * 4, ""),  # as is the whole fleet
        ([HostPlacement()] * 4, ""),
    ],
)
def test_what_all_silent_hosts_are_in_is_named(places: list[HostPlacement], said: str) -> None:
    """A rack lost power; the message named the network, where the cause was sought for an hour."""
    world = World(hosts=60, gpus=1)
    fleet = {host.name: HostPlacement(rack="r9", spine="s1") for host in world.hosts}
    fleet |= {f"h{number}": place for number, place in enumerate(places)}
    world.fleet.declared = replace(NOTHING, places=fleet)
    world.run(8)
    for host in world.hosts[:4]:
        host.silent = True
    reason = world.run(20).degraded_reason
    assert reason.startswith(f"4 of 60 hosts{said} fell silent within a minute of each other: ")
    assert ("its power or network, or a fault of the network or the aggregator" in reason) is bool(
        said
    )
