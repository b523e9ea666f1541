"""`gangline release`: have the agent let go of GPUs, so that a reset, a MIG change or a driver's unload can go on."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...cli import FAILED, OK, USAGE
from ...contract.wire import agent_pb2 as pb
from ..clock import SystemClock
from ..gpu_release import SECONDS_DEFAULT, SECONDS_MAX, Released
from ..hardware.nvidia import Holder, blocking, every_process, holders, nodes_of
from ..local.agent_service import (
    RELEASE,
    STATUS,
    NotAGpu,
    add_place_options,
    addresses_of,
    ask,
    canonical,
    known_gpus,
    release_file,
    sockets,
)
from ..transport.grpc_http2 import CallFailed, NobodyThere

ANSWER_SECONDS_MAX = 10.0
PROC, DEV = Path("/proc"), Path("/dev")
_DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh]?)")
_UNIT_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def main(arguments: list[str]) -> int:
    """0: the agent holds nothing of it; 1: it still does, or refused; 2: wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        if options.status:
            return _status(options)
        names = [canonical(name) for name in options.gpus]
        return _release(options, names)
    except NotAGpu as error:
        print(f"gangline release: {error}", file=sys.stderr)
        return USAGE
    except CallFailed as error:
        print(f"gangline release: {error}", file=sys.stderr)
        return USAGE if error.status == "INVALID_ARGUMENT" else FAILED


def _release(options: argparse.Namespace, names: list[str]) -> int:
    try:
        answer = _asked(options, names)
    except NobodyThere as error:
        print(f"the agent holds nothing: {error}")
        _print_others(names, ours=set())
        return OK
    for each in answer.holders:
        print(f"still held: {_who_of_us(each)}", file=sys.stderr)
    if not answer.holders:
        for gpu in answer.released:
            print(f"released: {_released(gpu)}")
    _print_others(names, ours={each.process_id for each in answer.holders})
    return FAILED if answer.holders else OK


def _asked(options: argparse.Namespace, names: list[str]) -> pb.ReleaseResponse:
    """Ask the agent; where none answers, note it for one that is about to, and ask once more. Raises NobodyThere.

    Either the note is there when that one looks for it, or its socket is there when it is asked again.
    """
    request = pb.ReleaseRequest(gpus=names, seconds=options.seconds, why=options.why)
    given = (sockets(options.socket), RELEASE, request, pb.ReleaseResponse, ANSWER_SECONDS_MAX)
    try:
        return ask(*given)
    except NobodyThere:
        if not _note(options, names):
            raise
        return ask(*given)


def _note(options: argparse.Namespace, names: list[str]) -> bool:
    if (file := release_file(options.socket)) is None:
        return False
    addresses = sorted(addresses_of(names, known_gpus(PROC))) if names else [None]
    now_ns = SystemClock().boottime_ns()
    until_ns, why = now_ns + int(options.seconds * 1e9), options.why or "asked while no agent ran"
    before = [each for each in file.read(now_ns) if each.address not in addresses]
    file.write([*before, *(Released(address, until_ns, why) for address in addresses)])
    return True


def forget(options: argparse.Namespace, names: list[str]) -> None:
    """Strike these GPUs (none named: all) from the note, of which no agent knows yet."""
    if (file := release_file(options.socket)) is not None:
        gone = addresses_of(names, known_gpus(PROC)) if names else None
        noted = file.read(SystemClock().boottime_ns())
        file.write([each for each in noted if gone is not None and each.address not in gone])


def _status(options: argparse.Namespace) -> int:
    request = pb.GetStatusRequest()
    try:
        answer = ask(
            sockets(options.socket), STATUS, request, pb.GetStatusResponse, ANSWER_SECONDS_MAX
        )
    except NobodyThere as error:
        print(f"no agent: {error}")
        return OK
    print("\n".join(status_lines(answer)))
    return OK


def status_lines(answer: pb.GetStatusResponse) -> Iterator[str]:
    """Yield what `gangline release --status` shows."""
    yield f"agent {answer.version}, process {answer.process_id}"
    if answer.driver_updating:
        yield f"driver: {answer.driver_words}"
    for gpu in answer.released:
        yield f"released: {_released(gpu)}"
    for device in answer.devices:
        yield f"{device.state.replace('_', ' ')}: {_trouble(device)}"
    if answer.abandoned_count:
        yield f"samplers left behind in a driver since the start: {answer.abandoned_count}"
    if not answer.released and not answer.devices:
        yield "nothing is released, every device answers"


def _released(gpu: pb.ReleasedGpu) -> str:
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + gpu.seconds_left))
    name = "all GPUs" if gpu.pci_address == "all" else gpu.pci_address
    why = f" ({gpu.why})" if gpu.why else ""
    return f"{name} until {until}{why}"


def _trouble(device: pb.DeviceTrouble) -> str:
    words = device.device or f"the driver of the {device.lane} lane"
    if device.state in ("hung", "abandoned"):
        words += f", {device.call} has not returned for {device.hung_seconds:.0f} s"
    if device.next_try_seconds > 0:
        words += f", tried again in {device.next_try_seconds:.0f} s"
    return words


def _who_of_us(holder: pb.Holder) -> str:
    who = f"process {holder.process_id} of the agent" if holder.process_id else "the agent"
    words = f": {holder.words}" if holder.words else ""
    return f"{holder.pci_address or 'the driver'} by {who}{words}"


def _print_others(names: list[str], ours: set[int]) -> None:
    """Name who else is in the way of a reset, as far as we may see."""
    try:
        devices = addresses_of(names, known_gpus(PROC)) if names else None
    except NotAGpu:
        return  # the agent sees other GPUs than we do: it runs elsewhere
    nodes = nodes_of(PROC)
    found, unseen = holders(PROC, DEV, every_process(PROC))
    others = [each for each in blocking(found, nodes, devices) if each[0].process_id not in ours]
    for line in _grouped(others):
        print(f"also held: {line}", file=sys.stderr)
    if unseen and os.geteuid() != 0:
        print(f"{unseen} processes of other users could not be looked at", file=sys.stderr)


def _grouped(found: Iterable[tuple[Holder, str]]) -> Iterator[str]:
    """Yield a line a process, with all that it has open."""
    by_process: dict[tuple[int, str], list[str]] = {}
    for holder, address in found:
        by_process.setdefault(holder[:2], []).append(address or f"/dev/{holder.node}")
    for (process_id, name), what in by_process.items():
        yield f"by process {process_id} ({name}): {', '.join(dict.fromkeys(what))}"


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]] if match else 0.0
    if not 0 < seconds <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a time of at most {SECONDS_MAX / 3600:g}h, as 90s, 10m or 2h"
        )
    return seconds


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline release",
        description="Makes the agent of this host close its GPUs, so that a reset, a MIG change or an unload of "
        "the driver can proceed. Returns when no process of the agent has one open; names every other "
        "process that has.",
        epilog="exit codes: 0 the agent has none of them open (or no agent runs), 1 it still has, or it "
        "refused, 2 wrong usage",
    )
    parser.add_argument(
        "gpus", nargs="*", metavar="GPU", help="UUID or PCI address (default: all GPUs)"
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        type=_seconds,
        default=SECONDS_DEFAULT,
        metavar="TIME",
        help=f"the agent reopens them after this time (default {SECONDS_DEFAULT / 60:g}m, at most "
        f"{SECONDS_MAX / 3600:g}h)",
    )
    parser.add_argument("--why", default="", metavar="WORDS", help="shown in the status")
    parser.add_argument(
        "--status",
        action="store_true",
        help="only show which GPUs are released, hung or left alone",
    )
    add_place_options(parser)
    return parser
