"""Hosts and steps whose readings are made: around incidents, and a random sample of all time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .faults import Ints
from .incidents import HOUR, Random, Rows, named_random
from .truth import causes
from .world import STEP_SECONDS, World

#: Observed time before an incident, after it, and limit for a long incident.
BEFORE_SECONDS, AFTER_SECONDS, LENGTH_SECONDS_MAX = 180.0, 300.0, 1200.0
#: Limits of the hosts of an episode: affected hosts, their gangs, their racks, and further peers.
HOSTS_MAX, HOSTS_MIN = 48, 16


@dataclass(frozen=True, slots=True)
class SampledEpisode:
    """Hosts and a span to make readings of; each represents *weight* similar episodes."""

    class_name: str  # empty: independent of any class
    cause: int  # -1: none
    hosts: tuple[int, ...]
    begin: float
    end: float
    weight: float


def fault_episodes(world: World, per_class_max: int) -> Iterator[SampledEpisode]:
    """Yield episodes of at most *per_class_max* causes of each class, drawn by the world's seed."""
    by_class: dict[int, list[Rows]] = {}
    for rows in causes(world.schedule.rows):
        by_class.setdefault(int(rows["cls"][0]), []).append(rows)
    for number, found in sorted(by_class.items()):
        each = world.schedule.classes[number]
        random = named_random(world.seed, "episodes", each.name)
        count = min(per_class_max, len(found))
        for index in sorted(random.choice(len(found), count, replace=False).tolist()):
            yield _fault_episode(world, found[index], len(found) / count)


def _fault_episode(world: World, rows: Rows, weight: float) -> SampledEpisode:
    first = rows[0]
    each, cause = world.schedule.classes[int(first["cls"])], int(first["cause"])
    random = named_random(world.seed, "episode", each.name, str(cause))
    has_begin = each.sort == "faults" and each.per != "share"
    begin, end = _observed_span(world, rows, has_begin, random)
    hosts = _related_hosts(world, rows["host"].astype(np.int64), begin)
    # Steps have a random offset: a cause that always began on a step would be reported at once.
    since = max(begin - BEFORE_SECONDS, 0.0) + float(random.uniform(0.0, STEP_SECONDS))
    until = min(end + AFTER_SECONDS, world.seconds)
    return SampledEpisode(each.name, cause, tuple(hosts.tolist()), since, until, weight)


def _observed_span(
    world: World, rows: Rows, has_begin: bool, random: Random
) -> tuple[float, float]:
    """Return the observed span of an incident: the begin of a fault that has a begin, else a random part.

    The random part serves permanent faults and long look-alikes, which are mostly active in other jobs and hours than
    those in which they began.
    """
    begin, end = float(rows["begin"].min()), min(float(rows["end"].max()), world.seconds)
    if has_begin:
        return begin, min(end, begin + float(rows[0]["onset"]) + LENGTH_SECONDS_MAX)
    length = min(end - begin, LENGTH_SECONDS_MAX)
    begin = float(random.uniform(begin, max(end - length, begin)))
    return begin, begin + length


def _related_hosts(world: World, faulty: Ints, now: float) -> Ints:
    """Return the affected hosts, then the hosts that share their jobs, their racks, and neighbors."""
    schedule, topology = world.schedule, world.schedule.topology
    faulty = np.unique(faulty)
    jobs = [schedule.job_at(host, now) for host in faulty.tolist()]
    gangs = [job.hosts for job in jobs if job is not None]
    racks = np.flatnonzero(np.isin(topology.rack, topology.rack[faulty]))
    near = np.argsort(np.abs(np.arange(schedule.hosts) - faulty[0]), kind="stable")[:HOSTS_MIN]
    everyone = np.concatenate([faulty, *gangs, racks, near]).astype(np.int64)
    _, first = np.unique(everyone, return_index=True)
    return np.asarray(everyone[np.sort(first)][:HOSTS_MAX])


def random_spans(
    world: World, count: int, length_seconds: float = HOUR
) -> Iterator[SampledEpisode]:
    """Yield *count* spans of the whole fleet, one at random within each equal part of the world's time.

    The spans have incidents at the same rate as the world, without any selection.
    """
    random = named_random(world.seed, "hours")
    length = min(length_seconds, world.seconds)
    hosts = tuple(range(world.scenario.hosts))
    for number in range(count):
        begin = float(int((world.seconds - length) * (number + float(random.random())) / count))
        yield SampledEpisode("", -1, hosts, begin, begin + length, world.seconds / (count * length))
