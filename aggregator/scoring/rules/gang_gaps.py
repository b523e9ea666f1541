"""Hosts whose GPUs have gaps while their job waits: cores, data, or a service that hosts share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...arrays import Flags
from ...fleet.gang_comparison import GangComparison
from ...fleet.gangs import CHANGE_CPU, CHANGE_IO, CHANGE_STEAL
from ...rule_catalogue import gang as rules
from ...rule_declaration import Rule
from ...sql import quoted
from ..detectors import detects
from ..symptom import Symptom
from ..view import FleetView
from .gang import (
    are_few,
    changed_hosts,
    gang_gpus,
    gang_means_sql,
    is_persistent,
    members_condition,
    rows_of,
    settled,
    sizes,
)
from .gang_neighbors import attribute_to_neighbor


@detects(rules.CONTENDED, rules.STALLED, rules.UNKNOWN, rules.SHARED, rules.NEIGHBOR)
def gapped_hosts(view: FleetView) -> Iterator[Symptom]:
    """Name each host with gaps while its job waits, with its cores or disks as a possible cause."""
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return
    minimum, pressure = view.threshold("gang.gap_ratio"), view.threshold("gang.pressure_ratio")
    known = settled(view, comparison)
    gapped = known & (comparison.gap >= minimum)
    gapped &= is_persistent(view, comparison, comparison.gap_often, comparison.gap_run)
    gapped &= are_few(comparison, gapped)
    change = comparison.gap_change
    changed = changed_hosts(view, comparison, change)
    for host in rows_of(gapped | changed):
        gap, cpu, io, steal = (
            float(a[host])
            for a in (comparison.gap, comparison.cpu, comparison.io, comparison.steal)
        )
        if changed[host]:
            gap = float(change.excess[host])
            cpu, io, steal = (
                float(change.companions[companion, host])
                for companion in (CHANGE_CPU, CHANGE_IO, CHANGE_STEAL)
            )
        statement = f"nothing runs on its GPUs {100 * gap:.0f} % of the time, while the others of its job wait"
        cores = float(np.fmax(cpu, 2 * steal))  # a kernel without PSI reports stolen time only
        if cores >= pressure and not io > cores:
            message = f"{statement}: its cores are contended ({_more(cpu)} waiting, {_more(steal)} stolen)"
            rule = rules.CONTENDED
        elif io >= pressure:
            message = (
                f"{statement}: it waits for data, and they do not ({_more(io)} of the time in I/O)"
            )
            rule = rules.STALLED
        else:
            message = f"{statement}; neither its cores nor its disks explain it"
            rule = rules.UNKNOWN
        symptom = _gap_symptom(view, comparison, rule, host, message, gap)
        yield attribute_to_neighbor(view, comparison, symptom, gap)
    shared = (comparison.gap_median >= minimum) & (comparison.io_median >= pressure)
    yield from _shared_stall(view, comparison, known & shared)


def _shared_stall(view: FleetView, comparison: GangComparison, found: Flags) -> Iterator[Symptom]:
    """Yield the symptom of each host in gangs that wait alike.

    Build message and query once per gang, since the whole fleet may wait.
    """
    by_gang: dict[int, Symptom] = {}
    for host in rows_of(found):
        gang = int(comparison.gang[host])
        if gang not in by_gang:
            message = f"its job waits for data on all hosts alike, {100 * comparison.gap_median[host]:.0f} % of the time: a service they share is the cause, not a host"
            by_gang[gang] = _gap_symptom(
                view, comparison, rules.SHARED, host, message, float(comparison.gap_median[host])
            )
        yield replace(by_gang[gang], host=host)


def _more(ratio: float) -> str:
    return f"{100 * max(ratio, 0.0):.0f} % more" if np.isfinite(ratio) else "not known"


def _gap_symptom(
    view: FleetView, comparison: GangComparison, rule: Rule, host: int, message: str, gap: float
) -> Symptom:
    return Symptom(
        rule=rule,
        host=host,
        device="host",
        signal=rule.name,
        value=round(gap, 3),
        unit="of the time"
        if rule is rules.SHARED
        else "more of the time than the others of its gang",
        normal=f"below {view.threshold('gang.gap_ratio'):g}",
        message=message,
        sql=gang_means_sql(view, comparison, host, "gpu_1s", "utilization_ratio"),
        speed=max(1.0 - gap, 0.05) if rule in (rules.CONTENDED, rules.STALLED) else 1.0,
    )


def gap_sql(view: FleetView, host: int) -> str:
    """Return the query for the share of each minute in which the GPUs of *host* were empty.

    On a shared host: only the GPUs of its job.
    """
    comparison, which = view.fleet.gangs.comparison, f"host = {quoted(view.fleet.names[host])}"
    if comparison is not None and comparison.shared[host]:
        which += f" AND {members_condition([], gang_gpus(view, comparison, host, int(comparison.gang[host])))}"
    return (
        "SELECT time_bucket(INTERVAL 1 MINUTE, time) AS minute, 1 - avg(utilization_ratio) AS empty_ratio "
        f"FROM readings.gpu_1s WHERE {which} AND time BETWEEN "
        f"{view.timestamp_sql(-900)} AND {view.timestamp_sql(5)} GROUP BY ALL ORDER BY minute"
    )


@detects(rules.DATA, rules.CORES)
def waiting_hosts(view: FleetView) -> Iterator[Symptom]:
    """Name each host with a job of its own that waits for data or for cores more than before."""
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return
    pressure = view.threshold("gang.pressure_ratio")
    waiting = settled(view, comparison) & (sizes(comparison) == 1)
    waiting &= comparison.gap_more >= view.threshold("gang.gap_ratio")
    waiting &= comparison.gap_more_often >= view.threshold("gang.identity_ratio")
    for host in np.flatnonzero(waiting).tolist():
        cpu, io = float(comparison.cpu_more[host]), float(comparison.io_more[host])
        if io >= pressure and not cpu > io:
            waits = f"it waits for I/O {100 * io:.0f} % more of the time"
            message = "a job on one host does not show whether its own disks and mounts or a shared storage are slow"
            yield _waiting_symptom(view, comparison, rules.DATA, host, f"{waits}: {message}")
        elif cpu >= pressure:
            waits = f"tasks wait for its cores {100 * cpu:.0f} % more of the time"
            message = "a job on one host does not show whether the job needs more cores or others use them"
            yield _waiting_symptom(view, comparison, rules.CORES, host, f"{waits}: {message}")


def _waiting_symptom(
    view: FleetView, comparison: GangComparison, rule: Rule, host: int, message: str
) -> Symptom:
    gap = float(comparison.gap_more[host])
    return Symptom(
        rule=rule,
        host=host,
        device="host",
        signal=rule.name,
        value=round(gap, 3),
        unit="more of the time than before",
        normal=f"below {view.threshold('gang.gap_ratio'):g}",
        message=f"nothing runs on its GPUs {100 * gap:.0f} % more of the time than before in this job, and {message}",
        sql=gap_sql(view, host),
    )
