"""Simple rankings that a hazard model must beat, and calibration by isotonic regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..arrays import Floats
from .history import UnitState

#: Each step of the isotonic curve gets this many extra units at the mean rate, about a month of a
#: node: units of consecutive days overlap in their windows of seven days.
SHRINK_UNITS = 30.0


def _fault_rank(state: UnitState) -> Floats:
    return np.zeros(len(state.count)) if state.fault_rank is None else state.fault_rank


#: Name -> rank of units, higher is worse.
BASELINES: dict[str, Callable[[UnitState], Floats]] = {
    "failed before, or never": lambda state: (state.count > 0).astype(np.float64),
    "lifetime count": lambda state: state.count,
    "count of the last 7 days": lambda state: state.last_week,
    "average rank": _fault_rank,
    "time since return": lambda state: 1.0 / (1.0 + state.since_return_days),
    "count decayed over 7 days": lambda state: state.decayed[7.0],
    "count decayed over 30 days": lambda state: state.decayed[30.0],
    "count decayed over 90 days": lambda state: state.decayed[90.0],
}


@dataclass(frozen=True, slots=True)
class IsotonicCurve:
    """A probability as an increasing step function of a rank."""

    edges: Floats  # rank at the start of each step, ascending
    chance: Floats

    def __call__(self, rank: Floats) -> Floats:
        """Return the probability of each rank; ranks below the first step count as its start."""
        steps = np.searchsorted(self.edges, rank, side="right") - 1
        return np.asarray(self.chance[np.maximum(steps, 0)])


def fit_isotonic(rank: Floats, outcome: Floats) -> IsotonicCurve:
    """Return the best-fitting steps (pool adjacent violators), shrunk to the mean rate."""
    edges, inverse = np.unique(rank, return_inverse=True)
    units = np.bincount(inverse).astype(np.float64)
    positive = np.bincount(inverse, weights=outcome)
    blocks: list[tuple[float, float, float]] = []  # edge, units, positive
    for block in zip(edges.tolist(), units.tolist(), positive.tolist(), strict=True):
        blocks.append(block)
        while len(blocks) > 1 and blocks[-2][2] * blocks[-1][1] >= blocks[-1][2] * blocks[-2][1]:
            edge, mass, sum_ = blocks[-2]
            blocks[-2:] = [(edge, mass + blocks[-1][1], sum_ + blocks[-1][2])]
    begin, mass_of, positive_of = (np.array(column) for column in zip(*blocks, strict=True))
    mean = outcome.mean()
    chance = (positive_of + SHRINK_UNITS * mean) / (mass_of + SHRINK_UNITS)
    return IsotonicCurve(begin, np.maximum.accumulate(chance))
