"""Export: closed five minutes of a table leave the live file for Parquet, with their rollup by minute.

Steps, a crash between any two of which loses and doubles nothing: written, synced, revealed (each file),
recorded (one transaction that also drops the live table), published. Until `recorded` the rows are the
live table's, and what lies in the folder is found at the next start and removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import duckdb

from ...sql import quoted
from ..layout import COLUMNS, LAYOUTS
from .parquet_worker import Range, order_of, ranges, rows_within
from .rollup import merged, rollup_columns
from .segment_files import HOUR, MINUTE, RAW, TAIL, Segment, damage, fault
from .segment_store import Shelf
from .views import span_us


class Changed(Exception):
    """Rows came to a table while it was being exported: the clock was set back. It is exported anew."""


def export(shelf: Shelf, table: str, part: str) -> Iterator[str]:
    """Export the live table of *table* and *part*; yields between its pieces, words at the end.

    Raises OSError, duckdb.Error, ArrowException, PackerError, Changed.
    """
    name = f'hours."{table}__{part}"'
    counts = shelf.rows(f"SELECT host, count(*) FROM {name} GROUP BY host ORDER BY host")
    rows = sum(count for _, count in counts)
    grains = [RAW, MINUTE, TAIL] if table in LAYOUTS else [RAW]
    old_tails = shelf.of(TAIL, table) if rows else []
    new: list[Segment] = []
    if rows:
        before = [one.path for one in old_tails[-1:] if not fault(shelf.folder, one)]
        with shelf.files(table, part, grains) as of:
            rows_max = rows_within(shelf.rows_max, len(COLUMNS[table]))
            for each in ranges(counts, rows_max):
                with shelf.live(f"FROM {name} WHERE {each.where}", each.parameters) as memory:
                    shelf.pack("readings", of, table, part, each, before, memory=memory)
                yield ""
            new = shelf.finish(of, table, part)

    def drop(connection: duckdb.DuckDBPyConnection) -> None:
        counted = connection.execute(f"SELECT count(*) FROM {name}").fetchone()
        if counted != (rows,):
            raise Changed(f"{table} {part}: {rows} rows were exported, {counted} are there")
        connection.execute(f"DROP TABLE {name}")

    shelf.settle(table, new, old_tails, drop)
    shelf.exported_rows += rows
    yield f"exported {table} {part}: {rows} rows"


# ----------------------------------------------------------------------
# Compaction: the twelve parts of a closed hour become one file, the hours of a closed day one
# rollup.
#
# The same steps as an export; the transaction that records the new file marks the old ones as gone.

#: A bucket is closed so long after its end: what was committed in it has left the live file by then.
CLOSED_SECONDS = 60
_PART, _HOUR, _DAY = 12, 10, 8  # digits of a bucket


class Damaged(Exception):
    """A file that was to be read is not what was written."""

    def __init__(self, one: Segment, words: str) -> None:
        super().__init__(f"{one.path} {words}")
        self.segment = one
        self.words = words


class Merge(NamedTuple):
    """Files of one table and grain that become one, and what else is made of them."""

    table: str
    bucket: str
    files: tuple[Segment, ...]
    hours: bool  # parts of minutes: the rollup by hour is made of them too

    @property
    def grain(self) -> str:
        """Of all files the same."""
        return self.files[0].grain


def due(found: Iterable[Segment], waiting: set[tuple[str, str]], now_us: int) -> list[Merge]:
    """Return what is to be merged, oldest first. *waiting*: (table, bucket) that are still live."""
    groups: dict[tuple[str, str, str, int], list[Segment]] = {}
    for one in found:
        for digits in _merges(one):
            key = one.bucket[:digits], one.table, one.grain, digits
            groups.setdefault(key, []).append(one)
    blocked = {(table, bucket[:digits]) for table, bucket in waiting for digits in (_HOUR, _DAY)}
    chosen = []
    for (bucket, table, grain, digits), files in sorted(groups.items()):
        late = max(len(one.bucket) for one in files) > _HOUR and digits == _DAY
        closed = span_us(bucket)[1] + CLOSED_SECONDS * 1_000_000 <= now_us
        if closed and not late and (table, bucket) not in blocked:
            of_parts = grain == MINUTE and digits == _HOUR
            if len(files) > 1 or of_parts:
                chosen.append(Merge(table, bucket, tuple(files), of_parts))
    return chosen


def _merges(one: Segment) -> tuple[int, ...]:
    """Return the lengths of the buckets that a file may be merged into."""
    if one.grain == RAW:
        return (_HOUR,) if len(one.bucket) == _PART else ()
    if one.grain == MINUTE:
        return {_PART: (_HOUR, _DAY), _HOUR: (_DAY,)}.get(len(one.bucket), ())
    return (_DAY,) if one.grain == HOUR and len(one.bucket) == _HOUR else ()


def merge(shelf: Shelf, one: Merge) -> Iterator[str]:
    """Make one file of several; yields between its pieces, words at the end.

    Raises OSError, duckdb.Error, PackerError, Damaged.
    """
    for each in one.files:
        if words := damage(shelf.folder, each):
            raise Damaged(each, words)
        yield ""
    source = _source(shelf, one)
    grains = [one.grain, *([HOUR] if one.hours else [])]
    with shelf.files(one.table, one.bucket, grains) as of:
        rows_max = rows_within(shelf.rows_max, _columns(one))
        for at in range(shelf.pack("ranges", of, source, rows_max)):
            hosts = Range(*shelf.pack("range", of, at))
            for grain in grains:
                query = _query(one, grain, f"(FROM {source} WHERE {hosts.where})")
                shelf.pack("write", of, grain, query, hosts.parameters)
                yield ""
        new = shelf.finish(of, one.table, one.bucket)
    shelf.settle(one.table, new, one.files)
    yield f"merged {len(one.files)} files into {one.grain} {one.table} {one.bucket}"


def _source(shelf: Shelf, one: Merge) -> str:
    names = ", ".join(quoted(str(shelf.folder / each.path)) for each in one.files)
    return f"read_parquet([{names}], union_by_name = true)"


def _columns(one: Merge) -> int:
    """Return how many values of a row are in memory at a time: of a rollup also what it is put together in."""
    return len(COLUMNS[one.table]) if one.grain == RAW else 2 * len(rollup_columns(one.table))


def _query(one: Merge, grain: str, source: str) -> str:
    if one.grain == RAW:
        return f"FROM {source} ORDER BY {order_of(one.table)}"
    unit = "hour" if grain == HOUR else "minute"
    names = ", ".join(f'"{name}"' for name, _ in rollup_columns(one.table))
    return f"SELECT {names} FROM ({merged(one.table, [source], unit)}) ORDER BY host, device, time"
