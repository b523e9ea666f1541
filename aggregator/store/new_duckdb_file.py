"""Writes a new DuckDB file beside a running service.

In one transaction DuckDB would keep each table's incomplete row group in memory: three times the
file. No reader sees the file before it is complete, so it is committed in steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import duckdb
import pyarrow as pa

from ..sql import quoted
from .duckdb_file import CONNECTION_CONFIG

#: Commit when this many cells of 8 bytes are pending.
CELLS_WAITING_MAX = 2_000_000
#: Memory of a row's names, in cells.
NAMES_CELLS = 8
#: Limit for the pages of this file and of the previous one. A checkpoint holds pending rows and the
#: row group that they continue: with DuckDB's default size those of the widest tables alone are 80
#: MB. Each full row group is written at once.
_NEW_FILE_CONFIG = CONNECTION_CONFIG | {"memory_limit": "96MB", "write_buffer_row_group_count": 1}
ROW_GROUP_ROWS = 16_384


@dataclass(slots=True)
class NewFile:
    """A connection to the file. Call `begin` before the first insert."""

    connection: duckdb.DuckDBPyConnection
    _uncommitted_cells: int = 0

    def insert(self, table: str, batches: Iterable[Any]) -> None:
        """Insert Arrow's record batches one at a time. Raises duckdb.Error."""
        for batch in batches:
            self.connection.register("new_rows", pa.Table.from_batches([batch]))
            try:
                self.run(f"INSERT INTO {table} BY NAME FROM new_rows", batch.num_columns)
            finally:
                self.connection.unregister("new_rows")

    def run(self, insert: str, columns: int) -> None:
        """Run an INSERT of *columns* columns; commit at CELLS_WAITING_MAX. Raises duckdb.Error."""
        ((count,),) = self.connection.execute(insert).fetchall()
        self._uncommitted_cells += count * (columns + NAMES_CELLS)
        if self._uncommitted_cells >= CELLS_WAITING_MAX:
            self.checkpoint()
            self.begin()

    def begin(self) -> None:
        """Begin a transaction."""
        self.connection.execute("BEGIN")

    def checkpoint(self) -> None:
        """Commit, and move everything from the WAL to the file. Raises duckdb.Error."""
        self.connection.execute("COMMIT")
        self.connection.execute("CHECKPOINT")
        self._uncommitted_cells = 0


@contextmanager
def new_file(path: Path) -> Iterator[NewFile]:
    """Yield the new or existing file at *path*; it is complete on exit. Raises duckdb.Error."""
    # DuckDB's default would be in the working directory.
    spill = path.with_name("spill-operators")
    rmtree(spill, ignore_errors=True)  # left by a killed process
    connection = duckdb.connect(
        ":memory:", config=_NEW_FILE_CONFIG | {"temp_directory": str(spill)}
    )
    try:
        connection.execute(
            f"ATTACH {quoted(str(path))} AS operators (ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
        )
        connection.execute("USE operators")
        file = NewFile(connection)
        yield file
        file.checkpoint()
    finally:
        connection.close()
