"""A short slice of `make soak`: a real aggregator, simulated agents, a round of some faults each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import soak
from tests.survival.rounds import KEPT, Broken, World


@pytest.mark.slow
def test_what_was_acknowledged_is_there_once(tmp_path: Path) -> None:
    """Two hundred rounds of all faults run apart from this; in these two most was found."""
    names = ["disk full", "WAL damaged"]
    counted = soak(tmp_path, rounds=2, seed=5, names=names, quiet=True)
    assert counted.rounds == dict.fromkeys(names, 1)


@pytest.mark.slow
def test_a_store_that_loses_or_doubles_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness must detect a frame that was acknowledged and not stored."""
    began: list[World] = []

    def lies(world: World) -> None:
        began.append(world)
        agent = world.fleet.agents[0]
        agent.told.frames.add(10**9)

    monkeypatch.setitem(KEPT, "kill -9", lies)
    with pytest.raises(Broken, match=r"host-0: acknowledged and not there: frames .1000000000."):
        soak(tmp_path, rounds=1, seed=5, names=["kill -9"], quiet=True)
    assert began and not began[0].aggregator.alive()
