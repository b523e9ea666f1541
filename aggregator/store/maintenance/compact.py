"""Rewrites the store without its free space, while ingest continues.

A DuckDB file keeps and reuses the blocks of dropped tables; it hardly ever shrinks. So the tables are copied to a new file beside
it. Append-only tables are copied first, in passes until little is missing. The rest follows between two commits, and then the
new file replaces the old one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from ... import sql
from ...durable_file import CopyError, format_bytes, free_bytes
from ..duckdb_file import COMPACTED_FILE, CONNECTION_CONFIG, STORE_FILE, cause, size_of, wal_of
from .verify import count_rows, qualified_name, quoted_identifier, schemas, tables

if TYPE_CHECKING:
    from ..store import Store
    from ..writer import Writer

Connection = duckdb.DuckDBPyConnection
#: Gives a cursor on the live file for a moment.
OpenCursor = Callable[[], AbstractContextManager[Connection]]
#: Schema and name.
Table = tuple[str, str]

#: This many rows are copied in one piece, and the last of them while nothing is stored.
PIECE_ROWS, BATCH_ROWS = 500_000, 50_000
#: Another turn is made as long as more than this came meanwhile; while ingest outruns us, at most TURNS.
TAIL_ROWS, TURNS_MAX = 50_000, 20
#: Tables of these schemas only grow or go as a whole; all others are copied while nothing is stored.
GROWING = ("hours",)

_TABLE = (
    "SELECT sql, comment, table_oid FROM duckdb_tables() WHERE schema_name = ? AND table_name = ?"
)

#: Told how many rows are copied, and how many there are to copy as far as is known.
ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Bytes of the file before and after, and for how long nothing was stored."""

    bytes_before: int
    bytes_after: int
    paused_microseconds: int


def compact(
    store: Store, report_progress: ProgressCallback, is_canceled: Callable[[], bool] = lambda: False
) -> CompactionResult:
    """Write the file of *store* again and put it in its place. Blocks; call it beside the event loop.

    Raises CopyError with words, StoreError when the store closes; then the old file stays, and nothing else.
    """
    compaction = Compaction(store.folder, report_progress, is_canceled)
    try:
        compaction.begin()
        compaction.copy_growing(store.reading)
        return store.run_on_writer_thread(compaction.finish)
    except (duckdb.Error, OSError) as error:
        reason = cause(error, store.folder)
        raise CopyError(f"not compacted, the store is unchanged: {reason}") from error
    finally:
        compaction.close()


class Compaction:
    """One attempt. `begin`, `copy_growing` beside the writer, `finish` in its thread, `close` in any case.

    The new file is open in a DuckDB of its own, so that anyone who asks the live one for its tables sees only those.
    """

    def __init__(
        self, folder: Path, report_progress: ProgressCallback, is_canceled: Callable[[], bool]
    ) -> None:
        self._file, self._new = folder / STORE_FILE, folder / COMPACTED_FILE
        self._report_progress, self._is_canceled = report_progress, is_canceled
        self._bytes_before = size_of(self._file) + size_of(wal_of(self._file))
        self._copied: dict[Table, int] = {}  # rows of each table that was made
        self._source_ids: dict[Table, int] = {}  # DuckDB's number of the table that it was made of
        self._rows = self._rows_total = 0
        self._target: duckdb.DuckDBPyConnection | None = None

    def begin(self) -> None:
        """Make the new file. Raises CopyError on a disk that is too full."""
        self._remove_new_file()
        free = free_bytes(self._file.parent)
        if free < self._bytes_before:
            raise CopyError(
                f"{self._file.parent} has {format_bytes(free)} free, and a compacted store may take up to "
                f"{format_bytes(self._bytes_before)} beside the old one: make room first"
            )
        self._target = duckdb.connect(str(self._new), config=CONNECTION_CONFIG)

    def copy_growing(self, open_cursor: OpenCursor) -> None:
        """Copy the tables that only grow, until little is missing. Others read between two pieces."""
        for _ in range(TURNS_MAX):
            before = self._rows
            with open_cursor() as source:
                source.execute("BEGIN")
                self._rows_total = count_rows(source)
                growing = [one for one in tables(source) if one[0] in GROWING]
                made = [one for one in growing if self._create_table(source, one)]
            for each in made:
                while self._copy_piece(open_cursor, each) == PIECE_ROWS:
                    if self._is_canceled():
                        raise CopyError("not compacted, the store is unchanged: it was cancelled")
            self._target_connection.execute(
                "CHECKPOINT"
            )  # now, rather than while nothing is stored
            if self._rows - before < TAIL_ROWS:
                return

    def finish(self, writer: Writer) -> CompactionResult:
        """Copy the rest and put the new file in place. Nothing is stored meanwhile."""
        begin = time.monotonic_ns()
        self._complete(writer.cursor)
        self._target_connection.execute("CHECKPOINT")
        self._target_connection.close()
        self._target = None
        if size_of(wal_of(self._new)):
            raise CopyError("not compacted, the store is unchanged: the new file is incomplete")
        writer.swap(self._new)
        micros = (time.monotonic_ns() - begin) // 1000
        return CompactionResult(self._bytes_before, size_of(self._file), micros)

    def close(self) -> None:
        """Remove the new file where it was not put in place."""
        if self._target is not None:
            with suppress(duckdb.Error):
                self._target.close()
            self._target = None
        self._remove_new_file()

    def _remove_new_file(self) -> None:
        for each in (self._new, wal_of(self._new)):
            each.unlink(missing_ok=True)

    @property
    def _target_connection(self) -> Connection:
        assert self._target is not None
        return self._target

    def _create_table(self, source: Connection, each: Table) -> bool:
        """Make the table in the new file as it is in the old, with defaults and comment, once.

        False: it went meanwhile.
        """
        if each in self._copied:
            return True
        found = source.execute(_TABLE, list(each)).fetchall()
        if not found:
            return False
        row = found[0]
        self._target_connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted_identifier(each[0])}")
        self._target_connection.execute(row[0])
        if row[1]:
            self._target_connection.execute(
                f"COMMENT ON TABLE {qualified_name(*each)} IS {sql.quoted(row[1])}"
            )
        self._copied[each], self._source_ids[each] = 0, row[2]
        return True

    def _copy_piece(self, open_cursor: OpenCursor, each: Table) -> int:
        """Copy of the rows that came since the last time; return how many, at most PIECE_ROWS.

        0 of a table that has left for Parquet meanwhile: `_complete` drops what was copied of it.
        """
        done = self._copied[each]
        where = f"WHERE rowid >= {done} AND rowid < {done + PIECE_ROWS}"
        with open_cursor() as source:
            source.execute("BEGIN")  # what is there stays there until we are done with this cursor
            if not source.execute(_TABLE, list(each)).fetchall():
                return 0
            return self._copy(source, each, f"SELECT * FROM {qualified_name(*each)} {where}")

    def _copy(self, source: Connection, each: Table, query: str) -> int:
        self._target_connection.register("came", source.sql(query).to_arrow_reader(BATCH_ROWS))
        try:
            insert = f"INSERT INTO {qualified_name(*each)} BY NAME FROM came"
            ((rows,),) = self._target_connection.execute(insert).fetchall()
        finally:
            self._target_connection.unregister("came")
        self._copied[each] += rows
        self._rows += rows
        self._report_progress(self._rows, max(self._rows, self._rows_total))
        return int(rows)

    def _complete(self, open_cursor: OpenCursor) -> None:
        """Make the new file hold what the old one does, whatever happened while it was copied."""
        with open_cursor() as source:
            source_tables, source_shapes, copied_shapes = (
                tables(source),
                _shapes(source),
                _shapes(self._target_connection),
            )
            for schema in schemas(source):
                self._target_connection.execute(
                    f"CREATE SCHEMA IF NOT EXISTS {quoted_identifier(schema)}"
                )
        for each in self._copied.keys() - set(source_tables):
            self._drop(each)
        for each in source_tables:
            number, columns = source_shapes[each]
            # Of another number it is another of this name, of other columns another version's.
            is_same_table = (
                self._source_ids.get(each) == number and copied_shapes[each][1] == columns
            )
            if is_same_table and self._copy_end(open_cursor, each):
                continue
            with open_cursor() as source:
                if each in self._copied:
                    self._drop(each)
                self._create_table(source, each)
                self._copy(source, each, f"SELECT * FROM {qualified_name(*each)}")

    def _copy_end(self, open_cursor: OpenCursor, each: Table) -> bool:
        """Copy the end of a table that only grew. False: it did something else meanwhile."""
        while self._copy_piece(open_cursor, each) == PIECE_ROWS:
            pass
        with open_cursor() as source:
            return _count(source, each) == self._copied[each]

    def _drop(self, each: Table) -> None:
        self._target_connection.execute(f"DROP TABLE {qualified_name(*each)}")
        del self._copied[each]


def _shapes(connection: Connection) -> dict[Table, tuple[int, list[Any]]]:
    """Return DuckDB's number of each table, and its columns with their types: of all at once, for it reads all."""
    rows = connection.execute(
        "SELECT schema_name, table_name, table_oid, list((column_name, data_type) ORDER BY column_index) "
        "FROM duckdb_columns() WHERE NOT internal GROUP BY ALL"
    ).fetchall()
    return {(schema, name): (number, columns) for schema, name, number, columns in rows}


def _count(connection: Connection, each: Table) -> int:
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {qualified_name(*each)}").fetchall()
    return int(rows)
