"""The aggregator's clock was set back by a day: rows stored ahead of it are not current."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.scoring.score_rows import with_gpu_states
from gangline.aggregator.store import restored_state
from gangline.aggregator.store.rows import HostRecord
from tests.aggregator.store.test_latest_readings import NOW_NS, SECOND_NS, Fleet
from tests.worlds import World, gpu_of

pytestmark = pytest.mark.usefixtures("operators_files")

DAY_SECONDS, HOUR_NS = 86_400, 3600 * SECOND_NS
DAY_NS = DAY_SECONDS * SECOND_NS
SICK, DEAD, NEW = "h0", "h1", "h2"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three hosts, HEALTHY tomorrow; then one fell sick, one silent, and one has no newer row."""
    world, stored_fleet = World(hosts=3), Fleet(tmp_path_factory.mktemp("back"))
    for number, host in enumerate(world.hosts):
        gpus = tuple(("gpu", gpu_of(host, n), {"name": "H100"}) for n in range(2))
        record = HostRecord(
            host.name, number, False, b"R" * 16, host.boot_id, "", "", {}, NOW_NS, gpus
        )
        stored_fleet.store.submit_host(record, {})
    _judged(stored_fleet, world.run(20), NOW_NS + DAY_NS, SICK, DEAD, NEW)
    stored_fleet.store.submit_own_health([(NOW_NS + DAY_NS, "calls", 9.0, "")])
    for host in world.hosts:
        for table, device in (("host_1s", "host"), ("gpu_1s", gpu_of(host, 0))):
            stored_fleet.tell(host.name, {device: 9.0}, DAY_SECONDS, table)
    stored_fleet.latest()
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    world.hosts[1].silent = True
    sick = world.run(30)
    _judged(stored_fleet, sick, NOW_NS - SECOND_NS, SICK, DEAD)
    stored_fleet.store.submit_own_health([(NOW_NS - SECOND_NS, "calls", 1.0, "")])
    stored_fleet.tell(SICK, {"host": 1.0}, -1, "host_1s")
    stored_fleet.tell(SICK, {gpu_of(world.hosts[0], 0): 1.0}, -1)
    stored_fleet.store.write_ops()
    yield stored_fleet
    stored_fleet.store.close()


def _judged(fleet: Fleet, snapshot: Judgement, now_ns: int, *names: str) -> None:
    """Store scores as of *now_ns*; a STALE host last reported an hour before."""
    hosts = [
        replace(host, last_received_ns=now_ns - HOUR_NS * (host.state is HealthState.STALE))
        for host in snapshot.hosts
        if host.host in names
    ]
    fleet.store.submit_scores(
        replace(snapshot, computed_ns=now_ns), with_gpu_states(snapshot, hosts)
    )


def asked(fleet: Fleet, query: str) -> list[tuple[Any, ...]]:
    path = str(fleet.folder / "operators.duckdb")
    with duckdb.connect(path, read_only=True) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (
            "SELECT host, state FROM ops.worst()",
            [(SICK, "UNHEALTHY"), (DEAD, "STALE"), (NEW, "HEALTHY")],
        ),
        ("SELECT DISTINCT reason FROM ops.explain('h0')", [("XID_FATAL",)]),
        ("SELECT host, silent_seconds FROM ops.freshness WHERE host <> 'h2'", [(DEAD, 3601), (SICK, 1)]),
        ("SELECT state FROM ops.gpu_scores WHERE host = 'h0' AND reason = 'XID_FATAL'", [("UNHEALTHY",)]),
        ("SELECT host, state FROM ops.state_since", [(SICK, "UNHEALTHY"), (DEAD, "STALE"), (NEW, "HEALTHY")]),
        ("SELECT host, state FROM ops.changed_last_hour", [(SICK, "UNHEALTHY"), (DEAD, "STALE")]),
        ("SELECT value, age_seconds FROM ops.aggregator WHERE figure = 'calls'", [(1, 1)]),
        ("SELECT sm_clock_hertz FROM latest.gpu_1s WHERE host = 'h0'", [(1,)]),
    ],
)  # fmt: skip
def test_operators_are_told_what_is_so_now(fleet: Fleet, query: str, wanted: list[Any]) -> None:
    """A machine booted a day ahead: for a day after NTP every view showed its first minutes."""
    assert asked(fleet, query) == wanted


def test_a_restart_goes_on_from_what_was_written_last(fleet: Fleet) -> None:
    """A host dead for hours was HEALTHY, last report 0 s ago, after each start within that day."""
    with fleet.store.reading() as cursor:
        scores = {last.score.host: last.score for last in restored_state.last_scores(cursor)}
    states = {name: last.state for name, last in scores.items()}
    assert states == {SICK: HealthState.UNHEALTHY, DEAD: HealthState.STALE}
    assert scores[SICK].last_received_ns == NOW_NS - SECOND_NS
    assert scores[DEAD].last_received_ns == NOW_NS - SECOND_NS - HOUR_NS


@pytest.mark.slow
def test_a_clock_set_back_while_we_were_away_forgets_no_host(tmp_path: Path) -> None:
    """All stored rows have tomorrow's times; they are still the latest."""
    world, stored_fleet = World(hosts=2), Fleet(tmp_path)
    _judged(stored_fleet, world.run(20), NOW_NS + DAY_NS, "h0", "h1")
    stored_fleet.tell("h0", {"host": 9.0}, DAY_SECONDS, "host_1s")
    with stored_fleet.store.reading() as cursor:
        assert [last.score.host for last in restored_state.last_scores(cursor)] == ["h0", "h1"]
    stored_fleet.store.close()
