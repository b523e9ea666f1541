"""A link that slows its gang shows in its errors together with the gang's pace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gangline.aggregator.fleet.gang_changes import (
    PAUSE_WINDOWS_MAX,
    SLOW_WINDOWS_MAX,
    GangPaceMonitor,
    PaceFall,
)
from tests.worlds import World, busy, gpu_of, in_job, pass_steps

STEP_NS = 10_000_000_000
HOSTS = 6


def falls(paces: list[float]) -> list[PaceFall | None]:
    """Return the monitor's result after each window of one gang."""
    monitor = GangPaceMonitor()
    return [
        monitor.update([7], np.array([pace]), step * STEP_NS).get(0)
        for step, pace in enumerate(paces)
    ]


def test_a_fall_is_told_with_its_size_and_its_begin() -> None:
    """Paces that alternate by half a window are not a fall; a tenth less is."""
    steady = [1.0 + 0.05 * (-1) ** step for step in range(20)]
    pace_falls = falls([*steady, *(0.9 * pace for pace in steady)])
    assert pace_falls[:20] == [None] * 20
    last = pace_falls[-1]
    assert last is not None and last.ratio == pytest.approx(0.1, abs=0.03)
    assert 18 * STEP_NS <= last.since_ns <= 24 * STEP_NS
    assert falls([*steady, *(0.9 * pace for pace in steady), *steady])[-1] is None


def test_checkpoints_evaluations_and_gaps_are_no_fall() -> None:
    """Each checkpoint would have cast suspicion on a link that had an error in that minute."""
    steady = [1.0, 1.01] * 10
    pause = [0.3] * PAUSE_WINDOWS_MAX
    assert not any(falls([*steady, *pause, *steady, float("nan"), *steady, *pause, *steady]))
    assert falls([*steady, *[0.3] * 12])[-1], "what goes on is no pause"


def test_the_pace_of_an_hour_is_the_usual_one() -> None:
    """A pace that lasts an hour becomes usual; another composition of the gang restarts it."""
    paces = [*[1.0] * 20, *[0.8] * (SLOW_WINDOWS_MAX + 20)]
    pace_falls = falls(paces)
    assert pace_falls[40] and pace_falls[-1] is None
    monitor = GangPaceMonitor()
    for step in range(20):
        monitor.update([1], np.array([1.0]), step)
    assert not any(monitor.update([2], np.array([0.5]), step) for step in range(20, 40))


def world_with_links() -> World:
    world = in_job(HOSTS)
    for host in world.hosts:
        for gpu in range(2):
            link = f"{gpu_of(host, gpu)}/link0"
            host.set("nvlink_10s_changes", link, link_state=1, crc_errors=0.0)
    pass_steps(world, 20)
    return world


def slow_down(world: World) -> None:
    for host in world.hosts:
        busy(host, 0.9, 0.9)


def errors_on(host: int) -> Callable[[World], None]:
    def begin(world: World) -> None:
        sick_host = world.hosts[host]
        sick_host.grow("nvlink_10s_changes", f"{gpu_of(sick_host, 0)}/link0", crc_errors=50.0)

    return begin


def slowed_by_link(world: World) -> list[str]:
    return [
        name
        for name, host in ((h.name, world.score(h)) for h in world.hosts)
        if any(evidence.signal == "gang.slow_link" for evidence in host.evidence)
    ]


def test_errors_that_begin_as_the_pace_falls_name_the_link() -> None:
    """NVLink errors were only watched while a job ran a tenth slower for days."""
    world = world_with_links()
    slow_down(world)
    errors_on(2)(world)
    pass_steps(world, 12)
    assert slowed_by_link(world) == ["h2"]
    score = world.score(world.hosts[2])
    (evidence,) = (item for item in score.evidence if item.signal == "gang.slow_link")
    assert score.state.name == "DEGRADED" and evidence.reason.name == "NVLINK_ERRORS"
    assert evidence.relative_speed_factor == pytest.approx(0.9, abs=0.02)
    assert world.snapshot and world.snapshot.gang_waits.evidence_for(0)
    for host in world.hosts:
        busy(host, 1.0)
    pass_steps(world, 20)
    assert slowed_by_link(world) == []


@pytest.mark.parametrize("control", ["errors alone", "pace alone", "errors long before", "three hosts", "a slow host"])  # fmt: skip
def test_what_is_no_evidence_together_names_no_link(control: str) -> None:
    """A link with harmless errors must not be blamed for a smaller batch, nor for a slow host."""
    world = world_with_links()
    if control == "errors alone":
        errors_on(2)(world)
    elif control == "pace alone":
        slow_down(world)
    elif control == "errors long before":
        errors_on(2)(world)
        pass_steps(world, 30)
        slow_down(world)
    elif control == "three hosts":
        slow_down(world)
        for host in (1, 2, 3):
            errors_on(host)(world)
    else:
        slow_down(world)
        errors_on(2)(world)
        busy(world.hosts[4], 1.05, 0.9)
    pass_steps(world, 30)
    assert slowed_by_link(world) == []
