"""Price factors, re-estimated from scheduler reports, starting from the assumed constants.

**Durations** are lognormal. Half of the assumed interval counts as the difference between clusters
and half as that between incidents, so one report weighs as much as the assumption (a
normal-inverse-gamma prior with one pseudo-observation; Gelman et al., Bayesian Data Analysis, 3.3).
The value is the median; the interval is that of the next incident.

**The cost of crossing a tier** comes from throughputs of one workload on equally many nodes that
span different numbers of domains. It is a regression of ln(throughput) on `price.topology_factor`
with a level per such group; the assumed costs are the prior.

**Throughput by size** is the median of the reports at each size.

A report's weight halves after a half-life. With several reporters none counts for more than half,
nor for more than twice the mean of all, however many reports it sends. Neither the order of reports
nor the names of workloads matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log, nan, sqrt
from typing import NamedTuple

import numpy as np

from ..arrays import Floats
from ..scoring.calibration import reporter_share_max, share_cap
from ..scoring.reported_factors import (
    RESTART_FACTOR,
    RESTART_MINUTES,
    ReportedFactor,
    ReportedFactors,
    ReportedThroughputs,
)
from . import price
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

#: Assumed minutes of each duration, with their 90 % interval.
DURATIONS: Mapping[str, tuple[float, float, float]] = {
    price.DETECT_FACTOR: price.DETECT_MINUTES,
    price.DECIDE_FACTOR: price.DECIDE_MINUTES,
    RESTART_FACTOR: RESTART_MINUTES,
    **dict(ACT_MINUTES.values()),
    PEER_RESUME_FACTOR: LOCAL_RESTORE_MINUTES,
    STORAGE_RESUME_FACTOR: REMOTE_RESTORE_MINUTES,
}
#: Range of a reported duration: a second, and the week that a request may declare.
DURATION_HOURS_MIN, DURATION_HOURS_MAX = 1.0 / 3600.0, 168.0
#: Weights of the assumed median and of the assumed spread between incidents, in reports (both
#: weights assumed).
MEDIAN_REPORTS, SPREAD_REPORTS = 1.0, 4.0
#: Half the width of the 90 % interval of a normal distribution.
_Z = 1.6449
#: Maximum workloads with throughputs, and sizes of each; the most recently reported stay.
WORKLOADS_MAX, WORKLOAD_SIZES_MAX = 1000, 64
#: Maximum factor of crossing; a larger cost is an error in the unit of a report.
CROSSING_COST_MAX = 10.0
#: Steps of the regression: each is exact except for the curvature of ln(1 + x).
_STEPS = 12
_HOUR_NS, _DAY_NS = 3600 * 10**9, 86_400 * 10**9


class RecoveryReport(NamedTuple):
    """The course of a recovery. Times are in ns since 1970 and ascend, 0 if unknown."""

    incident: str
    reporter: str
    time_ns: int
    kind: int  #: RecoveryKind, 0: unknown
    fault_ns: int
    detect_ns: int
    decide_ns: int
    act_ns: int
    resume_ns: int
    success: bool
    restarted: bool  #: healthy processes ended and started again
    restored_from_peer: bool  #: state came from the memory of a peer, not from storage

    def hours(self) -> dict[str, float]:
        """Return the reported durations, by factor.

        A failed recovery has only detect and decide. The wait for a repair is not included: it has
        its own price.
        """
        durations: dict[str, float] = {}

        def put(factor: str, begin_ns: int, end_ns: int) -> None:
            if begin_ns and end_ns:
                durations[factor] = (end_ns - begin_ns) / _HOUR_NS

        put(price.DETECT_FACTOR, self.fault_ns, self.detect_ns)
        put(price.DECIDE_FACTOR, self.detect_ns, self.decide_ns)
        if not self.success:
            return durations
        resume = PEER_RESUME_FACTOR if self.restored_from_peer else STORAGE_RESUME_FACTOR
        put(resume, self.act_ns, self.resume_ns)
        if self.kind in (0, RecoveryKind.WAIT_FOR_REPAIR):
            return durations
        act = RESTART_ACT_FACTOR if self.restarted else ACT_MINUTES[RecoveryKind(self.kind)][0]
        put(act, self.decide_ns, self.act_ns)
        put(RESTART_FACTOR, self.decide_ns, self.resume_ns)
        return durations


class ThroughputReport(NamedTuple):
    """The throughput of a run. `domains`: number spanned of each priced tier, 0 if unknown."""

    outcome: str
    reporter: str
    time_ns: int
    workload: str
    nodes: int
    throughput: float
    domains: tuple[int, ...]
    communication_share: float  #: share of a step; NaN: unknown


def reported_factors(
    recoveries: Iterable[RecoveryReport],
    throughputs: Iterable[ThroughputReport],
    now_ns: int,
    half_life_days: float,
) -> ReportedFactors:
    """Return the factors from these reports at *now_ns*."""
    incidents = sorted(recoveries, key=lambda report: (report.time_ns, report.incident))
    runs = sorted(throughputs, key=lambda report: (report.time_ns, report.outcome))
    factors = _durations(incidents, now_ns, half_life_days)
    factors.update(crossing_costs(runs, now_ns, half_life_days))
    return ReportedFactors(factors, _throughputs(runs))


def report_weights(reporters: Sequence[str], ages_days: Floats, half_life_days: float) -> Floats:
    """Return each report's weight: less with age, and with over twice the mean of reporters."""
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
    ages = np.array([(now_ns - report.time_ns) / _DAY_NS for report in reports], dtype=np.float64)
    return report_weights([report.reporter for report in reports], ages, half_life_days)


def _durations(
    reports: Sequence[RecoveryReport], now_ns: int, half_life_days: float
) -> dict[str, ReportedFactor]:
    by_factor: dict[str, list[tuple[RecoveryReport, float]]] = {}
    for report in reports:
        for factor, hours in report.hours().items():
            by_factor.setdefault(factor, []).append((report, hours))
    factors: dict[str, ReportedFactor] = {}
    for factor, minutes in DURATIONS.items():
        if entries := by_factor.get(factor):
            weights = _weights([report for report, _ in entries], now_ns, half_life_days)
            reported = np.array([hours for _, hours in entries], dtype=np.float64)
            factors[factor] = duration_factor(minutes, reported, weights)
    return factors


def duration_factor(
    minutes: tuple[float, float, float], hours: Floats, weights: Floats
) -> ReportedFactor:
    """Return a duration in hours from reported *hours*. *minutes*: assumed, with interval."""
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


def crossing_costs(
    reports: Sequence[ThroughputReport], now_ns: int, half_life_days: float
) -> dict[str, ReportedFactor]:
    """Return the relative cost of crossing each tier that reports compare."""
    groups: dict[tuple[str, str, int, tuple[bool, ...]], list[ThroughputReport]] = {}
    for run in reports:
        known = tuple(count > 0 for count in run.domains)
        key = (run.reporter, run.workload, run.nodes, known)
        groups.setdefault(key, []).append(run)
    # In the order of the first reports, independent of names.
    compared = [those for those in groups.values() if len({run.domains for run in those}) > 1]
    if not compared:
        return {}
    runs = [run for those in compared for run in those]
    group = np.repeat(np.arange(len(compared)), [len(those) for those in compared])
    crossing = np.array([[1.0 - 1.0 / max(count, 1) for count in run.domains] for run in runs])
    shares = np.array([run.communication_share for run in runs], dtype=np.float64)
    shares = np.where(np.isnan(shares), price.COMMUNICATION_SHARE[0], shares)
    logs = np.log(np.array([run.throughput for run in runs], dtype=np.float64))
    weights = _weights(runs, now_ns, half_life_days)
    costs, deviations = _regression(crossing * shares[:, None], logs, weights, group)
    factors: dict[str, ReportedFactor] = {}
    for column, tier in enumerate(PRICED_TIERS):
        lowest = np.full(len(compared), np.inf)
        greatest = np.full(len(compared), -np.inf)
        np.minimum.at(lowest, group, crossing[:, column])
        np.maximum.at(greatest, group, crossing[:, column])
        varies = (greatest > lowest)[group]
        if varies.any():
            value, half = float(costs[column]), _Z * float(deviations[column])
            factors[price.crossing_factor(tier)] = ReportedFactor(
                value, max(value - half, 0.0), value + half, int(varies.sum())
            )
    return factors


def _regression(
    longer: Floats, logs: Floats, weights: Floats, group: np.typing.NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """Return costs by tier and their standard deviations.

    *longer*: slowdown of each run (row) by each tier (column) at a cost of 1.
    """
    assumed = np.array([price.CROSSING[tier] for tier in PRICED_TIERS])
    prior, precision = assumed[:, 0], (2.0 * _Z / (assumed[:, 2] - assumed[:, 1])) ** 2
    count = int(group.max()) + 1
    group_weights = np.maximum(np.bincount(group, weights, minlength=count), 1e-300)

    def centered(values: Floats) -> Floats:
        """Return *values* without the mean of their group, whose level is unknown."""
        mean = np.bincount(group, weights * values, minlength=count) / group_weights
        return np.asarray(values - mean[group], dtype=np.float64)

    costs, variance = prior.copy(), NOISE_ASSUMED**2
    covariance = np.diag(1.0 / precision)
    for _ in range(_STEPS):
        slower = 1.0 + longer @ costs
        slope = np.stack([centered(-shares / slower) for shares in longer.T], axis=1)
        rest = centered(logs + np.log(slower))
        # The scatter that the runs have besides their levels, with an assumed part.
        freedom = NOISE_POINTS + max(float(weights.sum()) - count, 0.0)
        scatter = float(weights @ np.square(rest))
        variance = (NOISE_POINTS * NOISE_ASSUMED**2 + scatter) / freedom
        normal = slope.T @ (weights[:, None] * slope) / variance
        covariance = np.linalg.inv(np.diag(precision) + normal)
        pull = slope.T @ (weights * (rest + slope @ costs)) / variance
        costs = np.clip(covariance @ (precision * prior + pull), 0.0, CROSSING_COST_MAX)
    return costs, np.sqrt(np.diag(covariance))


def _throughputs(reports: Sequence[ThroughputReport]) -> ReportedThroughputs:
    """Return each workload's median at each size.

    All reports of a workload come from the reporter with most sizes, which sets the
    unit.
    """
    by_workload: dict[str, dict[str, list[ThroughputReport]]] = {}
    for report in reports:  # the newest come last
        if report.workload:
            by_workload.setdefault(report.workload, {}).setdefault(report.reporter, []).append(
                report
            )

    def newest_ns(name: str) -> int:
        return max(reports_of_one[-1].time_ns for reports_of_one in by_workload[name].values())

    newest = sorted(by_workload, key=newest_ns)[-WORKLOADS_MAX:]
    starts, nodes, medians, counts = [0], list[int](), list[float](), list[int]()
    for name in newest:
        reports_of_one = max(
            by_workload[name].values(),
            key=lambda candidates: (
                len({report.nodes for report in candidates}),
                len(candidates),
                candidates[-1].time_ns,
            ),
        )
        sizes: dict[int, list[float]] = {}
        for report in reversed(reports_of_one):
            if report.nodes in sizes or len(sizes) < WORKLOAD_SIZES_MAX:
                sizes.setdefault(report.nodes, []).append(report.throughput)
        for size in sorted(sizes):
            nodes.append(size)
            medians.append(float(np.median(sizes[size])))
            counts.append(len(sizes[size]))
        starts.append(len(nodes))
    return ReportedThroughputs(
        tuple(newest),
        np.array(starts, dtype=np.intp),
        np.array(nodes, dtype=np.intp),
        np.array(medians, dtype=np.float64),
        np.array(counts, dtype=np.intp),
    )


class CalibrationRow(NamedTuple):
    """A factor in force; `reports` 0: assumed. `workload`, `nodes`: for throughputs only."""

    factor: str
    workload: str
    nodes: int
    unit: str
    value: float
    lower: float
    upper: float
    source: str
    reports: int
    assumed: float  #: NaN: throughputs have no assumption


def calibration_rows(reported: ReportedFactors) -> list[CalibrationRow]:
    """Return all factors, with and without reports."""
    rows: list[CalibrationRow] = []
    for name, minutes in DURATIONS.items():
        factor = reported.get(name)
        values = minutes if factor is None else tuple(60.0 * bound for bound in factor[:3])
        rows.append(_row(name, "minutes", values, factor, minutes[0]))
    for tier in PRICED_TIERS:
        factor = reported.get(price.crossing_factor(tier))
        values = price.CROSSING[tier] if factor is None else factor[:3]
        rows.append(
            _row(price.crossing_factor(tier), "ratio", values, factor, price.CROSSING[tier][0])
        )
    sizes = reported.throughputs
    for position, workload in enumerate(sizes.workloads):
        points = sizes.points(workload)
        curve = scaling_curve(points, QuantitySource.REPORTED)
        estimates = curve.estimates([size for size, _ in points])
        counts = sizes.reports[int(sizes.starts[position]) :].tolist()
        for (size, value), estimate, count in zip(points, estimates, counts, strict=False):
            rows.append(
                CalibrationRow(
                    factor="throughput",
                    workload=workload,
                    nodes=size,
                    unit="as reported",
                    value=value,
                    lower=min(estimate.lower, value),
                    upper=max(estimate.upper, value),
                    source="reported",
                    reports=count,
                    assumed=nan,
                )
            )
    return rows


def _row(
    name: str, unit: str, values: Sequence[float], factor: ReportedFactor | None, assumed: float
) -> CalibrationRow:
    source = QuantitySource.ASSUMED if factor is None else QuantitySource.REPORTED
    value, lower, upper = values
    reports = 0 if factor is None else factor.reports
    return CalibrationRow(
        factor=name,
        workload="",
        nodes=0,
        unit=unit,
        value=value,
        lower=lower,
        upper=upper,
        source=source.name.lower(),
        reports=reports,
        assumed=assumed,
    )
