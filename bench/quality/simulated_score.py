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
    """Return the score of *observed* against *truth*.

    *passed*: passing events on the hosts, with or without a fault.
    """
    result = Score(case.class_name, case.weight, degraded=observed.degraded, steps=observed.steps)
    times = np.arange(case.begin, case.end, STEP_SECONDS)
    result.days = truth.healthy_seconds(times, STEP_SECONDS) / 86400.0
    result.wrong = [*wrong_names(observed.named, truth), *wrong_advice(observed.advised, truth)]
    if not case.class_name:
        calm = truth.undisturbed(times, "monitoring")
        result.calm_hosts, result.calm_named = len(calm), _named_of(calm, observed.named)
        plain = truth.undisturbed(times, "monitoring", "benign")
        result.plain_hosts, result.plain_named = len(plain), _named_of(plain, observed.named)
        _pass(result, [one for one in passed if one.host in calm], observed.named)
    faults = truth.of_cause(case.cause)
    if case.sort == "faults":
        result.found = _found(case, faults, observed, truth)
        if case.class_name in DOMAIN:
            result.shared = _shared(case, faults, observed, places)
    elif faults:
        hosts = {one.host for one in faults}
        result.hosts = len(hosts)
        result.named = _named_counts(hosts, faults, observed.named, truth)
    return result


def _named_of(hosts: frozenset[str], named: Sequence[NamedState]) -> Counter[str]:
    """Return source -> number of *hosts* with a state that keeps work off them."""
    blamed = {(one.by, one.host) for one in named if one.host in hosts and one.state in BLAMED}
    return Counter(by for by, _ in blamed)


def _pass(result: Score, passed: Sequence[PassingState], named: Sequence[NamedState]) -> None:
    """Count passing events, and findings during or soon after them: once for each event and rule."""
    named_states = [
        one for one in named if one.by == JUDGE and one.state is not HealthState.UNKNOWN
    ]
    result.passed = Counter(one.kind for one in passed)
    found = {
        (one, name.rule, name.state)
        for one in passed
        for name in named_states
        if name.host == one.host and one.begin <= name.begin <= one.end + PASSED_SECONDS
    }
    result.named_in_passing = Counter((one.kind, rule, state) for one, rule, state in found)


def _during(faults: Sequence[TrueFault], named: Iterable[NamedState], by: str) -> list[NamedState]:
    """Return the findings of *by* about these hosts that began while the cause was active, or
    shortly after.
    """
    since = {one.host: one for one in faults}
    return [
        one
        for one in named
        if one.by == by
        and (of := since.get(one.host))
        and of.begin <= one.begin <= of.end + AFTER_SECONDS
    ]


def _found(
    case: SimulatedCase, faults: Sequence[TrueFault], observed: Observed, truth: GroundTruth
) -> CaseFinding:
    named_states = [
        one for one in _during(faults, observed.named, JUDGE) if one.state not in NOT_REPORTED
    ]
    right = [one for one in named_states if one.reason in RIGHT[case.class_name]]
    first = min(right, key=lambda one: (one.begin, one.rule), default=None)
    begin = min(one.begin for one in faults)
    dies = truth.dies(faults)
    parts = {one.host: one for one in faults}
    victims = truth.victims(faults)
    blamed = {
        one.host
        for one in observed.named
        if one.by == JUDGE and one.state in BLAMED and one.host in victims and one.begin >= begin
    }
    return CaseFinding(
        class_name=case.class_name,
        rule=first.rule if first else "",
        # The case begins with the first judgement: an earlier fault could not be named sooner.
        delay_seconds=max(first.begin - max(begin, case.begin), 0.0) if first else float("inf"),
        has_part=bool(faults[0].parts),
        part_is_right=any(parts[one.host].is_about(one.device) for one in right),
        is_blamed=any(one.state in BLAMED for one in named_states),
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
    hosts = {one.host for one in faults}
    begin = min(one.begin for one in faults)
    named_hosts = [
        one
        for one in _during(faults, observed.named, JUDGE)
        if one.state not in NOT_REPORTED and one.reason in RIGHT[case.class_name]
    ]
    advised = {
        one.name: one for one in observed.advised if one.seconds >= begin and hosts & {*one.hosts}
    }
    advised_shared = [one for one in advised.values() if one.basis is Basis.SHARED_CAUSE]
    alone = [one for one in advised.values() if one.basis is not Basis.SHARED_CAUSE]
    names = {getattr(places[host], name) for host in hosts for name in DOMAIN[case.class_name]}
    return Shared(
        class_name=case.class_name,
        hosts=len(hosts),
        named=len({one.host for one in named_hosts}),
        shared=len(advised_shared),
        right_domain=any(names & {*one.subject.split()} for one in advised_shared),
        alone=len(alone),
        drains=sum(one.action in DRAINS for one in alone),
    )


def _named_counts(
    hosts: set[str], faults: Sequence[TrueFault], named: Sequence[NamedState], truth: GroundTruth
) -> Counter[tuple[str, HealthState]]:
    """Return (rule, state) -> number of *hosts*, affected by benign causes alone, with this
    finding.
    """
    named_states = {
        (one.rule, one.state, one.host)
        for one in _during(faults, named, JUDGE)
        if one.state is not HealthState.UNKNOWN and not truth.is_ill(one.host, one.begin)
    }
    return Counter((rule, state) for rule, state, _ in named_states)
