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

from duckdb import DuckDBPyConnection as Connection

from ....ext.intake import TIME_NS_MAX

#: Suffix of a file that is incomplete or not revealed yet.
UNFINISHED_SUFFIX = ".unfinished"
#: Bytes per read while a checksum is computed.
_READ_BYTES = 1 << 20

RAW, MINUTE, HOUR, TAIL = "raw", "1m", "1h", "tail"
#: Path of a segment within the data folder.
SEGMENT_PATH = re.compile(
    r"(segments/(?P<raw>\w+)|rollups/(?P<table>\w+)/(?P<grain>1m|1h|tail))"
    r"/\d{8,10}/(?P<bucket>\d{8}|\d{10}|\d{12})-\d+\.parquet",
    re.ASCII,
)

_SELECT = (
    "SELECT grain, table_name, bucket, path, epoch_us(first_time), epoch_us(last_time), rows, bytes, "
    "crc32, columns, epoch_us(recorded), epoch_us(gone) FROM main.segments"
)
MANIFEST_FOLDER = "manifests"
#: Time from reading a manifest to opening its files.
GRACE_SECONDS = 60
_MANIFEST_BYTES_MAX = 64 << 20
_KINDS: dict[str, type] = {
    **dict.fromkeys(("grain", "table", "bucket", "path", "columns"), str),
    **dict.fromkeys(("first_us", "last_us", "rows", "bytes", "crc32"), int),
}
_COLUMNS = re.compile(r"\w+ [A-Z]+(,\w+ [A-Z]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ParquetSegment:
    """A Parquet file. `bucket`: when its rows were received, as 202611201005 (five minutes),
    2026112010 (hour) or 20261120 (day). Times are those of its rows, microseconds since 1970.
    """

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
        """Return column -> DuckDB type."""
        return dict(_split(column) for column in self.columns.split(","))


def _split(column: str) -> tuple[str, str]:
    name, _, kind = column.partition(" ")
    return name, kind


def segment_path(grain: str, table: str, bucket: str, number: int) -> str:
    """Return a path such as segments/gpu_1s/2026112010/202611201005-0.parquet."""
    top = f"segments/{table}" if grain == RAW else f"rollups/{table}/{grain}"
    return f"{top}/{bucket[:10]}/{bucket}-{number}.parquet"


def free_segment_path(folder: Path, grain: str, table: str, bucket: str) -> str:
    """Return the first unused path of a bucket; a clock set back fills a bucket twice."""
    number = 0
    while (folder / segment_path(grain, table, bucket, number)).exists():
        number += 1
    return segment_path(grain, table, bucket, number)


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
    """Give a finished file its final name, durably. Raises OSError."""
    path_revealed = folder / path
    os.rename(folder / (path + UNFINISHED_SUFFIX), path_revealed)
    sync_folders(folder, path_revealed.parent)


def sync_folders(top: Path, below: Path) -> None:
    """Fsync *below* and its parents up to *top*; otherwise a new folder is not durable."""
    for path in (below, *below.parents):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path == top:
            return


def unlink(folder: Path, path: str) -> None:
    """Remove a file if it exists, and its folder if that is empty."""
    full_path = folder / path
    full_path.unlink(missing_ok=True)
    try:
        full_path.parent.rmdir()
    except OSError:  # the folder has other files
        return


def readable(folder: Path, found: Iterable[ParquetSegment]) -> list[ParquetSegment]:
    """Return segments whose files can be opened: a view over an unreadable file fails entirely."""
    return [segment for segment in found if not fault(folder, segment)]


def fault(folder: Path, segment: ParquetSegment) -> str:
    """Return what is wrong with a file's size or footer; "" if nothing."""
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
    """A Parquet file has an invalid footer or cannot be read; the message says how."""


def rows_by_footer(path: Path) -> int:
    """Return the row count in the footer. Raises UnreadableError, FileNotFoundError."""
    from pyarrow.parquet import read_metadata  # 0.05 s, which would delay a start

    try:
        return int(read_metadata(path).num_rows)
    except FileNotFoundError:
        raise
    except Exception as error:  # Arrow raises many types for a bad footer, UnicodeDecodeError too
        raise UnreadableError((str(error).splitlines() or [type(error).__name__])[0]) from error


def damage(folder: Path, segment: ParquetSegment) -> str:
    """Return what is wrong with a file, after reading all of it; "" if nothing."""
    reason = fault(folder, segment)
    if not reason:
        with open(folder / segment.path, "rb") as file:
            reason = (
                "" if checksum(file) == segment.crc32 else "differs from what was written (CRC-32)"
            )
    return reason


def table_hashes(connection: Connection) -> dict[str, int]:
    """Return table -> a number that changes with its readings in Parquet."""
    rows: list[tuple[str, int]] = connection.execute(
        "SELECT table_name, bit_xor(hash(path, recorded)) FROM main.segments "
        "WHERE grain = 'raw' AND gone IS NULL GROUP BY table_name"
    ).fetchall()
    return dict(rows)


def recorded_segments(
    connection: Connection, grain: str | None = None, table: str | None = None
) -> list[ParquetSegment]:
    """Return the valid files, oldest received first."""
    rows = connection.execute(
        f"{_SELECT} WHERE gone IS NULL AND grain = coalesce(?, grain) "
        "AND table_name = coalesce(?, table_name) ORDER BY bucket, path",
        [grain, table],
    ).fetchall()
    return [ParquetSegment(*row) for row in rows]


def gone_segments(connection: Connection) -> list[ParquetSegment]:
    """Return the files that are marked as gone and may still exist."""
    rows = connection.execute(f"{_SELECT} WHERE gone IS NOT NULL ORDER BY path").fetchall()
    return [ParquetSegment(*row) for row in rows]


def record(
    connection: Connection, new: Sequence[ParquetSegment], now_us: int
) -> list[ParquetSegment]:
    """Record *new* as valid; return them with the time."""
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


def mark_gone(connection: Connection, old: Sequence[ParquetSegment], now_us: int) -> None:
    """Mark *old* as gone; their files are unlinked after GRACE_SECONDS."""
    if old:
        connection.execute(
            "UPDATE main.segments SET gone = make_timestamp(?) WHERE path IN (SELECT unnest(?))",
            [now_us, [segment.path for segment in old]],
        )


def forget(connection: Connection, paths: Sequence[str]) -> None:
    """Delete the records of removed files."""
    connection.execute("DELETE FROM main.segments WHERE path IN (SELECT unnest(?))", [list(paths)])


# Manifests list the valid files of each table, for readers that cannot open the live file.
# `manifests/TABLE.json` is replaced by rename after each change. A file that it no longer lists is
# unlinked after GRACE_SECONDS, so that a reader of the previous manifest can open it.

_FIELDS = frozenset(ParquetSegment.__slots__)


def write_manifest(folder: Path, table: str, found: Iterable[ParquetSegment]) -> None:
    """Write the manifest of *table*. Raises OSError; then the previous one stays."""
    manifest = folder / MANIFEST_FOLDER / f"{table}.json"
    manifest.parent.mkdir(exist_ok=True)
    unfinished = manifest.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(segment) for segment in found]))
    unfinished.replace(manifest)


def manifest_tables(folder: Path) -> list[str]:
    """Return the tables that have a manifest."""
    return sorted(path.stem for path in (folder / MANIFEST_FOLDER).glob("*.json"))


def read_manifest(folder: Path, table: str) -> list[ParquetSegment]:
    """Return the files of *table*, oldest first; none without a manifest. Raises ValueError."""
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
    """Return the files in a manifest. Raises ValueError if it is invalid."""
    try:
        rows = json.loads(data)
        segments = [
            ParquetSegment(**{k: v for k, v in row.items() if k in _FIELDS}) for row in rows
        ]
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected a list of files with their fields: {error}") from error
    for segment in segments:
        for name, kind in _KINDS.items():
            if type(getattr(segment, name)) is not kind:
                raise ValueError(f"{name} = {getattr(segment, name)!r}: expected {kind.__name__}")
        match = SEGMENT_PATH.fullmatch(segment.path)
        if match is None or (match["raw"] or match["table"], match["bucket"]) != (
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
    return segments
