"""`gangline advise`: lists and answers advisories, with their cost, and replays rules on past data."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from ...cli import json_object
from ...contract.client import command_line, connection
from ...contract.client.command_line import seconds_of
from ...contract.client.terminal import cut
from ...contract.options import UNITS, whole_duration
from ...contract.wire import advisory_pb2 as wire
from ...contract.wire.advisory_pb2_grpc import AdvisoryServiceStub
from . import advise_text
from .host_table import enum_name

#: Time limit of a replay, which may cover a month of evidence.
WHAT_IF_SECONDS = 120.0
PAGE_SIZE = 1000
ETAG = re.compile(r"a[0-9]{1,18}-[0-9]{1,18}", re.ASCII)
#: Command -> verb form printed while it runs.
ANSWERING = {
    "accept": "accepting",
    "reject": "rejecting",
    "done": "reporting done for",
    "failed": "reporting failed for",
}
NAME = re.compile(r"(?:advisories/)?(a[0-9]{1,18})", re.ASCII)

FORMATTERS: dict[str, Callable[[Any], str]] = {
    "list": advise_text.list_text,
    "what-if": advise_text.what_if_text,
    "out": advise_text.unavailable_text,
    "back": advise_text.unavailable_text,
    **dict.fromkeys(("show", "accept", "reject", "done", "failed"), advise_text.advisory_text),
}


def main(arguments: list[str]) -> int:
    """Run a subcommand. Exit codes: 1 refused, 3 no aggregator, 4 no such advisory or host."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = ["list", *arguments]
    options = _parser().parse_args(arguments)
    return connection.guarded("advise", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with connection.connected(connection.read_connection_options(options)) as channel:
        stub: Any = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = HANDLERS[options.what](stub, options)
    if options.json:
        fields = MessageToDict(
            answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        print(json_object(fields))
    else:
        print(FORMATTERS[options.what](answer))
    return _code(options, answer)


def _code(options: argparse.Namespace, answer: Any) -> int:
    """Return the exit code: an accept that did not take effect and unknown hosts are failures."""
    if options.what == "accept" and answer.state != wire.ACCEPTED:
        print("gangline advise: not accepted: do not act on the host", file=sys.stderr)
        return connection.FAILED
    return (
        connection.NOT_FOUND
        if options.what in ("out", "back") and answer.unknown_nodes
        else connection.OK
    )


def _list(stub: Any, options: argparse.Namespace) -> wire.ListAdvisoriesResponse:
    """Return all pages as a single response."""
    whole, token = wire.ListAdvisoriesResponse(), ""
    while True:
        node = f"nodes/{options.host.removeprefix('nodes/')}" if options.host else ""
        request = wire.ListAdvisoriesRequest(
            page_size=PAGE_SIZE, page_token=token, show_ended=options.all, node=node
        )
        page = stub.ListAdvisories(request, timeout=connection.DEADLINE_SECONDS)
        whole.advisories.extend(page.advisories)
        whole.held_back.extend(page.held_back)
        whole.held_back_count += page.held_back_count  # set on the first page only
        whole.out_by_advice.extend(page.out_by_advice)
        whole.out_by_advice_count += page.out_by_advice_count
        whole.unavailable_nodes.extend(page.unavailable_nodes)
        whole.unavailable_nodes_count = page.unavailable_nodes_count
        whole.withheld_reason, token = page.withheld_reason, page.next_page_token
        if not token:
            return whole


def _show(stub: Any, options: argparse.Namespace) -> wire.Advisory:
    request = wire.GetAdvisoryRequest(name=f"advisories/{options.advisory}")
    answer: wire.Advisory = stub.GetAdvisory(request, timeout=connection.DEADLINE_SECONDS)
    return answer


def _answer(to: wire.AdvisoryState) -> Callable[[Any, argparse.Namespace], wire.Advisory]:
    def run(stub: Any, options: argparse.Namespace) -> wire.Advisory:
        # Without --etag the current version is answered, and printed first.
        etag = options.etag or _current_etag(stub, options)
        request = wire.AckAdvisoryRequest(
            name=f"advisories/{options.advisory}",
            etag=etag,
            new_state=to,
            actor=advise_text.current_user(),
            note=options.reason,
        )
        if getattr(options, "seconds", 0):
            request.lease.FromSeconds(options.seconds)
        answer: wire.Advisory = stub.AckAdvisory(request, timeout=connection.DEADLINE_SECONDS)
        return answer

    return run


def _current_etag(stub: Any, options: argparse.Namespace) -> str:
    """Print the current version of the advisory that is answered, and return its etag."""
    now = _show(stub, options)
    action = f"{enum_name(wire.Action, now.action)} for {now.subject}"
    message = f"the current version: {action} (use --etag {now.etag} to answer only this version)"
    print(
        f"gangline advise: {ANSWERING[options.what]} {cut(message, len(message))}", file=sys.stderr
    )
    return now.etag


def _what_if(stub: Any, options: argparse.Namespace) -> wire.EvaluateRuleResponse:
    if sys.stderr.isatty():
        print(f"replaying {options.days} days ...", file=sys.stderr)
    request = wire.EvaluateRuleRequest(rule=options.rule, days=options.days)
    try:
        answer: wire.EvaluateRuleResponse = stub.EvaluateRule(request, timeout=WHAT_IF_SECONDS)
    except grpc.RpcError as error:
        if (
            error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
        ):  # any other error is reported by the caller
            raise
        raise connection.CommandError(
            f"no result after {WHAT_IF_SECONDS:g} s; the aggregator continues (`gangline hosts` shows whether "
            "it answers). Try again later, with fewer --days",
            connection.FAILED,
        ) from error
    return answer


HANDLERS: dict[str, Callable[[Any, argparse.Namespace], Any]] = {
    "list": _list,
    "show": _show,
    "accept": _answer(wire.ACCEPTED),
    "reject": _answer(wire.REJECTED),
    "done": _answer(wire.DONE),
    "failed": _answer(wire.FAILED),
    "out": advise_text.out,
    "back": advise_text.back,
    "what-if": _what_if,
}


_days = whole_duration(UNITS["d"], unit="d")


def _advisory(text: str) -> str:
    match = NAME.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text[:60]!r}: expected the name of an advisory, such as a12; `gangline advise "
            "list --host HOST` lists those of a host"
        )
    return match[1]


def _etag(text: str) -> str:
    if not ETAG.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text[:60]!r}: expected an etag, such as a12-3; `gangline advise show a12` shows it"
        )
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline advise",
        description="Lists advisories: what to do about which host, and what waiting costs compared with acting. "
        "Gangline itself never acts: the person who accepts an advisory carries it out. The default command is list.",
        epilog="exit codes: 0 done, 1 refused, 2 wrong usage, 3 no aggregator answers, 4 not found",
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="open advisories, newest first")
    listing.add_argument(
        "--all",
        action="store_true",
        help="also those that ended within a day, or still keep a host out of service",
    )
    listing.add_argument("--host", default="", metavar="HOST", help="only this host")
    for name, help_text in (
        ("show", "one advisory, with the costs it was computed from"),
        ("accept", "accept it: you carry it out, then report done or failed"),
        ("reject", "decline it, with a reason; it is not proposed again for a day"),
        ("done", "report that you carried out what you accepted"),
        ("failed", "report that you could not"),
    ):
        subparser = commands.add_parser(name, help=help_text)
        add = subparser.add_argument
        add("advisory", type=_advisory, help="its name, such as a12")
        if name != "show":
            help_text = "the version from `show` or `list --json`; rejected if the advisory has changed since"
            add("--etag", type=_etag, help=help_text)
        add(
            "--reason",
            default="",
            metavar="TEXT",
            required=name == "reject",
            help="a note to store with the answer",
        )
        if name == "accept":
            add(
                "--for",
                dest="seconds",
                type=seconds_of,
                default=0,
                metavar="8h",
                help="length of the lease, 10s to 7d; default: 10 min. `accept` again renews it",
            )
    advise_text.add_commands(commands)
    what_if = commands.add_parser("what-if", help="what a rule would have advised in the past")
    what_if.add_argument("rule", help="'xid 95', gpu_thermal, ECC_TREND, or a signal name")
    what_if.add_argument(
        "--days", type=_days, default=30, metavar="N", help="how many days back (default 30)"
    )
    for command in commands.choices.values():
        command_line.add_options(command)
    return parser
