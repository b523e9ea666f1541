"""Findings that judging begins and clears: their names, subjects and maximum number."""

from __future__ import annotations

from collections.abc import Mapping

from ..fleet.fleet import FINDINGS_MAX, Fleet
from ..model import Finding, HealthState, Reason
from ..rule_catalogue import FAULTS, FINDING_RULES, PERSISTENT_RULES
from .features import OpenFaults
from .hysteresis import RuleAndDevice, TrackedSymptom
from .missing_readings import SettlingHosts
from .symptom import Symptom

#: At this many findings only faults add new ones, so that many findings of other kinds (a counter
#: stuck on each port of a large fleet, an error in a file) leave capacity for faults.
NON_FAULT_FINDINGS_MAX = FINDINGS_MAX // 2
#: Findings that judging begins and ends.
EVALUATED_FINDINGS = frozenset((*FINDING_RULES, *PERSISTENT_RULES))


def open_faults(fleet: Fleet) -> OpenFaults:
    """Return the open findings that are faults, as training takes them from the record."""
    findings = fleet.findings.values()
    return frozenset(
        (finding.host, finding.since_ns // 1000, FAULTS[finding.name])
        for finding in findings
        if finding.name in FAULTS
    )


def update_findings(
    fleet: Fleet,
    tracked: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]],
    settling: SettlingHosts,
    now_ns: int,
) -> None:
    """Add findings on which operators must act; clear findings whose condition ended.

    A host that is silent or *settling* keeps its findings, since it was not judged again.
    """
    active: set[tuple[str, str, str]] = set()
    for host, symptoms in tracked.items():
        for symptom in (
            tracked_symptom.worst for tracked_symptom in symptoms.values() if tracked_symptom.active
        ):
            if name := finding_name(symptom):
                key = fleet.names[host], name, finding_subject(name, symptom)
                active.add(key)
                clears = symptom.clears or symptom.rule.clears
                findings_max = None if name in FAULTS else NON_FAULT_FINDINGS_MAX
                fleet.add_finding(Finding(*key, symptom.message, now_ns, 0, clears), findings_max)
    for key in [k for k in fleet.findings if k[1] in EVALUATED_FINDINGS and k not in active]:
        if fleet.index.get(key[0]) not in settling:
            fleet.clear_finding(*key)


def finding_name(symptom: Symptom) -> str:
    """Return the finding name of *symptom*; "" if it is not a finding, or declared noise."""
    rule = symptom.rule.name
    if symptom.reason is Reason.POLICY:
        return ""
    if symptom.host_state is HealthState.HEALTHY:
        names = FINDING_RULES
    else:
        names = FINDING_RULES + PERSISTENT_RULES
    return max((n for n in names if rule == n or rule.startswith(f"{n}.")), key=len, default="")


def finding_subject(name: str, symptom: Symptom) -> str:
    """Return the subject of a finding: the device, the signal, and the code or variant."""
    which = symptom.rule.name.removeprefix(name).lstrip(".")
    suffix = f" {which}" if which and not symptom.signal.endswith(which) else ""
    return f"{symptom.device} {symptom.signal}{suffix}"
