"""Export: moves closed five-minute tables from the live file to Parquet, with rollups by minute.

The steps are: write, sync, reveal (each file), record (one transaction that also drops the live table), publish. A crash between
any two loses and duplicates nothing. Until `record` the rows are the live table's, and the next start removes leftover files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import duckdb

from ...sql import quoted
from ..layout import COLUMNS, LAYOUTS
from .parquet_worker import HostRange, order_of, ranges, rows_within
from .rollup import merge_query, rollup_columns
from .segment_files import HOUR, MINUTE, RAW, TAIL, ParquetSegment, damage, fault
from .segment_store import SegmentStore
from .views import span_us


class TableChangedError(Exception):
    """Rows came to a table while it was being exported: the clock was set back. It is exported again."""


def export(segment_store: SegmentStore, table: str, part: str) -> Iterator[str]:
    """Export the live table of *table* and *part*; yields between its pieces, words at the end.

    Raises OSError, duckdb.Error, ArrowException, PackerError, Changed.
    """
    name = f'hours."{table}__{part}"'
    counts = segment_store.rows(f"SELECT host, count(*) FROM {name} GROUP BY host ORDER BY host")
    rows = sum(count for _, count in counts)
    grains = [RAW, MINUTE, TAIL] if table in LAYOUTS else [RAW]
    old_tails = segment_store.of_grain(TAIL, table) if rows else []
    new: list[ParquetSegment] = []
    if rows:
        before = [one.path for one in old_tails[-1:] if not fault(segment_store.folder, one)]
        with segment_store.files(table, part, grains) as file_set:
            rows_max = rows_within(segment_store.rows_max, len(COLUMNS[table]))
            for each in ranges(counts, rows_max):
                with segment_store.live_stream(
                    f"FROM {name} WHERE {each.where}", each.parameters
                ) as memory:
                    segment_store.pack(
                        "readings", file_set, table, part, each, before, memory=memory
                    )
                yield ""
            new = segment_store.finish(file_set, table, part)

    def drop(connection: duckdb.DuckDBPyConnection) -> None:
        counted = connection.execute(f"SELECT count(*) FROM {name}").fetchone()
        if counted != (rows,):
            raise TableChangedError(
                f"{table} {part}: {rows} rows were exported, {counted} are there"
            )
        connection.execute(f"DROP TABLE {name}")

    segment_store.record(table, new, old_tails, drop)
    segment_store.exported_rows += rows
    yield f"exported {table} {part}: {rows} rows"


# ----------------------------------------------------------------------
# Compaction: the twelve parts of a closed hour become one file, the hours of a closed day one
# rollup.
#
# The same steps as an export; the transaction that records the new file marks the old ones as gone.

#: A bucket is closed this long after its end: what was committed in it has left the live file by then.
CLOSED_SECONDS = 60
_PART, _HOUR, _DAY = 12, 10, 8  # digits of a bucket


class DamagedSegmentError(Exception):
    """A file that was to be read is not what was written."""

    def __init__(self, segment: ParquetSegment, reason: str) -> None:
        super().__init__(f"{segment.path} {reason}")
        self.segment = segment
        self.reason = reason


class Merge(NamedTuple):
    """Files of one table and grain that become one, and what else is made of them."""

    table: str
    bucket: str
    files: tuple[ParquetSegment, ...]
    hours: bool  # parts of minutes: the rollup by hour is made of them too

    @property
    def grain(self) -> str:
        """Of all files the same."""
        return self.files[0].grain


def due_merges(
    found: Iterable[ParquetSegment], waiting: set[tuple[str, str]], now_us: int
) -> list[Merge]:
    """Return what must be merged, oldest first. *waiting*: (table, bucket) that are still live."""
    groups: dict[tuple[str, str, str, int], list[ParquetSegment]] = {}
    for one in found:
        for digits in _target_digits(one):
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


def _target_digits(one: ParquetSegment) -> tuple[int, ...]:
    """Return the lengths of the buckets that a file may be merged into."""
    if one.grain == RAW:
        return (_HOUR,) if len(one.bucket) == _PART else ()
    if one.grain == MINUTE:
        return {_PART: (_HOUR, _DAY), _HOUR: (_DAY,)}.get(len(one.bucket), ())
    return (_DAY,) if one.grain == HOUR and len(one.bucket) == _HOUR else ()


def merge(segment_store: SegmentStore, one: Merge) -> Iterator[str]:
    """Make one file of several; yields between its pieces, words at the end.

    Raises OSError, duckdb.Error, PackerError, DamagedSegmentError.
    """
    for each in one.files:
        if reason := damage(segment_store.folder, each):
            raise DamagedSegmentError(each, reason)
        yield ""
    source = _source(segment_store, one)
    grains = [one.grain, *([HOUR] if one.hours else [])]
    with segment_store.files(one.table, one.bucket, grains) as file_set:
        rows_max = rows_within(segment_store.rows_max, _columns(one))
        for at in range(segment_store.pack("ranges", file_set, source, rows_max)):
            hosts = HostRange(*segment_store.pack("range", file_set, at))
            for grain in grains:
                query = _query(one, grain, f"(FROM {source} WHERE {hosts.where})")
                segment_store.pack("write", file_set, grain, query, hosts.parameters)
                yield ""
        new = segment_store.finish(file_set, one.table, one.bucket)
    segment_store.record(one.table, new, one.files)
    yield f"merged {len(one.files)} files into {one.grain} {one.table} {one.bucket}"


def _source(segment_store: SegmentStore, one: Merge) -> str:
    names = ", ".join(quoted(str(segment_store.folder / each.path)) for each in one.files)
    return f"read_parquet([{names}], union_by_name = true)"


def _columns(one: Merge) -> int:
    """Return how many values of a row are in memory at a time: of a rollup also what it is put together in."""
    return len(COLUMNS[one.table]) if one.grain == RAW else 2 * len(rollup_columns(one.table))


def _query(one: Merge, grain: str, source: str) -> str:
    if one.grain == RAW:
        return f"FROM {source} ORDER BY {order_of(one.table)}"
    unit = "hour" if grain == HOUR else "minute"
    names = ", ".join(f'"{name}"' for name, _ in rollup_columns(one.table))
    return f"SELECT {names} FROM ({merge_query(one.table, [source], unit)}) ORDER BY host, device, time"
