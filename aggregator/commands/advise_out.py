"""`gangline advise out` and `back`: which hosts somebody took out by himself, and those that advice hears of."""

from __future__ import annotations

import argparse
import getpass
import math
from typing import Any

from google.protobuf.duration_pb2 import Duration

from ...fingerprints.wire import advisory_pb2 as wire
from .client import DEADLINE_SECONDS

#: So long somebody may say that a host is out, without saying it again.
HOURS_MAX = 168.0
#: Hosts that others took out: so many are listed.
UNAVAILABLE_TOLD_MAX = 20


def add_commands(commands: Any) -> None:
    """Add both to the parser's *commands*."""
    out = commands.add_parser(
        "out", help="say that you took hosts out: limits of advice count them"
    )
    out.add_argument("hosts", nargs="+", metavar="HOST")
    out.add_argument("--reason", required=True, help="why, for whoever reads it at night")
    out.add_argument("--hours", type=_hours, default=1.0, help="for so long unless said again (1)")
    back = commands.add_parser("back", help="say that what you took out is in service again")
    back.add_argument("hosts", nargs="+", metavar="HOST")


def person() -> str:
    """Return who sits here."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return "somebody"


def out(stub: Any, options: argparse.Namespace) -> wire.ReportUnavailableNodesResponse:
    """Say that hosts are out."""
    ttl = Duration(seconds=int(3600 * options.hours))
    nodes = [
        wire.UnavailableNode(node=f"nodes/{host}", reason=options.reason, ttl=ttl)
        for host in options.hosts
    ]
    return _reported(stub, wire.ReportUnavailableNodesRequest(actor=person(), nodes=nodes))


def back(stub: Any, options: argparse.Namespace) -> wire.ReportUnavailableNodesResponse:
    """Say that they are in service again."""
    back = [f"nodes/{host}" for host in options.hosts]
    return _reported(stub, wire.ReportUnavailableNodesRequest(actor=person(), returned_nodes=back))


def _reported(
    stub: Any, request: wire.ReportUnavailableNodesRequest
) -> wire.ReportUnavailableNodesResponse:
    answer: wire.ReportUnavailableNodesResponse = stub.ReportUnavailableNodes(
        request, timeout=DEADLINE_SECONDS
    )
    return answer


def listed(answer: wire.ListAdvisoriesResponse) -> list[str]:
    """Return lines on the hosts that others took out: they count as those that advice takes out do."""
    if not answer.unavailable_nodes:
        return []
    lines = ["", f"out by others' word: {answer.unavailable_nodes_count} hosts, which limits count"]
    lines += [
        f"{one.node.removeprefix('nodes/'):<24} until {one.expire_time.ToDatetime():%Y-%m-%d %H:%M} UTC  {one.actor}: {one.reason}"
        for one in answer.unavailable_nodes[:UNAVAILABLE_TOLD_MAX]
    ]
    if len(answer.unavailable_nodes) > UNAVAILABLE_TOLD_MAX:
        lines.append('... `gangline sql "FROM ops.unavailable"` has all')
    return lines


def told(answer: wire.ReportUnavailableNodesResponse) -> str:
    """Return what came of it, in words."""
    unknown = [node.removeprefix("nodes/") for node in answer.unknown_nodes]
    lines = [f"{answer.nodes_count} hosts are out by your word; limits of advice count them"]
    if unknown:
        lines.append(f"no agent has registered as {', '.join(unknown)}: not counted")
    return "\n".join(lines)


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0.01 <= hours <= HOURS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected hours from 0.01 to {HOURS_MAX:g}")
    return hours
