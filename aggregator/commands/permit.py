"""`gangline permit`: grants or revokes the permit for hosts to enforce their own findings."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.json_format import MessageToDict

from ...cli import json_object
from ...contract.client.command_line import add_options, seconds_of
from ...contract.client.connection import (
    DEADLINE_SECONDS,
    OK,
    connected,
    guarded,
    read_connection_options,
)
from ...contract.wire import permit_pb2
from ...contract.wire.permit_pb2_grpc import PermitServiceStub


def main(arguments: list[str]) -> int:
    """Show, grant or revoke the permit. Exit codes: 1 refused, with a message; 3 no aggregator."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.what == "grant" and not (options.seconds and options.reason):
        parser.error('grant needs a duration and a reason: --for 8h --reason "trial on rack 4"')
    return guarded("permit", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with connected(read_connection_options(options)) as channel:
        stub: Any = PermitServiceStub(channel)  # type: ignore[no-untyped-call]
        calls: dict[str, tuple[Callable[..., Any], object]] = {
            "show": (stub.GetPermit, permit_pb2.GetPermitRequest()),
            "grant": (
                stub.GrantPermit,
                permit_pb2.GrantPermitRequest(
                    seconds=options.seconds, reason=_reason_with_user(options.reason)
                ),
            ),
            "revoke": (
                stub.RevokePermit,
                permit_pb2.RevokePermitRequest(reason=_reason_with_user(options.reason)),
            ),
        }
        call, request = calls[options.what]
        permit = call(request, timeout=DEADLINE_SECONDS)
    print(
        json_object(_document(permit)) if options.json else permit_text(permit, datetime.now(UTC))
    )
    return OK


def _document(permit: permit_pb2.FleetPermit) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(
        permit, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {**fields, "granted_wall_time_ns": permit.granted_wall_time_ns}


def permit_text(permit: permit_pb2.FleetPermit, now: datetime) -> str:
    if not permit.seconds_left:
        return f"no permit: hosts report, and enforce nothing ({permit.reason})"
    until = now + timedelta(seconds=permit.seconds_left)
    line = f"granted until {until:%Y-%m-%d %H:%M:%S} UTC ({permit.seconds_left} s left): {permit.reason}"
    if permit.withheld_reason:
        line += f"\nwithheld for now: {permit.withheld_reason}"
    return line


def _reason_with_user(reason: str) -> str:
    """Return *reason* after the user's name."""
    try:
        return f"{getpass.getuser()}: {reason or 'revoked'}"
    except (OSError, KeyError):  # a user without a name
        return reason


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline permit",
        description="Lets hosts enforce their own findings (`gangline check` exits with 10). A finding is enforced only if an "
        "agent's setting `enforcing` names it, and only while this permit is in force. Without a permit, all findings are report-only.",
        epilog="exit codes: 0 done, 1 refused, 2 wrong usage, 3 no aggregator answers",
    )
    add_options(parser)
    parser.add_argument(
        "what",
        choices=("show", "grant", "revoke"),
        help="show the permit and whether hosts receive it; grant it for a time (needs an operator; "
        "without any login, only on the aggregator's own machine); revoke it immediately",
    )
    parser.add_argument(
        "--for", dest="seconds", type=seconds_of, default=0, metavar="8h", help="grant: at most 7d"
    )
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        default="",
        help="the reason; shown on every host, with your name",
    )
    return parser
