"""Segment health files (`--ft-segment-health-check-dir`), which keep a segment out of its launcher's next rendezvous.

`segment_health_check.<job>.<task>`: the launcher of the task's first process leaves if the file is not empty, and continues
if the file is missing or empty. Therefore a file gets its name only after its content is complete. An executor removes only
files that begin with Gangline's first line or a part of it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from ..ledger import ExecutorLedger
from ..model import REASON_PREFIX, SchedulerState

NAME = re.compile(r"segment_health_check\.[0-9]{1,10}\.[0-9]{1,10}", re.ASCII)
#: Further entries of a folder are not searched for files of executors.
ENTRIES_MAX = 100_000
FILE_BYTES_MAX = 4096
#: First bytes of every file that an executor writes.
_BEGINS = f"{REASON_PREFIX}act=out;".encode()
#: An older empty file has no active writer: its writer was killed, or the disk was full.
ABANDONED_SECONDS = 10.0
#: Actions that keep a segment out. Only certain faults lead to these actions, not suspicions.
SEGMENT_ACTIONS = ("DRAIN_AT_CHECKPOINT", "EVICT_NOW")


def wanted_files(state: SchedulerState, ledger: ExecutorLedger) -> dict[str, str]:
    """Return file name -> content for the jobs on nodes with a mark for one of SEGMENT_ACTIONS.

    A segment is a task of a job array, with all its nodes. The file of a job without an array is read by the job's first
    process only, and is therefore written only if the job has a single node.
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
    """Write the *wanted* files; return the problems. Raises OSError if *folder* cannot be used.

    *tidy*: also search the folder, and remove files of executors (this or an earlier process) that are not in *wanted*.
    """
    problems: list[str] = []
    for name, content in wanted.items():
        path = folder / name
        if _is_managed(path):
            continue
        try:
            _write_whole(path, content.encode(), replaces=_is_abandoned(path))
        except FileExistsError:
            problems.append(f"{path} was not written by Gangline and stays unchanged")
    if tidy:
        for name in managed_files(folder):
            if name not in wanted:
                remove(folder, [name])
    return problems


def _write_whole(path: Path, content: bytes, *, replaces: bool) -> None:
    """Create *path* atomically with its complete content. Raises OSError; FileExistsError unless *replaces*."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        if replaces:
            unfinished.replace(path)
        else:
            os.link(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def managed_files(folder: Path) -> list[str]:
    """Return the names of executors' files in *folder*. Raises OSError."""
    with os.scandir(folder) as entries:
        names = [entry.name for _, entry in zip(range(ENTRIES_MAX), entries, strict=False)]
    return [name for name in names if NAME.fullmatch(name) and _is_managed(folder / name)]


def remove(folder: Path, names: list[str]) -> None:
    """Remove the files of *names* that an executor wrote. Raises OSError."""
    for name in names:
        if _is_managed(folder / name):
            (folder / name).unlink(missing_ok=True)


def _is_managed(path: Path) -> bool:
    """Return whether an executor wrote *path*; an empty file does not count."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return False
        begins = file.read(FILE_BYTES_MAX)[: len(_BEGINS)]
    return len(begins) >= len(REASON_PREFIX) and _BEGINS.startswith(begins)


def _is_abandoned(path: Path) -> bool:
    """Return whether *path* is an empty file without an active writer."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return (
        stat.S_ISREG(found.st_mode)
        and not found.st_size
        and time.time() - found.st_mtime > ABANDONED_SECONDS
    )
