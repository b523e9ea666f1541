"""`gangline reservations`: lists and releases reserved nodes. `gangline plan --reserve` creates reservations."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from ...contract.client import command_line, connection
from ...contract.client.plan_text import fold_names, message_json, node_dictionary
from ...contract.client.terminal import table
from ...contract.text import counted
from ...contract.wire import reservation_pb2 as wire
from ...contract.wire.reservation_pb2_grpc import ReservationServiceStub

#: Maximum length of the names in a row; --json has all.
NODES_CHARACTERS = 60


def main(arguments: list[str]) -> int:
    """List or release reservations. Exit codes: 1 unknown, or refused; 3 no aggregator answers."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.release and not options.owner:
        parser.error("--release needs the owner: --owner NAME, as shown by gangline reservations")
    return connection.guarded("reservations", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with connection.connected(connection.read_connection_options(options)) as channel:
        reservations: Any = ReservationServiceStub(channel)  # type: ignore[no-untyped-call]
        response = reservations.ListReservations(
            wire.ListReservationsRequest(), timeout=connection.DEADLINE_SECONDS
        )
        if options.release:
            return _release(options, response.reservations, reservations)
        dictionary = node_dictionary(channel, connection.DEADLINE_SECONDS)
    if options.json:
        print(message_json(response))
    else:
        print(reservations_text(response.reservations, dictionary.names, time.time()))
    return connection.OK


def _release(
    options: argparse.Namespace, reservations: Sequence[wire.Reservation], stub: Any
) -> int:
    number: str = options.release
    name = number if number.startswith("reservations/") else f"reservations/{number}"
    reservation = next((entry for entry in reservations if entry.name == name), None)
    if reservation is None:
        raise connection.CommandError(
            f"{name[:100]}: no such reservation; see gangline reservations", connection.FAILED
        )
    request = wire.ReleaseReservationRequest(
        name=reservation.name, owner=options.owner, fencing_token=reservation.fencing_token
    )
    stub.Release(request, timeout=connection.DEADLINE_SECONDS)
    print(f"{name} released: {counted(len(reservation.node_index), 'node')} available to all plans")
    return connection.OK


def reservations_text(
    found: Sequence[wire.Reservation], names: Sequence[str], now_seconds: float
) -> str:
    if not found:
        return "no nodes are reserved"
    rows: list[tuple[str, ...]] = [("NAME", "OWNER", "WORKLOAD", "NODES", "ENDS IN", "")]
    for reservation in found:
        nodes = ", ".join(fold_names([names[i] for i in reservation.node_index if i < len(names)]))
        if len(nodes) > NODES_CHARACTERS:
            nodes = f"{nodes[:NODES_CHARACTERS]}..."
        left = max(reservation.expire_time.ToNanoseconds() / 1e9 - now_seconds, 0.0)
        rows.append(
            (reservation.name, reservation.owner, reservation.workload or "-", str(len(reservation.node_index)), f"{left:.0f} s", nodes)
        )  # fmt: skip
    return table(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline reservations",
        description="The nodes that schedulers have reserved: no other plan offers them until they are released or expire.",
        epilog="exit codes: 0 done, 1 refused, 2 wrong usage, 3 no aggregator answers",
    )
    command_line.add_options(parser)
    parser.add_argument(
        "--release", metavar="NAME", help="release this reservation, for example reservations/17"
    )
    parser.add_argument("--owner", help="with --release: its owner, as given to --reserve")
    return parser
