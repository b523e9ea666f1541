"""The truth log: which host had which fault, when, how severe, and which hosts waited. Readings never contain it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .faults import Ints
from .incidents import HOUR, Random, Rows, named_random
from .jobs import SimulatedJob
from .machine import RDMA_PORTS
from .schedule import WorldSchedule
from .world import STEP_SECONDS, World

#: Classes for which no gang waits: they only change reports, or show nowhere.
_CLASSES_WITHOUT_VICTIMS = ("silent_corruption", "full_load_cap")
#: Classes of NVLinks.
NVLINK_CLASSES = ("nvlink", "nvlink_switch")


def lines(world: World) -> Iterator[str]:
    """Yield the log as JSON lines: the world, its jobs by number, its incidents by begin.

    A cause that affects many hosts is one line. Times are seconds of the world, and nanoseconds of its wall clock.
    """
    yield _line(_header(world))
    for job in world.schedule.jobs:
        yield _line(_job(world, job))
    for rows in causes(world.schedule.rows):
        yield _line(incident(world, rows))


def causes(rows: Rows) -> Iterator[Rows]:
    """Yield the rows of each cause, by number, which is the order of time."""
    if len(rows):
        ordered = rows[np.argsort(rows["cause"], kind="stable")]
        yield from np.split(ordered, np.flatnonzero(np.diff(ordered["cause"])) + 1)


def _line(values: dict[str, object]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def _header(world: World) -> dict[str, object]:
    scenario = world.scenario
    return {
        "what": "world",
        "scenario": scenario.name,
        "seed": world.seed,
        "hosts": scenario.hosts,
        "seconds": world.seconds,
        "start_wall_ns": world.start_wall_ns,
        "assumed_classes": [c.name for c in world.settings.active_classes(scenario) if c.assumed],
        "chosen": {c.name: c.chosen for c in world.settings.active_classes(scenario) if c.chosen},
    }


def _job(world: World, job: SimulatedJob) -> dict[str, object]:
    return {
        "what": "job",
        "job": job.number,
        "begin_seconds": _round(job.begin),
        "end_seconds": _round(job.end),
        "killed_by": job.killed_by if job.killed_by >= 0 else None,
        "hosts": [world.machines[host].name for host in job.hosts.tolist()],
        "period_seconds": _round(job.period_seconds),
        "checkpoint_every_seconds": _round(job.checkpoint_every_seconds),
        "checkpoint_seconds": _round(job.checkpoint_seconds),
        "is_memory_bound": job.is_memory_bound,
    }


def incident(world: World, rows: Rows) -> dict[str, object]:
    """Return the record of one cause; *rows* are its rows."""
    first = rows[0]
    each = world.schedule.classes[int(first["cls"])]
    begin, end = float(rows["begin"].min()), float(min(rows["end"].max(), world.seconds))
    jobs = _jobs(world.schedule, rows)
    faulty_hosts = set(rows["host"].tolist())
    members = {h for job in jobs for h in job.hosts.tolist()}
    has_victims = each.sort == "faults" and each.name not in _CLASSES_WITHOUT_VICTIMS
    return {
        "what": "incident",
        "cause": int(first["cause"]),
        "origin": int(first["origin"]) if first["origin"] >= 0 else None,
        "class": each.name,
        "sort": each.sort,
        "assumed": each.assumed,
        "begin_seconds": _round(begin),
        "due_seconds": _round(begin + float(first["onset"])),
        "end_seconds": _round(end),
        "begin_wall_ns": world.start_wall_ns + round(begin * 1e9),
        "amount": round(float(first["amount"]), 4),
        "amount_is": each.amount_is,
        "struck": [[world.machines[r["host"]].name, _part(world, each.per, r)] for r in rows],
        "jobs": [job.number for job in jobs],
        "killed_jobs": [j.number for j in jobs if j.killed_by == int(first["cause"])],
        "victims_count": len(members - faulty_hosts) if has_victims else 0,
        "tensor_group": [world.machines[h].name for h in tensor_group(world.schedule, rows)],
    }


def tensor_group(schedule: WorldSchedule, rows: Rows) -> list[int]:
    """Return the hosts, by index, that wait directly for an NVLink: by the affected jobs and NVLink domains."""
    if schedule.classes[int(rows["cls"][0])].name not in NVLINK_CLASSES:
        return []
    domains = {*schedule.topology.nvlink[rows["host"]].tolist()}
    members = {h for job in _jobs(schedule, rows) for h in job.hosts.tolist()}
    return sorted(h for h in members if int(schedule.topology.nvlink[h]) in domains)


def _jobs(schedule: WorldSchedule, rows: Rows) -> list[SimulatedJob]:
    """Return the jobs on the affected hosts while the effect lasted."""
    begin, end = float(rows["begin"].min()), float(rows["end"].max())
    numbers = {n for host in rows["host"].tolist() for n in schedule.jobs_by_host.get(host, [])}
    found = [schedule.jobs[number] for number in sorted(numbers)]
    return [job for job in found if job.begin < end and job.end > begin]


def _part(world: World, per: str, row: np.void) -> str:
    part = int(row["part"])
    if part < 0:
        return "host"
    if per in ("port_hour", "leaf_hour"):
        return RDMA_PORTS[part]
    return world.machines[int(row["host"])].gpus[part]


def _round(seconds: float) -> float:
    return round(float(seconds), 3)


# ----------------------------------------------------------------------
# Selection of hosts and steps for readings: around incidents, and a random sample of all time.

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
