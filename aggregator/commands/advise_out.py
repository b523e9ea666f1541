"""`gangline advise out` and `back`: which hosts somebody took out by himself, and those that advice hears of.

`back` of a host that one did not take out himself gives up what advice that has ended holds it out by."""

from __future__ import annotations

import argparse
import getpass
import math
import sys
from typing import Any

from google.protobuf.duration_pb2 import Duration

from ...fingerprints.wire import advisory_pb2 as wire
from ..declared.hostset import parse_pattern
from .client import DEADLINE_SECONDS

#: So long somebody may say that a host is out, without saying it again.
HOURS_MAX = 168.0
#: Hosts of one range, and of those that are back, how many are looked at again.
HOSTS_MAX, ASKED_AGAIN_MAX = 10_000, 20
#: Hosts that others took out: so many are listed.
UNAVAILABLE_TOLD_MAX = 20


def add_commands(commands: Any) -> None:
    """Add both to the parser's *commands*."""
    out = commands.add_parser(
        "out", help="say that you took hosts out: limits of advice count them"
    )
    out.add_argument(
        "hosts", nargs="+", type=_hosts, metavar="HOST", help="as gpu-007, gpu-[001-016]"
    )
    out.add_argument("--reason", required=True, help="why, for whoever reads it at night")
    out.add_argument("--hours", type=_hours, default=1.0, help="for so long unless said again (1)")
    back = commands.add_parser(
        "back",
        help="say that what you took out is in service again; of others: give up what advice that has ended set",
    )
    back.add_argument("hosts", nargs="+", type=_hosts, metavar="HOST")


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
        for host in _named(options)
    ]
    return _reported(stub, wire.ReportUnavailableNodesRequest(actor=person(), nodes=nodes))


def back(stub: Any, options: argparse.Namespace) -> wire.ReportUnavailableNodesResponse:
    """Say that they are in service again."""
    back = [f"nodes/{host}" for host in _named(options)]
    answer = _reported(
        stub, wire.ReportUnavailableNodesRequest(actor=person(), returned_nodes=back)
    )
    for node in [node for node in back if node not in answer.unknown_nodes][:ASKED_AGAIN_MAX]:
        request = wire.ListAdvisoriesRequest(node=node, page_size=1)
        left = stub.ListAdvisories(request, timeout=DEADLINE_SECONDS)
        for one in left.unavailable_nodes:
            print(f"still out by another's word: {_line(one)}", file=sys.stderr)
        for one in left.out_by_advice:
            host = node.removeprefix("nodes/")
            words = f"{one.name.removeprefix('advisories/')}: `gangline advise back {host}` again gives it up"
            print(f"still out by advice, {words}", file=sys.stderr)
    return answer


def _named(options: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys(host for hosts in options.hosts for host in hosts))


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
    count = hosts_words(answer.unavailable_nodes_count)
    lines = ["", f"out by others' word: {count}, which limits count"]
    lines += [_line(one) for one in answer.unavailable_nodes[:UNAVAILABLE_TOLD_MAX]]
    if len(answer.unavailable_nodes) > UNAVAILABLE_TOLD_MAX:
        lines.append('... `gangline sql "FROM ops.unavailable"` has all')
    return lines


def _line(one: wire.UnavailableNode) -> str:
    host, until = one.node.removeprefix("nodes/"), one.expire_time.ToDatetime()
    return f"{host:<24} until {until:%Y-%m-%d %H:%M} UTC  {one.actor}: {one.reason}"


def hosts_words(count: int) -> str:
    """Return how many hosts, in words."""
    return f"{count} host{'' if count == 1 else 's'}"


def told(answer: wire.ReportUnavailableNodesResponse) -> str:
    """Return what came of it, in words."""
    unknown = [node.removeprefix("nodes/") for node in answer.unknown_nodes]
    lines = [
        f"out by your word in all: {hosts_words(answer.nodes_count)}; limits of advice count them"
    ]
    if unknown:
        lines.insert(0, f"no agent has registered as {', '.join(unknown)}: not counted")
    return "\n".join(lines)


def _hosts(text: str) -> list[str]:
    """Return the names that *text* is: one, or a range of them."""
    try:
        pattern = parse_pattern(text)
        if pattern.is_open:
            raise ValueError("expected names, as gpu-007 or gpu-[001-016]")
        if pattern.count > HOSTS_MAX:
            raise ValueError(f"{pattern.count} hosts, at most {HOSTS_MAX} at once")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:60]!r}: {error}") from error
    return list(pattern.names())


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0.01 <= hours <= HOURS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected hours from 0.01 to {HOURS_MAX:g}")
    return hours
