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

#: The name by which /proc is recorded in the call slot, and skipped.
PROC = "proc"
_PROC = PROC.encode()

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class TaskStat(NamedTuple):
    """A process, by the state of its main thread, or a thread. Number and start together are its identity."""

    number: int
    start_ticks: int  # since boot
    state: str
    name: str  # at most 15 bytes, which the task may choose
    is_kernel: bool

    @property
    def is_blocked(self) -> bool:
        """Whether it is in uninterruptible wait."""
        return self.state == "D"

    @property
    def identity(self) -> tuple[int, int]:
        """What no later task of the same number has."""
        return self.number, self.start_ticks

    @property
    def start_seconds(self) -> float:
        """When it began, in seconds since boot."""
        return self.start_ticks / _TICKS_PER_SECOND


def parse_task(data: bytes) -> TaskStat | None:
    """Return what a `stat` file says; None for anything else. The name may hold `) R 1` and the like."""
    fields = task_fields(data)
    return None if fields is None else TaskStat(*fields)


def task_numbers(folder: Path, tasks_max: int) -> list[str]:
    """Return the numbers of the processes (or, of `/proc/PID/task`, the threads), at most *tasks_max* and
    one more, in the kernel's order. Raises OSError when the folder cannot be listed."""
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                found.append(entry.name)
                if len(found) > tasks_max:
                    break
    return found


def read_tasks(folder: Path, numbers: Iterable[str]) -> list[TaskStat]:
    """Return the tasks that are still there."""
    found = (read_task(folder, number) for number in numbers)
    return [task for task in found if task is not None]


def read_task(folder: Path, number: str) -> TaskStat | None:
    """Return a task; None when it is gone."""
    return parse_task(_read(f"{folder}/{number}/stat"))


class ProcessScanner:
    """All processes, as each was read last.

    To read one costs the kernel 10 us, and a host may have ten thousand. So a turn reads new processes, those that
    the caller finds urgent, and the next few of the others, which all come up within some turns.
    """

    def __init__(self, proc: Path, processes_max: int, reads_max: int) -> None:
        """*reads_max*: how many of those neither new nor urgent are read in one collection."""
        self._proc, self._processes_max, self._reads_max = proc, processes_max, reads_max
        self._known: dict[str, TaskStat] = {}
        self._last_number = 0  # the number read last of those in line
        #: How many there are; None when there are more than are looked at.
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
    """Return the file; empty when it is gone. Each read is recorded by itself: all of them may take long."""
    place.enter(_PROC, b"read stat")
    data = read_bytes(path) or b""
    place.leave()
    return data


def has_open_device(folder: Path, prefix: str, links_max: int) -> bool | None:
    """Return whether one of the first *links_max* descriptors of the process whose folder this is leads to
    *prefix* and a digit (`/dev/nvidia` -> `/dev/nvidia0`); None when it has no descriptor (any more).

    Raises PermissionError when they are not shown.
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
