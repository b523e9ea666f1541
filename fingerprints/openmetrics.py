"""The exposition format of Prometheus: how families of samples become text.

OpenMetrics 1.0, and the older Prometheus text format 0.0.4 for those who ask for it by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Form(Enum):
    """Which of the two forms, by its media type."""

    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    TEXT = "text/plain; version=0.0.4; charset=utf-8"


def form_of(accept: str) -> Form:
    """Return the form for an `Accept` header: the older one for who asks for it and not for OpenMetrics."""
    older = "text/plain" in accept and "application/openmetrics-text" not in accept
    return Form.TEXT if older else Form.OPENMETRICS


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name: (labels as text, value as text).

    Of a histogram the first begins with which of its samples it is: `_bucket{le="0.1"}`, `_sum`, `_count`.
    """

    name: str  # without `_total`
    kind: str  # `counter`, `gauge`, `histogram` or `info`
    unit: str  # empty, or what the name ends in
    help: str
    samples: Sequence[tuple[str, str]]


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


_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": "", "histogram": ""}


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
