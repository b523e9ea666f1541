"""Rules that are a row of a table: a reading that is wrong by itself, and a counter that counts too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import exp
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..fleet.arrays import Flags, Floats, Indexes
from ..fleet.peers import PEERS_MIN
from ..fleet.tables import FAST_SECONDS
from ..verdicts import Reason, State
from .present import Present
from .symptoms import Rule, Symptom, short

#: Says where cells of gauges or states are wrong.
Wrong = Callable[[NDArray[Any]], Flags]

#: A counter's memory of ten minutes holds one event for about five of them, and so long many are held, too.
ONE_EVENT, LATELY_SECONDS = 0.6, 310.0


@dataclass(frozen=True, slots=True)
class Standing:
    """A gauge or state of *table* that is wrong where `wrong` says so; NaN, no reading, never is.

    `words` follow the device's name; `{value}` in them is the reading.
    """

    rule: Rule
    table: str
    column: str
    wrong: Wrong
    words: str
    normal: str = "0"


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter of *table* that counts at least `least`: within ten minutes, or, `per_second`, a second.

    `peers_ratio`: and so many times what the median of all such devices counts; 0: whatever they do.
    """

    rule: Rule
    table: str
    column: str
    words: str
    least: float = 1.0
    per_second: bool = False
    peers_ratio: float = 0.0


def equals(*codes: int) -> Wrong:
    """Return what says where a state is one of *codes*."""
    return lambda values: np.isin(values, codes)


def above(limit: float) -> Wrong:
    """Return what says where a gauge or state is above *limit*."""
    return lambda values: np.asarray(values > limit, dtype=bool)


def beyond(limit: float) -> Wrong:
    """Return what says where a gauge is farther than *limit* from zero, either way."""
    return lambda values: np.asarray(np.abs(values) > limit, dtype=bool)


def standing(present: Present, entries: Iterable[Standing]) -> Iterator[Symptom]:
    """Name each device whose reading is wrong by itself."""
    for entry in entries:
        table = present.fleet.tables[entry.table]
        rows = present.where(entry.table, entry.column, entry.wrong)
        values = table.values_at(entry.column, rows)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            yield stands(present, entry, row, value)


def stands(present: Present, entry: Standing, row: int, value: float) -> Symptom:
    """Return *entry* as a symptom of the device in *row*."""
    host, device = present.name(entry.table, row)
    return Symptom(
        rule=entry.rule,
        host=host,
        device=device,
        signal=f"{present.fleet.tables[entry.table].devices.kind}.{entry.column}",
        value=value,
        normal=entry.normal,
        words=f"{short(device)} {entry.words.format(value=value)}",
        sql=present.sql(entry.table, row, entry.column, 600),
    )


def counted(present: Present, entries: Iterable[Counted]) -> Iterator[Symptom]:
    """Name each device that counts more than is right."""
    for entry in entries:
        rows, values, limit = _beyond(present, entry)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            peers = float(limit[present.fleet.simulated[present.name(entry.table, row)[0]] * 1])
            if value >= peers:
                yield _counts(present, entry, row, value, peers)


def _beyond(present: Present, entry: Counted) -> tuple[Indexes, Floats, tuple[float, float]]:
    """Return (rows, values, limit of real and of simulated devices), of rows that reach the least of limits."""
    constant = FAST_SECONDS if entry.per_second else 1.0
    least = entry.least if entry.per_second else max(ONE_EVENT, ONE_EVENT * entry.least)
    slow = not entry.per_second
    if slow:
        rows, events = counted_lately(present, entry.table, entry.column, least)
    else:
        rows, events = present.counting(entry.table, entry.column, least * constant)
    if not rows.size or not entry.peers_ratio:
        return rows, events / constant, (least, least)
    every = present.recent(entry.table, entry.column, slow=slow) / constant
    usual = medians(present, entry.table, every)
    limits = [max(least, entry.peers_ratio * median) for median in usual]
    return rows, events / constant, (limits[0], limits[1])


def counted_lately(
    present: Present,
    table: str,
    column: str,
    least: float = ONE_EVENT,
    within_seconds: float = LATELY_SECONDS,
) -> tuple[Indexes, Floats]:
    """Return (rows, events of about the last 600 s) where these are *least* or more, the last of them of *within_seconds*.

    The sum of ten minutes alone held fifty events for most of an hour. What is left of that of ten seconds tells how long
    ago the last was: of n at once too late by 10 s * ln(n).
    """
    rows, events = present.counting(table, column, least, slow=True)
    if rows.size:
        left, _ = present.counting(table, column, exp(-within_seconds / FAST_SECONDS))
        lately = np.isin(rows, left)
        rows, events = rows[lately], events[lately]
    return rows, events


def median_of_peers(present: Present, table: str, values: Floats) -> Floats:
    """Return the median over all devices of *table* that are simulated, or are not, alike.

    0 where they are too few to have one worth the name.
    """
    if not values.any():
        return np.zeros(values.shape)
    simulated = present.fleet.simulated[present.fleet.tables[table].devices.host]
    real, made = medians(present, table, values)
    return np.where(simulated, made, real)


def medians(present: Present, table: str, values: Floats) -> tuple[float, float]:
    """Return the median over the real devices of *table*, and over the simulated ones; 0 for too few."""
    simulated = present.fleet.simulated[present.fleet.tables[table].devices.host]
    fresh = present.fresh(table)
    groups = [values[fresh & (simulated == kind)] for kind in (False, True)]
    found = [float(np.median(group)) if group.size >= PEERS_MIN else 0.0 for group in groups]
    return found[0], found[1]


class Far(NamedTuple):
    """A counter of a device that counts far more than those of its peers; figures are of a second."""

    row: int
    column: str
    rate: float
    usual: float  # their median
    limit: float


def far_from_peers(
    present: Present,
    table: str,
    columns: Iterable[str],
    least: float,
    ratio: float,
    median: Callable[[Present, str, Floats], Floats] = median_of_peers,
) -> Iterator[Far]:
    """Yield of each device the fastest of its counters that count *least* a second, and *ratio* times what its peers do.

    *median*: of its peers, for each device; NaN: of this one nothing can be said.
    """
    names = list(columns)
    rates = np.array([present.rates(table, column) for column in names])
    if not (rates >= least).any():
        return
    usual = np.array([median(present, table, each) for each in rates])
    limits = np.maximum(least, ratio * usual)
    beyond = np.where(rates >= limits, rates, 0.0)
    for row in np.flatnonzero(beyond.any(axis=0)).tolist():
        at = int(beyond[:, row].argmax())
        figures = (float(each[at, row]) for each in (rates, usual, limits))
        yield Far(row, names[at], *figures)


def _counts(present: Present, entry: Counted, row: int, value: float, limit: float) -> Symptom:
    host, device = present.name(entry.table, row)
    kind = present.fleet.tables[entry.table].devices.kind
    noun = entry.column.rpartition("_")[2]
    unit = f"{noun}/s" if entry.per_second else f"{noun} in 10 min"
    shown = round(value, 1) if entry.per_second else float(max(1, round(value)))
    per = "a second" if entry.per_second else "lately"
    return Symptom(
        rule=entry.rule,
        host=host,
        device=device,
        signal=f"{kind}.{entry.column}",
        value=shown,
        unit=unit,
        normal=f"below {max(limit, entry.least):.0f}" if max(limit, entry.least) > 1 else "0",
        words=f"{short(device)} {entry.words}: {shown:,.0f} {per}",
        sql=present.sql_beside_peers(entry.table, row, entry.column, unit)
        if entry.peers_ratio and entry.per_second
        else present.sql_counted(
            entry.table, row, entry.column, unit, 10 if entry.per_second else 600
        ),
    )


def watch(name: str, reason: Reason, clears: str, factor: float, **more: float) -> Rule:
    """Return a rule that is WATCH: worth a look, and no reason to take the host away."""
    return Rule(name, State.WATCH, reason, clears, hazard_factor=factor, **more)


def suspect(name: str, reason: Reason, clears: str, factor: float, **more: float) -> Rule:
    """Return a rule that is SUSPECT: the host is likelier to fail than most."""
    return Rule(name, State.SUSPECT, reason, clears, hazard_factor=factor, **more)
