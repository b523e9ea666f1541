"""A host's own fault is proposed at once; a fault that may be shared waits, and is one advisory."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.aggregator.advisories.advisory import Action, AdvisoryState, Basis, Scope
from gangline.aggregator.advisories.advisory_limits import SECOND_NS
from gangline.aggregator.advisories.failure_domains import FailureDomains
from gangline.aggregator.advisories.messages import Frozen, HeldBack, Publish
from tests.aggregator.advisories.machine_world import AdviceMachine, published, told

FIRST = [("host h1", "EVICT_NOW", "PROPOSED")]


def fall_in_turn(world: AdviceMachine, *numbers: int) -> list[list[tuple[str, str, str]]]:
    """Report a fault on a further host each 0.25 s; return the advisories published after each."""
    published_in_turn = []
    for number in numbers:
        world.see(f"h{number}")
        published_in_turn.append(published(world.later(0)))
        world.later(0.25)
    return published_in_turn


def test_an_own_fault_is_proposed_when_it_is_seen() -> None:
    """A GPU fell off the bus, and its job waited 3 s for the same fault on other hosts."""
    world = AdviceMachine()
    world.see("h1")
    assert published(world.later(0)) == FIRST


@pytest.mark.parametrize(
    "case",
    [
        {"basis": Basis.STATISTICAL, "action": Action.DRAIN_AFTER_JOB},
        {"reason": "POWER_CAP"},
        {"reason": "THERMAL_THROTTLE"},
        {"reason": "RAIL_DOWN", "scope": Scope.HOST},
        {"reason": "FABRIC", "scope": Scope.HOST},
        {"reason": "NVLINK_ERRORS", "scope": Scope.NVLINK_DOMAIN},
        {"reason": "STORAGE", "scope": Scope.HOST},
        {"reason": "POLICY", "scope": Scope.HOST},
        {"scope": Scope.DRIVER},
        {"scope": Scope.NVLINK_DOMAIN},
    ],
)
def test_what_hosts_can_share_waits(case: dict[str, Any]) -> None:
    """A switch took three links down; before the second was reported the first host was drained."""
    world = AdviceMachine()
    world.see("h1", **case)
    assert published(world.later(0)) == published(world.later(2.9)) == []
    assert [advice[0] for advice in published(world.later(0.1))] == ["host h1"]


def test_switches_on_the_baseboard_are_the_hosts_own() -> None:
    """An SXID names the fabric, and the fabric is eight GPUs of one host."""
    world = AdviceMachine()
    world.see("h1", "FABRIC", scope=Scope.BASEBOARD)
    assert published(world.later(0)) == FIRST


def test_the_second_host_of_a_domain_waits() -> None:
    """Two GPUs of a rack died in the same second: the second may begin a common fault."""
    world = AdviceMachine()
    assert fall_in_turn(world, 1, 2) == [FIRST, []]
    assert published(world.later(2.4)) == []
    assert published(world.later(0.5)) == [("host h2", "EVICT_NOW", "PROPOSED")]


@pytest.mark.parametrize(
    "other",
    [
        {"number": 99},
        {"number": 2, "seconds": 2.1},
        {"number": 2, "reason": "POWER_CAP", "basis": Basis.STATISTICAL},
    ],
    ids=["another rack", "later", "another kind"],
)
def test_an_unrelated_host_keeps_nobody_waiting(other: dict[str, Any]) -> None:
    """In a large fleet some host always has a fault."""
    world = AdviceMachine()
    number, seconds = other.pop("number"), other.pop("seconds", 0.5)
    world.see(f"h{number}", **other)
    world.later(seconds)
    world.see("h1")
    assert published(world.later(0)) == FIRST


def test_a_cause_found_later_takes_the_first_one_in() -> None:
    """A rack's power dipped: five hosts lost GPUs in turn, and the first was drained by itself."""
    world = AdviceMachine()
    published_in_turn = fall_in_turn(world, 1, 2, 3, 4)
    assert published_in_turn[:3] == [
        FIRST,
        [],
        [("rack r0 xid fatal", "INSPECT", "PROPOSED"), ("host h1", "EVICT_NOW", "WITHDRAWN")],
    ]
    (advisory,) = world.machine.state.advisories.values()
    assert advisory.hosts == ("h1", "h2", "h3", "h4") and not advisory.host


@pytest.mark.parametrize(
    "to", [(AdvisoryState.ACCEPTED,), (AdvisoryState.ACCEPTED, AdvisoryState.DONE)]
)
def test_what_was_accepted_by_then_goes_on_and_counts_for_the_cause(
    to: tuple[AdvisoryState, ...],
) -> None:
    """An executor accepted the first host at once; the two that followed were drained, too."""
    world = AdviceMachine()
    fall_in_turn(world, 1)
    for state in to:
        world.answer("a1", state)
    assert fall_in_turn(world, 2, 3) == [[], [("rack r0 xid fatal", "INSPECT", "PROPOSED")]]
    cause = world.machine.state.advisories["a2"]
    assert cause.hosts == ("h1", "h2", "h3") and cause.cases == ("h2/XID_FATAL", "h3/XID_FATAL")
    assert world.machine.state.holds["h1"].name == "a1"
    assert "3 hosts of rack r0" in cause.message
    assert published(world.later(10)) == []


def test_hosts_that_are_all_in_hand_are_no_cause() -> None:
    """With all hosts accepted, the search for the cause never ended."""
    world = AdviceMachine(rack_hosts_max=8)
    for number in (1, 2, 3):  # in turn, and answered at once
        world.see(f"h{number}", place=FailureDomains(rack=f"r{number}"))
        world.later(0)
        world.answer(f"a{number}", AdvisoryState.ACCEPTED)
        world.see(f"h{number}", place=FailureDomains(rack="r0"))
    assert [advice for advice in published(world.later(0)) if advice[1] == "INSPECT"] == []
    assert len(world.machine.state.advisories) == 3


def test_limits_hold_as_before() -> None:
    """Immediate proposals count against the limits."""
    world = AdviceMachine(hosts=40)
    world.see("h1")
    world.see("h30")
    instructions = world.later(0)
    assert len(published(instructions)) == 1
    assert [held.message for held in told(instructions, HeldBack)] == [
        "limit of 1 host out of service reached"
    ]


def test_nothing_is_proposed_while_the_picture_is_in_doubt() -> None:
    """While frozen not even an own fault is proposed."""
    world = AdviceMachine()
    world.give(Frozen(world.now_ns, "half is silent"))
    world.see("h1")
    assert told(world.later(0), Publish) == []
    world.give(Frozen(world.now_ns, ""))
    assert published(world.later(0)) == FIRST


def test_what_still_gathers_does_not_go_with_what_is_due() -> None:
    """A host's power brake was included in the advice for its lost GPU."""
    world = AdviceMachine()
    world.see("h1", "POWER_CAP", basis=Basis.STATISTICAL, action=Action.AVOID)
    world.see("h1")
    assert published(world.later(0)) == FIRST
    assert world.machine.state.advisories["a1"].cases == ("h1/XID_FATAL",)


def test_a_storm_of_hosts_is_one_pass_over_the_cases() -> None:
    """Ten thousand hosts without places fell at once, and each was compared with each."""
    world = AdviceMachine(hosts=10_000)
    for number in range(2000):
        world.see(f"h{number}", place=FailureDomains())
    world.now_ns += SECOND_NS
    (advice,) = published(world.later(0))
    assert advice == ("fleet (no topology declared) xid fatal", "INSPECT", "PROPOSED")
