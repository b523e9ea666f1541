"""`gangline admin verify`: everything of a store, or of a backup, read back."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from ..store import mark
from ..store.mark import size_of
from ..store.storefile import FILE, SCRATCH, wal_of
from ..store.upkeep import manifest, parquet, reading
from ..store.upkeep.copying import CopyError, copied, free_bytes, words_of_bytes
from ..store.upkeep.reading import Found
from ..store.upkeep.restore import check_files
from ..store.upkeep.still import Still, no_store
from .admin_store import add_store_options, guarded, still
from .client import FAILED, OK, way_of
from .progress import Progress


def main(arguments: list[str]) -> int:
    """Read it back. 0: all is well; 1: something is wrong, each in a line."""
    options = _parser().parse_args(arguments)
    return guarded("verify", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    progress = Progress(quiet=options.json)
    if options.backup is not None:
        what, found = _backup(options.backup, progress)
    else:
        what, found = str(options.data), _store(options, progress)
    progress.end()
    if options.json:
        print(json.dumps({"verified": what, **_document(found)}))
    else:
        print(_told(what, found))
    return FAILED if found.wrong else OK


def _backup(folder: Path, progress: Progress) -> tuple[str, Found]:
    folder = manifest.newest(folder)
    made = manifest.read(folder)
    wrong = check_files(folder, made, progress)
    try:
        with TemporaryDirectory(prefix=SCRATCH) as spill:
            found = _read(folder / FILE, folder, Path(spill), progress)
    except CopyError as error:
        found = Found(wrong=[str(error)])
    found.wrong = wrong + found.wrong
    return str(folder), found


def _store(options: argparse.Namespace, progress: Progress) -> Found:
    """Copy the file (that goes on being written to), let go of the store, and read the copy."""
    data: Path = options.data
    if not (data / FILE).exists():
        raise CopyError(no_store(data))
    where = options.scratch or data
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix=SCRATCH, dir=where)))
        with still(data, way_of(options)) as source:
            # One that runs said so when it began, and its mark moves on.
            lost = "" if source.held else mark.lost(source.file)
            segments = stack.enter_context(parquet.held(data, parquet.files(data)))
            _copy(source, scratch, progress)
        try:
            found = _read(scratch / FILE, segments, scratch, progress)
        except CopyError as error:  # of the copy, which is gone when this is read
            found = Found(wrong=[str(error).replace(str(scratch), str(data))])
    found.wrong += [lost] if lost else []
    return found


def _copy(source: Still, scratch: Path, progress: Progress) -> None:
    size = size_of(source.file) + source.wal_bytes
    if size > free_bytes(scratch):
        raise CopyError(
            f"{scratch.parent} has {words_of_bytes(free_bytes(scratch))} free, and the copy that is read "
            f"is of {words_of_bytes(size)}: name another folder with --scratch DIR"
        )
    progress.begin("a copy of the store", size)
    copied(source.file, scratch / FILE, progress.seen)
    if source.wal_bytes:
        copied(wal_of(source.file), wal_of(scratch / FILE), progress.seen, source.wal_bytes)
    source.check()


def _read(file: Path, folder: Path, spill: Path, progress: Progress) -> Found:
    progress.begin("reading back", 0)
    return reading.read_back(file, folder, spill, lambda _, at, of: progress.at(at, of))


def _document(found: Found) -> dict[str, object]:
    return {
        "schema_version": found.schema_version, "tables": found.tables, "rows": found.rows,
        "frames": found.frames, "parquet_files": found.parquet_files, "wrong": found.wrong,
    }  # fmt: skip


def _told(what: str, found: Found) -> str:
    line = (
        f"{what}: version {found.schema_version}, {found.tables} tables and {found.parquet_files} Parquet "
        f"files, {found.rows:,} rows, {found.frames:,} frames on the ledger"
    )
    if not found.wrong:
        return f"{line}: all read back, nothing is wrong"
    return "\n".join([line, *(f"WRONG: {each}" for each in found.wrong)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin verify",
        description="Read everything back: of a backup each file against its checksum; of either every block "
        "of every table, the ledger of frames against itself and the rows, whether a reading is stored twice, "
        "and whether each segment is there. While the aggregator runs a copy is read.",
        epilog="exit codes: 0 all is well, 1 something is wrong, 2 wrong usage, 3 no aggregator answers",
    )
    parser.add_argument(
        "backup", nargs="?", type=Path, metavar="BACKUP",
        help="a backup, or a folder of them: then the newest; without it the store in --data",
    )  # fmt: skip
    add_store_options(parser)
    parser.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="where the copy is put (default: the data folder)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, no progress")
    return parser
