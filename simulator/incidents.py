"""Incidents in columns: one row per affected host."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .machine import GPUS
from .scenario import FaultClass, JobShapes, Scenario, ScenarioError, WorldSettings
from .topology import FleetTopology

Floats = npt.NDArray[np.float64]
Random = np.random.Generator

#: An incident; times are seconds of the world. part: GPU, port or rail; -1: the whole host.
DTYPE = np.dtype(
    [
        ("cause", np.int64),  # shared by all rows of one cause
        ("origin", np.int64),  # cause of the first occurrence of a fault that came back; else -1
        ("cls", np.int16),
        ("host", np.int32),
        ("part", np.int16),
        ("job", np.int32),  # the affected job; -1: the host
        ("begin", np.float64),
        ("onset", np.float64),  # seconds until the full amount
        ("end", np.float64),  # end of the effect
        ("amount", np.float64),
        ("variant", np.float64),  # uniform draw for further choices of the class
    ]
)
Rows = npt.NDArray[np.void]

#: Limit of the rows of one class, for readers and for memory.
ROWS_MAX = 1_000_000
#: Classes that affect all hosts of a place, and the array of `FleetTopology` with the place.
SHARED_PLACES = {
    "rack_hour": "rack",
    "leaf_hour": "leaf",
    "cooling_hour": "cooling",
    "nvlink_hour": "nvlink",
}
HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True, slots=True)
class DrawContext:
    """Inputs of every draw: the same seed and name give the same numbers, independent of other draws."""

    seed: int
    settings: WorldSettings
    scenario: Scenario
    topology: FleetTopology
    frailty: Floats  # (hosts,), sums to 1

    @property
    def seconds(self) -> float:
        """Length of the world."""
        return self.scenario.days * DAY

    @property
    def jobs(self) -> JobShapes:
        """Sizes, durations and steps of this scenario's jobs."""
        return self.scenario.jobs or self.settings.jobs

    @property
    def hosts(self) -> int:
        return self.frailty.size

    def random_source(self, *names: str) -> Random:
        return named_random(self.seed, *names)


def named_random(seed: int, *names: str) -> Random:
    """Return a random source that depends only on the seed and the names."""
    return np.random.default_rng([seed, *(zlib.crc32(name.encode()) for name in names)])


def draw_frailty(settings: WorldSettings, seed: int, hosts: int) -> Floats:
    """Return each host's share of all hardware faults."""
    shape = settings.frailty.shape
    shares = named_random(seed, "frailty").gamma(shape, 1 / shape, hosts)
    return np.asarray(shares / shares.sum())


def empty_rows(count: int) -> Rows:
    """Return rows to fill, without job and origin."""
    rows = np.zeros(count, DTYPE)
    rows["job"] = rows["origin"] = -1
    return rows


def joined_rows(parts: Iterable[Rows]) -> Rows:
    arrays = list(parts)
    return np.concatenate(arrays) if arrays else empty_rows(0)


def check_rows(context: DrawContext, each: FaultClass) -> None:
    """Raise ScenarioError if a rate makes more rows of *each* than ROWS_MAX."""
    units = context.hosts * (GPUS if each.per in ("gpu_hour", "port_hour") else 1)
    hours = 1.0 if each.per in ("share", "job_share") else context.seconds / HOUR
    count = each.rate * context.scenario.rate_factor * units * hours
    if count > ROWS_MAX:
        raise ScenarioError(
            f"[class.{each.name}] rate: {each.rate:g} {each.per} makes about {count:,.0f} incidents in "
            f"[scenario.{context.scenario.name}], with its rate_factor of {context.scenario.rate_factor:g}: "
            f"expected at most {ROWS_MAX:,}"
        )


def draw_details(rows: Rows, each: FaultClass, number: int, random: Random) -> Rows:
    """Draw onset, duration, amount and variant of *rows*, in place; return *rows*."""
    count = len(rows)
    rows["cls"] = number
    onset = random.uniform(*each.onset_seconds, count)
    is_sudden = random.random(count) < each.onset_silent_ratio
    rows["onset"] = np.where(is_sudden, 0.0, onset)
    spread = np.exp(each.duration_sigma * random.standard_normal(count))
    rows["end"] = rows["begin"] + rows["onset"] + each.duration_median_seconds * spread
    rows["amount"] = random.uniform(*each.amount, count)
    rows["variant"] = random.random(count)
    return rows


def draw_incidents(context: DrawContext, each: FaultClass, number: int, first_cause: int) -> Rows:
    """Return the incidents of a class over the whole span, as if no host were ever away."""
    random = context.random_source("class", each.name)
    if each.per in SHARED_PLACES:
        return _draw_shared(context, each, number, first_cause, random)
    count, hosts = _draw_hosts(context, each, random)
    rows = empty_rows(count)
    rows["cause"] = first_cause + np.arange(count)
    rows["host"] = hosts
    by_part = each.per in ("gpu_hour", "port_hour") or each.name == "saturated_counter"
    rows["part"] = random.integers(0, GPUS, count) if by_part or each.monitoring else -1
    rows["begin"] = 0.0 if each.per == "share" else random.uniform(0, context.seconds, count)
    return draw_details(rows, each, number, random)


def _draw_hosts(
    context: DrawContext, fault_class: FaultClass, random: Random
) -> tuple[int, npt.NDArray[np.int64]]:
    """Return the number of rows, and their hosts."""
    hosts = context.hosts
    if fault_class.per == "share":
        chosen_hosts = np.flatnonzero(
            random.random(hosts) < fault_class.rate * context.scenario.rate_factor
        )
        return chosen_hosts.size, chosen_hosts
    units = hosts * (1 if fault_class.per == "host_hour" else GPUS)
    hours = context.seconds / HOUR
    count = int(random.poisson(fault_class.rate * context.scenario.rate_factor * units * hours))
    weights = context.frailty if fault_class.sort == "faults" else None
    return count, random.choice(hosts, count, p=weights)


def _draw_shared(
    context: DrawContext, fault_class: FaultClass, number: int, first_cause: int, random: Random
) -> Rows:
    """Draw causes that affect all hosts of a place within two seconds."""
    place_of = getattr(context.topology, SHARED_PLACES[fault_class.per])
    places = int(place_of.max()) + 1
    hours = context.seconds / HOUR
    count = int(random.poisson(fault_class.rate * context.scenario.rate_factor * places * hours))
    causes = draw_details(empty_rows(count), fault_class, number, random)
    causes["cause"] = first_cause + np.arange(count)
    begins = random.uniform(0, context.seconds, count)
    at = random.integers(0, places, count)
    part = random.integers(0, GPUS, count) if fault_class.per == "leaf_hour" else np.full(count, -1)
    return joined_rows(
        spread_over_hosts(
            causes[i : i + 1], float(begins[i]), int(part[i]), np.flatnonzero(place_of == at[i])
        )
        for i in range(count)
    )


def spread_over_hosts(cause: Rows, begin: float, part: int, hosts: npt.NDArray[np.intp]) -> Rows:
    """Return a row of *cause* for each of *hosts*, with slightly different begins."""
    rows = np.repeat(cause, hosts.size)
    rows["host"], rows["part"] = hosts, part
    rows["begin"] += begin + 1.5 * (np.arange(hosts.size) * 0.618 % 1.0)
    rows["end"] += begin
    return rows


def parade_times(
    context: DrawContext, classes: Sequence[tuple[int, FaultClass]]
) -> dict[int, float]:
    interval_seconds = context.scenario.parade_seconds
    return {number: interval_seconds * (turn + 1) for turn, (number, _) in enumerate(classes)}
