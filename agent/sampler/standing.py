"""How a process of ours stands with the kernel: whether it waits for a driver, or only for its turn on a CPU.

Of /proc/PID/stat, which takes no lock that a hung process could hold (`agent.hardware.tasks`).
"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

from ..hardware.files import parse_unsigned
from ..hardware.tasks import Task, parse_task

STAT_BYTES_MAX = 4096
#: One that is ready to run and had less of a CPU than this since it last spoke waits for that, not for a driver; who
#: spins in a driver has more by the time that a call's deadline is over.
CPU_SECONDS_MIN = 0.3
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_CPU = slice(11, 13)  # utime and stime, behind the name


class Excuse(Enum):
    """Why a process makes no progress, other than by its driver."""

    STARVED = "starved"
    STOPPED = "stopped"


def parse_excuse(stat: bytes, cpu_seconds: float) -> Excuse | None:
    """Return it by a `stat` file; None: there is none, or this is no such file. *cpu_seconds*: used until it spoke."""
    task = parse_task(stat)
    if task is None:
        return None
    if task.state in "Tt":
        return Excuse.STOPPED
    ticks = [parse_unsigned(each) for each in stat.rpartition(b")")[2].split()[_CPU]]
    if task.state != "R" or None in ticks:
        return None
    used = sum(filter(None, ticks)) / _TICKS_PER_SECOND - cpu_seconds
    return Excuse.STARVED if used < CPU_SECONDS_MIN else None


def excuse_of(pid: int, cpu_seconds: float) -> Excuse | None:
    """Return it for a process that lives; None where nothing is known."""
    try:
        return parse_excuse(_stat(pid), cpu_seconds)
    except OSError:
        return None


def alive(pid: int) -> Task | None:
    """Return a process that has not ended; None where there is none, or it is not shown."""
    try:
        task = parse_task(_stat(pid))
    except OSError:
        return None
    return None if task is None or task.state in "ZX" else task


def _stat(pid: int) -> bytes:
    with open(Path("/proc") / str(pid) / "stat", "rb") as file:
        return file.read(STAT_BYTES_MAX)
