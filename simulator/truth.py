"""The truth log: which host had which fault, when, how severe, and which hosts waited. Readings never contain it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from .incidents import Rows
from .jobs import SimulatedJob
from .machine import RDMA_PORTS
from .schedule import WorldSchedule
from .world import World

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
