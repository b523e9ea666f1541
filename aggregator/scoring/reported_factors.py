"""Price factors from scheduler reports, in the form that each snapshot carries.

`decisions/calibration.py` estimates them. A factor without reports is absent: its assumed constant
applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..arrays import Floats, Indexes

#: Name of the factor of a restart.
RESTART_FACTOR = "restart"
#: Minutes (assumed), with 90 % intervals of large training. A restart lasts from the decision
#: until the gang works again.
RESTART_MINUTES, CHECKPOINT_INTERVAL_MINUTES = (10.0, 2.0, 40.0), (60.0, 10.0, 240.0)


class ReportedFactor(NamedTuple):
    """A factor with its 90 % interval and its number of reports. Durations are in hours."""

    value: float
    lower: float
    upper: float
    reports: int


@dataclass(frozen=True)
class ReportedThroughputs:
    """Throughput by size, in the reports' unit; workload i has `starts[i]` to `starts[i + 1]`."""

    workloads: tuple[str, ...] = ()
    starts: Indexes = field(default_factory=lambda: np.zeros(1, dtype=np.intp))
    nodes: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    throughputs: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float64))
    reports: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    def points(self, workload: str) -> list[tuple[int, float]]:
        """Return (nodes, throughput) of a workload, by size; empty if it has no reports."""
        position = self._index.get(workload)
        if position is None:
            return []
        part = slice(int(self.starts[position]), int(self.starts[position + 1]))
        return list(zip(self.nodes[part].tolist(), self.throughputs[part].tolist(), strict=True))

    @cached_property
    def _index(self) -> Mapping[str, int]:
        return {name: position for position, name in enumerate(self.workloads)}


@dataclass(frozen=True)
class ReportedFactors:
    """Reported factors, by the names of `decisions/calibration.py`."""

    factors: Mapping[str, ReportedFactor] = field(default_factory=dict)
    throughputs: ReportedThroughputs = field(default_factory=ReportedThroughputs)

    def get(self, name: str) -> ReportedFactor | None:
        return self.factors.get(name)


#: Nothing was reported.
NOTHING_REPORTED = ReportedFactors()
