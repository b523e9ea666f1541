"""A shared cause is one advisory, with its own message and price: incident by incident."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.aggregator.advisories.advisory import (
    SILENCE_REASON,
    Action,
    Advisory,
    Basis,
    Case,
    Price,
    Scope,
)
from gangline.aggregator.advisories.advisory_limits import SECOND_NS
from gangline.aggregator.advisories.costs import Fault, Workload, combined_price, waiting_cost
from gangline.aggregator.advisories.failure_domains import FailureDomains
from gangline.aggregator.advisories.messages import Publish
from tests.aggregator.advisories.machine_world import AdviceMachine, published, told

#: A slow host of a gang of 32 GPUs.
SLOW: dict[str, Any] = {
    "basis": Basis.STATISTICAL, "job": "llm-7", "gang_gpus": 32, "gpus": 8, "relative_speed": 0.8,
    "checkpoint_seconds": 1800.0, "among": (8, 0, 0, 0, 0, 0),
}  # fmt: skip

ILL: dict[str, Any] = {"reason": "ECC_TREND", "action": Action.AVOID, **SLOW, "job": ""}


def cause(world: AdviceMachine) -> Advisory:
    (advisory,) = [
        candidate for candidate in world.machine.state.advisories.values() if not candidate.host
    ]
    return advisory


def braked(world: AdviceMachine, *numbers: int, reason: str = "POWER_CAP", **more: Any) -> None:
    for number in numbers:
        world.see(f"h{number}", reason, **{**SLOW, **more})
    world.later(3)


def test_eight_hosts_of_a_rack_that_brake_at_once_are_one_power_fault() -> None:
    """A rack's power supply dipped, and eight hosts were drained for it."""
    world = AdviceMachine()
    for number in range(8):
        world.now_ns += SECOND_NS // 4
        world.see(f"h{number}", "POWER_CAP", basis=Basis.STATISTICAL)
    (publication,) = told(world.later(3), Publish)
    assert (publication.advisory.subject, publication.advisory.action) == (
        "rack r0 power",
        Action.INSPECT,
    )
    assert publication.advisory.hosts == tuple(f"h{n}" for n in range(8))
    assert world.later(600) == []


def test_one_late_host_joins_its_cause() -> None:
    """A ninth host came a minute later, and got an advisory of its own."""
    world = AdviceMachine()
    for number in range(4):
        world.see(f"h{number}", "POWER_CAP")
    world.later(3)
    world.now_ns += 60 * SECOND_NS
    world.see("h5", "POWER_CAP")
    (publication,) = told(world.later(3), Publish)
    assert publication.advisory.name == "a1" and "h5" in publication.advisory.hosts


def test_a_cause_says_how_many_of_how_many_of_what_and_since_when() -> None:
    """The message gave the first host's clock, and nothing about the rack."""
    world = AdviceMachine()
    braked(world, 0, 1, 2, 3)
    message = cause(world).message
    assert message.startswith(
        "4 of 8 hosts of rack r0 were limited by their power within 2 s, at 2025-10-09 08:53:20 "
        "UTC: one fault"
    )
    assert "Check first: its feed, its power supplies, its power caps" in message
    assert "h0: h0 has it" in message
    world.now_ns += 60 * SECOND_NS
    braked(world, 5)
    assert cause(world).message.startswith(
        "5 of 8 hosts of rack r0 were limited by their power one after"
    )
    for number in (0, 1):
        world.gone(f"h{number}", "POWER_CAP")
    world.later(1)
    assert "3 hosts" not in cause(world).message and cause(world).hosts[0] == "h0", (
        "they fell even so"
    )
    assert len(cause(world).cases) == 3


def test_a_gang_is_as_slow_as_its_slowest_and_loses_its_time_once() -> None:
    """Four braked hosts of a gang of 32 GPUs cost 205 GPU-hours in eight hours, instead of 51."""
    world = AdviceMachine()
    braked(world, 0, 1, 2, 3, hazard_per_hour=0.0)
    price = cause(world).price
    assert price.waiting_gpu_hours == pytest.approx(32 * 8 * 0.2) and price.acting_gpu_hours == 0.0
    assert "51.2 (job llm-7 on 4 of them: 32 GPUs x 8 h x (" in price.arithmetic
    assert "inspection takes no host out of service" in price.arithmetic and not price.act_by_ns


def test_hazards_add_up_over_the_hosts_of_a_job_and_jobs_over_the_cause() -> None:
    """The price of the rack was its first host's."""
    case = Case("k", "h", "POWER_CAP", Basis.STATISTICAL, Action.AVOID, Scope.HOST, "", 0, **{
        **{key: value for key, value in SLOW.items() if key != "basis"}, "hazard_per_hour": 0.01,
    })  # fmt: skip
    cases = [_of(case, f"h{n}", job="a") for n in range(3)]
    cases += [_of(case, f"i{n}", job="", gang_gpus=0, checkpoint_seconds=0.0) for n in range(2)]
    cases += [_of(case, f"h{n}", job="a", key="another of the same host") for n in range(3)]
    both = waiting_cost(Fault(0.03, 0.8, 24), Workload("a", 32, 0.0, 1800.0))[0]
    idle = waiting_cost(Fault(0.01, 0.8, 8), Workload())[0]
    price = combined_price(cases)
    assert price.waiting_gpu_hours == pytest.approx(both + 2 * idle)
    assert "job a on 3 of them" in price.arithmetic
    assert "2 hosts without a known job: 16 GPUs" in price.arithmetic
    many = [_of(case, f"h{n}", job=f"job{n}") for n in range(9)]
    assert "(of 6 more)" in combined_price(many).arithmetic


def _of(case: Case, host: str, **changes: Any) -> Case:
    return replace(case, host=host, **changes)


def test_a_price_that_moves_is_the_causes_too() -> None:
    """Another gang of 512 GPUs began on the hosts, and the cause kept its old price."""
    world = AdviceMachine()
    braked(world, 0, 1, 2)
    before = cause(world)
    braked(world, 0, 1, 2, gang_gpus=512, price=Price(800.0, 5.0))
    after = cause(world)
    assert after.price.waiting_gpu_hours == pytest.approx(16 * before.price.waiting_gpu_hours)
    assert after.name == before.name and world.later(1) == []


def test_who_fell_before_is_not_of_the_cause() -> None:
    """A host that had hung for five minutes was reported as braked with its rack."""
    world = AdviceMachine()
    braked(world, 6)
    world.now_ns += 300 * SECOND_NS
    braked(world, 0, 1, 2)
    assert cause(world).hosts == ("h0", "h1", "h2")
    assert ("host h6", "AVOID", "PROPOSED") not in published(world.later(1))


def test_the_narrowest_of_what_explains_as_much_is_told() -> None:
    """A host of the next rack, slow since the morning, made a whole power domain the suspect."""
    world = AdviceMachine()
    braked(world, 9, place=FailureDomains("r1", "p0"))
    world.now_ns += 300 * SECOND_NS
    braked(world, 0, 1, 2, place=FailureDomains("r0", "p0"))
    assert cause(world).subject == "rack r0 power"


def test_a_rack_is_dark_though_another_host_fell_silent_at_that_moment() -> None:
    """One more silent host elsewhere made the whole fleet the cause."""
    world = AdviceMachine(hosts=100)
    silent: dict[str, Any] = {"reason": SILENCE_REASON, "action": Action.INSPECT, "gpus": 8}
    for number in [*range(8), 77]:
        world.see(f"h{number}", **silent)
    world.later(3)
    assert cause(world).subject == "rack r0 silence" and "h77" not in cause(world).hosts
    everywhere = AdviceMachine(hosts=100)
    for number in range(64):
        everywhere.see(f"h{number}", **silent)
    everywhere.later(3)
    fleet_cause = cause(everywhere)
    assert (fleet_cause.subject, len(fleet_cause.hosts)) == ("fleet all silence", 64)
    assert fleet_cause.message.startswith(
        "64 of 100 hosts of the fleet fell silent within 2 s, at "
    )


def test_where_nobody_declared_racks_the_words_say_so() -> None:
    """The message blamed a rack called "(no topology declared)"."""
    world = AdviceMachine()
    braked(world, *range(8), place=FailureDomains(), among=())
    assert cause(world).message.startswith(
        "8 of 1000 hosts whose racks nobody declared were limited by their power within 2 s"
    )


def test_a_look_is_not_held_back_for_want_of_room() -> None:
    """At the limit of hosts out, an inspection of a fan was held back; it takes no host out."""
    world = AdviceMachine(hosts=7)
    world.see("h1")
    world.see("h9", "PCIE", action=Action.INSPECT)
    assert published(world.later(3)) == [
        ("host h1", "EVICT_NOW", "PROPOSED"), ("host h9", "INSPECT", "PROPOSED"),
    ]  # fmt: skip


def test_an_advisory_of_a_version_before_goes_on() -> None:
    """A cause stored without its begin, by an earlier version, is restored."""
    world = AdviceMachine()
    braked(world, 0, 1, 2)
    memory = world.machine.state
    memory.advisories["a1"] = replace(cause(world), since_ns=0)
    world.now_ns += 60 * SECOND_NS
    braked(world, 4)
    assert cause(world).hosts == ("h0", "h1", "h2", "h4")
    assert told(world.later(1), Publish) == []


def test_a_host_with_many_ill_devices_hides_nobody() -> None:
    """Eight throttled GPUs of one host hid three hosts of the rack a minute later."""
    world = AdviceMachine()
    for gpu in range(8):
        world.see("h7", "THERMAL_THROTTLE", key=f"h7/hot/{gpu}", devices=(f"GPU-{gpu}",))
    world.now_ns += 60 * SECOND_NS
    braked(world, 0, 1, 2, reason="THERMAL_THROTTLE")
    assert cause(world).hosts == ("h0", "h1", "h2")


def ill_since_days(world: AdviceMachine) -> None:
    """Report faults on three hosts of a rack a day apart; each has an advisory of its own."""
    for number in (0, 1, 2):
        world.see(f"h{number}", **ILL)
        world.later(86_400)


@pytest.mark.parametrize("change", [{"job": "llm-8"}, {"place": FailureDomains("r0", leaf="l7")}])
def test_trouble_began_when_it_began_whatever_changes_meanwhile(change: dict[str, Any]) -> None:
    """A case keeps its begin when its job or its place changes.

    A gang began on three hosts that had been ill since Monday, Tuesday and Wednesday: they "had the
    same trouble within 2 s", and their advisories were withdrawn. So it was when places were read
    again.
    """
    world = AdviceMachine()
    ill_since_days(world)
    for number in (0, 1, 2):
        world.see(f"h{number}", **{**ILL, **change})
    world.later(3)
    standing = [item.case.since_ns for item in world.machine.state.cases.values()]
    assert len(set(standing)) == 3 and max(standing) < world.now_ns - 86_400 * SECOND_NS
    assert all(item.host for item in world.machine.state.advisories.values())


@pytest.mark.parametrize("other", ["gone for a moment", "XID_FATAL"])
def test_what_comes_anew_begins_anew(other: str) -> None:
    """A recurring fault, or another fault of the device, begins now."""
    world = AdviceMachine()
    ill_since_days(world)
    for number in (0, 1, 2):
        key = f"h{number}/ECC_TREND"
        if other == "XID_FATAL":
            world.see(f"h{number}", **{**ILL, "reason": other, "key": key})
        else:
            world.gone(f"h{number}", "ECC_TREND")
            world.see(f"h{number}", **ILL)
    world.later(3)
    assert cause(world).hosts == ("h0", "h1", "h2")
