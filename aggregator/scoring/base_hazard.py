"""Hazard of a host before any symptom: by a trained model, or by the public record."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays import Codes, Floats
from ..hazard.features import FEATURE_NAMES
from ..hazard.model import HOURS_A_DAY, LOG_HAZARD_PER_DAY_MAX, HazardModel
from .calibration import NO_OUTCOMES, Calibration

#: Interruptions per GPU-hour of a job, all causes: 2.2e-5 (StepFun's 400 nodes over 348 days,
#: stepfun-ai/InfiniteHBD-Trace; 2.0e-5 in Meta's Llama 3 report, table 5).
GPU_HAZARD_PER_HOUR = 2.2e-5
#: Added by the host besides its GPUs (assumed: no public rate exists for hosts alone).
HOST_HAZARD_PER_HOUR = 5e-6


class ModelHazard(NamedTuple):
    """A model's hazard of a host, before any symptom."""

    model: str
    log_base: float
    parts: tuple[float, ...]  # increase of ln(hazard) per feature
    features: tuple[float, ...]
    at_ns: int
    spread: float  # factor of the 90 % interval, up and down
    outcomes: Calibration = NO_OUTCOMES


def base_hazard_per_hour(gpus: int) -> float:
    """Return the hazard of a host that is known only by its number of GPUs."""
    return GPU_HAZARD_PER_HOUR * gpus + HOST_HAZARD_PER_HOUR


def base_hazards_per_hour(gpus: Codes | Floats) -> Floats:
    """Return `base_hazard_per_hour` of many hosts."""
    return GPU_HAZARD_PER_HOUR * gpus.astype(np.float64) + HOST_HAZARD_PER_HOUR


def trained(model: HazardModel | None) -> HazardModel | None:
    """Return *model* if it was trained on this fleet and all its figures are finite, else None."""
    if model is None or model.is_prior:
        return None
    if np.isfinite((model.base_log_hazard_per_day, model.spread, *model.weights)).all():
        return model
    return None


def parts_of(model: HazardModel | None, features: Floats, gpus: Codes) -> tuple[Floats, Floats]:
    """Return (ln of the base hazards per hour, additions: hosts x `hazard.features.FEATURE_NAMES`).

    *features*: hosts x SCORE_FEATURE_NAMES, which begin with the same names.

    Without a trained model the base is the public record's, by the number of *gpus*, and no feature
    adds anything: the published rates after a return describe another cluster's faults. Base plus
    parts are limited to LOG_HAZARD_PER_DAY_MAX.
    """
    if model is None:
        return np.log(base_hazards_per_hour(gpus)), np.zeros((len(features), len(FEATURE_NAMES)))
    log_hazards, parts = model.contributions(features[:, : len(FEATURE_NAMES)])
    log_hazard_max = LOG_HAZARD_PER_DAY_MAX - np.log(HOURS_A_DAY)
    return np.minimum(log_hazards, log_hazard_max) - parts.sum(axis=1), parts
