"""Export: moves closed five-minute tables from the live file to Parquet, with rollups by minute; merges.

The steps are: write, sync, reveal (each file), record (one transaction that also drops the live table), publish. A crash between
any two loses and duplicates nothing. Until `record` the rows belong to the live table, and the next start removes leftover files.

Merges: the twelve parts of a closed hour become a file, the hours of a closed day a rollup. The
steps are those of an export; the transaction that records the new file marks the old ones as gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import duckdb

from ...sql import quoted
from ..layout import COLUMNS, LAYOUTS
from .host_ranges import HostRange, order_of, ranges, rows_within
from .rollup import merge_query, rollup_columns
from .segment_files import HOUR, MINUTE, RAW, TAIL, ParquetSegment, damage, fault
from .segment_store import SegmentStore
from .views import span_us

#: A bucket is closed this long after its end: its rows have left the live file by then.
CLOSED_SECONDS = 60
_PART, _HOUR, _DAY = 12, 10, 8  # digits of a bucket


class TableChangedError(Exception):
    """A table grew during its export, as the clock was set back. The export is repeated."""


def export(segment_store: SegmentStore, table: str, part: str) -> Iterator[str]:
    """Export the live table of *table* and *part*; yield "" between pieces, and a message at the
    end.

    Raises OSError, duckdb.Error, ArrowException, PackerError, TableChangedError.
    """
    name = f'hours."{table}__{part}"'
    counts = segment_store.rows(f"SELECT host, count(*) FROM {name} GROUP BY host ORDER BY host")
    rows = sum(count for _, count in counts)
    grains = [RAW, MINUTE, TAIL] if table in LAYOUTS else [RAW]
    old_tails = segment_store.of_grain(TAIL, table) if rows else []
    new: list[ParquetSegment] = []
    if rows:
        before = [s.path for s in old_tails[-1:] if not fault(segment_store.folder, s)]
        with segment_store.files(table, part, grains) as file_set:
            rows_max = rows_within(segment_store.rows_max, len(COLUMNS[table]))
            for host_range in ranges(counts, rows_max):
                with segment_store.live_stream(
                    f"FROM {name} WHERE {host_range.where}", host_range.parameters
                ) as memory:
                    segment_store.pack(
                        "readings", file_set, table, part, host_range, before, memory=memory
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


class DamagedSegmentError(Exception):
    """A file to be read differs from the written one."""

    def __init__(self, segment: ParquetSegment, reason: str) -> None:
        super().__init__(f"{segment.path} {reason}")
        self.segment = segment
        self.reason = reason


class Merge(NamedTuple):
    """Files of a table and grain to merge."""

    table: str
    bucket: str
    files: tuple[ParquetSegment, ...]
    hours: bool  # five-minute rollups: the rollup by hour is made from them, too

    @property
    def grain(self) -> str:
        """Return the grain, which all files share."""
        return self.files[0].grain


def due_merges(
    found: Iterable[ParquetSegment], waiting: set[tuple[str, str]], now_us: int
) -> list[Merge]:
    """Return due merges, oldest first. *waiting*: (table, bucket) in the live file."""
    groups: dict[tuple[str, str, str, int], list[ParquetSegment]] = {}
    for segment in found:
        for digits in _target_digits(segment):
            key = segment.bucket[:digits], segment.table, segment.grain, digits
            groups.setdefault(key, []).append(segment)
    blocked = {(table, bucket[:digits]) for table, bucket in waiting for digits in (_HOUR, _DAY)}
    chosen = []
    for (bucket, table, grain, digits), files in sorted(groups.items()):
        late = max(len(segment.bucket) for segment in files) > _HOUR and digits == _DAY
        closed = span_us(bucket)[1] + CLOSED_SECONDS * 1_000_000 <= now_us
        if closed and not late and (table, bucket) not in blocked:
            is_five_minutes = grain == MINUTE and digits == _HOUR
            if len(files) > 1 or is_five_minutes:
                chosen.append(Merge(table, bucket, tuple(files), is_five_minutes))
    return chosen


def _target_digits(one: ParquetSegment) -> tuple[int, ...]:
    """Return the lengths of the buckets into which a file may be merged."""
    if one.grain == RAW:
        return (_HOUR,) if len(one.bucket) == _PART else ()
    if one.grain == MINUTE:
        return {_PART: (_HOUR, _DAY), _HOUR: (_DAY,)}.get(len(one.bucket), ())
    return (_DAY,) if one.grain == HOUR and len(one.bucket) == _HOUR else ()


def merge(segment_store: SegmentStore, one: Merge) -> Iterator[str]:
    """Merge the files of *one*; yield "" between pieces, and a message at the end.

    Raises OSError, duckdb.Error, PackerError, DamagedSegmentError.
    """
    for segment in one.files:
        if reason := damage(segment_store.folder, segment):
            raise DamagedSegmentError(segment, reason)
        yield ""
    source = _source(segment_store, one)
    grains = [one.grain, *([HOUR] if one.hours else [])]
    with segment_store.files(one.table, one.bucket, grains) as file_set:
        rows_max = rows_within(segment_store.rows_max, _columns(one))
        for index in range(segment_store.pack("ranges", file_set, source, rows_max)):
            hosts = HostRange(*segment_store.pack("range", file_set, index))
            for grain in grains:
                query = _query(one, grain, f"(FROM {source} WHERE {hosts.where})")
                segment_store.pack("write", file_set, grain, query, hosts.parameters)
                yield ""
        new = segment_store.finish(file_set, one.table, one.bucket)
    segment_store.record(one.table, new, one.files)
    yield f"merged {len(one.files)} files into {one.grain} {one.table} {one.bucket}"


def _source(segment_store: SegmentStore, one: Merge) -> str:
    names = ", ".join(quoted(str(segment_store.folder / segment.path)) for segment in one.files)
    return f"read_parquet([{names}], union_by_name = true)"


def _columns(one: Merge) -> int:
    """Return the values per row in memory at a time; a rollup has input and output."""
    return len(COLUMNS[one.table]) if one.grain == RAW else 2 * len(rollup_columns(one.table))


def _query(one: Merge, grain: str, source: str) -> str:
    if one.grain == RAW:
        return f"FROM {source} ORDER BY {order_of(one.table)}"
    unit = "hour" if grain == HOUR else "minute"
    names = ", ".join(f'"{name}"' for name, _ in rollup_columns(one.table))
    return f"SELECT {names} FROM ({merge_query(one.table, [source], unit)}) ORDER BY host, device, time"
