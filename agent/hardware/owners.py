"""One process as /proc shows it, without what could wait for it: `stat`, `status` and `cgroup`.

None of the three takes the lock of the process's memory, as `environ` and `cmdline` do. `cgroup` takes the lock of
all control groups: a host on which that one is stuck holds its reader too, so this is read in a sampler.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ...ext import place
from .cgroups import CGROUP_BYTES_MAX, Owner, parse_cgroup
from .files import READ, parse_unsigned
from .tasks import PROC, parse_task

#: `status` ends far below this, with thousands of groups.
STATUS_BYTES_MAX = 1 << 16
STAT_BYTES_MAX = 4096
#: What `/proc/self/ns/pid` shows in the host's own PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO).
HOST_PID_NAMESPACE = "pid:[4026531836]"
#: The name under which a sampler that may not look here is told so (`agent/turn.py`, Sparing).
PLACE = PROC

_UID = re.compile(rb"^Uid:\t([0-9]{1,10})\t", re.MULTILINE)
_NAMESPACE_PIDS = re.compile(rb"^NSpid:((?:\t[0-9]{1,10}){1,32})$", re.MULTILINE)
#: Whose a process is that is not known.
UNKNOWN = Owner()
_THREADS = 17  # of the words behind the name (proc(5) field 20)


class State(Enum):
    """How a process was found."""

    RUNNING = "running"
    ZOMBIE = "zombie"  # ended, all its threads, and its parent has not taken notice
    GONE = "gone"  # no such process
    HIDDEN = "hidden"  # /proc does not show it to us
    CHANGED = "changed"  # another took its number while we looked


@dataclass(frozen=True, slots=True)
class Seen:
    """A process at one look. Without a start it was not seen."""

    state: State
    start_ticks: int = 0  # since boot; with the number it is the process's identity
    name: str = ""
    user_id: int | None = None
    namespace_pid: int | None = None  # its number in its own PID namespace, where that is another
    owner: Owner = UNKNOWN


def parse_user_id(status: bytes) -> int | None:
    """Return the real user of a `status` file, as this reader's user namespace numbers him."""
    found = _UID.search(status)
    return parse_unsigned(found[1]) if found else None


def parse_namespace_pid(status: bytes) -> int | None:
    """Return the process's number in the innermost PID namespace; None where that is ours (or not told)."""
    found = _NAMESPACE_PIDS.search(status)
    numbers = found[1].split() if found else []
    return parse_unsigned(numbers[-1]) if len(numbers) > 1 else None


def parse_ended(stat: bytes) -> bool:
    """Say whether a `stat` file is of a process that has ended as a whole. One whose first thread has ended and
    others have not is a zombie by its state, and runs."""
    words = stat.rpartition(b")")[2].split()
    return len(words) > _THREADS and words[0] in (b"Z", b"X") and words[_THREADS] in (b"0", b"1")


def glance(proc: Path, pid: int) -> Seen:
    """Return state and start only: one small file. Never raises."""
    try:
        stat = _read(f"{proc}/{pid}/stat", STAT_BYTES_MAX)
    except (FileNotFoundError, ProcessLookupError):
        return Seen(State.GONE)
    except OSError:
        return Seen(State.HIDDEN)
    task = parse_task(stat)
    if task is None or task.number != pid:
        return Seen(State.HIDDEN)
    return Seen(State.ZOMBIE if parse_ended(stat) else State.RUNNING, task.start_ticks, task.name)


def look(proc: Path, pid: int) -> Seen:
    """Return all that is known of a process; CHANGED when it was not the same one throughout. Never raises."""
    first = glance(proc, pid)
    if not first.start_ticks:
        return first
    status = _read_or_nothing(f"{proc}/{pid}/status", STATUS_BYTES_MAX)
    cgroup = _read_or_nothing(f"{proc}/{pid}/cgroup", CGROUP_BYTES_MAX)
    last = glance(proc, pid)
    if last.state is State.GONE:
        return last
    if last.start_ticks != first.start_ticks:
        return Seen(State.CHANGED)
    return Seen(
        last.state,
        last.start_ticks,
        last.name,
        parse_user_id(status),
        parse_namespace_pid(status),
        parse_cgroup(cgroup),
    )


def shows_all(proc: Path) -> bool:
    """Say whether /proc shows the processes of all users: the first of all always is there."""
    return glance(proc, 1).state in (State.RUNNING, State.ZOMBIE)


def in_host_pid_namespace(proc: Path) -> bool:
    """Say whether this reader counts processes as the host does. In a container of its own it does not, and a number
    that a driver names may be another process's there. True where it is not told: a /proc that is a folder."""
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
    """Return the start of a file. Raises OSError."""
    place.enter(PLACE.encode(), f"read {path[-64:]}".encode())
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
