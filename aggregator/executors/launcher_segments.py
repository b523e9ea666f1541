"""Segment health files (`--ft-segment-health-check-dir`), which keep a segment out of its launcher's next rendezvous.

`segment_health_check.<job>.<task>`: the launcher of that task's first process leaves if the file is not empty, and continues
if there is none. Only files with Gangline's first line are removed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from .ledger import ExecutorLedger
from .model import REASON_PREFIX, SchedulerState

NAME = re.compile(r"segment_health_check\.[0-9]{1,10}\.[0-9]{1,10}", re.ASCII)
#: Of a folder more entries than this are not looked through for files of ours.
ENTRIES_MAX = 100_000
FILE_BYTES_MAX = 4096
#: Only faults that are certain ask for these: nothing that is merely suspected keeps a segment out.
SEGMENT_ACTIONS = ("DRAIN_AT_CHECKPOINT", "EVICT_NOW")


def wanted_files(state: SchedulerState, ledger: ExecutorLedger) -> dict[str, str]:
    """Return file name -> content for what is marked now.

    A segment is a task of an array, with all its nodes. A job that is not an array has one file, which its first
    process reads. It is written only if the job has one node.
    """
    found: dict[str, str] = {}
    for entry in ledger:
        if not entry.is_marked or entry.action not in SEGMENT_ACTIONS:
            continue
        for job in state.running_on(entry.node):
            if job.array:
                name = f"segment_health_check.{job.array}.{job.array_task}"
            elif len(job.nodes) == 1:
                name = f"segment_health_check.{job.name}.{job.name}"
            else:
                continue
            if NAME.fullmatch(name):
                found[name] = f"{REASON_PREFIX}act=out;adv={entry.advisory};node={entry.node}\n"
    return found


def sync(folder: Path, wanted: Mapping[str, str], *, tidy: bool) -> list[str]:
    """Write what is wanted, take away what is ours and not wanted any more; return what went wrong. Raises OSError if *folder* cannot be used.

    *tidy*: look through the whole folder for files of ours, of an executor before this one.
    """
    problems: list[str] = []
    for name, content in wanted.items():
        path = folder / name
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except FileExistsError:
            if not _is_managed(path):
                problems.append(f"{path} was not written by Gangline and stays unchanged")
            continue
        with open(handle, "wb", buffering=0) as file:  # empty until this one write: healthy
            file.write(content.encode())
    if tidy:
        for name in managed_files(folder):
            if name not in wanted:
                remove(folder, [name])
    return problems


def managed_files(folder: Path) -> list[str]:
    """Return the names of our files. Raises OSError."""
    with os.scandir(folder) as entries:
        names = [entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)]
    return [name for name in names if NAME.fullmatch(name) and _is_managed(folder / name)]


def remove(folder: Path, names: list[str]) -> None:
    """Take away those of *names* that are ours. Raises OSError."""
    for name in names:
        if _is_managed(folder / name):
            (folder / name).unlink(missing_ok=True)


def _is_managed(path: Path) -> bool:
    """Return whether an executor wrote *path*. An empty one is nobody's decision, and not ours."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return False
        return file.read(FILE_BYTES_MAX).startswith(f"{REASON_PREFIX}act=out;".encode())
