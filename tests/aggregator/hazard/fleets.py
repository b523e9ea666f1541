"""Invented fleets: repeated faults soon after a return, and symptoms before faults."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

from gangline.aggregator.arrays import Flags, Floats
from gangline.aggregator.hazard.events import FaultTable
from gangline.aggregator.hazard.measured import MEASURED, HostDays

Row = dict[str, Any]
LEVELS = ("Hardware Failure", "Other Failure")

NODES, DAYS = 150, 160
ERRORS = [feature.name for feature in MEASURED].index("corrected_errors")
#: What a healthy host shows: no errors, its peers' pace, far from the limit, heard.
NORMAL = {"speed": 0.98, "headroom_celsius": 22.0, "silent_seconds": 0.6}
AILING_DAYS = 6


def event(node: str, days: float, starts: bool, level: str = LEVELS[0], kind: str = "GPU") -> Row:
    """Return one event as in the file."""
    return {
        "node_id": node,
        "event_time": days,
        "event_type": "fault_start" if starts else "fault_end",
        "fault_type": {"Level": level, "Class": kind, "Desc": "made up"},
    }


def fault(node: str, start: float, end: float | None, level: str = LEVELS[0]) -> list[Row]:
    """Return a fault's events."""
    rows = [event(node, start, True, level)]
    return rows if end is None else [*rows, event(node, end, False, level)]


def recording(
    seed: int = 1, nodes: int = 80, days: int = 160, rate: float = 0.004, again: float = 0.15
) -> list[Row]:
    """Return events at *rate* faults a day, plus *again* after a return, fading over ten days."""
    source = random.Random(seed)
    rows: list[Row] = []
    for node in range(nodes):
        day, returned = 0.0, -1000.0
        while day < days:
            day += 0.25
            hazard = rate + (again * (0.9 ** (day - returned)) if returned > 0 else 0.0)
            if source.random() < hazard / 4:
                end = day + source.uniform(0.1, 3.0)
                rows += fault(f"node-{node}", day, end if end < days else None, LEVELS[node % 2])
                day = returned = end
    return sorted(rows, key=lambda row: float(row["event_time"]))


def data_of(rows: list[Row]) -> bytes:
    """Return the bytes of a file."""
    return json.dumps(rows).encode()


def normal(nodes: int = NODES, days: int = DAYS) -> Floats:
    """Return nodes x days x MEASURED of healthy hosts."""
    measured = [NORMAL.get(feature.name, 0.0) for feature in MEASURED]
    return np.tile(np.array(measured), (nodes, days, 1))


def planted(seed: int = 1) -> tuple[FaultTable, Floats]:
    """Return faults of random hosts, most of them after days of rising corrected errors."""
    source = np.random.default_rng(seed)
    values, rows = normal(), []
    for node in range(NODES):
        day = 0
        while day < DAYS - AILING_DAYS:
            if source.random() < 0.012:  # it becomes sick, and mostly fails
                days = np.arange(AILING_DAYS)
                values[node, day : day + AILING_DAYS, ERRORS] = 3.0 * 2.0**days
                day += AILING_DAYS
                if source.random() < 0.8:
                    rows.append((node, day - 1 + source.uniform(0.2, 0.9)))
            elif source.random() < 0.002:
                rows.append((node, day + source.uniform(0.2, 0.9)))
            day += 1
    node, start = np.array(sorted(rows, key=lambda row: row[1])).T
    names = tuple(f"node-{number}" for number in range(NODES))
    hardware = np.ones(len(node), dtype=bool)
    return FaultTable(
        names, node.astype(np.intp), start, start + 0.05, hardware, float(DAYS)
    ), values


def days_of(values: Floats, faults: FaultTable, known: Flags | None = None) -> HostDays:
    """Return the recorded days, measured two minutes after midnight; *known*: nodes x days."""
    known = np.ones(values.shape[:2], dtype=bool) if known is None else known
    node, day = np.nonzero(known)
    at_days = day.astype(np.float64) + 120 / 86_400
    return HostDays.of(node, at_days, values[node, day], faults)
