"""Types of the rows in `rule_catalogue/`, and helpers to write conditions."""

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
from .arrays import Flags
from .model import HealthState, Reason


class HazardClass(StrEnum):
    """Class of a fault, for hazard models (`hazard/fault_classes.py` describes each)."""

    MEMORY = "memory"
    REMAP = "remap"
    LINK = "link"
    DRIVER = "driver"
    HOST = "host"
    HARDWARE = "hardware"
    OTHER = "other"


class FindingWhen(Enum):
    """When a symptom is also a finding, from the need to act to the end of its condition."""

    NEVER = 0
    #: While it affects the host's state, until a reset, a reboot or a timeout ends it.
    COSTLY = 1
    ALWAYS = 2


@dataclass(frozen=True, slots=True)
class Rule:
    """The meaning of a kind of symptom.

    `hazard_factor`: factor on the host's hazard if nothing else is wrong.

    `shared`: the common cause of several devices of a host ("cooling"): devices with rules of the
    same cause at the same time may have a single fault (`advisories/shared_causes.py`). "":
    independent causes.

    The symptom begins after `enter_seconds` without interruption, and ends after `leave_seconds`
    without it; `clears` describes the end.

    `reads`: names of the signals that decide it, directly or through values that the fleet derives.
    `counts`: the counters that are followed from reading to reading for it. The fleet stores no
    other signals. `fault_class`: the class if the symptom is a fault of its host, for training and
    the time since its return; else None. `is_family`: a rule is generated per code, counter or
    event; `name` is common to all. `never_noise`: why no override may suppress it, and what to
    declare instead.
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
    """Return a rule with state WATCH: worth a look, but no reason to take the host out."""
    return Rule(name, state, reason, clears, enter_seconds, leave_seconds, factor)


#: Like `watch_rule` with state SUSPECT: the host fails more likely than most.
suspect_rule = partial(watch_rule, state=HealthState.SUSPECT)


#: Returns the cells of gauges or states that are wrong.
CellPredicate = Callable[[NDArray[Any]], Flags]


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """A gauge or state of *table* that is wrong where `condition` is true.

    NaN (no reading) never is. `message` follows the device's name; `{value}` in it is the reading.
    Evidence shows `columns` (else `column`) of the last `seconds`.
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
        """The signal that the rule reads."""
        return f"{TABLES[self.table][0].device_kind}.{self.column}"


@dataclass(frozen=True, slots=True)
class RateRule:
    """A counter of *table* that counts at least `minimum` within ten minutes, or per second.

    `per_second`: per second. `peers_ratio`: also at least this multiple of the median of all such
    devices; 0: without peers.
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
        """The counter that the rule follows."""
        return f"{TABLES[self.table][0].device_kind}.{self.column}"


RuleRow = ThresholdRule | RateRule


def equals(*codes: int) -> CellPredicate:
    """Return a predicate: the state is one of *codes*."""
    return lambda values: np.isin(values, codes)


def above(limit: float) -> CellPredicate:
    """Return a predicate: the value is above *limit*."""
    return lambda values: np.asarray(values > limit, dtype=bool)


def farther_than(limit: float) -> CellPredicate:
    """Return a predicate: the absolute value is above *limit*."""
    return lambda values: np.asarray(np.abs(values) > limit, dtype=bool)


class ClearCondition(NamedTuple):
    """The end of a record of events; `seconds`: time without a recurrence, for Clears.TIME."""

    clears: Clears
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The description of the condition."""
        if self.clears is Clears.RESET:
            return "the GPU is reset, or the host boots"
        if self.clears is Clears.REBOOT:
            return "the host boots"
        span = f"{self.seconds / 60:.0f} minutes"
        if self.seconds >= 7200.0:
            span = f"{self.seconds / 3600:.0f} hours"
        return f"it does not recur for {span}"


class EventKind(NamedTuple):
    """Meaning of events with a (name, code), which count from `count_min` lines."""

    rule: Rule
    message: str
    count_min: int = 1
