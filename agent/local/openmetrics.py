"""The exposition format: how signals are named in it, and how families of samples become text.

OpenMetrics 1.0, and the older Prometheus text format 0.0.4 for those who ask for it by name. A value's
name is made from its row of the catalogue: `gpu.sm_clock_hertz` is `gangline_gpu_sm_clock_hertz`. Three
rules of the format bend it: a counter ends in `_total`; time is in seconds; `_count`, which the format
keeps for histograms, is not written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ...fingerprints.catalogue import Kind, Signal

PREFIX = "gangline_"
#: Ten to this many is one second.
_SECOND_DIGITS = {"milliseconds": 3, "microseconds": 6, "nanoseconds": 9}
#: Names end in these, but nothing is measured in them.
_NO_UNITS = frozenset(("", "count", "state", "flags", "code", "number"))


class Form(Enum):
    """Which of the two forms, by its media type."""

    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name: (labels as text, value as text)."""

    name: str  # without `_total`
    kind: str  # `counter`, `gauge` or `info`
    unit: str  # empty, or what the name ends in
    help: str
    samples: Sequence[tuple[str, str]]


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


def number(value: float) -> str:
    """Return a number as the format writes it."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def escaped(text: str) -> str:
    """Return *text* as it may stand between the quotes of a label's value.

    What is no UTF-8 (bytes of a mount point) is spelt out: two that looked alike would cost the whole
    exposition.
    """
    whole = text.encode(errors="backslashreplace").decode()
    return whole.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def labels_of(labels: Mapping[str, str]) -> str:
    """Return `{uuid="...",port="1"}`; empty for no labels. The names are ours and need no escape."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


def text_of(families: Iterable[Family], form: Form) -> bytes:
    """Return the whole exposition."""
    lines: list[str] = []
    for family in families:
        lines += _openmetrics(family) if form is Form.OPENMETRICS else _plain(family)
    lines += ["# EOF"] if form is Form.OPENMETRICS else []
    return "".join(f"{line}\n" for line in lines).encode()


_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": ""}


def _openmetrics(family: Family) -> Iterable[str]:
    yield f"# TYPE {family.name} {family.kind}"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"
    yield f"# HELP {family.name} {escaped(family.help)}"
    sample = family.name + _SUFFIXES[family.kind]
    for labels, value in family.samples:
        yield f"{sample}{labels} {value}"


def _plain(family: Family) -> Iterable[str]:
    """Yield the older form: it types and explains the sample's own name, and knows no `info`."""
    sample = family.name + _SUFFIXES[family.kind]
    words = family.help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {sample} {words}"
    yield f"# TYPE {sample} {'gauge' if family.kind == 'info' else family.kind}"
    for labels, value in family.samples:
        yield f"{sample}{labels} {value}"
