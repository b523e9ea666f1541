"""What a score means holds for any set of symptoms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.judgement.scoring import (
    EVIDENCE_MAX,
    HAZARD_PER_HOUR_MAX,
    HORIZON_HOURS,
    Seen,
    Subject,
    base_hazard_per_hour,
    score_host,
)
from gangline.aggregator.judgement.symptoms import Rule, Symptom
from gangline.aggregator.verdicts import SEVERITY, Reason, State

STATES = [State.HEALTHY, State.WATCH, State.DEGRADED, State.SUSPECT, State.UNHEALTHY, State.STALE]


def seen(state: State, factor: float, device: str, speed: float = 1.0) -> Seen:
    rule = Rule("r", state, Reason.POLICY, "c", hazard_factor=factor)
    return Seen(Symptom(rule, 0, device, "s", 1.0, "n", "w", "q", speed=speed), 5)


def subject(gpus: int = 8, heard: bool = True, speed: float = math.nan) -> Subject:
    return Subject("h", 0, False, gpus, 1, heard, speed)


symptoms = st.lists(
    st.builds(
        seen,
        st.sampled_from(STATES),
        st.floats(1.0, 1e5),
        st.sampled_from("abcdef"),
        st.floats(0.05, 1.0),
    ),
    max_size=60,
)


@given(symptoms, st.integers(0, 16), st.booleans())
def test_contributions_add_up_and_the_interval_holds_the_score(
    held: list[Seen], gpus: int, heard: bool
) -> None:
    """Any stored score recomputes from its row; nothing is ever below 0 or above 1."""
    host = score_host(subject(gpus, heard), held)
    base = base_hazard_per_hour(gpus)
    total = sum(e.log_hazard_delta for e in host.evidence)
    assert total == pytest.approx(math.log(host.hazard_per_hour / base), abs=1e-9)
    assert host.score == pytest.approx(math.exp(-host.hazard_per_hour * HORIZON_HOURS))
    assert 0.0 <= host.score_lower <= host.score <= host.score_upper <= 1.0
    assert base * 0.999 <= host.hazard_per_hour <= HAZARD_PER_HOUR_MAX * 1.001
    assert len(host.evidence) <= EVIDENCE_MAX
    assert all(e.score_delta <= 0 and e.log_hazard_delta >= 0 for e in host.evidence)


def test_a_state_ends_when_all_that_put_it_there_ends() -> None:
    """ "SUSPECT ends when the port is up", and two hours after it came up the host was SUSPECT still: a link was down too."""

    def bad(state: State, device: str, clears: str) -> Seen:
        found = seen(state, 2.0, device)
        return found._replace(symptom=replace(found.symptom, clears=clears))

    held = [bad(State.WATCH, "a", "it cools"), bad(State.SUSPECT, "b", "the port is up")]
    assert score_host(subject(), held).clears_when == "the port is up"
    held += [bad(State.SUSPECT, "c", "the link is up"), bad(State.SUSPECT, "d", "the port is up")]
    assert score_host(subject(), held).clears_when == "the port is up; and the link is up"
    held += [bad(State.SUSPECT, c, f"{c} ends") for c in "efg"]
    assert score_host(subject(), held).clears_when.endswith("; and e ends; and 2 more end")
    assert score_host(subject(), []).clears_when == ""


@given(symptoms.filter(bool))
def test_the_worst_symptom_names_the_state_and_the_slowest_the_speed(held: list[Seen]) -> None:
    """A host with a dead GPU and a slow one is UNHEALTHY, and slow."""
    host = score_host(subject(), held)
    worst = min((s.symptom.host_state for s in held), key=SEVERITY.index)
    assert host.state is worst
    slowest = min((e.relative_speed_factor for e in host.evidence), default=1.0)
    assert math.isnan(host.relative_speed) if slowest == 1.0 else host.relative_speed == slowest


def test_taking_the_evidence_away_gives_back_what_it_says() -> None:
    """`score_delta` is what an operator gains by repairing just that."""
    one, two = seen(State.SUSPECT, 50.0, "a"), seen(State.WATCH, 5.0, "b")
    both, without = score_host(subject(), [one, two]), score_host(subject(), [two])
    assert both.score - without.score == pytest.approx(both.evidence[0].score_delta)


def test_symptoms_of_one_device_are_one_fault() -> None:
    """An XID, lost data and a pending remap of one GPU are the same bad row of memory."""
    held = [seen(State.UNHEALTHY, 1000.0, "a"), seen(State.WATCH, 5.0, "a")]
    host = score_host(subject(), held)
    assert [e.log_hazard_delta for e in host.evidence] == [pytest.approx(math.log(1000.0)), 0.0]


def test_a_link_is_a_part_of_its_gpu_and_a_driver_hangs_once() -> None:
    """XID 74 and its link that is down counted as two faults, 1,500 times; a call that hung, once for each of five collectors."""
    held = [seen(State.SUSPECT, 50.0, "GPU-1"), seen(State.SUSPECT, 30.0, "GPU-1/link0")]
    held += [
        seen(State.WATCH, 2.0, "GPU-2/link0"),
        seen(State.WATCH, 3.0, "/srv"),
        seen(State.WATCH, 4.0, "/"),
    ]
    host = score_host(subject(), held)
    factors = {e.device: math.exp(e.log_hazard_delta) for e in host.evidence}
    assert {name: round(factor) for name, factor in factors.items()} == {
        "GPU-1": 50, "GPU-1/link0": 1, "GPU-2/link0": 2, "/srv": 3, "/": 4,
    }  # fmt: skip
    hung = [seen(State.UNHEALTHY, 10.0, f"gpu_{pace}") for pace in ("1s", "10s")]
    hung = [one._replace(symptom=replace(one.symptom, whose="driver of gpu")) for one in hung]
    assert score_host(subject(), hung).hazard_per_hour == pytest.approx(
        10 * base_hazard_per_hour(8)
    )


def test_a_host_that_is_not_heard_has_wide_bounds() -> None:
    """Missing is not zero and not healthy: the interval says that we do not know."""
    heard, unheard = score_host(subject(), []), score_host(subject(heard=False), [])
    assert unheard.score_lower < heard.score_lower < heard.score
    assert unheard.score_lower > 0.0 and unheard.score_upper < 1.0
