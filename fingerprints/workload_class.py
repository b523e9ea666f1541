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

from .fingerprint import (  # fmt: skip
    FINGERPRINT_VERSION,
    KNOWN_MIN,
    NUMBERS,
    SCALES,
    Fingerprint,
    Floats,
    features_of,
)

MODEL_FILE = Path(__file__).parent / "workload_class.json"
#: Below this confidence it abstains.
CONFIDENCE_MIN = 0.6
UNKNOWN = "unknown"


class ClassEstimate(NamedTuple):
    """`name` "unknown": it abstains, and `confidence` is that of the likeliest class, NaN without any."""

    name: str
    confidence: float


class ClassModel(NamedTuple):
    """Softmax of `weights` (classes, inputs) times inputs plus `bias` (classes). `middle`: of unknown features."""

    classes: tuple[str, ...]
    weights: Floats
    bias: Floats
    middle: Floats


def inputs_of(values: npt.ArrayLike, middle: Floats) -> Floats:
    """Return a model's inputs (runs, inputs) of fingerprints' values (runs, NUMBERS).

    Of each number its feature, its square, and whether it is known; an unknown one is in the middle.
    """
    found = np.atleast_2d(features_of(values)) * SCALES
    known = np.isfinite(found)
    centered = np.where(known, np.clip(found - middle, -10.0, 10.0), 0.0)
    return np.concatenate([centered, centered * centered, ~known], axis=1)


def probabilities(values: npt.ArrayLike, model: ClassModel) -> Floats:
    """Return the probability of each class (runs, classes)."""
    exponents = inputs_of(values, model.middle) @ model.weights.T + model.bias
    exponents -= exponents.max(axis=1, keepdims=True)
    weights = np.exp(exponents)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@cache
def load_model(path: Path = MODEL_FILE) -> ClassModel | None:
    """Return the model that is shipped; None where there is none, or one of other fingerprints."""
    try:
        stored = json.loads(path.read_text())
        if (
            stored["fingerprint_version"] != FINGERPRINT_VERSION
            or tuple(stored["numbers"]) != NUMBERS
        ):
            return None
        arrays = (
            np.array(stored[name], dtype=np.float64) for name in ("weights", "bias", "middle")
        )
        return ClassModel(tuple(stored["classes"]), *arrays)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def classify(fingerprint: Fingerprint, model: ClassModel | None = None) -> ClassEstimate:
    """Return the class of a run, or that it is unknown. Never raises on odd numbers."""
    model = model or load_model()
    known = int(np.isfinite(features_of(fingerprint.values)).sum())
    if model is None or known < KNOWN_MIN:
        return ClassEstimate(UNKNOWN, nan)
    found = probabilities([fingerprint.values], model)[0]
    likeliest = int(found.argmax())
    confidence = float(found[likeliest])
    name = model.classes[likeliest] if confidence >= CONFIDENCE_MIN else UNKNOWN
    return ClassEstimate(name, confidence)
