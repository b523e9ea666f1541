"""A number with how sure it is and where it is from: each factor of a price is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class QuantitySource(IntEnum):
    """EstimateSource of the wire, the surest first."""

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
    """Return what the request says: it has no interval of its own."""
    return Quantity(value, value, value, QuantitySource.DECLARED, evidence)


def assumed(value: float, lower: float, upper: float, evidence: str) -> Quantity:
    """Return what nobody said."""
    return Quantity(value, lower, upper, QuantitySource.ASSUMED, evidence)


def weakest(sources: Iterable[QuantitySource]) -> QuantitySource:
    """Return the source of what is made of several: the least sure of them."""
    return max(sources, default=QuantitySource.ASSUMED)
