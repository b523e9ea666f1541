"""A verdict per fault of a job: its culprit, its begin and its cost."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import duckdb
import pytest

from gangline.aggregator.runs.job_rows import put_verdicts, read_verdicts
from gangline.aggregator.runs.verdicts import (
    LEAVE_SECONDS,
    UNEXPLAINED_SECONDS_MIN,
    JobState,
    JobVerdict,
    JobVerdicts,
    VerdictChanges,
)
from gangline.aggregator.scoring.job_faults import (
    LINK,
    NODE,
    UNKNOWN,
    WORKLOAD,
    JobFault,
    Strength,
)
from gangline.aggregator.store.duckdb_file import migrations

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_700_000_000 * SECOND_NS
RUN = "slurm/7@1"
STATE = JobState(RUN, "7", 64, 1.0, "best minute of this run")


def fault(host: str, strength: Strength, **fields: Any) -> JobFault:
    slowdown = fields.pop("slowdown", nan)
    values: dict[str, Any] = {
        "job": ("slurm", "7", -1), "identity": f"host {host}", "strength": strength, "verdict": NODE, "cause": "gpu.throttle",
        "reason": "THERMAL_THROTTLE", "hosts": (host,), "device": "GPU-1", "slowdown": slowdown, "slowdown_lower": nan,
        "slowdown_upper": nan, "message": f"{host} is slow", "sql": "",
    }  # fmt: skip
    return JobFault(**{**values, **fields})


class Job:
    """One job whose faults and pace a test sets second by second."""

    def __init__(self, verdicts: JobVerdicts | None = None, now_ns: int = BEGIN_NS) -> None:
        self.verdicts, self.now_ns = verdicts or JobVerdicts(), now_ns

    def run(self, seconds: int, *faults: JobFault, **state: Any) -> list[JobVerdict]:
        for _ in range(seconds):
            self.now_ns += SECOND_NS
            self.verdicts.step([replace(STATE, **state)], {RUN: faults}, self.now_ns)
        return self.verdicts.of_run(RUN)


SLOW = fault("h1", Strength.SLOWS, slowdown=0.25)
CABLE = fault("h2", Strength.MAY_SLOW, verdict=LINK, reason="FABRIC", message="port retransmits")
MORE_WORK = fault("h3", Strength.EXPLAINS, verdict=WORKLOAD, identity="rule gang.workload")
DEAD = fault("h4", Strength.STOPS, cause="gpu.xid", message="XID 95")
RACK = fault("h5", Strength.SLOWS, slowdown=0.6, shared_cause="rack r2 power", advisory="a3",
             identity="cause rack r2 power", hosts=("h5", "h6", "h7"))  # fmt: skip


@pytest.mark.parametrize(
    ("faults", "state", "expected"),
    [
        ([], {}, []),
        ([], {"pace": 0.8}, [(UNKNOWN, ())]),  # after a minute: nothing explains it
        ([SLOW], {}, [(NODE, ("h1",))]),
        ([CABLE], {}, []),  # errors without a cost
        ([CABLE], {"pace": 0.78}, [(LINK, ("h2",))]),
        (
            [CABLE, MORE_WORK],
            {"pace": 0.78},
            [(LINK, ("h2",))],
        ),  # never the workload beside a cable
        ([SLOW, MORE_WORK], {"pace": 0.75}, [(NODE, ("h1",))]),
        ([MORE_WORK], {"pace": 0.9}, [(WORKLOAD, ("h3",))]),
        ([DEAD], {}, [(NODE, ("h4",))]),  # broken, and the job still runs: named, without a cost
        ([DEAD, SLOW], {}, [(NODE, ("h1",)), (NODE, ("h4",))]),
        ([DEAD, SLOW], {"is_standing": True}, [(NODE, ("h4",))]),
        ([RACK, SLOW], {}, [(NODE, ("h5", "h6", "h7")), (NODE, ("h1",))]),
    ],
)
def test_the_strongest_explanation_is_the_verdict(
    faults: list[JobFault], state: dict[str, Any], expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    """`hosts` named the cable, and `job` blamed the workload of two waiting hosts."""
    verdicts = Job().run(int(UNEXPLAINED_SECONDS_MIN) + 5, *faults, **state)
    assert [(verdict.fault.verdict, verdict.fault.hosts) for verdict in verdicts] == expected


def test_each_moment_is_charged_once_to_the_worst() -> None:
    """A rack's power cost 3.55 GPU-hours on one host and 0.00 on three: a cause is one verdict."""
    job = Job()
    job.run(1)
    rack, slow = job.run(3600, RACK, SLOW)
    assert rack.lost_gpu_hours == pytest.approx(0.6 * 64, rel=1e-3)
    assert slow.lost_gpu_hours == 0.0
    job.run(3600, SLOW)
    assert job.verdicts.lost_gpu_hours(RUN) == pytest.approx((0.6 + 0.25) * 64, rel=0.02)


def test_single_hosts_become_part_of_their_shared_cause() -> None:
    """Four verdicts of the first seconds remained beside the verdict of their rack."""
    job = Job()
    hosts = [
        fault(host, Strength.SLOWS, slowdown=0.6, reason="THERMAL_THROTTLE") for host in RACK.hosts
    ]
    assert len(job.run(10, *hosts)) == 3
    begun_ns = min(verdict.since_ns for verdict in job.verdicts.of_run(RUN))
    own_ids = {verdict.verdict_id for verdict in job.verdicts.of_run(RUN)}
    lost = job.verdicts.lost_gpu_hours(RUN)
    job.verdicts.take_changes()
    (shared,) = job.run(1, RACK)
    assert shared.since_ns == begun_ns and shared.lost_gpu_hours >= lost
    assert job.verdicts.take_changes().absorbed == own_ids


def test_a_verdict_ends_when_the_fault_was_last_seen_and_begins_anew_after_that() -> None:
    """A repaired host remained the straggler of its job."""
    job = Job()
    job.run(100, SLOW)
    seen_ns = job.now_ns
    (ended,) = job.run(int(LEAVE_SECONDS) + 2)
    assert ended.until_ns == seen_ns
    again, before = job.run(1, SLOW)
    assert again.until_ns == 0 and before is ended


def test_a_job_that_ends_on_a_broken_host_was_stopped_by_it() -> None:
    """The researcher looks for a dead job's last verdict next morning."""
    job = Job()
    job.run(20, DEAD, is_standing=True)
    job.verdicts.end_run(RUN, job.now_ns)
    (stopped,) = job.verdicts.of_run(RUN)
    assert stopped.is_stopped and stopped.until_ns == job.now_ns and stopped.slowdown == 1.0


def test_a_stopped_aggregator_charges_nothing() -> None:
    """After a night of a suspended aggregator the job had lost 500 GPU-hours."""
    job = Job()
    job.run(10, SLOW)
    job.now_ns += 3600 * SECOND_NS
    (verdict,) = job.run(1, SLOW)
    assert verdict.lost_gpu_hours < 0.1


def test_verdicts_go_on_after_a_restart() -> None:
    """The loss so far and the start are kept."""
    job = Job()
    job.run(600, RACK)
    with duckdb.connect() as connection:
        for _, migration in migrations():
            connection.execute(migration)
        for _ in range(2):  # the second replaces the first
            changes = VerdictChanges(job.verdicts.of_run(RUN), frozenset())
            put_verdicts(connection, changes, job.now_ns)
        verdicts = JobVerdicts()
        verdicts.restore(read_verdicts(connection))
    (before,), (after,) = job.verdicts.of_run(RUN), verdicts.of_run(RUN)
    assert after.verdict_id == before.verdict_id and after.fault.hosts == RACK.hosts
    assert after.lost_gpu_hours == pytest.approx(before.lost_gpu_hours)
    restarted = Job(verdicts, job.now_ns)
    assert len(restarted.run(60, RACK)) == 1
