"""One Parquet file, written chunk by chunk: zstd, each column in the encoding that is smallest for it.

Which encoding that is (a dictionary, deltas, bytes split by place, plain) is tried on the first rows: a clock
wants a dictionary, a counter deltas, energy its bytes split. bench/segments.py compares with DuckDB's own COPY.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from .segments import UNFINISHED

#: Rows on which the encodings are tried, and of a row group: one device's readings are found by the
#: least and greatest of each.
SAMPLE_ROWS = 60_000
#: Of fewer rows a dictionary each is good enough, and trying costs more than it saves.
TRIED_ROWS_MIN = 5_000
GROUP_ROWS = 122_880
#: Of 3, links' counters take a sixth more (deltas that are packed at no byte's border); of 7, all take 2 % less, for a
#: fifth more of the processor.
ZSTD_LEVEL = 5
#: Columns by which readers look for rows; of others no least and greatest is kept.
KEYS = ("host", "device", "time")

_DUCKDB = {
    pa.string(): "VARCHAR",
    pa.timestamp("us"): "TIMESTAMP",
    pa.uint64(): "UBIGINT",
    pa.uint32(): "UINTEGER",
    pa.float64(): "DOUBLE",
}


class ParquetFile:
    """Writes the unfinished file of *path* within *folder*; the folder is made. Raises OSError."""

    def __init__(self, folder: Path, path: str, remembered: dict[str, Any] | None = None) -> None:
        """*remembered*: what was tried for files of the same kind, by their columns."""
        self.path = path
        self._remembered = dict(remembered or {})
        self._whole = folder / (path + UNFINISHED)
        self._whole.parent.mkdir(parents=True, exist_ok=True)
        self._writer: Any = None
        self.rows = 0
        self.columns = ""
        self._times: list[int] = []

    def write(self, chunk: Any) -> None:
        """Append a `pyarrow.Table`. Of all chunks the columns are the same, and of one at least there."""
        if self._writer is None:
            self.columns = ",".join(f"{f.name} {_DUCKDB[f.type]}" for f in chunk.schema)
            if self.columns not in self._remembered and chunk.num_rows >= TRIED_ROWS_MIN:
                self._remembered[self.columns] = encodings(chunk.slice(0, SAMPLE_ROWS))
            settings = self._remembered.get(self.columns, {"use_dictionary": True})
            with_keys: dict[str, Any] = {**settings, "write_statistics": list(KEYS)}
            from pyarrow.parquet import ParquetWriter  # 0.05 s, which a start would wait for

            self._writer = ParquetWriter(
                str(self._whole),
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
        """The earliest time in it; 0 while it is empty."""
        return int(self._times[0]) if self._times else 0

    @property
    def last_us(self) -> int:
        """The latest time in it."""
        return int(self._times[1]) if self._times else 0

    def said(self) -> dict[str, Any]:
        """Return what is to be known of it once it is closed; `encodings` is for the next file of its kind."""
        return {
            "path": self.path,
            "rows": self.rows,
            "first_us": self.first_us,
            "last_us": self.last_us,
            "columns": self.columns,
            "encodings": self._remembered,
        }

    def close(self) -> None:
        """End the file: its footer is written."""
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Remove what was written of a file that did not come to its end. Never raises."""
        with contextlib.suppress(OSError, pa.ArrowException):  # a full disk takes no footer either
            self.close()
        self._whole.unlink(missing_ok=True)


def encodings(sample: Any) -> dict[str, Any]:
    """Return the writer's settings under which each column of *sample* is smallest."""
    dictionary: list[str] = []
    other: dict[str, str] = {}
    for field in sample.schema:
        one = sample.select([field.name])
        sizes = {name: _size(one, field.name, name) for name in _candidates(field.type)}
        best = min(sizes, key=lambda name: sizes[name])
        if best == "DICTIONARY":
            dictionary.append(field.name)
        else:
            other[field.name] = best
    return {"use_dictionary": dictionary, "column_encoding": other}


def _candidates(kind: Any) -> tuple[str, ...]:
    if pa.types.is_string(kind):
        return ("DICTIONARY",)
    if pa.types.is_floating(kind):
        return ("DICTIONARY", "BYTE_STREAM_SPLIT", "PLAIN")
    return ("DICTIONARY", "DELTA_BINARY_PACKED", "PLAIN")  # DuckDB 1.5 splits bytes of doubles only


def _size(one: Any, column: str, encoding: str) -> int:
    from pyarrow.parquet import write_table

    settings: dict[str, Any] = {"use_dictionary": [column]}
    if encoding != "DICTIONARY":
        settings = {"use_dictionary": False, "column_encoding": {column: encoding}}
    sink = pa.BufferOutputStream()
    write_table(one, sink, compression="zstd", compression_level=ZSTD_LEVEL, **settings)
    return int(sink.tell())
