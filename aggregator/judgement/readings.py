"""Rules that are a row of a table: a reading that is wrong by itself, and a counter that counts too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..fleet.arrays import Flags, Floats
from ..fleet.peers import PEERS_MIN
from ..verdicts import Reason, State
from .present import Present
from .symptoms import Rule, Symptom, short

Wrong = Callable[[Floats], Flags]

#: A counter's memory of ten minutes holds one event for about five of them.
ONE_EVENT = 0.6


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


def values_of(present: Present, table: str, column: str) -> Floats:
    """Return a gauge or a state as numbers; NaN where there is none of now."""
    found = present.fleet.tables[table]
    if found.is_gauge(column):
        return present.gauge(table, column)
    known = present.known(table, column)
    return np.where(known, present.state(table, column).astype(np.float64), np.nan)


def standing(present: Present, entries: Iterable[Standing]) -> Iterator[Symptom]:
    """Name each device whose reading is wrong by itself."""
    for entry in entries:
        values = values_of(present, entry.table, entry.column)
        for row in np.flatnonzero(entry.wrong(values)).tolist():
            yield stands(present, entry, row, float(values[row]))


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
        values = _values(present, entry)
        limit = _limits(present, entry, values)
        for row in np.flatnonzero(values >= limit).tolist():
            yield _counts(present, entry, row, float(values[row]), float(limit[row]))


def _values(present: Present, entry: Counted) -> Floats:
    if entry.per_second:
        return present.rates(entry.table, entry.column)
    return present.recent(entry.table, entry.column, slow=True)


def _limits(present: Present, entry: Counted, values: Floats) -> Floats:
    least = entry.least if entry.per_second else max(ONE_EVENT, ONE_EVENT * entry.least)
    if not entry.peers_ratio:
        return np.full(values.shape, least)
    usual = median_of_peers(present, entry.table, values)
    return np.maximum(least, entry.peers_ratio * usual)


def median_of_peers(present: Present, table: str, values: Floats) -> Floats:
    """Return the median over all devices of *table* that are simulated, or are not, alike.

    0 where they are too few to have one worth the name.
    """
    simulated = present.fleet.simulated[present.fleet.tables[table].devices.host]
    fresh = present.fresh(table)
    medians = np.zeros(values.shape)
    for kind in (False, True):
        group = simulated == kind
        if (group & fresh).sum() >= PEERS_MIN:
            medians[group] = np.median(values[group & fresh])
    return medians


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
        sql=present.sql_counted(
            entry.table, row, entry.column, unit, 10 if entry.per_second else 600
        ),
    )


def watch(name: str, reason: Reason, clears: str, factor: float, **more: float) -> Rule:
    """Return a rule that is WATCH: worth a look, and no reason to take the host away."""
    return Rule(name, State.WATCH, reason, clears, hazard_factor=factor, **more)


def suspect(name: str, reason: Reason, clears: str, factor: float, **more: float) -> Rule:
    """Return a rule that is SUSPECT: the host is likelier to fail than most."""
    return Rule(name, State.SUSPECT, reason, clears, hazard_factor=factor, **more)
