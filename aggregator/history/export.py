"""Export: closed five minutes of a table leave the live file for Parquet, with their rollup by minute.

Steps, a crash between any two of which loses and doubles nothing: written, synced, revealed (each file),
recorded (one transaction that also drops the live table), published. Until `recorded` the rows are the
live table's, and what lies in the folder is found at the next start and removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from ..sql import quoted
from ..store.layout import BY_NAME, COLUMNS, LAYOUTS, typed_empty
from .parquet import ParquetFile
from .rollup import IS_TAIL, roll, shapes
from .segments import MINUTE, RAW, TAIL, fault
from .shelf import Shelf
from .views import LATE_SECONDS, span_us

#: A device that was not heard of for so long is compared with nothing when it comes back.
TAIL_SECONDS_MAX = 7 * 86_400


class Changed(Exception):
    """Rows came to a table while it was being exported: the clock was set back. It is exported anew."""


class Range(NamedTuple):
    """Hosts after *after* up to *last*, by name; None: no limit."""

    after: str | None
    last: str | None
    rows: int

    @property
    def where(self) -> str:
        """The condition, with as many parameters as `parameters`."""
        parts = [*(["host > ?"] if self.after is not None else [])]
        parts += ["host <= ?"] if self.last is not None else []
        return " AND ".join(parts) or "true"

    @property
    def parameters(self) -> list[str]:
        """What the condition is over."""
        return [host for host in (self.after, self.last) if host is not None]


def ranges(counts: Sequence[tuple[str, int]], rows_max: int) -> list[Range]:
    """Return consecutive ranges over all hosts, of at most *rows_max* rows where hosts allow it.

    *counts*: (host, rows), by host.
    """
    cut: list[Range] = []
    rows, after, last = 0, None, None
    for host, count in counts:
        if rows and rows + count > rows_max:
            cut.append(Range(after, last, rows))
            after, rows = last, 0
        rows, last = rows + count, host
    return [*cut, Range(after, None, rows)]


def export(shelf: Shelf, table: str, part: str) -> Iterator[str]:
    """Export the live table of *table* and *part*; yields between its pieces, words at the end.

    Raises OSError, duckdb.Error, Changed.
    """
    name = f'hours."{table}__{part}"'
    counts = shelf.rows(f"SELECT host, count(*) FROM {name} GROUP BY host ORDER BY host")
    rows = sum(count for _, count in counts)
    grains = [RAW, MINUTE, TAIL] if table in LAYOUTS else [RAW]
    old_tails = shelf.of(TAIL, table)
    with shelf.files(table, part, grains if rows else []) as files:
        for each in ranges(counts, shelf.rows_max) if rows else []:
            chunk = shelf.live(f"FROM {name} WHERE {each.where}", each.parameters)
            if table in LAYOUTS:
                _write_rolled(shelf, table, part, each, chunk, files)
            else:
                files[RAW].write(shelf.ask(f"FROM chunk ORDER BY {_order(table)}", chunk=chunk))
            del chunk
            yield ""
        new = shelf.finish(table, part, files)

        def drop(connection: duckdb.DuckDBPyConnection) -> None:
            counted = connection.execute(f"SELECT count(*) FROM {name}").fetchone()
            if counted != (rows,):
                raise Changed(f"{table} {part}: {rows} rows were exported, {counted} are there")
            connection.execute(f"DROP TABLE {name}")

        shelf.settle(table, new, old_tails if rows else [], drop)
    shelf.exported_rows += rows
    yield f"exported {table} {part}: {rows} rows"


def _order(table: str) -> str:
    return "host, device, time" + (", signal" if table == BY_NAME else "")


def _write_rolled(
    shelf: Shelf, table: str, part: str, each: Range, chunk: Any, files: dict[str, ParquetFile]
) -> None:
    """Write the readings of some hosts, their rollup, and their tails."""
    columns = [*COLUMNS[table], (IS_TAIL, "BOOLEAN")]
    ordered = shelf.ask(
        f"FROM ({typed_empty(columns)} UNION ALL BY NAME SELECT *, false AS {IS_TAIL} FROM chunk "
        f"UNION ALL BY NAME SELECT *, true AS {IS_TAIL} FROM tails) "
        f"ORDER BY host, device, time, {IS_TAIL}",
        chunk=chunk,
        tails=_tails(shelf, table, part, each),
    )
    rolled = roll(ordered, table)
    readings = ordered
    if ordered.num_rows != chunk.num_rows:
        readings = ordered.filter(pa.array(~ordered[IS_TAIL].to_numpy()))
    files[RAW].write(readings.select(chunk.column_names))
    files[MINUTE].write(rolled.minutes)
    files[TAIL].write(rolled.tail)


def _tails(shelf: Shelf, table: str, part: str, each: Range) -> Any:
    """Return the last readings of those hosts' devices before *part*."""
    columns = shapes(table).tail_columns
    names = ", ".join(f'"{name}"' for name, _ in columns)
    files = [one for one in shelf.of(TAIL, table)[-1:] if not fault(shelf.folder, one)]
    parts = [typed_empty(columns)]
    parts += [f"FROM read_parquet({quoted(str(shelf.folder / one.path))})" for one in files]
    _, end_us = span_us(part)
    newest_us = end_us + LATE_SECONDS * 1_000_000
    return shelf.ask(
        f"SELECT {names} FROM ({' UNION ALL BY NAME '.join(parts)}) WHERE {each.where} "
        "AND time BETWEEN make_timestamp(?) AND make_timestamp(?)",
        [*each.parameters, newest_us - TAIL_SECONDS_MAX * 1_000_000, newest_us],
    )
