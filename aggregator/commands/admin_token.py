"""`gangline admin token`: make, list and revoke bearer tokens. What the aggregator keeps is a hash."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from ...cli import NOT_FOUND, OK
from ..access.caller import GIVEN, Role
from ..access.door import tokens_file
from ..access.files import private_folder, put
from ..access.tokens import DAYS_MAX, Token, TokensError, change, make, read
from ..store.storefile import FILE
from .admin_store import add_data_option, caller_name, guarded

DAYS_DEFAULT = 365

EXAMPLES = """\
examples:
  gangline admin token new --role operator --name alice                shown once, and never again
  gangline admin token new --role agent --name gpu-001 --into tokens/  a file each, 0600: tokens/agent-gpu-001.token
  gangline admin token list
  gangline admin token revoke 5f3c09a1b2c3                             in force within seconds, no restart

Run it on the aggregator's machine, as its user or root. With the first token every caller needs a login, on loopback
too. exit codes: 0 done, 1 failed, 2 wrong usage, 4 no such token
"""


def main(arguments: list[str]) -> int:
    """Make, list or revoke. 1 with words when the file cannot be read or written, 4 for an unknown token."""
    options = _parser().parse_args(arguments)
    path = tokens_file(options.data)
    work = {"new": _new, "list": _list, "revoke": _revoke}[options.what]
    return guarded("token", lambda: work(options, path))


def _new(options: argparse.Namespace, path: Path) -> int:
    now = int(time.time())
    made = [make(Role(options.role), name, options.days, now) for name in options.name]
    first = not path.exists()
    files: list[Path] = []
    if options.into is not None:
        files = [options.into / f"{kept.role}-{kept.name}.token" for _, kept in made]
        there = [str(file) for file in files if file.exists()]
        if there and not options.force:
            raise TokensError(
                f"{', '.join(there[:3])} would be overwritten: say --force if that is meant"
            )
        private_folder(options.into)
        for file, (secret, _) in zip(files, made, strict=True):
            put(file, f"{secret}\n".encode(), 0o600)
    change(path, lambda before: [*before, *(kept for _, kept in made)])
    for at, (secret, kept) in enumerate(made):
        print(files[at] if files else secret)
        print(f"{kept.id}: {kept.role} {kept.name}, until {_day(kept.until)}", file=sys.stderr)
    if first:
        print(
            "from now on every caller of this aggregator needs a login, on loopback too",
            file=sys.stderr,
        )
    if not (options.data / FILE).exists():
        print(
            f"{options.data} holds no store yet: the token is for an aggregator with --data {options.data}",
            file=sys.stderr,
        )
    return OK


def _list(options: argparse.Namespace, path: Path) -> int:
    try:
        tokens = read(path)
    except FileNotFoundError:
        tokens = []
        print(f"no token was ever made: there is no {path}", file=sys.stderr)
    now = time.time()
    if options.json:
        shown = [{k: v for k, v in asdict(each).items() if k != "sha256"} for each in tokens]
        print(json.dumps(shown))
        return OK
    rows = [("ID", "ROLE", "NAME", "MADE", "UNTIL", "")]
    rows += [
        (each.id, each.role, each.name, _day(each.made), _day(each.until), _state(each, now))
        for each in tokens
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    return OK


def _revoke(options: argparse.Namespace, path: Path) -> int:
    gone: list[Token] = []

    def without(before: list[Token]) -> list[Token]:
        gone.extend(each for each in before if each.id == options.id or each.name == options.name)
        return [each for each in before if each not in gone]

    if not path.exists():
        raise TokensError(f"there are no tokens: no {path}")
    change(path, without)
    for each in gone:
        print(f"revoked {each.id}: {each.role} {each.name}")
    if not gone:
        asked = options.id or options.name
        print(f"gangline admin token: no token {asked!r}; `list` shows them", file=sys.stderr)
    return OK if gone else NOT_FOUND


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def _state(token: Token, now: float) -> str:
    return "has run out" if now >= token.until else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin token",
        description="Bearer tokens by which callers log in (`authorization: Bearer TOKEN`). They are shown once; the "
        "aggregator keeps a hash, with role, name and end.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    add_data_option(common)
    what = parser.add_subparsers(dest="what", required=True, metavar="{new,list,revoke}")
    new = what.add_parser("new", parents=[common], help="make tokens, and show them once")
    new.add_argument("--role", required=True, choices=[str(role) for role in GIVEN])
    new.add_argument(
        "--name", "--host", required=True, action="append", type=caller_name, metavar="NAME"
    )
    new.add_argument("--days", type=_days, default=DAYS_DEFAULT, metavar="N", help="default 365")
    new.add_argument(
        "--into", type=Path, metavar="DIR", help="a file each there, and nothing shown"
    )
    new.add_argument("--force", action="store_true", help="overwrite files of --into")
    show = what.add_parser("list", parents=[common], help="which there are")
    show.add_argument("--json", action="store_true", help="one JSON document")
    revoke = what.add_parser("revoke", parents=[common], help="end one, or all of a name")
    which = revoke.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", default="", metavar="ID")
    which.add_argument("--name", default="", metavar="NAME")
    return parser


def _days(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= DAYS_MAX):
        raise argparse.ArgumentTypeError(f"{text[:20]!r}: expected 1 to {DAYS_MAX} days")
    return int(text)
