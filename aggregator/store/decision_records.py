"""Rows of decisions for the store. Free of DuckDB and Arrow, because the score process builds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import NamedTuple

#: What a row takes beside its request and answer.
ROW_BYTES = 1000


class OptionSummary(NamedTuple):
    """An option in short; NaN where it does not say."""

    what: str
    nodes: int
    price_gpu_hours: float
    price_lower: float
    price_upper: float
    survival: float = nan
    speed: float = nan


class DecisionRecord(NamedTuple):
    """One decision. *request*, *answer*: compressed messages. *inputs*: digests of what it was computed from."""

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
        """What it counts for."""
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
    """What is written together. *inputs*: by digest, the parts that may not be stored yet, compressed."""

    decisions: Sequence[DecisionRecord] = ()
    inputs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    choices: Sequence[ChoiceRecord] = ()

    @property
    def size_bytes(self) -> int:
        """What it counts for while it waits."""
        return sum(one.size_bytes for one in self.decisions) + sum(map(len, self.inputs.values()))


@dataclass(frozen=True, slots=True)
class DecisionLimits:
    """How long decisions are kept, how many bytes of them, and of what they were computed from."""

    days: int = 30
    bytes_max: int = 256 << 20
    inputs_bytes_max: int = 1 << 30
