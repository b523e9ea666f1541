"""The earlier runs that are most like a run, and whether any of them is of the same workload.

The distance of two fingerprints is the root mean square of the differences of the features that both know. Over all
runs it is one product of matrices: of (a - q)^2 = a^2 - 2aq + q^2 each term is a column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .fingerprint import KNOWN_MIN, NUMBERS, Fingerprint, Floats, Singles, features_of

#: A run counts as the same workload up to this distance. Set by hand: loose enough that a slow run is found among its own, and
#: so about half of the workloads never seen are taken for known (`python -m bench.fingerprint_quality`).
SAME_DISTANCE_MAX = 1.2
#: Similarity falls from 1 to 0 around it, as fast as this (logistic; assumed, not fitted).
SIMILARITY_STEEPNESS = 4.0
#: Runs that are searched; the oldest make room.
RUNS_MAX = 131_072
#: Features are cut here, so that single precision suffices.
_FEATURE_MAX = 1e3
_WIDTH = len(NUMBERS)


class SimilarRun(NamedTuple):
    """An earlier run. `similarity`: 0 to 1; one half is the limit of the same workload."""

    run: int
    distance: float
    similarity: float
    known: int  # features that both know


def similarity_of(distance: float) -> float:
    """Return how alike two runs of that distance are, 0 to 1; no calibrated probability."""
    exponent = SIMILARITY_STEEPNESS * (distance - SAME_DISTANCE_MAX)
    return float(1.0 / (1.0 + np.exp(np.clip(exponent, -50.0, 50.0))))


class RunIndex:
    """Fingerprints of earlier runs, to be searched. Rows are numbered from 0 and are never renumbered."""

    def __init__(self, runs_max: int = RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._count = 0  # rows ever added
        self._matrix: Singles = np.zeros((64, 3 * _WIDTH), dtype=np.float32)

    def __len__(self) -> int:
        return min(self._count, self._runs_max)

    def add(self, fingerprint: Fingerprint) -> int:
        """Add a run and return its number. The oldest makes room where there are too many."""
        number, row = self._count, self._count % self._runs_max
        if row >= self._matrix.shape[0]:
            size = min(self._runs_max, 2 * self._matrix.shape[0])
            larger = np.zeros((size, 3 * _WIDTH), dtype=np.float32)
            larger[: self._matrix.shape[0]] = self._matrix
            self._matrix = larger
        self._matrix[row] = _columns(features_of(fingerprint.values))
        self._count += 1
        return number

    def has(self, run: int) -> bool:
        """Say whether *run* has not made room yet."""
        return self._count - self._runs_max <= run < self._count

    def replace(self, run: int, fingerprint: Fingerprint) -> None:
        """Put a later fingerprint of *run* in the place of the one before, if it is still there."""
        if self.has(run):
            self._matrix[run % self._runs_max] = _columns(features_of(fingerprint.values))

    def nearest(
        self, fingerprint: Fingerprint, count_max: int = 32, *, without: Sequence[int] = ()
    ) -> list[SimilarRun]:
        """Return the runs nearest to *fingerprint*, nearest first, at most *count_max*; *without* some.

        Runs that know too few of the same features are none of them.
        """
        size = len(self)
        query = features_of(fingerprint.values)
        if not size or np.isfinite(query).sum() < KNOWN_MIN:
            return []
        distances, known = self._distances(query)
        for run in without:
            if self.has(run):
                distances[run % self._runs_max] = np.inf
        count = min(count_max, size)
        rows = np.argpartition(distances, count - 1)[:count] if count < size else np.arange(size)
        rows = rows[np.argsort(distances[rows], kind="stable")]
        return [
            SimilarRun(self._number(row), d := float(np.sqrt(distances[row])), similarity_of(d), int(known[row]))
            for row in rows.tolist()
            if np.isfinite(distances[row])
        ]  # fmt: skip

    def same_workload(
        self, fingerprint: Fingerprint, count_max: int = 32, *, without: Sequence[int] = ()
    ) -> list[SimilarRun]:
        """Return the earlier runs of the same workload, nearest first; empty: it was never seen."""
        found = self.nearest(fingerprint, count_max, without=without)
        return [one for one in found if one.distance <= SAME_DISTANCE_MAX]

    def _number(self, row: int) -> int:
        newest = self._count - 1
        return newest - (newest - row) % self._runs_max

    def _distances(self, query: Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return of each run the mean of the squared differences, infinite where too little is known, and how many."""
        mask = np.isfinite(query)
        filled = np.clip(np.where(mask, query, 0.0), -_FEATURE_MAX, _FEATURE_MAX)
        terms = np.zeros((3 * _WIDTH, 2), dtype=np.float32)
        terms[:_WIDTH, 0] = mask  # a^2
        terms[_WIDTH : 2 * _WIDTH, 0] = -2.0 * filled  # a
        terms[2 * _WIDTH :, 0] = filled * filled  # known
        terms[2 * _WIDTH :, 1] = mask
        product = self._matrix[: len(self)] @ terms
        squares, known = np.maximum(product[:, 0], 0.0), product[:, 1]
        # A run of which half is known by both is compared by that half, and by no less.
        known_min = max(float(KNOWN_MIN), float(mask.sum()) / 2)
        return np.where(known >= known_min, squares / np.maximum(known, 1.0), np.inf), known


def _columns(features: Floats) -> Singles:
    mask = np.isfinite(features)
    filled = np.clip(np.where(mask, features, 0.0), -_FEATURE_MAX, _FEATURE_MAX)
    return np.concatenate([filled * filled, filled, mask], axis=-1).astype(np.float32)
