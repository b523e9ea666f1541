"""The exposition formats of Prometheus, from families of samples: OpenMetrics 1.0 and the older text format 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": "", "bare_counter": ""}
#: Names of our kinds in the two formats, if they differ.
_OPENMETRICS_KINDS = {"bare_counter": "unknown"}
_TEXT_KINDS = {"info": "gauge", "bare_counter": "counter"}


class ExpositionFormat(Enum):
    """The two formats, by media type."""

    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    TEXT = "text/plain; version=0.0.4; charset=utf-8"


def negotiate_format(accept: str) -> ExpositionFormat:
    """Return the format for an `Accept` header: the older format only if it is listed and OpenMetrics is not."""
    wants_text = "text/plain" in accept and "application/openmetrics-text" not in accept
    return ExpositionFormat.TEXT if wants_text else ExpositionFormat.OPENMETRICS


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of one name: (labels as text, value as text)."""

    name: str  # without `_total`
    #: `counter`, `gauge`, `info`, or `bare_counter`: a counter without the suffix `_total`, because its name is not
    #: ours; OpenMetrics has no type for it.
    kind: str
    unit: str  # suffix of the name, or empty
    help: str
    samples: Sequence[tuple[str, str]]


def format_number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def escape_label(text: str) -> str:
    """Return *text* escaped for the quotes of a label's value.

    Bytes that are not UTF-8 (of a mount point) become escapes: two equal labels would make the whole exposition
    invalid.
    """
    encoded = text.encode(errors="backslashreplace").decode()
    return encoded.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def format_labels(labels: Mapping[str, str]) -> str:
    """Return `{uuid="...",port="1"}`; empty for no labels. The names are Gangline's and need no escape."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escape_label(value)}"' for name, value in labels.items()) + "}"


def render_exposition(families: Iterable[Family], exposition: ExpositionFormat) -> bytes:
    is_openmetrics = exposition is ExpositionFormat.OPENMETRICS
    render = _openmetrics if is_openmetrics else _text_format
    lines = [line for family in families for line in render(family)]
    lines += ["# EOF"] if is_openmetrics else []
    return "".join(f"{line}\n" for line in lines).encode()


def _openmetrics(family: Family) -> Iterable[str]:
    yield f"# TYPE {family.name} {_OPENMETRICS_KINDS.get(family.kind, family.kind)}"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"
    yield f"# HELP {family.name} {escape_label(family.help)}"
    sample = family.name + _SUFFIXES[family.kind]
    for labels, value in family.samples:
        yield f"{sample}{labels} {value}"


def _text_format(family: Family) -> Iterable[str]:
    """Yield the older format: it has type and help for the sample's own name, and no `info`."""
    sample = family.name + _SUFFIXES[family.kind]
    help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {sample} {help_text}"
    yield f"# TYPE {sample} {_TEXT_KINDS.get(family.kind, family.kind)}"
    for labels, value in family.samples:
        yield f"{sample}{labels} {value}"
