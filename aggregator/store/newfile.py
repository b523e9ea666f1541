"""A DuckDB file while it is made beside a service: what is in it is on disk, not in memory, before much more comes.

In one transaction DuckDB would keep of every table what does not fill a row group: three times the file. Nobody sees
the file before it is whole, so it is committed bit by bit.
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
from .storefile import CONFIG

#: When so many cells (8 bytes each) wait in memory they are committed.
CELLS_WAITING_MAX = 2_000_000
#: What the names of a row take beside its cells, in cells.
NAMES_CELLS = 8
#: For the pages of this file and of the one before. A checkpoint holds what waits and the row group that it goes on:
#: with DuckDB's own size those of the widest tables alone are 80 MB. Full ones go to disk one by one.
_CONFIG = CONFIG | {"memory_limit": "96MB", "write_buffer_row_group_count": 1}
ROW_GROUP_ROWS = 16_384


@dataclass(slots=True)
class NewFile:
    """A connection to the file. What it does comes after `begin`."""

    connection: duckdb.DuckDBPyConnection
    _waiting_cells: int = 0

    def insert(self, table: str, batches: Iterable[Any]) -> None:
        """Insert Arrow's record batches, each as it comes. Raises duckdb.Error."""
        for batch in batches:
            self.connection.register("new_rows", pa.Table.from_batches([batch]))
            try:
                self.run(f"INSERT INTO {table} BY NAME FROM new_rows", batch.num_columns)
            finally:
                self.connection.unregister("new_rows")

    def run(self, insert: str, columns: int) -> None:
        """Run a statement that inserts rows of so many columns, and commit when much waits. Raises duckdb.Error."""
        ((count,),) = self.connection.execute(insert).fetchall()
        self._waiting_cells += count * (columns + NAMES_CELLS)
        if self._waiting_cells >= CELLS_WAITING_MAX:
            self.put_down()
            self.begin()

    def begin(self) -> None:
        """Begin a transaction."""
        self.connection.execute("BEGIN")

    def put_down(self) -> None:
        """End the transaction, all in the file and none in a WAL. Raises duckdb.Error."""
        self.connection.execute("COMMIT")
        self.connection.execute("CHECKPOINT")
        self._waiting_cells = 0


@contextmanager
def new_file(path: Path) -> Iterator[NewFile]:
    """Yield the file at *path*, which is there or made; all is in it once it is left. Raises duckdb.Error."""
    spill = path.with_name(
        "spill-operators"
    )  # DuckDB's own choice would be in the working directory
    rmtree(spill, ignore_errors=True)  # of one that was killed
    connection = duckdb.connect(":memory:", config=_CONFIG | {"temp_directory": str(spill)})
    try:
        connection.execute(
            f"ATTACH {quoted(str(path))} AS operators (ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
        )
        connection.execute("USE operators")
        made = NewFile(connection)
        yield made
        made.put_down()
    finally:
        connection.close()
