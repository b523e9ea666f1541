"""Look-alikes that are not in the schedule: checkpoints, jobs that begin and end, idle hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gangline.simulator.world import World

CHECKPOINT, BEGINS, ENDS, IDLE = (
    "checkpoint",
    "job begins",
    "job ends",
    "idle, PCIe links down-shifted",
)
KINDS = (CHECKPOINT, BEGINS, ENDS, IDLE)


class PassingState(NamedTuple):
    """A passing event on one host."""

    kind: str
    host: str
    begin: float
    end: float


def passing(world: World, hosts: Sequence[int], begin: float, end: float) -> Iterator[PassingState]:
    """Yield the passing events on *hosts* within a span."""
    schedule, names = world.schedule, world.names
    for host in hosts:
        name, busy = names[host], list[tuple[float, float]]()
        for number in schedule.jobs_by_host.get(host, []):
            job = schedule.jobs[number]
            if job.begin >= end or job.end <= begin:
                continue
            busy.append((job.begin, job.end))
            for kind, at in ((BEGINS, job.begin), (ENDS, job.end)):
                if begin < at < end:
                    yield PassingState(kind, name, at, at)
            for at, until in _checkpoints(
                job.begin, job.checkpoint_every_seconds, job.checkpoint_seconds, end
            ):
                if until > begin and until <= job.end:
                    yield PassingState(CHECKPOINT, name, at, until)
        at = begin
        for since, until in [*sorted(busy), (end, end)]:
            if since > at:
                yield PassingState(IDLE, name, at, since)
            at = max(at, until)


def _checkpoints(
    begin: float, every: float, writing: float, end: float
) -> Iterator[tuple[float, float]]:
    at = begin + every
    while at < end:
        yield at, at + writing
        at += every
