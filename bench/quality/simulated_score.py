"""Scores an episode: the reports against the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from bench.quality.simulated_baselines import BASELINES
from bench.quality.simulated_feed import JUDGE, NamedState, Observed
from bench.quality.simulated_kinds import (
    AFTER_SECONDS,
    BLAMED,
    DOMAIN,
    DRAINS,
    NOT_REPORTED,
    PASSED_SECONDS,
    RIGHT,
    CaseFinding,
    Score,
    Shared,
    SimulatedCase,
)
from bench.quality.simulated_moments import PassingState
from bench.quality.simulated_truth import GroundTruth, TrueFault
from bench.quality.simulated_wrong import wrong_advice, wrong_names
from gangline.aggregator.advisories.advisory import Basis
from gangline.aggregator.model import HealthState
from gangline.simulator.topology import HostLocation
from gangline.simulator.world import STEP_SECONDS


def score(
    case: SimulatedCase,
    observed: Observed,
    truth: GroundTruth,
    places: dict[str, HostLocation],
    passed: Sequence[PassingState] = (),
) -> Score:
    """Score *observed* against *truth*. *passed*: passing events on the hosts."""
    result = Score(case.class_name, case.weight, degraded=observed.degraded, steps=observed.steps)
    times = np.arange(case.begin, case.end, STEP_SECONDS)
    result.days = truth.healthy_seconds(times, STEP_SECONDS) / 86400.0
    result.wrong = [*wrong_names(observed.named, truth), *wrong_advice(observed.advised, truth)]
    if not case.class_name:
        calm = truth.undisturbed(times, "monitoring")
        result.calm_hosts, result.calm_named = len(calm), _named_of(calm, observed.named)
        plain = truth.undisturbed(times, "monitoring", "benign")
        result.plain_hosts, result.plain_named = len(plain), _named_of(plain, observed.named)
        _pass(result, [event for event in passed if event.host in calm], observed.named)
    faults = truth.of_cause(case.cause)
    if case.sort == "faults":
        result.found = _found(case, faults, observed, truth)
        if case.class_name in DOMAIN:
            result.shared = _shared(case, faults, observed, places)
    elif faults:
        hosts = {fault.host for fault in faults}
        result.hosts = len(hosts)
        result.named = _named_counts(hosts, faults, observed.named, truth)
    return result


def _named_of(hosts: frozenset[str], named: Sequence[NamedState]) -> Counter[str]:
    """Return source -> number of *hosts* with a state that keeps work off them."""
    blamed = {
        (state.by, state.host) for state in named if state.host in hosts and state.state in BLAMED
    }
    return Counter(by for by, _ in blamed)


def _pass(result: Score, passed: Sequence[PassingState], named: Sequence[NamedState]) -> None:
    """Count passing events, and findings during or soon after them: once for each event and rule."""
    named_states = [
        state for state in named if state.by == JUDGE and state.state is not HealthState.UNKNOWN
    ]
    result.passed = Counter(event.kind for event in passed)
    found = {
        (event, name.rule, name.state)
        for event in passed
        for name in named_states
        if name.host == event.host and event.begin <= name.begin <= event.end + PASSED_SECONDS
    }
    result.named_in_passing = Counter((one.kind, rule, state) for one, rule, state in found)


def _during(faults: Sequence[TrueFault], named: Iterable[NamedState], by: str) -> list[NamedState]:
    """Return the findings of *by* about the hosts of *faults*.

    Only findings that began while the cause was active, or at most AFTER_SECONDS later.
    """
    since = {fault.host: fault for fault in faults}
    return [
        state
        for state in named
        if state.by == by
        and (of := since.get(state.host))
        and of.begin <= state.begin <= of.end + AFTER_SECONDS
    ]


def _found(
    case: SimulatedCase, faults: Sequence[TrueFault], observed: Observed, truth: GroundTruth
) -> CaseFinding:
    named_states = [
        state for state in _during(faults, observed.named, JUDGE) if state.state not in NOT_REPORTED
    ]
    right = [
        named_state for named_state in named_states if named_state.reason in RIGHT[case.class_name]
    ]
    first = min(right, key=lambda state: (state.begin, state.rule), default=None)
    begin = min(fault.begin for fault in faults)
    dies = truth.dies(faults)
    parts = {fault.host: fault for fault in faults}
    victims = truth.victims(faults)
    blamed = {
        state.host for state in observed.named
        if state.by == JUDGE and state.state in BLAMED and state.host in victims and state.begin >= begin
    }  # fmt: skip
    return CaseFinding(
        class_name=case.class_name,
        rule=first.rule if first else "",
        # The case begins with the first judgement: an earlier fault could not be named sooner.
        delay_seconds=max(first.begin - max(begin, case.begin), 0.0) if first else float("inf"),
        has_part=bool(faults[0].parts),
        part_is_right=any(parts[state.host].is_about(state.device) for state in right),
        is_blamed=any(named_state.state in BLAMED for named_state in named_states),
        kills=dies <= case.end,
        before_death=first is not None and first.begin < dies <= case.end,
        victims=len(victims),
        victims_blamed=len(blamed),
        by_baseline={name: bool(_during(faults, observed.named, name)) for name in BASELINES},
    )


def _shared(
    case: SimulatedCase,
    faults: Sequence[TrueFault],
    observed: Observed,
    places: dict[str, HostLocation],
) -> Shared:
    hosts = {fault.host for fault in faults}
    begin = min(fault.begin for fault in faults)
    named_hosts = [
        state
        for state in _during(faults, observed.named, JUDGE)
        if state.state not in NOT_REPORTED and state.reason in RIGHT[case.class_name]
    ]
    advised = {
        advice.name: advice
        for advice in observed.advised
        if advice.seconds >= begin and hosts & {*advice.hosts}
    }
    advised_shared = [advice for advice in advised.values() if advice.basis is Basis.SHARED_CAUSE]
    alone = [advice for advice in advised.values() if advice.basis is not Basis.SHARED_CAUSE]
    names = {getattr(places[host], name) for host in hosts for name in DOMAIN[case.class_name]}
    return Shared(
        class_name=case.class_name,
        hosts=len(hosts),
        named=len({finding.host for finding in named_hosts}),
        shared=len(advised_shared),
        right_domain=any(names & {*advice.subject.split()} for advice in advised_shared),
        alone=len(alone),
        drains=sum(advice.action in DRAINS for advice in alone),
    )


def _named_counts(
    hosts: set[str], faults: Sequence[TrueFault], named: Sequence[NamedState], truth: GroundTruth
) -> Counter[tuple[str, HealthState]]:
    """Return (rule, state) -> number of *hosts* with benign causes alone and this finding."""
    named_states = {
        (state.rule, state.state, state.host)
        for state in _during(faults, named, JUDGE)
        if state.state is not HealthState.UNKNOWN and not truth.is_ill(state.host, state.begin)
    }
    return Counter((rule, state) for rule, state, _ in named_states)
