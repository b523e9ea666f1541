"""Price factors from scheduler reports, in the form that each snapshot carries.

`decisions/calibration.py` estimates them. A factor without reports is absent: its assumed constant applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..counter_deltas import Floats, Indexes


class ReportedFactor(NamedTuple):
    """A factor with its 90 % interval, and of how many reports it is. Durations are in hours."""

    value: float
    lower: float
    upper: float
    reports: int


@dataclass(frozen=True)
class ReportedThroughputs:
    """Throughput by size of each workload, in the unit of its reports: those of workload i are at `starts[i]` to `starts[i + 1]`."""

    workloads: tuple[str, ...] = ()
    starts: Indexes = field(default_factory=lambda: np.zeros(1, dtype=np.intp))
    nodes: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    throughputs: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float64))
    reports: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    def points(self, workload: str) -> list[tuple[int, float]]:
        """Return (nodes, throughput) of a workload, by size; none of one that nobody reported."""
        at = self._index.get(workload)
        if at is None:
            return []
        part = slice(int(self.starts[at]), int(self.starts[at + 1]))
        return list(zip(self.nodes[part].tolist(), self.throughputs[part].tolist(), strict=True))

    @cached_property
    def _index(self) -> Mapping[str, int]:
        return {name: at for at, name in enumerate(self.workloads)}


@dataclass(frozen=True)
class ReportedFactors:
    """What reports say of factors, by the names of `decisions/calibration.py`."""

    factors: Mapping[str, ReportedFactor] = field(default_factory=dict[str, ReportedFactor])
    throughputs: ReportedThroughputs = field(default_factory=ReportedThroughputs)

    def get(self, name: str) -> ReportedFactor | None:
        """Return a factor, None where nobody reported of it."""
        return self.factors.get(name)


#: Nobody has reported anything.
NOTHING_REPORTED = ReportedFactors()
