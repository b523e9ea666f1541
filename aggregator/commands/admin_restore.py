"""`gangline admin restore`: a backup put in a data folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ..store.upkeep.restore import Restored, restore
from .admin_store import DATA_DEFAULT, guarded
from .client import OK
from .progress import Progress


def main(arguments: list[str]) -> int:
    """Restore. 1: nothing was changed, with words."""
    options = _parser().parse_args(arguments)
    return guarded("restore", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    progress = Progress(quiet=options.json)
    done = restore(options.source, options.data, progress, force=options.force)
    progress.end()
    print(json.dumps(_document(done, options.data)) if options.json else _told(done, options.data))
    return OK


def _document(done: Restored, data: Path) -> dict[str, object]:
    return {
        "data": str(data), "backup": str(done.backup), "as_of": done.manifest.as_of,
        "as_of_ns": done.manifest.as_of_ns, "rows": done.manifest.rows,
        "replaced": str(done.replaced) if done.replaced else None,
    }  # fmt: skip


def _told(done: Restored, data: Path) -> str:
    of = done.manifest
    lines = (
        f"{data}: restored as of {of.as_of} from {done.backup}: {of.rows:,} rows in the live file, {len(of.files)} files. "
        "What was stored after that moment is not in it; what agents still hold without a receipt they "
        "send again"
    )
    if done.replaced:
        lines += f"\nwhat stood there before is in {done.replaced}: remove it when all is well"
    return f"{lines}\nstart it with: gangline aggregator --data {data}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin restore",
        description="Put a backup in a data folder. The backup is read and compared with its checksums before "
        "anything is put in place. No aggregator may have the folder; another one may run.",
        epilog="exit codes: 0 done, 1 failed and nothing was changed, 2 wrong usage",
    )
    parser.add_argument(
        "--from", dest="source", type=Path, required=True, metavar="DIR",
        help="a backup, or the folder of `backup --to`: then the newest in it",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, default=DATA_DEFAULT, metavar="DIR",
        help=f"where to (default: {DATA_DEFAULT})",
    )  # fmt: skip
    parser.add_argument(
        "--force", action="store_true", help="also where a store is; that one is kept beside it"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, no progress")
    return parser
