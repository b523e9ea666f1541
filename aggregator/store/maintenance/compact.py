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

from ....contract.durable_file import CopyError, format_bytes, free_bytes
from ... import sql
from ..duckdb_file import CONNECTION_CONFIG
from ..durability_mark import size_of
from ..store_folder import COMPACTED_FILE, STORE_FILE, cause, wal_of
from .verify import count_rows, qualified_name, quoted_identifier, schemas, tables

if TYPE_CHECKING:
    from ..store import Store
    from ..writer import Writer

Connection = duckdb.DuckDBPyConnection
#: Opens a cursor on the live file, which must be closed soon.
OpenCursor = Callable[[], AbstractContextManager[Connection]]
#: Schema and name.
Table = tuple[str, str]

#: Rows per piece, and per batch in memory.
PIECE_ROWS, BATCH_ROWS = 500_000, 50_000
#: Growing tables are copied again while more than TAIL_ROWS came, at most TURNS_MAX times if ingest
#: is faster.
TAIL_ROWS, TURNS_MAX = 50_000, 20
#: Schemas with growing tables; all others are copied while nothing is stored.
GROWING = ("hours",)

_TABLE = (
    "SELECT sql, comment, table_oid FROM duckdb_tables() WHERE schema_name = ? AND table_name = ?"
)

#: Called with the number of copied rows and the expected total.
ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Bytes of the file before and after, and the time during which nothing was stored."""

    bytes_before: int
    bytes_after: int
    paused_microseconds: int


def compact(
    store: Store, report_progress: ProgressCallback, is_canceled: Callable[[], bool] = lambda: False
) -> CompactionResult:
    """Rewrite the file of *store*. Blocks; do not call it on the event loop.

    Raises CopyError, or StoreError if the store closes; then the store is unchanged and the new
    file removed.
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
    """A compaction: `begin` and `copy_growing` outside the writer's thread, `finish` in it, `close`
    always.

    The new file is open in a separate DuckDB instance, so that the live one does not list its
    tables.
    """

    def __init__(
        self, folder: Path, report_progress: ProgressCallback, is_canceled: Callable[[], bool]
    ) -> None:
        self._file, self._new = folder / STORE_FILE, folder / COMPACTED_FILE
        self._report_progress, self._is_canceled = report_progress, is_canceled
        self._bytes_before = size_of(self._file) + size_of(wal_of(self._file))
        self._copied: dict[Table, int] = {}  # copied rows by table
        self._source_ids: dict[Table, int] = {}  # DuckDB's id of the original of each copied table
        self._rows = self._rows_total = 0
        self._target: duckdb.DuckDBPyConnection | None = None

    def begin(self) -> None:
        """Create the new file. Raises CopyError if the disk is too full."""
        self._remove_new_file()
        free = free_bytes(self._file.parent)
        if free < self._bytes_before:
            raise CopyError(
                f"{self._file.parent} has {format_bytes(free)} free, and a compacted store may take up to "
                f"{format_bytes(self._bytes_before)} beside the old one: make room first"
            )
        self._target = duckdb.connect(str(self._new), config=CONNECTION_CONFIG)

    def copy_growing(self, open_cursor: OpenCursor) -> None:
        """Copy growing tables until few rows are missing. Readers can run between pieces."""
        for _ in range(TURNS_MAX):
            before = self._rows
            with open_cursor() as source:
                source.execute("BEGIN")
                self._rows_total = count_rows(source)
                growing = [table for table in tables(source) if table[0] in GROWING]
                created = [table for table in growing if self._create_table(source, table)]
            for table in created:
                while self._copy_piece(open_cursor, table) == PIECE_ROWS:
                    if self._is_canceled():
                        raise CopyError("not compacted, the store is unchanged: it was cancelled")
            # Now, because nothing is stored during `finish`.
            self._target_connection.execute("CHECKPOINT")
            if self._rows - before < TAIL_ROWS:
                return

    def finish(self, writer: Writer) -> CompactionResult:
        """Copy the rest and replace the old file. Nothing is stored meanwhile."""
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
        """Remove the new file, if it did not replace the old one."""
        if self._target is not None:
            with suppress(duckdb.Error):
                self._target.close()
            self._target = None
        self._remove_new_file()

    def _remove_new_file(self) -> None:
        for path in (self._new, wal_of(self._new)):
            path.unlink(missing_ok=True)

    @property
    def _target_connection(self) -> Connection:
        assert self._target is not None
        return self._target

    def _create_table(self, source: Connection, each: Table) -> bool:
        """Create the table in the new file. False: it is gone from the old file."""
        if each in self._copied:
            return True
        rows = source.execute(_TABLE, list(each)).fetchall()
        if not rows:
            return False
        row = rows[0]
        self._target_connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted_identifier(each[0])}")
        self._target_connection.execute(row[0])
        if row[1]:
            self._target_connection.execute(
                f"COMMENT ON TABLE {qualified_name(*each)} IS {sql.quoted(row[1])}"
            )
        self._copied[each], self._source_ids[each] = 0, row[2]
        return True

    def _copy_piece(self, open_cursor: OpenCursor, each: Table) -> int:
        """Copy up to PIECE_ROWS new rows of a table; return their number.

        0 also for a table dropped after its export to Parquet: `_complete` drops its copy.
        """
        done = self._copied[each]
        where = f"WHERE rowid >= {done} AND rowid < {done + PIECE_ROWS}"
        with open_cursor() as source:
            source.execute("BEGIN")  # keeps the table until the cursor is closed
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
        """Make the new file equal to the old one after all concurrent changes."""
        with open_cursor() as source:
            source_tables = tables(source)
            source_shapes = _shapes(source)
            copied_shapes = _shapes(self._target_connection)
            for schema in schemas(source):
                self._target_connection.execute(
                    f"CREATE SCHEMA IF NOT EXISTS {quoted_identifier(schema)}"
                )
        for table in self._copied.keys() - set(source_tables):
            self._drop(table)
        for table in source_tables:
            number, columns = source_shapes[table]
            # Another id: a new table of this name. Other columns: an upgrade.
            is_same_table = (
                self._source_ids.get(table) == number and copied_shapes[table][1] == columns
            )
            if is_same_table and self._copy_end(open_cursor, table):
                continue
            with open_cursor() as source:
                if table in self._copied:
                    self._drop(table)
                self._create_table(source, table)
                self._copy(source, table, f"SELECT * FROM {qualified_name(*table)}")

    def _copy_end(self, open_cursor: OpenCursor, each: Table) -> bool:
        """Copy the end of a growing table. False: the table also changed otherwise."""
        while self._copy_piece(open_cursor, each) == PIECE_ROWS:
            pass
        with open_cursor() as source:
            return _count(source, each) == self._copied[each]

    def _drop(self, each: Table) -> None:
        self._target_connection.execute(f"DROP TABLE {qualified_name(*each)}")
        del self._copied[each]


def _shapes(connection: Connection) -> dict[Table, tuple[int, list[Any]]]:
    """Return DuckDB's id, columns and types of each table: DuckDB reads all for any query."""
    rows = connection.execute(
        "SELECT schema_name, table_name, table_oid, list((column_name, data_type) ORDER BY column_index) "
        "FROM duckdb_columns() WHERE NOT internal GROUP BY ALL"
    ).fetchall()
    return {(schema, name): (number, columns) for schema, name, number, columns in rows}


def _count(connection: Connection, each: Table) -> int:
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {qualified_name(*each)}").fetchall()
    return int(rows)
