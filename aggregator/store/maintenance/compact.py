"""The store written anew without its free space, while readings are taken.

A DuckDB file keeps the blocks of what was dropped, and uses them again; it hardly ever becomes shorter. So the
tables are copied to a new file beside it: those of the hours, to which rows are only ever added, in turns until
little is missing; then, between two commits, the rest, and the new file takes the place of the old.
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
from ...durable_file import CopyError, free_bytes, words_of_bytes
from ..duckdb_file import COMPACTED, CONFIG, FILE, cause, size_of, wal_of
from .verify import count, named, quoted, schemas, tables

if TYPE_CHECKING:
    from ..store import Store
    from ..writer import Writer

Connection = duckdb.DuckDBPyConnection
#: Gives a cursor on the live file for a moment.
Reading = Callable[[], AbstractContextManager[Connection]]
#: Schema and name.
Table = tuple[str, str]

#: So many rows are copied in one piece, and the last of them while nothing is stored.
PIECE_ROWS, BATCH_ROWS = 500_000, 50_000
#: Another turn is made as long as more than this came meanwhile; while ingest outruns us, at most TURNS.
TAIL_ROWS, TURNS = 50_000, 20
#: Tables of these schemas only grow or go as a whole; all others are copied while nothing is stored.
GROWING = ("hours",)

_TABLE = (
    "SELECT sql, comment, table_oid FROM duckdb_tables() WHERE schema_name = ? AND table_name = ?"
)

#: Told how many rows are copied, and how many there are to copy as far as is known.
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Compacted:
    """Bytes of the file before and after, and for how long nothing was stored."""

    bytes_before: int
    bytes_after: int
    stood_still_microseconds: int


def compact(store: Store, told: Told, stopped: Callable[[], bool] = lambda: False) -> Compacted:
    """Write the file of *store* anew and put it in its place. Blocks; call it beside the event loop.

    Raises CopyError with words, StoreError when the store closes; then the old file stays, and nothing else.
    """
    copying = Compaction(store.folder, told, stopped)
    try:
        copying.begin()
        copying.copy_growing(store.reading)
        return store.between_commits(copying.finish)
    except (duckdb.Error, OSError) as error:
        words = cause(error, store.folder)
        raise CopyError(f"not compacted, the store is as it was: {words}") from error
    finally:
        copying.close()


class Compaction:
    """One attempt. `begin`, `copy_growing` beside the writer, `finish` in its thread, `close` in any case.

    The new file is open in a DuckDB of its own, so that whoever asks the live one for its tables sees only those.
    """

    def __init__(self, folder: Path, told: Told, stopped: Callable[[], bool]) -> None:
        self._file, self._new = folder / FILE, folder / COMPACTED
        self._told, self._stopped = told, stopped
        self._bytes_before = size_of(self._file) + size_of(wal_of(self._file))
        self._copied: dict[Table, int] = {}  # rows of each table that was made
        self._made_of: dict[Table, int] = {}  # DuckDB's number of the table that it was made of
        self._rows = self._rows_total = 0
        self._target: duckdb.DuckDBPyConnection | None = None

    def begin(self) -> None:
        """Make the new file. Raises CopyError on a disk that is too full."""
        self._sweep()
        free = free_bytes(self._file.parent)
        if free < self._bytes_before:
            raise CopyError(
                f"{self._file.parent} has {words_of_bytes(free)} free, and a compacted store may take up to "
                f"{words_of_bytes(self._bytes_before)} beside the old one: make room first"
            )
        self._target = duckdb.connect(str(self._new), config=CONFIG)

    def copy_growing(self, reading: Reading) -> None:
        """Copy the tables that only grow, until little is missing. Others read between two pieces."""
        for _ in range(TURNS):
            before = self._rows
            with reading() as source:
                source.execute("BEGIN")
                self._rows_total = count(source)
                growing = [one for one in tables(source) if one[0] in GROWING]
                made = [one for one in growing if self._make(source, one)]
            for each in made:
                while self._copy_piece(reading, each) == PIECE_ROWS:
                    if self._stopped():
                        raise CopyError("not compacted, the store is as it was: it was called off")
            self._into.execute("CHECKPOINT")  # now, rather than while nothing is stored
            if self._rows - before < TAIL_ROWS:
                return

    def finish(self, writer: Writer) -> Compacted:
        """Copy the rest and put the new file in place. Nothing is stored meanwhile."""
        begin = time.monotonic_ns()
        self._complete(writer.cursor)
        self._into.execute("CHECKPOINT")
        self._into.close()
        self._target = None
        if size_of(wal_of(self._new)):
            raise CopyError(
                "not compacted, the store is as it was: the new file was not written whole"
            )
        writer.swap(self._new)
        micros = (time.monotonic_ns() - begin) // 1000
        return Compacted(self._bytes_before, size_of(self._file), micros)

    def close(self) -> None:
        """Remove the new file where it was not put in place."""
        if self._target is not None:
            with suppress(duckdb.Error):
                self._target.close()
            self._target = None
        self._sweep()

    def _sweep(self) -> None:
        for each in (self._new, wal_of(self._new)):
            each.unlink(missing_ok=True)

    @property
    def _into(self) -> Connection:
        assert self._target is not None
        return self._target

    def _make(self, source: Connection, each: Table) -> bool:
        """Make the table in the new file as it is in the old, with defaults and comment, once.

        False: it went meanwhile.
        """
        if each in self._copied:
            return True
        found = source.execute(_TABLE, list(each)).fetchall()
        if not found:
            return False
        row = found[0]
        self._into.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(each[0])}")
        self._into.execute(row[0])
        if row[1]:
            self._into.execute(f"COMMENT ON TABLE {named(*each)} IS {sql.quoted(row[1])}")
        self._copied[each], self._made_of[each] = 0, row[2]
        return True

    def _copy_piece(self, reading: Reading, each: Table) -> int:
        """Copy of the rows that came since the last time; return how many, at most PIECE_ROWS.

        0 of a table that has left for Parquet meanwhile: `_complete` drops what was copied of it.
        """
        done = self._copied[each]
        where = f"WHERE rowid >= {done} AND rowid < {done + PIECE_ROWS}"
        with reading() as source:
            source.execute("BEGIN")  # what is there stays there until we are done with this cursor
            if not source.execute(_TABLE, list(each)).fetchall():
                return 0
            return self._copy(source, each, f"SELECT * FROM {named(*each)} {where}")

    def _copy(self, source: Connection, each: Table, query: str) -> int:
        self._into.register("came", source.sql(query).to_arrow_reader(BATCH_ROWS))
        try:
            insert = f"INSERT INTO {named(*each)} BY NAME FROM came"
            ((rows,),) = self._into.execute(insert).fetchall()
        finally:
            self._into.unregister("came")
        self._copied[each] += rows
        self._rows += rows
        self._told(self._rows, max(self._rows, self._rows_total))
        return int(rows)

    def _complete(self, reading: Reading) -> None:
        """Make the new file hold what the old one does, whatever happened while it was copied."""
        with reading() as source:
            there, as_they_are, as_made = tables(source), _shapes(source), _shapes(self._into)
            for schema in schemas(source):
                self._into.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
        for each in self._copied.keys() - set(there):
            self._drop(each)
        for each in there:
            number, columns = as_they_are[each]
            # Of another number it is another of this name, of other columns another version's.
            kept = self._made_of.get(each) == number and as_made[each][1] == columns
            if kept and self._grew(reading, each):
                continue
            with reading() as source:
                if each in self._copied:
                    self._drop(each)
                self._make(source, each)
                self._copy(source, each, f"SELECT * FROM {named(*each)}")

    def _grew(self, reading: Reading, each: Table) -> bool:
        """Copy the end of a table that only grew. False: it did something else meanwhile."""
        while self._copy_piece(reading, each) == PIECE_ROWS:
            pass
        with reading() as source:
            return _count(source, each) == self._copied[each]

    def _drop(self, each: Table) -> None:
        self._into.execute(f"DROP TABLE {named(*each)}")
        del self._copied[each]


def _shapes(connection: Connection) -> dict[Table, tuple[int, list[Any]]]:
    """Return DuckDB's number of each table, and its columns with their types: of all at once, for it reads all."""
    rows = connection.execute(
        "SELECT schema_name, table_name, table_oid, list((column_name, data_type) ORDER BY column_index) "
        "FROM duckdb_columns() WHERE NOT internal GROUP BY ALL"
    ).fetchall()
    return {(schema, name): (number, columns) for schema, name, number, columns in rows}


def _count(connection: Connection, each: Table) -> int:
    ((rows,),) = connection.execute(f"SELECT count(*) FROM {named(*each)}").fetchall()
    return int(rows)
