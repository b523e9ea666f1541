"""Readings move from the live file to Parquet, and views show the same rows."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.store.parquet.host_ranges import HostRange, ranges
from tests.processes import GUARD_SECONDS


def fill(past: Any, minutes: int = 10) -> None:
    """Store readings of two hosts with two GPUs, every 30 s."""
    for number in range(minutes * 2):
        for host in ("a", "b"):
            past.put(
                values={
                    "power_watts": 100.0 + number,
                    "violation_power_nanoseconds": 1000 * number,
                },
                host=host,
                devices=(f"GPU-{host}0", f"GPU-{host}1"),
            )
        past.put("host_1s", {"cpu_user_ratio": number / 100}, devices=("host",))
        past.later(30)


@pytest.mark.slow
def test_the_same_rows_before_and_after(past: Any) -> None:
    """After the export `readings.gpu_1s` showed some readings twice, and others not at all."""
    fill(past)
    query = "FROM readings.gpu_1s ORDER BY ALL"
    before, latest = past.ask(query), past.ask("FROM latest.gpu_1s ORDER BY ALL")
    assert len(before) == 80
    past.later(6)
    turn_log = past.turn()
    assert [line for line in turn_log if line.startswith("exported")] == [
        "exported gpu_1s 202611201000: 40 rows",
        "exported host_1s 202611201000: 10 rows",
        "exported gpu_1s 202611201005: 40 rows",
        "exported host_1s 202611201005: 10 rows",
    ]
    assert past.live_tables() == []
    assert past.ask(query) == before
    assert past.ask("FROM latest.gpu_1s ORDER BY ALL") == latest
    past.put(values={"power_watts": 7.0})
    assert len(past.ask(query)) == 81
    again = past.again()
    assert len(again.ask(query)) == 81


@pytest.mark.slow
def test_anybody_s_duckdb_reads_the_files(past: Any) -> None:
    """A colleague with a notebook has no Gangline: the files alone must suffice."""
    fill(past)
    past.later(6)
    past.turn()
    with duckdb.connect() as other:
        files = f"read_parquet('{past.folder}/segments/gpu_1s/*/*.parquet', union_by_name = true)"
        rows = other.execute(f"SELECT * FROM {files} ORDER BY ALL").fetchall()
    assert rows == past.ask("FROM readings.gpu_1s ORDER BY ALL")


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
def test_it_runs_beside_the_writer_by_default(make_past: Any, tmp_path: Path) -> None:
    """A setting that is off by default is a feature without users."""
    past = make_past(
        tmp_path / "data", settings={"history_on": True, "history_seconds": 0.1}
    ).open()
    past.put(values={"power_watts": 5.0})
    assert past.store.history.exported_rows == 0
    past.later(306)
    exported = threading.Event()
    past.store.history._segment_store.step = lambda name: (
        exported.set() if name == "published" else None
    )
    assert exported.wait(GUARD_SECONDS)
    assert past.ask("SELECT power_watts FROM readings.gpu_1s") == [(5.0,)]
    past.close()
    with duckdb.connect(str(past.folder / "operators.duckdb"), read_only=True) as operators:
        assert operators.execute("SELECT count(*) FROM history.moved").fetchall() == [(0,)]
    assert not (past.folder / "spill-history").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
def test_readings_that_have_left_are_in_the_operators_file(past: Any) -> None:
    """Five minutes after midnight the operators' file had no readings: all were exported."""
    past.put(values={"power_watts": 5.0})
    past.later(200)
    past.put(values={"power_watts": 6.0})
    past.later(110)
    past.turn()
    assert past.live_tables() == []
    past.close()
    with duckdb.connect(str(past.folder / "operators.duckdb"), read_only=True) as operators:
        rows = operators.execute("SELECT power_watts FROM readings.gpu_1s").fetchall()
    assert rows == [(6.0,)]
    past.open()


def test_hosts_are_exported_some_at_a_time(make_past: Any, tmp_path: Path) -> None:
    """Five minutes of a large fleet exceed memory: they are sorted in pieces, into one file."""
    past = make_past(tmp_path / "data", settings={"history_rows_max": 1000}).open()
    past.history._segment_store.rows_max = 3
    for host in ("c", "a", "b", "d"):
        past.put(values={"power_watts": 1.0}, host=host, devices=("G0", "G1"))
    past.later(306)
    past.turn()
    files = [file_name for file_name in past.files() if file_name.startswith("segments")]
    assert files == ["segments/gpu_1s/2026112010/202611201000-0.parquet"]
    path = past.folder / files[0]
    with duckdb.connect() as other:
        rows = other.execute(f"SELECT host || device FROM '{path}'").fetchall()
        groups = other.execute(
            f"SELECT DISTINCT row_group_id FROM parquet_metadata('{path}')"
        ).fetchall()
    assert [name for (name,) in rows] == [f"{h}G{g}" for h in "abcd" for g in (0, 1)]
    assert len(groups) == 4
    past.close()


def test_a_turn_is_short_however_large_a_part_is(make_past: Any, tmp_path: Path) -> None:
    """A part that took several turns was exported, then searched for again without success."""
    past = make_past(tmp_path / "data", settings={"history_rows_max": 1000}).open()
    past.history._segment_store.rows_max = 1
    for host in ("a", "b", "c"):
        past.put(values={"power_watts": 1.0}, host=host)
        past.put("host_1s", {"cpu_user_ratio": 0.5}, host=host, devices=("host",))
    past.later(306)
    turns = 0
    while past.live_tables() or past.history._jobs:
        past.history.turn(past.now_ns, 0.0)
        assert past.history.failing == ""
        turns += 1
        assert turns < 100
    assert turns > 6
    assert past.ask("SELECT count(*) FROM readings.gpu_1s") == [(3,)]
    past.close()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 100))
def test_ranges_cover_every_host_once(counts: list[int], rows_max: int) -> None:
    """A host between two ranges was in neither file."""
    hosts = [(f"h{number:02}", count) for number, count in enumerate(counts)]
    cut = ranges(hosts, rows_max)
    assert (cut[0].after, cut[-1].last) == (None, None)
    for host_range, next_range in pairwise(cut):
        assert host_range.last == next_range.after
    for host_range in cut:
        counts_in_range = [
            count
            for host, count in hosts
            if (host_range.after is None or host > host_range.after)
            and (host_range.last is None or host <= host_range.last)
        ]
        assert sum(counts_in_range) == host_range.rows
        assert host_range.rows <= rows_max or len(counts_in_range) == 1


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), max_size=6), st.integers(1, 20)
)
def test_ranges_cover_every_device_once(counts: list[list[int]], rows_max: int) -> None:
    """A day of one host's links exceeded DuckDB's memory: the merge failed night after night."""
    parts = {
        f"h{host}": [(f"d{number}", count) for number, count in enumerate(devices)]
        for host, devices in enumerate(counts)
    }
    hosts = [(host, sum(count for _, count in parts[host])) for host in parts]
    all_devices = [(host, device, count) for host in parts for device, count in parts[host]]
    covered = []
    for host_range in ranges(hosts, rows_max, parts.__getitem__):
        low = host_range.after or "", host_range.after_device or ""
        devices_in_range = [
            host_device for host_device in all_devices if _is_within(host_device[:2], host_range)
        ]
        assert sum(count for _, _, count in devices_in_range) == host_range.rows
        assert host_range.rows <= rows_max or len(devices_in_range) == 1
        assert all(host_device[:2] > low for host_device in devices_in_range)
        covered += devices_in_range
    assert covered == all_devices  # in order, so that sorted pieces make a sorted file


def _is_within(device: tuple[str, str], one: HostRange) -> bool:
    limits = zip(
        device,
        ((one.after, one.last), (one.after_device, one.last_device)),
        strict=True,
    )
    return all(
        (after is None or name > after) and (last is None or name <= last)
        for name, (after, last) in limits
    )
