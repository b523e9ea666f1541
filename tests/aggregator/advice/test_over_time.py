"""Advice as time passes: what becomes of it over outages, milder and graver faults, and hosts that never return."""

from __future__ import annotations

import pytest

from gangline.aggregator.advice.advisory import State
from gangline.aggregator.advice.events import Clear, Renew, Well
from gangline.aggregator.advice.limits import HOUR_NS
from tests.aggregator.advice.test_machine import World, published, told


def accepted(hosts: int = 1000) -> World:
    """A world whose first host is being drained."""
    world = World(hosts)
    world.see("h1")
    world.later(5)
    world.answer("a1", State.ACCEPTED)
    return world


def test_who_carried_something_out_while_we_were_down_has_its_host_counted() -> None:
    """We were down for three hours: the drain of a host went on, the host was counted nowhere, and never returned."""
    world = accepted(hosts=60)
    world.now_ns += 3 * HOUR_NS
    world.machine.resume(world.now_ns)
    told_first = world.later(1)
    assert not told(told_first, Clear) and told(told_first, Renew)
    world.see("h17")
    assert published(world.later(5)) == [], "one of sixty may be out"
    world.answer("a1", State.DONE)
    world.gone("h1")
    world.gone("h17")
    world.give(Well(world.now_ns, "h1", True))
    assert published(world.later(900)) == [("host h1", "RETURN_TO_SERVICE", "PROPOSED")]


@pytest.mark.parametrize("to", [State.ACCEPTED, State.DONE])
def test_what_an_owner_has_out_is_held_again_by_its_word(to: State) -> None:
    """A version before had let go of it: its owner's word that it was done changed nothing."""
    world = accepted()
    hold = world.machine.memory.holds["h1"]
    world.machine._desk.drop(hold, "it ran out")
    (renew,) = told(world.answer("a1", to), Renew)
    held = world.machine.memory.holds["h1"]
    assert (renew.name, renew.until_ns) == ("a1", world.now_ns + 2 * HOUR_NS)
    assert (held.name, held.confirmed) == ("a1", to is State.DONE)
    assert world.machine.memory.probation["h1"].relapses == 0
