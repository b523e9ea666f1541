"""Timelines of hosts: faults that end in a repair, the time away, and faults that come back after it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from . import incidents
from .scenario import FaultClass

#: Duration of a boot.
BOOT_SECONDS = 420.0


@dataclass(order=True, slots=True)
class Downtime:
    """A span in which a host is away: switched off, in repair, or booting."""

    begin: float
    end: float = field(compare=False)
    host: int = field(compare=False)
    cause: int = field(compare=False)


@dataclass(slots=True)
class HostTimelines:
    """The incidents that occurred, the times when hosts were away, and when a job on a host dies."""

    rows: incidents.Rows
    downtimes: list[Downtime]
    kills: list[tuple[float, int, int]]  # (when, host, cause)


class _TimelineBuilder:
    """Applies possible incidents in order of time."""

    def __init__(
        self, context: incidents.DrawContext, classes: tuple[FaultClass, ...], next_cause: int
    ) -> None:
        self._context, self._classes = context, classes
        self._random = context.random_source("lives")
        self._next_cause = next_cause
        self._back_seconds = np.zeros(context.hosts)  # when each host is back
        self.happened: list[incidents.Rows] = []
        self.downtimes: list[Downtime] = []
        self.kills: list[tuple[float, int, int]] = []

    def run(self, rows: incidents.Rows) -> None:
        heap = [(float(r["begin"]), i, rows[i : i + 1]) for i, r in enumerate(rows)]
        heapq.heapify(heap)
        order = len(heap)
        while heap:
            begin, _, row = heapq.heappop(heap)
            host = int(row["host"][0])
            if begin < self._back_seconds[host]:
                continue  # the host was away: incidents cannot affect it
            self._apply(row, self._classes[int(row["cls"][0])])
            if (recurrence := self._recurrence(row)) is not None:
                order += 1
                heapq.heappush(heap, (float(recurrence["begin"][0]), order, recurrence))

    def _apply(self, row: incidents.Rows, fault_class: FaultClass) -> None:
        host, cause, fails = int(row["host"][0]), int(row["cause"][0]), float(row["end"][0])
        if fault_class.kills:
            self.kills.append((fails, host, cause))
        if fault_class.ends in ("repair", "restart"):
            down = fails + 60.0 * self._context.settings.repair.drain_minutes
            if fault_class.name == "rack_dark":
                down = float(row["begin"][0])
            up = down + (BOOT_SECONDS if fault_class.ends == "restart" else self._repair_seconds())
            row["end"] = self._back_seconds[host] = up
            self.downtimes.append(Downtime(down, up, host, cause))
        self.happened.append(row)

    def _repair_seconds(self) -> float:
        repair = self._context.settings.repair
        if self._context.scenario.parade_seconds:
            return self._context.scenario.parade_seconds / 2  # shortened for a parade
        hours = repair.median_hours * np.exp(repair.sigma * self._random.standard_normal())
        return incidents.HOUR * float(np.clip(hours, 0.5, repair.hours_max))

    def _recurrence(self, row: incidents.Rows) -> incidents.Rows | None:
        """Return the next occurrence of the same fault, None if it does not come back.

        A shared cause does not recur: it would come back on a single host.
        """
        each = self._classes[int(row["cls"][0])]
        if each.ends not in ("repair", "restart") or self._context.scenario.parade_seconds:
            return None
        if each.per in incidents.SHARED_PLACES:
            return None
        days = days_until_next(self._context, float(self._random.exponential()))
        begin = float(self._back_seconds[int(row["host"][0])]) + days * incidents.DAY
        if begin >= self._context.seconds:
            return None
        recurrence = row.copy()
        recurrence["begin"] = begin
        incidents.draw_details(recurrence, each, int(row["cls"][0]), self._random)
        recurrence["cause"], self._next_cause = self._next_cause, self._next_cause + 1
        recurrence["origin"] = row["origin"] if row["origin"][0] >= 0 else row["cause"]
        return recurrence


def days_until_next(context: incidents.DrawContext, exponential: float) -> float:
    """Return the days after which a host that came back has the fault again; infinity if not within the spans.

    *exponential*: a draw of mean 1, consumed along the piecewise constant hazard since the return.
    """
    after = context.settings.after_return
    begin, left = 0.0, exponential
    for until, per_1000 in zip(after.until_days, after.per_1000_node_days, strict=True):
        hazard = per_1000 / 1000.0 * min(context.scenario.rate_factor, 1.0)
        if hazard * (until - begin) >= left:
            return begin + left / hazard
        left -= hazard * (until - begin)
        begin = until
    return float("inf")


def build_timelines(
    context: incidents.DrawContext,
    classes: tuple[FaultClass, ...],
    rows: incidents.Rows,
    next_cause: int,
) -> HostTimelines:
    """Return the *rows* that occurred, and their consequences.

    *rows*: incidents of classes that end a host's uptime or kill its job.
    """
    builder = _TimelineBuilder(context, classes, next_cause)
    builder.run(rows)
    return HostTimelines(
        incidents.joined_rows(builder.happened) if builder.happened else incidents.empty_rows(0),
        sorted(builder.downtimes),
        builder.kills,
    )
