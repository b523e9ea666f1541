"""What a host is by its own last score stands over a restart: what lay beneath a window, and what is remembered by time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.aggregator.judgement.declared import without_maintenance
from gangline.aggregator.verdicts import Reason, State
from tests.aggregator.declared.test_judged import declare, window
from tests.aggregator.test_restart import back, restarted
from tests.aggregator.world import START_NS, World, gpu_of, throttle


def seconds(world: World) -> float:
    return (world.now_ns - START_NS) / 1e9


@pytest.mark.parametrize("ends", [130.0, 300.0])
def test_a_window_that_ends_after_a_restart_leaves_what_lay_beneath(ends: float) -> None:
    """Released for its repair in a window; then an update of the aggregator: it was MAINTENANCE for an hour more, then WATCH,
    and what was found of its GPU was lost. The window ends while we are away, or after it.
    """
    world = World(hosts=2)
    host, gpu = world.hosts[1], gpu_of(world.hosts[1], 3)
    declare(world, window(60, ends))
    host.set("gpu_10s_changes", gpu, remap_failed_state=1)
    world.run(70)
    for key in [key for key in host.readings if key[1] == gpu]:
        del host.readings[key]
    host.growth.clear()
    world.run(20)
    assert world.score(host).state is State.MAINTENANCE
    declared = world.fleet.declared
    for _ in range(2):
        restarted(world, 60)
        world.fleet.declared = declared
        back(world)
        world.run(5)
        is_in = seconds(world) < ends
        assert world.score(host).state is (State.MAINTENANCE if is_in else State.UNHEALTHY)
    world.run(150)
    score = world.score(host)
    assert (score.state, score.reason) == (State.UNHEALTHY, Reason.HBM_REMAP)
    assert "has no spare memory row left" in score.reason_words and score.clears_when


def test_a_window_that_ended_while_we_were_away_is_over_at_once() -> None:
    """Fans were changed, and the host was held back for a minute more by what nobody had said any longer."""
    world = World(hosts=2)
    declare(world, window(10, 30))
    world.run(20)
    declared = world.fleet.declared
    restarted(world)
    world.fleet.declared = declared
    back(world)
    world.run(3)
    assert world.states() == {"h0": "HEALTHY", "h1": "HEALTHY"}


def test_what_lies_beneath_a_window_is_what_the_host_would_be_without() -> None:
    """It is read from the words of the score, as no other column has it."""
    world = World(hosts=2)
    throttle(world.hosts[1], 2)
    world.run(20)
    plain = world.score(world.hosts[1])
    declare(world, window(0, 60))
    world.run(1)
    held = world.score(world.hosts[1])
    assert held.state is State.MAINTENANCE
    found = without_maintenance(held)
    assert found.state is State.DEGRADED and found.reason is plain.reason
    assert found.reason_words == plain.reason_words
    assert without_maintenance(plain) is plain
    strange = replace(held, reason_words=held.reason_words.replace("DEGRADED", "NEWER"))
    assert without_maintenance(strange).state is State.UNKNOWN
