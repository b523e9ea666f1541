"""How the client commands reach an aggregator, and what they say when none answers."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable, Iterable
from math import nan
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from ... import cli
from ...fingerprints.wire import score_pb2
from ...fingerprints.wire.score_pb2_grpc import ScoreServiceStub
from .way import ADDRESS_DEFAULT, ADDRESS_VARIABLE, CommandError, Way, add_way, dialled, way_of

__all__ = ["ADDRESS_DEFAULT", "ADDRESS_VARIABLE", "CommandError", "Way", "way_of"]

#: Exit codes of the client commands.
OK, FAILED, NO_ANSWER, NOT_FOUND = cli.OK, cli.FAILED, cli.NO_ANSWER, cli.NOT_FOUND

#: Longer than this nobody waits at a prompt.
DEADLINE_SECONDS = 5.0
#: What answers nothing to a connect for so long is not there.
PROBE_SECONDS = 1.0
PAGE_SIZE = 1000
#: A page of 1,000 nodes in full view, with room.
REPLY_BYTES_MAX = 64 << 20

#: Statuses that gRPC makes up when nothing that it understands came back.
SILENCE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
#: How one asks an aggregator elsewhere.
ANOTHER = f"name another with --aggregator ADDRESS:PORT or {ADDRESS_VARIABLE}"

#: Horizons that a score may be asked for.
HOURS_MIN, HOURS_MAX = 0.1, 168.0

T = TypeVar("T")


class Client:
    """Score calls over one channel, each with a deadline. Raises CommandError with words."""

    def __init__(self, where: str | Way, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        """*where*: an address for plain text without a login, or the way there as `way_of` returns it."""
        self.way = Way(where) if isinstance(where, str) else where
        self._deadline_seconds = deadline_seconds
        options = [("grpc.max_receive_message_length", REPLY_BYTES_MAX), ("grpc.enable_retries", 0)]
        self._channel = dialled(self.way, options)
        self._stub: Any = ScoreServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def hosts(self, hours: float | None = None, *, full: bool = False) -> Listing:
        """Return every host, worst first. *hours*: that scores are of; None as the aggregator takes them."""
        view = score_pb2.FULL if full else score_pb2.BASIC
        scores: list[score_pb2.NodeScore] = []
        token = ""
        while True:
            request = score_pb2.ListNodeScoresRequest(
                page_size=PAGE_SIZE, page_token=token, view=view, horizon=_horizon(hours)
            )
            reply = self._call(self._stub.ListNodeScores, request)
            scores += reply.node_scores
            token = reply.next_page_token
            if not token:
                return Listing(scores, reply.version, reply.degraded_reason, reply.alarms)

    def host(self, name: str, hours: float | None = None) -> score_pb2.NodeScore:
        """Return one host in full. Raises CommandError(NOT_FOUND)."""
        request = score_pb2.GetNodeScoreRequest(
            name=f"nodes/{name}", view=score_pb2.FULL, horizon=_horizon(hours)
        )
        score: score_pb2.NodeScore = self._call(self._stub.GetNodeScore, request)
        return score

    def names(self) -> list[str]:
        """Return the names of all hosts."""
        reply = self._call(self._stub.GetNodeDictionary, score_pb2.GetNodeDictionaryRequest())
        return list(reply.names)

    def _call(self, method: Callable[..., T], request: object) -> T:
        try:
            return method(request, timeout=self._deadline_seconds)
        except grpc.RpcError as error:
            raise translated(error, self.way) from error


class Listing:
    """All hosts of one snapshot."""

    def __init__(
        self,
        scores: Iterable[score_pb2.NodeScore],
        version: int,
        degraded_reason: str,
        alarms: Iterable[str] = (),
    ) -> None:
        """*alarms*: what stands against the aggregator itself, in words."""
        self.scores = list(scores)
        self.version = version
        self.degraded_reason = degraded_reason
        self.alarms = list(alarms)


def translated(error: Any, way: Way, another: str = ANOTHER) -> CommandError:
    """Return what to tell a person about a failed call; *another*: how he asks an aggregator elsewhere."""
    address, code, details = way.aggregator, error.code(), error.details() or ""
    if code is grpc.StatusCode.NOT_FOUND:
        return CommandError(details, NOT_FOUND)
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith("no snapshot yet"):
        return CommandError(f"the aggregator at {address} has just started: {details}", NO_ANSWER)
    if code in SILENCE and accepts(address) and (words := way.diagnosis(PROBE_SECONDS)):
        return CommandError(f"the aggregator at {address}: {words}", FAILED)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return CommandError(f"the aggregator at {address} does not know you: {details}", FAILED)
    if code in SILENCE and accepts(address):
        return CommandError(
            f"something listens at {address}, but it does not answer as an aggregator does: "
            f"another program, or an aggregator that hangs; {another}",
            NO_ANSWER,
        )
    if code in SILENCE and not _is_known(way.host):
        return CommandError(
            f"{way.host!r} is no name that this machine has an address for: mistyped? {another}",
            NO_ANSWER,
        )
    if code in SILENCE:
        return CommandError(
            f"no aggregator answers at {address}; start one with: gangline aggregator, or {another}",
            NO_ANSWER,
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CommandError(
            f"what listens at {address} speaks gRPC, but is no aggregator of this version; {another}",
            NO_ANSWER,
        )
    return CommandError(f"the aggregator at {address} answered {code.name}: {details}", FAILED)


def _horizon(hours: float | None) -> Duration | None:
    if hours is None:
        return None
    horizon = Duration()
    horizon.FromNanoseconds(round(hours * 3600e9))
    return horizon


def _is_known(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):
        return False


def accepts(address: str) -> bool:
    """Say whether anybody accepts a TCP connection at *address*, as `parsed` returns it."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what all client commands take."""
    add_way(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")


def add_hours(parser: argparse.ArgumentParser) -> None:
    """Add the horizon of a score."""
    parser.add_argument(
        "--hours",
        type=_hours,
        metavar="H",
        help="the score is the chance of so many hours without a fault of the host: 0.1 to 168 (8)",
    )


def _hours(text: str) -> float:
    """Return the hours of *text*. Raises argparse.ArgumentTypeError with words."""
    try:
        hours = float(text)
    except ValueError:
        hours = nan
    if not HOURS_MIN <= hours <= HOURS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text[:32]!r}, expected hours from {HOURS_MIN:g} to {HOURS_MAX:g}, as 24"
        )
    return hours


def guarded(name: str, run: Callable[[], int]) -> int:
    """Run a command's body; a CommandError becomes words on stderr and its exit code."""
    try:
        return run()
    except CommandError as error:
        print(f"gangline {name}: {error}", file=sys.stderr)
        return error.code
