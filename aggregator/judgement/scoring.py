"""From symptoms to numbers: hazard, relative speed, score with its 90 % interval, and evidence.

Contributions add up on the log-hazard scale: ln(hazard) = ln(base) + the sum of the evidence's deltas,
so that taking one piece away moves the score by what it says. score = exp(-hazard * horizon).
Several symptoms of one device are most likely one fault: the strongest counts, the others confirm it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, isnan, log, nan
from typing import NamedTuple

import numpy as np

from ..fleet.arrays import Codes, Floats
from ..hazard.model import PRIOR, SPREAD_ASSUMED
from ..verdicts import Evidence, HostScore, Inputs, Reason, State
from .experience import NO_OUTCOMES, Outcomes
from .features import evidence_of
from .symptoms import Symptom

#: What hazard and score refer to.
HORIZON_HOURS = 8.0

#: Interruptions per GPU-hour of a job, all causes: 2.2e-5 (StepFun's 400 nodes over 348 days,
#: stepfun-ai/InfiniteHBD-Trace; 2.0e-5 in Meta's Llama 3 report, table 5).
GPU_HAZARD_PER_HOUR = 2.2e-5
#: What a host without GPUs adds (assumed: no public rate is given for hosts alone).
HOST_HAZARD_PER_HOUR = 5e-6

#: 90 % interval of the hazard of a host that is not heard, as a factor up and down: it may be in any state (assumed). A
#: model's own is below that.
SPREAD_UNHEARD = 100.0

#: Standard errors that hold 90 %.
Z90 = 1.645
#: Standard error of a pace that no peers were measured with (assumed).
SPEED_ERROR = 0.02
#: Within these a host's pace lies of which nothing is known (assumed: a power brake leaves a tenth).
SPEED_UNKNOWN = (0.05, 1.10)

#: No hazard is larger: an interruption a minute is faster than any job starts again.
HAZARD_PER_HOUR_MAX = 60.0

#: Conditions that are told of what ends a state.
CLEARS_MAX = 3

#: Pieces of evidence per host; the weakest beyond are left out of the sum, too.
EVIDENCE_MAX = 48


class Own(NamedTuple):
    """What a model says of a host's hazard, before any symptom."""

    model: str
    log_base: float
    parts: tuple[float, ...]  # what each feature adds to ln(hazard)
    features: tuple[float, ...]
    at_ns: int
    spread: float  # of the 90 % interval of the hazard, up and down
    outcomes: Outcomes = NO_OUTCOMES


class Subject(NamedTuple):
    """The host that is scored."""

    name: str
    node_index: int
    simulated: bool
    gpus: int
    heard_ns: int
    heard: bool  # now
    relative_speed: float  # of its slowest computing GPU; NaN where nothing is known
    speed_error: float = nan  # standard error of that
    own: Own | None = None  # None: the prior


class Seen(NamedTuple):
    """A symptom that counts, and when it was last there."""

    symptom: Symptom
    seen_ns: int


def base_hazard_per_hour(gpus: int) -> float:
    """Return the hazard of a host of which nothing else is known."""
    return GPU_HAZARD_PER_HOUR * gpus + HOST_HAZARD_PER_HOUR


def base_hazards_per_hour(gpus: Codes | Floats) -> Floats:
    """Return the same of many hosts."""
    return GPU_HAZARD_PER_HOUR * gpus.astype(np.float64) + HOST_HAZARD_PER_HOUR


def scores_of(hazards_per_hour: Floats, hours: float = HORIZON_HOURS) -> Floats:
    """Return P(no health-caused interruption over *hours*) of many."""
    return np.asarray(np.exp(-hazards_per_hour * hours))


def score_of(hazard_per_hour: float) -> float:
    """Return P(no health-caused interruption over the horizon)."""
    return exp(-hazard_per_hour * HORIZON_HOURS)


def score_host(subject: Subject, seen: Sequence[Seen]) -> HostScore:
    """Return what is known of *subject*, of which the symptoms *seen* hold."""
    ordered = sorted(seen, key=lambda s: s.symptom.weight, reverse=True)[:EVIDENCE_MAX]
    symptoms = [s.symptom for s in ordered]
    inputs = inputs_of(subject, moved=any(one.log_hazard_delta > 0.0 for one in symptoms))
    parts = _parts(subject)
    beside = [delta for _, delta in parts]
    if inputs.log_hazard_outcomes:
        beside.append(inputs.log_hazard_outcomes)
    calm = inputs.log_hazard_base + sum(beside)
    deltas = counted(symptoms, max(log(HAZARD_PER_HOUR_MAX) - calm, 0.0))
    speeds = [s.speed for s in symptoms]
    told = numbers(inputs, [*deltas, *beside], speeds, HORIZON_HOURS)
    strongest = symptoms[0] if symptoms else None
    evidence = [_evidence(s, delta, told) for s, delta in zip(ordered, deltas, strict=True)] + [
        _of_model(subject, at, delta, told) for at, delta in parts
    ]
    if inputs.log_hazard_outcomes:
        evidence.append(_of_outcomes(subject, told))
    return HostScore(
        host=subject.name,
        node_index=subject.node_index,
        simulated=subject.simulated,
        score=told.score,
        score_lower=told.score_lower,
        score_upper=told.score_upper,
        state=strongest.host_state if strongest else State.HEALTHY,
        hazard_per_hour=told.hazard_per_hour,
        relative_speed=told.relative_speed,
        reason=_reason(strongest),
        reason_words=strongest.words if strongest else "",
        clears_when=_clears(symptoms),
        heard_ns=subject.heard_ns,
        evidence=tuple(evidence),
        speed_lower=told.speed_lower,
        speed_upper=told.speed_upper,
        inputs=inputs,
    )


class Numbers(NamedTuple):
    """What is computed from a host's inputs and the deltas and factors of its evidence."""

    score: float
    score_lower: float
    score_upper: float
    hazard_per_hour: float
    relative_speed: float
    speed_lower: float
    speed_upper: float


def numbers(
    inputs: Inputs, deltas: Sequence[float], speeds: Sequence[float], horizon_hours: float
) -> Numbers:
    """Return the numbers of a score. *deltas*, *speeds*: of all evidence, in its order.

    The same inputs give the same numbers, to the bit: a stored score computes again from its row.
    """
    hazard = exp(inputs.log_hazard_base + sum(deltas))
    spread = inputs.hazard_spread
    speed = _speed(inputs.measured_speed, speeds)
    slow, fast = speed_interval(speed, inputs.speed_error, heard=spread < SPREAD_UNHEARD)
    return Numbers(
        exp(-hazard * horizon_hours),
        exp(-hazard * spread * horizon_hours),
        exp(-hazard / spread * horizon_hours),
        hazard,
        speed,
        slow,
        fast,
    )


def inputs_of(subject: Subject, *, moved: bool) -> Inputs:
    """Return what the score of *subject* is computed from beside its evidence. *moved*: a symptom adds to its hazard."""
    own = subject.own
    return Inputs(
        model=own.model if own else PRIOR,
        log_hazard_base=own.log_base if own else log(base_hazard_per_hour(subject.gpus)),
        hazard_spread=_spread(own, moved=moved) if subject.heard else SPREAD_UNHEARD,
        measured_speed=subject.relative_speed,
        speed_error=subject.speed_error,
        features=own.features if own else (),
        log_hazard_outcomes=own.outcomes.log_factor if own else 0.0,
    )


def _spread(own: Own | None, *, moved: bool) -> float:
    """Return the interval's factor: what a model learned of its hosts says nothing of a symptom's factor, which is assumed."""
    spread = own.spread if own else SPREAD_ASSUMED
    return max(spread, SPREAD_ASSUMED) if moved else spread


def _parts(subject: Subject) -> list[tuple[int, float]]:
    """Return (feature, what it adds), the largest first, of those that add anything."""
    parts = enumerate(subject.own.parts if subject.own else ())
    return sorted((p for p in parts if p[1]), key=lambda part: (-abs(part[1]), part[0]))


def _of_model(subject: Subject, at: int, delta: float, told: Numbers) -> Evidence:
    own = subject.own
    assert own is not None
    without = score_of(told.hazard_per_hour * exp(-delta))
    return evidence_of(at, subject.name, own.features[at], delta, told.score - without, own.at_ns)


def _of_outcomes(subject: Subject, told: Numbers) -> Evidence:
    own = subject.own
    assert own is not None
    without = score_of(told.hazard_per_hour / own.outcomes.factor)
    return own.outcomes.evidence(told.score - without, own.at_ns)


def speed_interval(speed: float, error: float, *, heard: bool) -> tuple[float, float]:
    """Return the 90 % interval of a relative speed: of one that is not known, all that it may be."""
    if isnan(speed) or not heard:
        return SPEED_UNKNOWN
    reach = Z90 * (SPEED_ERROR if isnan(error) else error)
    return max(speed - reach, SPEED_UNKNOWN[0]), speed + reach


def counted(symptoms: Sequence[Symptom], room: float) -> list[float]:
    """Return what each of *symptoms*, strongest first, adds to ln(hazard); *room* in all at most."""
    deltas: list[float] = []
    said: set[str] = set()
    for symptom in symptoms:
        delta = 0.0 if symptom.fault_of in said else min(symptom.log_hazard_delta, room)
        if delta > 0.0:
            said.add(symptom.fault_of)
        room -= delta
        deltas.append(delta)
    return deltas


def _evidence(seen: Seen, delta: float, told: Numbers) -> Evidence:
    without = score_of(told.hazard_per_hour * exp(-delta))
    return seen.symptom.evidence(delta, min(told.score - without, 0.0), seen.seen_ns)


def _speed(measured: float, factors: Sequence[float]) -> float:
    """Return the pace of the slowest: as measured, or as it was when a symptom that holds was seen."""
    speeds = [factor for factor in factors if factor < 1.0]
    if not isnan(measured):
        speeds.append(measured)
    return min(speeds, default=nan)


def _reason(strongest: Symptom | None) -> Reason:
    if strongest is None:
        return Reason.NONE
    return strongest.rule.reason if strongest.reason is None else strongest.reason


def _clears(symptoms: Sequence[Symptom]) -> str:
    """Return what ends the host's state: the end of each symptom that would put it there alone."""
    worst = [one for one in symptoms if one.severity == symptoms[0].severity]
    said = [words for words in dict.fromkeys(s.clears or s.rule.clears for s in worst) if words]
    more = [f"{len(said) - CLEARS_MAX} more end"] if len(said) > CLEARS_MAX else []
    return "; and ".join([*said[:CLEARS_MAX], *more])
