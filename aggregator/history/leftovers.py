"""Leftovers: what a crash between two steps left in the data folder, found at the start and told in words.

An unfinished file goes. A file that nobody recorded goes where its rows are elsewhere for sure (the
live table is still there, or the files that it was made of are), and is moved aside where they are not:
nothing is unlinked that might be the only one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from . import segments
from .segments import MINUTE, PLACE, RAW, TAIL, UNFINISHED, Segment

_HOUR_DIGITS = 10


class Found(NamedTuple):
    """What is to be done about the folder."""

    unlink: list[str]  # unfinished, gone, or doubled
    aside: list[str]  # not recorded, and the only one for all we know


def look(
    folder: Path, recorded: Iterable[Segment], gone: Iterable[Segment], live: set[tuple[str, str]]
) -> Found:
    """Compare the folder with what is recorded. *live*: (table, part) that the live file has."""
    counted = {one.path: one for one in recorded}
    known = counted.keys() | {one.path for one in gone}
    unlink: list[str] = []
    aside: list[str] = []
    for path in _files(folder):
        if path.endswith(UNFINISHED):
            unlink.append(path)
        elif path not in known:
            (unlink if _is_elsewhere(folder, path, counted, live) else aside).append(path)
    return Found(unlink, aside)


def _files(folder: Path) -> list[str]:
    found = [path for top in ("segments", "rollups") for path in (folder / top).rglob("*.parquet*")]
    return sorted(str(path.relative_to(folder)) for path in found if path.is_file())


def _is_elsewhere(
    folder: Path, path: str, counted: dict[str, Segment], live: set[tuple[str, str]]
) -> bool:
    place = PLACE.fullmatch(path)
    if place is None:
        return False
    table, grain, bucket = place["raw"] or place["table"], place["grain"] or RAW, place["bucket"]
    if grain == TAIL or (table, bucket) in live:
        return True
    source = MINUTE if grain != RAW and len(bucket) == _HOUR_DIGITS else grain
    made_of = [
        one
        for one in counted.values()
        if (one.table, one.grain) == (table, source)
        and one.bucket.startswith(bucket)
        and len(one.bucket) > len(bucket)
    ]
    if grain == RAW:
        return _rows(folder / path) == sum(one.rows for one in made_of) > 0
    return bool(made_of) and not any(segments.fault(folder, one) for one in made_of)


def _rows(path: Path) -> int:
    try:
        return segments.rows_by_footer(path)
    except (FileNotFoundError, segments.UnreadableError):
        return -1
