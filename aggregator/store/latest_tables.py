"""Inserts the latest reading of every device into a new snapshot file, table by table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from ..sql import quoted
from .layout import LAYOUTS
from .new_duckdb_file import CELLS_WAITING_MAX, NewFile

log = logging.getLogger(__name__)
#: Per host and table, devices beyond this limit are left out, those reported longest ago first
#: (processes on GPUs come and go). The store has all of them.
DEVICES_PER_HOST_MAX = 1024
#: Devices without a reading for longer are left out.
LATEST_SECONDS_MAX = 86_400
#: Margin for readings that are committed after the previous file was written although they were
#: made before: the wait for a commit, and clocks that differ. A change that arrives later, from a
#: backlog, is found when it is repeated within FIRST_LOOKBACK_SECONDS; changes of a host that never
#: reports again are missed.
LATE_SECONDS = 15
#: Maximum number of cells, smallest tables first. It is twice those of 80,000 GPUs with all their
#: ports, links and PCIe functions, whose file has 0.6 GB.
CELLS_MAX = 400_000_000
#: A table with more cells is inserted by groups of hosts, each with this many cells.
CELLS_AT_ONCE = CELLS_WAITING_MAX
#: Lookback without a previous file, or if its commit delay is unknown: every signal that is sent on
#: change is repeated within this time.
FIRST_LOOKBACK_SECONDS = 300
#: Parts of DuckDB's messages about a damaged file.
_DAMAGE = ("orrupt", "checksum", "read enough", "not a valid")
Cursor = Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]


class DamagedPreviousError(OSError):
    """The previous file was opened but cannot be read."""


@dataclass(slots=True)
class LatestTables:
    """Inserts the latest reading of every device into a new file, table by table.

    Readings since the previous file come from the live file, older ones, for up to a day, from the
    previous file: this needs no memory for the whole fleet.
    """

    file: NewFile
    cursor: Cursor  # on the live file
    now_us: int
    lag_seconds: float  # how long readings had waited for a commit when the previous file was begun
    _since_us: int = 0
    _columns: dict[str, list[str]] = field(default_factory=dict)
    _previous_rows: dict[str, int] = field(default_factory=dict)  # of tables with any

    def attach(self, previous: Path | None) -> None:
        """Attach the previous file if it is readable. Call this outside a transaction."""
        self._since_us = self.now_us - FIRST_LOOKBACK_SECONDS * 1_000_000
        if previous is None or not previous.exists():
            return
        try:
            self.file.connection.execute(f"ATTACH {quoted(str(previous))} AS before (READ_ONLY)")
            (taken_us,) = self.file.connection.execute(
                "SELECT min(epoch_us(taken)) FROM before.snapshot"
            ).fetchone() or (0,)
            rows = self.file.connection.execute(
                "SELECT table_name, coalesce(estimated_size, 1) AS size FROM duckdb_tables() "
                "WHERE database_name = 'before' AND schema_name = 'latest' AND size > 0"
            ).fetchall()  # 0: the table never had a row
            for table, size in rows:
                like = self.file.connection.execute(f'FROM before.latest."{table}" LIMIT 0')
                self._columns[table] = [name for name, *_ in like.description or ()]
                self._previous_rows[table] = size
        except duckdb.Error as error:
            log.warning(
                "the previous operators' file cannot be read; the data that only it had is "
                "lost: %s",
                error,
            )
            self.file.connection.execute("DETACH DATABASE IF EXISTS before")
            self._columns, self._previous_rows = {}, {}
            return
        late_us = round((LATE_SECONDS + self.lag_seconds) * 1e6)
        self._since_us = min(self.now_us, taken_us or 0) - late_us

    def insert(self, stored: set[str], devices: Mapping[str, int]) -> list[str]:
        """Fill the tables `latest.*` of the new file, the smallest first; return a message for each
        omission.

        *stored*: tables with readings in the live file. *devices*: number of devices of each kind.
        """
        left_out, room = list[str](), CELLS_MAX
        with self.cursor() as cursor:
            host_rows = cursor.execute("SELECT DISTINCT host FROM hosts ORDER BY host").fetchall()
        hosts = [host for (host,) in host_rows]
        sizes = {table: devices.get(_kind(table), 0) for table in LAYOUTS}
        for table, rows in sorted(sizes.items(), key=lambda item: item[1]):
            layout = LAYOUTS[table]
            room -= rows * len(layout.columns)
            if room < 0 and rows:
                left_out.append(f"latest.{table}: all {rows:,} rows")
                continue
            if table not in stored and table not in self._previous_rows:
                continue
            for condition in self._host_conditions(table, hosts, is_stored=table in stored):
                self._insert(table, condition, is_stored=table in stored)
            left_out += self._thin_out(table)
        return left_out

    def _host_conditions(self, table: str, hosts: list[str], *, is_stored: bool) -> list[str]:
        """Return conditions that split hosts into groups of about CELLS_AT_ONCE cells."""
        rows = self._previous_rows.get(table, 0)
        if is_stored:
            query = f"SELECT approx_count_distinct((host, device)) FROM readings.{table} {self._since_condition}"
            with self.cursor() as cursor:
                rows = max(rows, cursor.execute(query).fetchall()[0][0])
        count = 1 + rows * len(LAYOUTS[table].columns) // CELLS_AT_ONCE
        firsts = sorted(
            {hosts[index * len(hosts) // count] for index in range(1, count)} if hosts else ()
        )
        return host_ranges(firsts)

    @property
    def _since_condition(self) -> str:
        return f"WHERE time > make_timestamp({self._since_us})"

    def _insert(self, table: str, condition: str, *, is_stored: bool) -> None:
        """Insert the new readings, and those of the previous file for devices without a new one.

        This is a join over keys: a window over all columns takes too much memory for a large
        fleet's links. Raises DamagedPreviousError.
        """
        connection, layout = self.file.connection, LAYOUTS[table]
        new_rows = self._rows_since(table, condition) if is_stored else ()
        if len(new_rows):
            connection.register("came_since", new_rows)
            # Two readings of a device may have the same time.
            once = "QUALIFY row_number() OVER (PARTITION BY host, device) = 1"
            self.file.run(
                f"INSERT INTO latest.{table} BY NAME FROM came_since {once if self._has_duplicates() else ''}",
                len(layout.columns),
            )
        wanted = {name for name, _ in layout.columns}
        common_columns = ", ".join(
            f'"{name}"' for name in self._columns.get(table, ()) if name in wanted
        )
        if common_columns:
            since_us = self.now_us - LATEST_SECONDS_MAX * 1_000_000
            others = "ANTI JOIN came_since USING (host, device)" if len(new_rows) else ""
            insert = (
                f"INSERT INTO latest.{table} BY NAME FROM (SELECT {common_columns} FROM before.latest.{table} "
                f"WHERE time > make_timestamp({since_us}) AND {condition}) {others}"
            )
            try:
                self.file.run(insert, len(layout.columns))
            except duckdb.Error as error:
                if any(sign in str(error) for sign in _DAMAGE):
                    raise DamagedPreviousError(
                        "the previous file cannot be read; the data that only it had is lost: "
                        f"{error}"
                    ) from error
                raise
        connection.unregister("came_since")

    def _has_duplicates(self) -> bool:
        query = "SELECT count(*) > count(DISTINCT (host, device)) FROM came_since"
        return bool(self.file.connection.execute(query).fetchall()[0][0])

    def _thin_out(self, table: str) -> list[str]:
        """Keep each host's latest devices; return a message that names affected hosts."""
        rows = self.file.connection.execute(
            f"SELECT host FROM latest.{table} GROUP BY host HAVING count(*) > {DEVICES_PER_HOST_MAX} "
            "ORDER BY host LIMIT 4"
        ).fetchall()
        if not rows:
            return []
        self.file.connection.execute(
            f"DELETE FROM latest.{table} WHERE rowid IN (SELECT rowid FROM latest.{table} "
            f"WHERE host IN (SELECT host FROM latest.{table} GROUP BY host "
            f"HAVING count(*) > {DEVICES_PER_HOST_MAX}) QUALIFY row_number() OVER (PARTITION BY host ORDER BY time DESC) > {DEVICES_PER_HOST_MAX})"
        )
        hosts = ", ".join([host for (host,) in rows[:3]] + ["..."] * (len(rows) > 3))
        return [
            (
                f"latest.{table}: of {hosts} no more than the {DEVICES_PER_HOST_MAX:,} devices that "
                "were reported last"
            )
        ]

    def _rows_since(self, table: str, condition: str) -> Any:
        new = f"FROM readings.{table} {self._since_condition} AND {condition}"
        now = f"make_timestamp({self.now_us})"  # the clock may have been set back
        with self.cursor() as cursor:
            return cursor.sql(
                f"SELECT one.* FROM ({new}) AS one SEMI JOIN "
                f"(SELECT host, device, coalesce(max(time) FILTER (time <= {now}), max(time)) AS time {new} "
                "GROUP BY host, device) AS last "
                "USING (host, device, time)"
            ).to_arrow_table()


def host_ranges(firsts: Sequence[str]) -> list[str]:
    """Return conditions on `host` that split all names at *firsts* (sorted)."""
    since = ["true", *(f"host >= {quoted(name)}" for name in firsts)]
    until = [*(f"host < {quoted(name)}" for name in firsts), "true"]
    return [f"({first} AND {second})" for first, second in zip(since, until, strict=True)]


def _kind(table: str) -> str:
    return LAYOUTS[table].signals[0].device_kind
