"""Reduces the rights of a worker process: its priority, its resource limits, its privileges."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import resource
import time
from contextlib import suppress

#: A query that does not end when it is interrupted is killed after this time.
KILL_AFTER_SECONDS = 1.0
_PR_SET_NO_NEW_PRIVS = 38
#: ioprio_set(2) by machine; elsewhere the disk is shared as everybody's.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(platform.machine())
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13
#: How nice the session of all queries is (autogroup, sched(7)).
SESSION_NICE = 10
#: The kernel takes a change of a session's share ten times a second from all who are not root.
_AUTOGROUP_TRIES, _AUTOGROUP_SECONDS = 5, 0.11
#: A view of the history opens a file per segment and thread.
FILES_MAX = 1024


def confine(memory_bytes_max: int) -> None:
    """Go last at the processor and the disk, first when memory runs out, and never gain a right again.

    Raises OSError when a limit cannot be had.
    """
    lower_priority()
    raise_oom_score()
    if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_NO_NEW_PRIVS)")
    set_limit(resource.RLIMIT_AS, address_space_bytes() + memory_bytes_max)
    set_limit(resource.RLIMIT_FSIZE, 0)
    set_limit(resource.RLIMIT_CORE, 0)
    set_limit(resource.RLIMIT_NOFILE, FILES_MAX)


def limit_cpu(seconds: float, threads: int) -> None:
    """End this process when it has used all processors it may have for longer than it may run."""
    set_limit(resource.RLIMIT_CPU, math.ceil((seconds + KILL_AFTER_SECONDS) * (threads + 1)))


def address_space_bytes() -> int:
    """Return the address space of this process now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def raise_oom_score() -> None:
    """Be what the kernel ends first when memory runs out."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def query_processors() -> set[int]:
    """Return on which of the processors that this process may use all queries together may run: half of them.

    The caches and the wake-ups of the other half are for what stores, also while every place has a bomb.
    """
    cpus = sorted(os.sched_getaffinity(0))
    return set(cpus[len(cpus) // 2 :])


def lower_session_priority() -> None:
    """Give the session of this process, its leader, a tenth of a usual session's share of the processors.

    Linux shares them by session before it looks at priorities (sched_autogroup_enabled, on nearly everywhere): with a
    usual share, queries at the lowest priority take as much as all that stores. With the least there is (19, a seventieth)
    nobody would have an answer from a machine that is full, which is when they ask. Where there is no such thing, or a
    cgroup has taken its place, the priorities of the processes count alone. May take half a second; never raises.
    """
    for _ in range(_AUTOGROUP_TRIES):
        try:
            with open("/proc/self/autogroup", "w", encoding="ascii") as file:
                file.write(str(SESSION_NICE))
        except BlockingIOError:  # anybody of this machine has just changed one: ten times a second
            time.sleep(_AUTOGROUP_SECONDS)
        except OSError:
            return
        else:
            return


def lower_priority() -> None:
    """Let this process and the threads it will have come last at the processors and the disk.

    SCHED_IDLE: what stores takes a processor from it at once, not after the rest of its slice. Where the kernel refuses,
    the limits still hold.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        os.sched_setaffinity(0, query_processors())
    if _IOPRIO_SET is not None:
        ctypes.CDLL(None).syscall(_IOPRIO_SET, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)


def set_limit(what: int, wanted: int) -> None:
    """Let this process have no more than *wanted* of a resource, or what less it may have."""
    _, high = resource.getrlimit(what)
    value = wanted if high == resource.RLIM_INFINITY else min(wanted, high)
    resource.setrlimit(what, (value, value))
