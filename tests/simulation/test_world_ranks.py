"""The jobs of the processes, as a world's agents report them: judging compares hosts of the same job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from gangline.simulator.event_readings import FIRST_PID, RankEvents
from gangline.simulator.machine import GPUS, build_machines

MACHINES = build_machines(4, np.random.default_rng(1))
JOBS: Any = [SimpleNamespace(hosts=np.array([0, 2])), SimpleNamespace(hosts=np.array([1, 2, 3]))]


def moment_of(jobs: list[int], **changes: Any) -> Any:
    """Return a moment of two slots; the job's hosts other than those of a slot do not matter."""
    nobody = np.zeros(2, bool)
    usual = {"silent": nobody, "booted": nobody, "neighbor_gpus": np.full(2, -1), "seconds": 5.0}
    return SimpleNamespace(jobs=np.array([*jobs, 9]), **(usual | changes))


def told(
    ranks: RankEvents, jobs: list[int], silent: int = -1, booted: int = -1, seconds: float = 5.0
) -> list[str]:
    """Return the reported events of a moment, a line per host."""
    where = np.arange(2)
    moment = moment_of(jobs, silent=where == silent, booted=where == booted, seconds=seconds)
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
    events = ranks.step(moment_of([0, 0]))
    ranks_seen = sorted(int(event.attributes["rank"]) for _, event in events)
    assert ranks_seen == list(range(2 * GPUS))


def test_a_neighbor_is_a_job_of_its_own_on_one_gpu() -> None:
    """It comes, is repeated with the job, ends, and a boot ends it silently."""
    ranks = RankEvents(MACHINES, JOBS, np.array([2, 0]))

    def lines(gpu: int, **changes: Any) -> list[tuple[str, str, str]]:
        moment = moment_of([0, -1], neighbor_gpus=np.array([gpu, -1]), **changes)
        events = [event for _, event in ranks.step(moment)]
        assert all(event.device in MACHINES[2].gpus for event in events)
        return [
            (event.attributes["state"], event.attributes["world_size"], event.device)
            for event in events
            if event.process_id == FIRST_PID + GPUS
        ]

    assert lines(-1) == []
    assert lines(3) == [("running", "1", MACHINES[2].gpus[3])]
    assert lines(3) == []
    assert lines(3, seconds=1810.0) == [("running", "1", MACHINES[2].gpus[3])]
    assert lines(-1) == [("ended", "1", MACHINES[2].gpus[3])]
    lines(3)
    assert lines(-1, booted=np.array([True, False])) == []
