"""Our own outage is not the hosts' fault."""

from __future__ import annotations

import pytest

from gangline.aggregator.permits import Permits
from gangline.aggregator.verdicts import State
from tests.aggregator.world import World, gpu_of


@pytest.mark.parametrize(("silent", "ours"), [(4, True), (2, False)])
def test_past_a_twentieth_of_the_fleet_silent_within_a_minute_states_freeze(
    silent: int, ours: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rule 5: our outage is not theirs. A twentieth of the fleet that falls silent at once is the fault of the network,
    or ours: nobody is excluded for it, what was known stands, and no permit to bar hosts is given."""
    world = World(hosts=60, gpus=1)
    world.event(world.hosts[0], 79, gpu_of(world.hosts[0], 0))
    world.run(8)
    before = world.states()
    assert before["h0"] == "UNHEALTHY"
    for at, host in enumerate(world.hosts[:silent]):
        host.silent = True
        world.run(2 * (at < silent - 1))
    snapshot = world.run(20)
    went_stale = {name for name, state in world.states().items() if state == "STALE"}
    assert bool(snapshot.degraded_reason) is ours
    assert world.states()["h0"] == "UNHEALTHY"
    assert went_stale == (set() if ours else {"h1"})
    allowed = snapshot.columns.allowed(0.5)
    assert allowed[1:].all() and not allowed[0]
    permits = Permits(tmp_path_factory.mktemp("p"), 0.05, lambda: snapshot, lambda: world.now_ns)
    assert ("degraded" in permits.withheld()) is ours
    assert State.STALE not in {g.state for g in snapshot.gpus.of(5)}
