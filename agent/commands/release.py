"""`gangline release`: makes the agent close GPUs, so that a reset, MIG change or driver unload can proceed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...cli import FAILED, OK, USAGE, json_object
from ...contract.options import add_former_names, duration
from ...contract.wire import agent_pb2 as pb
from ..clock import SystemClock
from ..gpu_release import RELEASE_SECONDS_DEFAULT
from ..hardware.open_handles import OpenHandle, blocking, every_process, nodes_of, open_handles
from ..local.agent_call import add_socket_options, call_agent, release_file, sockets
from ..local.agent_service import RELEASE, STATUS, NotAGpu, addresses_of, canonical_name, known_gpus
from ..release_state import RELEASE_SECONDS_MAX, ReleasedGpu
from ..transport.unary_call import CallFailed, NoListener

ANSWER_SECONDS_MAX = 10.0
#: DCGM's host engine holds every GPU open. The kernel cuts a process's name to 15 characters.
ENGINE = "nv-hostengine"
ENGINE_HINT = (
    "DCGM's host engine: `systemctl stop nvidia-dcgm` releases it, and dcgm-exporter with it"
)
PROC, DEV = Path("/proc"), Path("/dev")

#: An open device node, and its GPU's PCI address; "": a node of the driver.
Blocker = tuple[OpenHandle, str]


def main(arguments: list[str]) -> int:
    """Return 0: the agent holds no requested GPU; 1: it still does, or refused; 2: wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        if options.status:
            return _status(options)
        names = [canonical_name(name) for name in options.gpus]
        return _release(options, names)
    except NotAGpu as error:
        print(f"gangline release: {error}", file=sys.stderr)
        return USAGE
    except CallFailed as error:
        print(f"gangline release: {error}", file=sys.stderr)
        return USAGE if error.status == "INVALID_ARGUMENT" else FAILED


def _release(options: argparse.Namespace, names: list[str]) -> int:
    answer: pb.ReleaseResponse | None = None
    try:
        answer = _request_release(options, names)
    except NoListener as error:
        if not options.json:
            print(f"the agent has no GPU open: {error}")
    holders = answer.holders if answer else ()
    blockers, uninspected = _others(names, {holder.process_id for holder in holders})
    if options.json:
        print(json_object(_release_document(answer, blockers, uninspected)))
        return FAILED if holders else OK
    for holder in holders:
        print(f"still held: {_holder_text(holder)}", file=sys.stderr)
    if answer and not holders:
        for gpu in answer.released:
            print(f"released: {_released_text(gpu)}")
    for line in _lines_by_process(blockers):
        print(f"also held: {line}", file=sys.stderr)
    if uninspected:
        print(
            f"processes of other users that could not be inspected: {uninspected}", file=sys.stderr
        )
    return FAILED if holders else OK


def _release_document(
    answer: pb.ReleaseResponse | None, blockers: Iterable[Blocker], uninspected: int
) -> dict[str, Any]:
    """Return the object for `--json`. *answer*: None without an agent."""
    holders = answer.holders if answer else ()
    return {
        "agent_runs": answer is not None,
        "released": _released(answer.released) if answer and not holders else [],
        "held_by_agent": [
            {"gpu": holder.pci_address, "pid": holder.process_id, "message": holder.message}
            for holder in holders
        ],
        "held_by_others": [
            {"pid": pid, "name": name, "open": open_nodes}
            for (pid, name), open_nodes in _nodes_by_process(blockers).items()
        ],
        "processes_not_inspected": uninspected,
    }


def _released(gpus: Iterable[pb.ReleasedGpu]) -> list[dict[str, Any]]:
    return [
        {
            "gpu": gpu.pci_address,
            "seconds_left": round(gpu.seconds_left, 1),
            "reason": gpu.why,
        }
        for gpu in gpus
    ]


def _request_release(options: argparse.Namespace, names: list[str]) -> pb.ReleaseResponse:
    """Send the request; without an agent write the release file and retry. Raises NoListener.

    So an agent that is starting either finds the file, or its socket answers the second request.
    """
    request = pb.ReleaseRequest(gpus=names, seconds=options.seconds, why=options.why)
    call_arguments = (
        sockets(options.socket),
        RELEASE,
        request,
        pb.ReleaseResponse,
        ANSWER_SECONDS_MAX,
    )
    try:
        return call_agent(*call_arguments)
    except NoListener:
        if not _write_release_file(options, names):
            raise
        return call_agent(*call_arguments)


def _write_release_file(options: argparse.Namespace, names: list[str]) -> bool:
    if (file := release_file(options.socket)) is None:
        return False
    addresses = sorted(addresses_of(names, known_gpus(PROC))) if names else [None]
    now_ns = SystemClock().boottime_ns()
    until_ns, why = now_ns + int(options.seconds * 1e9), options.why or "asked while no agent ran"
    before = [release for release in file.read(now_ns) if release.address not in addresses]
    file.write([*before, *(ReleasedGpu(address, until_ns, why) for address in addresses)])
    return True


def remove_from_release_file(options: argparse.Namespace, names: list[str]) -> None:
    """Remove these GPUs (none: all) from the release file, which no agent has read yet."""
    if (file := release_file(options.socket)) is not None:
        resumed = addresses_of(names, known_gpus(PROC)) if names else None
        stored = file.read(SystemClock().boottime_ns())
        file.write(
            [
                release
                for release in stored
                if resumed is not None and release.address not in resumed
            ]
        )


def _status(options: argparse.Namespace) -> int:
    request = pb.GetStatusRequest()
    try:
        answer = call_agent(
            sockets(options.socket), STATUS, request, pb.GetStatusResponse, ANSWER_SECONDS_MAX
        )
    except NoListener as error:
        print(json_object({"agent_runs": False}) if options.json else f"no agent: {error}")
        return OK
    print(
        json_object(_status_document(answer)) if options.json else "\n".join(status_lines(answer))
    )
    return OK


def _status_document(answer: pb.GetStatusResponse) -> dict[str, Any]:
    devices = [
        {
            "device": device.device,
            "lane": device.lane,
            "state": device.state,
            "call": device.call,
            "hung_seconds": round(device.hung_seconds, 1),
            "abandoned": device.abandoned_count,
            "next_try_seconds": round(device.next_try_seconds, 1),
        }
        for device in answer.devices
    ]
    return {
        "agent_runs": True,
        "agent_version": answer.version,
        "pid": answer.process_id,
        "released": _released(answer.released),
        "devices": devices,
        "driver_updating": answer.driver_updating,
        "driver_message": answer.driver_message,
        "abandoned": answer.abandoned_count,
    }


def status_lines(answer: pb.GetStatusResponse) -> Iterator[str]:
    """Yield the lines of `gangline release --status`."""
    yield f"agent {answer.version}, process {answer.process_id}"
    if answer.driver_updating:
        yield f"driver: {answer.driver_message}"
    for gpu in answer.released:
        yield f"released: {_released_text(gpu)}"
    for device in answer.devices:
        yield f"{device.state.replace('_', ' ')}: {_device_text(device)}"
    if answer.abandoned_count:
        yield f"samplers abandoned in a driver since the start: {answer.abandoned_count}"
    if not answer.released and not answer.devices:
        yield "nothing is released, every device responds"


def _released_text(gpu: pb.ReleasedGpu) -> str:
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + gpu.seconds_left))
    name = "all GPUs" if gpu.pci_address == "all" else gpu.pci_address
    why = f" ({gpu.why})" if gpu.why else ""
    return f"{name} until {until}{why}"


def _device_text(device: pb.DeviceTrouble) -> str:
    message = device.device or f"the driver of the {device.lane} lane"
    if device.state in ("hung", "abandoned"):
        message += f", {device.call} has not returned for {device.hung_seconds:.0f} s"
    if device.next_try_seconds > 0:
        message += f", retried in {device.next_try_seconds:.0f} s"
    return message


def _holder_text(holder: pb.Holder) -> str:
    who = f"process {holder.process_id} of the agent" if holder.process_id else "the agent"
    detail = f": {holder.message}" if holder.message else ""
    return f"{holder.pci_address or 'the driver'} by {who}{detail}"


def _others(names: list[str], agent_processes: set[int]) -> tuple[list[Blocker], int]:
    """Return other processes that block a reset, and how many this user may not inspect."""
    try:
        devices = addresses_of(names, known_gpus(PROC)) if names else None
    except NotAGpu:
        return [], 0  # the agent sees other GPUs, so it runs in another container
    nodes = nodes_of(PROC)
    handles, unreadable = open_handles(PROC, DEV, every_process(PROC))
    others = [
        blocker
        for blocker in blocking(handles, nodes, devices)
        if blocker[0].process_id not in agent_processes
    ]
    return others, unreadable if os.geteuid() != 0 else 0


def _nodes_by_process(blockers: Iterable[Blocker]) -> dict[tuple[int, str], list[str]]:
    """Return the GPUs and device nodes that each process, by pid and name, has open."""
    by_process: dict[tuple[int, str], dict[str, None]] = {}
    for holder, address in blockers:
        open_nodes = by_process.setdefault(holder[:2], {})
        open_nodes[address or f"/dev/{holder.node}"] = None
    return {process: list(open_nodes) for process, open_nodes in by_process.items()}


def _lines_by_process(blockers: Iterable[Blocker]) -> Iterator[str]:
    """Yield a line per process, with its open device nodes."""
    for (process_id, name), open_nodes in _nodes_by_process(blockers).items():
        hint = f"; {ENGINE_HINT}" if name == ENGINE else ""
        yield f"by process {process_id} ({name}): {', '.join(open_nodes)}{hint}"


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
        type=duration(0.1, RELEASE_SECONDS_MAX),
        default=RELEASE_SECONDS_DEFAULT,
        metavar="10m",
        help=f"the agent reopens them after this time (default {RELEASE_SECONDS_DEFAULT / 60:g}m, at most "
        f"{RELEASE_SECONDS_MAX / 3600:g}h)",
    )
    reason = parser.add_argument(
        "--reason", dest="why", default="", metavar="TEXT", help="shown in the status"
    )
    add_former_names(parser, reason, "--why")
    parser.add_argument(
        "--status", action="store_true", help="only show which GPUs are released, hung or skipped"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_socket_options(parser)
    return parser
