"""What was said of an episode, held against what is so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from bench.quality.simulated_baselines import BASELINES
from bench.quality.simulated_feed import JUDGE, Named, Said
from bench.quality.simulated_kinds import (
    AFTER_SECONDS,
    BLAMED,
    DOMAIN,
    DRAINS,
    NOTHING_SAID,
    PASSED_SECONDS,
    RIGHT,
    Case,
    Found,
    Score,
    Shared,
)
from bench.quality.simulated_moments import Passing
from bench.quality.simulated_truth import Struck, Truth
from bench.quality.simulated_wrong import wrong_advice, wrong_names
from gangline.aggregator.advisories.advisory import Basis
from gangline.aggregator.model import State
from gangline.simulator.topology import Place
from gangline.simulator.world import STEP_SECONDS


def score(
    case: Case,
    said: Said,
    truth: Truth,
    places: dict[str, Place],
    passed: Sequence[Passing] = (),
) -> Score:
    """Return how *said* stands against *truth*. *passed*: what passed on the hosts, fault or not."""
    result = Score(case.class_name, case.weight, degraded=said.degraded, steps=said.steps)
    times = np.arange(case.begin, case.end, STEP_SECONDS)
    result.days = truth.well_seconds(times, STEP_SECONDS) / 86400.0
    result.wrong = [*wrong_names(said.named, truth), *wrong_advice(said.advised, truth)]
    if not case.class_name:
        calm = truth.undisturbed(times, "monitoring")
        result.calm_hosts, result.calm_named = len(calm), _named_of(calm, said.named)
        plain = truth.undisturbed(times, "monitoring", "benign")
        result.plain_hosts, result.plain_named = len(plain), _named_of(plain, said.named)
        _pass(result, [one for one in passed if one.host in calm], said.named)
    struck = truth.of_cause(case.cause)
    if case.sort == "faults":
        result.found = _found(case, struck, said, truth)
        if case.class_name in DOMAIN:
            result.shared = _shared(case, struck, said, places)
    elif struck:
        hosts = {one.host for one in struck}
        result.hosts = len(hosts)
        result.said_of = _said_of(hosts, struck, said.named, truth)
    return result


def _named_of(hosts: frozenset[str], named: Sequence[Named]) -> Counter[str]:
    """Count of how many of *hosts* each said what keeps work off them."""
    blamed = {(one.by, one.host) for one in named if one.host in hosts and one.state in BLAMED}
    return Counter(by for by, _ in blamed)


def _pass(result: Score, passed: Sequence[Passing], named: Sequence[Named]) -> None:
    """Count what passed, and what was said while it did or soon after: once for each passing and rule."""
    told = [one for one in named if one.by == JUDGE and one.state is not State.UNKNOWN]
    result.passed = Counter(one.kind for one in passed)
    found = {
        (one, name.rule, name.state)
        for one in passed
        for name in told
        if name.host == one.host and one.begin <= name.begin <= one.end + PASSED_SECONDS
    }
    result.said_in_passing = Counter((one.kind, rule, state) for one, rule, state in found)


def _during(struck: Sequence[Struck], named: Iterable[Named], by: str) -> list[Named]:
    """Return what *by* began to say of these hosts while the cause stood, or shortly after."""
    since = {one.host: one for one in struck}
    return [
        one
        for one in named
        if one.by == by
        and (of := since.get(one.host))
        and of.begin <= one.begin <= of.end + AFTER_SECONDS
    ]


def _found(case: Case, struck: Sequence[Struck], said: Said, truth: Truth) -> Found:
    told = [one for one in _during(struck, said.named, JUDGE) if one.state not in NOTHING_SAID]
    right = [one for one in told if one.reason in RIGHT[case.class_name]]
    first = min(right, key=lambda one: (one.begin, one.rule), default=None)
    begin = min(one.begin for one in struck)
    dies = truth.dies(struck)
    parts = {one.host: one for one in struck}
    victims = truth.victims(struck)
    blamed = {
        one.host
        for one in said.named
        if one.by == JUDGE and one.state in BLAMED and one.host in victims and one.begin >= begin
    }
    return Found(
        class_name=case.class_name,
        rule=first.rule if first else "",
        # Nobody looked before the case began: what stood by then could not be named sooner.
        delay_seconds=max(first.begin - max(begin, case.begin), 0.0) if first else float("inf"),
        has_part=bool(struck[0].parts),
        part_is_right=any(parts[one.host].is_about(one.device) for one in right),
        is_blamed=any(one.state in BLAMED for one in told),
        kills=dies <= case.end,
        before_death=first is not None and first.begin < dies <= case.end,
        victims=len(victims),
        victims_blamed=len(blamed),
        by_baseline={name: bool(_during(struck, said.named, name)) for name in BASELINES},
    )


def _shared(case: Case, struck: Sequence[Struck], said: Said, places: dict[str, Place]) -> Shared:
    hosts = {one.host for one in struck}
    begin = min(one.begin for one in struck)
    told = [
        one
        for one in _during(struck, said.named, JUDGE)
        if one.state not in NOTHING_SAID and one.reason in RIGHT[case.class_name]
    ]
    advised = {
        one.name: one for one in said.advised if one.seconds >= begin and hosts & {*one.hosts}
    }
    ours = [one for one in advised.values() if one.basis is Basis.SHARED_CAUSE]
    alone = [one for one in advised.values() if one.basis is not Basis.SHARED_CAUSE]
    names = {getattr(places[host], name) for host in hosts for name in DOMAIN[case.class_name]}
    return Shared(
        class_name=case.class_name,
        hosts=len(hosts),
        named=len({one.host for one in told}),
        shared=len(ours),
        right_domain=any(names & {*one.subject.split()} for one in ours),
        alone=len(alone),
        drains=sum(one.action in DRAINS for one in alone),
    )


def _said_of(
    hosts: set[str], struck: Sequence[Struck], named: Sequence[Named], truth: Truth
) -> Counter[tuple[str, State]]:
    """Count of how many of *hosts*, struck by what is no fault, each rule spoke while that stood alone."""
    told = {
        (one.rule, one.state, one.host)
        for one in _during(struck, named, JUDGE)
        if one.state is not State.UNKNOWN and not truth.is_ill(one.host, one.begin)
    }
    return Counter((rule, state) for rule, state, _ in told)
