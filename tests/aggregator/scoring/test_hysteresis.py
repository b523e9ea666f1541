"""Symptoms enter fast and leave slowly, by a state machine that forgets nothing and invents nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.rule_declaration import Rule
from gangline.aggregator.scoring import hysteresis
from gangline.aggregator.scoring.hysteresis import RuleAndDevice, TrackedSymptom
from gangline.aggregator.scoring.symptom import Symptom

SECOND_NS = 1_000_000_000
RULE = Rule("r", HealthState.DEGRADED, Reason.STRAGGLER, "", enter_seconds=4.0, leave_seconds=10.0)


def symptom(state: HealthState | None = None, rule: Rule = RULE, device: str = "d") -> Symptom:
    return Symptom(rule, 0, device, "s", 1.0, "n", "w", "q", state=state)


def play(history: list[HealthState | None]) -> list[HealthState | None]:
    """Return what counts, second by second; None: nothing."""
    holds: dict[RuleAndDevice, TrackedSymptom] = {}
    shown: list[HealthState | None] = []
    for second, state in enumerate(history):
        seen = [symptom(state)] if state else []
        holds = hysteresis.step(holds, seen, second * SECOND_NS)
        active = [h.worst.host_state for h in holds.values() if h.active]
        shown.append(active[0] if active else None)
    return shown


def test_it_enters_after_its_seconds_and_leaves_after_its_seconds() -> None:
    """Present from 2 to 9: counts from 6, until ten seconds after 9."""
    shown = play([None] * 2 + [HealthState.DEGRADED] * 8 + [None] * 15)
    assert [i for i, s in enumerate(shown) if s] == list(range(6, 19))


def test_a_flicker_never_enters() -> None:
    """Three seconds of something, again and again, is not four on end."""
    assert not any(play(([HealthState.DEGRADED] * 4 + [None]) * 20))


def test_it_shows_the_worst_until_that_was_away_long_enough() -> None:
    """SUSPECT for a moment, then WATCH: the host is not sent work a second later."""
    shown = play([*[HealthState.WATCH] * 5, HealthState.SUSPECT, *[HealthState.WATCH] * 14])
    assert shown[4] is HealthState.WATCH
    assert shown[5:15] == [HealthState.SUSPECT] * 10
    assert shown[15:] == [HealthState.WATCH] * 5


histories = st.lists(
    st.sampled_from([None, HealthState.WATCH, HealthState.DEGRADED, HealthState.SUSPECT])
)


@given(histories)
def test_nothing_counts_that_was_not_there_and_nothing_is_milder_than_now(
    history: list[HealthState | None],
) -> None:
    """What a host stands under was true within the last ten seconds; what is true counts."""
    order = [None, HealthState.WATCH, HealthState.DEGRADED, HealthState.SUSPECT]
    for at, shown in enumerate(play(history)):
        recent = history[max(0, at - 10) : at + 1]
        assert shown is None or shown in recent
        if at >= 4 and all(history[at - 4 : at + 1]):
            assert order.index(shown) >= order.index(history[at])


@given(histories, st.integers(1, 1000))
def test_a_pause_changes_nothing(history: list[HealthState | None], pause: int) -> None:
    """A host that was silent for a while stands where it stood: missing is not healthy."""
    plain: dict[RuleAndDevice, TrackedSymptom] = {}
    paused: dict[RuleAndDevice, TrackedSymptom] = {}
    shift = 0
    for second, state in enumerate(history):
        seen = [symptom(state)] if state else []
        plain = hysteresis.step(plain, seen, second * SECOND_NS)
        shift += pause
        paused = hysteresis.freeze(paused, pause * SECOND_NS)
        paused = hysteresis.step(paused, seen, (second + shift) * SECOND_NS)
        shown = [[(h.worst, h.active) for h in holds.values()] for holds in (plain, paused)]
        assert shown[0] == shown[1]


@given(st.permutations([symptom(device=d) for d in "abc"]))
def test_the_order_of_symptoms_does_not_matter(symptoms: list[Symptom]) -> None:
    """Rules run in no order that matters."""
    result = hysteresis.step({}, symptoms, 0)
    assert {key: result[key] for key in sorted(result)} == hysteresis.step(
        {}, [symptom(device=d) for d in "abc"], 0
    )
