"""A GPU held by processes that have ended. Readings are set by hand."""

from __future__ import annotations

from typing import Any

from gangline.agent.collectors.change_events import REPEAT_NS
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.rule_catalogue.faults import EVENT_POLICY
from gangline.contract.xid.policy import Clears
from tests.worlds import World, gpu_of

TABLE = "gpu_job_1s_changes"
ISOLATION = "host.isolation"


def test_a_gpu_held_by_the_dead_is_found() -> None:
    """Three jobs in a row ran out of memory on a GPU that seemed idle and healthy otherwise."""
    world = World(seconds=10)
    host = world.hosts[0]
    host.set(TABLE, gpu_of(host, 0), dead_count=1, dead_memory_bytes=60e9, unknown_count=0)
    world.run(45)
    score = world.score(host)
    assert (score.state, score.reason) == (HealthState.DEGRADED, Reason.DRIVER_HUNG)
    assert "held by a process that has ended, with 60.0 GB of its memory" in score.reason_message
    assert score.reason_message.endswith("whose it was is in ops.gpu_processes")
    host.set(TABLE, gpu_of(host, 0), dead_count=0, dead_memory_bytes=0)
    world.run(30)
    assert world.score(host).state is HealthState.HEALTHY


def test_processes_that_end_as_others_do_are_none() -> None:
    """The end of every job leaves its processes in the driver's list for moments."""
    world = World(seconds=10)
    host = world.hosts[0]
    host.set(TABLE, gpu_of(host, 0), dead_count=8, dead_memory_bytes=400e9)
    world.run(10)
    host.set(TABLE, gpu_of(host, 0), dead_count=0, dead_memory_bytes=0)
    world.run(60)
    assert world.score(host).state is HealthState.HEALTHY


def test_processes_of_whom_nobody_knows_are_none() -> None:
    """An agent in its own container sees no owners: not a fault of the host."""
    world = World()
    host = world.hosts[0]
    host.set(TABLE, gpu_of(host, 0), processes_count=8, unknown_count=8, dead_count=0)
    world.run(90)
    assert world.score(host).state is HealthState.HEALTHY


def isolation_event(world: World, state: str, pair: int = 0, **more: Any) -> None:
    evidence = {
        "job": "12",
        "other_job": "13",
        "boundaries": "cpus",
        "cpus": "both may run on cores 4-7",
    }
    world.event(
        world.hosts[0], 0, f"12 and {13 + pair}", ISOLATION, message="jobs 12 and 13 are not isolated: cpus",
        event_id=f"isolation/{pair}", attributes={"state": state, **evidence}, **more,
    )  # fmt: skip


def test_jobs_that_are_not_isolated_are_a_finding_and_no_fault_of_their_host() -> None:
    """A host was drained at night because two tenants shared four cores, as a user had asked for."""
    world = World(seconds=10)
    isolation_event(world, "violated")
    world.run(5)
    score = world.score(world.hosts[0])
    assert (score.state, score.reason) == (HealthState.HEALTHY, Reason.NONE)
    (finding,) = [f for f in world.fleet.findings.values() if f.name == ISOLATION]
    assert "jobs 12 and 13 are not isolated: cpus" in finding.message
    assert any("not isolated" in evidence.message for evidence in score.evidence)
    isolation_event(world, "ended", lasted=1.0)
    world.run(5)
    assert [f for f in world.fleet.findings.values() if f.name == ISOLATION] == []


def test_a_host_of_many_tenants_has_one_finding() -> None:
    """Eight users on each of a thousand hosts are 28,000 pairs, and would leave no room for other findings."""
    world = World(seconds=10)
    for pair in range(5):
        isolation_event(world, "violated", pair)
    world.run(5)
    assert len([f for f in world.fleet.findings.values() if f.name == ISOLATION]) == 1
    isolation_event(world, "ended", 4, lasted=1.0)
    world.run(5)
    assert len([f for f in world.fleet.findings.values() if f.name == ISOLATION]) == 1


def test_a_breach_whose_end_was_lost_ends_after_two_missed_repeats() -> None:
    """An agent that was restarted does not know which breaches it had reported."""
    condition = EVENT_POLICY[ISOLATION]
    assert condition.clears is Clears.TIME
    assert 2 * REPEAT_NS < condition.seconds * 1e9 < 3 * REPEAT_NS
