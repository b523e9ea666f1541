"""Hosts' lives: who is struck by what ends in a repair, away for how long, and struck again after it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from .incidents import DAY, HOUR, SHARED, Draws, Rows, details, empty, joined
from .settings import FaultClass

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
