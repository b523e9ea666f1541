"""The machine's promises under a random walk and Hypothesis; a broken promise is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gangline.aggregator.advisories import (
    answers,
    declared_out,
    limits,
    proposals,
    shared_causes,
    state_machine,
    timers,
)
from gangline.aggregator.advisories.advisory import (
    Action,
    Advisory,
    AdvisoryState,
    Basis,
    Case,
    Price,
    Scope,
    restrict_to_basis,
)
from gangline.aggregator.advisories.messages import (
    Acked,
    Available,
    CaseGone,
    CaseSeen,
    Frozen,
    Member,
    PutBack,
    TakenOut,
    Tick,
    Unavailable,
    Well,
)
from gangline.aggregator.advisories.state import StateEditor
from tests.aggregator.advisories.walk import HOSTS, REASONS, Walk, walk

STEPS = 6000
ANSWERED_ADVISORY = answers._answered_advisory


@pytest.mark.slow
def test_a_walk_keeps_every_promise() -> None:
    """A part of `make fuzz`, which walks a million steps; every kind of instruction occurs."""
    instruction_counts = walk(STEPS, 7).seen
    assert instruction_counts.keys() >= {
        "Publish", "Act", "Clear", "Renew", "Probation", "HeldBack", "Refused", "Out", "StillOut", "Back",
    }  # fmt: skip


def _no_words(*_: Any, **__: Any) -> str:
    return ""


def _as_it_is(case: Case) -> Case:
    return case


def _then_as_it_is(case: Case) -> Case:
    return replace(restrict_to_basis(case), then=case.then)


def _always(*_: Any, **__: Any) -> bool:
    return True


def _never(*_: Any, **__: Any) -> bool:
    return False


def _nothing(*_: Any, **__: Any) -> list[Any]:
    return []


def _without_word(desk: StateEditor) -> list[limits.OutMember]:
    own = [(host, hold.place, hold.job) for host, hold in desk.state.holds.items()]
    return [*own, *((host, hold.place, hold.job) for host, hold in desk.state.taken.items())]


def _any_answer(editor: StateEditor, event: Acked) -> Advisory:
    return editor.find(event.name) or ANSWERED_ADVISORY(editor, event)


#: Module, name, replacement: each is a fault that a change could introduce.
SABOTAGE: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "no budget": (limits, "refusal", _no_words),
    "statistics evict": (state_machine, "restrict_to_basis", _as_it_is),
    "statistics reset": (state_machine, "restrict_to_basis", _then_as_it_is),
    "returns unverified": (proposals, "is_verified", _always),
    "anything is answered": (answers, "_answered_advisory", _any_answer),
    "nothing expires": (
        timers,
        "_renew_or_clear",
        lambda editor, hold: editor.clear(hold, "early"),
    ),
    "granted without weighing again": (answers, "_limit_reached", _no_words),
    "others' word counts for nothing": (limits, "unavailable_hosts", _without_word),
    "out for ever": (declared_out, "expire_declared_out", lambda editor: None),
    "rejected, and asked again": (StateEditor, "mute", lambda *_: None),
    "an own fault waits for others": (proposals, "is_own_device_fault", _never),
    "nothing waits for others": (proposals, "gathering_keys", _nothing),
    "the second host goes at once": (proposals, "_has_company", _never),
    "a cause forgets who is in hand": (shared_causes, "_in_hand", _nothing),
    "causes are not looked for": (shared_causes, "largest_cause", lambda *_: None),
}


@pytest.mark.parametrize("fault", SABOTAGE)
def test_a_broken_promise_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that checks nothing would accept all of these faults."""
    where, name, instead = SABOTAGE[fault]
    monkeypatch.setattr(where, name, instead)
    with pytest.raises((AssertionError, KeyError)):
        walk(2 * STEPS, 7)


hosts = st.integers(0, HOSTS - 1).map(lambda n: f"h{n:02d}")
keys = st.tuples(hosts, st.sampled_from(REASONS))


class Promises(RuleBasedStateMachine):
    """Hypothesis finds the shortest path to a broken promise."""

    @initialize(seed=st.integers(0, 9))
    def begin(self, seed: int) -> None:
        self.walk = Walk(seed)
        for number in (0, 1, 2, 9, 10, 33):  # so that short paths reach something
            self.see((f"h{number:02d}", "XID_FATAL"), Action.EVICT_NOW, Basis.DETERMINISTIC, 1)
        self.later(5.0)

    @rule(
        key=keys, action=st.sampled_from([a for a in Action if a is not Action.RETURN_TO_SERVICE]),
        basis=st.sampled_from(list(Basis)[:3]), count=st.sampled_from([1, 9, 800_000]),
    )  # fmt: skip
    def see(self, key: tuple[str, str], action: Action, basis: Basis, count: int) -> None:
        host, reason = key
        now = self.walk.now_ns
        case = Case(
            f"{host}/{reason}", host, reason, basis, action, Scope.NONE, "it is hot", now,
            place=self.walk.place(host), job="job1", count=count, price=Price(9.0, 1.0),
        )  # fmt: skip
        self.walk.give(CaseSeen(now, case))

    @rule(key=keys)
    def heal(self, key: tuple[str, str]) -> None:
        self.walk.give(CaseGone(self.walk.now_ns, "/".join(key), "it is over"))

    @rule(seconds=st.sampled_from([1.0, 5.0, 30.0, 130.0, 700.0]))
    def later(self, seconds: float) -> None:
        self.walk.now_ns += int(seconds * 1e9)
        self.walk.give(Tick(self.walk.now_ns))

    @rule(
        number=st.integers(1, 12), to=st.sampled_from(AdvisoryState), actor=st.sampled_from("xy"),
        message=st.sampled_from(["", "no"]),
    )  # fmt: skip
    def answer(self, number: int, to: AdvisoryState, actor: str, message: str) -> None:
        self.walk.give(Acked(self.walk.now_ns, f"a{number}", to, actor, message))

    @rule(number=st.integers(1, 12))
    def carry_out(self, number: int) -> None:
        for to in (AdvisoryState.ACCEPTED, AdvisoryState.DONE):
            self.answer(number, to, "x", "")

    @rule(host=hosts, by=st.sampled_from(["silent", "an operator", ""]))
    def take(self, host: str, by: str) -> None:
        now, place = self.walk.now_ns, self.walk.place(host)
        self.walk.give(Unavailable(now, host, by, place, "") if by else Available(now, host))

    @rule(host=hosts, well=st.booleans())
    def look(self, host: str, well: bool) -> None:
        self.walk.give(Well(self.walk.now_ns, host, well))

    @rule(
        hosts=st.sets(hosts, min_size=1, max_size=4), by=st.sampled_from("xy"), back=st.booleans()
    )
    def say(self, hosts: set[str], by: str, back: bool) -> None:
        now = self.walk.now_ns
        members = tuple(Member(host, self.walk.place(host), "job1") for host in sorted(hosts))
        until = now + 60 * 10**9
        out = TakenOut(now, by, "burn-in", until, members)
        self.walk.give(PutBack(now, by, tuple(sorted(hosts))) if back else out)

    @rule(message=st.sampled_from(["", "half is silent"]))
    def freeze(self, message: str) -> None:
        self.walk.give(Frozen(self.walk.now_ns, message))

    @rule()
    def kill(self) -> None:
        self.walk.restart()


TestPromises = Promises.TestCase
TestPromises.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
