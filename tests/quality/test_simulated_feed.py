"""The aggregator receives the same input over an episode as a real aggregator."""

from __future__ import annotations

from typing import Any

import pytest

from bench.quality.simulated_feed import feed
from gangline.aggregator.fleet.fleet import Fleet
from gangline.simulator.world import World

PARADE = World("parade", 1)


@pytest.mark.parametrize(("name", "boots"), [("agent_restart", 1), ("planned_reboot", 2)])
def test_an_agent_that_starts_again_registers_again(
    name: str, boots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart without a boot was three seconds of silence, in three of ten cases: the rest of the row had watched nothing."""
    number = next(n for n, class_ in enumerate(PARADE.schedule.classes) if class_.name == name)
    row = PARADE.schedule.rows[PARADE.schedule.rows["cls"] == number][0]
    seen = list[bytes]()
    register = Fleet.register

    def registered(self: Fleet, name: str, **more: Any) -> int:
        seen.append(more["boot_id"])
        return register(self, name, **more)

    monkeypatch.setattr(Fleet, "register", registered)
    feed(PARADE, [int(row["host"])], float(row["begin"]) - 25.0, float(row["end"]) + 30.0)
    assert (len(seen), len({*seen})) == (2, boots)
