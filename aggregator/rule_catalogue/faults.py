"""Rules of the table of faults (`contract/faults/`): thresholds, counters, and reports of kernels, drivers and DCGM.

Only an XID, an SXID, or a GPU that is lost or needs a reset takes a host away by itself: corrected
errors, killed programs and hung tasks are WATCH at most, lost data and failed hardware SUSPECT.
Factors are assumed (no public rates exist) until outcomes calibrate them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...contract.faults.policy import COMPARE, Condition
from ...contract.faults.table import FleetRule, fleet_rules
from ...contract.signals import BY_NAME
from ...contract.xid.policy import Clears
from ..arrays import Flags
from ..model import HealthState, Reason
from ..rule_declaration import (
    ClearCondition,
    EventKind,
    FindingWhen,
    HazardClass,
    RateRule,
    Rule,
    RuleRow,
    ThresholdRule,
)

#: Reason of an event -> class of its fault.
FAULT_CLASSES = {
    Reason.NONE: HazardClass.DRIVER, Reason.XID_FATAL: HazardClass.DRIVER, Reason.DRIVER_HUNG: HazardClass.DRIVER,
    Reason.GPU_UNUSABLE: HazardClass.DRIVER, Reason.PCIE: HazardClass.LINK,
    Reason.FABRIC: HazardClass.LINK, Reason.RAIL_DOWN: HazardClass.LINK, Reason.ECC_TREND: HazardClass.MEMORY,
    Reason.HBM_REMAP: HazardClass.MEMORY, Reason.HOST_CPU: HazardClass.HOST, Reason.STORAGE: HazardClass.HOST,
    Reason.BLIND: HazardClass.OTHER,
}  # fmt: skip

_RULES = tuple(fleet_rules())


def _holds(condition: Condition, values: NDArray[Any]) -> Flags:
    """Return where *condition* holds; nowhere for NaN."""
    if condition.compare == "in":
        return np.isin(values, condition.values)
    holds = np.asarray(COMPARE[condition.compare](values, condition.values[0]), dtype=bool)
    return holds & ~np.isnan(values) if condition.compare == "!=" else holds


def _rule(rule: FleetRule, **more: Any) -> Rule:
    keys = dict(rule.keys)
    enums = {"state": HealthState, "reason": Reason, "finding": FindingWhen}
    fields: dict[str, Any] = {
        key: enums[key][str(value).upper()] if key in enums else float(value) if isinstance(value, int) else value
        for key, value in keys.items()
        if key not in ("normal", "columns", "evidence_seconds", "count_min")
    }
    if "fault_class" in fields:
        fields["fault_class"] = HazardClass(fields["fault_class"])
    for key in ("reads", "counts"):
        fields[key] = tuple(fields.get(key, ()))
    return Rule(rule.name, **{"clears": "", **more, **fields})


def _row(rule: FleetRule) -> RuleRow:
    if rule.counter:
        signal = BY_NAME[rule.counter]
        return RateRule(
            _rule(rule), signal.table, signal.column, rule.message,
            rule.minimum, rule.per_second, rule.peers_ratio,
        )  # fmt: skip
    assert rule.condition is not None
    signal = BY_NAME[rule.condition.signal]
    return ThresholdRule(
        _rule(rule),
        signal.table,
        signal.column,
        partial(_holds, rule.condition),
        rule.message.replace("{value}", "{value:.0f}"),
        rule.keys.get("normal", "0"),
        rule.keys.get("columns", ""),
        rule.keys.get("evidence_seconds", 600.0),
    )


def _event_kind(rule: FleetRule) -> EventKind:
    """Return the kind of an event: a fault of its host, unless it is a finding or has no code."""
    blames_host = rule.codes and "finding" not in rule.keys
    fault_class = FAULT_CLASSES[Reason[rule.keys["reason"]]] if blames_host else None
    return EventKind(
        _rule(rule, leave_seconds=0.0, fault_class=fault_class),
        rule.message,
        rule.keys.get("count_min", 1),
    )


def _clear_conditions() -> Mapping[str, ClearCondition]:
    """Return the end of each event's records. Raises ValueError if its rows differ."""
    conditions: dict[str, ClearCondition] = {}
    for rule in _RULES:
        if rule.event:
            condition = ClearCondition(Clears(rule.clears), float(rule.clear_seconds))
            if conditions.setdefault(rule.event, condition) != condition:
                raise ValueError(f"{rule.name}: all faults of {rule.event} must clear alike")
    return conditions


#: Rules that compare one reading, or follow one counter.
READINGS = tuple(_row(rule) for rule in _RULES if rule.condition or rule.counter)
#: (Name, code) of an event -> kind.
EVENT_KINDS: Mapping[tuple[str, int], EventKind] = {
    (rule.event, code): _event_kind(rule) for rule in _RULES for code in rule.codes if rule.event
}
#: Events with codes of another table: name -> kind for any code. A counter or an XID reports the
#: same as NVML's own events; reports of DCGM's watches and policies may depend on limits of an
#: operator.
ANY_CODE: Mapping[str, EventKind] = {
    rule.event: _event_kind(rule) for rule in _RULES if rule.event and not rule.codes
}
#: Name of an event -> its clear condition. Other events, such as a link that came up, are left to
#: the store and to the readings that report the same.
EVENT_POLICY: Mapping[str, ClearCondition] = _clear_conditions()
#: Rules that a function detects, by name.
BY_FUNCTION: Mapping[str, Rule] = {
    rule.name: _rule(rule) for rule in _RULES if not (rule.event or rule.counter or rule.condition)
}
#: Rows of READINGS, by the rule's name.
THRESHOLDS: Mapping[str, ThresholdRule] = {
    row.rule.name: row for row in READINGS if isinstance(row, ThresholdRule)
}
RATES: Mapping[str, RateRule] = {
    row.rule.name: row for row in READINGS if isinstance(row, RateRule)
}
