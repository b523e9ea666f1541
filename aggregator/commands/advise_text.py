"""Text output of `gangline advise`, and its `out` and `back`: hosts taken out by hand."""

from __future__ import annotations

import argparse
import getpass
import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ...contract.client.command_line import host_set_option
from ...contract.client.connection import DEADLINE_SECONDS
from ...contract.client.terminal import cut, table, width_of
from ...contract.options import UNITS, duration
from ...contract.text import counted
from ...contract.wire import advisory_pb2 as wire
from .host_table import enum_name

#: Range of the time for which a report that a host is out may be valid.
OUT_SECONDS = 36.0, 7.0 * UNITS["d"]
#: At most this many returned hosts are checked again.
RECHECKED_MAX = 20
#: At most this many hosts reported out by others are listed.
UNAVAILABLE_SHOWN_MAX = 20

RIGHT = ("waiting", "acting")
#: At most this many withheld cases are listed.
HELD_BACK_SHOWN_MAX = 10
#: Devices of a host that are named in one line, and characters of each.
DEVICES_SHOWN_MAX, DEVICE_CHARACTERS_MAX = 4, 13
#: States in which the advisory still needs an action.
WAITING = (wire.PROPOSED, wire.DEFERRED, wire.ACCEPTED)


def add_commands(commands: Any) -> None:
    """Add `out` and `back` to the parser's *commands*."""
    out = commands.add_parser(
        "out", help="report that you took hosts out of service; they count toward the limits"
    )
    out.add_argument(
        "hosts",
        nargs="+",
        type=host_set_option,
        metavar="HOSTS",
        help="for example gpu-007, or gpu-[001-016,020]",
    )
    out.add_argument("--reason", required=True, metavar="TEXT", help="the reason, shown to others")
    out.add_argument(
        "--for",
        dest="seconds",
        type=duration(*OUT_SECONDS),
        default=3600.0,
        metavar="4h",
        help="forget this after this time (default 1h); report again to renew",
    )
    # The former option, whose plain number counts hours.
    out.add_argument("--hours", dest="seconds", type=_hours, help=argparse.SUPPRESS)
    back = commands.add_parser(
        "back",
        help="report that your hosts are back in service; for other hosts, end what a finished advisory set",
    )
    back.add_argument("hosts", nargs="+", type=host_set_option, metavar="HOSTS")


def current_user() -> str:
    """Return the user's name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return "somebody"


def out(stub: Any, options: argparse.Namespace) -> wire.ReportUnavailableNodesResponse:
    """Report that hosts are out of service."""
    ttl = Duration(seconds=int(options.seconds))
    nodes = [
        wire.UnavailableNode(node=f"nodes/{host}", reason=options.reason, ttl=ttl)
        for host in _host_names(options)
    ]
    return _report(stub, wire.ReportUnavailableNodesRequest(actor=current_user(), nodes=nodes))


def back(stub: Any, options: argparse.Namespace) -> wire.ReportUnavailableNodesResponse:
    """Report that hosts are back in service; print those that others or advice still hold out."""
    back = [f"nodes/{host}" for host in _host_names(options)]
    answer = _report(
        stub, wire.ReportUnavailableNodesRequest(actor=current_user(), returned_nodes=back)
    )
    for node in [node for node in back if node not in answer.unknown_nodes][:RECHECKED_MAX]:
        request = wire.ListAdvisoriesRequest(node=node, page_size=1)
        left = stub.ListAdvisories(request, timeout=DEADLINE_SECONDS)
        for unavailable in left.unavailable_nodes:
            print(
                f"still out of service, as reported by another user: {_line(unavailable)}",
                file=sys.stderr,
            )
        for advisory in left.out_by_advice:
            host = node.removeprefix("nodes/")
            message = f"{advisory.name.removeprefix('advisories/')}: `gangline advise back {host}` again gives it up"
            print(f"still out of service by advice, {message}", file=sys.stderr)
    return answer


def _host_names(options: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys(host for hosts in options.hosts for host in hosts))


def _report(
    stub: Any, request: wire.ReportUnavailableNodesRequest
) -> wire.ReportUnavailableNodesResponse:
    answer: wire.ReportUnavailableNodesResponse = stub.ReportUnavailableNodes(
        request, timeout=DEADLINE_SECONDS
    )
    return answer


def unavailable_lines(answer: wire.ListAdvisoriesResponse) -> list[str]:
    """Return lines on the hosts that other users took out; they count toward the limits."""
    if not answer.unavailable_nodes:
        return []
    count = counted(answer.unavailable_nodes_count, "host")
    lines = ["", f"reported out by others: {count}, which limits count"]
    lines += [_line(u) for u in answer.unavailable_nodes[:UNAVAILABLE_SHOWN_MAX]]
    if len(answer.unavailable_nodes) > UNAVAILABLE_SHOWN_MAX:
        lines.append('... `gangline sql "FROM ops.unavailable"` has all')
    return lines


def _line(report: wire.UnavailableNode) -> str:
    host, until = report.node.removeprefix("nodes/"), report.expire_time.ToDatetime()
    return f"{host:<24} until {until:%Y-%m-%d %H:%M} UTC  {report.actor}: {report.reason}"


def unavailable_text(answer: wire.ReportUnavailableNodesResponse) -> str:
    """Return the message for the result of a report."""
    unknown = [node.removeprefix("nodes/") for node in answer.unknown_nodes]
    lines = [
        f"reported out by you in all: {counted(answer.nodes_count, 'host')}; limits of advice count them"
    ]
    if unknown:
        lines.insert(0, f"no agent has registered as {', '.join(unknown)}: not counted")
    return "\n".join(lines)


def _hours(text: str) -> float:
    return 3600 * duration(*OUT_SECONDS, unit="h")(text)


def list_text(answer: wire.ListAdvisoriesResponse) -> str:
    lines = (
        [f"advice is withheld for now: {answer.withheld_reason}"] if answer.withheld_reason else []
    )
    if not answer.advisories:
        return "\n".join([*lines, "nothing is advised", *_other_lines(answer)])
    rows = [("name", "subject", "action", "state", "waiting", "acting", "why")]
    rows += [
        (
            _short(advisory.name),
            advisory.subject,
            enum_name(wire.Action, advisory.action),
            enum_name(wire.AdvisoryState, advisory.state),
            f"{advisory.cost_of_waiting_gpu_hours:,.1f}",
            f"{advisory.cost_of_acting_gpu_hours:,.1f}",
            advisory.reason_text,
        )
        for advisory in answer.advisories
    ]
    lines.append(table(rows, right=RIGHT))
    lines += ["", "costs are GPU-hours; `gangline advise show NAME` shows the sums"]
    return "\n".join([*lines, *_other_lines(answer)])


def _other_lines(answer: wire.ListAdvisoriesResponse) -> list[str]:
    """Return lines on withheld advice and its reasons, and on hosts out of service."""
    lines: list[str] = []
    groups = _by_reason(answer.held_back)
    if answer.held_back_count:
        width = width_of(sys.stdout)
        lines += ["", f"needed, but not advised: {answer.held_back_count}"]
        for devices, case in groups[:HELD_BACK_SHOWN_MAX]:
            action, named = enum_name(wire.Action, case.action), f"  {devices}" if devices else ""
            what = f"{case.node.removeprefix('nodes/')}{named}  {action}: {case.reason_text}"
            lines += [cut(what, width), cut(f"    held back: {case.held_back_text}", width)]
    if len(groups) > HELD_BACK_SHOWN_MAX:
        lines.append(
            "... `gangline sql \"FROM ops.advice_history WHERE kind = 'HeldBack'\"` has all"
        )
    return [*lines, *_out_by_advice(answer), *unavailable_lines(answer)]


def _by_reason(held_back: Sequence[wire.HeldBack]) -> list[tuple[str, wire.HeldBack]]:
    """Return per host, action and reason its devices, formatted, and the first case."""
    groups: dict[tuple[str, int, str], list[wire.HeldBack]] = {}
    for case in held_back:
        groups.setdefault((case.node, case.action, case.held_back_text), []).append(case)
    return [(_devices_text(group), group[0]) for group in groups.values()]


def _devices_text(group: Sequence[wire.HeldBack]) -> str:
    """Return the devices of *group*; "" if there are fewer than two, or only the host itself."""
    devices = [
        cut(device, DEVICE_CHARACTERS_MAX)
        for case in group
        for device in case.devices
        if device != "host"
    ]
    if len(devices) < 2:
        return ""
    more = (
        f" and {len(devices) - DEVICES_SHOWN_MAX} more" if len(devices) > DEVICES_SHOWN_MAX else ""
    )
    return ", ".join(devices[:DEVICES_SHOWN_MAX]) + more


def _out_by_advice(answer: wire.ListAdvisoriesResponse) -> list[str]:
    """Return lines on hosts that ended advice still holds out."""
    if not answer.out_by_advice_count:
        return []
    count = counted(answer.out_by_advice_count, "host")
    lines = ["", f"out of service by advice that has ended: {count}; they count toward the limits"]
    for advisory in answer.out_by_advice[:UNAVAILABLE_SHOWN_MAX]:
        host = advisory.nodes[0].removeprefix("nodes/")
        action = enum_name(wire.Action, advisory.action)
        what = f"{host:<24} until {_at(advisory.expire_time)}  {_short(advisory.name)} {action}: {advisory.state_text}"
        lines.append(cut(what, width_of(sys.stdout)))
    if answer.out_by_advice_count > UNAVAILABLE_SHOWN_MAX:
        lines.append("... `gangline advise list --all` has all")
    return [
        *lines,
        "each stays out while its fault is active; once it has been healthy for a while, its return is advised",
        "if the fault is fixed or you accept it, run `gangline advise back HOST`",
    ]


def advisory_text(one: wire.Advisory, now: datetime | None = None) -> str:
    """Return an advisory within the terminal's width. *now*: default: the current time."""
    then = f", then {enum_name(wire.Action, one.then_action)}" if one.then_action else ""
    lines = [
        f"{_short(one.name)}: {enum_name(wire.Action, one.action)}{then} for {one.subject} (scope: {one.scope})",
        f"  why      {one.reason_text}",
        f"  basis    {enum_name(wire.Basis, one.basis)}, confidence {one.confidence:.2f}",
        f"  state    {enum_name(wire.AdvisoryState, one.state)} as of {_at(one.update_time)}{_why(one)}",
    ]
    if one.arithmetic:
        lines.append(f"  price    {one.arithmetic}")
    if one.HasField("act_by_time") and one.state in WAITING:
        over = one.act_by_time.ToDatetime(UTC) <= (now or datetime.now(UTC))
        so = "from then on waiting has cost more"
        if over:
            so = "that time has passed: waiting has cost more"
        lines.append(f"  act by   {_at(one.act_by_time)}: {so}")
    if one.owner:
        lines.append(f"  owner    {one.owner}{_lease(one)}")
    if one.workload:
        lines.append(f"  job      {one.workload}")
    if one.devices:
        lines.append(f"  devices  {', '.join(one.devices)}")
    if len(one.nodes) > 1:
        lines.append(f"  hosts    {', '.join(node.removeprefix('nodes/') for node in one.nodes)}")
    if one.state in (wire.PROPOSED, wire.DEFERRED):
        lines.append(f"  expires  {_at(one.expire_time)} unless it is answered")
    if one.state in WAITING:
        lines.append(f"  etag     {one.etag}: answers with `--etag` apply to this version only")
    width = max(width_of(sys.stdout), 40)
    return "\n".join(
        textwrap.fill(
            cut(line, len(line)), width, subsequent_indent=" " * 11, break_on_hyphens=False
        )
        for line in lines
    )


def what_if_text(answer: wire.EvaluateRuleResponse) -> str:
    if not answer.episodes_count:
        return (
            "it would have done nothing: no stored evidence belongs to that rule (a code as "
            "'gpu.xid 95', a row "
            "of the policy as gpu_thermal, a reason, a signal)"
        )
    limits = (
        f"{counted(answer.held_back_count, 'case')} held back by limits or price, at most "
        f"{counted(answer.nodes_at_once_max, 'host')} out at once"
    )
    price = (
        f"price: acting {answer.acting_gpu_hours:,.1f}, waiting {answer.waiting_gpu_hours:,.1f} "
        "GPU-hours, with 8 GPUs a host and no job known"
    )
    since = f"since {_at(answer.from_time)}: " if answer.HasField("from_time") else ""
    lines = [
        f"{since}{counted(answer.episodes_count, 'episode')}; {counted(answer.advised_count, 'advisory', 'advisories')}, {limits}",
        f"after {answer.followed_count} of {counted(answer.episodes_count, 'episode')} the host was UNHEALTHY within 7 days",
        price,
        "",
    ]
    rows = [("host", "from", "until", "action", "advised", "faulty", "why")]
    rows += [
        (
            episode.node.removeprefix("nodes/"), _at(episode.start_time), _at(episode.end_time),
            enum_name(wire.Action, episode.action), _yes(episode.advised), _yes(episode.followed_by_fault),
            f"held back: {episode.held_back_text}; {episode.message}" if episode.held_back_text else episode.message,
        )
        for episode in answer.episodes
    ]  # fmt: skip
    return "\n".join([*lines, table(rows)])


def _why(advisory: wire.Advisory) -> str:
    """Return the reason for the state; "" if it is printed above."""
    reason = advisory.state_text.removesuffix(advisory.reason_text).removesuffix(": ")
    return f": {reason}" if reason else ""


def _lease(advisory: wire.Advisory) -> str:
    """Return the owner's remaining steps after acceptance."""
    if advisory.state != wire.ACCEPTED:
        return ""
    name = _short(advisory.name)
    return (
        f", until {_at(advisory.lease_expire_time)}: carry it out, then `gangline advise done "
        f"{name}` or `failed {name}`; "
        f"`accept {name}` again, or `--for 8h` with it, keeps it"
    )


def _short(name: str) -> str:
    return name.removeprefix("advisories/")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _at(time: Timestamp) -> str:
    return f"{time.ToDatetime():%Y-%m-%d %H:%M} UTC"
