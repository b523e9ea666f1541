"""The operators' file: the latest of everything and the last minutes, in a small DuckDB file of its own.

Written under a temporary name and renamed into place, so that whoever opens it finds it
whole; a reader that has the one before open keeps it. It holds the same names as the live file.
What there is no room for is left out oldest first, and `snapshot.left_out` says so. What hardly changes
stands in a base beside it, which is copied as bytes: to write it again would cost more than all else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import copyfile
from typing import Any

import duckdb

from ..history.merging import rollup_view
from ..sql import quoted
from .latest import FIRST_SECONDS, Cursor, DamagedBefore, Latest
from .layout import BY_NAME, COLUMNS, definitions
from .newfile import NewFile, new_file
from .opscopies import CLEARED, COPIES, DAYS, STANDING, Copy
from .storefile import OPS_FILE, cause, ops_script, script, wal_of

#: Readings this old are left out; what travels on change is little, and tells of trouble for longer.
READINGS_SECONDS, CHANGES_SECONDS = 300, 3600
#: The last reading of a signal that only some agent knows is looked for this far back.
BY_NAME_SECONDS = 600
#: What hosts have is the largest part and hardly changes: beyond so many devices it is taken anew at most
#: this often, and `left_out` says how old it is.
DEVICES_AT_ONCE, DEVICES_SECONDS = 100_000, 60
#: Rollups go into the base, which is made anew for them this often; of each at most so many cells.
ROLLUPS_SECONDS, ROLLUPS_CELLS_MAX = 600, 4_000_000
#: Rollup -> how many seconds back.
ROLLUPS: dict[str, int] = {
    f"{table}_{grain}": seconds
    for table in ("gpu_1s", "rdma_1s", "host_1s")
    for grain, seconds in (("1m", 86_400), ("1h", 14 * 86_400))
}
#: Readings of a fleet so large that there is room for less than so many seconds are left out whole.
READINGS_SECONDS_MIN = 10
#: What is copied is in memory so many rows at a time.
BATCH_ROWS = 8192


@dataclass(frozen=True, slots=True)
class Span:
    """The last *seconds* of a table with a column `time`, or as many of them as *rows_max* allow."""

    table: str
    seconds: int
    rows_max: int

    def fitting(
        self, of: OpsFile, now_us: int, left_out: list[str], seconds_min: float = 0.0
    ) -> str:
        """Return the condition, and say in *left_out* when it is for less, or, below *seconds_min*, for nothing."""
        span_us = self.seconds * 1_000_000
        while True:
            where = f"WHERE time > make_timestamp({now_us - span_us})"
            count = of.count(f"FROM {self.table} {where}")
            if count <= self.rows_max or not span_us:
                break
            span_us = span_us * self.rows_max // count
        if span_us == self.seconds * 1_000_000:
            return where
        if span_us < seconds_min * 1e6:
            left_out.append(f"{self.table}: all, {self.rows_max:,} rows are {span_us / 1e6:.1f} s")
            return "WHERE false"
        left_out.append(f"{self.table}: all but the last {span_us / 1e6:.0f} s of {self.seconds} s")
        return where


@dataclass(slots=True)
class OpsFile:
    """Writes the operators' file of the store in *folder*, from cursors on the live file."""

    folder: Path
    cursor: Cursor
    rows_max: int
    _hosts: tuple[Any, ...] = field(default=(), init=False)  # of which the base is
    _base_ns: int = field(default=0, init=False)
    _devices: int = field(default=0, init=False)
    _no_room: list[str] = field(default_factory=list[str], init=False)  # for, in the base
    _lag_seconds: float = field(default=FIRST_SECONDS, init=False)  # as of the file before
    _is_before_damaged: bool = field(default=False, init=False)

    def write(self, now_ns: int, lag_seconds: float = 0.0) -> None:
        """Write the file anew as of *now_ns*, when readings have waited so long for a commit.

        Raises duckdb.Error or OSError; the file before stays.
        """
        target, base = self.folder / OPS_FILE, self.folder / "operators-base.duckdb"
        temporary = target.with_name("operators-new.duckdb")
        left_out = self._renew(base, temporary, now_ns)
        try:
            copyfile(base, temporary)
            with new_file(temporary) as file:
                before = None if self._is_before_damaged else target
                _Filling(self, file, now_ns // 1000, left_out).fill(before, self._lag_seconds)
            temporary.replace(target)
            self._lag_seconds, self._is_before_damaged = lag_seconds, False
        except BaseException as error:
            self._is_before_damaged |= isinstance(error, DamagedBefore)
            _remove(temporary)  # on a full disk it would hold the little that is left
            _remove(base)  # nor is a base trusted that a file could not be made of
            raise

    def _renew(self, base: Path, temporary: Path, now_ns: int) -> list[str]:
        """Make the base anew where that is due; return what it has no room for or does not have yet."""
        ((count, last),) = self.fetch("SELECT count(*), max(registered) FROM hosts")
        age_seconds = abs(now_ns - self._base_ns) / 1e9
        same = (count, last) == self._hosts
        wait = self._devices > DEVICES_AT_ONCE and age_seconds < DEVICES_SECONDS
        if base.exists() and (wait or (same and age_seconds < ROLLUPS_SECONDS)):
            old = [] if same else [f"devices: as they were {age_seconds:.0f} s before"]
            return self._no_room + old
        try:
            _remove(temporary)
            with new_file(temporary) as file:
                made = _Base(self, file, now_ns // 1000, [])
                self._devices = made.make()
            temporary.replace(base)
        except BaseException:
            _remove(temporary)
            raise
        self._hosts, self._base_ns, self._no_room = (count, last), now_ns, made.no_room
        return list(self._no_room)

    def read(self, query: str) -> Any:
        """Return a query of the live file as a `pyarrow.Table`."""
        with self.cursor() as cursor:
            return cursor.sql(query).to_arrow_table()

    @contextmanager
    def rows(self, query: str) -> Iterator[Any]:
        """Yield the rows of a query of the live file as a `pyarrow.RecordBatchReader`: they are read as they are taken."""
        with self.cursor() as cursor:
            yield cursor.sql(query).to_arrow_reader(BATCH_ROWS)

    def count(self, source: str) -> int:
        """Return how many rows *source* (`FROM ..`) has."""
        return int(self.fetch(f"SELECT count(*) {source}")[0][0])

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the live file."""
        with self.cursor() as cursor:
            return cursor.execute(query).fetchall()


@dataclass(frozen=True, slots=True)
class _Base:
    """The base while it is made: every table and view, empty but for what stands."""

    of: OpsFile
    file: NewFile
    now_us: int
    no_room: list[str]

    def make(self) -> int:
        """Return how many devices it holds."""
        self.file.begin()
        execute = self.file.connection.execute
        execute(_empty_tables())
        comments = dict(self.of.fetch("SELECT table_name, comment FROM duckdb_tables()"))
        for table in dict.fromkeys([*(copy.table for copy in COPIES), *STANDING]):
            self._put(table, self.of.read(f"FROM {table} LIMIT 0"), comments.get(table))
        for table in STANDING:
            with self.of.rows(f"FROM {table}") as rows:
                self.file.insert(table, rows)
        for copy in (CLEARED, DAYS):
            self._put_newest(copy)
        self._put_rollups()
        execute(ops_script())
        execute(script("history.sql"))
        ((devices,),) = execute("SELECT count(*) FROM devices").fetchall()
        return int(devices)

    def _put_newest(self, copy: Copy) -> None:
        """Copy what hazards are explained by: findings of the past, and what was measured each day."""
        query = f"FROM {copy.table} WHERE {copy.where(self.now_us)}"
        if (count := self.of.count(query)) > copy.rows_max:
            self.no_room.append(f"{copy.table}: the newest {copy.rows_max:,} of {count:,} rows")
        newest = f"{query} ORDER BY {copy.column} DESC LIMIT {copy.rows_max}"
        ((told,),) = self.of.fetch(_COMMENT.format(quoted(copy.table)))
        self._put(copy.table, self.of.read(newest), told)

    def _put_rollups(self) -> None:
        """Copy the rollups that the live file has views of."""
        self.file.connection.execute("CREATE SCHEMA rollups")
        for name, width in self.of.fetch(_ROLLUPS):
            if name in ROLLUPS:
                span = Span(f"rollups.{name}", ROLLUPS[name], ROLLUPS_CELLS_MAX // width)
                self._put(f"rollups.{name}", self._rollup(name, span), _OF_ROLLUPS)

    def _rollup(self, name: str, span: Span) -> Any:
        """Return what is copied of a rollup; nothing of one with a file that is damaged: all else is needed now."""
        try:
            where = span.fitting(self.of, self.now_us, self.no_room)
            return self.of.read(f"FROM {span.table} {where}")
        except duckdb.Error as error:
            words = cause(error, self.of.folder)
            self.no_room.append(f"{span.table}: all, it cannot be read: {words}")
            return self.of.read(rollup_view(name.rpartition("_")[0], {}))

    def _put(self, name: str, arrow: Any, comment: str | None) -> None:
        """Make a table of *arrow*."""
        execute = self.file.connection.execute
        self.file.connection.register("like", arrow)
        execute(f'CREATE TABLE {name} AS FROM "like" LIMIT 0')
        self.file.connection.unregister("like")
        execute(f"COMMENT ON TABLE {name} IS {quoted(comment or '')}")
        self.file.insert(name, arrow.to_batches())


@dataclass(frozen=True, slots=True)
class _Filling:
    """A copy of the base while it is filled."""

    of: OpsFile
    file: NewFile
    now_us: int
    left_out: list[str]

    def fill(self, before: Path | None, lag_seconds: float) -> None:
        """Put in all but the base; *lag_seconds*: as of the file *before*. Raises duckdb.Error, DamagedBefore."""
        latest = Latest(self.file, self.of.cursor, self.now_us, lag_seconds)
        latest.attach(before)
        stored = {name for (name,) in self.of.fetch(_HOURS)}
        self.file.begin()
        self.left_out.extend(latest.insert(stored, dict(self.of.fetch(_DEVICES))))
        for copy in COPIES:
            self._insert(copy.table, self._newest(copy))
        self._put_readings(stored)
        self._tell()

    def _newest(self, copy: Copy) -> str:
        where = f"FROM {copy.table} WHERE {copy.where(self.now_us)}"
        count = self.of.count(where) if copy.rows_max else 0
        if count <= copy.rows_max:
            return where
        self.left_out.append(f"{copy.table}: the newest {copy.rows_max:,} of {count:,} rows")
        return f"{where} ORDER BY {copy.column} DESC LIMIT {copy.rows_max}"

    def _put_readings(self, stored: set[str]) -> None:
        for table in sorted(COLUMNS.keys() & stored):
            self._insert(f"readings.{table}", self._readings(table))
        if BY_NAME in stored:
            since = self.now_us - BY_NAME_SECONDS * 1_000_000
            self._insert(f"latest.{BY_NAME}", _LATEST_BY_NAME.format(since))

    def _readings(self, table: str) -> str:
        span = Span(f"readings.{table}", _seconds_of(table), self.of.rows_max)
        where = span.fitting(self.of, self.now_us, self.left_out, READINGS_SECONDS_MIN)
        return f"FROM readings.{table} {where}"

    def _tell(self) -> None:
        since_us = self.now_us - READINGS_SECONDS * 1_000_000
        self.file.connection.execute(taken_is(self.now_us))
        self.file.connection.execute(
            "INSERT INTO snapshot VALUES (make_timestamp(?), make_timestamp(?), ?)",
            [self.now_us, since_us, self.left_out],
        )

    def _insert(self, name: str, query: str) -> None:
        with self.of.rows(query) as rows:
            self.file.insert(name, rows)


def taken_is(taken_us: int) -> str:
    """Return the SQL that lets `ops.taken()` be a constant."""
    return f"CREATE OR REPLACE MACRO ops.taken() AS make_timestamp({taken_us}); {_TAKEN_IS}"


def pause_seconds(period_seconds: float, took_seconds: float) -> float:
    """Return how long to wait after a file that took so long to write: until *period_seconds* have passed, or twice
    as many, so that a large fleet's file takes an eighth of a processor and no more."""
    whole = max(period_seconds, min(2 * period_seconds, 8 * took_seconds))
    return max(0.0, whole - took_seconds)


def _seconds_of(table: str) -> int:
    return CHANGES_SECONDS if table.endswith("_changes") else READINGS_SECONDS


_LATEST_BY_NAME = (
    f"FROM readings.{BY_NAME} WHERE time > make_timestamp({{}}) "
    "QUALIFY row_number() OVER (PARTITION BY host, device, signal ORDER BY time DESC) = 1"
)

_COMMENT = (
    "SELECT comment FROM (SELECT view_name AS name, comment FROM duckdb_views() UNION ALL "
    "SELECT table_name, comment FROM duckdb_tables()) WHERE name = {}"
)
_OF_ROLLUPS = "readings by minute and by hour, as far back as there is room for"
#: The rollups there are, and how many columns each has.
_ROLLUPS = (
    "SELECT table_name, count(*) FROM duckdb_columns() WHERE schema_name = 'rollups' GROUP BY ALL"
)
_DEVICES = "SELECT kind, count(*) FROM devices GROUP BY kind"
#: Which tables of readings have any, in the live file (`hours.py`) or in Parquet.
_HOURS = (
    "SELECT DISTINCT regexp_replace(table_name, '__[0-9]+$', '') FROM duckdb_tables() "
    "WHERE schema_name = 'hours' UNION "
    "SELECT DISTINCT table_name FROM main.segments WHERE grain = 'raw' AND gone IS NULL"
)


_TAKEN_IS = (
    "COMMENT ON MACRO ops.taken IS 'as of when everything here is: SELECT ops.taken() AS taken'"
)
_SNAPSHOT = "as of when everything here is, since when there are readings, and what had no room"


@cache
def _empty_tables() -> str:
    """Return the script that makes all schemas and tables of readings; most stay empty on most hosts."""
    made = [f"CREATE SCHEMA {schema}" for schema in ("latest", "readings", "ops")]
    for table, columns in COLUMNS.items():
        minutes = f"the last {_seconds_of(table) // 60} minutes, or as many as there is room for"
        for schema, comment in (
            ("latest", "the last reading of each device"),
            ("readings", minutes),
        ):
            made.append(f"CREATE TABLE {schema}.{table} ({definitions(columns)})")
            made.append(f"COMMENT ON TABLE {schema}.{table} IS '{comment}'")
    made.append(
        "CREATE TABLE snapshot (taken TIMESTAMP, readings_since TIMESTAMP, left_out VARCHAR[])"
    )
    made.append(f"COMMENT ON TABLE snapshot IS '{_SNAPSHOT}'")
    return ";\n".join(made)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    wal_of(path).unlink(missing_ok=True)
