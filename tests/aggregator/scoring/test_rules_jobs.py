"""A GPU held by processes that have ended. Readings are set by hand."""

from __future__ import annotations

from gangline.aggregator.model import HealthState, Reason
from tests.worlds import World, gpu_of

TABLE = "gpu_job_1s_changes"


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
