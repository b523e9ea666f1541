"""Decisions of executors as tables: from a situation to steps, without a scheduler or an aggregator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gangline.executors import core, ledger_updates, reports
from gangline.executors.core import decide
from gangline.executors.ledger import DOWN, DRAIN, HOLD, SET, Entry, ExecutorLedger, JobProgress
from gangline.executors.model import (
    ACTIONS,
    Accept,
    Advice,
    Answer,
    Capabilities,
    Drain,
    ExecutorPolicy,
    Node,
    NodeHold,
    PlaceHold,
    Reboot,
    RemoveHold,
    Requeue,
    Resume,
    ScheduledJob,
    SchedulerState,
    Situation,
    StartNow,
    Step,
)

NOW = 10_000.0
ADVICE = Advice(
    "a1", "a1-1", "AVOID", "PROPOSED", "n1", reason="XID 79", cause="XID_FATAL", owner="", token=0,
    expires=NOW + 600, lease_until=NOW + 600, workload="7",
)  # fmt: skip
ACCEPTED = replace(ADVICE, state="ACCEPTED", owner="me", token=5)
DONE = replace(ACCEPTED, state="DONE")
RETURNING = replace(ACCEPTED, name="a2", action="RETURN_TO_SERVICE")
NODE = Node("n1", "IDLE")
ENTRY = Entry(
    "a1", "n1", "AVOID", "me", 5, NOW - 60, NOW + 600, HOLD, "gangline_a1", SET, NOW - 60, NOW + 600,
)  # fmt: skip
STANDS = {"gangline_a1": NodeHold("gangline_a1", frozenset(["n1"]), NOW + 600)}
JOB = ScheduledJob("7", "RUNNING", frozenset(["n1", "n2"]), may_requeue=True, started=NOW - 100)

OUT = Node("n1", "IDLE+DRAIN", "bad fan", out="DRAIN: bad fan", may_drain=False)
OURS = Node("n1", "IDLE+DRAIN", "gangline:v1;act=drain;adv=a1", out="DRAIN", is_managed=True)
LATER = replace(DONE, expires=NOW + 900)


@pytest.fixture
def ledger(tmp_path: Path) -> ExecutorLedger:
    return ExecutorLedger(tmp_path / "ledger.json")


def situation(*advice: Advice, **more: object) -> Situation:
    nodes = {"n1": more.pop("node", NODE)}
    jobs = more.pop("jobs", {})
    holds = more.pop("holds", {})
    state = SchedulerState(nodes, jobs, holds)  # type: ignore[arg-type]
    fields = {"now": NOW, "is_live": True, **more}
    return Situation({advisory.name: advisory for advisory in advice}, state, **fields)  # type: ignore[arg-type]


def kinds(steps: list[Step]) -> list[str]:
    return [type(step).__name__ for step in steps]


@pytest.mark.parametrize(
    ("about", "accepted"),
    [
        (situation(ADVICE), True),
        (situation(ADVICE, is_live=False), False),
        (situation(replace(ADVICE, state="DEFERRED")), False),
        (situation(ADVICE, node=OUT), False),
        (situation(replace(ADVICE, node="elsewhere")), False),
        (situation(replace(ADVICE, action="INSPECT")), False),
        (situation(replace(ADVICE, action="REBOOT")), False),
        (situation(replace(ADVICE, action="REBOOT"), policy=ExecutorPolicy(frozenset(ACTIONS))), True),
        (situation(ADVICE, policy=ExecutorPolicy(marks_max=0)), False),
        # The executor accepted, and was killed before the ledger stored it.
        (situation(ACCEPTED, policy=ExecutorPolicy(actor="me")), True),
        (situation(replace(ACCEPTED, owner="scheduler x/me"), policy=ExecutorPolicy(actor="me")), True),
        (situation(replace(ACCEPTED, owner="not me"), policy=ExecutorPolicy(actor="me")), False),
        # Its node is on its way back: the mark was removed, and the return is not answered yet.
        (situation(ACCEPTED, RETURNING, policy=ExecutorPolicy(actor="me")), False),
        # A node returns only where the executor may set a mark.
        (situation(replace(ADVICE, action="RETURN_TO_SERVICE")), False),
    ],
)  # fmt: skip
def test_what_is_accepted(about: Situation, accepted: bool, ledger: ExecutorLedger) -> None:
    """An advisory for another executor stays proposed."""
    assert any(isinstance(step, Accept) for step in decide(about, ledger)) == accepted


@pytest.mark.parametrize(
    ("action", "node", "policy", "capabilities", "mark"),
    [
        ("AVOID", NODE, "auto", False, HOLD),
        ("AVOID", NODE, "auto", True, HOLD),
        ("EVICT_NOW", NODE, "auto", False, HOLD),
        ("EVICT_NOW", NODE, "auto", True, DRAIN),
        ("EVICT_NOW", NODE, "hold", True, HOLD),
        ("AVOID", NODE, "drain", False, DRAIN),
        ("EVICT_NOW", Node("n1", "IDLE*", is_responding=False), "auto", False, DOWN),
        ("AVOID", Node("n1", "IDLE*", is_responding=False), "auto", False, HOLD),
    ],
)
def test_what_is_set(
    action: str, node: Node, policy: str, capabilities: bool, mark: str, ledger: ExecutorLedger
) -> None:
    """A mark ends by itself unless the operator prefers drains; DOWN is for a node that does not respond."""
    advice = replace(ACCEPTED, action=action)
    about = situation(
        advice, node=node, policy=ExecutorPolicy(mark=policy), capabilities=Capabilities("", capabilities),
    )  # fmt: skip
    ledger_updates.record_accept(ledger, about, advice)
    (step,) = [
        candidate for candidate in decide(about, ledger) if isinstance(candidate, PlaceHold | Drain)
    ]
    entry = ledger.get("a1")
    assert entry is not None and entry.mark == mark
    if isinstance(step, Drain):
        assert mark in (DRAIN, DOWN) and step.down == (mark == DOWN)
        act = "evict" if action == "EVICT_NOW" else "drain"
        assert step.reason == f"gangline:v1;act={act};cause=xid_fatal;ttl=600;adv=a1"
    else:
        assert mark == HOLD and step.hold == advice.hold_name


@pytest.mark.parametrize(
    ("about", "steps"),
    [
        (situation(DONE, holds=STANDS), []),
        (situation(LATER, holds=STANDS), ["ExtendHold"]),
        (situation(DONE), ["GiveBack"]),
        # A foreign drain may end at any moment, so the hold stays.
        (situation(DONE, node=OUT, holds=STANDS), []),
        (situation(ACCEPTED, node=OUT, holds=STANDS), ["Answer"]),
        (situation(replace(DONE, state="WITHDRAWN"), holds=STANDS), ["RemoveHold"]),
        (situation(replace(DONE, state="WITHDRAWN")), ["Forget"]),
        (situation(replace(DONE, expires=NOW - 1), holds=STANDS), ["RemoveHold"]),
        (situation(holds=STANDS), ["RemoveHold"]),
        (situation(holds=STANDS, is_live=False), []),
        (situation(holds=STANDS, is_live=False, now=NOW + 601), ["RemoveHold"]),
        (situation(is_live=False, now=NOW + 601), ["Forget"]),
        # Another executor owns the advisory, and a hold of this name belongs to that executor.
        (situation(replace(ACCEPTED, owner="other", token=6), holds=STANDS), ["Forget"]),
        (situation(replace(DONE, owner="other"), holds=STANDS), ["Forget"]),
        # This executor's lease expired, and no other executor has taken the advisory.
        (situation(replace(ADVICE, token=5), holds=STANDS), ["Accept"]),
        (
            situation(replace(ACCEPTED, lease_until=NOW + 10), holds=STANDS),
            ["RenewLease", "Answer"],
        ),
    ],
)
def test_what_becomes_of_a_hold(about: Situation, steps: list[str], ledger: ExecutorLedger) -> None:
    """The hold stays until the advisory expires; a person's change, and another executor's token, override it."""
    ledger.add(replace(ENTRY))
    assert kinds(decide(about, ledger)) == steps


@pytest.mark.parametrize(
    ("about", "restored"),
    [
        (situation(DONE), True),
        (situation(replace(DONE, owner="scheduler x/me")), True),
        (situation(replace(DONE, owner="other")), False),
        (situation(replace(DONE, expires=NOW)), False),
        (situation(DONE, is_live=False), False),
        (situation(replace(DONE, state="FAILED")), False),
        (situation(replace(DONE, action="RETURN_TO_SERVICE")), False),
        (situation(DONE, node=OUT), False),
        # Between the removal of the mark and the aggregator's end of its advisory.
        (situation(DONE, RETURNING), False),
        (situation(DONE, replace(RETURNING, state="DONE")), False),
        (situation(replace(DONE, name="a3"), replace(RETURNING, state="DONE")), True),
    ],
)
def test_a_mark_that_ended_in_an_outage_is_restored(
    about: Situation, restored: bool, ledger: ExecutorLedger
) -> None:
    about = replace(about, policy=ExecutorPolicy(actor="me"))
    steps = decide(about, ledger)
    assert kinds(steps) == (["Restore"] if restored else [])
    if restored:
        advice = next(one for one in about.advice.values() if one.action == "AVOID")
        ledger_updates.record_accept(ledger, about, advice)
        assert "PlaceHold" in kinds(decide(about, ledger))


def test_a_drain_of_ours_ends_with_us_and_not_a_persons(ledger: ExecutorLedger) -> None:
    """On a Slurm without `resumeafter` the executor itself ends it, also while the aggregator is away."""
    ledger.add(replace(ENTRY, mark=DRAIN, hold=""))
    over = situation(node=OURS, is_live=False, now=NOW + 601)
    assert kinds(decide(over, ledger)) == ["Resume"]
    assert kinds(decide(replace(over, scheduler=situation(node=OUT).scheduler), ledger)) == [
        "Forget"
    ]


def test_running_work_leaves_a_node_that_somebody_else_took_out(ledger: ExecutorLedger) -> None:
    """A controller tainted the node for the same XID: the eviction was deferred, and the gang kept its dead GPU."""
    evict = replace(ADVICE, action="EVICT_NOW")
    for advice, accepted in ((evict, True), (ADVICE, False), (replace(ADVICE, action="DRAIN_AFTER_JOB"), False)):  # fmt: skip
        about = situation(advice, node=OUT, jobs={"7": JOB})
        assert any(isinstance(step, Accept) for step in decide(about, ledger)) == accepted
        only_drains = replace(about, capabilities=Capabilities(has_hold=False))
        assert not decide(only_drains, ledger)
    # A hold beside their drain, whose reason stays.
    about = situation(
        replace(ACCEPTED, action="EVICT_NOW"), node=OUT, jobs={"7": JOB}, policy=ExecutorPolicy(mark="drain")
    )  # fmt: skip
    ledger_updates.record_accept(ledger, about, about.advice["a1"])
    (hold,) = decide(about, ledger)
    assert isinstance(hold, PlaceHold)
    ledger_updates.record_intent(hold, ledger, about)
    ledger_updates.record_result(hold, "", ledger, NOW)
    assert kinds(decide(held(about, hold.hold), ledger)) == ["Requeue"]


def held(about: Situation, name: str, *, overrides_holds: bool = False) -> Situation:
    """Return *about* with a hold of n1."""
    hold = NodeHold(name, frozenset(["n1"]), NOW + 600, overrides_holds=overrides_holds)
    holds = {**about.scheduler.holds, name: hold}
    return replace(about, scheduler=replace(about.scheduler, holds=holds))


@pytest.mark.parametrize("has_hold", [True, False])
def test_a_drain_is_restored_behind_that_of_somebody_else(
    has_hold: bool, ledger: ExecutorLedger
) -> None:
    """A health check drained the node for a moment and resumed it: the executor's own drain did not come back."""
    ledger.add(replace(ENTRY, mark=DRAIN, hold=""))
    able = Capabilities(has_hold=has_hold)
    theirs = situation(DONE, node=OUT, capabilities=able)
    assert ledger_updates.reconcile(ledger, theirs)
    assert kinds(decide(theirs, ledger)) == (["PlaceHold"] if has_hold else [])
    back = situation(DONE, capabilities=able)
    ledger_updates.reconcile(ledger, back)
    assert kinds(decide(back, ledger)) == (["PlaceHold"] if has_hold else ["Drain"])


def test_a_hold_without_effect_becomes_a_drain(ledger: ExecutorLedger) -> None:
    """Jobs in a site's reservation with `overlap` start on held nodes."""
    ledger.add(replace(ENTRY))
    about = held(situation(DONE, holds=STANDS), "site", overrides_holds=True)
    assert ledger_updates.reconcile(ledger, about)
    (drain,) = decide(about, ledger)
    assert isinstance(drain, Drain) and not drain.down
    ledger_updates.record_intent(drain, ledger, about)
    ledger_updates.record_result(drain, "", ledger, NOW)
    drained = replace(about, scheduler=replace(about.scheduler, nodes={"n1": OURS}))
    assert not ledger_updates.reconcile(ledger, drained)
    assert kinds(decide(drained, ledger)) == ["RemoveHold"]
    # A person drained the node: their drain has the effect.
    ledger.add(replace(ENTRY))
    about = replace(about, scheduler=replace(about.scheduler, nodes={"n1": OUT}))
    assert not ledger_updates.reconcile(ledger, about)
    # The same at the first decision, and during a maintenance without a drain.
    maintained = Node("n1", "IDLE+MAINTENANCE", out="MAINTENANCE")
    assert core.mark_of(held(situation(ACCEPTED), "site", overrides_holds=True), ACCEPTED) == DRAIN
    about = held(situation(replace(ADVICE, action="EVICT_NOW"), node=maintained), "site", overrides_holds=True)  # fmt: skip
    assert kinds(decide(about, ExecutorLedger(ledger.path.parent / "other"))) == ["Accept"]


def test_two_advisories_of_a_node_share_its_drain(ledger: ExecutorLedger) -> None:
    """The milder advisory ended, and the node was resumed under the more severe advisory."""
    ledger.add(replace(ENTRY, mark=DRAIN, hold=""))
    ledger.add(replace(ENTRY, advisory="a2", mark=DRAIN, hold=""))
    graver = replace(DONE, name="a2", etag="a2-1")
    about = situation(replace(DONE, state="WITHDRAWN"), graver, node=OURS)
    assert kinds(decide(about, ledger)) == ["Forget"]


@pytest.mark.parametrize(
    ("after_start", "interval", "advised", "leaves"),
    [(0.0, 1800.0, 0.0, False), (1701.0, 1800.0, 0.0, False), (1761.0, 1800.0, 0.0, True), (130.0, 0.0, 0.0, False),
     (131.0, 0.0, 100.0, True), (1761.0, 9999.0, 1800.0, True)],
)  # fmt: skip
def test_a_job_leaves_after_its_checkpoint(
    after_start: float, interval: float, advised: float, leaves: bool, ledger: ExecutorLedger
) -> None:
    """The job waits for its due checkpoint; the advisory's interval overrides the job's."""
    now = NOW + after_start
    job = replace(JOB, checkpoint_seconds=interval)
    advice = replace(
        ACCEPTED, action="DRAIN_AT_CHECKPOINT", expires=now + 600, lease_until=now + 600, checkpoint_seconds=advised,
    )  # fmt: skip
    ledger.add(replace(ENTRY, action="DRAIN_AT_CHECKPOINT", accepted=NOW - 60, ends=now + 600))
    about = situation(advice, jobs={"7": job}, holds=STANDS, now=now)
    assert any(isinstance(step, Requeue) for step in decide(about, ledger)) == leaves


def test_a_requeued_job_starts_in_the_next_second(ledger: ExecutorLedger) -> None:
    """In the same second slurmd refuses it, and the job fails."""
    waiting = replace(
        JOB, state="PENDING", nodes=frozenset(), restarts=1, waits_for_begin_time=True
    )
    advice = replace(ACCEPTED, action="EVICT_NOW")
    ledger.add(
        replace(
            ENTRY,
            action="EVICT_NOW",
            hold="gangline_a1_evict",
            jobs={"7": JobProgress("start", 0, requeued=NOW + 0.2)},
        )
    )
    holds = {"gangline_a1_evict": NodeHold("gangline_a1_evict", frozenset(["n1"]), NOW + 600)}
    for now, begin in ((NOW + 0.3, NOW + 1), (NOW + 0.99, NOW + 1), (NOW + 1.06, 0.0)):
        about = situation(
            advice, jobs={"7": waiting}, holds=holds, now=now, capabilities=Capabilities("", False, True),
        )  # fmt: skip
        ledger_updates.reconcile(ledger, about)
        (start,) = (step for step in decide(about, ledger) if isinstance(step, StartNow))
        assert start.begin == begin, now
    ledger_updates.record_result(start, "", ledger, NOW + 0.3)
    assert 0 < core.next_poll_seconds(ledger, about.capabilities, NOW + 0.3, 5.0) < 0.8


def test_a_reboot_is_asked_for_once(ledger: ExecutorLedger) -> None:
    policy = ExecutorPolicy(frozenset(ACTIONS))
    advice = replace(ACCEPTED, action="REBOOT")
    about = situation(advice, policy=policy)
    ledger_updates.record_accept(ledger, about, advice)
    (step,) = decide(about, ledger)
    assert isinstance(step, Reboot)
    ledger_updates.record_intent(step, ledger, about)
    ledger_updates.record_result(step, "", ledger, NOW)
    (answer,) = decide(about, ledger)
    assert isinstance(answer, Answer) and answer.state == "DONE"


def test_undo_knows_ours_by_name_and_reason() -> None:
    """A person's reservation whose name only begins like an executor's stays."""
    holds = {
        name: NodeHold(name, frozenset(["n1"]))
        for name in (
            "gangline_a1",
            "gangline_a2_evict",
            "gangline_doctor",
            "gangline_team",
            "maint",
        )
    }
    nodes = {"n1": OURS, "n2": replace(OUT, name="n2")}
    steps = core.undo_steps(SchedulerState(nodes, {}, holds))
    assert [step.hold for step in steps if isinstance(step, RemoveHold)] == [
        "gangline_a1", "gangline_a2_evict",
    ]  # fmt: skip
    assert [step.node for step in steps if isinstance(step, Resume)] == ["n1"]


@pytest.mark.parametrize(
    ("after", "nodes", "interrupted", "reason", "blamed"),
    [
        (replace(JOB, state="COMPLETED", ended=NOW), {}, False, "COMPLETED", ""),
        (replace(JOB, state="NODE_FAIL", ended=NOW), {"n2": Node("n2", "DOWN*", is_responding=False)}, True,
         "NODE_FAIL", "nodes/n2"),
        (replace(JOB, state="PENDING", nodes=frozenset(), restarts=1), {}, False, "requeued", ""),
        (replace(JOB, state="PENDING", nodes=frozenset(), restarts=1), {"n2": Node("n2", "DOWN", down="DOWN")}, True,
         "requeued; lost: n2", "nodes/n2"),
        (None, {}, False, "unknown", ""),
    ],
)  # fmt: skip
def test_how_a_job_ended(
    after: ScheduledJob | None,
    nodes: dict[str, Node],
    interrupted: bool,
    reason: str,
    blamed: str,
    ledger: ExecutorLedger,
) -> None:
    """A requeue by a person is not a health interruption: it would raise the hazard of healthy nodes."""
    reported = reports.Reported()
    reports.collect_outcomes(
        reported, reports.ReportedCluster("c", SchedulerState({}, {"7": JOB}, {}), NOW, str), ledger
    )
    assert not reported.outcomes
    jobs = {"7": after} if after else {}
    reports.collect_outcomes(
        reported, reports.ReportedCluster("c", SchedulerState(nodes, jobs, {}), NOW, str), ledger
    )
    (outcome,) = reported.outcomes
    assert (outcome.interrupted, outcome.end_reason, outcome.blamed_node) == (
        interrupted,
        reason,
        blamed,
    )
    assert (
        outcome.outcome_id == "c-7-0-0" and outcome.end_time.seconds >= outcome.start_time.seconds
    )


def test_waiting_outcomes_are_bounded(ledger: ExecutorLedger) -> None:
    reported = reports.Reported()
    count = reports.OUTCOMES_WAITING_MAX + 7
    jobs = {str(index): replace(JOB, name=str(index)) for index in range(count)}
    reports.collect_outcomes(
        reported, reports.ReportedCluster("c", SchedulerState({}, jobs, {}), NOW, str), ledger
    )
    reports.collect_outcomes(
        reported, reports.ReportedCluster("c", SchedulerState(), NOW, str), ledger
    )
    assert (len(reported.outcomes), reported.dropped_count) == (reports.OUTCOMES_WAITING_MAX, 7)
