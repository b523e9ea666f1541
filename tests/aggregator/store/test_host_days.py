"""Measurements of each host at the start of a day outlive the score that contained them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import duckdb
import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.hazard.features import OBSERVED_NAMES, SCORE_FEATURE_NAMES
from gangline.aggregator.model import Finding
from gangline.aggregator.store.duckdb_file import migrations
from gangline.aggregator.store.host_days import DAY_US, HOUR_US, fill_host_days
from gangline.aggregator.store.store import Store
from gangline.aggregator.store.store_folder import STORE_FILE
from tests.aggregator.run_time import set_run_time
from tests.processes import GUARD_SECONDS

MIDNIGHT_US = 1_795_132_800 * 1_000_000  # 2026-11-20 00:00 UTC
TEN_US = MIDNIGHT_US + 10 * HOUR_US
SECOND_US = 1_000_000

_KILLED = """
import os, signal, sys
from pathlib import Path
from gangline.aggregator.store import retention_rules as hostdays
from tests.aggregator.store.test_host_days import DAY_US, TEN_US, committed

real = hostdays.fill_host_days
def fill(connection, now_us):
    real(connection, now_us)
    assert connection.execute("SELECT count(*) FROM host_days").fetchall() == [(1,)]
    os.kill(os.getpid(), signal.SIGKILL)

hostdays.fill_host_days = fill
committed(Path(sys.argv[1]), TEN_US - 5 * DAY_US, TEN_US)
"""


def put(
    base: Any, host: str, time_us: int, errors: float | None, model: str | None = "prior"
) -> None:
    """Store a score with only these features."""
    features = dict.fromkeys(SCORE_FEATURE_NAMES, 0.0) | {"corrected_errors": errors, "speed": None}
    base.execute(
        "INSERT INTO scores (time, host, hazard_model, features) VALUES (make_timestamp(?::BIGINT), ?, ?, map(?, ?::DOUBLE[]))",
        [time_us, host, model, list(features), list(features.values())],
    )


def rows(base: Any) -> list[tuple[Any, ...]]:
    """Return (host, days before the twentieth, seconds of that day, errors, speed), sorted."""
    records = base.execute(
        "SELECT host, epoch_us(day), epoch_us(time), corrected_errors, speed FROM host_days ORDER BY ALL"
    ).fetchall()
    return [(host, (MIDNIGHT_US - day) // DAY_US, (time - day) / 1e6, *rest) for host, day, time, *rest in records]  # fmt: skip


@pytest.fixture
def base() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty store, in memory."""
    with duckdb.connect() as connection:
        for _, text in migrations():
            connection.execute(text)
        yield connection


def test_the_columns_are_what_is_observed(base: Any) -> None:
    """A new observed signal without a column needs a migration."""
    names = [name for (name,) in base.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = 'host_days'").fetchall()]  # fmt: skip
    assert tuple(names) == ("host", "day", "time", *OBSERVED_NAMES)


def test_the_first_score_of_each_host_and_day_is_kept_once(base: Any) -> None:
    """Repeated, at restarts and with a clock set back, it stores a row per host and day."""
    for day in (2, 1, 0):
        for minutes, errors in ((3, day + 0.5), (8, 99.0), (70, 999.0)):
            put(base, "a", MIDNIGHT_US - day * DAY_US + minutes * 60 * SECOND_US, errors)
    put(base, "late", MIDNIGHT_US - DAY_US + 2 * HOUR_US, 7.0)  # its first score is from 02:00
    put(base, "before version 9", MIDNIGHT_US + SECOND_US, 7.0, None)
    put(base, "b", MIDNIGHT_US + 59 * 60 * SECOND_US, None)
    fill_host_days(base, MIDNIGHT_US + HOUR_US - 1)
    assert rows(base) == [("a", 2, 180.0, 2.5, None), ("a", 1, 180.0, 1.5, None)]
    expected = [*rows(base), ("a", 0, 180.0, 0.5, None), ("b", 0, 3540.0, None, None)]
    for now_us in (MIDNIGHT_US + HOUR_US, TEN_US, MIDNIGHT_US - DAY_US, TEN_US + DAY_US):
        fill_host_days(base, now_us)
        assert rows(base) == expected


def test_a_score_that_waited_for_a_full_disk_is_taken(base: Any) -> None:
    """The disk was full from 00:05 to 02:00: some hosts had their row, others did not."""
    put(base, "a", MIDNIGHT_US + 60 * SECOND_US, 1.0)
    fill_host_days(base, TEN_US)
    put(base, "b", MIDNIGHT_US + 360 * SECOND_US, 2.0)
    put(base, "a", MIDNIGHT_US + 360 * SECOND_US, 2.0)
    fill_host_days(base, TEN_US + HOUR_US)
    assert rows(base) == [("a", 0, 60.0, 1.0, None), ("b", 0, 360.0, 2.0, None)]


@pytest.mark.slow
def test_an_empty_store_and_one_of_long_ago(base: Any) -> None:
    """An empty store is valid; days beyond the retention are not filled."""
    fill_host_days(base, TEN_US)
    put(base, "a", MIDNIGHT_US - 500 * DAY_US + SECOND_US, 1.0)
    put(base, "a", MIDNIGHT_US - 399 * DAY_US + SECOND_US, 2.0)
    fill_host_days(base, TEN_US)
    assert rows(base) == [("a", 399, 1.0, 2.0, None)]


@dataclass
class Life:
    """A store and its clock, from a start to its end."""

    folder: Path
    now_us: int
    store: Any = None

    def __enter__(self) -> Self:
        config = AggregatorConfig(
            data=self.folder, commit_seconds=0.01, ops_seconds=3600.0, history_days=3
        )

        def now_ns() -> int:
            return self.now_us * 1000

        self.store = Store.open(self.folder, config, now_ns, now_ns)
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close(GUARD_SECONDS)

    def put(self, host: str, time_us: int) -> None:
        self.store.in_transaction(lambda base: put(base, host, time_us, 1.0))

    def commit_at(self, now_us: int) -> None:
        """Commit once, which also applies retention."""
        self.now_us = now_us
        self.store.submit_findings([Finding("b", "gpu.xid", "", "new", now_us * 1000)])
        self.store.request_commit()
        self.store.in_transaction(lambda _: None)


def committed(folder: Path, since_us: int, *times_us: int) -> None:
    """Start at *since_us*, and commit at each of *times_us*."""
    with Life(folder, since_us) as life:
        for now_us in times_us:
            life.commit_at(now_us)


def counted(folder: Path) -> tuple[int, int]:
    """Return the row counts of `scores` and `host_days`."""
    with duckdb.connect(str(folder / STORE_FILE), read_only=True) as base:
        return base.execute("SELECT (SELECT count(*) FROM scores), (SELECT count(*) FROM host_days)").fetchall()[0]  # fmt: skip


@pytest.mark.slow
def test_days_outlive_the_scores_for_400_days(tmp_path: Path) -> None:
    """Scores are kept for two weeks, a model needs eight: measurements were lost with them."""
    with Life(tmp_path, MIDNIGHT_US - 20 * DAY_US) as life:
        for day in (20, 10, 1):
            at_us = MIDNIGHT_US - day * DAY_US
            life.put("a", at_us + SECOND_US)
            life.commit_at(at_us + 2 * SECOND_US)
        life.commit_at(TEN_US)
    assert counted(tmp_path) == (1, 3)
    committed(tmp_path, TEN_US, TEN_US + 385 * DAY_US)
    assert counted(tmp_path) == (0, 2)


@pytest.mark.slow
def test_a_kill_between_keeping_and_letting_go_loses_nothing(tmp_path: Path) -> None:
    """A kill within the commit that keeps a day and deletes its score does both, or neither."""
    with Life(tmp_path, MIDNIGHT_US - 5 * DAY_US) as life:
        life.put("a", MIDNIGHT_US - 5 * DAY_US)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)], capture_output=True, text=True, timeout=GUARD_SECONDS, check=False
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    with duckdb.connect(str(tmp_path / STORE_FILE)) as base:  # includes its WAL
        assert base.execute("SELECT count(*) FROM scores").fetchall() == [(1,)]
        assert base.execute("SELECT count(*) FROM host_days").fetchall() == [(0,)]
    set_run_time(tmp_path, MIDNIGHT_US - 5 * DAY_US, TEN_US)
    committed(tmp_path, TEN_US - 5 * DAY_US, TEN_US)
    assert counted(tmp_path) == (0, 1)
