"""The operators' file: the latest of everything and the last minutes, in a small DuckDB file of its own.

Written under a temporary name and renamed into place, so that whoever opens it finds it
whole; a reader that has the one before open keeps it. It holds the same names as the live file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from .layout import BY_NAME, COLUMNS, definitions
from .rows import Rows
from .storefile import CONFIG, OPS_FILE, script

#: Readings this old are left out; what travels on change is little, and tells of trouble for longer.
READINGS_SECONDS, CHANGES_SECONDS = 300, 3600
#: Scores, their evidence, and cleared findings this old are left out.
SCORES_SECONDS = 3600
EVENTS_SECONDS = 86_400
#: So are the aggregator's readings of itself: what a night began with is asked in the morning.
OWN_SECONDS = 6 * 3600

Cursor = Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]


@dataclass(frozen=True, slots=True)
class OpsFile:
    """Writes the operators' file of the store in *folder*, from cursors on the live file."""

    folder: Path
    cursor: Cursor
    rows_max: int

    def write(self, latest: dict[str, Rows], now_ns: int) -> None:
        """Write the file anew as of *now_ns*. Raises duckdb.Error or OSError; the file before stays."""
        target = self.folder / OPS_FILE
        temporary = target.with_name("operators-new.duckdb")
        try:
            self._make(temporary, latest, now_ns)
            temporary.replace(target)
        except BaseException:
            _remove(temporary)  # on a full disk it would hold the little that is left
            raise

    def _make(self, path: Path, latest: dict[str, Rows], now_ns: int) -> None:
        _remove(path)
        connection = duckdb.connect(str(path), config=CONFIG)
        try:
            self._fill(connection, latest, now_ns)
            connection.execute("CHECKPOINT")
        finally:
            connection.close()

    def _fill(
        self, connection: duckdb.DuckDBPyConnection, latest: dict[str, Rows], now_ns: int
    ) -> None:
        connection.execute("BEGIN")
        connection.execute(_empty_tables())
        for name, rows in latest.items():
            if rows.devices:
                _insert(connection, f"latest.{name}", rows.arrow())
        for name, comment, arrow in self._tables(now_ns // 1000):
            _make(connection, name, arrow, comment)
        for name, arrow in self._all_readings(now_ns // 1000):
            if arrow.num_rows:
                _insert(connection, name, arrow)
        since = now_ns // 1000 - READINGS_SECONDS * 1_000_000
        _make(
            connection,
            "snapshot",
            _snapshot(now_ns // 1000, since),
            "as of when everything here is, and since when there are readings",
        )
        connection.execute(script("ops.sql"))
        connection.execute(script("ops_aggregator.sql"))
        connection.execute("COMMIT")

    def _tables(self, now_us: int) -> Iterator[tuple[str, str, Any]]:
        """Yield (name, comment, pyarrow.Table) of what the live file has. One short read each."""
        comments = dict(self._fetch("SELECT table_name, comment FROM duckdb_tables()"))
        for name, query, seconds in _COPIES:
            since = [now_us - seconds * 1_000_000] if seconds else []
            yield name, comments.get(name) or "", self._read(query, since)

    def _all_readings(self, now_us: int) -> Iterator[tuple[str, Any]]:
        """Yield (name, pyarrow.Table) of the tables of readings that hold any."""
        stored = {name for (name, _) in self._fetch(_HOURS)}
        for table in COLUMNS.keys() & stored:
            yield f"readings.{table}", self._readings(table, now_us)
        if BY_NAME in stored:
            yield f"latest.{BY_NAME}", self._read(_LATEST_BY_NAME, [now_us - 600_000_000])

    def _readings(self, table: str, now_us: int) -> Any:
        """The last minutes, or as many seconds of them as fit `rows_max`."""
        span_us = _seconds_of(table) * 1_000_000
        where = f"FROM readings.{table} WHERE time > make_timestamp(?)"
        count = self._read(f"SELECT count(*) AS rows {where}", [now_us - span_us])["rows"][
            0
        ].as_py()
        if count > self.rows_max:
            span_us = span_us * self.rows_max // count
        return self._read(f"{where} LIMIT {self.rows_max}", [now_us - span_us])

    def _read(self, query: str, parameters: list[int]) -> Any:
        with self.cursor() as cursor:
            return cursor.sql(query, params=parameters).to_arrow_table()

    def _fetch(self, query: str) -> list[tuple[str, str | None]]:
        with self.cursor() as cursor:
            return cursor.execute(query).fetchall()


def _seconds_of(table: str) -> int:
    return CHANGES_SECONDS if table.endswith("_changes") else READINGS_SECONDS


_LATEST_BY_NAME = (
    f"FROM readings.{BY_NAME} WHERE time > make_timestamp(?) "
    "QUALIFY row_number() OVER (PARTITION BY host, device, signal ORDER BY time DESC) = 1 "
    "LIMIT 100000"
)

#: Who runs is told again and again by every host: it must not leave a fleet's faults without room.
_EVENTS = (
    "(FROM events WHERE received > make_timestamp($1) AND name NOT IN ('gpu.process', 'gpu.allocation', 'gpu.told_anew') "
    "ORDER BY received DESC LIMIT 100000) UNION ALL "
    "(FROM events WHERE received > make_timestamp($1) AND name IN ('gpu.process', 'gpu.allocation', 'gpu.told_anew') "
    "ORDER BY received DESC LIMIT 500000)"
)

#: Name in the file, what it holds, and how many seconds back (0: all).
_COPIES: tuple[tuple[str, str, int], ...] = (
    ("hosts", "FROM hosts", 0),
    ("devices", "FROM devices LIMIT 2000000", 0),
    ("signals", "FROM signals", 0),
    ("clocks", "FROM clocks", 0),
    ("scores", "FROM scores WHERE time > make_timestamp(?) LIMIT 1000000", SCORES_SECONDS),
    ("evidence", "FROM evidence WHERE time > make_timestamp(?) LIMIT 1000000", SCORES_SECONDS),
    (
        "findings",
        "FROM findings WHERE cleared IS NULL OR cleared > make_timestamp(?) LIMIT 100000",
        SCORES_SECONDS,
    ),
    (
        "events",
        _EVENTS,
        EVENTS_SECONDS,
    ),
    ("own_health", "FROM own_health WHERE time > make_timestamp(?) LIMIT 200000", OWN_SECONDS),
)


#: Which tables of readings have any, by their hours (`hours.py`).
_HOURS = (
    "SELECT DISTINCT regexp_replace(table_name, '__[0-9]+$', ''), NULL FROM duckdb_tables() "
    "WHERE schema_name = 'hours'"
)


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
    return ";\n".join(made)


def _snapshot(taken_us: int, since_us: int) -> Any:
    kind = pa.timestamp("us")
    return pa.table(
        {"taken": pa.array([taken_us], kind), "readings_since": pa.array([since_us], kind)}
    )


def _make(connection: duckdb.DuckDBPyConnection, name: str, arrow: Any, comment: str) -> None:
    connection.register("new_rows", arrow)
    connection.execute(f"CREATE TABLE {name} AS FROM new_rows")
    quoted = comment.replace("'", "''")
    connection.execute(f"COMMENT ON TABLE {name} IS '{quoted}'")
    connection.unregister("new_rows")


def _insert(connection: duckdb.DuckDBPyConnection, name: str, arrow: Any) -> None:
    connection.register("new_rows", arrow)
    connection.execute(f"INSERT INTO {name} BY NAME FROM new_rows")
    connection.unregister("new_rows")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".wal").unlink(missing_ok=True)
