"""A symptom becomes active fast and ends slowly, in a deterministic state machine."""

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
    """Return the active state of each second; None if no symptom is active."""
    holds: dict[RuleAndDevice, TrackedSymptom] = {}
    shown: list[HealthState | None] = []
    for second, state in enumerate(history):
        seen = [symptom(state)] if state else []
        holds = hysteresis.step(holds, seen, second * SECOND_NS)
        active = [h.worst.host_state for h in holds.values() if h.active]
        shown.append(active[0] if active else None)
    return shown


def test_it_enters_after_its_seconds_and_leaves_after_its_seconds() -> None:
    """A symptom present from 2 to 9 s is active from 6 s until 10 s after 9."""
    shown = play([None] * 2 + [HealthState.DEGRADED] * 8 + [None] * 15)
    assert [i for i, s in enumerate(shown) if s] == list(range(6, 19))


def test_a_flicker_never_enters() -> None:
    """Repeated periods of 3 s never reach the 4 s that a symptom needs."""
    assert not any(play(([HealthState.DEGRADED] * 4 + [None]) * 20))


def test_it_shows_the_worst_until_that_was_away_long_enough() -> None:
    """SUSPECT for 1 s, then WATCH: the host gets no work a second later."""
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
    """An active state was present within the last ten seconds, and a lasting state is active."""
    order = [None, HealthState.WATCH, HealthState.DEGRADED, HealthState.SUSPECT]
    for second, shown in enumerate(play(history)):
        recent = history[max(0, second - 10) : second + 1]
        assert shown is None or shown in recent
        if second >= 4 and all(history[second - 4 : second + 1]):
            assert order.index(shown) >= order.index(history[second])


@given(histories, st.integers(1, 1000))
def test_a_pause_changes_nothing(history: list[HealthState | None], pause: int) -> None:
    """The state survives a silence of the host: missing data is not health."""
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
    result = hysteresis.step({}, symptoms, 0)
    assert {key: result[key] for key in sorted(result)} == hysteresis.step(
        {}, [symptom(device=d) for d in "abc"], 0
    )
