"""The latest reading of every device per table: what the operators' file before had, and what came since.

So that no memory is needed for it. A device whose last reading was before the file before was written is there
from that file, for as long as a day.
"""

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
from .newfile import CELLS_WAITING_MAX, NewFile

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
#: At most so many cells, the smallest tables first: twice those of 80,000 GPUs with all their ports, links and PCIe
#: functions, of which the file is 0.6 GB.
CELLS_MAX = 400_000_000
#: A table with more cells is put in by hosts, so many cells at a time.
CELLS_AT_ONCE = CELLS_WAITING_MAX
#: How far back is looked when there is no file before, or it is not known what waited then: all that travels on change
#: has come again by then.
FIRST_SECONDS = 300

#: What DuckDB says of a file that is not what was written.
_DAMAGE = ("orrupt", "checksum", "read enough", "not a valid")

Cursor = Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]


class DamagedBefore(OSError):
    """The file before was opened, and cannot be read."""


@dataclass(slots=True)
class Latest:
    """The rows of every catalogue table, one by one: for a connection that writes the new file."""

    file: NewFile
    cursor: Cursor  # on the live file
    now_us: int
    lag_seconds: float  # so long had readings waited for a commit when the file before was begun
    _since_us: int = 0
    _columns: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _rows_before: dict[str, int] = field(default_factory=dict[str, int])  # of tables with any

    def attach(self, before: Path | None) -> None:
        """Use the file before, if there is one that can be read. Call it outside a transaction."""
        self._since_us = self.now_us - FIRST_SECONDS * 1_000_000
        if before is None or not before.exists():
            return
        try:
            self.file.connection.execute(f"ATTACH {quoted(str(before))} AS before (READ_ONLY)")
            (taken_us,) = self.file.connection.execute(
                "SELECT min(epoch_us(taken)) FROM before.snapshot"
            ).fetchone() or (0,)
            rows = self.file.connection.execute(
                "SELECT table_name, coalesce(estimated_size, 1) AS size FROM duckdb_tables() "
                "WHERE database_name = 'before' AND schema_name = 'latest' AND size > 0"
            ).fetchall()  # 0: it never had a row
            for table, size in rows:
                like = self.file.connection.execute(f'FROM before.latest."{table}" LIMIT 0')
                self._columns[table] = [name for name, *_ in like.description or ()]
                self._rows_before[table] = size
        except duckdb.Error as error:
            log.warning(
                "the operators' file before cannot be read; what it alone had goes: %s", error
            )
            self.file.connection.execute("DETACH DATABASE IF EXISTS before")
            self._columns, self._rows_before = {}, {}
            return
        late_us = round((LATE_SECONDS + self.lag_seconds) * 1e6)
        self._since_us = min(self.now_us, taken_us or 0) - late_us

    def insert(self, stored: set[str], devices: Mapping[str, int]) -> list[str]:
        """Fill the tables `latest.*` of the new file, the smallest first; return which have no room.

        *stored*: those with readings in the live file. *devices*: how many there are of each kind.
        """
        left_out, room = list[str](), CELLS_MAX
        with self.cursor() as cursor:
            found = cursor.execute("SELECT DISTINCT host FROM hosts ORDER BY host").fetchall()
        hosts = [host for (host,) in found]
        sizes = {table: devices.get(_kind(table), 0) for table in LAYOUTS}
        for table, rows in sorted(sizes.items(), key=lambda item: item[1]):
            layout = LAYOUTS[table]
            room -= rows * len(layout.columns)
            if room < 0 and rows:
                left_out.append(f"latest.{table}: all {rows:,} rows")
                continue
            if table not in stored and table not in self._rows_before:
                continue
            for some in self._pieces(table, hosts, is_stored=table in stored):
                self._insert(table, some, is_stored=table in stored)
            left_out += self._thin_out(table)
        return left_out

    def _pieces(self, table: str, hosts: list[str], *, is_stored: bool) -> list[str]:
        """Return conditions that part *hosts*, and all others, so that of each there are not many more cells to come
        than CELLS_AT_ONCE."""
        rows = self._rows_before.get(table, 0)
        if is_stored:
            query = (
                f"SELECT approx_count_distinct((host, device)) FROM readings.{table} {self._new}"
            )
            with self.cursor() as cursor:
                rows = max(rows, cursor.execute(query).fetchall()[0][0])
        count = 1 + rows * len(LAYOUTS[table].columns) // CELLS_AT_ONCE
        firsts = sorted(
            {hosts[at * len(hosts) // count] for at in range(1, count)} if hosts else ()
        )
        return between(firsts)

    @property
    def _new(self) -> str:
        return f"WHERE time > make_timestamp({self._since_us})"

    def _insert(self, table: str, some: str, *, is_stored: bool) -> None:
        """Put in what came since, and what the file before had of devices that are not among it.

        By a join over names: a window over all columns takes more memory than there is for a large fleet's links.
        Raises DamagedBefore.
        """
        connection, layout = self.file.connection, LAYOUTS[table]
        came = self._came_since(table, some) if is_stored else ()
        if len(came):
            connection.register("came_since", came)
            once = "QUALIFY row_number() OVER (PARTITION BY host, device) = 1"  # two of one moment
            self.file.run(
                f"INSERT INTO latest.{table} BY NAME FROM came_since {once if self._is_double() else ''}",
                len(layout.columns),
            )
        wanted = {name for name, _ in layout.columns}
        both = ", ".join(f'"{name}"' for name in self._columns.get(table, ()) if name in wanted)
        if both:
            since_us = self.now_us - SECONDS_MAX * 1_000_000
            others = "ANTI JOIN came_since USING (host, device)" if len(came) else ""
            insert = (
                f"INSERT INTO latest.{table} BY NAME FROM (SELECT {both} FROM before.latest.{table} "
                f"WHERE time > make_timestamp({since_us}) AND {some}) {others}"
            )
            try:
                self.file.run(insert, len(layout.columns))
            except duckdb.Error as error:
                if any(sign in str(error) for sign in _DAMAGE):
                    raise DamagedBefore(
                        f"the one before cannot be read, what it alone had goes: {error}"
                    ) from error
                raise
        connection.unregister("came_since")

    def _is_double(self) -> bool:
        query = "SELECT count(*) > count(DISTINCT (host, device)) FROM came_since"
        return bool(self.file.connection.execute(query).fetchall()[0][0])

    def _thin_out(self, table: str) -> list[str]:
        """Leave of each host the devices heard of last; return of which hosts, in words."""
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
            f"latest.{table}: of {hosts} no more than the {DEVICES_PER_HOST_MAX:,} devices heard of last"
        ]

    def _came_since(self, table: str, some: str) -> Any:
        new = f"FROM readings.{table} {self._new} AND {some}"
        now = f"make_timestamp({self.now_us})"  # our clock may have been ahead, and been set back
        with self.cursor() as cursor:
            return cursor.sql(
                f"SELECT one.* FROM ({new}) AS one SEMI JOIN "
                f"(SELECT host, device, coalesce(max(time) FILTER (time <= {now}), max(time)) AS time {new} "
                "GROUP BY host, device) AS last "
                "USING (host, device, time)"
            ).to_arrow_table()


def between(firsts: Sequence[str]) -> list[str]:
    """Return conditions on `host`, of which each name meets one: before the first of *firsts* (sorted), from there to
    the second, and so on."""
    since = ["true", *(f"host >= {quoted(name)}" for name in firsts)]
    until = [*(f"host < {quoted(name)}" for name in firsts), "true"]
    return [f"({one} AND {two})" for one, two in zip(since, until, strict=True)]


def _kind(table: str) -> str:
    return LAYOUTS[table].signals[0].device_kind
