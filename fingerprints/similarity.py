"""Finds the earlier runs most similar to a run, and whether any is of the same workload.

A run that waits for a slow host does the same work in each step, in a longer time. So runs are compared without their waiting:
seconds per step, shares and traffic. The distance is the root mean square of the differences that both runs know, in units of
the spread between runs of one workload. Over all runs it is one product of matrices: each term of (a - q)^2 = a^2 - 2aq + q^2
is a column.

Spreads and limits are fitted to generated runs (`python -m bench.fingerprint_quality --train`); a JSON file of numbers is
shipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from .fingerprint import (
    FINGERPRINT_VERSION,
    KNOWN_MIN,
    NUMBERS,
    RESOURCES,
    SCALES,
    STATES,
    Fingerprint,
    Floats,
    Singles,
    features_of,
)

MODEL_FILE = Path(__file__).parent / "run_similarity.json"
#: Distances are in units of the limit, which NOT_FOUND_RATIO of the pairs of runs of one workload exceed.
SAME_DISTANCE_MAX = 1.0
#: The budget that the limits are fitted to: of runs whose workload was seen once, this many are said to be new.
NOT_FOUND_RATIO = 0.05
#: The run of another user is so much farther away: most workloads are one user's, and nearly all of these are alike in
#: little else than what they do (assumed).
OTHER_USER_FACTOR = 2.0
#: Similarity falls from 1 to 0 around the limit, as fast as this (logistic; assumed, not fitted).
SIMILARITY_STEEPNESS = 4.0
#: Runs that are searched; the oldest make room.
RUNS_MAX = 131_072
#: Features are cut here, so that single precision suffices.
_FEATURE_MAX = 1e3
_WIDTH = len(NUMBERS)
#: A run that waits for more than the rest of its time is compared as if it waited for that.
AT_WORK_MIN = 0.05
_STEP, _WAIT, _POWER, _LEVEL = (
    NUMBERS.index(name)
    for name in ("step_seconds", "wait_ratio", "power_ratio", "compute_power_ratio")
)
#: What a run does less of while it waits.
_WORK = [NUMBERS.index(name) for name in (*STATES, *RESOURCES) if name not in ("wait_ratio", "disk_pressure_ratio")]  # fmt: skip
_IS_RATIO = np.array([name.endswith("_ratio") for name in NUMBERS])


class SimilarityModel(NamedTuple):
    """`variance` (features): of the difference of two runs of a workload; `limits` (features + 1): by how many features both
    know, the sum of squares of differences up to which the workload is the same."""

    variance: Floats
    limits: Floats


@cache
def load_similarity(path: Path = MODEL_FILE) -> SimilarityModel:
    """Return the model that is shipped; where there is none of these fingerprints, a spread of one unit in each feature."""
    try:
        stored = json.loads(path.read_text())
        variance, limits = (
            np.array(stored[name], dtype=np.float64) for name in SimilarityModel._fields
        )
        if (
            stored["fingerprint_version"] == FINGERPRINT_VERSION
            and tuple(stored["numbers"]) == NUMBERS
            and (len(variance), len(limits)) == (_WIDTH, _WIDTH + 1)
            and np.isfinite(variance).all()
            and np.isfinite(limits).all()
            and min(variance.min(), limits.min()) > 0
        ):
            return SimilarityModel(variance, limits)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return SimilarityModel(np.ones(_WIDTH), 1.5 * np.arange(1.0, _WIDTH + 2))


def workload_features(values: npt.ArrayLike) -> Floats:
    """Return what identifies the workload of runs (runs, NUMBERS): features without waiting; NaN where unknown.

    Shares enter by their root, which makes the spread of small and large ones alike. Never raises on odd numbers.
    """
    found = np.array(values, dtype=np.float64, ndmin=2)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        waits = found[:, _WAIT]
        at_work = np.where((waits >= 0) & (waits <= 1), np.maximum(1.0 - waits, AT_WORK_MIN), 1.0)
        found[:, _STEP] *= at_work
        found[:, _WORK] /= at_work[:, None]
        # The power of a run is its two levels, and how long it waited.
        found[:, _POWER] = np.where(np.isfinite(found[:, _LEVEL]), np.nan, found[:, _POWER])
        found[:, _WAIT] = np.nan
        features = features_of(found)
        return np.where(_IS_RATIO, np.sqrt(features * SCALES) / SCALES, features)


class SimilarRun(NamedTuple):
    """An earlier run. `distance`: 1 is the limit of the same workload; `similarity`: 0 to 1, one half at the limit."""

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

    def __init__(self, runs_max: int = RUNS_MAX, model: SimilarityModel | None = None) -> None:
        self._runs_max, self._model = runs_max, model or load_similarity()
        self._count = 0  # rows ever added
        self._matrix: Singles = np.zeros((64, 3 * _WIDTH), dtype=np.float32)
        #: Hashes of the user and of the GPU model of each; 0: not known.
        self._owners: npt.NDArray[np.uint32] = np.zeros((64, 2), dtype=np.uint32)

    def __len__(self) -> int:
        return min(self._count, self._runs_max)

    @property
    def memory_bytes(self) -> int:
        """Bytes of what is searched."""
        return self._matrix.nbytes + self._owners.nbytes

    def add(self, fingerprint: Fingerprint, user: str = "") -> int:
        """Add a run and return its number. The oldest makes room where there are too many."""
        number, row = self._count, self._count % self._runs_max
        if row >= len(self._matrix):
            size = min(self._runs_max, 2 * len(self._matrix))
            more = size - len(self._matrix)
            self._matrix = np.pad(self._matrix, ((0, more), (0, 0)))
            self._owners = np.pad(self._owners, ((0, more), (0, 0)))
        self._put(row, fingerprint, user)
        self._count += 1
        return number

    def has(self, run: int) -> bool:
        """Return whether *run* has not made room yet."""
        return self._count - self._runs_max <= run < self._count

    def replace(self, run: int, fingerprint: Fingerprint, user: str = "") -> None:
        """Put a later fingerprint of *run* in the place of the one before, if it is still there."""
        if self.has(run):
            self._put(run % self._runs_max, fingerprint, user)

    def nearest(
        self,
        fingerprint: Fingerprint,
        count_max: int = 32,
        *,
        user: str = "",
        without: Sequence[int] = (),
    ) -> list[SimilarRun]:
        """Return the runs nearest to *fingerprint* of *user* ("": not known), nearest first, at most *count_max*.

        Runs that know too few of the same features, those on GPUs of another model and *without* are none of them.
        """
        size = len(self)
        query = workload_features(fingerprint.values)[0]
        if not size or np.isfinite(query).sum() < KNOWN_MIN:
            return []
        distances, known = self._distances(query)
        owner, owners = _owner(fingerprint, user), self._owners[:size]
        is_other = (owners != owner) & (owners != 0) & (owner != 0)
        distances[is_other[:, 0]] *= OTHER_USER_FACTOR**2
        distances[is_other[:, 1]] = np.inf
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
        self,
        fingerprint: Fingerprint,
        count_max: int = 32,
        *,
        user: str = "",
        without: Sequence[int] = (),
    ) -> list[SimilarRun]:
        """Return the earlier runs of the same workload, nearest first; empty: it was never seen."""
        found = self.nearest(fingerprint, count_max, user=user, without=without)
        return [one for one in found if one.distance <= SAME_DISTANCE_MAX]

    def _put(self, row: int, fingerprint: Fingerprint, user: str) -> None:
        self._matrix[row] = _columns(workload_features(fingerprint.values)[0])
        self._owners[row] = _owner(fingerprint, user)

    def _number(self, row: int) -> int:
        newest = self._count - 1
        return newest - (newest - row) % self._runs_max

    def _distances(self, query: Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return each run's squared distance, in units of the limit, infinite where too little is known; and how many are."""
        mask = np.isfinite(query)
        filled = np.clip(np.where(mask, query, 0.0), -_FEATURE_MAX, _FEATURE_MAX)
        weights = mask / self._model.variance
        terms = np.zeros((3 * _WIDTH, 2), dtype=np.float32)
        terms[:_WIDTH, 0] = weights  # a^2
        terms[_WIDTH : 2 * _WIDTH, 0] = -2.0 * filled * weights  # a
        terms[2 * _WIDTH :, 0] = filled * filled * weights  # known
        terms[2 * _WIDTH :, 1] = mask
        product = self._matrix[: len(self)] @ terms
        squares, known = np.maximum(product[:, 0], 0.0), product[:, 1]
        limits = self._model.limits.astype(np.float32)[known.astype(np.intp)]
        # Two runs are compared only if both know at least half.
        known_min = max(float(KNOWN_MIN), float(mask.sum()) / 2)
        return np.where(known >= known_min, squares / limits, np.float32(np.inf)), known


def _owner(fingerprint: Fingerprint, user: str) -> npt.NDArray[np.uint32]:
    return np.array([crc32(user.encode()), crc32(fingerprint.gpu_model.encode())], dtype=np.uint32)


def _columns(features: Floats) -> Singles:
    mask = np.isfinite(features)
    filled = np.clip(np.where(mask, features, 0.0), -_FEATURE_MAX, _FEATURE_MAX)
    return np.concatenate([filled * filled, filled, mask], axis=-1).astype(np.float32)
