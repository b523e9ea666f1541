"""Recordings of fleets that were made up: some nodes fall again soon after they return."""

from __future__ import annotations

import json
import random
from typing import Any

Row = dict[str, Any]
LEVELS = ("Hardware Failure", "Other Failure")


def event(node: str, days: float, starts: bool, level: str = LEVELS[0], kind: str = "GPU") -> Row:
    """Return one event as the file has it."""
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
    """Return events: a fault a day at *rate*, and at *again*, fading over ten days, after a return."""
    source = random.Random(seed)
    rows: list[Row] = []
    for node in range(nodes):
        at, returned = 0.0, -1000.0
        while at < days:
            at += 0.25
            hazard = rate + (again * (0.9 ** (at - returned)) if returned > 0 else 0.0)
            if source.random() < hazard / 4:
                end = at + source.uniform(0.1, 3.0)
                rows += fault(f"node-{node}", at, end if end < days else None, LEVELS[node % 2])
                at = returned = end
    return sorted(rows, key=lambda row: float(row["event_time"]))


def data_of(rows: list[Row]) -> bytes:
    """Return the bytes of a file."""
    return json.dumps(rows).encode()
