"""The snapshot file: the operators' copy of latest readings and the last minutes.

It is a small DuckDB file. It is written under a temporary name and renamed, so readers find it
complete; a reader of the previous file keeps that one. It has the same names as the live file. If
space runs out the oldest rows are left out and listed in `snapshot.left_out`. Data that rarely
changes is in a base file, which is copied as bytes, because rewriting it would cost more than
everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import copyfile
from typing import Any

import duckdb

from ..sql import quoted
from .duckdb_file import ops_script, script
from .latest_tables import FIRST_LOOKBACK_SECONDS, Cursor, DamagedPreviousError, LatestTables
from .layout import BY_NAME, COLUMNS, definitions
from .new_duckdb_file import NewFile, new_file
from .parquet.rollup import rollup_view
from .store_folder import OPS_FILE, cause, wal_of
from .table_copies import BASE_TABLES, CLEARED_FINDINGS, COPIES, HOST_DAYS, TableCopy

#: A separate file of data that rarely changes. It is copied as bytes into each new file.
BASE_FILE = "operators-base.duckdb"
#: Maximum age of readings; signals sent on change are few, and explain trouble for longer.
READINGS_SECONDS, CHANGES_SECONDS = 300, 3600
#: Lookback for the last reading of signals that only agents know.
BY_NAME_SECONDS = 600
#: Devices are the largest part and rarely change: with more than DEVICES_AT_ONCE they are copied at
#: most every DEVICES_SECONDS, and `left_out` states their age.
DEVICES_AT_ONCE, DEVICES_SECONDS = 100_000, 60
#: Rollups are in the base, which is recreated this often; each rollup has at most this many cells.
ROLLUPS_SECONDS, ROLLUPS_CELLS_MAX = 600, 4_000_000
#: Rollup -> lookback in seconds.
ROLLUPS: dict[str, int] = {
    f"{table}_{grain}": seconds
    for table in ("gpu_1s", "rdma_1s", "host_1s")
    for grain, seconds in (("1m", 86_400), ("1h", 14 * 86_400))
}
#: A table of readings is left out entirely if its rows would cover fewer seconds.
READINGS_SECONDS_MIN = 10
#: Rows per batch that a copy holds in memory.
BATCH_ROWS = 8192

_LATEST_BY_NAME = (
    f"FROM readings.{BY_NAME} WHERE time > make_timestamp({{}}) "
    "QUALIFY row_number() OVER (PARTITION BY host, device, signal ORDER BY time DESC) = 1"
)
_COMMENTS = (
    "SELECT view_name, comment FROM duckdb_views() WHERE schema_name = 'main' UNION ALL "
    "SELECT table_name, comment FROM duckdb_tables() WHERE schema_name = 'main'"
)
_ROLLUPS_COMMENT = "readings by minute and by hour, as far back as space allows"
#: Existing rollups and their numbers of columns.
_ROLLUPS = (
    "SELECT table_name, count(*) FROM duckdb_columns() WHERE schema_name = 'rollups' GROUP BY ALL"
)
_DEVICES = "SELECT kind, count(*) FROM devices GROUP BY kind"
#: Tables that have readings in the live file (`live_tables.py`) or in Parquet.
_STORED_TABLES = (
    "SELECT DISTINCT regexp_replace(table_name, '__[0-9]+$', '') FROM duckdb_tables() "
    "WHERE schema_name = 'hours' UNION "
    "SELECT DISTINCT table_name FROM main.segments WHERE grain = 'raw' AND gone IS NULL"
)
_TAKEN_COMMENT = (
    "COMMENT ON MACRO ops.taken IS 'time of this snapshot: SELECT ops.taken() AS taken'"
)
_SNAPSHOT_COMMENT = (
    "the time of this snapshot, its first readings, and what was left out for lack of space"
)


@dataclass(frozen=True, slots=True)
class RecentRows:
    """The last *seconds* of a table with a column `time`, or fewer if *rows_max* requires it."""

    table: str
    seconds: int
    rows_max: int

    def fitting_condition(
        self, ops_file: OpsFile, now_us: int, left_out: list[str], seconds_min: float = 0.0
    ) -> str:
        """Return the condition; append to *left_out* if it covers fewer seconds.

        If it covers less than *seconds_min*, nothing is copied.
        """
        span_us = self.seconds * 1_000_000
        while True:
            where = f"WHERE time > make_timestamp({now_us - span_us})"
            count = ops_file.count(f"FROM {self.table} {where}")
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
    # Count and last registration of the hosts in the base.
    _hosts: tuple[Any, ...] = field(default=(), init=False)
    _base_ns: int = field(default=0, init=False)
    _base_devices: int = field(default=0, init=False)
    _base_left_out: list[str] = field(default_factory=list, init=False)
    # As of the previous file.
    _lag_seconds: float = field(default=FIRST_LOOKBACK_SECONDS, init=False)
    _is_previous_damaged: bool = field(default=False, init=False)

    def write(self, now_ns: int, lag_seconds: float = 0.0) -> None:
        """Write the file as of *now_ns*. Raises duckdb.Error, OSError; the old file stays.

        *lag_seconds*: how long readings have waited for a commit.
        """
        target, base = self.folder / OPS_FILE, self.folder / BASE_FILE
        temporary = target.with_name("operators-new.duckdb")
        left_out = self._refresh_base(base, temporary, now_ns)
        try:
            copyfile(base, temporary)
            with new_file(temporary) as file:
                previous = None if self._is_previous_damaged else target
                _OpsFileBuilder(self, file, now_ns // 1000, left_out).fill(
                    previous, self._lag_seconds
                )
            temporary.replace(target)
            self._lag_seconds, self._is_previous_damaged = lag_seconds, False
        except BaseException as error:
            self._is_previous_damaged |= isinstance(error, DamagedPreviousError)
            _remove(temporary)  # on a full disk it would occupy the last free space
            _remove(base)  # it may be the cause
            raise

    def remove(self) -> None:
        """Remove an earlier process's file, which would become outdated. Never raises."""
        with suppress(OSError):
            _remove(self.folder / OPS_FILE)
            _remove(self.folder / BASE_FILE)

    def _refresh_base(self, base: Path, temporary: Path, now_ns: int) -> list[str]:
        """Recreate the base if that is due; return a message for each omission or outdated part."""
        ((count, last),) = self.fetch("SELECT count(*), max(registered) FROM hosts")
        age_seconds = abs(now_ns - self._base_ns) / 1e9
        same = (count, last) == self._hosts
        wait = self._base_devices > DEVICES_AT_ONCE and age_seconds < DEVICES_SECONDS
        if base.exists() and (wait or (same and age_seconds < ROLLUPS_SECONDS)):
            old = [] if same else [f"devices: as they were {age_seconds:.0f} s before"]
            return self._base_left_out + old
        try:
            _remove(temporary)
            _create_base(temporary, self._base_tables())
            with new_file(temporary) as file:
                builder = _BaseBuilder(self, file, now_ns // 1000, [])
                self._base_devices = builder.fill()
            temporary.replace(base)
        except BaseException:
            _remove(temporary)
            raise
        self._hosts, self._base_ns, self._base_left_out = (count, last), now_ns, builder.left_out
        return list(self._base_left_out)

    def _base_tables(self) -> dict[str, tuple[Any, str]]:
        """Return the tables of the base: name -> Arrow schema, comment."""
        comments = dict(self.fetch(_COMMENTS))
        names = dict.fromkeys(
            [*(copy.table for copy in (*COPIES, CLEARED_FINDINGS, HOST_DAYS)), *BASE_TABLES]
        )
        tables = {
            name: (self.read(f"FROM {name} LIMIT 0").schema, comments.get(name) or "")
            for name in names
        }
        for name, _ in self.fetch(_ROLLUPS):
            if name in ROLLUPS:
                try:
                    rows = self.read(f"FROM rollups.{name} LIMIT 0")
                except duckdb.Error:  # a damaged file: `_BaseBuilder` reports it
                    rows = self.read(_without_files(name))
                tables[f"rollups.{name}"] = rows.schema, _ROLLUPS_COMMENT
        return tables

    def read(self, query: str) -> Any:
        """Return the result of a query of the live file as a `pyarrow.Table`."""
        with self.cursor() as cursor:
            return cursor.sql(query).to_arrow_table()

    @contextmanager
    def rows(self, query: str) -> Iterator[Any]:
        """Yield a `pyarrow.RecordBatchReader` of a query of the live file."""
        with self.cursor() as cursor:
            yield cursor.sql(query).to_arrow_reader(BATCH_ROWS)

    def count(self, source: str) -> int:
        """Return the number of rows of *source* (`FROM ..`)."""
        return int(self.fetch(f"SELECT count(*) {source}")[0][0])

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the live file."""
        with self.cursor() as cursor:
            return cursor.execute(query).fetchall()


@dataclass(frozen=True, slots=True)
class _BaseBuilder:
    """Fills a new base with the rows that rarely change."""

    ops_file: OpsFile
    file: NewFile
    now_us: int
    left_out: list[str]

    def fill(self) -> int:
        """Insert the rows; return the number of devices."""
        self.file.begin()
        for table in BASE_TABLES:
            with self.ops_file.rows(f"FROM {table}") as rows:
                self.file.insert(table, rows)
        for copy in (CLEARED_FINDINGS, HOST_DAYS):
            self._put_newest(copy)
        self._put_rollups()
        query = "SELECT count(*) FROM devices"
        ((devices,),) = self.file.connection.execute(query).fetchall()
        return int(devices)

    def _put_newest(self, copy: TableCopy) -> None:
        # These tables explain hazards: cleared findings, and daily measurements.
        query = f"FROM {copy.table} WHERE {copy.where(self.now_us)}"
        if (count := self.ops_file.count(query)) > copy.rows_max:
            self.left_out.append(f"{copy.table}: the newest {copy.rows_max:,} of {count:,} rows")
        newest = f"{query} ORDER BY {copy.age_column} DESC LIMIT {copy.rows_max}"
        self.file.insert(copy.table, self.ops_file.read(newest).to_batches())

    def _put_rollups(self) -> None:
        for name, width in self.ops_file.fetch(_ROLLUPS):
            if name in ROLLUPS:
                span = RecentRows(f"rollups.{name}", ROLLUPS[name], ROLLUPS_CELLS_MAX // width)
                self.file.insert(span.table, self._rollup(name, span).to_batches())

    def _rollup(self, name: str, span: RecentRows) -> Any:
        """Return the rows of a rollup; none if its file is damaged."""
        try:
            where = span.fitting_condition(self.ops_file, self.now_us, self.left_out)
            return self.ops_file.read(f"FROM {span.table} {where}")
        except duckdb.Error as error:
            reason = cause(error, self.ops_file.folder)
            self.left_out.append(f"{span.table}: all, it cannot be read: {reason}")
            return self.ops_file.read(_without_files(name))


@dataclass(frozen=True, slots=True)
class _OpsFileBuilder:
    """Fills a copy of the base."""

    ops_file: OpsFile
    file: NewFile
    now_us: int
    left_out: list[str]

    def fill(self, previous: Path | None, lag_seconds: float) -> None:
        """Insert everything except the base. Raises duckdb.Error, DamagedPreviousError.

        *lag_seconds*: as of the file *previous*.
        """
        latest = LatestTables(self.file, self.ops_file.cursor, self.now_us, lag_seconds)
        latest.attach(previous)
        stored = {name for (name,) in self.ops_file.fetch(_STORED_TABLES)}
        self.file.begin()
        self.left_out.extend(latest.insert(stored, dict(self.ops_file.fetch(_DEVICES))))
        for copy in COPIES:
            self._insert(copy.table, self._newest(copy))
        self._put_readings(stored)
        self._write_snapshot_row()

    def _newest(self, copy: TableCopy) -> str:
        where = f"FROM {copy.table} WHERE {copy.where(self.now_us)}"
        count = self.ops_file.count(where) if copy.rows_max else 0
        if count <= copy.rows_max:
            return where
        self.left_out.append(f"{copy.table}: the newest {copy.rows_max:,} of {count:,} rows")
        return f"{where} ORDER BY {copy.age_column} DESC LIMIT {copy.rows_max}"

    def _put_readings(self, stored: set[str]) -> None:
        for table in sorted(COLUMNS.keys() & stored):
            self._insert(f"readings.{table}", self._readings(table))
        if BY_NAME in stored:
            since = self.now_us - BY_NAME_SECONDS * 1_000_000
            self._insert(f"latest.{BY_NAME}", _LATEST_BY_NAME.format(since))

    def _readings(self, table: str) -> str:
        span = RecentRows(f"readings.{table}", _seconds_of(table), self.ops_file.rows_max)
        where = span.fitting_condition(
            self.ops_file, self.now_us, self.left_out, READINGS_SECONDS_MIN
        )
        return f"FROM readings.{table} {where}"

    def _write_snapshot_row(self) -> None:
        since_us = self.now_us - READINGS_SECONDS * 1_000_000
        self.file.connection.execute(taken_macro(self.now_us))
        self.file.connection.execute(
            "INSERT INTO snapshot VALUES (make_timestamp(?), make_timestamp(?), ?)",
            [self.now_us, since_us, self.left_out],
        )

    def _insert(self, name: str, query: str) -> None:
        with self.ops_file.rows(query) as rows:
            self.file.insert(name, rows)


def _create_base(path: Path, tables: Mapping[str, tuple[Any, str]]) -> None:
    """Write a base without rows: *tables*, those of readings, and all views.

    *tables*: name -> Arrow schema, comment.
    """
    with new_file(path) as file:
        file.begin()
        execute = file.connection.execute
        execute(_empty_tables())
        for name, (schema, comment) in tables.items():
            file.connection.register("like", schema.empty_table())
            execute(f'CREATE TABLE {name} AS FROM "like"')
            file.connection.unregister("like")
            execute(f"COMMENT ON TABLE {name} IS {quoted(comment)}")
        execute(ops_script())
        execute(script("history.sql"))


def _without_files(rollup: str) -> str:
    """Return a query with the columns of *rollup* and no rows."""
    return rollup_view(rollup.rpartition("_")[0], {})


def taken_macro(taken_us: int) -> str:
    """Return the SQL that makes `ops.taken()` a constant."""
    return f"CREATE OR REPLACE MACRO ops.taken() AS make_timestamp({taken_us}); {_TAKEN_COMMENT}"


def _seconds_of(table: str) -> int:
    return CHANGES_SECONDS if table.endswith("_changes") else READINGS_SECONDS


@cache
def _empty_tables() -> str:
    """Return the SQL that creates all schemas and tables of readings, mostly empty."""
    sql_statements = [
        f"CREATE SCHEMA {schema}" for schema in ("latest", "readings", "ops", "rollups")
    ]
    for table, columns in COLUMNS.items():
        minutes = f"the last {_seconds_of(table) // 60} minutes, or as many as fit"
        for schema, comment in (
            ("latest", "the last reading of each device"),
            ("readings", minutes),
        ):
            sql_statements.append(f"CREATE TABLE {schema}.{table} ({definitions(columns)})")
            sql_statements.append(f"COMMENT ON TABLE {schema}.{table} IS '{comment}'")
    sql_statements.append(
        "CREATE TABLE snapshot (taken TIMESTAMP, readings_since TIMESTAMP, left_out VARCHAR[])"
    )
    sql_statements.append(f"COMMENT ON TABLE snapshot IS '{_SNAPSHOT_COMMENT}'")
    return ";\n".join(sql_statements)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    wal_of(path).unlink(missing_ok=True)
