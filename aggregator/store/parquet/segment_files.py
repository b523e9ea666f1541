"""Segments: the Parquet files of the data folder, as the table `segments` records them.

A file counts from when it is recorded until it is marked as deleted. It is written under a temporary name, fsynced and renamed
before it is recorded, and unlinked after its mark is durable. So after a crash each row is in the live file or in one recorded
file.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from ....ext.intake import TIME_NS_MAX

#: Written, and not whole yet.
UNFINISHED_SUFFIX = ".unfinished"
#: What is held in memory of a file while its checksum is computed.
_READ_BYTES = 1 << 20

RAW, MINUTE, HOUR, TAIL = "raw", "1m", "1h", "tail"
#: Where files lie within the data folder.
SEGMENT_PATH = re.compile(
    r"(segments/(?P<raw>\w+)|rollups/(?P<table>\w+)/(?P<grain>1m|1h|tail))"
    r"/\d{8,10}/(?P<bucket>\d{8}|\d{10}|\d{12})-\d+\.parquet",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ParquetSegment:
    """One file. `bucket` is when its rows were received: 202611201005 (five minutes), 2026112010 (the
    hour) or 20261120 (the day). Times are of its rows, microseconds since 1970."""

    grain: str
    table: str
    bucket: str
    path: str  # within the data folder
    first_us: int
    last_us: int
    rows: int
    bytes: int
    crc32: int
    columns: str  # "host VARCHAR,device VARCHAR,..."
    recorded_us: int = 0
    gone_us: int | None = None

    @property
    def types(self) -> dict[str, str]:
        """Column -> DuckDB type."""
        return dict(_split(column) for column in self.columns.split(","))


def _split(column: str) -> tuple[str, str]:
    name, _, kind = column.partition(" ")
    return name, kind


def segment_path(grain: str, table: str, bucket: str, number: int) -> str:
    """Return where a file lies within the data folder: segments/gpu_1s/2026112010/202611201005-0.parquet."""
    top = f"segments/{table}" if grain == RAW else f"rollups/{table}/{grain}"
    return f"{top}/{bucket[:10]}/{bucket}-{number}.parquet"


def free_segment_path(folder: Path, grain: str, table: str, bucket: str) -> str:
    """Return the first place of a bucket where no file lies: a clock set back fills it twice."""
    number = 0
    while (folder / segment_path(grain, table, bucket, number)).exists():
        number += 1
    return segment_path(grain, table, bucket, number)


# -- files ----------------------------------------------------------------------------------------


def finish(folder: Path, path: str) -> tuple[int, int]:
    """Make the unfinished file of *path* durable; return (bytes, crc32). Raises OSError."""
    with open(folder / (path + UNFINISHED_SUFFIX), "rb") as file:
        crc32 = checksum(file)
        os.fsync(file.fileno())
        return file.tell(), crc32


def checksum(file: Any) -> int:
    """Return the CRC-32 of the rest of *file*."""
    crc32 = 0
    while data := file.read(_READ_BYTES):
        crc32 = zlib.crc32(data, crc32)
    return crc32


def reveal(folder: Path, path: str) -> None:
    """Give a finished file its name, durably. Raises OSError."""
    whole = folder / path
    os.rename(folder / (path + UNFINISHED_SUFFIX), whole)
    sync_folders(folder, whole.parent)


def sync_folders(top: Path, below: Path) -> None:
    """Fsync *below* and the folders over it up to *top*: one that was just made is else not durable."""
    for each in (below, *below.parents):
        descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == top:
            return


def unlink(folder: Path, path: str) -> None:
    """Remove a file, and its folder when that was the last in it. A file that is not there is no error."""
    whole = folder / path
    whole.unlink(missing_ok=True)
    try:
        whole.parent.rmdir()
    except OSError:  # others lie there
        return


def readable(folder: Path, found: Iterable[ParquetSegment]) -> list[ParquetSegment]:
    """Return those whose file can be opened: a view over one that can not answers nothing at all."""
    return [segment for segment in found if not fault(folder, segment)]


def fault(folder: Path, segment: ParquetSegment) -> str:
    """Say what is wrong with a recorded file by its size and its footer; "" when nothing is."""
    path = folder / segment.path
    try:
        size = path.stat().st_size
        if size != segment.bytes:
            return f"has {size} bytes, {segment.bytes} were written"
        rows = rows_by_footer(path)
    except FileNotFoundError:
        return "is not there"
    except UnreadableError as error:
        return f"cannot be read: {error}"
    return "" if rows == segment.rows else f"holds {rows} rows, {segment.rows} were written"


class UnreadableError(Exception):
    """A Parquet file whose footer makes no sense, or that the disk does not give; the words say how."""


def rows_by_footer(path: Path) -> int:
    """Return how many rows a Parquet file says that it has. Raises UnreadableError, FileNotFoundError."""
    from pyarrow.parquet import read_metadata  # 0.05 s, which a start would wait for

    try:
        return int(read_metadata(path).num_rows)
    except FileNotFoundError:
        raise
    except (
        Exception
    ) as error:  # of bytes that are no footer Arrow raises what it likes: UnicodeDecodeError too
        raise UnreadableError((str(error).splitlines() or [type(error).__name__])[0]) from error


def damage(folder: Path, segment: ParquetSegment) -> str:
    """Say what is wrong with a recorded file, read whole; "" when nothing is."""
    reason = fault(folder, segment)
    if not reason:
        with open(folder / segment.path, "rb") as file:
            reason = (
                "" if checksum(file) == segment.crc32 else "differs from what was written (CRC-32)"
            )
    return reason


# -- the table --------------------------------------------------------------------------------------

_SELECT = (
    "SELECT grain, table_name, bucket, path, epoch_us(first_time), epoch_us(last_time), rows, bytes, "
    "crc32, columns, epoch_us(recorded), epoch_us(gone) FROM main.segments"
)


def table_hashes(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Return table -> a number that changes when its readings in Parquet do."""
    rows: list[tuple[str, int]] = connection.execute(
        "SELECT table_name, bit_xor(hash(path, recorded)) FROM main.segments "
        "WHERE grain = 'raw' AND gone IS NULL GROUP BY table_name"
    ).fetchall()
    return dict(rows)


def recorded_segments(
    connection: duckdb.DuckDBPyConnection, grain: str | None = None, table: str | None = None
) -> list[ParquetSegment]:
    """Return the files that count, oldest received first."""
    rows = connection.execute(
        f"{_SELECT} WHERE gone IS NULL AND grain = coalesce(?, grain) "
        "AND table_name = coalesce(?, table_name) ORDER BY bucket, path",
        [grain, table],
    ).fetchall()
    return [ParquetSegment(*row) for row in rows]


def gone_segments(connection: duckdb.DuckDBPyConnection) -> list[ParquetSegment]:
    """Return the files that count no more and may still be there."""
    rows = connection.execute(f"{_SELECT} WHERE gone IS NOT NULL ORDER BY path").fetchall()
    return [ParquetSegment(*row) for row in rows]


def record(
    connection: duckdb.DuckDBPyConnection, new: Sequence[ParquetSegment], now_us: int
) -> list[ParquetSegment]:
    """Let *new* count from now on; return them with the time."""
    for segment in new:
        connection.execute(
            "INSERT INTO main.segments VALUES (?, ?, ?, ?, make_timestamp(?), make_timestamp(?), "
            "?, ?, ?, ?, make_timestamp(?), NULL)",
            [
                segment.grain, segment.table, segment.bucket, segment.path, segment.first_us, segment.last_us, segment.rows,
                segment.bytes, segment.crc32, segment.columns, now_us,
            ],
        )  # fmt: skip
    return [replace(segment, recorded_us=now_us) for segment in new]


def mark_gone(
    connection: duckdb.DuckDBPyConnection, old: Sequence[ParquetSegment], now_us: int
) -> None:
    """Let *old* count no more; their files are unlinked once nobody reads them."""
    if old:
        connection.execute(
            "UPDATE main.segments SET gone = make_timestamp(?) WHERE path IN (SELECT unnest(?))",
            [now_us, [segment.path for segment in old]],
        )


def forget(connection: duckdb.DuckDBPyConnection, paths: Sequence[str]) -> None:
    """Drop the records of files that are no more."""
    connection.execute("DELETE FROM main.segments WHERE path IN (SELECT unnest(?))", [list(paths)])


# ----------------------------------------------------------------------
# Manifests: per table, which files count, for readers that can not open the live file.
#
# `manifests/TABLE.json` is written whole and renamed into place after each change; a file that it
# no longer names is unlinked a while later, so that who has just read it still finds what it says.

MANIFEST_FOLDER = "manifests"
#: A reader has this long from reading a manifest to opening the files.
GRACE_SECONDS = 60
_MANIFEST_BYTES_MAX = 64 << 20
_FIELDS = frozenset(ParquetSegment.__slots__)
_KINDS: dict[str, type] = {
    **dict.fromkeys(("grain", "table", "bucket", "path", "columns"), str),
    **dict.fromkeys(("first_us", "last_us", "rows", "bytes", "crc32"), int),
}
_COLUMNS = re.compile(r"\w+ [A-Z]+(,\w+ [A-Z]+)*", re.ASCII)


def write_manifest(folder: Path, table: str, found: Iterable[ParquetSegment]) -> None:
    """Write the manifest of *table*. Raises OSError; the one before stays."""
    whole = folder / MANIFEST_FOLDER / f"{table}.json"
    whole.parent.mkdir(exist_ok=True)
    unfinished = whole.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(segment) for segment in found]))
    unfinished.replace(whole)


def manifest_tables(folder: Path) -> list[str]:
    """Return the tables that have a manifest."""
    return sorted(path.stem for path in (folder / MANIFEST_FOLDER).glob("*.json"))


def read_manifest(folder: Path, table: str) -> list[ParquetSegment]:
    """Return the files of *table*, oldest first; none when it has no manifest. Raises ValueError with a message."""
    path = folder / MANIFEST_FOLDER / f"{table}.json"
    try:
        if path.stat().st_size > _MANIFEST_BYTES_MAX:
            raise ValueError(f"{path}: longer than {_MANIFEST_BYTES_MAX} bytes")
        return parse_manifest(path.read_bytes())
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ValueError(f"{path}: not a valid manifest: {error}") from error


def parse_manifest(data: bytes) -> list[ParquetSegment]:
    """Return the files that a manifest names. Raises ValueError for anything that is no manifest."""
    try:
        rows = json.loads(data)
        found = [ParquetSegment(**{k: v for k, v in row.items() if k in _FIELDS}) for row in rows]
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected a list of files with their fields: {error}") from error
    for segment in found:
        for name, kind in _KINDS.items():
            if type(getattr(segment, name)) is not kind:
                raise ValueError(f"{name} = {getattr(segment, name)!r}: expected {kind.__name__}")
        place = SEGMENT_PATH.fullmatch(segment.path)
        if place is None or (place["raw"] or place["table"], place["bucket"]) != (
            segment.table,
            segment.bucket,
        ):
            raise ValueError(f"path = {segment.path!r}: not the path of a segment")
        if not _COLUMNS.fullmatch(segment.columns):
            raise ValueError(f"columns = {segment.columns[:80]!r}: expected NAME TYPE,NAME TYPE")
        if not all(
            0 <= time <= TIME_NS_MAX // 1000 for time in (segment.first_us, segment.last_us)
        ):
            raise ValueError(
                f"{segment.path}: times {segment.first_us}, {segment.last_us} are not valid times"
            )
    return found
