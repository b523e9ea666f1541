"""Symptoms of rules that are only a row: a reading beyond a limit, or a counter that rises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import exp
from typing import NamedTuple

import numpy as np

from ..arrays import Floats, Indexes
from ..fleet.peers import PEERS_MIN
from ..fleet.tables import FAST_SECONDS
from ..rule_declaration import RateRule, ThresholdRule
from .symptom import Symptom, short
from .view import FleetView

#: RECENT_SECONDS after an event, ONE_EVENT of it remains in a sum over ten minutes. Many events
#: count no longer than that.
ONE_EVENT, RECENT_SECONDS = 0.6, 310.0


def threshold_symptoms(view: FleetView, entries: Iterable[ThresholdRule]) -> Iterator[Symptom]:
    """Name each device with a reading that is wrong by itself."""
    for entry in entries:
        table = view.fleet.tables[entry.table]
        rows = view.where(entry.table, entry.column, entry.condition)
        values = table.values_at(entry.column, rows)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            yield threshold_symptom(view, entry, row, value)


def threshold_symptom(view: FleetView, entry: ThresholdRule, row: int, value: float) -> Symptom:
    """Return *entry* as a symptom of the device in *row*."""
    host, device = view.name(entry.table, row)
    return Symptom(
        rule=entry.rule,
        host=host,
        device=device,
        signal=entry.signal,
        value=value,
        normal=entry.normal,
        message=f"{short(device)} {entry.message.format(value=value)}",
        sql=view.sql(entry.table, row, entry.columns or entry.column, entry.seconds),
    )


def rate_symptoms(view: FleetView, entries: Iterable[RateRule]) -> Iterator[Symptom]:
    """Name each device whose counter rises faster than its limit."""
    for entry in entries:
        rows, values, limit = _above_minimum(view, entry)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            peers = float(limit[view.fleet.simulated[view.name(entry.table, row)[0]] * 1])
            if value >= peers:
                yield _rate_symptom(view, entry, row, value, peers)


def _above_minimum(view: FleetView, entry: RateRule) -> tuple[Indexes, Floats, tuple[float, float]]:
    """Return (rows, values, limits of real and simulated devices), of rows over the lower limit."""
    constant = FAST_SECONDS if entry.per_second else 1.0
    minimum = entry.minimum if entry.per_second else max(ONE_EVENT, ONE_EVENT * entry.minimum)
    slow = not entry.per_second
    if slow:
        rows, events = recent_counts(view, entry.table, entry.column, minimum)
    else:
        rows, events = view.counting(entry.table, entry.column, minimum * constant)
    if not rows.size or not entry.peers_ratio:
        return rows, events / constant, (minimum, minimum)
    all_events = view.recent(entry.table, entry.column, slow=slow) / constant
    peer_medians = medians(view, entry.table, all_events)
    limits = [max(minimum, entry.peers_ratio * median) for median in peer_medians]
    return rows, events / constant, (limits[0], limits[1])


def recent_counts(
    view: FleetView,
    table: str,
    column: str,
    least: float = ONE_EVENT,
    within_seconds: float = RECENT_SECONDS,
) -> tuple[Indexes, Floats]:
    """Return (rows, events of about 600 s) with *least* events, the last within *within_seconds*.

    The sum of ten minutes alone would hold fifty events for most of an hour. The remainder of the
    ten-second sum shows the age of the last event; for n events at once it is too late by 10 s *
    ln(n).
    """
    rows, events = view.counting(table, column, least, slow=True)
    if rows.size:
        just_counted, _ = view.counting(table, column, exp(-within_seconds / FAST_SECONDS))
        is_recent = np.isin(rows, just_counted)
        rows, events = rows[is_recent], events[is_recent]
    return rows, events


def median_of_peers(view: FleetView, table: str, values: Floats) -> Floats:
    """Return per device the median of `medians` for its kind, real or simulated."""
    if not values.any():
        return np.zeros(values.shape)
    simulated = view.fleet.simulated[view.fleet.tables[table].devices.host]
    real_median, simulated_median = medians(view, table, values)
    return np.where(simulated, simulated_median, real_median)


def medians(view: FleetView, table: str, values: Floats) -> tuple[float, float]:
    """Return the medians over real and simulated devices; 0 for fewer than PEERS_MIN."""
    simulated = view.fleet.simulated[view.fleet.tables[table].devices.host]
    fresh = view.fresh(table)
    groups = [values[fresh & (simulated == kind)] for kind in (False, True)]
    result = [float(np.median(group)) if group.size >= PEERS_MIN else 0.0 for group in groups]
    return result[0], result[1]


class PeerOutlier(NamedTuple):
    """A counter that rises far faster than its peers'; values are per second."""

    row: int
    column: str
    rate: float
    peer_median: float
    limit: float


def peer_outliers(
    view: FleetView,
    table: str,
    columns: Iterable[str],
    least: float,
    ratio: float,
    median: Callable[[FleetView, str, Floats], Floats] = median_of_peers,
) -> Iterator[PeerOutlier]:
    """Yield per device the fastest counter far above its peers.

    Far: at least *least* events a second, and *ratio* times the peers' median. *median*: returns
    that per device; NaN skips the device.
    """
    names = list(columns)
    rates = np.array([view.rates(table, column) for column in names])
    if not (rates >= least).any():
        return
    peer_medians = np.array([median(view, table, column_rates) for column_rates in rates])
    limits = np.maximum(least, ratio * peer_medians)
    excess = np.where(rates >= limits, rates, 0.0)
    for row in np.flatnonzero(excess.any(axis=0)).tolist():
        index = int(excess[:, row].argmax())
        figures = (float(figure[index, row]) for figure in (rates, peer_medians, limits))
        yield PeerOutlier(row, names[index], *figures)


def _rate_symptom(
    view: FleetView, entry: RateRule, row: int, value: float, limit: float
) -> Symptom:
    host, device = view.name(entry.table, row)
    noun = entry.column.rpartition("_")[2]
    unit = f"{noun}/s" if entry.per_second else f"{noun} in 10 min"
    shown = round(value, 1) if entry.per_second else float(max(1, round(value)))
    per = "a second" if entry.per_second else "lately"
    return Symptom(
        rule=entry.rule,
        host=host,
        device=device,
        signal=entry.signal,
        value=shown,
        unit=unit,
        normal=f"below {max(limit, entry.minimum):.0f}" if max(limit, entry.minimum) > 1 else "0",
        message=f"{short(device)} {entry.message}: {shown:,.0f} {per}",
        sql=view.sql_with_peers(entry.table, row, entry.column, unit)
        if entry.peers_ratio and entry.per_second
        else view.sql_counter(
            entry.table, row, entry.column, unit, 10 if entry.per_second else 600
        ),
    )
