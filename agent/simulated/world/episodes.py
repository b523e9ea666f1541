"""Which hosts and steps are worth readings: where something happens, and quiet times with their weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .channels import Ints
from .incidents import Rows, named_random
from .truth import causes
from .world import World

#: What is watched before an incident and after it, and of a long one.
BEFORE_SECONDS, AFTER_SECONDS, LENGTH_SECONDS_MAX = 180.0, 120.0, 1200.0
#: Hosts of an episode: those struck, their gangs, their racks, and others beside as peers.
HOSTS_MAX, HOSTS_MIN = 48, 16


@dataclass(frozen=True, slots=True)
class Episode:
    """Hosts and a span to make readings of; each stands for *weight* as many like it."""

    class_name: str  # empty: a quiet time, of which nothing may be said
    cause: int  # -1: quiet
    hosts: tuple[int, ...]
    begin: float
    end: float
    weight: float


def eventful(world: World, per_class_max: int) -> Iterator[Episode]:
    """Yield episodes of at most *per_class_max* causes of each class, drawn by the world's seed."""
    by_class: dict[int, list[Rows]] = {}
    for rows in causes(world.schedule.rows):
        by_class.setdefault(int(rows["cls"][0]), []).append(rows)
    for number, found in sorted(by_class.items()):
        each = world.schedule.classes[number]
        random = named_random(world.seed, "episodes", each.name)
        count = min(per_class_max, len(found))
        for at in sorted(random.choice(len(found), count, replace=False).tolist()):
            yield _around(world, found[at], len(found) / count)


def _around(world: World, rows: Rows, weight: float) -> Episode:
    begin, first = float(rows["begin"].min()), rows[0]
    length = min(float(rows["end"].max()) - begin, float(first["onset"]) + LENGTH_SECONDS_MAX)
    hosts = _company(world, rows["host"].astype(np.int64), begin)
    return Episode(
        world.schedule.classes[int(first["cls"])].name,
        int(first["cause"]),
        tuple(hosts.tolist()),
        max(begin - BEFORE_SECONDS, 0.0),
        min(begin + length + AFTER_SECONDS, world.seconds),
        weight,
    )


def _company(world: World, struck: Ints, now: float) -> Ints:
    """Return the struck hosts, then who shares their jobs, their racks, and neighbours."""
    schedule, places = world.schedule, world.schedule.places
    struck = np.unique(struck)
    jobs = [schedule.job_at(host, now) for host in struck.tolist()]
    gangs = [job.hosts for job in jobs if job is not None]
    racks = np.flatnonzero(np.isin(places.rack, places.rack[struck]))
    near = np.argsort(np.abs(np.arange(schedule.hosts) - struck[0]), kind="stable")[:HOSTS_MIN]
    everyone = np.concatenate([struck, *gangs, racks, near]).astype(np.int64)
    _, first = np.unique(everyone, return_index=True)
    return np.asarray(everyone[np.sort(first)][:HOSTS_MAX])


def quiet(world: World, count: int, length_seconds: float = 600.0) -> Iterator[Episode]:
    """Yield *count* random spans of HOSTS_MIN neighbours on which no fault and no fault of the telling
    stands (what is benign may); weights add up to all the host-seconds of which that is so."""
    random = named_random(world.seed, "quiet")
    rows = world.schedule.rows
    serious = np.array([each.sort != "benign" for each in world.schedule.classes])
    rows = rows[serious[rows["cls"]]]
    size = min(HOSTS_MIN, world.scenario.hosts)
    found: list[tuple[int, float]] = []
    tried = 0
    while len(found) < count and tried < 200 * count:
        tried += 1
        first = int(random.integers(world.scenario.hosts - size + 1))
        begin = float(random.uniform(0, max(world.seconds - length_seconds, 0.0)))
        near = (rows["host"] >= first) & (rows["host"] < first + size)
        if not (near & (rows["begin"] < begin + length_seconds) & (rows["end"] > begin)).any():
            found.append((first, begin))
    total = world.seconds * world.scenario.hosts * len(found) / max(tried, 1)
    weight = total / max(len(found) * size * length_seconds, 1.0)
    for first, begin in found:
        hosts = tuple(range(first, first + size))
        yield Episode("", -1, hosts, begin, begin + length_seconds, weight)
