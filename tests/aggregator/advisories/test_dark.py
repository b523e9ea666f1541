"""Dark racks, single silent hosts, and silence that is no host's fault: from frames to advice."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from gangline.aggregator.advisories.advisory import Action, Advisory, AdvisoryState, Basis
from gangline.aggregator.advisories.advisory_limits import HOUR_NS, AdvisoryLimits
from gangline.aggregator.advisories.failure_domains import DomainCounts
from gangline.aggregator.advisories.messages import Member, Publish, TakenOut, Tick
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.advisories.state_machine import AdvisoryStateMachine
from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared.loader import DeclaredFile, parse_files
from gangline.aggregator.declared.model import NOTHING
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.scoring.missing_readings import SettlingHost
from tests.worlds import SECOND_NS, World

OTHERS = 194

WINDOW = b"""[[place]]
hosts = ["h[0-5]"]
rack = "r7"
[[maintenance]]
racks = ["r7"]
begin = 2023-11-14T22:00:00Z
end = 2023-11-14T23:00:00Z
who = "alice"
why = "a new power feed"
"""


class AdvisedFleet:
    """Six hosts of rack r7 with 2 GPUs each, and *others* in other racks that always report."""

    def __init__(self, others: int = OTHERS, racked: bool = True) -> None:
        self.world, self.machine = World(hosts=6, gpus=2), AdvisoryStateMachine(AdvisoryLimits())
        self.told: list[Advisory] = []
        fleet = self.world.fleet
        for number in range(others):
            fleet.restore(
                f"o{number:03d}", simulated=False, gpus=8, last_received_ns=self.world.now_ns
            )
        fleet.first_received_ns[6:] = self.world.now_ns - HOUR_NS
        names = [*(f"h{n}" for n in range(6)), *(f"o{n:03d}" for n in range(others))]
        places = {
            name: HostPlacement(rack=f"r{7 + number // 6}", leaf=f"l{number // 30}")
            for number, name in enumerate(names)
        }
        fleet.declared = replace(
            NOTHING, places=MappingProxyType(places if racked else {}), places_version=1
        )
        self.observer = Observer(lambda: fleet.declared)
        self.run(10)

    @property
    def open(self) -> list[Advisory]:
        return list(self.machine.state.advisories.values())

    def run(self, seconds: int, step: int = 1) -> None:
        """Advance the clock; judge and advise each *step*."""
        world = self.world
        for _ in range(0, seconds, step):
            world.now_ns += (step - 1) * SECOND_NS
            world.fleet.last_received_ns[6:] = world.now_ns + SECOND_NS
            self.advise()

    def advise(self) -> None:
        judged = self.world.run(1)
        for event in [*self.observer.events(self.machine.state, judged, self.world.fleet.gpus)]:
            self.machine.step(event)
        instructions = self.machine.step(Tick(judged.computed_ns))
        self.told += [
            instruction.advisory for instruction in instructions if isinstance(instruction, Publish)
        ]

    def hush(self, *hosts: int, silent: bool = True) -> None:
        for host in hosts:
            self.world.hosts[host].silent = silent


@pytest.mark.slow
def test_a_dark_rack_is_one_advisory_for_the_rack_and_none_for_its_hosts() -> None:
    """At 3 a.m. six hosts were STALE without advice, and each was inspected by itself."""
    fleet = AdvisedFleet()
    fleet.hush(*range(6))
    fleet.run(25)
    (advisory,) = fleet.open
    assert (advisory.subject, advisory.action, advisory.basis) == (
        "rack r7 silence", Action.INSPECT, Basis.SHARED_CAUSE,
    )  # fmt: skip
    assert advisory.hosts == ("h0", "h1", "h2", "h3", "h4", "h5")
    assert advisory.message.startswith(
        "6 of 6 hosts of rack r7 fell silent within 2 s, at 2023-11-14 22:13:30 UTC: one fault that they share"
    )
    assert "its power, its switch" in advisory.message
    assert advisory.price.waiting_gpu_hours == 12 * 8
    assert (
        "96.0 GPU-hours = 12 GPUs x 8 h, if none of the 6 hosts works" in advisory.price.arithmetic
    )
    fleet.hush(*range(6), silent=False)
    fleet.run(10)
    assert fleet.open == [] and fleet.told[-1].state is AdvisoryState.WITHDRAWN


@pytest.mark.slow
def test_a_part_of_a_rack_is_told_as_a_part_and_who_follows_joins() -> None:
    """Four of six hosts of a rack lost their feed, the fifth a minute later."""
    fleet = AdvisedFleet()
    fleet.hush(0, 1, 2, 3)
    fleet.run(60)
    (advisory,) = fleet.open
    assert advisory.message.startswith("4 of 6 hosts of rack r7 fell silent within 2 s, at ")
    fleet.hush(4)
    fleet.run(20)
    (advisory,) = fleet.open
    assert advisory.message.startswith(
        "5 of 6 hosts of rack r7 fell silent one after the other, the first at "
    )
    assert "10 GPUs x 8 h" in advisory.price.arithmetic


@pytest.mark.slow
def test_more_than_a_twentieth_of_the_fleet_is_our_outage_for_a_quarter_of_an_hour() -> None:
    """Rule 5: during an outage nothing is proposed; longer silence is reported after it."""
    fleet = AdvisedFleet(others=54)
    fleet.hush(*range(6))
    fleet.run(800, step=10)
    assert fleet.open == [] and fleet.told == []
    assert (
        "6 of 60 hosts, all in rack r7, fell silent within a minute" in fleet.machine.state.frozen
    )
    fleet.run(120, step=10)
    assert not fleet.machine.state.frozen
    (advisory,) = fleet.open
    assert advisory.subject == "rack r7 silence"


@pytest.mark.slow
def test_a_host_that_is_silent_alone_is_looked_at_after_half_an_hour_once() -> None:
    """A boot or upgrade needs no advice; a longer silence needs an inspection, not a drain."""
    fleet = AdvisedFleet()
    fleet.hush(2)
    fleet.run(1770, step=30)
    fleet.run(20, step=10)
    assert fleet.open == []
    fleet.run(40, step=10)
    (advisory,) = fleet.open
    assert (advisory.subject, advisory.action, advisory.scope.value) == (
        "host h2",
        Action.INSPECT,
        "host",
    )
    assert "it has been silent since" in advisory.message and "may still work" in advisory.message
    fleet.run(26 * 3600, step=1800)
    assert {published.name for published in fleet.told} == {"a1"}, "asked again, and again"


@pytest.mark.slow
def test_without_a_topology_eight_hosts_are_few() -> None:
    """Without a topology, six of two hundred silent hosts have no known cause."""
    fleet = AdvisedFleet(racked=False)
    fleet.hush(*range(6))
    fleet.run(60)
    assert fleet.open == []


@pytest.mark.slow
def test_a_rack_that_is_switched_off_on_purpose_is_no_news() -> None:
    """A planned power cut, in a window or reported by a scheduler, woke the on-call."""
    fleet = AdvisedFleet()
    fleet.world.fleet.declared = parse_files([DeclaredFile("a.toml", WINDOW)], fleet.world.now_ns)
    fleet.hush(*range(6))
    fleet.run(60)
    assert fleet.open == []
    fleet = AdvisedFleet()
    members = tuple(Member(f"h{n}") for n in range(6))
    until = fleet.world.now_ns + HOUR_NS
    fleet.machine.step(TakenOut(fleet.world.now_ns, "slurm", "kernel update", until, members))
    fleet.hush(*range(6))
    fleet.run(60)
    assert fleet.open == []


def restarted(*silent: int) -> AdvisedFleet:
    """Return a fleet just after a restart of the aggregator, without the *silent* hosts."""
    fleet = AdvisedFleet()
    world = fleet.world
    assert world.snapshot
    scores = dict(enumerate(map(SettlingHost, world.snapshot.hosts)))
    fleet.hush(*silent)
    world.fleet.first_received_ns[list(silent)] = 0
    began = world.now_ns + SECOND_NS
    world.fleet.last_received_ns[:] = world.now_ns
    world.fleet.restarted_ns = began
    before = Judgement(
        0, began, 28_800.0, (), dictionary_version=world.fleet.epoch, settling=scores
    )
    world.snapshot = evaluate(world.fleet, began, before)
    return fleet


@pytest.mark.slow
def test_hosts_that_have_not_found_us_again_are_not_dark() -> None:
    """After a restart, agents that waited longest to reconnect were reported as a dark rack."""
    fleet = restarted(*range(6))
    fleet.run(890, step=10)
    assert fleet.open == []
    fleet.run(60, step=5)
    (advisory,) = fleet.open
    assert advisory.subject == "rack r7 silence", "silent for a quarter of an hour: they are"
    assert advisory.message.startswith(
        "6 of 6 hosts of rack r7 were silent when the aggregator restarted at 2023-11-14 22:13:31 "
        "UTC: likely one fault"
    )


@pytest.mark.slow
def test_hosts_that_fell_while_we_were_away_did_not_fall_at_once() -> None:
    """Three hosts that died hours apart while the aggregator was down "fell silent within 2 s"."""
    fleet = restarted(0, 1, 2)
    fleet.run(1000, step=25)
    assert fleet.open == []
    world = fleet.world
    moved = {**world.fleet.declared.places, "h0": HostPlacement(rack="r7", leaf="l9")}
    world.fleet.declared = replace(
        world.fleet.declared, places=MappingProxyType(moved), places_version=2
    )
    fleet.run(900, step=25)
    assert sorted(advisory.subject for advisory in fleet.open) == ["host h0", "host h1", "host h2"]
    for advisory in fleet.open:
        assert (
            "it was silent when the aggregator restarted at 2023-11-14 22:13:31 UTC: check its power"
            in advisory.message
        )


@pytest.mark.parametrize("hosts", [1, 5])
def test_hosts_in_a_domain_are_counted_anew_when_places_change(hosts: int) -> None:
    """A message counted 4 of 12 hosts for a rack of 4."""
    names = [f"h{n}" for n in range(hosts)]
    places, declared = (
        DomainCounts(),
        replace(NOTHING, places={n: HostPlacement(rack="r1") for n in names}),
    )
    places.update(declared, names)
    assert places.sizes("h0").among[0] == hosts and places.sizes("other").among == ()
    moved = replace(
        declared, places={**declared.places, "h0": HostPlacement(rack="r2")}, places_version=9
    )
    places.update(moved, names)
    assert places.sizes("h0").among[0] == 1


@pytest.mark.slow
def test_hosts_that_are_gone_for_good_take_nobodys_place() -> None:
    """Four dismantled hosts blocked every drain in the fleet until the next restart."""
    fleet = AdvisedFleet()
    fleet.hush(0, 1, 2, 3)
    fleet.run(30)
    assert set(fleet.machine.state.taken) == {"h0", "h1", "h2", "h3"}
    fleet.run(86_400, step=1800)
    assert not fleet.machine.state.taken
