"""Reads cycle-info files of NVIDIA's resiliency extension: the active and the standby hosts of a job's allocation.

The launcher's rendezvous host writes the JSON file `cycle_info.<job>.<attempt>.<cycle>`, and the link
`cycle_info.<job>.current` to the newest file. Users can write these files, so a file counts only for hosts that the scheduler
gave to the job, and only for cycles since the job's start.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ...contract.host_sets import HostSetError, expand_hosts
from ..model import ScheduledJob, SchedulerState

#: A larger file is refused. 10,000 host names of 64 characters are 0.65 MB.
FILE_BYTES_MAX = 1 << 20
HOSTS_MAX = 10_000
#: A cycle may begin this long before the job's start in the scheduler: the clocks of launcher and scheduler differ.
CLOCK_SECONDS = 5.0
#: Name of the link's target, which must be in the link's own folder.
TARGET = re.compile(r"cycle_info\.(.{1,128})\.([0-9]{1,9})\.([0-9]{1,9})", re.DOTALL)


class CycleInfoError(Exception):
    """The file is not a valid cycle-info file; the message gives the reason without quoting the file."""


@dataclass(frozen=True, slots=True)
class CycleInfo:
    """A cycle of a job according to its launcher. Hosts are short names; `ended`: 0 while the cycle runs."""

    job: str
    attempt: int
    cycle: int
    started: float
    ended: float
    log_file: str
    active: frozenset[str]
    standby: frozenset[str]
    ranks: str = ""


def parse_cycle_info(text: str) -> CycleInfo:
    """Return the cycle that *text* describes. Raises CycleInfoError."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise CycleInfoError("not JSON") from None
    if not isinstance(fields, dict):
        raise CycleInfoError("not a JSON object")

    def words(key: str) -> str:
        value = fields.get(key, "")
        if not isinstance(value, str):
            raise CycleInfoError(f"{key} is not text")
        return value

    def count(key: str) -> int:
        value = fields.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**9:
            raise CycleInfoError(f"{key} is not an integer from 0 to 999999999")
        return value

    return CycleInfo(
        job=words("job_id")[:128],
        attempt=count("attempt_index"),
        cycle=count("cycle_number"),
        started=_seconds(words("cycle_start_time"), "cycle_start_time"),
        ended=_seconds(words("cycle_end_time"), "cycle_end_time"),
        log_file=words("cycle_log_file")[:4096],
        active=_hosts(words("active_nodes"), "active_nodes"),
        standby=_hosts(words("standby_nodes"), "standby_nodes"),
        ranks=words("active_ranks")[:4096],
    )


def _seconds(text: str, key: str) -> float:
    if not text:
        return 0.0
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise CycleInfoError(f"{key} is not a time of ISO 8601") from None


def _hosts(listed: str, key: str) -> frozenset[str]:
    try:
        return frozenset(expand_hosts(listed, HOSTS_MAX)) if listed.strip() else frozenset()
    except HostSetError:
        raise CycleInfoError(f"{key} is not a list of at most {HOSTS_MAX} hosts") from None


def read_cycle_info(folder: Path, job: str) -> CycleInfo | None:
    """Return the newest cycle of *job* in *folder*; None if it has no such file.

    Users can write these files: the link may lead only to a regular file of the job in the same
    folder, a second link is not followed, and opening a FIFO does not block. Raises
    CycleInfoError, OSError.
    """
    try:
        target = os.readlink(folder / f"cycle_info.{job}.current")
    except FileNotFoundError:
        return None
    match = TARGET.fullmatch(target)
    if match is None or match.group(1) != job or "/" in target:
        raise CycleInfoError("the link .current does not lead to a file of this job in its folder")
    try:
        handle = os.open(
            folder / target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except FileNotFoundError:
        return None
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise CycleInfoError("not a regular file")
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise CycleInfoError(f"larger than {FILE_BYTES_MAX} bytes")
    try:
        info = parse_cycle_info(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise CycleInfoError("not UTF-8") from None
    if info.job != job:
        raise CycleInfoError("it names another job than its file")
    return info


def launcher_job(job: ScheduledJob) -> str:
    """Return the name of the job of a launcher in *job*: all tasks of an array belong to a single job."""
    return job.array or job.name


def members(info: CycleInfo, allocated: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return (active, standby) among the nodes in *allocated*, by their short names."""
    nodes = [(node.partition(".")[0], node) for node in allocated]
    return (
        frozenset(node for short, node in nodes if short in info.active),
        frozenset(node for short, node in nodes if short in info.standby),
    )


def allocations(state: SchedulerState) -> dict[str, list[ScheduledJob]]:
    """Return the running jobs, grouped by the job of their launchers."""
    found: dict[str, list[ScheduledJob]] = {}
    for job in state.jobs.values():
        if job.is_running and job.nodes:
            found.setdefault(launcher_job(job), []).append(job)
    return found


def is_current(info: CycleInfo, parts: Iterable[ScheduledJob]) -> bool:
    """Return whether the cycle belongs to the current run of *parts*, not to a run before a requeue."""
    started = max(part.started for part in parts)
    return info.started >= started - CLOCK_SECONDS


def with_cycles(state: SchedulerState, cycles: Mapping[str, CycleInfo]) -> SchedulerState:
    """Return *state* with each job of *cycles* as a gang of its active hosts that started with the cycle."""
    jobs = dict(state.jobs)
    for name, parts in allocations(state).items():
        info = cycles.get(name)
        if info is None or not is_current(info, parts):
            continue
        allocated = frozenset().union(*(part.nodes for part in parts))
        active, _ = members(info, allocated)
        if not active:
            continue
        first = min(parts, key=lambda part: part.name)
        for part in parts:
            del jobs[part.name]
        gpus = sum(part.gpus for part in parts) * len(active) // len(allocated)
        jobs[name] = replace(
            first, name=name, nodes=active, gpus=gpus, started=info.started, cycle=info.cycle + 1,
            restarts=max(part.restarts for part in parts),
        )  # fmt: skip
    return replace(state, jobs=jobs)
