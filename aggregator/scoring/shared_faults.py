"""Symptoms with a cause outside the host, such as a dead leaf, which is blamed instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..model import HealthState, Reason, SharedCause, SharedCauseKey
from .score import ObservedSymptom
from .symptom import Symptom

#: Only these faults lie outside a host when several hosts show them at once. A GPU that is lost on
#: three hosts in the same second was killed by one cause, but each host has a dead GPU.
EXTERNAL_REASONS = frozenset(
    (Reason.RAIL_DOWN, Reason.FABRIC, Reason.POWER_CAP, Reason.THERMAL_THROTTLE, Reason.STORAGE)
)
#: State of a host by itself -> with a cause outside. A slow host stays DEGRADED: its jobs are slow.
EXTERNAL_STATES = {
    HealthState.UNHEALTHY: HealthState.SUSPECT,
    HealthState.SUSPECT: HealthState.WATCH,
}


def attribute_shared(
    names: Sequence[str],
    observed: Mapping[int, Sequence[ObservedSymptom]],
    causes: Mapping[SharedCauseKey, SharedCause],
) -> dict[int, list[ObservedSymptom]]:
    """Return *observed*, by host, with the shared cause of each symptom that has one."""
    return {
        host: [o._replace(symptom=_attribute(names[host], o.symptom, causes)) for o in symptoms]
        for host, symptoms in observed.items()
    }


def _attribute(
    host: str, symptom: Symptom, causes: Mapping[SharedCauseKey, SharedCause]
) -> Symptom:
    reason = symptom.rule.reason if symptom.reason is None else symptom.reason
    cause = causes.get((host, reason.name, symptom.device)) if reason in EXTERNAL_REASONS else None
    if cause is None or symptom.host_state is HealthState.HEALTHY:
        return symptom
    state = EXTERNAL_STATES.get(symptom.host_state, symptom.host_state)
    # A host whose last port is down runs no job, whoever is at fault.
    if symptom.host_state is HealthState.UNHEALTHY and not 0.0 < symptom.capacity_ratio < 1.0:
        state = symptom.host_state
    return replace(symptom, state=state, shared_cause=cause)
