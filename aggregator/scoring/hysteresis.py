"""Hysteresis of symptoms: a pure state machine per host that enters fast and leaves slowly.

A symptom is active after its rule's `enter_seconds` without a break, at the worst level it had,
until it was absent (or milder) for `leave_seconds`. A symptom between the limits where a level
begins and ends (`Symptom.retained_state`) keeps its level.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from ..model import SEVERITY, HealthState
from .symptom import Symptom

RuleAndDevice = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TrackedSymptom:
    """A symptom over time: its worst and its latest reading."""

    worst: Symptom  # the symptom that counts
    latest: Symptom
    since_ns: int  # start of the current unbroken presence
    last_seen_ns: int
    worst_seen_ns: int  # last time at its worst
    active: bool


TrackedSymptoms = Mapping[RuleAndDevice, TrackedSymptom]


def step(
    tracked: TrackedSymptoms,
    symptoms: Iterable[Symptom],
    now_ns: int,
    ended_rules: Container[str] = (),
) -> dict[RuleAndDevice, TrackedSymptom]:
    """Return the tracked symptoms after the host had exactly *symptoms* at *now_ns*.

    *ended_rules*: rules evaluated for long enough whose condition is false: their symptoms end at
    once.
    """
    result: dict[RuleAndDevice, TrackedSymptom] = {}
    for symptom in symptoms:
        current = result.get(symptom.key) or tracked.get(symptom.key)
        if symptom.retained_state is not None:
            if current is not None and current.active:
                symptom = _retain_state(symptom, symptom.retained_state, current.worst)
            elif symptom.host_state is HealthState.HEALTHY:
                continue
        result[symptom.key] = _observe(current, symptom, now_ns)
    for key, current in tracked.items():
        if key in result or key[0] in ended_rules:
            continue
        if current.active and not _is_over(current.worst, current.last_seen_ns, now_ns):
            result[key] = _ease(current, now_ns)
    return result


def freeze(tracked: TrackedSymptoms, elapsed_ns: int) -> dict[RuleAndDevice, TrackedSymptom]:
    """Return the tracked symptoms of a host silent for *elapsed_ns*, with shifted times."""
    return {
        key: replace(
            symptom,
            since_ns=symptom.since_ns + elapsed_ns,
            last_seen_ns=symptom.last_seen_ns + elapsed_ns,
            worst_seen_ns=symptom.worst_seen_ns + elapsed_ns,
        )
        for key, symptom in tracked.items()
    }


def _retain_state(symptom: Symptom, retained_state: HealthState, worst: Symptom) -> Symptom:
    """Return *symptom* in the state of the *worst* before it, up to *retained_state*."""
    state = max(retained_state, worst.host_state, key=SEVERITY.index)  # the milder
    if SEVERITY.index(state) >= SEVERITY.index(symptom.host_state):
        return symptom
    like = worst if state is worst.host_state else symptom
    return replace(symptom, state=state, normal=like.normal, clears=like.clears)


def _observe(tracked: TrackedSymptom | None, symptom: Symptom, now_ns: int) -> TrackedSymptom:
    if tracked is None:
        active = symptom.rule.enter_seconds <= 0
        return TrackedSymptom(symptom, symptom, now_ns, now_ns, now_ns, active)
    active = tracked.active or now_ns - tracked.since_ns >= symptom.rule.enter_seconds * 1e9
    if tracked.active and symptom.severity < tracked.worst.severity:
        milder = replace(tracked, latest=symptom, last_seen_ns=now_ns)
        return _ease(milder, now_ns)
    return TrackedSymptom(symptom, symptom, tracked.since_ns, now_ns, now_ns, active)


def _ease(tracked: TrackedSymptom, now_ns: int) -> TrackedSymptom:
    """Return *tracked* at its latest level once the worst was absent for long enough."""
    if not _is_over(tracked.worst, tracked.worst_seen_ns, now_ns):
        return tracked
    return replace(tracked, worst=tracked.latest, worst_seen_ns=tracked.last_seen_ns)


def _is_over(symptom: Symptom, last_ns: int, now_ns: int) -> bool:
    return now_ns - last_ns >= symptom.rule.leave_seconds * 1e9
