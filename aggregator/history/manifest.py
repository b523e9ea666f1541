"""Manifests: per table, which files count, for readers that can not open the live file.

`manifests/TABLE.json` is written whole and renamed into place after each change; a file that it no longer
names is unlinked a while later, so that who has just read it still finds what it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from ...ext.intake import TIME_NS_MAX
from .segments import PLACE, Segment

FOLDER = "manifests"
#: A reader has so long from reading a manifest to opening the files.
GRACE_SECONDS = 60
_BYTES_MAX = 64 << 20
_FIELDS = frozenset(Segment.__slots__)
_KINDS: dict[str, type] = {
    **dict.fromkeys(("grain", "table", "bucket", "path", "columns"), str),
    **dict.fromkeys(("first_us", "last_us", "rows", "bytes", "crc32"), int),
}
_COLUMNS = re.compile(r"\w+ [A-Z]+(,\w+ [A-Z]+)*", re.ASCII)


def write(folder: Path, table: str, found: Iterable[Segment]) -> None:
    """Write the manifest of *table*. Raises OSError; the one before stays."""
    whole = folder / FOLDER / f"{table}.json"
    whole.parent.mkdir(exist_ok=True)
    unfinished = whole.with_suffix(".unfinished")
    unfinished.write_text(json.dumps([asdict(one) for one in found]))
    unfinished.replace(whole)


def tables(folder: Path) -> list[str]:
    """Return the tables that have a manifest."""
    return sorted(path.stem for path in (folder / FOLDER).glob("*.json"))


def read(folder: Path, table: str) -> list[Segment]:
    """Return the files of *table*, oldest first; none when it has no manifest. Raises ValueError in words."""
    path = folder / FOLDER / f"{table}.json"
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ValueError(f"{path}: longer than {_BYTES_MAX} bytes")
        return parse(path.read_bytes())
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ValueError(f"{path}: no manifest: {error}") from error


def parse(data: bytes) -> list[Segment]:
    """Return the files that a manifest names. Raises ValueError for anything that is no manifest."""
    try:
        rows = json.loads(data)
        found = [Segment(**{k: v for k, v in row.items() if k in _FIELDS}) for row in rows]
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected a list of files with their fields: {error}") from error
    for one in found:
        for name, kind in _KINDS.items():
            if type(getattr(one, name)) is not kind:
                raise ValueError(f"{name} = {getattr(one, name)!r}: expected {kind.__name__}")
        place = PLACE.fullmatch(one.path)
        if place is None or (place["raw"] or place["table"], place["bucket"]) != (
            one.table,
            one.bucket,
        ):
            raise ValueError(f"path = {one.path!r}: no place of a segment")
        if not _COLUMNS.fullmatch(one.columns):
            raise ValueError(f"columns = {one.columns[:80]!r}: expected NAME TYPE,NAME TYPE")
        if not all(0 <= time <= TIME_NS_MAX // 1000 for time in (one.first_us, one.last_us)):
            raise ValueError(f"{one.path}: times {one.first_us}, {one.last_us} are of no clock")
    return found
