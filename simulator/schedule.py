"""Schedule of a world: incidents, host absences, jobs. Pure; derived from the seed alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from . import incidents
from .incidents import (
    HOUR,
    DrawContext,
    Rows,
    draw_details,
    empty_rows,
    joined_rows,
    spread_over_hosts,
)
from .jobs import Cluster, SimulatedJob
from .machine import GPUS
from .scenario import FaultClass, Scenario, WorldSettings
from .timelines import Downtime, build_timelines
from .topology import FleetTopology

#: Smaller jobs have too few peers in their gang: incidents of a parade affect larger jobs.
PARADE_HOSTS_MIN = 4
_PER_JOB = ("job_hour", "job_share")
#: Rates whose incidents affect whole hosts.
_WHOLE_HOSTS = ("host_hour", "rack_hour", "cooling_hour", "nvlink_hour")
_BY_PART = ("gpu_hour", "port_hour")
#: Limit of an onset on a stage, where an audience does not wait for minutes.
STAGE_ONSET_SECONDS_MAX = 15.0


@dataclass(slots=True)
class WorldSchedule:
    """All events of a world, in order of time, and by host."""

    seconds: float
    hosts: int
    classes: tuple[FaultClass, ...]
    topology: FleetTopology
    rows: Rows  # by begin
    downtimes: list[Downtime]  # by begin
    jobs: list[SimulatedJob]  # by number, in order of their begin
    jobs_by_host: dict[int, list[int]]  # host -> its jobs' numbers, by begin
    downtimes_by_host: dict[int, list[Downtime]]  # host -> its downtimes, by begin

    def job_at(self, host: int, now: float) -> SimulatedJob | None:
        """Return the job on a host at *now*, None without a job."""
        for number in reversed(self.jobs_by_host.get(host, [])):
            job = self.jobs[number]
            if job.begin <= now:
                return job if now < job.end else None
        return None

    def last_boot(self, host: int, now: float) -> tuple[int, float]:
        """Return the number of boots since the world began, and the time of the last (0 without boots)."""
        ends = [away.end for away in self.downtimes_by_host.get(host, []) if away.end <= now]
        return len(ends), ends[-1] if ends else 0.0

    def is_away(self, host: int, now: float) -> bool:
        """Return whether a host is switched off or in repair."""
        return any(a.begin <= now < a.end for a in self.downtimes_by_host.get(host, []))


def build_schedule(settings: WorldSettings, scenario: Scenario, seed: int) -> WorldSchedule:
    """Return the schedule of *scenario*. The same seed gives exactly the same schedule."""
    topology = FleetTopology(settings.fleet, scenario.hosts, scenario.nvlink_hosts)
    shares = incidents.draw_frailty(settings, seed, scenario.hosts)
    context = DrawContext(seed, settings, scenario, topology, shares)
    return _ScheduleBuilder(context).build()


class _ScheduleBuilder:
    """Draws first the incidents that end uptimes, then the jobs, then the incidents that depend on jobs."""

    def __init__(self, context: DrawContext) -> None:
        self._context = context
        self.classes = tuple(context.settings.classes.values())
        allowed = {each.name for each in context.settings.active_classes(context.scenario)}
        self._allowed = [(n, each) for n, each in enumerate(self.classes) if each.name in allowed]
        self._next_cause = 0

    def build(self) -> WorldSchedule:
        context = self._context
        for _, each in self._allowed:
            incidents.check_rows(context, each)
        independent, reboots = self._draw_before_jobs()
        ending = [each.kills or each.ends in ("repair", "restart") for each in self.classes]
        ends_uptime = (
            np.array(ending, bool)[independent["cls"]] if len(independent) else np.zeros(0, bool)
        )
        timelines = build_timelines(context, self.classes, independent[ends_uptime], 1_000_000)
        cluster = Cluster(context, timelines, reboots)
        cluster.run()
        downtimes = sorted([*timelines.downtimes, *cluster.reboot_downtimes])
        result = WorldSchedule(
            seconds=context.seconds,
            hosts=context.hosts,
            classes=self.classes,
            topology=context.topology,
            rows=empty_rows(0),
            downtimes=downtimes,
            jobs=cluster.jobs,
            jobs_by_host=_jobs_by_host(cluster.jobs),
            downtimes_by_host=_downtimes_by_host(downtimes),
        )
        loose = _while_up(result, independent[~ends_uptime])
        of_jobs = self._job_rows(result)
        planned = self._planned_reboots(cluster.reboot_downtimes)
        rows = joined_rows([timelines.rows, loose, of_jobs, planned, self._stage_rows(result)])
        rows = rows[rows["begin"] < context.seconds]
        _number_causes(result, rows[np.lexsort((rows["host"], rows["cause"], rows["begin"]))])
        return result

    def _reserve_causes(self, count: int) -> int:
        first, self._next_cause = self._next_cause, self._next_cause + count
        return first

    def _draw_before_jobs(self) -> tuple[Rows, list[tuple[float, int, int]]]:
        """Return the incidents that do not depend on jobs, and the planned reboots."""
        found: list[Rows] = []
        reboots: list[tuple[float, int, int]] = []
        for number, each in self._allowed:
            if each.per in _PER_JOB or each.exposure == "job" or self._is_staged(each):
                continue
            if self._context.scenario.parade_seconds and each.per != "share":
                rows = self._parade_rows(number, each)
            else:
                rows = incidents.draw_incidents(self._context, each, number, self._next_cause)
            self._reserve_causes(
                int(rows["cause"].max()) + 1 - self._next_cause if len(rows) else 0
            )
            if each.name == "planned_reboot":
                reboots += [(float(r["begin"]), int(r["host"]), int(r["cause"])) for r in rows]
            else:
                found.append(rows)
        return joined_rows(found), reboots

    def _parade_time(self, number: int) -> float:
        allowed = [(n, e) for n, e in self._allowed if e.per != "share"]
        return incidents.parade_times(self._context, allowed)[number]

    def _parade_rows(self, number: int, fault_class: FaultClass) -> Rows:
        random = self._context.random_source("parade", fault_class.name)
        cause = draw_details(empty_rows(1), fault_class, number, random)
        self._shorten(cause)
        cause["cause"] = self._next_cause
        order = self._context.random_source("parade").permutation(self._context.hosts)
        host = int(order[number % order.size])
        hosts = np.array([host])
        if fault_class.per in incidents.SHARED_PLACES:
            place_of = getattr(self._context.topology, incidents.SHARED_PLACES[fault_class.per])
            hosts = np.flatnonzero(place_of == place_of[host])
        whole = fault_class.per in _WHOLE_HOSTS and not fault_class.monitoring
        part = -1 if whole else int(random.integers(GPUS))
        return spread_over_hosts(cause, self._parade_time(number), part, hosts)

    def _shorten(self, rows: Rows) -> None:
        """Shorten *rows* for a parade: each class is over before the class after the next."""
        every = self._context.scenario.parade_seconds
        rows["onset"] = np.minimum(rows["onset"], every / 4)
        rows["end"] = rows["begin"] + np.minimum(rows["end"] - rows["begin"], every)

    def _job_rows(self, schedule: WorldSchedule) -> Rows:
        """Return the incidents that occur only while a job runs."""
        found: list[Rows] = []
        for number, each in self._allowed:
            if each.exposure != "job" or self._is_staged(each):
                continue
            if self._context.scenario.parade_seconds:
                rows = self._parade_job_rows(schedule, number, each)
            elif each.per in _PER_JOB:
                rows = self._draw_per_job(schedule, number, each)
            else:
                rows = incidents.draw_incidents(self._context, each, number, self._next_cause)
                rows = _in_jobs(schedule, rows)
            self._reserve_causes(
                int(rows["cause"].max()) + 1 - self._next_cause if len(rows) else 0
            )
            found.append(_end_with_job(schedule, rows, each))
        return joined_rows(found)

    def _draw_per_job(self, schedule: WorldSchedule, number: int, fault_class: FaultClass) -> Rows:
        """Draw for each job by its hours, or once: a row for each of its hosts."""
        random = self._context.random_source("class", fault_class.name)
        factor = self._context.scenario.rate_factor if fault_class.sort != "benign" else 1.0
        found, causes = [], 0
        for job in schedule.jobs:
            if fault_class.per == "job_share":
                count = int(job.hosts.size > 1 and random.random() < fault_class.rate)
            else:
                shared = random.random() < fault_class.job_ratio
                size = job.hosts.size / fault_class.job_hosts if fault_class.job_hosts else 1.0
                mean = fault_class.rate * factor * size * (job.end - job.begin) / HOUR
                count = int(random.poisson(mean)) if shared else 0
            for _ in range(count):
                within = 0.0 if fault_class.per == "job_share" else random.random()
                begin = job.begin + within * (job.end - job.begin)
                row = draw_details(empty_rows(1), fault_class, number, random)
                row["cause"], row["job"] = self._next_cause + causes, job.number
                causes += 1
                found.append(spread_over_hosts(row, begin, -1, job.hosts))
        return joined_rows(found)

    def _parade_job_rows(
        self, schedule: WorldSchedule, number: int, fault_class: FaultClass
    ) -> Rows:
        begin = self._parade_time(number)
        running = [j for j in schedule.jobs if j.begin <= begin < j.end - 120.0]
        if not running:
            return empty_rows(0)
        large = [j for j in running if j.hosts.size >= PARADE_HOSTS_MIN] or running
        random = self._context.random_source("parade", fault_class.name)
        job = large[int(random.integers(len(large)))]
        row = draw_details(empty_rows(1), fault_class, number, random)
        self._shorten(row)
        row["cause"], row["job"] = self._next_cause, job.number
        if fault_class.per in _PER_JOB:
            return spread_over_hosts(row, begin, -1, job.hosts)
        row["job"] = -1
        part = int(random.integers(GPUS)) if fault_class.per == "gpu_hour" else -1
        return spread_over_hosts(row, begin, part, random.choice(job.hosts, 1))

    def _is_staged(self, fault_class: FaultClass) -> bool:
        is_shown = fault_class.sort == "faults" or fault_class.stage_after_seconds > 0.0
        return self._context.scenario.stage_seconds[1] > 0 and is_shown

    def _stage_rows(self, schedule: WorldSchedule) -> Rows:
        """Return one clearly visible incident of each class, on hosts of different jobs as far as possible.

        The incidents last until the world ends, because demonstrations have no repairs. Classes that affect a rack come
        first: they need a job that has the whole rack. A class without a begin (`share`) is active from the start.
        """
        random = self._context.random_source("stage")
        staged = [(number, each) for number, each in self._allowed if self._is_staged(each)]
        found: list[Rows] = []
        used_jobs: set[int] = set()  # jobs on a rack that is affected
        for number, each in staged:
            if each.per in incidents.SHARED_PLACES:
                place_of = getattr(self._context.topology, incidents.SHARED_PLACES[each.per])
                hosts = _hosts_of_place(schedule, place_of, used_jobs)
                used_jobs |= _jobs_of(schedule, hosts)
                row = self._stage_row(number, each, 0, random)
                begin, end = float(row["begin"][0]), row["end"].copy()
                row["begin"] = 0.0
                row = spread_over_hosts(row, begin, -1, hosts)
                row["end"] = end
                found.append(row)
        alone = [one for one in staged if one[1].per not in incidents.SHARED_PLACES]
        free = [job for job in schedule.jobs if job.number not in used_jobs]
        for (number, each), host in zip(alone, _hosts_of_jobs(free, random), strict=False):
            row = self._stage_row(number, each, GPUS if each.per in _BY_PART else 0, random)
            row["host"] = host
            found.append(row)
        return joined_rows(found)

    def _stage_row(
        self, number: int, fault_class: FaultClass, parts: int, random: np.random.Generator
    ) -> Rows:
        """Return a row of a class; *parts*: parts of the host from which one is drawn, 0 for the whole host."""
        low, high = fault_class.amount
        row = draw_details(
            empty_rows(1), replace(fault_class, amount=((low + high) / 2, high)), number, random
        )
        row["cause"] = self._reserve_causes(1)
        row["part"] = random.integers(parts) if parts else -1
        row["onset"] = np.minimum(row["onset"], STAGE_ONSET_SECONDS_MAX)
        begin = random.uniform(*self._context.scenario.stage_seconds)
        begin += fault_class.stage_after_seconds
        row["begin"] = 0.0 if fault_class.per == "share" else begin
        row["end"] = self._context.seconds
        return row

    def _planned_reboots(self, rebooted: list[Downtime]) -> Rows:
        number = next((n for n, e in self._allowed if e.name == "planned_reboot"), -1)
        rows = empty_rows(len(rebooted))
        for row, away in zip(rows, rebooted, strict=True):
            row["cls"], row["cause"], row["host"], row["part"] = number, away.cause, away.host, -1
            row["begin"], row["end"], row["amount"] = away.begin, away.end, 1.0
        return rows


def _jobs_of(schedule: WorldSchedule, hosts: npt.NDArray[np.intp]) -> set[int]:
    """Return the numbers of the jobs on *hosts* at the world's beginning."""
    jobs = (schedule.job_at(host, 0.0) for host in hosts.tolist())
    return {job.number for job in jobs if job is not None}


def _hosts_of_place(
    schedule: WorldSchedule, place_of: npt.NDArray[np.int64], used_jobs: set[int]
) -> npt.NDArray[np.intp]:
    """Return the hosts of the place with the fewest jobs in *used_jobs*, then with the fewest jobs and idle hosts."""

    def cost(place: int) -> tuple[int, int, int]:
        hosts = np.flatnonzero(place_of == place)
        jobs = _jobs_of(schedule, hosts)
        idle = sum(schedule.job_at(host, 0.0) is None for host in hosts.tolist())
        return len(jobs & used_jobs), len(jobs) + idle, place

    return np.flatnonzero(place_of == min(range(int(place_of.max()) + 1), key=cost))


def _hosts_of_jobs(jobs: list[SimulatedJob], random: np.random.Generator) -> list[int]:
    """Return the hosts of the first jobs, alternating between jobs: large jobs first, else at random."""
    first = [random.permutation(job.hosts).tolist() for job in jobs if not job.begin]
    order = random.permutation(len(first)).tolist()
    order.sort(key=lambda at: -min(len(first[at]), PARADE_HOSTS_MIN))
    rounds = zip_longest(*(first[at] for at in order))
    return [host for one_round in rounds for host in one_round if host is not None]


def _downtimes_by_host(away: list[Downtime]) -> dict[int, list[Downtime]]:
    found: dict[int, list[Downtime]] = {}
    for each in away:
        found.setdefault(each.host, []).append(each)
    return found


def _jobs_by_host(jobs: list[SimulatedJob]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for job in jobs:
        for host in job.hosts.tolist():
            found.setdefault(host, []).append(job.number)
    return found


def _while_up(schedule: WorldSchedule, rows: Rows) -> Rows:
    """Leave out incidents on a host that is away; incidents, except permanent ones, end with the host's uptime."""
    for row in rows:
        for away in schedule.downtimes_by_host.get(int(row["host"]), []):
            if away.begin <= row["begin"] < away.end:
                row["begin"] = np.inf
            elif row["begin"] < away.begin < row["end"]:
                never = schedule.classes[int(row["cls"])].ends == "never"
                row["end"] = row["end"] if never else away.begin
    return np.asarray(rows[np.isfinite(rows["begin"])])


def _in_jobs(schedule: WorldSchedule, rows: Rows) -> Rows:
    """Return the rows that begin while a job runs on their host."""
    hosts, begins = rows["host"].tolist(), rows["begin"].tolist()
    has_job = [schedule.job_at(h, b) is not None for h, b in zip(hosts, begins, strict=True)]
    return np.asarray(rows[np.array(has_job, bool)])


def _end_with_job(schedule: WorldSchedule, rows: Rows, fault_class: FaultClass) -> Rows:
    if fault_class.per in _PER_JOB and len(rows):
        ends: npt.NDArray[np.float64] = np.array([job.end for job in schedule.jobs])
        rows["end"] = np.minimum(rows["end"], ends[rows["job"]])
    return rows


def _number_causes(schedule: WorldSchedule, rows: Rows) -> None:
    """Number the causes in order of time, from 0, also in `origin` and `killed_by`; put *rows* into *schedule*."""
    order: dict[int, int] = {-1: -1}
    for cause in rows["cause"].tolist():
        order.setdefault(cause, len(order) - 1)
    for name in ("cause", "origin"):
        rows[name] = [order[c] for c in rows[name].tolist()]
    schedule.rows = rows
    schedule.jobs = [replace(job, killed_by=order[job.killed_by]) for job in schedule.jobs]
    for away in schedule.downtimes:  # the same objects as in `downtimes_by_host`
        away.cause = order.get(away.cause, -1)
