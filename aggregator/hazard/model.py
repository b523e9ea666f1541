"""The hazard model: a base rate and weights on a log scale, with its data and measured quality.

Discrete time in steps of a day: a day's hazard = exp(base + sum of weight x feature); P(a fault on
that day) = 1 - exp(-hazard). Contributions add up on the log scale by construction.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..arrays import Floats
from .features import BASIC_FEATURE_NAMES, FEATURE_NAMES, features_of, host_features, weighted_sum
from .history import DECAYS_DAYS, UnitState

HOURS_A_DAY = 24.0
#: `version` of the prior.
PRIOR = "prior"
#: Maximum size of a model's text.
TEXT_BYTES_MAX = 1 << 16
#: Bounds of log hazards and weights; below, of texts and of figures.
LOG_MAX = 50.0
TEXT_CHARACTERS_MAX = 1_000
FIGURES_MAX = 64
#: Upper bound of a day's hazard: a fault per hour.
LOG_HAZARD_PER_DAY_MAX = math.log(HOURS_A_DAY)
#: Spread of a host's hazard if not measured: hosts of a fleet differ by this factor (assumed).
SPREAD_ASSUMED = 3.0
#: Maximum spread of a model. A silent host has 100, because it may be in any state.
SPREAD_MAX = 30.0

#: (days since the return, faults per 1,000 node-days there), at the middle of each interval.
#: Source: StepFun's 400 nodes of 8 GPUs over 348 days (stepfun-ai/InfiniteHBD-Trace).
PUBLISHED_RATES = ((0.5, 276.0), (2.0, 27.0), (5.0, 17.0), (10.5, 12.0), (22.0, 7.0), (60.0, 3.7), (200.0, 2.4))  # fmt: skip
#: The same rate for nodes that never failed.
PUBLISHED_RATE_NEVER = 2.5


class ModelError(ValueError):
    """A text is not a valid model; the message says why, and the expected form."""


@dataclass(frozen=True, slots=True)
class HazardModel:
    """A host's hazard from its fault history and measurements; immutable."""

    source: str  # description of its data
    is_prior: bool  # from published rates, not from this fleet
    outcome: str  # predicted faults: "all classes", "hardware"
    base_log_hazard_per_day: float  # for a host with all features zero
    weights: tuple[float, ...]  # by FEATURES
    first_time: str = ""  # time range of its data
    last_time: str = ""
    nodes: int = 0
    faults: int = 0
    ridge: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: P(fault within 7 days), (predicted, observed) out of fold, by bins of equal mass.
    calibration: tuple[tuple[float, float], ...] = ()
    #: Factor up and down to the 90 % interval of a host's hazard.
    spread: float = SPREAD_ASSUMED

    def contributions(self, columns: Floats) -> tuple[Floats, Floats]:
        """Return ln(hazard per hour) by host, and the contributions (hosts x features).

        *columns*: hosts x features, measurements in their own units. ln(hazard) is
        `base_log_hazard_per_hour` plus the sum of a host's row, to the last bit of a float.
        """
        parts = host_features(columns) * np.array(self.weights)
        return self.base_log_hazard_per_hour + parts.sum(axis=1), parts

    @property
    def version(self) -> str:
        """The model's name, stored with every score: end of its data, and digest of its text."""
        if self.is_prior:
            return PRIOR
        digest = hashlib.sha256(self.to_text().encode(errors="surrogatepass")).hexdigest()
        return f"trained {self.last_time} {digest[:8]}"

    @property
    def base_log_hazard_per_hour(self) -> float:
        """ln(hazard per hour) of a host with all features zero."""
        return self.base_log_hazard_per_day - math.log(HOURS_A_DAY)

    def expected(self, state: UnitState, days: int) -> Floats:
        """Return each unit's hazard summed over the next *days* without further events."""
        total = np.zeros(len(state.count))
        for ahead in range(days):
            logs = self.base_log_hazard_per_day + weighted_sum(
                features_of(state, ahead), self.weights
            )
            total += np.exp(np.minimum(logs, LOG_HAZARD_PER_DAY_MAX))
        return total

    def probability(self, state: UnitState, days: int) -> Floats:
        """Return P(a fault starts within *days*) of each unit."""
        return np.asarray(-np.expm1(-self.expected(state, days)))

    def to_text(self) -> str:
        """Return the model as JSON; `from_text` returns an equal model."""
        document = asdict(self)
        # Later features (classes, measurements) without weight are omitted, so that the text, and
        # with it the version, of an older model stays the same.
        named_weights = zip(FEATURE_NAMES, self.weights, strict=True)
        document["weights"] = {
            name: weight for name, weight in named_weights if weight or name in BASIC_FEATURE_NAMES
        }
        if self.spread == SPREAD_ASSUMED:
            del document["spread"]
        return json.dumps(document, allow_nan=False, indent=1)

    @staticmethod
    def from_text(text: str) -> HazardModel:
        """Return the model of a text. Raises ModelError."""
        if len(text.encode(errors="surrogatepass")) > TEXT_BYTES_MAX:
            raise ModelError(f"longer than {TEXT_BYTES_MAX} bytes: not a model")
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ModelError(f"not JSON: {str(error)[:120]}") from error
        if not isinstance(document, dict):
            raise ModelError("expected an object of the model's fields")
        return _parse_model(document)


def _parse_model(document: dict[str, Any]) -> HazardModel:
    wanted = set(HazardModel.__dataclass_fields__)
    document = {"spread": SPREAD_ASSUMED, **document}  # missing in texts of earlier versions
    if set(document) != wanted:
        odd = sorted(map(str, set(document) ^ wanted))
        raise ModelError(f"fields that are missing or unknown: {', '.join(odd)[:200]}")
    weights = document["weights"]
    # Texts of earlier versions lack weights for later features.
    if not isinstance(weights, dict) or not weights or not set(weights) <= set(FEATURE_NAMES):
        raise ModelError(f"weights: expected some of {', '.join(FEATURE_NAMES)}")
    return HazardModel(
        source=_text(document, "source"),
        is_prior=_flag(document, "is_prior"),
        outcome=_text(document, "outcome"),
        base_log_hazard_per_day=_number(
            document["base_log_hazard_per_day"], "base_log_hazard_per_day"
        ),
        weights=tuple(_number(weights.get(name, 0.0), f"weights.{name}") for name in FEATURE_NAMES),
        first_time=_text(document, "first_time"),
        last_time=_text(document, "last_time"),
        nodes=_count(document, "nodes"),
        faults=_count(document, "faults"),
        ridge=_number(document["ridge"], "ridge", 1e9),
        metrics=_metrics(document["metrics"]),
        calibration=_calibration(document["calibration"]),
        spread=_spread(document["spread"]),
    )


def _number(value: Any, name: str, maximum: float = LOG_MAX) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= maximum:
        raise ModelError(f"{name}: expected a number within {-maximum:g} to {maximum:g}")
    return float(value)


def _spread(value: Any) -> float:
    spread = _number(value, "spread", SPREAD_MAX)
    if spread < 1.0:
        raise ModelError(f"spread: expected a factor from 1 to {SPREAD_MAX:g}")
    return spread


def _text(document: dict[str, Any], name: str) -> str:
    value = document[name]
    if not isinstance(value, str) or len(value) > TEXT_CHARACTERS_MAX:
        raise ModelError(f"{name}: expected at most {TEXT_CHARACTERS_MAX} characters of text")
    return value


def _flag(document: dict[str, Any], name: str) -> bool:
    if not isinstance(document[name], bool):
        raise ModelError(f"{name}: expected true or false")
    return bool(document[name])


def _count(document: dict[str, Any], name: str) -> int:
    value = document[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise ModelError(f"{name}: expected a whole number, zero or above")
    return value


def _metrics(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > FIGURES_MAX:
        raise ModelError(f"metrics: expected an object of at most {FIGURES_MAX} numbers")
    return {str(name): _number(n, f"metrics.{str(name)[:40]}", 1e12) for name, n in value.items()}


def _calibration(value: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or len(value) > FIGURES_MAX:
        raise ModelError(f"calibration: expected a list of at most {FIGURES_MAX} pairs")
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ModelError("calibration: expected pairs of predicted and observed")
    return tuple((_number(a, "calibration", 1.0), _number(b, "calibration", 1.0)) for a, b in value)


def prior(outcome: str = "all classes") -> HazardModel:
    """Return the model of a cluster without data, from published rates by time since return."""
    since = np.array([days for days, _ in PUBLISHED_RATES])
    none = np.zeros(len(since))
    columns = features_of(UnitState(since, none, dict.fromkeys(DECAYS_DAYS, none), none))[:, :3]
    base = math.log(PUBLISHED_RATE_NEVER / 1000.0)
    excess = np.log([rate / 1000.0 for _, rate in PUBLISHED_RATES]) - base
    weights = np.linalg.lstsq(columns, excess, rcond=None)[0]
    return HazardModel(
        source="a prior: published rates of StepFun's 400 nodes (8 GPUs each) over 348 days; not of this fleet",
        is_prior=True,
        outcome=outcome,
        base_log_hazard_per_day=base,
        weights=(*(float(weight) for weight in weights), *[0.0] * (len(FEATURE_NAMES) - 3)),
    )
