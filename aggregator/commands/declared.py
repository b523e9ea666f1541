"""`gangline admin declared check`: validates declaration files before an aggregator loads them."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import duckdb

from ...cli import FAILED, OK, USAGE, json_object
from ..declared.diff import Rows, declared_rows, lines, stored_rows
from ..declared.host_placement import PlaceSource
from ..declared.loader import ENDINGS, parse_files, read_files
from ..declared.maintenance_windows import MaintenanceWindow
from ..declared.model import NOTHING, Declared
from ..declared.overrides import Override
from ..declared.problems import DeclaredError
from ..declared.rows import reported_places
from ..declared.selection import SelectionIndex
from ..rule_catalogue import OVERRIDABLE_RULES

#: Default data folder of `gangline aggregator`, and its file for readers.
DATA, OPS_FILE = Path("var/aggregator"), "operators.duckdb"
#: At most this many hosts are named in a line.
NAMED_MAX = 6


def main(arguments: list[str]) -> int:
    """Print the errors or the changes. Exit codes: 0 valid, 1 rejected, 2 wrong usage."""
    options = _parser().parse_args(arguments)
    now_ns = time.time_ns()
    try:
        after = parse_files(read_files(options.files), now_ns, rules=OVERRIDABLE_RULES)
    except DeclaredError as error:
        if options.json:
            print(json_object({"valid": False, "problems": list(map(str, error.problems))}))
            return FAILED
        for problem in error.problems:
            print(problem, file=sys.stderr)
        print("gangline admin declared: the aggregator would reject all of it", file=sys.stderr)
        return FAILED
    notes = (
        []
        if after.files
        else [f"no file there ends in {', '.join(ENDINGS)}, so nothing would be declared"]
    )
    notes += map(str, after.notes)
    if not options.json:
        print("\n".join((_summary(after), *(f"note: {note}" for note in notes))))
    try:
        baseline = _baseline(options, now_ns)
    except (DeclaredError, duckdb.Error) as error:
        print(f"gangline admin declared: nothing to compare with: {error}", file=sys.stderr)
        return USAGE
    unregistered = _unregistered_hosts(after, baseline.hosts)
    effects = _effects(after.with_reported(baseline.reported_places), now_ns, baseline.hosts)
    changes = list(lines(baseline.rows, declared_rows(after)))
    if options.json:
        document = {
            "valid": True,
            "hash": after.hash,
            "notes": notes,
            "unregistered_hosts": unregistered,
            "against": baseline.description,
            "changes": changes,
        }
        print(json_object(document))
        return OK
    if unregistered:
        print(_unregistered_note(unregistered, len(after.file_places)))
    for line in effects:
        print(line)
    print(
        f"against {baseline.description}: {'it would change' if changes else 'nothing would change'}"
    )
    for line in changes:
        print(line)
    return OK


class _Baseline(NamedTuple):
    """Declarations to compare with: description, rows, known hosts, and places they reported."""

    description: str
    rows: Rows
    hosts: Sequence[str] = ()
    reported_places: Mapping[str, tuple[PlaceSource, ...]] = MappingProxyType({})


def _baseline(options: argparse.Namespace, now_ns: int) -> _Baseline:
    """Return the baseline. Raises DeclaredError or duckdb.Error."""
    if options.against:
        names = ", ".join(map(str, options.against))
        return _Baseline(names, declared_rows(parse_files(read_files(options.against), now_ns)))
    file = (options.data or DATA) / OPS_FILE
    if not options.data and not file.exists():
        return _Baseline("nothing declared", declared_rows(NOTHING))
    with duckdb.connect(str(file), read_only=True) as connection:
        number, rows = stored_rows(connection)
        hosts = [host for (host,) in connection.execute("SELECT host FROM hosts").fetchall()]
        places = reported_places(connection)
    return _Baseline(f"version {number}, in force in {file.parent}", rows, hosts, places)


def _summary(declared: Declared) -> str:
    counts = (
        (len(declared.files), "file"),
        (len(declared.file_places), "place of a host", "places of hosts"),
        (len(declared.expectations), "kind of host expected", "kinds of hosts expected"),
        (len(declared.windows), "maintenance window"),
        (len(declared.overrides), "override"),
        (len(declared.thresholds), "threshold"),
    )
    parts = [
        f"{count[0]} {count[1] if count[0] == 1 else count[-1] + 's' * (len(count) == 2)}"
        for count in counts
    ]
    return f"good: {', '.join(parts)}; hash {declared.hash}"


def _unregistered_hosts(declared: Declared, hosts: Sequence[str]) -> list[str]:
    """Return hosts with a place and no agent: mistyped, renamed, or not installed yet."""
    return sorted(declared.file_places.keys() - {*hosts}) if hosts else []


def _unregistered_note(unregistered: Sequence[str], places: int) -> str:
    names = ", ".join(unregistered[:NAMED_MAX])
    more = ", ..." if len(unregistered) > NAMED_MAX else ""
    count = f"{len(unregistered)} of {places} hosts with a place"
    return f"note: no agent has registered as {names}{more}: {count}"


def _effects(declared: Declared, now_ns: int, hosts: Sequence[str]) -> Iterator[str]:
    """Yield the active and future entries, each with its number of known hosts."""
    known = sorted({*hosts, *declared.file_places})
    counts = _counts(declared, declared.windows, known)
    for number, window in enumerate(declared.windows):
        state = _state(window.begin_ns, window.end_ns, now_ns)
        if state != "over":
            who = _who(window, counts[number], known)
            yield f"maintenance {state}: {who} ({window.where})"
    counts = _counts(declared, declared.overrides, known)
    for number, override in enumerate(declared.overrides):
        state = _state(override.since_ns, override.until_ns, now_ns)
        if state != "over":
            who = _who(override, counts[number], known)
            yield f"noise {state}: {override.what} on {who} ({override.where})"


def _state(begin_ns: int, end_ns: int, now_ns: int) -> str:
    return "over" if now_ns >= end_ns else "now" if now_ns >= begin_ns else "coming"


def _counts(
    declared: Declared, entries: Sequence[MaintenanceWindow | Override], known: Sequence[str]
) -> Counter[int]:
    """Return how many of the *known* hosts each of *entries* selects."""
    index = SelectionIndex(entry.selection for entry in entries)
    return Counter(n for host in known for n in index.entries_for(host, declared.place(host)))


def _who(entry: MaintenanceWindow | Override, count: int, known: Sequence[str]) -> str:
    """Format the selection of *entry*, with its number of *known* hosts."""
    description = entry.selection.description
    return f"{description}: {count} of {len(known)} known hosts" if known else description


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline admin declared",
        description="Checks what you declare about hosts: places, expected hardware, maintenance, overrides, thresholds.",
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    check = subparsers.add_parser(
        "check",
        help="check files and show what would change; needs no aggregator",
        description="Prints what is wrong, with file and line, or what would change. Exit code 0: an aggregator "
        "would load the files, 1: it would reject them.",
        epilog="Without --against and --data, the command compares with the operators' file in ./var/aggregator, if there is one.",
    )
    check.add_argument(
        "files", nargs="+", type=Path, metavar="PATH", help="files, or a folder of files"
    )
    check.add_argument("--json", action="store_true", help="one JSON object")
    comparison = check.add_mutually_exclusive_group()
    comparison.add_argument(
        "--against", type=Path, nargs="+", metavar="PATH", help="compare with these files"
    )
    comparison.add_argument(
        "--data", type=Path, metavar="DIR", help="compare with what is in force in this data folder"
    )
    return parser
