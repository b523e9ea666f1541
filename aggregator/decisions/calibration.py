"""Price factors, re-estimated from scheduler reports. Each starts from the constant that is assumed without reports.

**Durations** are lognormal. Half of the assumed interval counts as the difference between clusters and half as that between
incidents, so one report weighs as much as the assumption (a normal-inverse-gamma prior with one pseudo-observation;
Gelman et al., Bayesian Data Analysis, 3.3). The value is the median; the interval is that of the next incident.
**The cost of crossing a tier** comes from throughputs of one workload on equally many nodes that span different numbers of
domains. It is a regression of ln(throughput) on `price.topology_factor` with a level per such group; the assumed costs are
the prior.
**Throughput by size** is the median of the reports at each size.

A report's weight halves after a half-life. Of several reporters none counts for more than half, nor for more than twice the mean
of all, however many reports it sends.
Neither the order of reports nor the names of workloads matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log, nan, sqrt
from typing import NamedTuple

import numpy as np

from ..counter_deltas import Floats
from ..scoring.calibration import reporter_share_max, share_cap
from ..scoring.reported_factors import ReportedFactor, ReportedFactors, ReportedThroughputs
from .price import (
    COMMUNICATION_SHARE,
    CROSSING,
    DECIDE_FACTOR,
    DECIDE_MINUTES,
    DETECT_FACTOR,
    DETECT_MINUTES,
    RESTART_FACTOR,
    RESTART_MINUTES,
    crossing_factor,
)
from .quantity import QuantitySource
from .recovery import (
    ACT_MINUTES,
    LOCAL_RESTORE_MINUTES,
    PEER_RESUME_FACTOR,
    REMOTE_RESTORE_MINUTES,
    RESTART_ACT_FACTOR,
    STORAGE_RESUME_FACTOR,
    RecoveryKind,
)
from .requirements import PRICED_TIERS
from .scaling import NOISE_ASSUMED, NOISE_POINTS, scaling_curve

#: Of each duration the minutes that are assumed, with their 90 % interval.
DURATIONS: Mapping[str, tuple[float, float, float]] = {
    DETECT_FACTOR: DETECT_MINUTES,
    DECIDE_FACTOR: DECIDE_MINUTES,
    RESTART_FACTOR: RESTART_MINUTES,
    **dict(ACT_MINUTES.values()),
    PEER_RESUME_FACTOR: LOCAL_RESTORE_MINUTES,
    STORAGE_RESUME_FACTOR: REMOTE_RESTORE_MINUTES,
}
#: A duration outside of these counts as the nearer one: a second, and the week that a request may declare.
DURATION_HOURS_MIN, DURATION_HOURS_MAX = 1.0 / 3600.0, 168.0
#: How many reports the assumed median is worth, and the assumed spread between incidents (both assumed).
MEDIAN_REPORTS, SPREAD_REPORTS = 1.0, 4.0
#: Of a normal distribution: half the width of a 90 % interval.
_Z = 1.6449
#: Workloads whose throughputs are remembered, and sizes of each; of more, those that were reported last.
WORKLOADS_MAX, WORKLOAD_SIZES_MAX = 1000, 64
#: Crossing takes at most this many times longer; a cost beyond it is a mistake in the unit of a report.
CROSSING_COST_MAX = 10.0
#: Steps of the regression: each is exact but for the curvature of ln(1 + x).
_STEPS = 12
_HOUR_NS, _DAY_NS = 3600 * 10**9, 86_400 * 10**9


class RecoveryReport(NamedTuple):
    """How a recovery went. Times are in ns since 1970, 0 where nobody said; those that are there ascend."""

    incident: str
    reporter: str
    time_ns: int  #: when it was reported
    kind: int  #: RecoveryKind, 0: nobody said
    fault_ns: int
    detect_ns: int
    decide_ns: int
    act_ns: int
    resume_ns: int
    success: bool
    restarted: bool  #: healthy processes ended and started again
    restored_from_peer: bool  #: state came from the memory of a peer, not from storage

    def hours(self) -> dict[str, float]:
        """Return the durations that it tells of, by factor.

        Of one that failed only detect and decide count. Waiting for a repair is no duration of ours: that has its own price.
        """
        found: dict[str, float] = {}

        def put(factor: str, begin_ns: int, end_ns: int) -> None:
            if begin_ns and end_ns:
                found[factor] = (end_ns - begin_ns) / _HOUR_NS

        put(DETECT_FACTOR, self.fault_ns, self.detect_ns)
        put(DECIDE_FACTOR, self.detect_ns, self.decide_ns)
        if not self.success:
            return found
        resume = PEER_RESUME_FACTOR if self.restored_from_peer else STORAGE_RESUME_FACTOR
        put(resume, self.act_ns, self.resume_ns)
        if self.kind in (0, RecoveryKind.WAIT_FOR_REPAIR):
            return found
        act = RESTART_ACT_FACTOR if self.restarted else ACT_MINUTES[RecoveryKind(self.kind)][0]
        put(act, self.decide_ns, self.act_ns)
        put(RESTART_FACTOR, self.decide_ns, self.resume_ns)
        return found


class ThroughputReport(NamedTuple):
    """The throughput of a run. `domains`: that it spanned of each priced tier, 0 where that is not known."""

    outcome: str
    reporter: str
    time_ns: int  #: when it was reported
    workload: str
    nodes: int
    throughput: float
    domains: tuple[int, ...]
    communication_share: float  #: of a step; NaN: not known


def reported_factors(
    recoveries: Iterable[RecoveryReport],
    throughputs: Iterable[ThroughputReport],
    now_ns: int,
    half_life_days: float,
) -> ReportedFactors:
    """Return what these reports say at *now_ns*."""
    incidents = sorted(recoveries, key=lambda one: (one.time_ns, one.incident))
    runs = sorted(throughputs, key=lambda one: (one.time_ns, one.outcome))
    found = _durations(incidents, now_ns, half_life_days)
    found.update(crossing_costs(runs, now_ns, half_life_days))
    return ReportedFactors(found, _throughputs(runs))


# ----------------------------------------------------------------------
# How much a report counts.


def report_weights(reporters: Sequence[str], ages_days: Floats, half_life_days: float) -> Floats:
    """Return what each report counts for: less with its age, and less where its reporter has more than twice the mean of all."""
    weights = 0.5 ** (np.maximum(ages_days, 0.0) / half_life_days)
    names, whose = np.unique(np.array(reporters, dtype=np.str_), return_inverse=True)
    sums = np.zeros(names.size, dtype=np.float64)
    np.add.at(sums, whose, weights)
    share = reporter_share_max(names.size)
    cap = share_cap(sums, share, 0.0)
    scale = np.minimum(1.0, cap / np.maximum(sums, 1e-300))
    return np.asarray(weights * scale[whose], dtype=np.float64)


def _weights(
    reports: Sequence[RecoveryReport] | Sequence[ThroughputReport],
    now_ns: int,
    half_life_days: float,
) -> Floats:
    ages = np.array([(now_ns - one.time_ns) / _DAY_NS for one in reports], dtype=np.float64)
    return report_weights([one.reporter for one in reports], ages, half_life_days)


# ----------------------------------------------------------------------
# Durations.


def _durations(
    reports: Sequence[RecoveryReport], now_ns: int, half_life_days: float
) -> dict[str, ReportedFactor]:
    by_factor: dict[str, list[tuple[RecoveryReport, float]]] = {}
    for one in reports:
        for factor, hours in one.hours().items():
            by_factor.setdefault(factor, []).append((one, hours))
    found: dict[str, ReportedFactor] = {}
    for factor, minutes in DURATIONS.items():
        if those := by_factor.get(factor):
            weights = _weights([one for one, _ in those], now_ns, half_life_days)
            reported = np.array([hours for _, hours in those], dtype=np.float64)
            found[factor] = duration_factor(minutes, reported, weights)
    return found


def duration_factor(
    minutes: tuple[float, float, float], hours: Floats, weights: Floats
) -> ReportedFactor:
    """Return a duration, in hours, of which *hours* were reported. *minutes*: assumed, with a 90 % interval."""
    value, lower, upper = minutes
    # Half of the assumed variance is between incidents, with one pseudo-observation.
    spread = (log(upper / lower) / (2.0 * _Z)) ** 2 / (1.0 + 1.0 / MEDIAN_REPORTS)
    logs = np.log(np.clip(hours, DURATION_HOURS_MIN, DURATION_HOURS_MAX))
    count = max(float(weights.sum()), 1e-300)
    mean = float(weights @ logs) / count
    scatter = float(weights @ np.square(logs - mean))
    spread = (SPREAD_REPORTS * spread + scatter) / (SPREAD_REPORTS + max(count - 1.0, 0.0))
    center = (MEDIAN_REPORTS * log(value / 60.0) + count * mean) / (MEDIAN_REPORTS + count)
    half = _Z * sqrt(spread * (1.0 + 1.0 / (MEDIAN_REPORTS + count)))
    return ReportedFactor(exp(center), exp(center - half), exp(center + half), hours.size)


# ----------------------------------------------------------------------
# What crossing a tier costs.


def crossing_costs(
    reports: Sequence[ThroughputReport], now_ns: int, half_life_days: float
) -> dict[str, ReportedFactor]:
    """Return of each tier by how much longer communication takes that crosses it, where runs tell."""
    groups: dict[tuple[str, str, int, tuple[bool, ...]], list[ThroughputReport]] = {}
    for one in reports:
        known = tuple(each > 0 for each in one.domains)
        key = (one.reporter, one.workload, one.nodes, known)
        groups.setdefault(key, []).append(one)
    # By their first report, so that no name decides the order.
    compared = [those for those in groups.values() if len({one.domains for one in those}) > 1]
    if not compared:
        return {}
    runs = [one for those in compared for one in those]
    group = np.repeat(np.arange(len(compared)), [len(those) for those in compared])
    crossing = np.array([[1.0 - 1.0 / max(each, 1) for each in one.domains] for one in runs])
    shares = np.array([one.communication_share for one in runs], dtype=np.float64)
    shares = np.where(np.isnan(shares), COMMUNICATION_SHARE[0], shares)
    logs = np.log(np.array([one.throughput for one in runs], dtype=np.float64))
    weights = _weights(runs, now_ns, half_life_days)
    costs, deviations = _regression(crossing * shares[:, None], logs, weights, group)
    found: dict[str, ReportedFactor] = {}
    for at, tier in enumerate(PRICED_TIERS):
        least = np.full(len(compared), np.inf)
        most = np.full(len(compared), -np.inf)
        np.minimum.at(least, group, crossing[:, at])
        np.maximum.at(most, group, crossing[:, at])
        varies = (most > least)[group]
        if varies.any():
            value, half = float(costs[at]), _Z * float(deviations[at])
            found[crossing_factor(tier)] = ReportedFactor(
                value, max(value - half, 0.0), value + half, int(varies.sum())
            )
    return found


def _regression(
    longer: Floats, logs: Floats, weights: Floats, group: np.typing.NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """Return costs by tier and their standard deviations. *longer*: of each run and tier, what it is slower by at a cost of 1."""
    assumed = np.array([CROSSING[tier] for tier in PRICED_TIERS])
    prior, precision = assumed[:, 0], (2.0 * _Z / (assumed[:, 2] - assumed[:, 1])) ** 2
    count = int(group.max()) + 1
    of_group = np.maximum(np.bincount(group, weights, minlength=count), 1e-300)

    def centered(values: Floats) -> Floats:
        """Return *values* without the mean of their group: its level is not known."""
        mean = np.bincount(group, weights * values, minlength=count) / of_group
        return np.asarray(values - mean[group], dtype=np.float64)

    costs, variance = prior.copy(), NOISE_ASSUMED**2
    covariance = np.diag(1.0 / precision)
    for _ in range(_STEPS):
        slower = 1.0 + longer @ costs
        slope = np.stack([centered(-each / slower) for each in longer.T], axis=1)
        rest = centered(logs + np.log(slower))
        # As much of the scatter as the runs have beside their levels, with some that is assumed.
        freedom = NOISE_POINTS + max(float(weights.sum()) - count, 0.0)
        scatter = float(weights @ np.square(rest))
        variance = (NOISE_POINTS * NOISE_ASSUMED**2 + scatter) / freedom
        normal = slope.T @ (weights[:, None] * slope) / variance
        covariance = np.linalg.inv(np.diag(precision) + normal)
        pull = slope.T @ (weights * (rest + slope @ costs)) / variance
        costs = np.clip(covariance @ (precision * prior + pull), 0.0, CROSSING_COST_MAX)
    return costs, np.sqrt(np.diag(covariance))


# ----------------------------------------------------------------------
# Throughput by size.


def _throughputs(reports: Sequence[ThroughputReport]) -> ReportedThroughputs:
    """Return the median of each workload's reports at each size; of the one reporter who knows most sizes, for the unit is his."""
    by_workload: dict[str, dict[str, list[ThroughputReport]]] = {}
    for one in reports:  # the newest come last
        if one.workload:
            by_workload.setdefault(one.workload, {}).setdefault(one.reporter, []).append(one)
    newest = sorted(
        by_workload,
        key=lambda name: max(those[-1].time_ns for those in by_workload[name].values()),
    )[-WORKLOADS_MAX:]
    starts, nodes, medians, counts = [0], list[int](), list[float](), list[int]()
    for name in newest:
        those = max(
            by_workload[name].values(),
            key=lambda ones: (len({one.nodes for one in ones}), len(ones), ones[-1].time_ns),
        )
        sizes: dict[int, list[float]] = {}
        for one in reversed(those):
            if one.nodes in sizes or len(sizes) < WORKLOAD_SIZES_MAX:
                sizes.setdefault(one.nodes, []).append(one.throughput)
        for size in sorted(sizes):
            nodes.append(size)
            medians.append(float(np.median(sizes[size])))
            counts.append(len(sizes[size]))
        starts.append(len(nodes))
    return ReportedThroughputs(
        tuple(newest), np.array(starts, dtype=np.intp), np.array(nodes, dtype=np.intp),
        np.array(medians, dtype=np.float64), np.array(counts, dtype=np.intp),
    )  # fmt: skip


# ----------------------------------------------------------------------
# As operators see it.


class CalibrationRow(NamedTuple):
    """A factor as it is in force: with `reports` of 0 as assumed. `workload`, `nodes`: of a throughput, else "" and 0."""

    factor: str
    workload: str
    nodes: int
    unit: str
    value: float
    lower: float
    upper: float
    source: str
    reports: int
    assumed: float  #: NaN: nothing is assumed of a throughput


def calibration_rows(reported: ReportedFactors) -> list[CalibrationRow]:
    """Return all factors, with and without reports."""
    found: list[CalibrationRow] = []
    for name, minutes in DURATIONS.items():
        factor = reported.get(name)
        values = minutes if factor is None else tuple(60.0 * each for each in factor[:3])
        found.append(_row(name, "minutes", values, factor, minutes[0]))
    for tier in PRICED_TIERS:
        factor = reported.get(crossing_factor(tier))
        values = CROSSING[tier] if factor is None else factor[:3]
        found.append(_row(crossing_factor(tier), "ratio", values, factor, CROSSING[tier][0]))
    sizes = reported.throughputs
    for at, workload in enumerate(sizes.workloads):
        points = sizes.points(workload)
        curve = scaling_curve(points, QuantitySource.REPORTED)
        estimates = curve.estimates([size for size, _ in points])
        counts = sizes.reports[int(sizes.starts[at]) :].tolist()
        for (size, value), one, count in zip(points, estimates, counts, strict=False):
            found.append(
                CalibrationRow(
                    "throughput",
                    workload,
                    size,
                    "as reported",
                    value,
                    min(one.lower, value),
                    max(one.upper, value),
                    "reported",
                    count,
                    nan,
                )
            )
    return found


def _row(
    name: str, unit: str, values: Sequence[float], factor: ReportedFactor | None, assumed: float
) -> CalibrationRow:
    source = QuantitySource.ASSUMED if factor is None else QuantitySource.REPORTED
    value, lower, upper = values
    reports = 0 if factor is None else factor.reports
    return CalibrationRow(
        name, "", 0, unit, value, lower, upper, source.name.lower(), reports, assumed
    )
