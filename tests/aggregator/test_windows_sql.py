"""Views that look at a window of time: neither its edge nor one sample of it is an event."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from gangline.aggregator.model import HealthState
from tests.aggregator.store.test_latest_readings import NOW_NS, SECOND_NS, Fleet
from tests.worlds import StoredWorld, World, gpu_of

pytestmark = pytest.mark.usefixtures("operators_files")

HEAT = 0x20
MINUTE_NS = 60 * SECOND_NS


def _asked(folder: Path, query: str) -> list[tuple[object, ...]]:
    with duckdb.connect(str(folder / "operators.duckdb"), read_only=True) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.slow
@pytest.mark.parametrize(("held", "shown"), [(3, True), (1, True), (0, False)])
def test_a_gpu_that_is_held_down_in_some_samples_of_the_minute_is_shown(
    tmp_path: Path, held: int, *, shown: bool
) -> None:
    """A GPU was throttled by heat throughout, and 3 of 4 queries showed "good": each saw a single sample."""
    world = StoredWorld(2, tmp_path)
    assert world.store
    host, gpu = world.hosts[0], gpu_of(world.hosts[0], 0)
    host.set("gpu_1s", gpu, clock_event_reasons_flags=HEAT)
    world.run(10)
    host.set("gpu_1s", gpu, clock_event_reasons_flags=0)
    world.run(61)  # times before the minute do not count
    for flags in 15 * ([HEAT] * held + [0] * (4 - held)):
        host.set("gpu_1s", gpu, clock_event_reasons_flags=flags)
        world.run(1)
    world.store.close(60.0)
    rows = _asked(tmp_path, "SELECT host, gpu, held_down_by, held_down_ratio FROM ops.throttled")
    ratio = pytest.approx(held / 4, abs=0.02)
    assert rows == [(host.name, gpu, "heat (software)", ratio)] * shown


@pytest.mark.slow
def test_a_gpu_whose_driver_counts_time_that_no_sample_met_is_shown(tmp_path: Path) -> None:
    """The flag is a momentary value, the counter of nanoseconds covers the whole time."""
    world = StoredWorld(2, tmp_path)
    assert world.store
    gpu = gpu_of(world.hosts[1], 1)
    world.run(10)
    world.hosts[0].silent = True  # a single reading of it, which is not a time span
    world.hosts[1].grow("gpu_1s", gpu, violation_thermal_nanoseconds=2e8)
    world.run(65)
    world.store.close(60.0)
    rows = _asked(
        tmp_path, "SELECT gpu, held_down_by, thermal_ratio, power_ratio FROM ops.throttled"
    )
    assert rows == [(gpu, "heat", pytest.approx(0.2, abs=0.01), 0)]


@pytest.mark.slow
def test_the_oldest_score_of_the_hour_is_no_change(tmp_path: Path) -> None:
    """29 healthy hosts were "first judged" an hour ago at each query, and so was a host that had long been ill."""
    world, fleet = World(hosts=3), Fleet(tmp_path)
    long_ill, new, changed = world.run(20).hosts
    states = {
        long_ill.host: [(minute, HealthState.UNHEALTHY) for minute in range(-117, 0, 5)],
        changed.host: [
            (-61, HealthState.HEALTHY),
            *((minute, HealthState.WATCH) for minute in range(-58, 0, 5)),
        ],
        new.host: [(minute, HealthState.HEALTHY) for minute in range(-20, 0, 5)],
    }
    for host in (long_ill, new, changed):
        for minute, state in states[host.host]:
            snapshot = replace(world.run(1), computed_ns=NOW_NS + minute * MINUTE_NS)
            fleet.store.submit_scores(snapshot, [replace(host, state=state)])
    fleet.store.run_on_writer_thread(lambda _: None)
    fleet.store.write_ops()
    fleet.store.close()
    assert _asked(
        tmp_path,
        "SELECT host, split_part(message, ':', 1) FROM ops.changes WHERE what = 'state' ORDER BY time",
    ) == [(changed.host, "HEALTHY -> WATCH"), (new.host, "first judged HEALTHY")]
