"""Export: closed five minutes of a table leave the live file for Parquet, with their rollup by minute.

Steps, a crash between any two of which loses and doubles nothing: written, synced, revealed (each file),
recorded (one transaction that also drops the live table), published. Until `recorded` the rows are the
live table's, and what lies in the folder is found at the next start and removed.
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb

from ..store.layout import COLUMNS, LAYOUTS
from .ranges import ranges, rows_within
from .segments import MINUTE, RAW, TAIL, Segment, fault
from .shelf import Shelf


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
