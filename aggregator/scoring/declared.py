"""Applies declarations to symptoms: noise has no weight, hosts in maintenance are MAINTENANCE.

Nothing is hidden: noise stays in the evidence, with the author of its declaration, and a host in
maintenance keeps its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..declared.maintenance_windows import MaintenanceWindow
from ..declared.model import Declared
from ..declared.moments import format_time
from ..declared.overrides import Override
from ..declared.thresholds import rollout_message
from ..fleet.fleet import Fleet
from ..model import HealthState, HostScore, Reason
from .hysteresis import RuleAndDevice, TrackedSymptom
from .results import Hosts
from .symptom import Symptom

#: States not worth reporting next to a maintenance window.
_QUIET = (HealthState.HEALTHY, HealthState.MAINTENANCE)
#: The part of a maintenance message with the state without the window: a stored score has that
#: state nowhere else.
_HIDDEN_STATE = re.compile(r", until [-0-9: ]+ UTC; else ([A-Z]+): (.*)", re.DOTALL)
#: Clear condition of that state: its own condition was not stored.
_CLEARS_ON_RECHECK = "the next check finds no difference"


def without_noise(
    fleet: Fleet, tracked: Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]], now_ns: int
) -> Mapping[int, Mapping[RuleAndDevice, TrackedSymptom]]:
    """Return *tracked* by host, with symptoms declared to be noise as evidence without weight.

    Include symptoms that last only by hysteresis: otherwise a slow host could not be silenced for
    an hour.
    """
    if not fleet.declared.active_overrides(now_ns):
        return tracked
    return {
        host: {
            key: replace(
                symptom,
                worst=_apply_override(fleet.declared, fleet.names[host], symptom.worst, now_ns),
            )
            for key, symptom in symptoms.items()
        }
        for host, symptoms in tracked.items()
    }


def _apply_override(declared: Declared, host: str, symptom: Symptom, now_ns: int) -> Symptom:
    about: dict[str, Any] = {
        "signal": symptom.signal, "code": symptom.value, "device": symptom.device,
    }  # fmt: skip
    override = declared.override(host, symptom.rule.name, now_ns, **about)
    if override is not None:
        return mark_as_noise(symptom, override)
    if later := declared.override(host, symptom.rule.name, now_ns, **about, upcoming=True):
        message = (
            f"{symptom.message}; noise by an override {rollout_message(later.rollout)}: {later.why}"
        )
        return replace(symptom, message=message)
    return symptom


def mark_as_noise(symptom: Symptom, override: Override) -> Symptom:
    """Return *symptom* as known noise."""
    message = (
        f"taken as noise until {format_time(override.until_ns)}: {override.why} ({override.who})"
    )
    ends = f"the override ends at {format_time(override.until_ns)} ({override.where})"
    return symptom.without_weight(f"{symptom.message}; {message}", ends)


def in_maintenance(fleet: Fleet, hosts: Hosts, now_ns: int) -> Hosts:
    """Return *hosts*, with those in a window as MAINTENANCE."""
    windows = fleet.declared.maintenance_windows(fleet.names, now_ns)
    return hosts.with_scores({host: _as_maintenance(hosts[host], w) for host, w in windows.items()})


def _as_maintenance(host: HostScore, window: MaintenanceWindow) -> HostScore:
    else_text = "" if host.state in _QUIET else f"; else {host.state.name}: {host.reason_message}"
    return replace(
        host,
        state=HealthState.MAINTENANCE,
        reason=Reason.POLICY,
        reason_message=f"{window.why} ({window.who}), until {format_time(window.end_ns)}{else_text}",
        clears_when=f"the window ends at {format_time(window.end_ns)} ({window.where})",
    )


def without_maintenance(host: HostScore) -> HostScore:
    """Return the stored score *host* without its window, which may no longer be declared."""
    if host.state is not HealthState.MAINTENANCE:
        return host
    hidden = _HIDDEN_STATE.search(host.reason_message)
    if hidden is None:
        return replace(
            host, state=HealthState.HEALTHY, reason=Reason.NONE, reason_message="", clears_when=""
        )
    message = hidden[2]
    return replace(
        host,
        state=HealthState.__members__.get(hidden[1], HealthState.UNKNOWN),
        reason=next(
            (evidence.reason for evidence in host.evidence if evidence.message == message),
            Reason.NONE,
        ),
        reason_message=message,
        clears_when=_CLEARS_ON_RECHECK,
    )
