"""`gangline record HOST`: the last minutes of a host's GPUs at full rate, as Parquet or as a picture."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from ...cli import json_object
from ...contract.client.command_line import add_options
from ...contract.client.connection import (
    FAILED,
    OK,
    CommandError,
    ConnectionOptions,
    command_error,
    guarded,
    open_channel,
    read_connection_options,
)
from ...contract.client.terminal import printable, table
from ...contract.options import whole_duration
from ...contract.recording import SECONDS_MAX, GpuRecording, RecordingError, decode_recording
from ...contract.wire import recording_pb2, telemetry_pb2
from ...contract.wire.recording_pb2_grpc import RecordingServiceStub
from .job_client import JobClient
from .job_story import seconds_of, verdict_text
from .time_pictures import Mark, recording_svg

#: The aggregator waits 30 s for the host.
ANSWER_SECONDS_MAX = 45.0
HOST_CHARACTERS_MAX = 253
ENDINGS = (".parquet", ".svg")
#: Statuses with which the aggregator reports a problem of the host.
_OF_THE_HOST = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.FAILED_PRECONDITION,
)
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}", re.ASCII)


def main(arguments: list[str]) -> int:
    """Fetch a recording, or list them. Exit codes: 3 no aggregator, 4 unknown host or recording."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list and (options.output or options.last or options.name):
        parser.error("--list excludes --last, --kept and --output")
    if not options.list and options.output is None:
        parser.error(
            "name a file with -o FILE.parquet, or use --list to show what the host has stored"
        )
    if options.last and options.name:
        parser.error("--last and --kept exclude each other")
    if options.json and not options.list:
        parser.error("--json needs --list")
    if options.output and options.output.suffix not in ENDINGS:
        parser.error(
            f"--output {options.output}: expected a file that ends in {' or '.join(ENDINGS)}"
        )
    return guarded("record", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    request = recording_pb2.RecordHostRequest(
        host=options.host,
        seconds=0 if options.list or options.name else options.last or SECONDS_MAX,
        name=options.name or "",
        list=options.list,
    )
    connection_options = read_connection_options(options)
    data, stored = fetch(connection_options, request)
    if options.list:
        if options.json:
            recordings = [
                {
                    "name": entry.name,
                    "wall_time_ns": entry.wall_time_ns,
                    "seconds": entry.seconds,
                    "gpus": entry.devices,
                    "bytes": entry.bytes,
                    "reason": entry.reason,
                }
                for entry in stored
            ]
            print(json_object({"recordings": recordings}))
        else:
            print(stored_text(options.host, stored))
        return OK
    try:
        recording = decode_recording(data)
    except RecordingError as error:
        raise CommandError(
            f"the data from {options.host} cannot be read: {error}", FAILED
        ) from error
    is_picture = options.output.suffix == ".svg"
    marks = find_marks(connection_options, options.host) if is_picture else []
    write_recording(recording, options.output, marks)
    print(
        f"wrote {options.output}: {len(recording.devices)} GPUs, {recording.seconds:.1f} s, "
        f"{recording.samples} samples each"
    )
    return OK


def fetch(
    connection_options: ConnectionOptions, request: recording_pb2.RecordHostRequest
) -> tuple[bytes, list[telemetry_pb2.StoredRecording]]:
    """Return the file, and the list of stored recordings. Raises CommandError."""
    data, stored, total = bytearray(), list[telemetry_pb2.StoredRecording](), 0
    with open_channel(connection_options) as channel:
        stub: Any = RecordingServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            for response in stub.RecordHost(request, timeout=ANSWER_SECONDS_MAX):
                data += response.data
                total = response.total_bytes
                stored += response.stored
        except grpc.RpcError as error:
            raise _explained(error, connection_options) from error
    if len(data) != total:
        raise CommandError(f"received only {len(data)} of {total} bytes", FAILED)
    return bytes(data), stored


def _explained(error: Any, connection_options: ConnectionOptions) -> CommandError:
    details = str(error.details() or "")
    if error.code() in _OF_THE_HOST and details.startswith("host "):
        return CommandError(printable(details.removeprefix("host ")), FAILED)
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return CommandError(printable(details), FAILED)
    return command_error(error, connection_options)


def stored_text(host: str, stored: list[telemetry_pb2.StoredRecording]) -> str:
    if not stored:
        return f"{host} has stored no recording: no finding began since its agent's flight recorder was enabled"
    rows = [("NAME", "BEGIN (UTC)", "SECONDS", "GPUS", "KB", "REASON")]
    for entry in stored:
        rows.append(
            (
                printable(entry.name),
                f"{datetime.fromtimestamp(entry.wall_time_ns / 1e9, UTC):%m-%d %H:%M:%S}",
                f"{entry.seconds:.0f}",
                str(entry.devices),
                str(-(-entry.bytes // 1000)),
                printable(entry.reason),
            )
        )
    return table(rows)


def find_marks(connection_options: ConnectionOptions, host: str) -> list[Mark]:
    """Return the starts of the verdicts on *host*; empty if the call fails."""
    try:
        with JobClient(connection_options) as client:
            verdicts = [job["verdict"] for job in client.jobs() if job["verdict"]]
    except CommandError:
        return []
    return [
        Mark(round(seconds_of(verdict["since"]) * 1e9), verdict_text(verdict))
        for verdict in verdicts
        if host in verdict["hosts"]
    ]


def write_recording(recording: GpuRecording, output: Path, marks: Sequence[Mark] = ()) -> None:
    """Write *recording* to *output* atomically; a picture gets *marks*. Raises CommandError."""
    partial = output.with_name(f".{output.name[:200]}.{os.getpid()}")
    try:
        if output.suffix == ".svg":
            partial.write_text(recording_svg(recording, marks), encoding="utf-8")
        else:
            _write_parquet(recording, partial)
        partial.replace(output)
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror or error}", FAILED) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _write_parquet(recording: GpuRecording, path: Path) -> None:
    """Write a row per sample and GPU. Raises OSError."""
    import numpy as np  # imported after the recording is received
    import pyarrow as pa
    import pyarrow.parquet

    offsets = np.frombuffer(recording.offsets_ns, np.int64)
    microseconds = (recording.wall_time_ns + offsets) // 1000
    count = len(recording.devices)
    devices = np.array(recording.devices, object)
    columns = {
        "time": pa.array(np.tile(microseconds, count), pa.timestamp("us")),
        "gpu": pa.array(np.repeat(devices, recording.samples), pa.string()),
    }
    cells = np.frombuffer(recording.values, np.float32).reshape(
        count, len(recording.signals), recording.samples
    )
    for index, name in enumerate(recording.signals):
        values = cells[:, index].ravel()
        if name == "state":
            columns[name] = pa.array(_state_names(recording, values), pa.string())
        else:
            columns[name] = pa.array(values, pa.float32(), mask=np.isnan(values))
    facts = {
        "host": recording.host,
        "boot_id": recording.boot_id,
        "reason": recording.reason,
        "simulated": str(recording.simulated).lower(),
    }
    metadata = {f"gangline.{name}": text for name, text in facts.items()}
    table = pa.table(columns).replace_schema_metadata(metadata)
    pyarrow.parquet.write_table(table, path, compression="zstd")


def _state_names(recording: GpuRecording, values: Any) -> list[str | None]:
    names = dict(enumerate(recording.states))
    return [None if math.isnan(value) else names.get(int(value)) for value in values]


def _host(text: str) -> str:
    name = text.removeprefix("nodes/")
    if not name or len(name) > HOST_CHARACTERS_MAX or not name.isprintable():
        raise argparse.ArgumentTypeError(
            f"{text[:32]!r}: expected a host's name of 1 to {HOST_CHARACTERS_MAX} characters"
        )
    return name


_last = whole_duration(1, SECONDS_MAX, note="; the host keeps no more")


def _recording_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text[:32]!r}: expected a name that --list shows, as 20260102T030405Z-0a1b2c3d"
        )
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline record",
        description="Fetches the last minutes of a host's GPUs at full rate, 10 samples a second, or a recording that the host "
        "stored around a finding. The aggregator does not store these. Needs the role operator or admin. See docs/recordings.md.",
        epilog="exit codes: 0 done, 1 the host or the file failed, 2 wrong usage, 3 no aggregator answers, "
        "4 no such host or recording",
    )
    add = parser.add_argument
    add("host", type=_host, metavar="HOST", help="a host's name, as `gangline hosts` shows it")
    add("--last", type=_last, metavar="5m", help="the last 90s or 5m (default and maximum: 5m)")
    add("-o", "--output", type=Path, metavar="FILE", help="FILE.parquet, or a picture: FILE.svg")
    add(
        "--list",
        action="store_true",
        help="show the recordings that the host stored around findings",
    )
    add(
        "--kept",
        dest="name",
        type=_recording_name,
        metavar="NAME",
        help="fetch one of these instead of the last minutes",
    )
    add_options(parser)
    return parser
