"""An answered or ended shared cause is not proposed again soon, in another domain or per host."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.aggregator.advisories.advisory import SILENCE_REASON, Action, AdvisoryState, Basis
from gangline.aggregator.advisories.advisory_limits import SECOND_NS
from gangline.aggregator.advisories.failure_domains import FailureDomains
from gangline.aggregator.advisories.messages import Frozen, HeldBack, Instruction, Publish
from tests.aggregator.advisories.machine_world import AdviceMachine, published, told

POWER: dict[str, Any] = {
    "reason": "POWER_CAP", "basis": Basis.STATISTICAL, "action": Action.AVOID,
    "place": FailureDomains("r0", power_domain="p0", leaf="l0", spine="s0"),
}  # fmt: skip
NEXT_RACK: dict[str, Any] = {**POWER, "place": FailureDomains("r1", power_domain="p0", leaf="l1")}
DARK: dict[str, Any] = {**POWER, "reason": SILENCE_REASON, "action": Action.INSPECT}


def fell(world: AdviceMachine, *numbers: int, how: dict[str, Any] = POWER) -> list[Instruction]:
    for number in numbers:
        world.see(f"h{number}", **how)
    return world.later(4)


def rose(world: AdviceMachine, *numbers: int) -> list[Instruction]:
    for number in numbers:
        world.gone(f"h{number}", "POWER_CAP")
    return world.later(1)


def ended(how: AdvisoryState) -> AdviceMachine:
    """Return a world where `a1`, a cause of hosts 0 to 7, has ended as *how*, and recovered."""
    world = AdviceMachine()
    fell(world, *range(8))
    if how is AdvisoryState.EXPIRED:
        world.later(3600)
    elif how is AdvisoryState.WITHDRAWN:
        rose(world, *range(8))
    elif how is AdvisoryState.DONE:
        world.carry_out("a1")
    else:
        world.answer("a1", how, message="we cap it ourselves")
    assert world.machine.state.ended["a1"].state is how
    rose(world, *range(8))
    return world


@pytest.mark.parametrize("how", [POWER, DARK], ids=["power", "silence"])
def test_what_was_rejected_is_not_asked_for_of_the_next_wider_domain(how: dict[str, Any]) -> None:
    """A rejected rack became a power domain a second later, then a leaf, a spine, and the fleet."""
    world = AdviceMachine()
    fell(world, *range(8), how=how)
    world.answer("a1", AdvisoryState.REJECTED, message="we cap it ourselves")
    for _ in range(23):
        assert published(world.later(3600)) == []
    assert published(world.later(3600)) == [("rack r0 " + ("power" if how is POWER else "silence"),
                                             "INSPECT", "PROPOSED")]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        (AdvisoryState.WITHDRAWN, 300),
        (AdvisoryState.DONE, 3600),
        (AdvisoryState.EXPIRED, 3600),
        (AdvisoryState.REJECTED, 86_400),
    ],
)
def test_a_cause_that_comes_back_too_soon_is_held_back_whole(
    how: AdvisoryState, seconds: int
) -> None:
    """When a power fault returned, eight hosts got advice one by one."""
    world = ended(how)
    back = fell(world, *range(8))
    assert published(back) == [] and published(world.later(60)) == []
    held = told(back, HeldBack)
    assert [held_back.host for held_back in held] == [f"h{n}" for n in range(8)]
    (message,) = {held_back.message for held_back in held}
    why = world.machine.state.ended["a1"].state_message
    assert message.startswith(f"of the same cause as before, rack r0 power (a1: {why}): not again")
    (again,) = told(world.later(seconds), Publish)
    assert (again.advisory.subject, len(again.advisory.hosts)) == ("rack r0 power", 8)


def test_a_host_that_was_not_in_it_is_of_the_cause_that_came_back() -> None:
    """Two further hosts of a returning cause got advice of their own."""
    world = AdviceMachine()
    fell(world, *range(5))
    rose(world, *range(5))
    assert published(fell(world, *range(6))) == []
    world.now_ns += 60 * SECOND_NS
    assert published(fell(world, 6)) == []
    assert published(world.later(300)) == [("rack r0 power", "INSPECT", "PROPOSED")]
    assert len(world.machine.state.advisories["a2"].cases) == 7


def test_other_hosts_of_a_rejected_rack_are_held_back_too() -> None:
    """Five hours after a rejection three other hosts of the rack got advice each."""
    world = AdviceMachine()
    fell(world, *range(5))
    world.answer("a1", AdvisoryState.REJECTED, message="we cap it ourselves")
    world.later(5 * 3600)
    (first, *_) = told(fell(world, 5, 6, 7), HeldBack)
    assert "a1: rejected by x: we cap it ourselves" in first.message
    assert all(
        advisory.subject == "rack r0 power" for advisory in world.machine.state.ended.values()
    )
    assert not world.machine.state.advisories


def test_the_next_rack_is_told_though_its_neighbour_was_rejected() -> None:
    """A power domain is not proposed with the rejected eight in it, but the new rack is."""
    world = AdviceMachine()
    fell(world, *range(8))
    world.answer("a1", AdvisoryState.REJECTED, message="we cap it ourselves")
    assert published(fell(world, *range(8, 16), how=NEXT_RACK)) == [
        ("rack r1 power", "INSPECT", "PROPOSED")
    ]


def test_what_becomes_graver_than_what_was_answered_is_told() -> None:
    """A rack's power was rejected; later one of its hosts needs an eviction."""
    world = AdviceMachine()
    fell(world, *range(8))
    world.answer("a1", AdvisoryState.REJECTED, message="we cap it ourselves")
    graver = {**POWER, "basis": Basis.DETERMINISTIC, "action": Action.EVICT_NOW}
    assert published(fell(world, 3, how=graver)) == [("host h3", "EVICT_NOW", "PROPOSED")]


def test_other_trouble_of_a_host_takes_nothing_in_that_is_held_back() -> None:
    """An INSPECT for a fan became an AVOID for the rack's rejected cause."""
    world = AdviceMachine()
    fell(world, *range(5))
    rose(world, *range(5))
    fell(world, *range(8))
    world.see("h6", "PCIE", action=Action.INSPECT)
    assert published(world.later(4)) == [("host h6", "INSPECT", "PROPOSED")]


def test_what_followed_while_nothing_could_be_told_is_of_the_cause() -> None:
    """After a freeze a rack was proposed, and each host that had followed, too."""
    world = AdviceMachine()
    world.give(Frozen(world.now_ns, "half is silent"))
    fell(world, 0, 1, 2)
    world.later(60)
    fell(world, 3, 4)
    world.give(Frozen(world.now_ns, ""))
    (publication,) = told(world.later(1), Publish)
    assert publication.advisory.hosts == ("h0", "h1", "h2", "h3", "h4")
    assert "power one after the other, the first at" in publication.advisory.message
