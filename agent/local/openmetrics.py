"""How signals are named in the exposition format (`fingerprints/openmetrics.py`).

A value's name is made from its row of the catalogue: `gpu.sm_clock_hertz` is `gangline_gpu_sm_clock_hertz`. Three
rules of the format bend it: a counter ends in `_total`; time is in seconds; `_count`, which the format
keeps for histograms, is not written.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...fingerprints.catalogue import Kind, Signal
from ...fingerprints.openmetrics import Family, number

PREFIX = "gangline_"
#: Ten to this many is one second.
_SECOND_DIGITS = {"milliseconds": 3, "microseconds": 6, "nanoseconds": 9}
#: Names end in these, but nothing is measured in them.
_NO_UNITS = frozenset(("", "count", "state", "flags", "code", "number"))


def name_of(signal: Signal) -> str:
    """Return the family's name: that of the signal, in the units of the format."""
    name = PREFIX + signal.name.replace(".", "_")
    if signal.unit in _SECOND_DIGITS:
        return name.removesuffix(signal.unit) + "seconds"
    return name.removesuffix("_count") if signal.unit == "count" else name


def unit_of(signal: Signal) -> str:
    """Return the unit that the family's name ends in; empty where it has none."""
    if signal.unit in _SECOND_DIGITS:
        return "seconds"
    return "" if signal.unit in _NO_UNITS else signal.unit


def family_of(signal: Signal, samples: Sequence[tuple[str, str]]) -> Family:
    """Return the signal's family."""
    kind = "counter" if signal.kind is Kind.COUNTER else "gauge"
    return Family(name_of(signal), kind, unit_of(signal), signal.tells, samples)


def value_of(signal: Signal, value: float) -> str:
    """Return a reading as the format writes it; whole numbers keep all their digits."""
    digits = _SECOND_DIGITS.get(signal.unit, 0)
    if isinstance(value, int):
        if not digits:
            return str(value)
        whole, part = divmod(value, 10**digits)
        return f"{whole}.{part:0{digits}}"
    return number(value / 10**digits if digits else value)
