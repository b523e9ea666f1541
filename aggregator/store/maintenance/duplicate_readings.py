"""Searches the live file and Parquet files for readings that are stored twice.

The search goes by spans of time, so that a year takes no more memory than a day. A frame that was
resent has the same times and the same host, so duplicates fall into the same span. A span with many
readings is searched by ranges of hosts, because sorting it at once would spill to the store's disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import duckdb
from duckdb import DuckDBPyConnection as Connection

from ...sql import quoted as sql_quoted
from ..layout import BY_NAME
from ..parquet.host_ranges import HostRange, ranges

#: Approximate number of readings per span, and its maximum number of files.
SPAN_ROWS, SPAN_SOURCES = 1_000_000, 200


class ReadingSource(NamedTuple):
    """A table (SQL name) or Parquet file (path) with readings, and their first and last time."""

    name: str
    is_file: bool
    first_us: int
    last_us: int
    rows: int


class TimeSpan(NamedTuple):
    """Readings from `begin_us` until before `end_us`, about `rows`, in `sources`."""

    begin_us: int
    end_us: int
    sources: tuple[ReadingSource, ...]
    rows: float


class Duplicates(NamedTuple):
    """Duplicates found in a span, and all hosts with readings in it."""

    rows: int
    hosts: frozenset[str]


def spans(sources: Sequence[ReadingSource]) -> Iterator[TimeSpan]:
    """Yield spans that together cover *sources*, oldest first."""
    cuts = sorted({s.first_us for s in sources} | {s.last_us + 1 for s in sources})
    upcoming = sorted(sources, key=lambda source: source.first_us, reverse=True)
    active: list[ReadingSource] = []
    chosen: dict[ReadingSource, None] = {}
    begin_us, rows = cuts[0] if cuts else 0, 0.0
    for cut_us, next_us in pairwise(cuts):  # within each pair of cuts the sources are the same
        active = [source for source in active if source.last_us >= cut_us]
        while upcoming and upcoming[-1].first_us <= cut_us:
            active.append(upcoming.pop())
        more = sum(source.rows * (next_us - cut_us) / _duration_us(source) for source in active)
        sources_count = len(chosen.keys() | set(active))
        if chosen and (rows + more > SPAN_ROWS or sources_count > SPAN_SOURCES):
            yield TimeSpan(begin_us, cut_us, tuple(chosen), rows)
            chosen, begin_us, rows = {}, cut_us, 0.0
        chosen |= dict.fromkeys(active)
        rows += more
    if chosen:
        yield TimeSpan(begin_us, cuts[-1], tuple(chosen), rows)


def _duration_us(one: ReadingSource) -> int:
    return one.last_us - one.first_us + 1


def find_duplicates(
    connection: Connection,
    table: str,
    sources: Sequence[ReadingSource],
    report_progress: Callable[[str, int, int], None],
) -> Iterator[Duplicates | duckdb.Error]:
    """Yield the duplicates of each piece of *table*, or the error that prevented the search."""
    all_spans = list(spans(sources))
    for index, span in enumerate(all_spans):
        report_progress(f"doubles in {table}", index, len(all_spans))
        try:
            for hosts in _host_ranges(connection, table, span):
                query = _query(table, span, hosts)
                ((rows, names),) = connection.execute(query, hosts.parameters).fetchall()
                yield Duplicates(int(rows), frozenset(names or ()))
        except duckdb.Error as error:
            yield error


def _host_ranges(connection: Connection, table: str, span: TimeSpan) -> list[HostRange]:
    """Return the ranges of hosts in which to search the span."""
    everyone = HostRange(None, None, int(span.rows))
    if span.rows <= SPAN_ROWS:
        return [everyone]
    counts = connection.execute(
        f"SELECT host, count(*) FROM ({_readings('host', span, everyone)}) GROUP BY host ORDER BY host"
    ).fetchall()
    return ranges(counts, SPAN_ROWS)


def _readings(columns: str, span: TimeSpan, hosts: HostRange) -> str:
    of_time = f"time >= make_timestamp({span.begin_us}) AND time < make_timestamp({span.end_us})"
    names = [source.name for source in span.sources if not source.is_file]
    if files := ", ".join(sql_quoted(source.name) for source in span.sources if source.is_file):
        names.append(f"read_parquet([{files}], hive_partitioning = false)")
    everything = " UNION ALL ".join(
        f"SELECT {columns} FROM {name} WHERE {of_time}" for name in names
    )
    return f"SELECT * FROM ({everything}) WHERE {hosts.where}"


def _query(table: str, span: TimeSpan, hosts: HostRange) -> str:
    key = "host, device, time, " + ("signal" if table == BY_NAME else "boottime_ns")
    return (
        f"SELECT coalesce(sum(times - 1), 0)::BIGINT, list(DISTINCT host) "
        f"FROM (SELECT host, count(*) AS times FROM ({_readings(key, span, hosts)}) GROUP BY {key})"
    )
