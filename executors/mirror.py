"""`gangline mirror FILE`: writes the health of all nodes to a file for scheduler plugins.

The file is replaced atomically every few seconds and contains its own expiry: when this command,
the aggregator or the network is down, readers soon act as if there were no file.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import grpc

from ..contract.client import command_line, connection
from ..contract.client.score_client import score_port
from ..contract.options import duration
from ..contract.text import counted
from ..contract.wire import score_pb2
from . import mirror_file
from .mirror_file import MirrorFileError
from .mirror_format import (
    BUCKETS,
    NODES_MAX,
    VALID_SECONDS_MAX,
    Mirror,
    MirrorError,
    MirrorNode,
    SlurmNodes,
    parse_slurm_nodes,
    render,
    stale_reason,
)

SECONDS_DEFAULT, SECONDS_MIN, SECONDS_MAX = 3.0, 1.0, 10.0
#: Period and time limit of Slurm's node list, which takes Slurm 0.1 s at 10,000 nodes.
SLURM_SECONDS, SLURM_DEADLINE_SECONDS = 60.0, 20.0
SLURM_BYTES_MAX = 256 << 20
FEATURE_CHARACTERS_MAX = 64
#: Names by number; 0 is unset.
STATES = {number: name for name, number in score_pb2.HealthState.items() if number}
REASONS = {n: name.removeprefix("REASON_") for name, n in score_pb2.ReasonCode.items() if n}


def main(arguments: list[str]) -> int:
    """Write until ended, or once. Exit codes: 1 not written (--check: invalid); 3 no aggregator."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.feature and not options.slurm:
        parser.error("--feature needs --slurm, because Slurm knows which nodes have the feature")
    if options.check:
        return _check(options.file)
    return connection.guarded("mirror", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    connection_options = connection.read_connection_options(options)
    try:
        mirror_file.check_folder(options.file.parent)
        with mirror_file.sole_writer(options.file):
            source = MirrorSource(connection_options, options.slurm, options.feature or "")
            with source:
                return (
                    _write_once(options.file, source) if options.once else _follow(options, source)
                )
    except MirrorFileError as error:
        raise connection.CommandError(str(error), connection.FAILED) from error


def _write_once(path: Path, source: MirrorSource) -> int:
    mirror_file.write(path, source.content())
    return connection.OK


def _follow(options: argparse.Namespace, source: MirrorSource) -> int:
    """Write every few seconds until a signal; report the start and end of a failure once each."""
    ended, trouble = threading.Event(), ""
    _end_by_signal(ended)
    while not ended.is_set():
        try:
            mirror_file.write(options.file, source.content())
            if trouble:
                _report(f"{options.file} is written again")
            trouble = ""
        except (connection.CommandError, MirrorFileError) as error:
            if str(error) != trouble:
                _report(f"{error}; readers act without {options.file} until this is resolved")
            trouble = str(error)
        ended.wait(options.seconds)
    return connection.OK


def _end_by_signal(ended: threading.Event) -> None:
    import signal

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())


class MirrorSource:
    """Content of the file, from the aggregator and from Slurm."""

    def __init__(
        self,
        connection_options: connection.ConnectionOptions,
        with_slurm: bool,
        feature: str,
        clock: Callable[[], float] = time.time,
        slurm_text: Callable[..., str] | None = None,
    ) -> None:
        self._connection_options = connection_options
        self._with_slurm, self._feature, self._clock = with_slurm, feature, clock
        self._slurm_text = slurm_text or scontrol_text
        channel_options = [
            ("grpc.max_receive_message_length", connection.REPLY_BYTES_MAX),
            ("grpc.enable_retries", 0),
        ]
        self._channel = connection.open_channel(connection_options, channel_options)
        self._score_port = score_port(connection_options, self._channel, channel_options)
        self._names_of, self._names = 0, list[str]()
        self._slurm: SlurmNodes | None = None
        self._slurm_at = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._score_port.close()
        self._channel.close()

    def content(self) -> bytes:
        """Return the current file content. Raises CommandError."""
        slurm = self._slurm_nodes() if self._with_slurm else None
        try:
            reply = self._score_port.ask(self._scores)
        except grpc.RpcError as error:
            raise connection.command_error(error, self._connection_options) from error
        now = self._clock()
        valid_until = reply.valid_until.ToNanoseconds() / 1e9
        if valid_until <= now:
            raise connection.CommandError(
                f"the aggregator's scores expired {now - valid_until:.0f} s ago by this machine's clock: "
                "it has stopped judging, or one of the two clocks is wrong",
                connection.FAILED,
            )
        try:
            return render(
                nodes_of(reply, self._names),
                computed_seconds=int(now),
                # An aggregator's clock that is ahead must not extend the validity.
                valid_until_seconds=int(min(valid_until, now + VALID_SECONDS_MAX)),
                degraded=reply.degraded,
                slurm=slurm,
                feature=self._feature,
            )
        except MirrorError as error:
            raise connection.CommandError(str(error), connection.FAILED) from error

    def _scores(self, stub: Any) -> score_pb2.ScoreNodesResponse:
        """Return the current scores, and refresh the node names. Raises RpcError, CommandError."""
        reply: score_pb2.ScoreNodesResponse = stub.ScoreNodes(
            score_pb2.ScoreNodesRequest(), timeout=connection.DEADLINE_SECONDS
        )
        self._follow_dictionary(stub, reply)
        return reply

    def _follow_dictionary(self, stub: Any, reply: score_pb2.ScoreNodesResponse) -> None:
        """Fetch the dictionary unless it covers all nodes of *reply*. Raises CommandError."""
        highest = max(reply.node_index, default=-1)
        if reply.dictionary_version == self._names_of and highest < len(self._names):
            return
        dictionary = stub.GetNodeDictionary(
            score_pb2.GetNodeDictionaryRequest(), timeout=connection.DEADLINE_SECONDS
        )
        if dictionary.version != reply.dictionary_version or highest >= len(dictionary.names):
            raise connection.CommandError(
                "the aggregator restarted between two calls", connection.FAILED
            )
        self._names_of, self._names = dictionary.version, list(dictionary.names)

    def _slurm_nodes(self) -> SlurmNodes:
        """Return Slurm's nodes, at most SLURM_SECONDS old. Raises CommandError."""
        now = self._clock()
        if self._slurm is None or not 0 <= now - self._slurm_at < SLURM_SECONDS:
            try:
                self._slurm = parse_slurm_nodes(
                    self._slurm_text("-o", "show", "node"), self._slurm_text("show", "config")
                )
            except MirrorError as error:
                self._slurm = None
                raise connection.CommandError(str(error), connection.FAILED) from error
            self._slurm_at = now
        return self._slurm


def nodes_of(reply: score_pb2.ScoreNodesResponse, names: list[str]) -> list[MirrorNode]:
    """Return the nodes of *reply*. Raises CommandError for unequal columns or too many nodes."""
    count = len(reply.node_index)
    columns = (reply.score, reply.hazard_per_hour, reply.relative_speed, reply.state, reply.bucket, reply.reason)  # fmt: skip
    if {len(column) for column in columns} != {count} or 8 * len(reply.allowed_bitmap) < count:
        raise connection.CommandError(
            "the aggregator's answer has columns of several lengths", connection.FAILED
        )
    if count > NODES_MAX:
        raise connection.CommandError(
            f"the aggregator has {counted(count, 'node')}, expected at most {NODES_MAX}",
            connection.FAILED,
        )
    nodes = []
    for position, (index, score, hazard, speed, state, bucket, reason) in enumerate(
        zip(reply.node_index, *columns, strict=True)
    ):
        ready = bool(reply.allowed_bitmap[position >> 3] >> (position & 7) & 1)
        nodes.append(
            MirrorNode(
                name=names[index],
                bucket=min(bucket, BUCKETS - 1),
                ready=ready,
                score=score,
                hazard_per_hour=hazard,
                relative_speed=speed,
                state=STATES.get(state, "UNKNOWN"),
                reason=REASONS.get(reason, ""),
            )
        )
    return nodes


def scontrol_text(*arguments: str) -> str:
    """Return the output of scontrol. Raises MirrorError."""
    command = ["scontrol", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=SLURM_DEADLINE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise MirrorError(
            "scontrol is not on the PATH. Run this on a machine with Slurm"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MirrorError(f"{' '.join(command)}: {error}") from error
    if done.returncode or len(done.stdout) > SLURM_BYTES_MAX:
        stderr = done.stderr.decode(errors="replace").strip()[:300]
        raise MirrorError(f"{' '.join(command)}: exit code {done.returncode}: {stderr}")
    return done.stdout.decode(errors="replace")


def _check(path: Path) -> int:
    """Print whether a reader uses the file; return 1 if not."""
    try:
        mirror = mirror_file.read(path)
    except (MirrorFileError, MirrorError) as error:
        print(f"{path}: not used: {error}")
        return connection.FAILED
    if why := stale_reason(mirror, time.time()):
        print(f"{path}: not used: {why}")
        return connection.FAILED
    print("\n".join(_lines(mirror, time.time())))
    return connection.OK


def _lines(mirror: Mirror, now_seconds: float) -> list[str]:
    left, counts = mirror.valid_until_seconds - now_seconds, mirror.counts
    lines = [f"valid for {left:.0f} s, {counted(len(mirror.nodes), 'node')}"]
    if mirror.degraded:
        lines.append("the aggregator's data is degraded: nothing is excluded")
    for name, title in (
        *((f"b{bucket}", f"ready, bucket {bucket}") for bucket in range(BUCKETS)),
        ("out", "not ready"),
        (
            "exclude",
            f"may be excluded from jobs of at most {counted(mirror.exclude_safe_nodes, 'node')}",
        ),
        (
            "prefer",
            f"may be preferred by jobs of at most {counted(mirror.prefer_safe_nodes, 'node')}",
        ),
    ):
        if counts[name]:
            lines.append(f"{title}: {counts[name]}: {mirror.lists[name][:200]}")
    return lines


def _report(message: str) -> None:
    print(f"gangline mirror: {message}", file=sys.stderr, flush=True)


_seconds = duration(SECONDS_MIN, SECONDS_MAX)


def _feature(text: str) -> str:
    if (
        not text.replace("_", "").isalnum()
        or not text.isascii()
        or len(text) > FEATURE_CHARACTERS_MAX
    ):
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r}: expected letters, digits and '_', at most {FEATURE_CHARACTERS_MAX}"
        )
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline mirror",
        description="Writes the health of all nodes into a file for schedulers' plugins (docs/slurm_plugins.md), every few seconds. "
        "The file contains its expiry time: when this command stops, the file becomes invalid.",
        epilog="exit codes: 0 ended, or with --check valid; 1 not written, or not valid; 2 wrong usage; 3 no aggregator answers",
    )
    add = parser.add_argument
    add(
        "file",
        type=lambda text: Path(os.path.abspath(text)),
        metavar="FILE",
        help=(
            "file to write, in a folder that only its owner may write to, best on a tmpfs: "
            "/run/gangline-mirror/nodes"
        ),
    )
    add(
        "--seconds",
        type=_seconds,
        default=SECONDS_DEFAULT,
        metavar="SECONDS",
        help=f"seconds between two writes, {SECONDS_MIN:g} to {SECONDS_MAX:g} (default {SECONDS_DEFAULT:g})",
    )
    add("--once", action="store_true", help="write the file once and exit")
    add("--check", action="store_true", help="check FILE as a reader would")
    add(
        "--slurm",
        action="store_true",
        help=(
            "write only Slurm's nodes (from scontrol), and mark those that a job can exclude "
            "without being rejected"
        ),
    )
    add(
        "--feature",
        type=_feature,
        metavar="NAME",
        help=(
            "with --slurm: also write the size of the largest job that can prefer nodes with "
            "this feature"
        ),
    )
    command_line.add_connection_options(parser)
    return parser
