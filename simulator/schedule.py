"""All that happens in a world: incidents, hosts that are away, jobs. Pure; from the seed alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from . import incidents
from .incidents import HOUR, Away, Draws, Rows, details, empty, joined, live, spread
from .jobs import Cluster, Job
from .machine import GPUS
from .scenario import FaultClass, Scenario, Settings
from .topology import Places

#: Jobs of fewer hosts have no peers in their gang: what is drawn for a parade strikes others.
PARADE_HOSTS_MIN = 4
_SHARES = ("job_hour", "job_share")
#: What befalls so strikes hosts, and no part of them.
_WHOLE_HOSTS = ("host_hour", "rack_hour", "cooling_hour", "nvlink_hour")
_BY_PART = ("gpu_hour", "port_hour")
#: On a stage nobody waits for minutes.
STAGE_ONSET_SECONDS_MAX = 15.0


@dataclass(slots=True)
class Schedule:
    """What happens, in time's order, and by host."""

    seconds: float
    hosts: int
    classes: tuple[FaultClass, ...]
    places: Places
    rows: Rows  # by begin
    away: list[Away]  # by begin
    jobs: list[Job]  # by number, which is the order in which they began
    stints: dict[int, list[int]]  # host -> its jobs' numbers, by begin
    absences: dict[int, list[Away]]  # host -> when it was away, by begin

    def job_at(self, host: int, now: float) -> Job | None:
        """Return the job on a host at a moment."""
        for number in reversed(self.stints.get(host, [])):
            job = self.jobs[number]
            if job.begin <= now:
                return job if now < job.end else None
        return None

    def booted(self, host: int, now: float) -> tuple[int, float]:
        """Return how often a host has booted since the world began, and when last (0: before it)."""
        ends = [away.end for away in self.absences.get(host, []) if away.end <= now]
        return len(ends), ends[-1] if ends else 0.0

    def is_away(self, host: int, now: float) -> bool:
        """Say whether a host is switched off or in repair."""
        return any(a.begin <= now < a.end for a in self.absences.get(host, []))


def build(settings: Settings, scenario: Scenario, seed: int) -> Schedule:
    """Return what happens in *scenario*. The same seed gives the same, to the last bit."""
    places = Places(settings.fleet, scenario.hosts, scenario.nvlink_hosts)
    shares = incidents.frailty(settings, seed, scenario.hosts)
    draws = Draws(seed, settings, scenario, places, shares)
    return _Builder(draws).build()


class _Builder:
    """Draws first what ends uptimes, then the jobs, then what depends on them."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self.classes = tuple(draws.settings.classes.values())
        allowed = {each.name for each in draws.settings.befalling(draws.scenario)}
        self._allowed = [(n, each) for n, each in enumerate(self.classes) if each.name in allowed]
        self._next = 0

    def build(self) -> Schedule:
        draws = self._draws
        for _, each in self._allowed:
            incidents.check_rows(draws, each)
        before, reboots = self._before_jobs()
        ending = [each.kills or each.ends in ("repair", "restart") for each in self.classes]
        ends = np.array(ending, bool)[before["cls"]] if len(before) else np.zeros(0, bool)
        lives = live(draws, self.classes, before[ends], 1_000_000)
        cluster = Cluster(draws, lives, reboots)
        cluster.run()
        absences = _by_host(sorted([*lives.away, *cluster.rebooted]))
        stints = _stints(cluster.jobs)
        result = Schedule(
            draws.seconds, draws.hosts, self.classes, draws.places, empty(0),
            sorted([*lives.away, *cluster.rebooted]), cluster.jobs, stints, absences,
        )  # fmt: skip
        loose = _while_there(result, before[~ends])
        of_jobs = self._of_jobs(result)
        planned = self._planned(cluster.rebooted)
        rows = joined([lives.rows, loose, of_jobs, planned, self._on_stage(result)])
        rows = rows[rows["begin"] < draws.seconds]
        _number(result, rows[np.lexsort((rows["host"], rows["cause"], rows["begin"]))])
        return result

    def _causes(self, count: int) -> int:
        first, self._next = self._next, self._next + count
        return first

    def _before_jobs(self) -> tuple[Rows, list[tuple[float, int, int]]]:
        """Return what befalls whether a job runs or not, and the reboots that are planned."""
        found: list[Rows] = []
        reboots: list[tuple[float, int, int]] = []
        for number, each in self._allowed:
            if each.per in _SHARES or each.exposure == "job" or self._is_staged(each):
                continue
            if self._draws.scenario.parade_seconds and each.per != "share":
                rows = self._on_parade(number, each)
            else:
                rows = incidents.draw(self._draws, each, number, self._next)
            self._causes(int(rows["cause"].max()) + 1 - self._next if len(rows) else 0)
            if each.name == "planned_reboot":
                reboots += [(float(r["begin"]), int(r["host"]), int(r["cause"])) for r in rows]
            else:
                found.append(rows)
        return joined(found), reboots

    def _turn(self, number: int) -> float:
        """Return when a class has its turn in a parade."""
        allowed = [(n, e) for n, e in self._allowed if e.per != "share"]
        return incidents.parade(self._draws, allowed)[number]

    def _on_parade(self, number: int, each: FaultClass) -> Rows:
        random = self._draws.random("parade", each.name)
        cause = details(empty(1), each, number, random)
        self._shorten(cause)
        cause["cause"] = self._next
        order = self._draws.random("parade").permutation(self._draws.hosts)
        host = int(order[number % order.size])
        hosts = np.array([host])
        if each.per in incidents.SHARED:
            where = getattr(self._draws.places, incidents.SHARED[each.per])
            hosts = np.flatnonzero(where == where[host])
        whole = each.per in _WHOLE_HOSTS and not each.monitoring
        part = -1 if whole else int(random.integers(GPUS))
        return spread(cause, self._turn(number), part, hosts)

    def _shorten(self, rows: Rows) -> None:
        """In a parade nobody waits for hours: each class is over before the next but one."""
        every = self._draws.scenario.parade_seconds
        rows["onset"] = np.minimum(rows["onset"], every / 4)
        rows["end"] = rows["begin"] + np.minimum(rows["end"] - rows["begin"], every)

    def _of_jobs(self, schedule: Schedule) -> Rows:
        """Return what befalls only while a job runs."""
        found: list[Rows] = []
        for number, each in self._allowed:
            if each.exposure != "job" or self._is_staged(each):
                continue
            if self._draws.scenario.parade_seconds:
                rows = self._parade_of_jobs(schedule, number, each)
            elif each.per in _SHARES:
                rows = self._per_job(schedule, number, each)
            else:
                rows = incidents.draw(self._draws, each, number, self._next)
                rows = _in_jobs(schedule, rows)
            self._causes(int(rows["cause"].max()) + 1 - self._next if len(rows) else 0)
            found.append(_within_jobs(schedule, rows, each))
        return joined(found)

    def _per_job(self, schedule: Schedule, number: int, each: FaultClass) -> Rows:
        """Draw for each job by its hours, or once: a row for each of its hosts."""
        random = self._draws.random("class", each.name)
        factor = self._draws.scenario.rate_factor if each.sort != "benign" else 1.0
        found, causes = [], 0
        for job in schedule.jobs:
            if each.per == "job_share":
                count = int(job.hosts.size > 1 and random.random() < each.rate)
            else:
                shared = random.random() < each.job_ratio
                size = job.hosts.size / each.job_hosts if each.job_hosts else 1.0
                mean = each.rate * factor * size * (job.end - job.begin) / HOUR
                count = int(random.poisson(mean)) if shared else 0
            for _ in range(count):
                within = 0.0 if each.per == "job_share" else random.random()
                begin = job.begin + within * (job.end - job.begin)
                row = details(empty(1), each, number, random)
                row["cause"], row["job"] = self._next + causes, job.number
                causes += 1
                found.append(spread(row, begin, -1, job.hosts))
        return joined(found)

    def _parade_of_jobs(self, schedule: Schedule, number: int, each: FaultClass) -> Rows:
        begin = self._turn(number)
        running = [j for j in schedule.jobs if j.begin <= begin < j.end - 120.0]
        if not running:
            return empty(0)
        large = [j for j in running if j.hosts.size >= PARADE_HOSTS_MIN] or running
        random = self._draws.random("parade", each.name)
        job = large[int(random.integers(len(large)))]
        row = details(empty(1), each, number, random)
        self._shorten(row)
        row["cause"], row["job"] = self._next, job.number
        if each.per in _SHARES:
            return spread(row, begin, -1, job.hosts)
        row["job"] = -1
        part = int(random.integers(GPUS)) if each.per == "gpu_hour" else -1
        return spread(row, begin, part, random.choice(job.hosts, 1))

    def _is_staged(self, each: FaultClass) -> bool:
        return self._draws.scenario.stage_seconds[1] > 0 and each.sort == "faults"

    def _on_stage(self, schedule: Schedule) -> Rows:
        """Return one of each class, clearly to be seen: on hosts of different jobs while there are some, and
        until the world ends, for nobody repairs on a stage. A class that strikes a rack comes first: it needs a job
        that has the whole rack. A class without a begin (`share`) is there from the start."""
        random = self._draws.random("stage")
        staged = [(number, each) for number, each in self._allowed if self._is_staged(each)]
        found: list[Rows] = []
        taken: set[int] = set()  # jobs of a rack that is struck
        for number, each in staged:
            if each.per in incidents.SHARED:
                where = getattr(self._draws.places, incidents.SHARED[each.per])
                hosts = _together(schedule, where, taken)
                taken |= _jobs_of(schedule, hosts)
                row = self._staged(number, each, 0, random)
                begin, end = float(row["begin"][0]), row["end"].copy()
                row["begin"] = 0.0
                row = spread(row, begin, -1, hosts)
                row["end"] = end
                found.append(row)
        alone = [one for one in staged if one[1].per not in incidents.SHARED]
        free = [job for job in schedule.jobs if job.number not in taken]
        for (number, each), host in zip(alone, _apart(free, random), strict=False):
            row = self._staged(number, each, GPUS if each.per in _BY_PART else 0, random)
            row["host"] = host
            found.append(row)
        return joined(found)

    def _staged(
        self, number: int, each: FaultClass, parts: int, random: np.random.Generator
    ) -> Rows:
        """Return a row of a class; *parts*: of how many parts of the host one is struck, 0 for none."""
        low, high = each.amount
        row = details(empty(1), replace(each, amount=((low + high) / 2, high)), number, random)
        row["cause"] = self._causes(1)
        row["part"] = random.integers(parts) if parts else -1
        row["onset"] = np.minimum(row["onset"], STAGE_ONSET_SECONDS_MAX)
        begin = random.uniform(*self._draws.scenario.stage_seconds)
        row["begin"] = 0.0 if each.per == "share" else begin
        row["end"] = self._draws.seconds
        return row

    def _planned(self, rebooted: list[Away]) -> Rows:
        number = next((n for n, e in self._allowed if e.name == "planned_reboot"), -1)
        rows = empty(len(rebooted))
        for row, away in zip(rows, rebooted, strict=True):
            row["cls"], row["cause"], row["host"], row["part"] = number, away.cause, away.host, -1
            row["begin"], row["end"], row["amount"] = away.begin, away.end, 1.0
        return rows


def _jobs_of(schedule: Schedule, hosts: npt.NDArray[np.intp]) -> set[int]:
    """Return the numbers of the jobs that begin the world on *hosts*."""
    jobs = (schedule.job_at(host, 0.0) for host in hosts.tolist())
    return {job.number for job in jobs if job is not None}


def _together(
    schedule: Schedule, where: npt.NDArray[np.int64], taken: set[int]
) -> npt.NDArray[np.intp]:
    """Return the hosts of one place, all at work: of none of the jobs *taken*, and of as few jobs as can be."""

    def worth(place: int) -> tuple[int, int, int]:
        hosts = np.flatnonzero(where == place)
        jobs = _jobs_of(schedule, hosts)
        idle = sum(schedule.job_at(host, 0.0) is None for host in hosts.tolist())
        return len(jobs & taken), len(jobs) + idle, place

    return np.flatnonzero(where == min(range(int(where.max()) + 1), key=worth))


def _apart(jobs: list[Job], random: np.random.Generator) -> list[int]:
    """Return the hosts of the jobs that begin the world, a job after another: large jobs first, else at random."""
    first = [random.permutation(job.hosts).tolist() for job in jobs if not job.begin]
    order = random.permutation(len(first)).tolist()
    order.sort(key=lambda at: -min(len(first[at]), PARADE_HOSTS_MIN))
    turns = zip_longest(*(first[at] for at in order))
    return [host for turn in turns for host in turn if host is not None]


def _by_host(away: list[Away]) -> dict[int, list[Away]]:
    found: dict[int, list[Away]] = {}
    for each in away:
        found.setdefault(each.host, []).append(each)
    return found


def _stints(jobs: list[Job]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for job in jobs:
        for host in job.hosts.tolist():
            found.setdefault(host, []).append(job.number)
    return found


def _while_there(schedule: Schedule, rows: Rows) -> Rows:
    """Leave out what would befall a host that is away, and end with its uptime what is not for ever."""
    for row in rows:
        for away in schedule.absences.get(int(row["host"]), []):
            if away.begin <= row["begin"] < away.end:
                row["begin"] = np.inf
            elif row["begin"] < away.begin < row["end"]:
                never = schedule.classes[int(row["cls"])].ends == "never"
                row["end"] = row["end"] if never else away.begin
    return np.asarray(rows[np.isfinite(rows["begin"])])


def _in_jobs(schedule: Schedule, rows: Rows) -> Rows:
    """Keep what befalls a host while a job runs on it."""
    hosts, begins = rows["host"].tolist(), rows["begin"].tolist()
    kept = [schedule.job_at(h, b) is not None for h, b in zip(hosts, begins, strict=True)]
    return np.asarray(rows[np.array(kept, bool)])


def _within_jobs(schedule: Schedule, rows: Rows, each: FaultClass) -> Rows:
    """End with the job what is the job's."""
    if each.per in _SHARES and len(rows):
        ends: npt.NDArray[np.float64] = np.array([job.end for job in schedule.jobs])
        rows["end"] = np.minimum(rows["end"], ends[rows["job"]])
    return rows


def _number(schedule: Schedule, rows: Rows) -> None:
    """Number the causes in time's order, from 0, wherever they are named; put *rows* into *schedule*."""
    order: dict[int, int] = {-1: -1}
    for cause in rows["cause"].tolist():
        order.setdefault(cause, len(order) - 1)
    for name in ("cause", "origin"):
        rows[name] = [order[c] for c in rows[name].tolist()]
    schedule.rows = rows
    schedule.jobs = [replace(job, killed_by=order[job.killed_by]) for job in schedule.jobs]
    for away in schedule.away:  # the same objects as in `absences`
        away.cause = order.get(away.cause, -1)
