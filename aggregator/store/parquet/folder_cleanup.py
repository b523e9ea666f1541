"""Compares the history folder with its records, to find leftovers of a crash between two steps.

Unfinished files are removed. An unrecorded file is removed if its rows are certainly elsewhere (in
the live table, or in the files from which it was made), and moved aside otherwise: no possibly
unique file is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from . import segment_files
from .segment_files import MINUTE, RAW, SEGMENT_PATH, TAIL, UNFINISHED_SUFFIX, ParquetSegment

_HOUR_DIGITS = 10


class FolderCleanup(NamedTuple):
    """Files of the folder that need an action."""

    unlink: list[str]  # unfinished, marked as gone, or duplicated
    aside: list[str]  # not recorded, and possibly unique


def compare_folder(
    folder: Path,
    recorded: Iterable[ParquetSegment],
    gone: Iterable[ParquetSegment],
    live: set[tuple[str, str]],
) -> FolderCleanup:
    """Compare the folder with the records. *live*: (table, part) in the live file."""
    recorded_by_path = {segment.path: segment for segment in recorded}
    known = recorded_by_path.keys() | {segment.path for segment in gone}
    unlink: list[str] = []
    aside: list[str] = []
    for path in _files(folder):
        if path.endswith(UNFINISHED_SUFFIX):
            unlink.append(path)
        elif path not in known:
            (unlink if _is_elsewhere(folder, path, recorded_by_path, live) else aside).append(path)
    return FolderCleanup(unlink, aside)


def _files(folder: Path) -> list[str]:
    paths = [path for top in ("segments", "rollups") for path in (folder / top).rglob("*.parquet*")]
    return sorted(str(path.relative_to(folder)) for path in paths if path.is_file())


def _is_elsewhere(
    folder: Path, path: str, recorded_by_path: dict[str, ParquetSegment], live: set[tuple[str, str]]
) -> bool:
    match = SEGMENT_PATH.fullmatch(path)
    if match is None:
        return False
    table, grain, bucket = match["raw"] or match["table"], match["grain"] or RAW, match["bucket"]
    if grain == TAIL or (table, bucket) in live:
        return True
    source = MINUTE if grain != RAW and len(bucket) == _HOUR_DIGITS else grain
    sources = [
        segment
        for segment in recorded_by_path.values()
        if (segment.table, segment.grain) == (table, source)
        and segment.bucket.startswith(bucket)
        and len(segment.bucket) > len(bucket)
    ]
    if grain == RAW:
        return _rows(folder / path) == sum(segment.rows for segment in sources) > 0
    return bool(sources) and not any(segment_files.fault(folder, segment) for segment in sources)


def _rows(path: Path) -> int:
    try:
        return segment_files.rows_by_footer(path)
    except (FileNotFoundError, segment_files.UnreadableError):
        return -1
