"""Rows of decisions for the store. Free of DuckDB and Arrow, because the score process builds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import NamedTuple

#: Bytes counted for a row in addition to its request and answer.
ROW_BYTES = 1000


class OptionSummary(NamedTuple):
    """Summary of an option; NaN: not stated."""

    what: str
    nodes: int
    price_gpu_hours: float
    price_lower: float
    price_upper: float
    survival: float = nan
    speed: float = nan


class DecisionRecord(NamedTuple):
    """A decision. *request*, *answer*: compressed. *inputs*: digests of the inputs it used."""

    decision: str
    time_ns: int
    kind: str
    caller: str
    workload: str
    score_version: int
    dictionary_version: int
    gangline_version: str
    solve_seconds: float
    degraded: bool
    options: tuple[OptionSummary, ...]
    hosts: tuple[str, ...]
    blockers: tuple[str, ...]
    request: bytes
    answer: bytes
    inputs: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes that count against the limit."""
        return len(self.request) + len(self.answer) + ROW_BYTES


class ChoiceRecord(NamedTuple):
    """A reservation that names a decision."""

    reservation: str
    decision: str
    option: int
    owner: str
    time_ns: int
    expire_ns: int
    nodes: int


@dataclass(frozen=True, slots=True)
class DecisionCommit:
    """Rows of one transaction. *inputs*: by digest, compressed parts that may not be stored yet."""

    decisions: Sequence[DecisionRecord] = ()
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    choices: Sequence[ChoiceRecord] = ()

    @property
    def size_bytes(self) -> int:
        """Return the bytes that count against the limit while the commit is pending."""
        return sum(d.size_bytes for d in self.decisions) + sum(map(len, self.inputs.values()))


@dataclass(frozen=True, slots=True)
class DecisionLimits:
    """Retention of decisions in days and bytes, and the byte limit of their inputs."""

    days: int = 30
    bytes_max: int = 256 << 20
    inputs_bytes_max: int = 1 << 30
