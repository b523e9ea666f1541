"""Type of a rule's row in `rule_catalogue/`, which also computes everything that follows from the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Enum, StrEnum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..contract.signals import TABLES
from ..contract.xid.policy import Clears
from .counter_deltas import Flags
from .model import HealthState, Reason


class HazardClass(StrEnum):
    """What a fault is one of, for models of hazard (`hazard/fault_classes.py` describes each)."""

    MEMORY = "memory"
    REMAP = "remap"
    LINK = "link"
    DRIVER = "driver"
    HOST = "host"
    HARDWARE = "hardware"
    OTHER = "other"


class FindingWhen(Enum):
    """When a symptom is a finding: begun where operators must act on it, ended on record where its condition is gone."""

    NEVER = 0
    #: While it costs a host its state: it lasts until a reset, a boot, or time ends it.
    COSTLY = 1
    ALWAYS = 2


@dataclass(frozen=True, slots=True)
class Rule:
    """What a kind of symptom means. `hazard_factor`: how many times as likely a fault is with it alone.

    `shared`: what the devices of a host have in common that may cause it ("cooling"): several that show rules of one such
    cause at the same time may have one fault (`advisories/shared_causes.py`). "": each device has its own.

    It counts once it was there for `enter_seconds` on end, and is over once it was away for
    `leave_seconds`; `clears` says the second as text.

    `reads`: names of the signals that decide it, by themselves or through what the fleet derives from them. `counts`: of
    the counters that are followed from reading to reading for it. Of other signals the fleet remembers nothing.
    `fault_class`: it is a fault of its host, for training and for the time since its return. None: it is none.
    `is_family`: rules are made of it one by one, for each code, counter or event; its name is that of all of them.
    `never_noise`: why no override may take it as noise, and what to declare instead.
    """

    name: str
    state: HealthState
    reason: Reason
    clears: str
    enter_seconds: float = 0.0
    leave_seconds: float = 60.0
    hazard_factor: float = 1.0
    shared: str = ""
    _: KW_ONLY
    reads: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    fault_class: HazardClass | None = None
    finding: FindingWhen = FindingWhen.NEVER
    is_family: bool = False
    never_noise: str = ""


def watch_rule(
    name: str,
    reason: Reason,
    clears: str,
    factor: float,
    enter_seconds: float = 0.0,
    leave_seconds: float = 60.0,
    state: HealthState = HealthState.WATCH,
) -> Rule:
    """Return a rule that is WATCH: worth a look, and no reason to take the host away."""
    return Rule(name, state, reason, clears, enter_seconds, leave_seconds, factor)


#: As `watch_rule`, of a rule that is SUSPECT: the host is likelier to fail than most.
suspect_rule = partial(watch_rule, state=HealthState.SUSPECT)


# ----------------------------------------------------------------------
# Rules that are a row alone: a reading that is wrong by itself, and a counter that counts too much.

#: Says where cells of gauges or states are wrong.
CellPredicate = Callable[[NDArray[Any]], Flags]


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """A gauge or state of *table* that is wrong where `condition` says so; NaN, no reading, never is.

    `message` follow the device's name; `{value}` in them is the reading. Evidence shows `columns`, of itself `column`, of
    the last `seconds`.
    """

    rule: Rule
    table: str
    column: str
    condition: CellPredicate
    message: str
    normal: str = "0"
    columns: str = ""
    seconds: float = 600.0

    @property
    def signal(self) -> str:
        """The signal that it reads."""
        return f"{TABLES[self.table][0].device_kind}.{self.column}"


@dataclass(frozen=True, slots=True)
class RateRule:
    """A counter of *table* that counts at least `least`: within ten minutes, or, `per_second`, a second.

    `peers_ratio`: and this many times the median of all such devices; 0: regardless of them.
    """

    rule: Rule
    table: str
    column: str
    message: str
    minimum: float = 1.0
    per_second: bool = False
    peers_ratio: float = 0.0

    @property
    def signal(self) -> str:
        """The counter that it follows."""
        return f"{TABLES[self.table][0].device_kind}.{self.column}"


RuleRow = ThresholdRule | RateRule


def equals(*codes: int) -> CellPredicate:
    """Return what says where a state is one of *codes*."""
    return lambda values: np.isin(values, codes)


def above(limit: float) -> CellPredicate:
    """Return what says where a gauge or state is above *limit*."""
    return lambda values: np.asarray(values > limit, dtype=bool)


def farther_than(limit: float) -> CellPredicate:
    """Return what says where a gauge is farther than *limit* from zero, either way."""
    return lambda values: np.asarray(np.abs(values) > limit, dtype=bool)


# ----------------------------------------------------------------------
# Rules of events: what one means, and what ends it.


class ClearCondition(NamedTuple):
    """What ends a record of events: `seconds` without another one, for Clears.TIME."""

    clears: Clears
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """What ends it, for people."""
        if self.clears is Clears.RESET:
            return "the GPU is reset, or the host boots"
        if self.clears is Clears.REBOOT:
            return "the host boots"
        span = f"{self.seconds / 60:.0f} minutes"
        if self.seconds >= 7200.0:
            span = f"{self.seconds / 3600:.0f} hours"
        return f"it does not recur for {span}"


class EventKind(NamedTuple):
    """One (name, code) of events: what it means, as text, and from how many lines on it counts."""

    rule: Rule
    message: str
    count_min: int = 1
