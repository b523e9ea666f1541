"""Steps that ranks report, from the processes of a gang to SQL and to the judge of stragglers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from gangline.agent.collectors.job_steps import JobSteps
from gangline.agent.frame_builder import FrameBuilder
from gangline.agent.hardware.files import Roots
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.fleet.gang_changes import FINE_STEP_SECONDS_MAX, _only_of_short_steps
from gangline.aggregator.fleet.jobs import Job
from gangline.aggregator.fleet.reported_steps import ReportedSteps, gang_steps
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.query import sandbox
from gangline.aggregator.store.rows import HostRecord
from gangline.aggregator.store.store import Store
from gangline.contract.block import Block
from gangline.contract.signals import index_of
from gangline.fingerprints.stragglers import Change
from tests import fake_torch
from tests.aggregator.query.asking import rows_of
from tests.hosts.reading import StoppedClock

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
UPTIME = 3600 * SECOND
BOOT, RUN = b"B" * 16, b"R" * 16
#: A rank of a synchronous gang: a step begins at rank 0's signal through a pipe, and ends when all
#: ranks have done it.
TRAIN = """
import sys, gangline.steps, torch
optimizer = torch.optim.SGD()
for line in sys.stdin:
    optimizer.step()
    print(line.strip(), flush=True)
"""


class Gang:
    """Four processes on two hosts that are folders; each step is one of all."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        names = root / "names"
        names.mkdir()
        (names / "gangline").symlink_to(Path(__file__).parents[2])
        path = f"{names}:{fake_torch.write(root / 'fake')}"
        self.roots, self.ranks = dict[str, Roots](), list[subprocess.Popen[str]]()
        for host in range(2):
            dev = root / f"h{host}" / "dev"
            folder = dev / "shm" / "gangline"
            folder.mkdir(parents=True)
            self.roots[f"h{host}"] = Roots(dev=dev)
            for rank in (2 * host, 2 * host + 1):
                environment = {
                    "PYTHONPATH": path, "GANGLINE_STEPS": str(folder), "RANK": str(rank), "WORLD_SIZE": "4",
                    "GANGLINE_JOB": "77", "PATH": os.environ["PATH"],
                }  # fmt: skip
                child = subprocess.Popen(
                    [sys.executable, "-c", TRAIN], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                stack.enter_context(child)
                stack.callback(child.kill)
                self.ranks.append(child)

    def step(self) -> None:
        for child in self.ranks:
            assert child.stdin
            child.stdin.write("step\n")
            child.stdin.flush()
        for child in self.ranks:
            assert child.stdout
            assert child.stdout.readline() == "step\n"


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    with ExitStack() as stack:
        yield Gang(tmp_path, stack)


class Clock(StoppedClock):
    now_ns = UPTIME

    def boottime_ns(self) -> int:
        return self.now_ns


@pytest.mark.usefixtures("operators_file")
def test_from_the_processes_of_a_gang_to_sql(gang: Gang, tmp_path: Path) -> None:
    """Real ranks step, two agents' collectors read them, SQL has the time of each rank, and the
    judge that of each host.
    """
    clock = Clock()
    collectors = {host: JobSteps(roots, clock) for host, roots in gang.roots.items()}
    framers = {host: FrameBuilder(RUN, BOOT) for host in collectors}
    fleet = Fleet()
    store = Store.open(
        tmp_path / "store",
        AggregatorConfig(data=tmp_path / "store", ops_seconds=3600.0),
        lambda: START + 60 * SECOND,
    )
    try:
        for index, host in enumerate(collectors):
            fleet.register(
                host, simulated=False, boot_id=BOOT, devices=(), booted_ns=START - UPTIME
            )
            store.submit_host(
                HostRecord(host, index, False, RUN, BOOT, "0", "10.0.0.1", {}, START, ()), {}
            )
        for second in range(1, 4):
            for _ in range(10):
                gang.step()
            clock.now_ns = UPTIME + second * SECOND
            for host, collector in collectors.items():
                data = framers[host].build(
                    second, clock.now_ns, START + second * SECOND, collector.collect()
                )
                frame = read_frame(data)
                fleet.observe(host, frame, START + second * SECOND)
                assert store.submit_frame(host, frame, START - UPTIME, lambda _: None)
        steps = ReportedSteps()
        steps.update(fleet, START + 3 * SECOND)
        job = Job(("slurm", "77", -1), {0: 8, 1: 8})
        by_host = steps.by_host([job], np.zeros(2, dtype=np.intp), np.zeros(2, dtype=bool))
    finally:
        store.close(60.0)
    connection = sandbox.open_snapshot(tmp_path / "store" / "operators.duckdb")
    names, rows = rows_of(
        connection,
        "SELECT job, host, rank, max(steps_count)::BIGINT AS steps, max(world_size) AS ranks, count(step_seconds) > 0 AS is_timed "
        "FROM ops.job_steps GROUP BY ALL ORDER BY rank",
    )
    assert [tuple(row) for row in rows] == [
        ("77", f"h{r // 2}", r, 30, 4, True) for r in range(4)
    ], names
    # Step times depend on the load of the machine; the judge must have the same times as SQL.
    _, seconds = rows_of(
        connection,
        "SELECT avg(step_seconds) FROM (SELECT host, rank, arg_max(step_seconds, time) AS step_seconds FROM ops.job_steps GROUP BY ALL) "
        "GROUP BY host ORDER BY host",
    )
    assert by_host.tolist() == pytest.approx([value for (value,) in seconds], rel=1e-3)


def reporting(devices: dict[str, dict[str, float]], job_seconds: int = 0) -> Fleet:
    """Return a fleet of these hosts, whose devices report such a step time."""
    fleet = Fleet()
    for host, seconds in devices.items():
        fleet.register(host, simulated=False, boot_id=BOOT, devices=(), booted_ns=START - UPTIME)
        block = Block("step_1s", tuple(seconds))
        for row, value in enumerate(seconds.values()):
            block.put_float(index_of("step.step_seconds"), row, value)
        data = FrameBuilder(RUN, BOOT).build(1, UPTIME, START, [block])
        fleet.observe(host, read_frame(data), START)
    return fleet


def test_a_rank_speaks_for_its_own_job_only() -> None:
    """A process on a shared host that reports a step of its own made the gang of another job slow."""
    fleet = reporting({"a": {"77/0": 1.0, "77/1": 1.2, "9/0": 50.0}, "b": {"9/1": 40.0}, "c": {}})
    steps = ReportedSteps()
    steps.update(fleet, START)
    gang, shared = np.array([0, 0, -1], dtype=np.intp), np.zeros(3, dtype=bool)
    job = Job(("slurm", "77", -1), {0: 8, 1: 8})
    assert steps.by_host([job], gang, shared).tolist() == pytest.approx(
        [1.1, np.nan, np.nan], nan_ok=True
    )
    # A gang that only a scheduler names: its hosts' only job is its own, where nothing else runs there.
    other = Job(("scheduler", "llm", -1), {0: 8, 1: 8})
    assert steps.by_host([other], gang, shared).tolist() == pytest.approx(
        [np.nan, 40.0, np.nan], nan_ok=True
    )
    assert np.isnan(steps.by_host([other], gang, np.ones(3, dtype=bool))).all()


def test_old_reports_count_no_more() -> None:
    """An agent that had ended left a step time of an hour before."""
    steps = ReportedSteps()
    steps.update(reporting({"a": {"77/0": 1.0}}), START + 60 * SECOND)
    assert steps.current.host.size == 0


def test_a_gang_needs_most_of_its_hosts_to_report() -> None:
    """One host of ten that reports would speak for nine that do not."""
    group = np.array([0, 0, 0, 0, 0, 1, 1], dtype=np.intp)
    seconds = np.array([1.0, 1.1, 1.2, 1.3, np.nan, 5.0, np.nan])
    assert gang_steps(seconds, group, 2).tolist() == pytest.approx([1.15, np.nan], nan_ok=True)


def test_ten_seconds_name_nobody_in_a_gang_of_longer_steps() -> None:
    """A window of 10 s shows only part of a 20 s step: the first rank to compute looked slow, and later the last."""
    named = np.ones(3, dtype=bool)
    nothing = np.zeros(3)
    change = Change(
        np.full(3, 9, np.int16), nothing, named, ~named, ~named, nothing, nothing, np.zeros((2, 3))
    )
    group = np.array([0, 1, 2], dtype=np.intp)
    steps = np.array([FINE_STEP_SECONDS_MAX / 2, 4 * FINE_STEP_SECONDS_MAX, np.nan])
    assert _only_of_short_steps(change, steps, group).is_named.tolist() == [True, False, True]
