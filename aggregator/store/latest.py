"""The latest reading of every device per table: what the operators' file before had, and what came since.

So that no memory is needed for it. A device whose last reading was before the file before was written is there
from that file, for as long as a day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from ..sql import quoted
from .layout import LAYOUTS

log = logging.getLogger(__name__)

#: Of devices of one host in one table beyond this those are left out that were heard of longest ago (processes on
#: GPUs come and go). Their readings are stored.
DEVICES_PER_HOST_MAX = 1024
#: Devices not heard of for longer are left out.
SECONDS_MAX = 86_400
#: What was read before the file before was written may be committed after, by the wait for a commit and by so much
#: beside: clocks that differ. Of backlog of longer ago, which comes after live readings, a change is found when it
#: comes again, within FIRST_SECONDS; that of a host that does not speak again is not.
LATE_SECONDS = 15
#: At most so many cells: the tables of the largest fleets' links have more, and would take as much memory as all else.
CELLS_MAX = 30_000_000
#: How far back is looked when there is no file before, or it is not known what waited then: all that travels on change
#: has come again by then.
FIRST_SECONDS = 300

Cursor = Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]


@dataclass(slots=True)
class Latest:
    """The rows of every catalogue table, one by one: for a connection that writes the new file."""

    connection: duckdb.DuckDBPyConnection
    cursor: Cursor  # on the live file
    now_us: int
    lag_seconds: float  # so long had readings waited for a commit when the file before was begun
    _since_us: int = 0
    _columns: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def attach(self, before: Path) -> None:
        """Use the file before, if there is one that can be read. Call it outside a transaction."""
        self._since_us = self.now_us - FIRST_SECONDS * 1_000_000
        if not before.exists():
            return
        try:
            self.connection.execute(f"ATTACH {quoted(str(before))} AS before (READ_ONLY)")
            (taken_us,) = self.connection.execute(
                "SELECT min(epoch_us(taken)) FROM before.snapshot"
            ).fetchone() or (0,)
            rows = self.connection.execute(
                "SELECT table_name, column_name FROM duckdb_columns() "
                "WHERE database_name = 'before' AND schema_name = 'latest'"
            ).fetchall()
        except duckdb.Error as error:
            log.warning(
                "the operators' file before cannot be read; what it alone had goes: %s", error
            )
            self.connection.execute("DETACH DATABASE IF EXISTS before")
            return
        for table, column in rows:
            self._columns.setdefault(table, []).append(column)
        late_us = round((LATE_SECONDS + self.lag_seconds) * 1e6)
        self._since_us = min(self.now_us, taken_us or 0) - late_us

    def insert(self, stored: set[str], devices: Mapping[str, int]) -> list[str]:
        """Fill the tables `latest.*` of the new file, the smallest first; return which have no room.

        *stored*: those with readings in the live file. *devices*: how many there are of each kind.
        """
        left_out, room = list[str](), CELLS_MAX
        sizes = {table: devices.get(_kind(table), 0) for table in LAYOUTS}
        for table, rows in sorted(sizes.items(), key=lambda item: item[1]):
            layout = LAYOUTS[table]
            room -= rows * len(layout.columns)
            if room < 0 and rows:
                left_out.append(f"latest.{table}: all {rows:,} rows")
                continue
            came = table in stored and self._insert_new(table)
            self._insert_old(table, {name for name, _ in layout.columns}, came=came)
            self.connection.unregister("came_since")
            left_out += self._thin_out(table)
        return left_out

    def _insert_new(self, table: str) -> bool:
        """Put in what came since, which stays registered; return whether anything did."""
        came = self._came_since(table)
        self.connection.register("came_since", came)
        once = "QUALIFY row_number() OVER (PARTITION BY host, device) = 1"  # two of one moment
        self.connection.execute(
            f"INSERT INTO latest.{table} BY NAME FROM came_since {once if self._is_double() else ''}"
        )
        return bool(came.num_rows)

    def _is_double(self) -> bool:
        query = "SELECT count(*) > count(DISTINCT (host, device)) FROM came_since"
        return bool(self.connection.execute(query).fetchall()[0][0])

    def _insert_old(self, table: str, columns: set[str], *, came: bool) -> None:
        """Put in what the file before had of devices that are not among what came since.

        By a join over names: a window over all columns takes more memory than there is for a large fleet's links.
        """
        both = ", ".join(f'"{name}"' for name in self._columns.get(table, ()) if name in columns)
        if both:
            since_us = self.now_us - SECONDS_MAX * 1_000_000
            others = "ANTI JOIN came_since USING (host, device)" if came else ""
            self.connection.execute(
                f"INSERT INTO latest.{table} BY NAME FROM (SELECT {both} FROM before.latest.{table} "
                f"WHERE time > make_timestamp({since_us})) {others}"
            )

    def _thin_out(self, table: str) -> list[str]:
        """Leave of each host the devices heard of last; return of which hosts, in words."""
        rows = self.connection.execute(
            f"SELECT host FROM latest.{table} GROUP BY host HAVING count(*) > {DEVICES_PER_HOST_MAX} "
            "ORDER BY host LIMIT 4"
        ).fetchall()
        if not rows:
            return []
        self.connection.execute(
            f"DELETE FROM latest.{table} WHERE rowid IN (SELECT rowid FROM latest.{table} QUALIFY "
            f"row_number() OVER (PARTITION BY host ORDER BY time DESC) > {DEVICES_PER_HOST_MAX})"
        )
        hosts = ", ".join([host for (host,) in rows[:3]] + ["..."] * (len(rows) > 3))
        return [
            f"latest.{table}: of {hosts} no more than the {DEVICES_PER_HOST_MAX:,} devices heard of last"
        ]

    def _came_since(self, table: str) -> Any:
        new = f"FROM readings.{table} WHERE time > make_timestamp({self._since_us})"
        with self.cursor() as cursor:
            return cursor.sql(
                f"SELECT one.* FROM ({new}) AS one SEMI JOIN "
                f"(SELECT host, device, max(time) AS time {new} GROUP BY host, device) AS last "
                "USING (host, device, time)"
            ).to_arrow_table()


def _kind(table: str) -> str:
    return LAYOUTS[table].signals[0].device_kind
