"""Whether a reading is stored twice, looked for by spans of its time: a year takes no more memory than a day.

A reading that is sent again has the same time wherever it lies, so that both fall into the same span; and the same
host, so that a span with many readings is looked at by ranges of hosts: all at once would be sorted on the store's disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import duckdb

from ...history.ranges import Range, ranges
from ...sql import quoted
from ..layout import BY_NAME

#: About so many readings are compared at a time, of at most so many files.
SPAN_ROWS, SPAN_SOURCES = 1_000_000, 200


class Source(NamedTuple):
    """Where readings lie: a table as SQL names it, or the path of a Parquet file. Times are its first and its last."""

    name: str
    is_file: bool
    first_us: int
    last_us: int
    rows: int


class Span(NamedTuple):
    """From `begin_us` until before `end_us` the readings, about `rows`, are in `sources`."""

    begin_us: int
    end_us: int
    sources: tuple[Source, ...]
    rows: float


class Doubles(NamedTuple):
    """What was found in one span; hosts are those with readings in it."""

    rows: int
    hosts: frozenset[str]


def spans(sources: Sequence[Source]) -> Iterator[Span]:
    """Yield spans that together hold all of *sources*, oldest first."""
    cuts = sorted({one.first_us for one in sources} | {one.last_us + 1 for one in sources})
    coming = sorted(sources, key=lambda one: one.first_us, reverse=True)
    active: list[Source] = []
    taken: dict[Source, None] = {}
    begin_us, rows = cuts[0] if cuts else 0, 0.0
    for cut_us, next_us in pairwise(cuts):  # between two of them nothing begins or ends
        active = [one for one in active if one.last_us >= cut_us]
        while coming and coming[-1].first_us <= cut_us:
            active.append(coming.pop())
        more = sum(one.rows * (next_us - cut_us) / _micros(one) for one in active)
        sources_count = len(taken.keys() | set(active))
        if taken and (rows + more > SPAN_ROWS or sources_count > SPAN_SOURCES):
            yield Span(begin_us, cut_us, tuple(taken), rows)
            taken, begin_us, rows = {}, cut_us, 0.0
        taken |= dict.fromkeys(active)
        rows += more
    if taken:
        yield Span(begin_us, cuts[-1], tuple(taken), rows)


def _micros(one: Source) -> int:
    return one.last_us - one.first_us + 1


def look(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    sources: Sequence[Source],
    told: Callable[[str, int, int], None],
) -> Iterator[Doubles | duckdb.Error]:
    """Yield for each piece of *table* what was found, or why it could not be looked at."""
    all_spans = list(spans(sources))
    for at, span in enumerate(all_spans):
        told(f"doubles in {table}", at, len(all_spans))
        try:
            for hosts in _hosts(connection, table, span):
                query = _query(table, span, hosts)
                ((rows, names),) = connection.execute(query, hosts.parameters).fetchall()
                yield Doubles(int(rows), frozenset(names or ()))
        except duckdb.Error as error:
            yield error


def _hosts(connection: duckdb.DuckDBPyConnection, table: str, span: Span) -> list[Range]:
    """Return by which hosts the readings of a span are looked at: files are sorted by them."""
    everyone = Range(None, None, int(span.rows))
    if span.rows <= SPAN_ROWS:
        return [everyone]
    counts = connection.execute(
        f"SELECT host, count(*) FROM ({_readings('host', span, everyone)}) GROUP BY host ORDER BY host"
    ).fetchall()
    return ranges(counts, SPAN_ROWS)


def _readings(columns: str, span: Span, hosts: Range) -> str:
    of_time = f"time >= make_timestamp({span.begin_us}) AND time < make_timestamp({span.end_us})"
    names = [one.name for one in span.sources if not one.is_file]
    if files := ", ".join(quoted(one.name) for one in span.sources if one.is_file):
        names.append(f"read_parquet([{files}], hive_partitioning = false)")
    everything = " UNION ALL ".join(
        f"SELECT {columns} FROM {name} WHERE {of_time}" for name in names
    )
    return f"SELECT * FROM ({everything}) WHERE {hosts.where}"


def _query(table: str, span: Span, hosts: Range) -> str:
    key = "host, device, time, " + ("signal" if table == BY_NAME else "boottime_ns")
    return (
        f"SELECT coalesce(sum(times - 1), 0)::BIGINT, list(DISTINCT host) "
        f"FROM (SELECT host, count(*) AS times FROM ({_readings(key, span, hosts)}) GROUP BY {key})"
    )
