"""Readings by hour: a table per catalogue table and hour of receipt, and the views over them.

The hour is the one in which readings were committed, so that a closed hour stays closed however late
a reading comes. Retention is dropping tables; a DELETE would not give the file's space back.
"""

from __future__ import annotations

import re
import time

import duckdb

from ...fingerprints.catalogue import FORMER_TABLES
from .layout import COLUMNS, Column, definitions, typed_empty

_FORMER = {name: former for former, name in FORMER_TABLES.items()}
_NAME = re.compile(r"(?P<table>\w+?)__(?P<hour>\d{10})$")
HOUR_NS = 3600 * 1_000_000_000


def hour_name(now_ns: int) -> str:
    """Return the UTC hour as in table names: 2026112010."""
    return time.strftime("%Y%m%d%H", time.gmtime(now_ns // 1_000_000_000))


class Hours:
    """The hour tables of one store. Used by the writer thread only, within its transactions."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._tables: dict[str, set[str]] = {}
        self._current = ""
        self._ready: set[str] = set()

    def open(self) -> None:
        """Read which hours there are and make all views anew. Call it outside a transaction."""
        self._tables = {table: set() for table in COLUMNS}
        self._current, self._ready = "", set()
        rows = self._connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'hours'"
        ).fetchall()
        for (name,) in rows:
            match = _NAME.fullmatch(name)
            if match:
                self._tables.setdefault(match["table"], set()).add(match["hour"])
        for table in self._tables:
            self._make_views(table)

    def table_for(self, table: str, now_ns: int) -> str:
        """Return the name of the hour's table of *table*, made if it is not there yet."""
        hour = hour_name(now_ns)
        if hour != self._current:
            self._current, self._ready = hour, set()
        name = f'hours."{table}__{hour}"'
        if table not in self._ready:
            self._make(table, hour, name)
            self._ready.add(table)
        return name

    def forget(self) -> None:
        """A transaction was rolled back: trust nothing that was made within it."""
        self.open()

    def _make(self, table: str, hour: str, name: str) -> None:
        columns = COLUMNS[table]
        if hour not in self._tables[table]:
            self._connection.execute(f"CREATE TABLE {name} ({definitions(columns)})")
            self._tables[table].add(hour)
            self._make_views(table)
            return
        for column, kind in self._missing(table, hour, columns):  # an upgrade within the hour
            self._connection.execute(f'ALTER TABLE {name} ADD COLUMN "{column}" {kind}')

    def _missing(self, table: str, hour: str, columns: tuple[Column, ...]) -> list[Column]:
        rows = self._connection.execute(
            "SELECT column_name FROM duckdb_columns() WHERE schema_name = 'hours' AND table_name = ?",
            [f"{table}__{hour}"],
        ).fetchall()
        have = {name for (name,) in rows}
        return [column for column in columns if column[0] not in have]

    def drop_before(self, oldest_ns: int) -> int:
        """Drop the hours that ended before *oldest_ns*; return how many tables went."""
        limit, dropped = hour_name(oldest_ns), 0
        for table, hours in self._tables.items():
            old = {hour for hour in hours if hour < limit}
            if not old:
                continue
            hours -= old
            for each in {table, FORMER_TABLES.get(table, table)}:
                self._make_views(each)
            for hour in sorted(old):
                self._connection.execute(f'DROP TABLE hours."{table}__{hour}"')
            dropped += len(old)
        return dropped

    def _make_views(self, table: str) -> None:
        columns = COLUMNS.get(table)
        names = [
            table,
            _FORMER.get(table, ""),
        ]  # what a version before this one stored is there too
        hours = [(each, hour) for each in names for hour in sorted(self._tables.get(each, ()))]
        parts = [typed_empty(columns)] if columns else []
        parts += [f'SELECT * FROM hours."{each}__{hour}"' for each, hour in hours]
        if not parts:  # a table of another version whose last hour went
            self._connection.execute(f'DROP VIEW IF EXISTS readings."{table}"')
            self._connection.execute(f'DROP VIEW IF EXISTS latest."{table}"')
            return
        body = " UNION ALL BY NAME ".join(parts)
        self._connection.execute(f'CREATE OR REPLACE VIEW readings."{table}" AS {body}')
        if table in COLUMNS:
            self._connection.execute(_latest(table))


def _latest(table: str) -> str:
    key = "host, device, signal" if table == "by_name" else "host, device"
    # By a join: row_number() over all columns of all readings takes ten times as long. Of two of one
    # moment the first is taken, whole.
    return (
        f'CREATE OR REPLACE VIEW latest."{table}" AS '
        f'SELECT {key}, first(COLUMNS(r.* EXCLUDE ({key}))) FROM readings."{table}" AS r '
        f'JOIN (SELECT {key}, max(time) AS time FROM readings."{table}" GROUP BY ALL) '
        f"USING ({key}, time) GROUP BY {key}"
    )
