"""Writer of a Parquet file: chunk by chunk with zstd, each column in its smallest encoding.

The first rows determine the encoding of each column: a dictionary for times, deltas for counters,
split bytes for energy, or plain. bench/segments.py compares this with DuckDB's own COPY.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from .segment_files import UNFINISHED_SUFFIX

#: Rows for the trial of encodings, and rows per row group: readers find a device by the minimum and
#: maximum of each group.
SAMPLE_ROWS = 60_000
#: With fewer rows all columns use a dictionary: a trial would cost more than it saves.
TRIED_ROWS_MIN = 5_000
GROUP_ROWS = 122_880
#: Level 3 takes a sixth more for links' counters (deltas without byte alignment); level 7 saves 2 %
#: for a fifth more CPU time.
ZSTD_LEVEL = 5
#: Columns with minimum and maximum, by which readers search.
KEYS = ("host", "device", "time")
_DUCKDB = {
    pa.string(): "VARCHAR",
    pa.timestamp("us"): "TIMESTAMP",
    pa.uint64(): "UBIGINT",
    pa.uint32(): "UINTEGER",
    pa.float64(): "DOUBLE",
}


class ParquetFile:
    """Writes the unfinished file of *path* in *folder*, which is created. Raises OSError."""

    def __init__(
        self, folder: Path, path: str, known_encodings: dict[str, Any] | None = None
    ) -> None:
        """*known_encodings*: results of earlier trials, by columns."""
        self.path = path
        self._known_encodings = dict(known_encodings or {})
        self._unfinished_path = folder / (path + UNFINISHED_SUFFIX)
        self._unfinished_path.parent.mkdir(parents=True, exist_ok=True)
        self._writer: Any = None
        self.rows = 0
        self.columns = ""
        self._times: list[int] = []

    def write(self, chunk: Any) -> None:
        """Append a `pyarrow.Table`. All chunks of a file have the same columns."""
        if self._writer is None:
            self.columns = ",".join(f"{f.name} {_DUCKDB[f.type]}" for f in chunk.schema)
            if self.columns not in self._known_encodings and chunk.num_rows >= TRIED_ROWS_MIN:
                self._known_encodings[self.columns] = encodings(chunk.slice(0, SAMPLE_ROWS))
            settings = self._known_encodings.get(self.columns, {"use_dictionary": True})
            with_keys: dict[str, Any] = {**settings, "write_statistics": list(KEYS)}
            from pyarrow.parquet import ParquetWriter  # 0.05 s, which would delay a start

            self._writer = ParquetWriter(
                str(self._unfinished_path),
                chunk.schema,
                compression="zstd",
                compression_level=ZSTD_LEVEL,
                store_schema=False,
                **with_keys,
            )
        if chunk.num_rows:
            self._writer.write_table(chunk, row_group_size=GROUP_ROWS)
            self.rows += chunk.num_rows
            times = chunk["time"].cast(pa.int64()).to_numpy()
            self._times = [min([times.min(), *self._times]), max([times.max(), *self._times])]

    @property
    def first_us(self) -> int:
        """Return the earliest time in the file; 0 while it is empty."""
        return int(self._times[0]) if self._times else 0

    @property
    def last_us(self) -> int:
        """Return the latest time in the file."""
        return int(self._times[1]) if self._times else 0

    def metadata(self) -> dict[str, Any]:
        """Return the fields of a closed file's segment, and `encodings` for the next file."""
        return {
            "path": self.path,
            "rows": self.rows,
            "first_us": self.first_us,
            "last_us": self.last_us,
            "columns": self.columns,
            "encodings": self._known_encodings,
        }

    def close(self) -> None:
        """Write the footer and close the file."""
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Remove the unfinished file. Never raises."""
        with contextlib.suppress(OSError, pa.ArrowException):  # a full disk refuses the footer, too
            self.close()
        self._unfinished_path.unlink(missing_ok=True)


def encodings(sample: Any) -> dict[str, Any]:
    """Return the writer's settings with the smallest size of each column of *sample*."""
    dictionary: list[str] = []
    other: dict[str, str] = {}
    for column in sample.schema:
        column_table = sample.select([column.name])
        sizes = {name: _size(column_table, column.name, name) for name in _candidates(column.type)}
        best = min(sizes, key=lambda name: sizes[name])
        if best == "DICTIONARY":
            dictionary.append(column.name)
        else:
            other[column.name] = best
    return {"use_dictionary": dictionary, "column_encoding": other}


def _candidates(kind: Any) -> tuple[str, ...]:
    if pa.types.is_string(kind):
        return ("DICTIONARY",)
    if pa.types.is_floating(kind):
        return ("DICTIONARY", "BYTE_STREAM_SPLIT", "PLAIN")
    # DuckDB 1.5 reads split bytes for doubles only.
    return ("DICTIONARY", "DELTA_BINARY_PACKED", "PLAIN")


def _size(one: Any, column: str, encoding: str) -> int:
    from pyarrow.parquet import write_table

    settings: dict[str, Any] = {"use_dictionary": [column]}
    if encoding != "DICTIONARY":
        settings = {"use_dictionary": False, "column_encoding": {column: encoding}}
    sink = pa.BufferOutputStream()
    write_table(one, sink, compression="zstd", compression_level=ZSTD_LEVEL, **settings)
    return int(sink.tell())
