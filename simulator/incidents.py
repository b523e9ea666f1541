"""What befalls, in columns: a row for each host that an incident strikes."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .machine import GPUS
from .scenario import FaultClass, JobShapes, Scenario, Settings, SettingsError
from .topology import Places

Floats = npt.NDArray[np.float64]
Random = np.random.Generator

#: An incident; times are seconds of the world. part: GPU, port or rail; -1: all of the host.
DTYPE = np.dtype(
    [
        ("cause", np.int64),  # shared by all rows of one cause
        ("origin", np.int64),  # of a fault that came back: the cause of the first; else -1
        ("cls", np.int16),
        ("host", np.int32),
        ("part", np.int16),
        ("job", np.int32),  # that it is of; -1: of the host
        ("begin", np.float64),
        ("onset", np.float64),  # seconds until it is at its full amount
        ("end", np.float64),  # of the effect
        ("amount", np.float64),
        ("variant", np.float64),  # uniform: what else is drawn of it
    ]
)
Rows = npt.NDArray[np.void]

#: So many rows of one class are more than anybody reads, and than memory bears.
ROWS_MAX = 1_000_000
#: Classes that strike all hosts of a place, and by which of `Places`' arrays.
SHARED = {
    "rack_hour": "rack",
    "leaf_hour": "leaf",
    "cooling_hour": "cooling",
    "nvlink_hour": "nvlink",
}
HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True, slots=True)
class Draws:
    """What every draw needs: the same seed and name give the same numbers, whatever else is drawn."""

    seed: int
    settings: Settings
    scenario: Scenario
    places: Places
    frailty: Floats  # (hosts,), sums to 1

    @property
    def seconds(self) -> float:
        """How long the world lasts."""
        return self.scenario.days * DAY

    @property
    def jobs(self) -> JobShapes:
        """Sizes, durations and steps of this scenario's jobs."""
        return self.scenario.jobs or self.settings.jobs

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return self.frailty.size

    def random(self, *names: str) -> Random:
        """Return a source of its own for what is called so."""
        return named_random(self.seed, *names)


def named_random(seed: int, *names: str) -> Random:
    """Return a random source that depends on the seed and the names alone."""
    return np.random.default_rng([seed, *(zlib.crc32(name.encode()) for name in names)])


def frailty(settings: Settings, seed: int, hosts: int) -> Floats:
    """Return each host's share of what befalls hardware."""
    shape = settings.frailty.shape
    drawn = named_random(seed, "frailty").gamma(shape, 1 / shape, hosts)
    return np.asarray(drawn / drawn.sum())


def empty(count: int) -> Rows:
    """Return rows to fill: of no job, no origin."""
    rows = np.zeros(count, DTYPE)
    rows["job"] = rows["origin"] = -1
    return rows


def joined(parts: Iterable[Rows]) -> Rows:
    """Return all rows as one array."""
    found = list(parts)
    return np.concatenate(found) if found else empty(0)


def check_rows(draws: Draws, each: FaultClass) -> None:
    """Raise SettingsError where a rate makes more rows of *each* than ROWS_MAX."""
    units = draws.hosts * (GPUS if each.per in ("gpu_hour", "port_hour") else 1)
    hours = 1.0 if each.per in ("share", "job_share") else draws.seconds / HOUR
    count = each.rate * draws.scenario.rate_factor * units * hours
    if count > ROWS_MAX:
        raise SettingsError(
            f"[class.{each.name}] rate: {each.rate:g} {each.per} makes about {count:,.0f} incidents in "
            f"[scenario.{draws.scenario.name}], with its rate_factor of {draws.scenario.rate_factor:g}: "
            f"expected at most {ROWS_MAX:,}"
        )


def details(rows: Rows, each: FaultClass, number: int, random: Random) -> Rows:
    """Draw onset, duration, amount and variant of *rows*, in place; return them."""
    count = len(rows)
    rows["cls"] = number
    onset = random.uniform(*each.onset_seconds, count)
    silent = random.random(count) < each.onset_silent_ratio
    rows["onset"] = np.where(silent, 0.0, onset)
    spread = np.exp(each.duration_sigma * random.standard_normal(count))
    rows["end"] = rows["begin"] + rows["onset"] + each.duration_median_seconds * spread
    rows["amount"] = random.uniform(*each.amount, count)
    rows["variant"] = random.random(count)
    return rows


def draw(draws: Draws, each: FaultClass, number: int, first_cause: int) -> Rows:
    """Return the incidents of a class over the whole span, as if every host were always there."""
    random = draws.random("class", each.name)
    if each.per in SHARED:
        return _shared(draws, each, number, first_cause, random)
    count, chosen = _struck(draws, each, random)
    rows = empty(count)
    rows["cause"] = first_cause + np.arange(count)
    rows["host"] = chosen
    by_part = each.per in ("gpu_hour", "port_hour") or each.name == "saturated_counter"
    rows["part"] = random.integers(0, GPUS, count) if by_part or each.monitoring else -1
    rows["begin"] = 0.0 if each.per == "share" else random.uniform(0, draws.seconds, count)
    return details(rows, each, number, random)


def _struck(draws: Draws, each: FaultClass, random: Random) -> tuple[int, npt.NDArray[np.int64]]:
    """Return how many rows there are, and of which hosts."""
    hosts = draws.hosts
    if each.per == "share":
        chosen = np.flatnonzero(random.random(hosts) < each.rate * draws.scenario.rate_factor)
        return chosen.size, chosen
    units = hosts * (1 if each.per == "host_hour" else GPUS)
    hours = draws.seconds / HOUR
    count = int(random.poisson(each.rate * draws.scenario.rate_factor * units * hours))
    weights = draws.frailty if each.sort == "faults" else None
    return count, random.choice(hosts, count, p=weights)


def _shared(draws: Draws, each: FaultClass, number: int, first_cause: int, random: Random) -> Rows:
    """One cause strikes all hosts of a place, within two seconds of each other."""
    where = getattr(draws.places, SHARED[each.per])
    places = int(where.max()) + 1
    hours = draws.seconds / HOUR
    count = int(random.poisson(each.rate * draws.scenario.rate_factor * places * hours))
    causes = details(empty(count), each, number, random)
    causes["cause"] = first_cause + np.arange(count)
    begins = random.uniform(0, draws.seconds, count)
    at = random.integers(0, places, count)
    part = random.integers(0, GPUS, count) if each.per == "leaf_hour" else np.full(count, -1)
    return joined(
        spread(causes[i : i + 1], float(begins[i]), int(part[i]), np.flatnonzero(where == at[i]))
        for i in range(count)
    )


def spread(cause: Rows, begin: float, part: int, hosts: npt.NDArray[np.intp]) -> Rows:
    """Return a row for each of *hosts* of the one cause, a little apart."""
    rows = np.repeat(cause, hosts.size)
    rows["host"], rows["part"] = hosts, part
    rows["begin"] += begin + 1.5 * (np.arange(hosts.size) * 0.618 % 1.0)
    rows["end"] += begin
    return rows


def parade(draws: Draws, classes: Sequence[tuple[int, FaultClass]]) -> dict[int, float]:
    """Return when each class has its turn, by its number."""
    every = draws.scenario.parade_seconds
    return {number: every * (turn + 1) for turn, (number, _) in enumerate(classes)}


# ----------------------------------------------------------------------
# Hosts' lives: who is struck by what ends in a repair, away for how long, and struck again after
# it.

#: A boot takes this long.
BOOT_SECONDS = 420.0


@dataclass(order=True, slots=True)
class Away:
    """A host is not there: switched off, in repair, or booting."""

    begin: float
    end: float = field(compare=False)
    host: int = field(compare=False)
    cause: int = field(compare=False)


@dataclass(slots=True)
class Lives:
    """The incidents that happened, when hosts were away, and when a job on a host dies."""

    rows: Rows
    away: list[Away]
    kills: list[tuple[float, int, int]]  # (when, host, cause)


class _Life:
    """Goes through what may befall, in time's order."""

    def __init__(self, draws: Draws, classes: tuple[FaultClass, ...], next_cause: int) -> None:
        self._draws, self._classes = draws, classes
        self._random = draws.random("lives")
        self._next = next_cause
        self._back = np.zeros(draws.hosts)  # when each host is there again
        self.kept: list[Rows] = []
        self.away: list[Away] = []
        self.kills: list[tuple[float, int, int]] = []

    def run(self, rows: Rows) -> None:
        heap = [(float(r["begin"]), i, rows[i : i + 1]) for i, r in enumerate(rows)]
        heapq.heapify(heap)
        order = len(heap)
        while heap:
            begin, _, row = heapq.heappop(heap)
            host = int(row["host"][0])
            if begin < self._back[host]:
                continue  # it was away: nothing can befall it
            self._strike(row, self._classes[int(row["cls"][0])])
            if (again := self._again(row)) is not None:
                order += 1
                heapq.heappush(heap, (float(again["begin"][0]), order, again))

    def _strike(self, row: Rows, each: FaultClass) -> None:
        host, cause, dies = int(row["host"][0]), int(row["cause"][0]), float(row["end"][0])
        if each.kills:
            self.kills.append((dies, host, cause))
        if each.ends in ("repair", "restart"):
            gone = dies + 60.0 * self._draws.settings.repair.drain_minutes
            if each.name == "rack_dark":
                gone = float(row["begin"][0])
            back = gone + (BOOT_SECONDS if each.ends == "restart" else self._repair_seconds())
            row["end"] = self._back[host] = back
            self.away.append(Away(gone, back, host, cause))
        self.kept.append(row)

    def _repair_seconds(self) -> float:
        repair = self._draws.settings.repair
        if self._draws.scenario.parade_seconds:
            return self._draws.scenario.parade_seconds / 2  # nobody waits for hours in a parade
        hours = repair.median_hours * np.exp(repair.sigma * self._random.standard_normal())
        return HOUR * float(np.clip(hours, 0.5, repair.hours_max))

    def _again(self, row: Rows) -> Rows | None:
        """Return the same fault once more, if it comes back after the return. What hosts share is no host's own: it
        would come back on one of them alone."""
        each = self._classes[int(row["cls"][0])]
        if each.ends not in ("repair", "restart") or self._draws.scenario.parade_seconds:
            return None
        if each.per in SHARED:
            return None
        days = days_until_next(self._draws, float(self._random.exponential()))
        begin = float(self._back[int(row["host"][0])]) + days * DAY
        if begin >= self._draws.seconds:
            return None
        again = row.copy()
        again["begin"] = begin
        details(again, each, int(row["cls"][0]), self._random)
        again["cause"], self._next = self._next, self._next + 1
        again["origin"] = row["origin"] if row["origin"][0] >= 0 else row["cause"]
        return again


def days_until_next(draws: Draws, exponential: float) -> float:
    """Return after how many days a host that came back is struck again; infinite for not in a burst.

    *exponential*: a draw of mean 1, spent along the piecewise constant hazard since the return.
    """
    after = draws.settings.after_return
    begin, left = 0.0, exponential
    for until, per_1000 in zip(after.until_days, after.per_1000_node_days, strict=True):
        hazard = per_1000 / 1000.0 * min(draws.scenario.rate_factor, 1.0)
        if hazard * (until - begin) >= left:
            return begin + left / hazard
        left -= hazard * (until - begin)
        begin = until
    return float("inf")


def live(draws: Draws, classes: tuple[FaultClass, ...], rows: Rows, next_cause: int) -> Lives:
    """Return what of *rows* happened, and what followed. *rows*: of classes that end a host's uptime or
    kill its job."""
    life = _Life(draws, classes, next_cause)
    life.run(rows)
    return Lives(joined(life.kept) if life.kept else empty(0), sorted(life.away), life.kills)
