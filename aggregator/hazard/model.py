"""The hazard model: a base rate and weights on the log scale, with its training data and its measured quality.

Discrete time, steps of a day: hazard of a day = exp(base + the sum of weight x feature); P(a fault on that day) =
1 - exp(-hazard). Contributions add up on the log scale by construction.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .events import Floats
from .features import BASIC_FEATURE_NAMES, FEATURE_NAMES, features_of, host_features, weighted_sum
from .history import DECAYS_DAYS, UnitState

HOURS_A_DAY = 24.0
#: The version of what was not trained here.
PRIOR = "prior"
#: Of a model's text; a longer one is none.
TEXT_BYTES_MAX = 1 << 16
#: Of the logarithm of a hazard, of a weight, and of what tells of a model.
LOG_MAX = 50.0
TEXT_CHARACTERS_MAX = 1_000
FIGURES_MAX = 64
#: A day's hazard is not larger, whatever is summed: a fault an hour.
LOG_HAZARD_PER_DAY_MAX = math.log(HOURS_A_DAY)
#: Up and down of a host's hazard where it was not measured: hosts of one fleet differ by about this much (assumed).
SPREAD_ASSUMED = 3.0
#: A host that is not heard may be in any state, and has 100; one that is heard is known better.
SPREAD_MAX = 30.0

#: Faults per 1,000 node-days by days since the return, of StepFun's 400 nodes of 8 GPUs over 348 days
#: (stepfun-ai/InfiniteHBD-Trace): the middle of each interval, and the rate there.
PUBLISHED_RATES = ((0.5, 276.0), (2.0, 27.0), (5.0, 17.0), (10.5, 12.0), (22.0, 7.0), (60.0, 3.7), (200.0, 2.4))  # fmt: skip
#: The same for nodes that never failed.
PUBLISHED_RATE_NEVER = 2.5


class ModelError(ValueError):
    """A text is no model; the words say what is wrong and what would be right."""


@dataclass(frozen=True, slots=True)
class HazardModel:
    """Hazard of a host from its history of faults, and from what is measured of it; immutable."""

    source: str  # what it was made from, as text
    is_prior: bool  # made from published rates, not from this fleet
    outcome: str  # which faults it is of: "all classes", "hardware"
    base_log_hazard_per_day: float  # of a host whose features are all zero
    weights: tuple[float, ...]  # by FEATURES
    first_time: str = ""  # of the data it was made from
    last_time: str = ""
    nodes: int = 0
    faults: int = 0
    ridge: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: P(fault within 7 days) as told and as it came, out of fold, by bins of equal mass.
    calibration: tuple[tuple[float, float], ...] = ()
    #: Factor up and down of the 90 % interval of one host's hazard.
    spread: float = SPREAD_ASSUMED

    def contributions(self, columns: Floats) -> tuple[Floats, Floats]:
        """Return ln(hazard per hour) of each host, and what each feature adds to it (hosts x features).

        *columns*: hosts x features, what is measured as it is measured. ln(hazard) = `base_log_hazard_per_hour` + the
        sum of a host's row, to the last bit that floats hold.
        """
        parts = host_features(columns) * np.array(self.weights)
        return self.base_log_hazard_per_hour + parts.sum(axis=1), parts

    @property
    def version(self) -> str:
        """Which model, as it is stored with every score: the table `models` has its data's end, and its text's digest."""
        if self.is_prior:
            return PRIOR
        digest = hashlib.sha256(self.to_text().encode(errors="surrogatepass")).hexdigest()
        return f"trained {self.last_time} {digest[:8]}"

    @property
    def base_log_hazard_per_hour(self) -> float:
        """Of a host whose features are all zero."""
        return self.base_log_hazard_per_day - math.log(HOURS_A_DAY)

    def expected(self, state: UnitState, days: int) -> Floats:
        """Return the hazard summed over the next *days*, if nothing happens until then; one for each unit."""
        total = np.zeros(len(state.count))
        for ahead in range(days):
            logs = self.base_log_hazard_per_day + weighted_sum(
                features_of(state, ahead), self.weights
            )
            total += np.exp(np.minimum(logs, LOG_HAZARD_PER_DAY_MAX))
        return total

    def probability(self, state: UnitState, days: int) -> Floats:
        """Return P(a fault starts within *days*)."""
        return np.asarray(-np.expm1(-self.expected(state, days)))

    def to_text(self) -> str:
        """Return the model as JSON; `from_text` gives an equal one."""
        document = asdict(self)
        # What came later (faults by class, what is measured) and has no weight is left out: the text, and so the
        # version, of a model of before it was learned from is what it was.
        named_weights = zip(FEATURE_NAMES, self.weights, strict=True)
        document["weights"] = {
            name: one for name, one in named_weights if one or name in BASIC_FEATURE_NAMES
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
    document = {"spread": SPREAD_ASSUMED, **document}  # one of an earlier version has none
    if set(document) != wanted:
        odd = sorted(map(str, set(document) ^ wanted))
        raise ModelError(f"fields that are missing or unknown: {', '.join(odd)[:200]}")
    weights = document["weights"]
    # One of an earlier version has no weight for a feature that came later.
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


def _number(value: Any, name: str, most: float = LOG_MAX) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
        raise ModelError(f"{name}: expected a number within {-most:g} to {most:g}")
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
    return {str(name): _number(one, f"metrics.{str(name)[:40]}", 1e12) for name, one in value.items()}  # fmt: skip


def _calibration(value: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or len(value) > FIGURES_MAX:
        raise ModelError(f"calibration: expected a list of at most {FIGURES_MAX} pairs")
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ModelError("calibration: expected pairs of predicted and observed")
    return tuple((_number(a, "calibration", 1.0), _number(b, "calibration", 1.0)) for a, b in value)


def prior(outcome: str = "all classes") -> HazardModel:
    """Return the model of a cluster without any data yet, from published rates.

    Only the time since the return counts in it: of counts of faults no rates are published.
    """
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
