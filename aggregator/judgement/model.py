"""The hazard that no rule explains: by the model that was trained here, else by the public record."""

from __future__ import annotations

import numpy as np

from ..fleet.arrays import Codes, Floats
from ..hazard.features import NAMES
from ..hazard.model import HOURS_A_DAY, LOG_HAZARD_PER_DAY_MAX, HazardModel
from .scoring import base_hazards_per_hour


def trained(model: HazardModel | None) -> HazardModel | None:
    """Return *model* if it was trained here, and all its figures are numbers: no other is believed."""
    if model is None or model.is_prior:
        return None
    return (
        model
        if np.isfinite((model.base_log_hazard_per_day, model.spread, *model.weights)).all()
        else None
    )


def parts_of(model: HazardModel | None, features: Floats, gpus: Codes) -> tuple[Floats, Floats]:
    """Return (ln of each host's base hazard per hour, what each feature adds): hosts, and hosts x `hazard.NAMES`.

    *features*: hosts x `judgement.features.NAMES`, which begin with those.

    Where none was *trained*, the base is the public record's, by the number of *gpus*, and no feature adds anything:
    the published rates after a return are of another cluster's faults. Base and parts add up to no more than a model
    is held to.
    """
    if model is None:
        return np.log(base_hazards_per_hour(gpus)), np.zeros((len(features), len(NAMES)))
    told, parts = model.contributions(features[:, : len(NAMES)])
    most = LOG_HAZARD_PER_DAY_MAX - np.log(HOURS_A_DAY)
    return np.minimum(told, most) - parts.sum(axis=1), parts
