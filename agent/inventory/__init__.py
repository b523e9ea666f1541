"""Inventory of the host, read by a short-lived child that may import what the daemon must not.

This module is the daemon's side and stays small. The child is `python -m gangline.agent.inventory`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import IO

from ...contract.workers import module_command
from ..hardware.files import Roots

#: A child with more output is killed; a host of 8 GPUs and 100 functions has a tenth of it.
OUTPUT_BYTES_MAX = 4 << 20
#: Limits of the aggregator, which rejects a host that registers with more or longer ones.
DEVICES_MAX = 4096
ATTRIBUTES_MAX = 64
NAME_CHARACTERS_MAX = 128
VALUE_CHARACTERS_MAX = 1024
#: Bytes kept from the end of the child's standard error.
STDERR_BYTES_MAX = 2048
#: PCI addresses of GPUs to leave alone; None: all GPUs and their driver.
ExcludedGpus = frozenset[str] | None
#: A killed child that does not exit within this time is blocked in a driver, and is abandoned.
EXIT_SECONDS_MAX = 1.0

#: Children that did not exit. While one exists no other is started: it would block too.
_abandoned: list[subprocess.Popen[bytes]] = []
#: The running child, and the GPUs that it leaves alone.
_running: tuple[subprocess.Popen[bytes], ExcludedGpus] | None = None


@dataclass(frozen=True, slots=True)
class HostDevice:
    """A part of the host. If it has readings, `kind` and `key` are theirs."""

    kind: str
    key: str
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Inventory:
    """The parts of the host; `reason`: why parts are missing, empty if complete."""

    devices: tuple[HostDevice, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    reason: str = ""
    #: GPUs that were left alone.
    left_out: ExcludedGpus = frozenset()


def is_within(required: ExcludedGpus, left_out: ExcludedGpus) -> bool:
    """Return whether a child that leaves *left_out* alone touches none of *required*."""
    return left_out is None or (required is not None and required <= left_out)


def interrupt(avoided: ExcludedGpus) -> None:
    """Kill the running child unless it leaves these GPUs alone. For any thread; returns at once."""
    if (running := _running) is not None and not is_within(avoided, running[1]):
        running[0].kill()


def read(
    roots: Roots, seconds_max: float = 20.0, avoided: Callable[[], ExcludedGpus] = frozenset
) -> Inventory:
    """Run the child and return its inventory.

    Never raises; returns within *seconds_max* plus a second.

    Sections printed before a driver blocked the child are kept. *avoided* returns the GPUs to leave
    alone now. If another GPU must be left alone meanwhile, `interrupt` kills the child, and
    `reason` reports it.
    """
    _abandoned[:] = [child for child in _abandoned if child.poll() is None]
    if _abandoned:
        return Inventory(
            reason=f"the last inventory (process {_abandoned[0].pid}) has not ended yet"
        )
    command = module_command(__name__, "--sys", str(roots.sys), "--proc", str(roots.proc))
    command += ["--seconds", str(seconds_max / 2), "--until-stdin-ends"]
    if roots.nvml_library:
        command += ["--nvml", roots.nvml_library]
    left_out = avoided()
    command += ["--leave-out", "all" if left_out is None else ",".join(sorted(left_out))]
    try:
        output, reason = run_child(command, seconds_max, left_out, avoided)
    except OSError as error:
        return Inventory(reason=f"the inventory could not be started: {error}")
    if not is_within(avoided(), left_out):
        reason = "stopped, because GPUs are released or skipped"
    return replace(parse(output, reason), left_out=left_out)


def run_child(
    command: list[str],
    seconds_max: float,
    left_out: ExcludedGpus = None,
    avoided: Callable[[], ExcludedGpus] = frozenset,
) -> tuple[bytes, str]:
    """Return the line that the command printed, and why it is incomplete.

    Raises OSError at the start.

    A child that is late or prints too much is killed; if it does not exit, it is abandoned. Its
    standard input is a pipe that closes when this process exits.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )
    global _running
    _running = child, left_out
    interrupt(avoided())  # for GPUs that became avoided before `_running` was set
    assert child.stdin and child.stdout and child.stderr
    with child.stdin, child.stdout, child.stderr:
        output, error_output, reason = _read_output(child.stdout, child.stderr, seconds_max)
    _end(child)
    _running = None
    if not reason and not output.endswith(b"\n"):
        last_line = error_output.decode(errors="replace").strip().rpartition("\n")[2]
        reason = f"the inventory ended without an answer: {last_line or 'no output'}"
    return output, reason


def _read_output(
    stdout: IO[bytes], stderr: IO[bytes], seconds_max: float
) -> tuple[bytes, bytes, str]:
    """Return the data of both pipes up to the answer's line, and why that is incomplete."""
    output, error_output = b"", b""
    deadline = time.monotonic() + seconds_max
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(stderr, selectors.EVENT_READ)
        while stdout in selector.get_map() and not output.endswith(b"\n"):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return output, error_output, f"the inventory took longer than {seconds_max:g} s"
            for key, _ in ready:
                part = os.read(key.fd, 65536)
                if not part:
                    selector.unregister(key.fileobj)
                elif key.fileobj is stdout:
                    output += part
                else:
                    error_output = (error_output + part)[-STDERR_BYTES_MAX:]
            if len(output) > OUTPUT_BYTES_MAX:
                return (
                    b"",
                    error_output,
                    f"the inventory printed more than {OUTPUT_BYTES_MAX} bytes",
                )
    return output, error_output, ""


def _end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(EXIT_SECONDS_MAX / 2)
        return
    child.kill()
    try:
        child.wait(EXIT_SECONDS_MAX / 2)
    except subprocess.TimeoutExpired:
        _abandoned.append(child)


def parse(output: bytes, reason: str = "") -> Inventory:
    """Return the inventory in the child's line, with a `reason` if it is invalid. Never raises."""
    try:
        document = json.loads(output)
        devices = tuple(
            HostDevice(str(d["kind"]), str(d["key"]), _texts(d.get("attributes", {})))
            for d in document["devices"][:DEVICES_MAX]
        )
        labels = _texts(document["labels"])
        problems = [reason, *(str(problem) for problem in document.get("problems", ()))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Inventory(reason=reason or f"the inventory's output is invalid: {error!r:.120}")
    return Inventory(devices, labels, "; ".join(filter(None, problems)))


def _texts(pairs: Mapping[str, object]) -> dict[str, str]:
    """Return the pairs cut to the aggregator's limits: a long one would exclude the host."""
    return {
        str(name)[:NAME_CHARACTERS_MAX]: str(value)[:VALUE_CHARACTERS_MAX]
        for name, value in list(pairs.items())[:ATTRIBUTES_MAX]
    }
