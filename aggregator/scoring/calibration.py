"""Corrects hazards by the ratio of interruptions reported by schedulers to predicted ones.

An outcome states that a job ran on given hosts, and whether it was interrupted. X is the hazard of
its hosts, summed over the scored time up to the interruption. The expected count is P = 1 -
exp(-X), because a job is interrupted at most once. An interruption counts as exp(-X), the
probability by the scores that none had come before. If all hazards are too small by a factor f,
these counts have a mean of f times the expected ones, for any f: both are sums over the same time
with the same weight exp(-x) (a weighted Nelson-Aalen estimate; Andersen, Borgan, Gill and Keiding,
Statistical Models Based on Counting Processes, IV.1). So no outcome weighs more than one job,
however large a hazard was.

The factor is a function of the hazard: its logarithm is linear between KNOTS_PER_HOUR, so hosts
with a fault do not affect hosts without one. Each knot is shrunk toward the knot below it and the
lowest toward 1; none is shrunk toward a knot above.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log
from typing import NamedTuple

import numpy as np

from ..arrays import Floats
from ..model import Evidence, Reason
from .evidence_sql import timestamp_sql

#: Hazards whose outcomes are counted apart: no symptom, a weak symptom, several, about to fail.
KNOTS_PER_HOUR = (3e-4, 3e-3, 3e-2, 3e-1)
_LOG_KNOTS = np.log(KNOTS_PER_HOUR)
#: Range of the factor, however few or many outcomes there are.
FACTOR_BOUNDS = (0.1, 10.0)
#: Minimum of interruptions, and of expected ones, in a ratio: the factor of the knot below supplies
#: the rest. An outcome changes a hazard by at most 1 / 21, less than 5 %.
INTERRUPTIONS_MIN = 21.0
#: With 3 or more reporters none counts more than twice the mean; with 100 or more, this share.
REPORTER_SHARE_MIN = 0.02
#: Distinct reporters; later ones are counted together.
REPORTERS_MAX = 1000
#: Age at which an outcome counts half. Its mean age is 130 days, in which a fleet of 32 hosts with
#: 8 GPUs each has 18 interruptions; after half a year, the usual life of drivers and firmware, an
#: outcome counts a quarter.
HALF_LIFE_DAYS = 90.0
_DAY_NS = 86_400 * 10**9
_SQL = (
    "SELECT time, outcome, hosts, interrupted, expected_interruptions FROM ops.outcomes "
    "WHERE expected_interruptions IS NOT NULL AND time <= {} ORDER BY time DESC"
)


Sequences = Sequence[Sequence[float]]


class Outcomes(NamedTuple):
    """Interruptions (aged), expected interruptions, and the factor of hosts with one hazard."""

    interruptions: float = 0.0
    expected: float = 0.0
    factor: float = 1.0

    @property
    def log_factor(self) -> float:
        """Increase of ln(hazard)."""
        return log(self.factor)

    def evidence(self, score_delta: float, at_ns: int) -> Evidence:
        """Return the factor as evidence with this change of the score."""
        message = (
            f"schedulers reported {self.interruptions:,.1f} interruptions of jobs on hosts with such a hazard where "
            f"{self.expected:,.1f} were expected: its hazard is multiplied by {self.factor:.2g} (few outcomes count little)"
        )
        return Evidence(
            signal="hazard.outcomes",
            device="host",
            value=self.factor,
            unit="ratio",
            normal="1",
            log_hazard_delta=self.log_factor,
            relative_speed_factor=1.0,
            score_delta=score_delta,
            reason=Reason.NONE,
            message=message,
            observed_ns=at_ns,
            sql=_SQL.format(timestamp_sql(at_ns)),
        )


class Calibration(NamedTuple):
    """Interruptions, expected interruptions, and the factor, by KNOTS_PER_HOUR."""

    interruptions: tuple[float, ...] = (0.0,) * len(KNOTS_PER_HOUR)
    expected: tuple[float, ...] = (0.0,) * len(KNOTS_PER_HOUR)
    factors: tuple[float, ...] = (1.0,) * len(KNOTS_PER_HOUR)

    @property
    def has_effect(self) -> bool:
        """Whether any factor differs from 1."""
        return any(factor != 1.0 for factor in self.factors)

    def log_factors(self, log_hazards: Floats) -> Floats:
        """Return the addition to each ln(hazard per hour); the order of hazards stays."""
        return np.interp(log_hazards, _LOG_KNOTS, np.log(self.factors))

    def at(self, hazard_per_hour: float) -> Outcomes:
        """Return the outcomes of hosts with this uncorrected hazard."""
        if not self.has_effect:
            return Outcomes()
        log_hazard = log(hazard_per_hour)
        interruptions, expected = (
            float(np.interp(log_hazard, _LOG_KNOTS, counts)) for counts in self[:2]
        )
        return Outcomes(
            interruptions, expected, exp(float(self.log_factors(np.array([log_hazard]))[0]))
        )


#: No outcome was reported.
NO_OUTCOMES = Calibration()


def factors(interruptions: Sequence[float], expected: Sequence[float]) -> tuple[float, ...]:
    """Return the factor by which hazards were too small, by KNOTS_PER_HOUR."""
    result, below = list[float](), 1.0
    low, high = FACTOR_BOUNDS
    for knot, (observed, predicted) in enumerate(zip(interruptions, expected, strict=True)):
        # Add pseudo-counts up to INTERRUPTIONS_MIN for both counts.
        pseudo_count = max(
            INTERRUPTIONS_MIN * max(1.0, below) - min(observed, predicted * below), 0.0
        )
        factor = (pseudo_count + observed) / (pseudo_count / below + predicted)
        if knot:  # keep the order of hazards
            factor = max(factor, below * KNOTS_PER_HOUR[knot - 1] / KNOTS_PER_HOUR[knot])
        below = min(max(factor, low), high)
        result.append(below)
    return tuple(result)


class ReportedOutcomes:
    """Sums of outcomes by reporter; each halves in *half_life_days*."""

    def __init__(self, half_life_days: float = HALF_LIFE_DAYS) -> None:
        self._half_life_ns = half_life_days * _DAY_NS
        self._at_ns = 0  # time of the sums
        #: By reporter: interruptions and expected, by KNOTS_PER_HOUR.
        self._sums: dict[str, Floats] = {}
        #: Outcomes, host-hours, interruptions and expected ones by KNOTS_PER_HOUR, unfaded.
        self.totals = np.zeros((4, len(KNOTS_PER_HOUR)))

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, reporter: str, time_ns: int, weighted: Sequences, totals: Sequences) -> None:
        """Add an outcome, or the sums of several, reported at *time_ns*, all by KNOTS_PER_HOUR.

        *weighted*: interruptions, each times exp(-X), and expected ones. *totals*: see `totals`.
        """
        if reporter not in self._sums and len(self._sums) >= REPORTERS_MAX:
            reporter = ""
        self._age(max(time_ns, self._at_ns))
        decayed = np.array(weighted) * 0.5 ** ((self._at_ns - time_ns) / self._half_life_ns)
        self._sums[reporter] = self._sums.get(reporter, np.zeros_like(decayed)) + decayed
        self.totals += np.array(totals)

    def _age(self, now_ns: int) -> None:
        faded = 0.5 ** ((now_ns - self._at_ns) / self._half_life_ns) if self._at_ns else 1.0
        self._sums = {reporter: sums * faded for reporter, sums in self._sums.items()}
        self._at_ns = now_ns

    def calibration(self, now_ns: int) -> Calibration:
        """Return the calibration at *now_ns*."""
        if not self._sums:
            return NO_OUTCOMES
        self._age(max(now_ns, self._at_ns))
        sums = np.array([*self._sums.values()])  # reporters x (interruptions, expected) x knots
        share = reporter_share_max(len(sums))
        caps = np.array(
            [
                [share_cap(knot, share, INTERRUPTIONS_MIN) for knot in knots]
                for knots in np.moveaxis(sums, 0, -1)
            ]
        )
        # Scale both counts of a reporter alike, so their ratio stays.
        scale = np.min(np.minimum(1.0, caps / np.maximum(sums, 1e-300)), axis=1, keepdims=True)
        interruptions, expected = (tuple(count.tolist()) for count in (sums * scale).sum(axis=0))
        return Calibration(interruptions, expected, factors(interruptions, expected))


def reporter_share_max(count: int) -> float:
    """Return a reporter's largest share: twice the mean, at most half; 1 for a single reporter."""
    return 1.0 if count < 2 else max(REPORTER_SHARE_MIN, min(0.5, 2.0 / count))


def share_cap(sums: Floats, share: float, extra: float) -> float:
    """Return the cap of *sums* so that none exceeds *share* of *extra* plus the capped sums."""
    if share >= 1.0:
        return inf
    falling = np.sort(sums)[::-1]
    rest = extra + falling.sum()
    for cut, largest in enumerate(falling.tolist()):
        if share * cut >= 1.0:
            break
        cap = float(share * rest / (1.0 - share * cut))
        if largest <= cap:
            return cap
        rest -= largest
    return inf
