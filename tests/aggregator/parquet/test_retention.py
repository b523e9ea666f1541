"""Hours and days become one file each; limits of age and size remove the oldest files."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.store.parquet import retention, views
from gangline.aggregator.store.parquet.retention import DiskFullness
from gangline.aggregator.store.parquet.segment_files import ParquetSegment
from gangline.aggregator.store.parquet.worker_client import PackerError

HOUR_SECONDS = 3600
RATE = "SELECT sum(violation_power_nanoseconds_increase), sum(readings_count) FROM rollups"


def hour(past: Any, values: range) -> None:
    """Store readings over an hour, one each five minutes."""
    for value in values:
        past.put(values={"power_watts": float(value), "violation_power_nanoseconds": value * 10**6})
        past.put("by_name_never", block=_strange(value))
        past.later(300)


def _strange(value: int) -> Any:
    from gangline.contract.block import Block

    block = Block("never_heard_of", ["G"], [60_001])
    block.put_int(0, 0, value)
    return block


@pytest.mark.slow
def test_an_hour_becomes_one_file_and_shows_the_same(past: Any) -> None:
    """A year of five-minute files is 100,000 files a table: no view opens them in time."""
    query = "FROM readings.gpu_1s ORDER BY ALL"
    strange = "SELECT raw FROM readings.by_name ORDER BY raw"
    hour(past, range(12))
    past.later(6)
    past.turn()
    before = past.ask(query)
    rollup = past.ask(f"{RATE}.gpu_1s_1m")
    assert past.ask(f"{RATE}.gpu_1s_1h") == [(None, None)]
    hour(past, range(12, 13))
    past.later(100)
    turn_log = past.turn()
    assert "merged 12 files into raw gpu_1s 2026112010" in turn_log
    assert "merged 12 files into 1m gpu_1s 2026112010" in turn_log
    assert past.ask(f"{query} LIMIT 12") == before
    assert past.ask(strange) == [(value,) for value in range(13)]
    assert past.ask(f"{RATE}.gpu_1s_1h") == rollup == [(11 * 10**6, 12)]
    past.later(100)  # merged files stay for readers of the old manifest
    past.turn()
    assert [p for p in past.files() if "gpu_1s" in p and "tail" not in p] == [
        "rollups/gpu_1s/1h/2026112010/2026112010-0.parquet",
        "rollups/gpu_1s/1m/2026112010/2026112010-0.parquet",
        "rollups/gpu_1s/1m/2026112011/202611201100-0.parquet",
        "segments/gpu_1s/2026112010/2026112010-0.parquet",
        "segments/gpu_1s/2026112011/202611201100-0.parquet",
    ]
    mean = "SELECT power_watts_mean, power_watts_min, power_watts_max, power_watts_last"
    assert past.ask(f"{mean} FROM rollups.gpu_1s_1h") == [(5.5, 0.0, 11.0, 11.0)]
    rate = "SELECT violation_power_nanoseconds_rate FROM rollups.gpu_1s_1h"
    assert past.ask(rate) == [(pytest.approx(10**6 / 300),)]


@pytest.mark.slow
def test_an_hour_that_cannot_be_merged_keeps_nothing_else(make_past: Any, tmp_path: Any) -> None:
    """An hour exceeded memory: for days no later hour was merged, and no old file was removed."""

    from tests.aggregator.parquet.conftest import PacksHere

    class Poisoned(PacksHere):
        def call(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
            if (name, arguments[0]) == ("ranges", "gpu_1s 2026112010"):
                raise PackerError("was killed: for want of memory?")
            return super().call(name, *arguments, memory=memory)

    folder = tmp_path / "data"
    past = make_past(folder, settings={"segments_hours": 1}, packing=Poisoned(folder)).open()
    for _ in range(2):
        past.put(values={"power_watts": 1.0})
        past.put("host_1s", {"cpu_user_ratio": 0.5}, devices=("host",))
        past.later(300)
    past.later(3 * HOUR_SECONDS)
    past.history.turn(past.now_ns, 1e9)
    assert "for want of memory" in past.history.failing
    gone = "SELECT count(*) FROM segments WHERE grain = 'raw' AND gone IS NOT NULL"
    assert past.ask(gone) == [(4,)]
    past.later(61)
    past.history.turn(past.now_ns, 1e9)
    merged = "SELECT DISTINCT table_name FROM segments WHERE grain = '1h' AND gone IS NULL"
    assert past.ask(merged) == [("host_1s",)]
    past.close()


@pytest.mark.slow
def test_a_day_of_rollups_becomes_one_file_and_anybody_reads_it(past: Any) -> None:
    """A colleague with a notebook queries the rollups while the aggregator holds its file."""
    for hour_number in range(0, 25, 4):
        past.put(
            values={"power_watts": float(hour_number), "violation_power_nanoseconds": hour_number}
        )
        past.later(4 * HOUR_SECONDS)
        past.turn()
    past.later(60)
    past.turn()
    days = [name for name in past.files() if "/20261120-0.parquet" in name]
    assert days == [
        "rollups/gpu_1s/1h/20261120/20261120-0.parquet",
        "rollups/gpu_1s/1m/20261120/20261120-0.parquet",
    ]
    with duckdb.connect() as notebook:
        for statement in views.statements(past.folder, ["gpu_1s", "host_1s"]):
            notebook.execute(statement)
        for grain in ("1m", "1h"):
            query = RATE.replace("rollups", "past")
            assert notebook.execute(f"{query}.gpu_1s_{grain}").fetchall() == [(24, 7)]
        assert notebook.execute("SELECT count(*) FROM past.gpu_1s").fetchall() == [(7,)]
        assert notebook.execute("FROM past.host_1s_1h").fetchall() == []
        plan = str(notebook.execute(
            "EXPLAIN SELECT count(*) FROM past.gpu_1s WHERE time > TIMESTAMP '2026-11-21 09:00'"
        ).fetchall())  # fmt: skip
    assert plan.count("Function:") == 1  # two days, and only the files of one


@pytest.mark.slow
def test_late_readings_do_not_widen_a_day(past: Any) -> None:
    """One host's clock showed 1970: every query opened every file."""
    past.put(values={"power_watts": 1.0})
    past.put(values={"power_watts": 2.0}, time_ns=past.now_ns - 40 * 86_400 * 10**9)
    past.later(300)
    past.put(values={"power_watts": 3.0})
    past.later(306)
    past.turn()
    names = [
        statement
        for (statement,) in past.ask(
            "SELECT sql FROM duckdb_views() WHERE schema_name = 'past' AND view_name = 'gpu_1s'"
        )
    ]
    assert names[0].count("read_parquet") == 2
    assert past.ask("SELECT power_watts FROM readings.gpu_1s ORDER BY 1") == [
        (1.0,),
        (2.0,),
        (3.0,),
    ]
    assert past.ask("SELECT count(*) FROM rollups.gpu_1s_1m") == [(3,)]


@pytest.mark.slow
def test_age_and_bytes_end_each_kind(make_past: Any, tmp_path: Any) -> None:
    """Readings of three days, minutes of a week, hours of a year: each has its own limit."""
    settings = {"segments_hours": 8, "rollups_1m_days": 1, "rollups_1h_days": 2}
    past = make_past(tmp_path / "data", settings=settings).open()
    for hour_number in range(0, 80, 8):
        past.put(values={"power_watts": float(hour_number)})
        past.later(8 * HOUR_SECONDS)
        past.turn()
    assert past.ask("SELECT min(power_watts) FROM readings.gpu_1s") == [(72.0,)]
    low, high = past.ask(
        "SELECT min(power_watts_min), max(power_watts_min) FROM rollups.gpu_1s_1m"
    )[0]
    assert 38 <= low <= 62 and high == 72
    low, high = past.ask(
        "SELECT min(power_watts_min), max(power_watts_min) FROM rollups.gpu_1s_1h"
    )[0]
    assert 12 <= low <= 38 and high == 72
    past.close()


def segment(bucket: str, size: int, grain: str = "raw") -> ParquetSegment:
    return ParquetSegment(grain, "t", bucket, f"{grain}/{bucket}", 0, 0, 1, size, 0, "")


BUCKETS = [f"20261120{hour:02}" for hour in range(10)]


@given(
    st.lists(st.integers(1, 100), min_size=10, max_size=10),
    st.integers(0, 1200),
    st.integers(0, 12 * 3600),
)
def test_what_expires_is_the_oldest_and_no_more_than_need_be(
    sizes: list[int], bytes_max: int, seconds: int
) -> None:
    """Retention by bytes once removed a file too few, and by age the newest."""
    segments = [segment(*item) for item in zip(BUCKETS, sizes, strict=True)]
    now_us = views.span_us("2026112010")[0]
    removed = retention.expired(segments, now_us - seconds * 10**6, bytes_max)
    assert removed == segments[: len(removed)]
    kept = segments[len(removed) :]
    assert sum(item.bytes for item in kept) <= bytes_max
    assert all(views.span_us(item.bucket)[1] >= now_us - seconds * 10**6 for item in kept)
    if removed:
        last = removed[-1]
        too_old = views.span_us(last.bucket)[1] < now_us - seconds * 10**6
        assert too_old or sum(item.bytes for item in kept) + last.bytes > bytes_max


def test_room_is_made_of_the_oldest_readings_first() -> None:
    """A full disk removed the year's rollups, and kept last week's raw readings."""
    segments = [
        segment(b, 10, g) for g in ("1h", "1m", "raw") for b in ("2026112011", "2026112010")
    ]
    assert [chosen.path for chosen in retention.choose_for_room(segments, 35, 0.2)] == [
        "raw/2026112010", "raw/2026112011", "1m/2026112010", "1m/2026112011",
    ]  # fmt: skip
    assert retention.choose_for_room(segments, 0, 0.2) == []
    # a neighbor's log filled the disk: the small rollups stay
    for free_share, grains in ((0.9, {"raw"}), (0.4, {"raw", "1m"}), (0.2, {"raw", "1m", "1h"})):
        assert {
            item.grain for item in retention.choose_for_room(segments, 10**9, free_share)
        } == grains


def test_room_is_not_made_again_with_each_segment() -> None:
    """The alarm came and went with every file written at the limit."""
    full = DiskFullness()
    seen = [full.bytes_to_free(free, 100) for free in (130, 100, 99, 110, 124, 125, 110, 99)]
    assert seen == [0, 0, 26, 15, 1, 0, 0, 26]


@pytest.mark.slow
def test_a_disk_almost_full_loses_the_oldest_and_says_so_once(past: Any) -> None:
    """The disk filled up on a Sunday: ingest stopped beside a week of raw readings."""
    for number in range(4):
        past.put(values={"power_watts": float(number)})
        past.later(HOUR_SECONDS)
        past.turn()
    sizes = [
        int(s)
        for (s,) in past.ask(
            "SELECT bytes FROM segments WHERE grain = 'raw' AND gone IS NULL ORDER BY bucket"
        )
    ]
    total = 1000 * sizes[0]
    wanted = int(total * 0.05)
    past.disk = (total, wanted - 1)
    for _ in range(2):
        past.turn()
    # all Parquet readings are less than the missing space: they are removed, live readings stay
    assert past.ask("SELECT count(*) FROM segments WHERE grain = 'raw'") == [(0,)]
    assert [p for p in past.files() if p.startswith("segments")] == []
    assert past.ask("SELECT sum(readings_count) FROM rollups.gpu_1s_1m") == [(4,)]
    past.put(values={"power_watts": 9.0})
    assert past.ask("SELECT power_watts FROM readings.gpu_1s") == [(9.0,)]
    assert [(f.name, f.cleared_ns) for f in past.findings] == [("store.disk_almost_full", 0)]
    assert "the oldest readings in Parquet are being removed" in past.findings[0].message
    past.disk = (total, int(wanted * 1.3))
    past.turn()
    assert [(f.name, f.cleared_ns > 0) for f in past.findings[1:]] == [
        ("store.disk_almost_full", True)
    ]


def test_a_live_file_that_is_too_large_loses_its_oldest(make_past: Any, tmp_path: Any) -> None:
    """No export worked for a day; the live file grew until the disk was full."""
    past = make_past(tmp_path / "data", settings={"live_bytes_max": 64 << 20}).open()
    past.history._maintenance._config = AggregatorConfig(data=past.folder, live_bytes_max=-1)
    past.history._next_export = lambda: None
    past.put(values={"power_watts": 1.0})
    past.later(300)
    past.put(values={"power_watts": 2.0})
    past.later(6)
    past.turn()
    assert past.live_tables() == ["gpu_1s__202611201005"]
    assert [f.name for f in past.findings] == ["store.live_full"]
    past.close()


@pytest.mark.slow
def test_a_clock_that_jumps_ends_nothing(past: Any) -> None:
    """The clock showed 2036 for a minute, and a year of rollups was too old."""
    past.put(values={"power_watts": 1.0})
    past.later(306)
    past.turn()
    past.jump(3650 * 86_400)
    past.turn()
    assert past.ask("SELECT power_watts FROM readings.gpu_1s") == [(1.0,)]
    assert [f.name for f in past.findings] == ["store.clock_jumped"]
