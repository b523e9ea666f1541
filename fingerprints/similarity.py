"""Finds the earlier runs most similar to a run, and the runs among them with the same workload.

A run that waits for a slow host does the same work in each step, in a longer time. So runs are compared without their
waiting: seconds per step, shares and traffic. The distance is the root mean square of the differences that both runs
know, in units of the spread between runs of one workload. Over all runs it is one product of matrices: each term of (a
- q)^2 = a^2 - 2aq + q^2 is a column.

Spreads and limits are fitted to generated runs (`python -m bench.fingerprint_quality --train`); a JSON file of numbers
is shipped.
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
#: Budget of the fitted limits: share of runs that are reported as new although their workload was seen once.
NOT_FOUND_RATIO = 0.05
#: Factor on the distance to a run of another user: most workloads have one user, and little else than the user is
#: common to nearly all of them (assumed).
OTHER_USER_FACTOR = 2.0
#: Slope with which similarity falls from 1 to 0 around the limit (logistic; assumed, not fitted).
SIMILARITY_STEEPNESS = 4.0
#: Limit of the runs in an index; a further run replaces the oldest.
RUNS_MAX = 131_072
#: Features are cut here, so that single precision suffices.
_FEATURE_MAX = 1e3
_WIDTH = len(NUMBERS)
#: Lower bound of the share of time at work: a run that waits for longer is compared with this share.
AT_WORK_MIN = 0.05
_STEP, _WAIT, _POWER, _LEVEL = (
    NUMBERS.index(name)
    for name in ("step_seconds", "wait_ratio", "power_ratio", "compute_power_ratio")
)
#: Activities that waiting reduces.
_WORK = [
    NUMBERS.index(name)
    for name in (*STATES, *RESOURCES)
    if name not in ("wait_ratio", "disk_pressure_ratio")
]
_IS_RATIO = np.array([name.endswith("_ratio") for name in NUMBERS])


class SimilarityModel(NamedTuple):
    """Spreads and limits. `variance` (features): of the difference of two runs of a workload.

    `limits` (features + 1), by the number of features known to both: the greatest sum of squared differences at which
    the workload is the same.
    """

    variance: Floats
    limits: Floats


@cache
def load_similarity(path: Path = MODEL_FILE) -> SimilarityModel:
    """Return the shipped model; if none fits these fingerprints, a model with a spread of one unit in each feature."""
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
    """Return the features that identify the workloads of runs (runs, NUMBERS), without waiting; NaN where unknown.

    Shares enter as square roots, which have the same spread for small and large shares. Never raises on odd numbers.
    """
    found = np.array(values, dtype=np.float64, ndmin=2)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        waits = found[:, _WAIT]
        at_work = np.where((waits >= 0) & (waits <= 1), np.maximum(1.0 - waits, AT_WORK_MIN), 1.0)
        found[:, _STEP] *= at_work
        found[:, _WORK] /= at_work[:, None]
        # The power of a run follows from its two power levels and its waiting.
        found[:, _POWER] = np.where(np.isfinite(found[:, _LEVEL]), np.nan, found[:, _POWER])
        found[:, _WAIT] = np.nan
        features = features_of(found)
        return np.where(_IS_RATIO, np.sqrt(features * SCALES) / SCALES, features)


class SimilarRun(NamedTuple):
    """An earlier run. `distance`: 1 is the limit of the same workload; `similarity`: 0 to 1, one half at the limit."""

    run: int
    distance: float
    similarity: float
    known: int  # number of features that both know


def similarity_of(distance: float) -> float:
    """Return the similarity of two runs at *distance*, 0 to 1; it is not a calibrated probability."""
    exponent = SIMILARITY_STEEPNESS * (distance - SAME_DISTANCE_MAX)
    return float(1.0 / (1.0 + np.exp(np.clip(exponent, -50.0, 50.0))))


class RunIndex:
    """Searchable fingerprints of earlier runs. Rows are numbered from 0 and keep their numbers."""

    def __init__(self, runs_max: int = RUNS_MAX, model: SimilarityModel | None = None) -> None:
        self._runs_max, self._model = runs_max, model or load_similarity()
        self._count = 0  # rows ever added
        self._matrix: Singles = np.zeros((64, 3 * _WIDTH), dtype=np.float32)
        #: Hashes of the user and of the GPU model of each run; 0: unknown.
        self._owners: npt.NDArray[np.uint32] = np.zeros((64, 2), dtype=np.uint32)

    def __len__(self) -> int:
        return min(self._count, self._runs_max)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the searched arrays."""
        return self._matrix.nbytes + self._owners.nbytes

    def add(self, fingerprint: Fingerprint, user: str = "") -> int:
        """Add a run and return its number. A full index replaces its oldest run."""
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
        return self._count - self._runs_max <= run < self._count

    def replace(self, run: int, fingerprint: Fingerprint, user: str = "") -> None:
        """Replace the fingerprint of *run* with a later fingerprint, if the run is still in the index."""
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
        """Return the runs nearest to *fingerprint* of *user* ("": unknown), nearest first, at most *count_max*.

        Runs with too few common features, runs on GPUs of another model, and *without* are left out.
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
        """Return the earlier runs of the same workload, nearest first; empty for a new workload."""
        found = self.nearest(fingerprint, count_max, user=user, without=without)
        return [one for one in found if one.distance <= SAME_DISTANCE_MAX]

    def _put(self, row: int, fingerprint: Fingerprint, user: str) -> None:
        self._matrix[row] = _columns(workload_features(fingerprint.values)[0])
        self._owners[row] = _owner(fingerprint, user)

    def _number(self, row: int) -> int:
        newest = self._count - 1
        return newest - (newest - row) % self._runs_max

    def _distances(self, query: Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return per run the squared distance (limit: 1, infinite if unknown), and the number of common features."""
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
        # The comparison of two runs needs at least half of the query's features.
        known_min = max(float(KNOWN_MIN), float(mask.sum()) / 2)
        return np.where(known >= known_min, squares / limits, np.float32(np.inf)), known


def _owner(fingerprint: Fingerprint, user: str) -> npt.NDArray[np.uint32]:
    return np.array([crc32(user.encode()), crc32(fingerprint.gpu_model.encode())], dtype=np.uint32)


def _columns(features: Floats) -> Singles:
    mask = np.isfinite(features)
    filled = np.clip(np.where(mask, features, 0.0), -_FEATURE_MAX, _FEATURE_MAX)
    return np.concatenate([filled * filled, filled, mask], axis=-1).astype(np.float32)
