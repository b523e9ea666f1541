"""`gangline host HOST`: the explanation of its score; `--supply`: its present supply by resource and device."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ...cli import json_object
from ...contract.client import command_line, connection
from ...contract.client.terminal import table
from ..sql import quoted
from . import explain
from .job import ask_session
from .sql_backends import QuerySession, RemoteBackend

_SUPPLY = """
SELECT resource, device, supply, full_supply, in_use, unit, shared_with, message,
    greatest(epoch(ops.taken() - time), 0) AS age_seconds
FROM ops.host_supply WHERE host = {}
"""
_HOSTS = "SELECT host FROM main.hosts"
#: Unit in the store -> divisor and unit for people.
_SCALES = {
    "bytes": (1e9, "GB"),
    "bytes_per_second": (1e9, "GB/s"),
    "cores": (1.0, "cores"),
    "state": (1.0, ""),
}
#: A reading that is older is shown with its age.
OLD_SECONDS = 180.0
_RIGHT = ("NOW", "FULL", "IN USE")


def main(arguments: list[str]) -> int:
    """Explain a host or list its supply. Exit codes: 3 no aggregator answers; 4 unknown host."""
    options = _parser().parse_args(arguments)
    if not options.supply:
        return explain.main(arguments)
    return connection.guarded("host", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    host = options.host.removeprefix("nodes/")
    with QuerySession(RemoteBackend(connection.read_connection_options(options))) as session:
        rows = ask_session(session, _SUPPLY.format(quoted(host)))
        if not rows:
            names = [row["host"] for row in ask_session(session, _HOSTS)]
            message = (
                f"host {host!r} has sent no readings of its supply"
                if host in names
                else explain.unknown_host_message(host, names)
            )
            raise connection.CommandError(message, connection.NOT_FOUND)
    if options.json:
        print(json_object({"host": host, "supply": rows}))
    else:
        print(supply_text(rows))
    return connection.OK


def supply_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of rows of `ops.host_supply`, alike devices in one line."""
    headings = ["RESOURCE", "DEVICE", "NOW", "FULL", "IN USE", "UNIT", "SHARED WITH", "NOTE"]
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        scale, unit = _SCALES.get(row["unit"], (1.0, row["unit"]))
        numbers = [_number(row[name], scale) for name in ("supply", "full_supply", "in_use")]
        note = row["message"] or ""
        if row["age_seconds"] is not None and row["age_seconds"] > OLD_SECONDS:
            note = "; ".join(filter(None, (note, f"read {row['age_seconds']:.0f} s ago")))
        shared = ", ".join(_short(device) for device in row["shared_with"] or ())
        groups.setdefault((row["resource"], *numbers, unit, shared, note), []).append(row["device"])
    lines = [headings]
    for (resource, *numbers, unit, shared, note), devices in groups.items():
        named = _short(devices[0]) if len(devices) == 1 else f"{len(devices)} devices"
        lines.append([resource, named, *numbers, unit, shared, note])
    return table(lines, right=_RIGHT)


def _number(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value / scale:,.4g}"


def _short(device: str) -> str:
    return f"{device[:12]}…" if device.startswith("GPU-") else device


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline host",
        description="Explains the score of a host, as `gangline explain HOST`. With --supply: the present supply of the "
        "host, with degraded parts in their present state, and the supply with every part well (in SQL: ops.host_supply). "
        "The demand of jobs is in ops.run_demand.",
    )
    parser.add_argument(
        "host",
        type=explain.host_name,
        metavar="HOST",
        help="a host's name, as `gangline hosts` shows it",
    )
    parser.add_argument(
        "--supply", action="store_true", help="list its supply by resource and device"
    )
    command_line.add_options(parser)
    command_line.add_hours(parser)
    return parser
