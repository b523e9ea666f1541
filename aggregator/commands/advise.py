"""`gangline advise`: what to do about which host, what it costs, and what a rule would have done."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from ...fingerprints.wire import advisory_pb2 as wire
from ...fingerprints.wire.advisory_pb2_grpc import AdvisoryServiceStub
from . import advise_out
from .client import DEADLINE_SECONDS, OK, add_options, guarded, translated
from .table import cut, width_of
from .way import dialled, way_of

#: A month of evidence is read and replayed.
WHAT_IF_SECONDS = 120.0
PAGE_SIZE = 1000
#: Of a column of a table; the words have what is left, unless it is less than this.
CELL_CHARACTERS_MAX, WORDS_CHARACTERS_MIN = 32, 24
RIGHT = ("waiting", "acting")
#: What is called for and not advised: so much is listed.
HELD_BACK_TOLD_MAX = 10


def main(arguments: list[str]) -> int:
    """List, show, accept, reject, what-if. 1: refused, with words; 3: no aggregator answers; 4: no such advisory."""
    options = _parser().parse_args(arguments)
    return guarded("advise", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    way = way_of(options)
    with dialled(way) as channel:
        stub: Any = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = RUN[options.what](stub, options)
        except grpc.RpcError as error:
            raise translated(error, way) from error
    if options.json:
        fields = MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        print(json.dumps(fields))
    else:
        print(TOLD[options.what](answer))
    return OK


def _list(stub: Any, options: argparse.Namespace) -> wire.ListAdvisoriesResponse:
    """Return all pages as one."""
    whole, token = wire.ListAdvisoriesResponse(), ""
    while True:
        node = f"nodes/{options.host}" if options.host else ""
        page = stub.ListAdvisories(
            wire.ListAdvisoriesRequest(
                page_size=PAGE_SIZE, page_token=token, show_ended=options.all, node=node
            ),
            timeout=DEADLINE_SECONDS,
        )
        whole.advisories.extend(page.advisories)
        whole.held_back.extend(page.held_back)
        whole.held_back_count += page.held_back_count  # with the first page
        whole.unavailable_nodes.extend(page.unavailable_nodes)
        whole.unavailable_nodes_count = page.unavailable_nodes_count
        whole.withheld_reason, token = page.withheld_reason, page.next_page_token
        if not token:
            return whole


def _show(stub: Any, options: argparse.Namespace) -> wire.Advisory:
    request = wire.GetAdvisoryRequest(name=f"advisories/{options.advisory}")
    answer: wire.Advisory = stub.GetAdvisory(request, timeout=DEADLINE_SECONDS)
    return answer


def _answer(to: wire.AdvisoryState) -> Callable[[Any, argparse.Namespace], wire.Advisory]:
    def run(stub: Any, options: argparse.Namespace) -> wire.Advisory:
        before = _show(stub, options)  # its etag: what was shown is what is answered
        request = wire.AckAdvisoryRequest(
            name=before.name,
            etag=before.etag,
            new_state=to,
            actor=advise_out.person(),
            note=options.reason,
        )
        answer: wire.Advisory = stub.AckAdvisory(request, timeout=DEADLINE_SECONDS)
        return answer

    return run


def _what_if(stub: Any, options: argparse.Namespace) -> wire.EvaluateRuleResponse:
    if sys.stderr.isatty():
        print(f"replaying {options.days} days ...", file=sys.stderr)
    request = wire.EvaluateRuleRequest(rule=options.rule, days=options.days)
    answer: wire.EvaluateRuleResponse = stub.EvaluateRule(request, timeout=WHAT_IF_SECONDS)
    return answer


RUN: dict[str, Callable[[Any, argparse.Namespace], Any]] = {
    "list": _list,
    "show": _show,
    "accept": _answer(wire.ACCEPTED),
    "reject": _answer(wire.REJECTED),
    "done": _answer(wire.DONE),
    "failed": _answer(wire.FAILED),
    "out": advise_out.out,
    "back": advise_out.back,
    "what-if": _what_if,
}

# ---- in words


def _listed(answer: wire.ListAdvisoriesResponse) -> str:
    lines = (
        [f"no advice is given for now: {answer.withheld_reason}"] if answer.withheld_reason else []
    )
    if not answer.advisories:
        return "\n".join([*lines, "nothing is advised", *_beside(answer)])
    rows = [("name", "subject", "action", "state", "waiting", "acting", "why")]
    rows += [
        (
            _short(one.name), one.subject, wire.Action.Name(one.action),
            wire.AdvisoryState.Name(one.state), f"{one.cost_of_waiting_gpu_hours:,.1f}",
            f"{one.cost_of_acting_gpu_hours:,.1f}", one.reason_text,
        )
        for one in answer.advisories
    ]  # fmt: skip
    lines += _fitted(rows, width_of(sys.stdout))
    return "\n".join(
        [
            *lines, "", "costs are GPU-hours; `gangline advise show NAME` shows the sums",
            *_beside(answer),
        ]
    )  # fmt: skip


def _beside(answer: wire.ListAdvisoriesResponse) -> list[str]:
    """Return lines on what is not advised and why, and on who is out by others' word."""
    lines: list[str] = []
    if answer.held_back_count:
        width = width_of(sys.stdout)
        lines += ["", f"called for, and not advised: {answer.held_back_count}"]
        for one in answer.held_back[:HELD_BACK_TOLD_MAX]:
            what = f"{one.node.removeprefix('nodes/')}  {wire.Action.Name(one.action)}: {one.reason_text}"
            lines += [cut(what, width), cut(f"    held back: {one.held_back_text}", width)]
    if answer.held_back_count > HELD_BACK_TOLD_MAX:
        lines.append(
            "... `gangline sql \"FROM ops.advice_history WHERE kind = 'HeldBack'\"` has all"
        )
    return [*lines, *advise_out.listed(answer)]


def _fitted(rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """Return *rows*, the first of them of names, as lines of *width*. The last cell, of words, has what is left;
    where that is too little it has a line of its own."""
    places = range(len(rows[0]) - 1)
    widths = [min(max(len(row[at]) for row in rows), CELL_CHARACTERS_MAX) for at in places]
    left = width - sum(widths) - 2 * len(widths)
    lines: list[str] = []
    for row in rows:
        cut_ones = [cut(row[at], widths[at]) for at in places]
        cells = [
            one.rjust(widths[at]) if rows[0][at] in RIGHT else one.ljust(widths[at])
            for at, one in enumerate(cut_ones)
        ]
        if left >= WORDS_CHARACTERS_MIN:
            lines.append("  ".join([*cells, cut(row[-1], left)]))
        else:
            lines += ["  ".join(cells).rstrip(), f"    {cut(row[-1], max(width - 4, 20))}"]
    return lines


def shown(one: wire.Advisory) -> str:
    """Return one advisory as a colleague would tell it, within the terminal's width."""
    then = f", then {wire.Action.Name(one.then_action)}" if one.then_action else ""
    lines = [
        f"{_short(one.name)}: {wire.Action.Name(one.action)}{then} for {one.subject} (scope: {one.scope})",
        f"  why      {one.reason_text}",
        f"  basis    {wire.Basis.Name(one.basis)}, confidence {one.confidence:.2f}",
        f"  state    {wire.AdvisoryState.Name(one.state)} since {_at(one.update_time)}: {one.state_text}",
    ]
    if one.arithmetic:
        lines.append(f"  price    {one.arithmetic}")
    if one.HasField("act_by_time"):
        lines.append(f"  act by   {_at(one.act_by_time)}: from then on waiting has cost more")
    if one.owner:
        lines.append(f"  owner    {one.owner}")
    if one.workload:
        lines.append(f"  job      {one.workload}")
    if one.devices:
        lines.append(f"  devices  {', '.join(one.devices)}")
    if len(one.nodes) > 1:
        lines.append(f"  hosts    {', '.join(node.removeprefix('nodes/') for node in one.nodes)}")
    if one.state in (wire.PROPOSED, wire.DEFERRED):
        lines.append(f"  expires  {_at(one.expire_time)} unless it is answered")
    width = max(width_of(sys.stdout), 40)
    return "\n".join(
        textwrap.fill(
            cut(line, len(line)), width, subsequent_indent=" " * 11, break_on_hyphens=False
        )
        for line in lines
    )


def _replayed(answer: wire.EvaluateRuleResponse) -> str:
    if not answer.episodes_count:
        return (
            "it would have done nothing: no stored evidence is of that rule (a code as 'gpu.xid 95', a row "
            "of the policy as gpu_thermal, a reason, a signal)"
        )
    limits = (
        f"{answer.held_back_count} cases held back by limits, at most {answer.nodes_at_once_max} hosts "
        "out at once"
    )
    price = (
        f"price: acting {answer.acting_gpu_hours:,.1f}, waiting {answer.waiting_gpu_hours:,.1f} "
        "GPU-hours, with 8 GPUs a host and no job known"
    )
    since = f"since {_at(answer.from_time)}: " if answer.HasField("from_time") else ""
    lines = [
        f"{since}{answer.episodes_count} episodes; {answer.advised_count} advisories, {limits}",
        f"after {answer.followed_count} of {answer.episodes_count} episodes the host was UNHEALTHY within 7 days",
        price,
        "",
    ]
    rows = [("host", "from", "until", "action", "advised", "faulty", "why")]
    rows += [
        (
            one.node.removeprefix("nodes/"), _at(one.start_time), _at(one.end_time),
            wire.Action.Name(one.action), _yes(one.advised), _yes(one.followed_by_fault), one.words,
        )
        for one in answer.episodes
    ]  # fmt: skip
    return "\n".join([*lines, *_fitted(rows, width_of(sys.stdout))])


TOLD: dict[str, Callable[[Any], str]] = {
    "list": _listed,
    "what-if": _replayed,
    "out": advise_out.told,
    "back": advise_out.told,
    **dict.fromkeys(("show", "accept", "reject", "done", "failed"), shown),
}


def _short(name: str) -> str:
    return name.removeprefix("advisories/")


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _at(time: Timestamp) -> str:
    return f"{time.ToDatetime():%Y-%m-%d %H:%M} UTC"


def _days(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise argparse.ArgumentTypeError(f"{text[:20]!r}: expected a whole number of days")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline advise",
        description="What to do about which host, what waiting costs against acting, and who does it. "
        "Nothing is done by Gangline itself: who accepts an advisory carries it out.",
        epilog="exit codes: 0 done, 1 refused, 2 wrong usage, 3 no aggregator answers, 4 not found",
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="what is advised now, newest first")
    listing.add_argument("--all", action="store_true", help="what ended within a day, too")
    listing.add_argument("--host", default="", help="of this host only")
    for name, says in (
        ("show", "one advisory with its arithmetic"),
        ("accept", "take it on: you carry it out, and say done or failed"),
        ("reject", "say no, with a reason; it is not proposed again for a day"),
        ("done", "say that what you accepted is carried out"),
        ("failed", "say that it could not be"),
    ):
        one = commands.add_parser(name, help=says)
        one.add_argument("advisory", help="its name, as a12")
        one.add_argument("--reason", default="", required=name == "reject", help="a line to keep")
    advise_out.add_commands(commands)
    what_if = commands.add_parser("what-if", help="what a rule would have advised in the past")
    what_if.add_argument("rule", help="'gpu.xid 95', gpu_thermal, ECC_TREND, or a signal")
    what_if.add_argument("--days", type=_days, default=30, help="so far back (30)")
    for command in commands.choices.values():
        add_options(command)
    return parser
