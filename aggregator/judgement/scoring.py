"""From symptoms to numbers: hazard, relative speed, score with its 90 % interval, and evidence.

Contributions add up on the log-hazard scale: ln(hazard) = ln(base) + the sum of the evidence's deltas,
so that taking one piece away moves the score by what it says. score = exp(-hazard * horizon).
Several symptoms of one device are most likely one fault: the strongest counts, the others confirm it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isnan, log, nan
from typing import NamedTuple

from ..verdicts import Evidence, HostScore, Reason, State
from .symptoms import Symptom

#: What hazard and score refer to.
HORIZON_HOURS = 8.0

#: Interruptions per GPU-hour of a job, all causes: 2.2e-5 (StepFun's 400 nodes over 348 days,
#: stepfun-ai/InfiniteHBD-Trace; 2.0e-5 in Meta's Llama 3 report, table 5).
GPU_HAZARD_PER_HOUR = 2.2e-5
#: What a host without GPUs adds (assumed: no public rate is given for hosts alone).
HOST_HAZARD_PER_HOUR = 5e-6

#: 90 % interval of the hazard, as a factor up and down: hosts of one fleet differ by about this much
#: (assumed until outcomes calibrate it), and one that is not heard may be in any state.
SPREAD_HEARD, SPREAD_UNHEARD = 3.0, 100.0

#: No hazard is larger: an interruption a minute is faster than any job starts again.
HAZARD_PER_HOUR_MAX = 60.0

#: Pieces of evidence per host; the weakest beyond are left out of the sum, too.
EVIDENCE_MAX = 48


class Subject(NamedTuple):
    """The host that is scored."""

    name: str
    node_index: int
    simulated: bool
    gpus: int
    heard_ns: int
    heard: bool  # now
    relative_speed: float  # of its slowest computing GPU; NaN where nothing is known


class Seen(NamedTuple):
    """A symptom that counts, and when it was last there."""

    symptom: Symptom
    seen_ns: int


def base_hazard_per_hour(gpus: int) -> float:
    """Return the hazard of a host of which nothing else is known."""
    return GPU_HAZARD_PER_HOUR * gpus + HOST_HAZARD_PER_HOUR


def score_of(hazard_per_hour: float) -> float:
    """Return P(no health-caused interruption over the horizon)."""
    return exp(-hazard_per_hour * HORIZON_HOURS)


def score_host(subject: Subject, seen: Sequence[Seen]) -> HostScore:
    """Return what is known of *subject*, of which the symptoms *seen* hold."""
    ordered = sorted(seen, key=lambda s: s.symptom.weight, reverse=True)[:EVIDENCE_MAX]
    symptoms = [s.symptom for s in ordered]
    base = base_hazard_per_hour(subject.gpus)
    deltas = counted(symptoms, log(HAZARD_PER_HOUR_MAX / base))
    hazard = exp(log(base) + sum(deltas))
    score, spread = score_of(hazard), SPREAD_HEARD if subject.heard else SPREAD_UNHEARD
    strongest = symptoms[0] if symptoms else None
    return HostScore(
        host=subject.name,
        node_index=subject.node_index,
        simulated=subject.simulated,
        score=score,
        score_lower=score_of(hazard * spread),
        score_upper=score_of(hazard / spread),
        state=strongest.host_state if strongest else State.HEALTHY,
        hazard_per_hour=hazard,
        relative_speed=_speed(subject.relative_speed, symptoms),
        reason=_reason(strongest),
        reason_words=strongest.words if strongest else "",
        clears_when=_clears(strongest),
        heard_ns=subject.heard_ns,
        evidence=tuple(
            _evidence(s, delta, hazard, score) for s, delta in zip(ordered, deltas, strict=True)
        ),
    )


def counted(symptoms: Sequence[Symptom], room: float) -> list[float]:
    """Return what each of *symptoms*, strongest first, adds to ln(hazard); *room* in all at most."""
    deltas: list[float] = []
    said: set[str] = set()
    for symptom in symptoms:
        delta = 0.0 if symptom.device in said else min(symptom.log_hazard_delta, room)
        if delta > 0.0:
            said.add(symptom.device)
        room -= delta
        deltas.append(delta)
    return deltas


def _evidence(seen: Seen, delta: float, hazard: float, score: float) -> Evidence:
    without = score_of(hazard * exp(-delta))
    return seen.symptom.evidence(delta, min(score - without, 0.0), seen.seen_ns)


def _speed(measured: float, symptoms: Sequence[Symptom]) -> float:
    """Return the pace of the slowest: as measured, or as it was when a symptom that holds was seen."""
    speeds = [s.speed for s in symptoms if s.speed < 1.0]
    if not isnan(measured):
        speeds.append(measured)
    return min(speeds, default=nan)


def _reason(strongest: Symptom | None) -> Reason:
    if strongest is None:
        return Reason.NONE
    return strongest.rule.reason if strongest.reason is None else strongest.reason


def _clears(strongest: Symptom | None) -> str:
    return "" if strongest is None else strongest.clears or strongest.rule.clears
