"""Computes the score of a host from its symptoms: hazard, speed, intervals, and evidence.

Hazards of independent causes add (competing risks; Kalbfleisch and Prentice, The Statistical
Analysis of Failure Time Data, chapter 8). The calm hazard is the hazard without a symptom: base x a
model's factors x outcomes. A fault that alone makes an interruption f times as likely adds calm x
(f - 1). score = exp(-hazard * horizon). Several symptoms of one device are most likely one fault,
as are symptoms of several devices with a common cause: the largest hazard counts, the others
confirm it. Evidence states its contribution twice: per hour (`hazard_delta`, the decrease of the
hazard without its fault), and to ln(hazard) after the evidence before it, so that a stored score
can be recomputed from its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from math import exp, expm1, isnan, log, log1p, nan
from typing import NamedTuple

import numpy as np

from ..arrays import Floats
from ..hazard.model import PRIOR, SPREAD_ASSUMED
from ..model import Evidence, HealthState, HostScore, Inputs, Reason, SharedCause, SharedCauseKey
from .base_hazard import ModelHazard, base_hazard_per_hour
from .calibration import NO_OUTCOMES, Calibration, Outcomes
from .features import evidence_of
from .symptom import Symptom

#: Horizon of hazard and score.
HORIZON_HOURS = 8.0

#: 90 % interval of the hazard of a silent host, as a factor up and down: it may be in any state
#: (assumed). A model's own spread is smaller.
SPREAD_SILENT = 100.0

#: Standard errors to each end of a 90 % interval.
Z90 = 1.645
#: Standard error of a pace that was measured without peers (assumed).
SPEED_ERROR = 0.02
#: Range of the pace of a host without readings (assumed: a power brake leaves a tenth).
SPEED_UNKNOWN = (0.05, 1.10)

#: Maximum hazard: an interruption a minute is faster than any job starts again.
HAZARD_PER_HOUR_MAX = 60.0

#: Clear conditions shown for a state.
CLEARS_MAX = 3

#: Maximum pieces of evidence per host. The largest EVIDENCE_MAX - 1 that add to the hazard come
#: before others; the headline is always included.
EVIDENCE_MAX = 48


class HostInput(NamedTuple):
    """The host that is scored."""

    name: str
    node_index: int
    simulated: bool
    gpus: int
    last_received_ns: int
    is_reporting: bool
    relative_speed: float  # slowest computing GPU's, against a typical host's; NaN: unknown
    speed_error: float = nan  # standard error of `relative_speed`
    model_hazard: ModelHazard | None = None  # None: the prior


class ObservedSymptom(NamedTuple):
    """An active symptom, and the time it was last present."""

    symptom: Symptom
    observed_ns: int


def scores_of(hazards_per_hour: Floats, hours: float = HORIZON_HOURS) -> Floats:
    """Return P(no health-caused interruption over *hours*) of many."""
    return np.asarray(np.exp(-hazards_per_hour * hours))


def score_of(hazard_per_hour: float) -> float:
    """Return P(no health-caused interruption over the horizon)."""
    return exp(-hazard_per_hour * HORIZON_HOURS)


def score_host(host: HostInput, observed: Sequence[ObservedSymptom]) -> HostScore:
    """Return the score of *host* with the active symptoms *observed*."""
    ordered = sorted(observed, key=lambda s: s.symptom.weight, reverse=True)
    outcomes = _outcomes(host, [s.symptom for s in ordered])
    moved = any(s.symptom.log_hazard_delta > 0.0 for s in ordered)
    inputs = inputs_of(host, outcomes, moved=moved)
    parts = _parts(host)
    calm_deltas = [delta for _, delta in parts]
    if inputs.log_hazard_outcomes:
        calm_deltas.append(inputs.log_hazard_outcomes)
    calm = exp(inputs.log_hazard_base + sum(calm_deltas))
    sum_of_causes = causes([s.symptom for s in ordered], calm)
    shown, alone, shared = _select_shown(ordered, sum_of_causes)
    hazards = _limited(alone, HAZARD_PER_HOUR_MAX - calm)
    inputs = replace(
        inputs,
        log_hazard_one_cause=log((calm + max(hazards, default=0.0)) / (calm + sum(hazards))),
        log_hazard_own_causes=log1p(sum_of_causes.apart / (calm + sum(hazards))),
    )
    symptoms = [s.symptom for s in shown]
    deltas = _successive_deltas(calm, hazards)
    speeds = [s.speed for s in symptoms]
    result = numbers(inputs, [*deltas, *calm_deltas], speeds, HORIZON_HOURS)
    strongest = symptoms[0] if symptoms else None
    without = [min(calm + sum(alone) - own_hazard, result.hazard_per_hour) for own_hazard in alone]
    evidence = [
        replace(
            s.symptom.evidence(delta, min(result.score - score_of(rest), 0.0), s.observed_ns),
            hazard_delta=hazard,
            shared_count=count,
        )
        for s, delta, hazard, rest, count in zip(
            shown, deltas, hazards, without, shared, strict=True
        )
    ]
    evidence += _calm_evidence(host, parts, inputs, result, outcomes)
    return HostScore(
        host=host.name,
        node_index=host.node_index,
        simulated=host.simulated,
        score=result.score,
        score_lower=result.score_lower,
        score_upper=result.score_upper,
        state=strongest.host_state if strongest else HealthState.HEALTHY,
        hazard_per_hour=result.hazard_per_hour,
        relative_speed=result.relative_speed,
        reason=_reason(strongest),
        reason_message=_reason_message(strongest),
        clears_when=_clears(symptoms),
        last_received_ns=host.last_received_ns,
        evidence=tuple(evidence),
        speed_lower=result.speed_lower,
        speed_upper=result.speed_upper,
        inputs=inputs,
        shared_cause=strongest.shared_cause if strongest else None,
    )


class Causes(NamedTuple):
    """The hazard per hour that each symptom adds, and the number of devices with its fault.

    `apart`: the further hazard if no devices shared a cause.
    """

    hazards: Sequence[float]
    devices: Sequence[int]
    apart: float


def causes(symptoms: Sequence[Symptom], calm: float) -> Causes:
    """Return the symptoms' additions to the *calm* hazard: only each fault's strongest adds.

    Faults are assigned to devices or to causes that devices share, whichever adds least in total:
    eight hot GPUs have one cause, two hot GPUs that both wait for a remap have two faults. So one
    more symptom never adds less, and several devices never add more than their separate faults.
    """
    own_hazards = [_alone(symptom, calm) for symptom in symptoms]
    showing: dict[str, set[str]] = {}
    for symptom in symptoms:
        if symptom.rule.shared and not symptom.fault_source:
            showing.setdefault(symptom.rule.shared, set()).add(symptom.parent_device)
    shared_causes = [shared for shared, devices in showing.items() if len(devices) > 1]
    separate, *others = (
        _explained(symptoms, own_hazards, shared)
        for count in range(len(shared_causes) + 1)
        for shared in combinations(shared_causes, count)
    )
    hazards, devices = separate
    for explanation in others:
        if sum(explanation[0]) < sum(hazards) * (1 - 1e-9):
            hazards, devices = explanation
    return Causes(hazards, devices, max(sum(separate[0]) - sum(hazards), 0.0))


def _explained(
    symptoms: Sequence[Symptom], each: Sequence[float], shared: Sequence[str]
) -> tuple[list[float], list[int]]:
    """Return hazards and device counts if *shared* causes explain all they may.

    *each*: the hazard of each symptom by itself.
    """
    faults = [symptom.fault_of(shared) for symptom in symptoms]
    strongest: dict[str, int] = {}
    devices: dict[str, set[str]] = {}
    for index, fault in enumerate(faults):
        devices.setdefault(fault, set()).add(symptoms[index].parent_device)
        if each[index] > each[strongest.setdefault(fault, index)]:
            strongest[fault] = index
    counting = set(strongest.values())
    return (
        [hazard if index in counting else 0.0 for index, hazard in enumerate(each)],
        [len(devices[fault]) for fault in faults],
    )


def _alone(symptom: Symptom, calm: float) -> float:
    """Return the addition of *symptom* to the *calm* hazard if nothing else is wrong."""
    room = max(HAZARD_PER_HOUR_MAX - calm, 0.0)
    return min(calm * expm1(max(symptom.log_hazard_delta, 0.0)), room)


def _select_shown(
    ordered: Sequence[ObservedSymptom], found: Causes
) -> tuple[Sequence[ObservedSymptom], Sequence[float], Sequence[int]]:
    """Return the symptoms shown: the first, and those with the largest hazards.

    One more symptom never makes the sum less.
    """
    hazards, devices = found.hazards, found.devices
    if len(ordered) <= EVIDENCE_MAX:
        return ordered, hazards, devices
    first = sorted(range(len(ordered)), key=lambda index: (-hazards[index], index))
    adds = {index for index in first[: EVIDENCE_MAX - 1] if hazards[index] > 0.0}
    others = (index for index in range(len(ordered)) if index not in adds)
    chosen = sorted(adds | set(islice(others, EVIDENCE_MAX - len(adds))))  # includes the first
    return (
        [ordered[index] for index in chosen],
        [hazards[index] if index in adds else 0.0 for index in chosen],
        [devices[index] for index in chosen],
    )


def _limited(hazards: Sequence[float], room: float) -> Sequence[float]:
    """Return *hazards*, reduced to at most *room* in total: the largest stay whole."""
    if sum(hazards) <= room:
        return hazards
    cut = [0.0] * len(hazards)
    for index in sorted(range(len(hazards)), key=lambda index: -hazards[index]):
        cut[index] = min(hazards[index], max(room, 0.0))
        room -= cut[index]
    return cut


def _successive_deltas(calm: float, hazards: Sequence[float]) -> list[float]:
    """Return the addition of each of *hazards* to ln(hazard) after those before it."""
    deltas, hazard = list[float](), calm
    for added in hazards:
        deltas.append(log1p(added / hazard))
        hazard += added
    return deltas


class Numbers(NamedTuple):
    """The numbers computed from a host's inputs and the deltas and factors of its evidence."""

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
    """Return the numbers of a score. *deltas*, *speeds*: by piece of evidence.

    The same inputs give the same numbers, to the bit, so a stored score can be computed again from
    its row.
    """
    hazard = exp(inputs.log_hazard_base + sum(deltas))
    lower, upper = inputs.hazard_interval(hazard)
    speed = _speed(inputs.measured_speed, speeds)
    is_reporting = inputs.hazard_spread < SPREAD_SILENT
    slow, fast = speed_interval(speed, inputs.speed_error, is_reporting=is_reporting)
    return Numbers(
        exp(-hazard * horizon_hours),
        exp(-upper * horizon_hours),
        exp(-lower * horizon_hours),
        hazard,
        speed,
        slow,
        fast,
    )


def _outcomes(host: HostInput, symptoms: Sequence[Symptom]) -> Outcomes:
    """Return the correction by outcomes of hosts with this hazard."""
    model_hazard = host.model_hazard
    if model_hazard is None or not model_hazard.outcomes.has_effect:
        return Outcomes()
    calm = exp(model_hazard.log_base + sum(model_hazard.parts))
    return model_hazard.outcomes.at(
        min(calm + sum(causes(symptoms, calm).hazards), HAZARD_PER_HOUR_MAX)
    )


def inputs_of(host: HostInput, outcomes: Outcomes, *, moved: bool) -> Inputs:
    """Return the inputs of a score besides its evidence. *moved*: a symptom adds to the hazard."""
    model_hazard = host.model_hazard
    return Inputs(
        model=model_hazard.model if model_hazard else PRIOR,
        log_hazard_base=model_hazard.log_base
        if model_hazard
        else log(base_hazard_per_hour(host.gpus)),
        hazard_spread=_spread(model_hazard, moved=moved) if host.is_reporting else SPREAD_SILENT,
        measured_speed=host.relative_speed,
        speed_error=host.speed_error,
        features=model_hazard.features if model_hazard else (),
        log_hazard_outcomes=outcomes.log_factor,
    )


def _spread(model_hazard: ModelHazard | None, *, moved: bool) -> float:
    """Return the interval's factor; a symptom's factor is assumed, beyond a model's spread."""
    spread = model_hazard.spread if model_hazard else SPREAD_ASSUMED
    return max(spread, SPREAD_ASSUMED) if moved else spread


def _parts(host: HostInput) -> list[tuple[int, float]]:
    """Return (feature, addition to ln(hazard)), the largest first, without zeros."""
    parts = enumerate(host.model_hazard.parts if host.model_hazard else ())
    return sorted((p for p in parts if p[1]), key=lambda part: (-abs(part[1]), part[0]))


def _calm_evidence(
    host: HostInput,
    parts: Sequence[tuple[int, float]],
    inputs: Inputs,
    result: Numbers,
    outcomes: Outcomes,
) -> Iterator[Evidence]:
    """Yield the evidence of the calm hazard: a model's *parts*, and outcomes.

    They are factors of the calm hazard, and so of the symptoms' additions: `score_delta` covers
    both.
    """
    model_hazard, log_hazard = host.model_hazard, inputs.log_hazard_base
    if model_hazard is None:
        return
    for feature, delta in parts:
        score_delta = result.score - score_of(result.hazard_per_hour * exp(-delta))
        value, at_ns = model_hazard.features[feature], model_hazard.at_ns
        evidence = evidence_of(feature, host.name, value, delta, score_delta, at_ns)
        yield replace(evidence, hazard_delta=exp(log_hazard) * expm1(delta))
        log_hazard += delta
    if delta := inputs.log_hazard_outcomes:
        score_delta = result.score - score_of(result.hazard_per_hour * exp(-delta))
        evidence = outcomes.evidence(score_delta, model_hazard.at_ns)
        yield replace(evidence, hazard_delta=exp(log_hazard) * expm1(delta))


def speed_interval(speed: float, error: float, *, is_reporting: bool) -> tuple[float, float]:
    """Return the 90 % interval of a relative speed; SPEED_UNKNOWN if it is not known."""
    if isnan(speed) or not is_reporting:
        return SPEED_UNKNOWN
    reach = Z90 * (SPEED_ERROR if isnan(error) else error)
    return max(speed - reach, SPEED_UNKNOWN[0]), speed + reach


def _speed(measured: float, factors: Sequence[float]) -> float:
    """Return the slowest pace: as measured, or the factor of an active symptom."""
    speeds = [factor for factor in factors if factor < 1.0]
    if not isnan(measured):
        speeds.append(measured)
    return min(speeds, default=nan)


def _reason(strongest: Symptom | None) -> Reason:
    if strongest is None:
        return Reason.NONE
    return strongest.rule.reason if strongest.reason is None else strongest.reason


def _reason_message(strongest: Symptom | None) -> str:
    if strongest is None:
        return ""
    cause = strongest.shared_cause
    if cause:
        return f"{cause.subject}, shared by {cause.hosts_count} hosts: {strongest.message}"
    return strongest.message


def _clears(symptoms: Sequence[Symptom]) -> str:
    """Return the clear conditions of all symptoms that cause the host's state."""
    worst = [symptom for symptom in symptoms if symptom.severity == symptoms[0].severity]
    conditions = [c for c in dict.fromkeys(s.clears or s.rule.clears for s in worst) if c]
    more = [f"{len(conditions) - CLEARS_MAX} more end"] if len(conditions) > CLEARS_MAX else []
    return "; and ".join([*conditions[:CLEARS_MAX], *more])


class Return(NamedTuple):
    """A host back in service after advice took it out, and its time on probation."""

    since_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class OutcomeFeedback:
    """Feedback of advice and its outcomes to one judgement; `returned` by host."""

    returned: Mapping[str, Return] = field(default_factory=dict)
    outcomes: Calibration = NO_OUTCOMES
    #: By host, name of the reason, and device: the open advisory about a shared cause.
    shared_causes: Mapping[SharedCauseKey, SharedCause] = field(default_factory=dict)


NO_FEEDBACK = OutcomeFeedback()
