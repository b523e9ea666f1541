"""Reduces the rights of a worker process: its priority, its resource limits, its privileges."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import resource
import time
from contextlib import suppress

#: A query is killed this long after it was interrupted.
KILL_AFTER_SECONDS = 1.0
_PR_SET_NO_NEW_PRIVS = 38
#: Number of ioprio_set(2) by machine; on others the disk priority stays normal.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(platform.machine())
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13
#: Nice value of the queries' session (autogroup, sched(7)).
SESSION_NICE = 10
#: Without root, the kernel accepts ten changes of an autogroup per second.
_AUTOGROUP_TRIES, _AUTOGROUP_SECONDS = 5, 0.11
#: Limit of open files: a view of the history opens a file per segment and thread.
FILES_MAX = 1024


def confine(memory_bytes_max: int) -> None:
    """Limit this process: lowest priority, first to die at out-of-memory, no new privileges.

    It can write no files, and use *memory_bytes_max* more memory. Raises OSError if a limit cannot
    be set.
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
    """Kill this process when it has used more CPU time than *threads* could within *seconds*."""
    set_limit(resource.RLIMIT_CPU, math.ceil((seconds + KILL_AFTER_SECONDS) * (threads + 1)))


def address_space_bytes() -> int:
    """Return the address space of this process, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def raise_oom_score() -> None:
    """Make this process the kernel's first choice at out-of-memory."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def query_processors() -> set[int]:
    """Return the processors for all queries together: half of those allowed.

    The caches and wake-ups of the other half are for the store, even while expensive queries fill
    every slot.
    """
    cpus = sorted(os.sched_getaffinity(0))
    return set(cpus[len(cpus) // 2 :])


def lower_session_priority() -> None:
    """Give the session of this process, its leader, a tenth of a usual session's CPU share.

    Linux divides CPU time by session before priority (sched_autogroup_enabled, almost everywhere):
    with a usual share, queries at the lowest priority take as much as the store. With nice 19 (a
    seventieth) no query would be answered on a busy machine, which is when operators ask. Without
    autogroups, or with cgroups instead, only the priorities of processes count. May take 0.5 s;
    never raises.
    """
    for _ in range(_AUTOGROUP_TRIES):
        try:
            with open("/proc/self/autogroup", "w", encoding="ascii") as file:
                file.write(str(SESSION_NICE))
        except BlockingIOError:  # too many changes on this machine within a second
            time.sleep(_AUTOGROUP_SECONDS)
        except OSError:
            return
        else:
            return


def lower_priority() -> None:
    """Give this process and its future threads the lowest priority for processors and disk.

    SCHED_IDLE: the store preempts it at once, not after its time slice. If the kernel refuses, the
    limits still hold.
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
    """Limit a resource of this process to *wanted*, or to its hard limit if that is lower."""
    _, high = resource.getrlimit(what)
    value = wanted if high == resource.RLIM_INFINITY else min(wanted, high)
    resource.setrlimit(what, (value, value))
