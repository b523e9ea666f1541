"""`gangline admin backup`: a whole copy of the store, as of one moment."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..store.upkeep.backup import Backup, Made, forget_all_but
from ..store.upkeep.copying import words_of_bytes
from .admin_store import add_store_options, guarded, still
from .client import OK, way_of
from .progress import Progress


def main(arguments: list[str]) -> int:
    """Make one. 1: not made, with words; 3: an aggregator has the store and does not answer."""
    options = _parser().parse_args(arguments)
    return guarded("backup", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    progress = Progress(quiet=options.json)
    backup = Backup(options.to, progress, access=options.with_access)
    made = backup.make(lambda: still(options.data, way_of(options)))
    progress.end()
    gone = forget_all_but(options.to, options.keep) if options.keep else []
    if options.json:
        print(json.dumps(_document(made, gone)))
        return OK
    print(_told(made))
    for each in gone:
        print(f"removed {each}")
    return OK


def _document(made: Made, gone: list[Path]) -> dict[str, object]:
    of = made.manifest
    return {
        "backup": str(made.folder), "as_of": of.as_of, "as_of_ns": of.as_of_ns, "rows": of.rows,
        "files": len(of.files), "size_bytes": of.size_bytes, "copied_bytes": made.copied_bytes,
        "stood_still_microseconds": made.stood_still_microseconds, "removed": [str(one) for one in gone],
    }  # fmt: skip


def _told(made: Made) -> str:
    of = made.manifest
    return (
        f"{made.folder}: as of {of.as_of}, {of.rows:,} rows in the live file, {len(of.files)} files, "
        f"{words_of_bytes(of.size_bytes)}, {words_of_bytes(made.copied_bytes)} copied"
        + f"; for {made.stood_still_microseconds / 1000:.1f} ms nothing was stored"
        * bool(made.stood_still_microseconds)
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin backup",
        description="Copy the store as of now into a folder of its own under DIR: the file, the event journal, "
        "the permit, and the Parquet files; those that the backup before has are linked from it. The "
        "aggregator goes on storing. Made whole or not at all; read back while it is made.",
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage, 3 no aggregator answers",
    )
    add_store_options(parser)
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="DIR",
        help="made if missing; best on another disk",
    )
    parser.add_argument(
        "--keep",
        type=_count,
        default=0,
        metavar="N",
        help="then remove the oldest but N (default: none)",
    )
    parser.add_argument(
        "--with-access", action="store_true", help="certificates, keys and hashed tokens too"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, no progress")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected how many to keep, 1 to 9999")
    return int(text)
