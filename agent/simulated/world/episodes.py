"""Which hosts and steps are worth readings: where something happens, and a random sample of all time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .channels import Ints
from .incidents import HOUR, Random, Rows, named_random
from .truth import causes
from .world import STEP_SECONDS, World

#: What is watched before an incident and after it, and of a long one.
BEFORE_SECONDS, AFTER_SECONDS, LENGTH_SECONDS_MAX = 180.0, 300.0, 1200.0
#: Hosts of an episode: those struck, their gangs, their racks, and others beside as peers.
HOSTS_MAX, HOSTS_MIN = 48, 16


@dataclass(frozen=True, slots=True)
class Episode:
    """Hosts and a span to make readings of; each stands for *weight* as many like it."""

    class_name: str  # empty: of no class, whatever befalls then
    cause: int  # -1: none
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
    first = rows[0]
    each, cause = world.schedule.classes[int(first["cls"])], int(first["cause"])
    random = named_random(world.seed, "episode", each.name, str(cause))
    has_begin = each.sort == "faults" and each.per != "share"
    begin, end = _watched(world, rows, has_begin, random)
    hosts = _company(world, rows["host"].astype(np.int64), begin)
    # Steps fall anywhere between two of them: a cause that always began on one would be told at once.
    since = max(begin - BEFORE_SECONDS, 0.0) + float(random.uniform(0.0, STEP_SECONDS))
    until = min(end + AFTER_SECONDS, world.seconds)
    return Episode(each.name, cause, tuple(hosts.tolist()), since, until, weight)


def _watched(world: World, rows: Rows, has_begin: bool, random: Random) -> tuple[float, float]:
    """Return what is watched of an incident: of a fault its begin, if it has one; of what stands for ever and of a long
    look-alike some of it, at random, for it stands most of the time at another job and another hour than it began in."""
    begin, end = float(rows["begin"].min()), min(float(rows["end"].max()), world.seconds)
    if has_begin:
        return begin, min(end, begin + float(rows[0]["onset"]) + LENGTH_SECONDS_MAX)
    length = min(end - begin, LENGTH_SECONDS_MAX)
    begin = float(random.uniform(begin, max(end - length, begin)))
    return begin, begin + length


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


def hours(world: World, count: int, length_seconds: float = HOUR) -> Iterator[Episode]:
    """Yield *count* spans of the whole fleet, one at random within each equal part of the world's time: all that befalls
    is in them as often as in the world, and nobody chose it."""
    random = named_random(world.seed, "hours")
    length = min(length_seconds, world.seconds)
    everybody = tuple(range(world.scenario.hosts))
    for number in range(count):
        begin = float(int((world.seconds - length) * (number + float(random.random())) / count))
        yield Episode("", -1, everybody, begin, begin + length, world.seconds / (count * length))
