"""The jobs of the processes, as a world's agents report them: judging compares hosts of the same job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from gangline.simulator.event_readings import RankEvents
from gangline.simulator.machine import GPUS, build_machines

MACHINES = build_machines(4, np.random.default_rng(1))
JOBS: Any = [SimpleNamespace(hosts=np.array([0, 2])), SimpleNamespace(hosts=np.array([1, 2, 3]))]


def told(
    ranks: RankEvents, jobs: list[int], silent: int = -1, booted: int = -1, seconds: float = 5.0
) -> list[str]:
    """Return the reported events of a moment, a line per host: the job's hosts other than those of
    a slot do not matter.
    """
    where = np.arange(2)
    moment: Any = SimpleNamespace(
        jobs=np.array([*jobs, 9]), silent=where == silent, booted=where == booted, seconds=seconds
    )
    events = [(host, event.attributes) for host, event in ranks.step(moment)]
    lines = [
        f"{host} {attributes['state']} {attributes['job_id']} of {attributes['world_size']}"
        for host, attributes in events
    ]
    assert all(lines.count(line) == GPUS for line in lines)
    return list(dict.fromkeys(lines))


def test_a_job_is_told_when_it_begins_and_when_it_ends() -> None:
    """A job whose end was never reported would hold its hosts for an hour."""
    ranks = RankEvents(MACHINES, JOBS, np.array([2, 0]))
    assert told(ranks, [-1, -1]) == []
    assert told(ranks, [0, 0]) == ["2 running 1 of 16", "0 running 1 of 16"]
    assert told(ranks, [0, 0]) == []
    assert told(ranks, [1, -1]) == ["2 ended 1 of 16", "2 running 2 of 24", "0 ended 1 of 16"]


def test_what_runs_is_told_again() -> None:
    """A report expires after an hour: a job of days disappeared from `ops.jobs` after the first."""
    ranks = RankEvents(MACHINES, JOBS, np.array([2, 0]))
    told(ranks, [0, -1])
    assert told(ranks, [0, -1], seconds=1800.0) == []
    assert told(ranks, [0, -1], seconds=1805.0) == ["2 running 1 of 16"]
    assert told(ranks, [0, -1], seconds=1810.0) == []


def test_what_a_silent_host_missed_it_tells_once_it_is_heard() -> None:
    """Frames and events may come late: none is lost."""
    ranks = RankEvents(MACHINES, JOBS, np.array([2, 0]))
    assert told(ranks, [0, 0], silent=0) == ["0 running 1 of 16"]
    assert told(ranks, [0, 0]) == ["2 running 1 of 16"]


def test_a_boot_ends_what_ran() -> None:
    """Processes of before the boot get no end event: their agent has ended."""
    ranks = RankEvents(MACHINES, JOBS, np.array([2, 0]))
    told(ranks, [0, 0])
    assert told(ranks, [-1, 0], booted=0) == []
    assert told(ranks, [1, 0]) == ["2 running 2 of 24"]


def test_ranks_are_by_host_and_gpu() -> None:
    """Only one host may report rank 0."""
    ranks = RankEvents(MACHINES, JOBS, np.array([2, 0]))
    moment: Any = SimpleNamespace(
        jobs=np.array([0, 0]), silent=np.zeros(2, bool), booted=np.zeros(2, bool), seconds=5.0
    )
    ranks_seen = sorted(int(event.attributes["rank"]) for _, event in ranks.step(moment))
    assert ranks_seen == list(range(2 * GPUS))
