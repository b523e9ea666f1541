"""Processes and threads in /proc (proc(5), fs/proc/array.c), read without files that could block.

`stat` and the links in `fd` take no lock of the task's memory. `cmdline`, `environ` and `maps` do, and can block the
reader as long as the task is blocked, so they are not read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ...ext import place
from ...ext.hostfiles import task_fields
from .files import read_bytes

#: The name of /proc in the call slot and in `exclude`.
PROC = "proc"
_PROC = PROC.encode()

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class TaskStat(NamedTuple):
    """A process, with its main thread's state, or a thread; number and start identify it."""

    number: int
    start_ticks: int  # since boot
    state: str
    name: str  # at most 15 bytes, chosen by the task
    is_kernel: bool

    @property
    def is_blocked(self) -> bool:
        """Whether it is in uninterruptible wait."""
        return self.state == "D"

    @property
    def identity(self) -> tuple[int, int]:
        """Number and start, which no later task has."""
        return self.number, self.start_ticks

    @property
    def start_seconds(self) -> float:
        """Its start in seconds since boot."""
        return self.start_ticks / _TICKS_PER_SECOND


def parse_task(data: bytes) -> TaskStat | None:
    """Return the task of a `stat` file; None for any other data. Its name may contain `) R 1`."""
    fields = task_fields(data)
    return None if fields is None else TaskStat(*fields)


def task_numbers(folder: Path, tasks_max: int) -> list[str]:
    """Return at most *tasks_max* + 1 PIDs (threads in `/proc/PID/task`) in the kernel's order.

    Raises OSError when the folder cannot be listed.
    """
    numbers: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                numbers.append(entry.name)
                if len(numbers) > tasks_max:
                    break
    return numbers


def read_tasks(folder: Path, numbers: Iterable[str]) -> list[TaskStat]:
    """Return the tasks that still exist."""
    tasks = (read_task(folder, number) for number in numbers)
    return [task for task in tasks if task is not None]


def read_task(folder: Path, number: str) -> TaskStat | None:
    """Return a task; None if it has ended."""
    return parse_task(_read(f"{folder}/{number}/stat"))


class ProcessScanner:
    """All processes, each with its last read.

    A read costs the kernel 10 us, and a host may have ten thousand processes. So a turn reads the
    new processes, those that the caller finds urgent, and some of the others in turn.
    """

    def __init__(self, proc: Path, processes_max: int, reads_max: int) -> None:
        """*reads_max*: processes neither new nor urgent that are read per collection."""
        self._proc, self._processes_max, self._reads_max = proc, processes_max, reads_max
        self._known: dict[str, TaskStat] = {}
        self._last_number = 0  # last number read in turn
        #: Number of processes; None if there are more than *processes_max*.
        self.count: int | None = None

    def read(self, is_urgent: Callable[[TaskStat], bool]) -> list[TaskStat]:
        """Return the processes. Raises OSError when /proc cannot be listed."""
        numbers = task_numbers(self._proc, self._processes_max)
        self.count = len(numbers) if len(numbers) <= self._processes_max else None
        numbers = sorted(numbers[: self._processes_max], key=int)
        others = [n for n in numbers if n in self._known and not is_urgent(self._known[n])]
        left = set(others).difference(self._in_line(others))
        fresh = {
            number: task
            for number in numbers
            if number not in left and (task := read_task(self._proc, number)) is not None
        }
        known = (fresh.get(n) or (self._known[n] if n in left else None) for n in numbers)
        self._known = {n: task for n, task in zip(numbers, known, strict=True) if task}
        return list(self._known.values())

    def _in_line(self, numbers: Sequence[str]) -> list[str]:
        behind = [n for n in numbers if int(n) > self._last_number]
        line = [*behind, *numbers][: min(self._reads_max, len(numbers))]
        self._last_number = int(line[-1]) if line else 0
        return line


def _read(path: str) -> bytes:
    """Return the file's bytes; no bytes if the process has ended.

    Each read is recorded by itself, because all reads together may take long.
    """
    place.enter(_PROC, b"read stat")
    data = read_bytes(path) or b""
    place.leave()
    return data


def has_open_device(folder: Path, prefix: str, links_max: int) -> bool | None:
    """Return whether one of a process's first *links_max* descriptors is *prefix* and a number.

    *folder*: the process's; `/dev/nvidia` matches `/dev/nvidia0`. None without a descriptor, as
    after an exit. Raises PermissionError if the descriptors are hidden.
    """
    place.enter(_PROC, b"list fd")
    try:
        return _has_open_device(folder, prefix, links_max)
    finally:
        place.leave()


def _has_open_device(folder: Path, prefix: str, links_max: int) -> bool | None:
    try:
        with os.scandir(folder / "fd") as entries:  # there may be a million
            names = [entry.name for entry in islice(entries, links_max)]
    except PermissionError:
        raise
    except OSError:
        return None
    for name in names:
        try:
            target = os.readlink(f"{folder}/fd/{name}")
        except OSError:
            continue
        if target.startswith(prefix) and target[len(prefix) :].isdecimal():
            return True
    return False if names else None
