"""The world of `gangline simulate --world FILE`, edited or damaged."""

from __future__ import annotations

import random

from gangline.simulator.scenario import ScenarioError
from gangline.simulator.scenario_file import PATH, parse
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged

WORLD = PATH.read_bytes()


def fuzz_world(source: random.Random) -> str:
    """A world within its bounds, or a ScenarioError."""
    try:
        settings = parse(damaged(WORLD, source).decode("utf-8", "replace"))
    except ScenarioError as error:
        assert str(error)
        return REFUSED
    assert all(0 <= class_.rate <= 1 for class_ in settings.classes.values())
    return ACCEPTED


TARGETS = {"world": fuzz_world}
