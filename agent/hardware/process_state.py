"""One process as /proc shows it: stat, status and cgroup, without files whose reading could block.

`stat`, `status` and `cgroup` do not take the lock of the process's memory, as `environ` and
`cmdline` do. `cgroup` takes the lock of all control groups, and blocks its reader while that is
stuck: so a sampler reads it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ...ext import place
from .files import READ, parse_unsigned
from .process_owner import CGROUP_BYTES_MAX, Owner, parse_cgroup
from .processes import PROC, parse_task

#: `status` is far smaller, even with thousands of groups.
STATUS_BYTES_MAX = 1 << 16
STAT_BYTES_MAX = 4096
#: `/proc/self/ns/pid` in the host's PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO).
HOST_PID_NAMESPACE = "pid:[4026531836]"
#: The name of /proc in a sampler's `exclude` (`agent/collector.py`).
DEVICE_NAME = PROC
_STATUS_UID = re.compile(rb"^Uid:\t([0-9]{1,10})\t", re.MULTILINE)
_NAMESPACE_PIDS = re.compile(rb"^NSpid:((?:\t[0-9]{1,10}){1,32})$", re.MULTILINE)
#: The owner of a process without a known owner.
UNKNOWN = Owner()
_THREADS = 17  # index after the name (field 20 of proc(5))


class ProcessState(Enum):
    """The state of a process at a read."""

    RUNNING = "running"
    ZOMBIE = "zombie"  # all threads have ended, but the parent has not waited for it
    GONE = "gone"  # no such process
    HIDDEN = "hidden"  # not visible in /proc
    CHANGED = "changed"  # the PID was reused during the read


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """A read of a process. Without a start nothing was visible."""

    state: ProcessState
    start_ticks: int = 0  # since boot; identity together with the PID
    name: str = ""
    user_id: int | None = None
    namespace_pid: int | None = None  # PID in its own PID namespace, if that is another
    owner: Owner = UNKNOWN


def parse_user_id(status: bytes) -> int | None:
    """Return the real user id in a `status` file, in this reader's user namespace."""
    match = _STATUS_UID.search(status)
    return parse_unsigned(match[1]) if match else None


def parse_namespace_pid(status: bytes) -> int | None:
    """Return the PID in the innermost PID namespace; None if that is this reader's, or unknown."""
    match = _NAMESPACE_PIDS.search(status)
    numbers = match[1].split() if match else []
    return parse_unsigned(numbers[-1]) if len(numbers) > 1 else None


def parse_ended(stat: bytes) -> bool:
    """Return whether the process of a `stat` file has ended with all its threads.

    The state is also zombie if only its first thread has ended; then it still runs.
    """
    tokens = stat.rpartition(b")")[2].split()
    return len(tokens) > _THREADS and tokens[0] in (b"Z", b"X") and tokens[_THREADS] in (b"0", b"1")


def read_process_state(proc: Path, pid: int) -> ProcessSnapshot:
    """Return only state and start, from one small file. Never raises."""
    try:
        stat = _read(f"{proc}/{pid}/stat", STAT_BYTES_MAX)
    except (FileNotFoundError, ProcessLookupError):
        return ProcessSnapshot(ProcessState.GONE)
    except OSError:
        return ProcessSnapshot(ProcessState.HIDDEN)
    task = parse_task(stat)
    if task is None or task.number != pid:
        return ProcessSnapshot(ProcessState.HIDDEN)
    return ProcessSnapshot(
        ProcessState.ZOMBIE if parse_ended(stat) else ProcessState.RUNNING,
        task.start_ticks,
        task.name,
    )


def read_process(proc: Path, pid: int) -> ProcessSnapshot:
    """Return a complete read of a process; CHANGED if its PID was reused. Never raises."""
    first = read_process_state(proc, pid)
    if not first.start_ticks:
        return first
    status = _read_or_nothing(f"{proc}/{pid}/status", STATUS_BYTES_MAX)
    cgroup = _read_or_nothing(f"{proc}/{pid}/cgroup", CGROUP_BYTES_MAX)
    last = read_process_state(proc, pid)
    if last.state is ProcessState.GONE:
        return last
    if last.start_ticks != first.start_ticks:
        return ProcessSnapshot(ProcessState.CHANGED)
    return ProcessSnapshot(
        last.state,
        last.start_ticks,
        last.name,
        parse_user_id(status),
        parse_namespace_pid(status),
        parse_cgroup(cgroup),
    )


def shows_all(proc: Path) -> bool:
    """Return whether /proc shows the processes of all users: PID 1 always exists."""
    return read_process_state(proc, 1).state in (ProcessState.RUNNING, ProcessState.ZOMBIE)


def in_host_pid_namespace(proc: Path) -> bool:
    """Return whether this reader is in the host's PID namespace.

    Return True if unknown (/proc is a folder). In another namespace a PID from a driver may be that
    of another process.
    """
    try:
        return os.readlink(proc / "self/ns/pid") == HOST_PID_NAMESPACE
    except OSError:
        return True


def _read_or_nothing(path: str, bytes_max: int) -> bytes:
    try:
        return _read(path, bytes_max)
    except OSError:
        return b""


def _read(path: str, bytes_max: int) -> bytes:
    """Return the first *bytes_max* bytes of a file. Raises OSError."""
    place.enter(DEVICE_NAME.encode(), f"read {path[-64:]}".encode())
    try:
        descriptor = os.open(path, READ)
        try:
            data = part = os.read(descriptor, bytes_max)
            while part and len(data) < bytes_max:
                part = os.read(descriptor, bytes_max - len(data))
                data += part
            return data
        finally:
            os.close(descriptor)
    finally:
        place.leave()
