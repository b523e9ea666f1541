"""`gangline reservations`: lists and releases reserved nodes. `gangline plan --reserve` creates reservations."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from ...cli import json_object
from ...contract.wire import reservation_pb2 as wire
from ...contract.wire import score_pb2
from ...contract.wire.reservation_pb2_grpc import ReservationServiceStub
from ...contract.wire.score_pb2_grpc import ScoreServiceStub
from .connection import (
    DEADLINE_SECONDS,
    FAILED,
    OK,
    CommandError,
    add_options,
    command_error,
    guarded,
    open_channel,
    read_connection_options,
)
from .plan import REPLY_BYTES_MAX, fold_names
from .terminal import table

#: Of the names in a row of the table; --json has all.
NODES_CHARACTERS = 60


def main(arguments: list[str]) -> int:
    """List or release. 1: no such reservation, or refused; 3: no aggregator answers."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.release and not options.owner:
        parser.error("--release needs the owner: --owner NAME, as shown by gangline reservations")
    return guarded("reservations", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    connection_options = read_connection_options(options)
    with open_channel(
        connection_options, [("grpc.max_receive_message_length", REPLY_BYTES_MAX)]
    ) as channel:
        reservations: Any = ReservationServiceStub(channel)  # type: ignore[no-untyped-call]
        scores: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            found = reservations.ListReservations(
                wire.ListReservationsRequest(), timeout=DEADLINE_SECONDS
            )
            if options.release:
                return _release(options, found.reservations, reservations)
            dictionary = scores.GetNodeDictionary(
                score_pb2.GetNodeDictionaryRequest(), timeout=DEADLINE_SECONDS
            )
        except grpc.RpcError as error:
            raise command_error(error, connection_options) from error
    if options.json:
        fields: dict[str, Any] = MessageToDict(found, preserving_proto_field_name=True)
        print(json_object(fields))
    else:
        print(reservations_text(found.reservations, dictionary.names, time.time()))
    return OK


def _release(options: argparse.Namespace, found: Sequence[wire.Reservation], stub: Any) -> int:
    number: str = options.release
    name = number if number.startswith("reservations/") else f"reservations/{number}"
    one = next((each for each in found if each.name == name), None)
    if one is None:
        raise CommandError(f"{name[:100]}: no such reservation; see gangline reservations", FAILED)
    stub.Release(
        wire.ReleaseReservationRequest(
            name=one.name, owner=options.owner, fencing_token=one.fencing_token
        ),
        timeout=DEADLINE_SECONDS,
    )
    print(f"{name} released: {len(one.node_index)} nodes are available to all plans")
    return OK


def reservations_text(
    found: Sequence[wire.Reservation], names: Sequence[str], now_seconds: float
) -> str:
    """Return reservations as a table."""
    if not found:
        return "no nodes are reserved"
    rows: list[tuple[str, ...]] = [("NAME", "OWNER", "WORKLOAD", "NODES", "ENDS IN", "")]
    for one in found:
        nodes = ", ".join(fold_names([names[at] for at in one.node_index if at < len(names)]))
        if len(nodes) > NODES_CHARACTERS:
            nodes = f"{nodes[:NODES_CHARACTERS]}..."
        left = max(one.expire_time.ToNanoseconds() / 1e9 - now_seconds, 0.0)
        rows.append(
            (one.name, one.owner, one.workload or "-", str(len(one.node_index)), f"{left:.0f} s", nodes)
        )  # fmt: skip
    return table(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline reservations",
        description="The nodes that schedulers have reserved: no other plan offers them until they are released or expire.",
        epilog="exit codes: 0 done, 1 refused, 2 wrong usage, 3 no aggregator answers",
    )
    add_options(parser)
    parser.add_argument(
        "--release", metavar="NAME", help="release this reservation, for example reservations/17"
    )
    parser.add_argument("--owner", help="with --release: its owner, as given to --reserve")
    return parser
