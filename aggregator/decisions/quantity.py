"""A number with its interval and its source: the type of every price factor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import isnan

from ..scoring.reported_factors import ReportedFactor, ReportedFactors


class QuantitySource(IntEnum):
    """EstimateSource of the wire, the most certain first."""

    MEASURED = 1
    REPORTED = 2
    DECLARED = 3
    ASSUMED = 4


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with its 90 % interval. Raises ValueError unless lower <= value <= upper."""

    value: float
    lower: float
    upper: float
    source: QuantitySource
    evidence: str = ""

    def __post_init__(self) -> None:
        # Sums in another order differ in their last digits.
        slack = 1e-9 * max(1.0, abs(self.value))
        if not self.lower - slack <= self.value <= self.upper + slack:
            raise ValueError(f"{self.value} is not within {self.lower} to {self.upper}")


def declared(value: float, evidence: str) -> Quantity:
    """Return a value of the request, which has no interval of its own."""
    return Quantity(value, value, value, QuantitySource.DECLARED, evidence)


def assumed(value: float, lower: float, upper: float, evidence: str) -> Quantity:
    """Return an assumed value."""
    return Quantity(value, lower, upper, QuantitySource.ASSUMED, evidence)


def reported(factor: ReportedFactor, evidence: str) -> Quantity:
    """Return a value that schedulers reported."""
    return Quantity(
        factor.value, factor.lower, factor.upper, QuantitySource.REPORTED,
        f"{evidence} ({factor.reports} reports)" if factor.reports > 1 else f"{evidence} (1 report)",
    )  # fmt: skip


def duration_hours(
    name: str,
    given: float,
    minutes: tuple[float, float, float],
    reports: ReportedFactors,
    factor: str = "",
) -> Quantity:
    """Return a duration in hours.

    *given*: from the request; if NaN, the duration is as reported for *factor*, else the assumed
    *minutes*.
    """
    if not isnan(given):
        return declared(given, f"{name} {given * 60.0:g} min (request)")
    reported_factor = reports.get(factor)
    if reported_factor is not None:
        return reported(reported_factor, f"{name} {reported_factor.value * 60.0:.3g} min")
    value, lower, upper = (bound / 60.0 for bound in minutes)
    return assumed(value, lower, upper, f"{name} {minutes[0]:g} min (assumed)")


def weakest(sources: Iterable[QuantitySource]) -> QuantitySource:
    """Return the source of a combination: the least certain of *sources*."""
    return max(sources, default=QuantitySource.ASSUMED)
