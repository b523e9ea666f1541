"""Classifies a workload from its fingerprint: a linear model in numpy that may abstain.

scikit-learn trains it (`python -m bench.fingerprint_quality --train`); a JSON file of numbers is shipped.
"""

from __future__ import annotations

import json
from functools import cache
from math import nan
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .fingerprint import FINGERPRINT_VERSION, KNOWN_MIN, NUMBERS, Fingerprint, Floats, features_of

MODEL_FILE = Path(__file__).parent / "workload_class.json"
#: Below CONFIDENCE_MIN it abstains. No answer is surer than CONFIDENCE_MAX: not every kind of job was generated.
CONFIDENCE_MIN, CONFIDENCE_MAX = 0.85, 0.98
#: A run with a number this many units outside the range of the class's generated runs is not of the class.
OUTSIDE_MAX = 0.1
UNKNOWN = "unknown"
#: Number -> constant that is added before its logarithm is taken (None: no logarithm), and size of one unit.
_UNITS: dict[str, tuple[float | None, float]] = {
    "sm_ratio": (0.02, 0.5), "tensor_ratio": (0.01, 0.5), "memory_bandwidth_ratio": (0.02, 0.6),
    "utilization_ratio": (0.02, 0.5), "host_cpu_ratio": (0.03, 0.7), "disk_pressure_ratio": (0.02, 1.0),
    "pcie_bytes_per_second": (1e6, 1.5), "nvlink_bytes_per_second": (1e6, 2.0), "nic_bytes_per_second": (1e6, 2.0),
    "step_seconds": (0.0, 1.5), "checkpoint_interval_seconds": (0.0, 2.0),
    "power_ratio": (None, 0.12), "compute_power_ratio": (None, 0.2), "wait_power_ratio": (None, 0.2),
}  # fmt: skip
_SHARE = (None, 0.15)


class ClassEstimate(NamedTuple):
    """`name` "unknown": it abstains, and `confidence` is NaN."""

    name: str
    confidence: float


class ClassModel(NamedTuple):
    """Softmax of `weights` (classes, inputs) times inputs plus `bias` (classes).

    `middle` replaces unknown features. `low`, `high` (classes, features): range of the generated runs of each class.
    Jobs without a class have the class "".
    """

    classes: tuple[str, ...]
    weights: Floats
    bias: Floats
    middle: Floats
    low: Floats
    high: Floats


class ClassAnswers(NamedTuple):
    """`likeliest`: index of the class of each run. `is_answer`: whether it is certain enough."""

    likeliest: npt.NDArray[np.intp]
    confidence: Floats
    is_answer: npt.NDArray[np.bool_]


def class_features(values: npt.ArrayLike) -> Floats:
    """Return the features (runs, NUMBERS) of the model, NaN where unknown or impossible."""
    numbers = np.atleast_2d(np.array(values, dtype=np.float64))
    numbers = np.where(np.isfinite(features_of(numbers)), numbers, np.nan)
    for at, name in enumerate(NUMBERS):
        added, unit = _UNITS.get(name, _SHARE)
        column = numbers[:, at]
        numbers[:, at] = (column if added is None else np.log(column + added)) / unit
    return numbers


def inputs_of(features: Floats, middle: Floats) -> Floats:
    """Return a model's inputs: each feature, its square, and whether it is unknown. Unknown features become 0."""
    known = np.isfinite(features)
    centered = np.where(known, np.clip(features - middle, -6.0, 6.0), 0.0)
    return np.concatenate([centered, centered * centered / 3.0, ~known], axis=1)


@cache
def load_model(path: Path = MODEL_FILE) -> ClassModel | None:
    """Return the shipped model; None if it is missing, or made for other fingerprints."""
    try:
        stored = json.loads(path.read_text())
        if (
            stored["fingerprint_version"] != FINGERPRINT_VERSION
            or tuple(stored["numbers"]) != NUMBERS
        ):
            return None
        arrays = (np.array(stored[name], dtype=np.float64) for name in ClassModel._fields[1:])
        return ClassModel(tuple(stored["classes"]), *arrays)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def answers(values: npt.ArrayLike, model: ClassModel) -> ClassAnswers:
    """Return the likeliest class of each run of *values* (runs, NUMBERS), and whether it is certain enough."""
    features = class_features(values)
    exponents = inputs_of(features, model.middle) @ model.weights.T + model.bias
    exponents -= exponents.max(axis=1, keepdims=True)
    weights = np.exp(exponents)
    likeliest = exponents.argmax(axis=1)
    confidence = np.minimum(weights.max(axis=1) / weights.sum(axis=1), CONFIDENCE_MAX)
    low, high = model.low[likeliest] - OUTSIDE_MAX, model.high[likeliest] + OUTSIDE_MAX
    is_outside = ((features < low) | (features > high)).any(axis=1)
    has_class = np.array([bool(name) for name in model.classes])[likeliest]
    is_known = np.isfinite(features).sum(axis=1) >= KNOWN_MIN
    is_answer = has_class & is_known & ~is_outside & (confidence >= CONFIDENCE_MIN)
    return ClassAnswers(likeliest, confidence, is_answer)


def classify(fingerprint: Fingerprint, model: ClassModel | None = None) -> ClassEstimate:
    """Return the class of a run, or that it is unknown. Never raises on odd numbers."""
    model = model or load_model()
    if model is None:
        return ClassEstimate(UNKNOWN, nan)
    answer = answers([fingerprint.values], model)
    if not answer.is_answer[0]:
        return ClassEstimate(UNKNOWN, nan)
    return ClassEstimate(model.classes[int(answer.likeliest[0])], float(answer.confidence[0]))
