"""Invariants of a score for any set of symptoms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.model import SEVERITY, HealthState, Reason
from gangline.aggregator.rule_declaration import Rule
from gangline.aggregator.scoring.base_hazard import base_hazard_per_hour
from gangline.aggregator.scoring.score import (
    EVIDENCE_MAX,
    HAZARD_PER_HOUR_MAX,
    HORIZON_HOURS,
    HostInput,
    ObservedSymptom,
    score_host,
)
from gangline.aggregator.scoring.symptom import Symptom

STATES = [
    HealthState.HEALTHY,
    HealthState.WATCH,
    HealthState.DEGRADED,
    HealthState.SUSPECT,
    HealthState.UNHEALTHY,
    HealthState.STALE,
]

#: What several devices may share has one factor wherever it shows.
FACTORS_SHARED = {"": st.floats(1.0, 50.0), "cooling": st.just(3.0), "network": st.just(10.0)}


def seen(
    state: HealthState, factor: float, device: str, speed: float = 1.0, shared: str = ""
) -> ObservedSymptom:
    rule = Rule("r", state, Reason.POLICY, "c", hazard_factor=factor, shared=shared)
    return ObservedSymptom(Symptom(rule, 0, device, "s", 1.0, "n", "w", "q", speed=speed), 5)


def subject(gpus: int = 8, heard: bool = True, speed: float = math.nan) -> HostInput:
    return HostInput("h", 0, False, gpus, 1, heard, speed)


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
    held: list[ObservedSymptom], gpus: int, heard: bool
) -> None:
    """Any stored score can be recomputed from its row; nothing is below 0 or above 1."""
    host = score_host(subject(gpus, heard), held)
    base = base_hazard_per_hour(gpus)
    total = sum(e.log_hazard_delta for e in host.evidence)
    assert total == pytest.approx(math.log(host.hazard_per_hour / base), abs=1e-9)
    assert host.score == pytest.approx(math.exp(-host.hazard_per_hour * HORIZON_HOURS))
    assert 0.0 <= host.score_lower <= host.score <= host.score_upper <= 1.0
    assert base * 0.999 <= host.hazard_per_hour <= HAZARD_PER_HOUR_MAX * 1.001
    assert len(host.evidence) <= EVIDENCE_MAX
    assert all(e.score_delta <= 0 and e.log_hazard_delta >= 0 for e in host.evidence)


several = st.lists(
    st.one_of([
        st.builds(
            seen, st.sampled_from(STATES), factor, st.sampled_from(["a", "b", "GPU-1", "GPU-1/link0", "GPU-2"]),
            st.just(1.0), st.just(shared),
        )
        for shared, factor in FACTORS_SHARED.items()
    ]),
    max_size=12,
)  # fmt: skip


@given(several, st.integers(0, 16))
def test_repairing_a_device_gives_back_what_its_evidence_says(
    held: list[ObservedSymptom], gpus: int
) -> None:
    """A GPU with a pending remap added 46 interruptions an hour, and its page said 0.0007."""
    host = score_host(subject(gpus), held)
    added = math.fsum(e.hazard_delta for e in host.evidence)
    assert host.hazard_per_hour == pytest.approx(base_hazard_per_hour(gpus) + added, rel=1e-9)
    for device in {s.symptom.parent_device for s in held}:
        own = [
            e.hazard_delta
            for e in host.evidence
            if e.device.partition("/")[0] == device and e.shared_count == 1
        ]
        without = score_host(subject(gpus), [s for s in held if s.symptom.parent_device != device])
        given = host.hazard_per_hour - without.hazard_per_hour
        if len({(s.symptom.parent_device, s.symptom.rule.shared) for s in held}) > len(
            {s.symptom.parent_device for s in held}
        ):
            # The remaining faults may have a simpler explanation.
            assert given >= sum(own) * (1 - 1e-6) - 1e-12
        else:
            assert given == pytest.approx(sum(own), rel=1e-6, abs=1e-12)


@given(several, st.integers(0, 16))
def test_several_faults_are_no_worse_than_their_sum_and_no_surer_than_one(
    held: list[ObservedSymptom], gpus: int
) -> None:
    """Eight pending remaps were multiplied to one interruption a minute, with certainty."""
    base, host = base_hazard_per_hour(gpus), score_host(subject(gpus), held)
    devices = {item.symptom.parent_device for item in held}
    scores = [
        score_host(subject(gpus), [item for item in held if item.symptom.parent_device == device])
        for device in devices
    ]
    together = base + sum(item.hazard_per_hour - base for item in scores)
    assert host.hazard_per_hour <= together * (1 + 1e-9)
    assert host.hazard_per_hour >= max((item.hazard_per_hour for item in scores), default=base) * (1 - 1e-9)  # fmt: skip
    lower, upper = host.hazard_interval
    for item in scores:
        assert upper / lower >= item.hazard_interval[1] / item.hazard_interval[0] * (1 - 1e-9)
        assert lower <= host.hazard_per_hour * (1 + 1e-9) <= upper * (1 + 2e-9)


@given(symptoms | several, (symptoms | several).filter(bool), st.booleans())
def test_one_more_symptom_never_makes_a_score_better(
    held: list[ObservedSymptom], more: list[ObservedSymptom], heard: bool
) -> None:
    """A worse state with a smaller factor replaced the greater hazard of the same device."""
    before = score_host(subject(heard=heard), held)
    after = score_host(subject(heard=heard), [*held, more[0]])
    assert after.score <= before.score * (1 + 1e-9)
    assert after.hazard_per_hour >= before.hazard_per_hour * (1 - 1e-9)


@pytest.mark.parametrize(
    ("factor", "shared", "scores"),
    [  # for 1, 2, 4 and 8 devices
        (5.0, "", [0.9928, 0.9871, 0.9757, 0.9533]),  # pending row remaps
        (2.0, "", [0.9971, 0.9957, 0.9928, 0.9871]),  # corrected PCIe errors
        (3.0, "cooling", [0.9957] * 4),  # one hot aisle
    ],
)
def test_faults_of_several_devices_add_and_what_they_share_counts_once(
    factor: float, shared: str, scores: list[float]
) -> None:
    """0, 1, 2, 4 and 8 pending remaps had 0.9985, 0.9927, 0.9644, 0.4045, 0.0000: a false drain."""
    for count, score in zip((1, 2, 4, 8), scores, strict=True):
        held = [
            seen(HealthState.WATCH, factor, f"GPU-{number}", shared=shared)
            for number in range(count)
        ]
        host = score_host(subject(), held)
        assert host.score == pytest.approx(score, abs=5e-5)
        assert {e.shared_count for e in host.evidence} == {count if shared else 1}
        # The faults may have one cause, or one each: the interval covers both.
        one_cause, own_causes = (1 + factor - 1), (1 + count * (factor - 1))
        calm, spread = base_hazard_per_hour(8), 3.0
        assert list(host.hazard_interval) == pytest.approx(
            [calm * one_cause / spread, calm * own_causes * spread]
        )


def test_of_more_than_can_be_told_the_headline_and_the_largest_hazards_are() -> None:
    """The 48 most severe were kept: a mild, likely interruption was left out of the sum."""
    severe = [seen(HealthState.UNHEALTHY, 1.0, f"x{number}") for number in range(EVIDENCE_MAX)]
    mild = [seen(HealthState.WATCH, 50.0, f"y{number}") for number in range(3)]
    host = score_host(subject(), [*severe, *mild])
    assert len(host.evidence) == EVIDENCE_MAX and host.state is HealthState.UNHEALTHY
    assert host.hazard_per_hour == pytest.approx(base_hazard_per_hour(8) * (1 + 3 * 49))


def test_a_state_ends_when_all_that_put_it_there_ends() -> None:
    """ "SUSPECT ends when the port is up", but two hours later a link was still down."""

    def bad(state: HealthState, device: str, clears: str) -> ObservedSymptom:
        observed = seen(state, 2.0, device)
        return observed._replace(symptom=replace(observed.symptom, clears=clears))

    held = [
        bad(HealthState.WATCH, "a", "it cools"),
        bad(HealthState.SUSPECT, "b", "the port is up"),
    ]
    assert score_host(subject(), held).clears_when == "the port is up"
    held += [
        bad(HealthState.SUSPECT, "c", "the link is up"),
        bad(HealthState.SUSPECT, "d", "the port is up"),
    ]
    assert score_host(subject(), held).clears_when == "the port is up; and the link is up"
    held += [bad(HealthState.SUSPECT, c, f"{c} ends") for c in "efg"]
    assert score_host(subject(), held).clears_when.endswith("; and e ends; and 2 more end")
    assert score_host(subject(), []).clears_when == ""


@given(symptoms.filter(bool))
def test_the_worst_symptom_names_the_state_and_the_slowest_the_speed(
    held: list[ObservedSymptom],
) -> None:
    """A host with a dead GPU and a slow one is UNHEALTHY, and slow."""
    host = score_host(subject(), held)
    worst = min((s.symptom.host_state for s in held), key=SEVERITY.index)
    assert host.state is worst
    slowest = min((e.relative_speed_factor for e in host.evidence), default=1.0)
    assert math.isnan(host.relative_speed) if slowest == 1.0 else host.relative_speed == slowest


def test_taking_the_evidence_away_gives_back_what_it_says() -> None:
    """`score_delta` is the gain of repairing just that fault."""
    suspect, watched = seen(HealthState.SUSPECT, 50.0, "a"), seen(HealthState.WATCH, 5.0, "b")
    both, without = score_host(subject(), [suspect, watched]), score_host(subject(), [watched])
    assert both.score - without.score == pytest.approx(both.evidence[0].score_delta)


def test_symptoms_of_one_device_are_one_fault() -> None:
    """An XID, lost data and a pending remap of one GPU are the same bad row of memory."""
    held = [seen(HealthState.UNHEALTHY, 1000.0, "a"), seen(HealthState.WATCH, 5.0, "a")]
    host = score_host(subject(), held)
    assert [e.log_hazard_delta for e in host.evidence] == [pytest.approx(math.log(1000.0)), 0.0]


def test_a_link_is_a_part_of_its_gpu_and_a_driver_hangs_once() -> None:
    """XID 74 and its link counted as two faults, 1,500 times; a hung call, once per collector."""
    held = [
        seen(HealthState.SUSPECT, 50.0, "GPU-1"),
        seen(HealthState.SUSPECT, 30.0, "GPU-1/link0"),
    ]
    held += [
        seen(HealthState.WATCH, 2.0, "GPU-2/link0"),
        seen(HealthState.WATCH, 3.0, "/srv"),
        seen(HealthState.WATCH, 4.0, "/"),
    ]
    host = score_host(subject(), held)
    calm = base_hazard_per_hour(8)
    factors = {e.device: 1 + e.hazard_delta / calm for e in host.evidence}
    assert {name: round(factor) for name, factor in factors.items()} == {
        "GPU-1": 50, "GPU-1/link0": 1, "GPU-2/link0": 2, "/srv": 3, "/": 4,
    }  # fmt: skip
    hung = [seen(HealthState.UNHEALTHY, 10.0, f"gpu_{pace}") for pace in ("1s", "10s")]
    hung = [
        observed._replace(symptom=replace(observed.symptom, fault_source="driver of gpu"))
        for observed in hung
    ]
    assert score_host(subject(), hung).hazard_per_hour == pytest.approx(
        10 * base_hazard_per_hour(8)
    )


def test_a_host_that_is_not_heard_has_wide_bounds() -> None:
    """Missing is neither zero nor healthy: the interval is wide."""
    heard, unheard = score_host(subject(), []), score_host(subject(heard=False), [])
    assert unheard.score_lower < heard.score_lower < heard.score
    assert unheard.score_lower > 0.0 and unheard.score_upper < 1.0


def test_an_error_that_edac_counts_three_times_is_one_fault() -> None:
    """Controller, row and channel each count the same uncorrected error of a DIMM."""
    rule = Rule("edac.uncorrected", HealthState.SUSPECT, Reason.ECC_TREND, "c", hazard_factor=30.0)
    held = [
        ObservedSymptom(Symptom(rule, 0, device, "edac.uncorrected_errors", 1.0, "n", "w", "q"), 5)
        for device in ("mc1", "mc1/csrow0", "mc1/csrow0/ch0")
    ]
    assert (
        score_host(subject(), held).hazard_per_hour
        == score_host(subject(), held[:1]).hazard_per_hour
    )
