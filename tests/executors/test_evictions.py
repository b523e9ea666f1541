"""Jobs that leave a node: each job, again after a refusal, and before the answer DONE. No scheduler, no aggregator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.executors import core, evictions, ledger_updates
from gangline.executors.ledger import DRAIN, HOLD, SET, Entry, JobProgress, UnsavedLedger
from gangline.executors.model import (
    Advice,
    Answer,
    Capabilities,
    Drain,
    EndStep,
    Node,
    NodeHold,
    RemoveHold,
    RenewLease,
    Requeue,
    ScheduledJob,
    SchedulerState,
    Situation,
    StartNow,
    Step,
)

NOW = 10_000.0
HELD = "gangline_a1_evict"
ADVICE = Advice(
    "a1", "a1-1", "EVICT_NOW", "ACCEPTED", "n1", reason="XID 79", owner="me", token=5, expires=NOW + 600,
    lease_until=NOW + 600, workload="7",
)  # fmt: skip
ENTRY = Entry(
    "a1", "n1", "EVICT_NOW", "me", 5, NOW - 60, NOW + 600, HOLD, HELD, SET, NOW - 60, NOW + 600,
)  # fmt: skip
JOB = ScheduledJob("7", "RUNNING", frozenset(["n1", "n2"]), may_requeue=True, started=NOW - 100)
ELSEWHERE = replace(JOB, nodes=frozenset(["n2", "n3"]), restarts=1, started=NOW - 1)

WAITING = replace(
    JOB, state="PENDING", nodes=frozenset(), restarts=1, waits_for_begin_time=True, begins=NOW + 120
)  # fmt: skip


class World:
    """A node under EVICT_NOW that a test changes, and the executor's decisions about it."""

    def __init__(self, *, has_drain: bool = True) -> None:
        self.ledger = UnsavedLedger()
        self.ledger.add(replace(ENTRY, jobs={}))
        self.jobs: dict[str, ScheduledJob] = {"7": JOB}
        self.holds = {HELD: NodeHold(HELD, frozenset(["n1"]), NOW + 600)}
        self.node, self.advice, self.now = Node("n1", "IDLE"), ADVICE, NOW
        self._capabilities = Capabilities(has_drain=has_drain, restart_next_second=True)

    @property
    def entry(self) -> Entry:
        (entry,) = self.ledger
        return entry

    def situation(self) -> Situation:
        state = SchedulerState({"n1": self.node}, self.jobs, self.holds)
        return Situation({"a1": self.advice}, state, self.now, True, self._capabilities)

    def decide(self) -> list[Step]:
        ledger_updates.reconcile(self.ledger, self.situation())
        return core.decide(self.situation(), self.ledger)

    def carry_out(self, step: Step, error: str = "") -> None:
        ledger_updates.record_intent(step, self.ledger, self.situation())
        ledger_updates.record_result(step, error, self.ledger, self.now)

    def requeue(self, error: str = "") -> None:
        (step,) = (step for step in self.decide() if isinstance(step, Requeue))
        self.carry_out(step, error)


def test_all_jobs_of_the_node_leave_before_it_is_done() -> None:
    """Only one of two jobs on the node was moved, and a job that was not reported stayed."""
    world = World()
    world.jobs["8"] = replace(JOB, name="8", nodes=frozenset(["n1"]))
    assert [step.job for step in world.decide() if isinstance(step, Requeue)] == ["7", "8"]
    for step in world.decide():
        world.carry_out(step)
    world.jobs["7"] = ELSEWHERE
    assert not any(isinstance(step, Answer) for step in world.decide())
    world.jobs["8"] = replace(ELSEWHERE, name="8")
    (answer,) = world.decide()
    assert answer.why == f"{HELD} is in force; job 7 was requeued and runs again; job 8 was requeued and runs again"  # fmt: skip


def test_a_job_that_comes_to_the_node_later_leaves_too() -> None:
    """The advisory was DONE, and a gang started on the broken node while the hold was missing for a moment."""
    world = World()
    world.advice = replace(ADVICE, state="DONE")
    world.jobs.clear()
    assert world.decide() == []
    world.jobs["9"] = replace(JOB, name="9", nodes=frozenset(["n1"]))
    assert [type(step) for step in world.decide()] == [Requeue]
    world.entry.phase = "given back"  # a person removed the hold, so jobs there stay
    assert world.decide() == []


def test_a_refused_job_is_tried_again_and_reported_until_it_left() -> None:
    """It stayed on the dead GPU for good, under an advisory that was DONE."""
    world = World()
    world.requeue("a budget forbids it")
    (report,) = world.decide()
    assert isinstance(report, RenewLease) and report.note == "job 7 was left: a budget forbids it"
    world.carry_out(report)
    assert world.decide() == []
    attempts = 0
    for _ in range(600):
        world.now += 1
        for step in world.decide():
            attempts += isinstance(step, Requeue)
            world.carry_out(step, "a budget forbids it" if isinstance(step, Requeue) else "")
    assert 600 / evictions.RETRY_SECONDS_MAX <= attempts <= 20
    world.now += evictions.RETRY_SECONDS_MAX
    world.requeue()
    world.jobs["7"] = replace(ELSEWHERE, started=world.now)
    assert [step.state for step in world.decide() if isinstance(step, Answer)] == ["DONE"]


def test_a_job_that_its_owner_keeps_is_left_and_said() -> None:
    """Its owner forbids a requeue: the executor asks once, not each minute."""
    world = World()
    world.jobs["7"] = replace(JOB, may_requeue=False)
    world.requeue("disabled")
    (answer,) = world.decide()
    assert isinstance(answer, Answer) and "job 7 was left: disabled" in answer.why
    world.entry.answered, world.advice = "DONE", replace(ADVICE, state="DONE")
    world.now += 600 - 60
    assert world.decide() == []
    world.jobs["7"] = JOB  # the owner changed that
    assert [type(step) for step in world.decide()] == [Requeue]


@pytest.mark.parametrize("has_drain", [True, False])
def test_a_job_that_starts_on_the_node_again_is_not_done(has_drain: bool) -> None:
    """A job in a reservation with `overlap` restarted on the broken node: "was requeued and runs again"."""
    world = World(has_drain=has_drain)
    world.requeue()
    world.now += 3
    world.jobs["7"] = replace(JOB, restarts=1, started=world.now)
    steps = world.decide()
    if has_drain:  # the hold becomes a drain before the job leaves again
        assert [type(step) for step in steps] == [Drain]
        world.carry_out(steps[0])
        world.node = Node("n1", "IDLE+DRAIN", "gangline:v1;adv=a1", out="DRAIN", is_managed=True)
        assert world.entry.mark == DRAIN
        steps = world.decide()
        assert [type(step) for step in steps] == [Requeue, RemoveHold]
        world.holds.clear()
    assert isinstance(steps[0], Requeue)
    world.carry_out(steps[0])
    world.jobs["7"] = replace(ELSEWHERE, restarts=2, started=world.now)
    assert [type(step) for step in world.decide()] == [Answer]


def test_a_job_that_nothing_keeps_off_is_not_evicted_for_ever() -> None:
    """Its pods tolerate every taint: the whole gang would be evicted each minute and never run."""
    world = World(has_drain=False)
    requeues = 0
    for index in range(1200):
        world.now += 1
        for step in world.decide():
            if isinstance(step, Requeue):
                requeues += 1
                world.jobs["7"] = replace(JOB, restarts=requeues, started=world.now)
            world.carry_out(step)
        assert not any(isinstance(step, Answer) for step in world.decide()), index
        world.advice = replace(world.advice, lease_until=world.now + 600, expires=world.now + 600)
    assert requeues == evictions.RETURNS_MAX
    assert world.entry.reported == "job 7 was left: it started on n1 again"


def test_a_requeued_job_that_is_about_to_start_does_not_wait_for_nodes() -> None:
    """The answer was "waits for nodes" although the job started in the same second."""
    world = World()
    world.requeue()
    world.jobs["7"] = replace(JOB, state="PENDING", nodes=frozenset(), restarts=1)
    assert world.decide() == []
    world.now += evictions.STARTS_SECONDS_MAX + 0.1
    (answer,) = world.decide()
    assert "job 7 was requeued and waits for nodes" in answer.why
    world.jobs["7"] = replace(ELSEWHERE, started=world.now)
    (answer,) = world.decide()
    assert "job 7 was requeued and runs again" in answer.why


def test_a_job_that_continues_with_spares_is_not_ended_twice() -> None:
    """Its allocation still has the node: only its steps left it."""
    world = World()
    world.jobs["7"] = replace(JOB, restarts_itself=True, restarts=2)
    (step,) = world.decide()
    assert isinstance(step, EndStep)
    world.carry_out(step)
    (answer,) = world.decide()
    assert isinstance(answer, Answer) and "continues with its spare nodes" in answer.why


@pytest.mark.parametrize(
    ("job", "starts"),
    [
        (WAITING, True),  # the advice names it
        (replace(WAITING, name="8", previous_nodes=frozenset(["n1"])), True),
        (replace(WAITING, name="8", previous_nodes=frozenset(["n2"])), False),
        (replace(WAITING, begins=NOW + 7200), False),  # its owner set that
        (replace(WAITING, waits_for_begin_time=False), False),
    ],
)
def test_the_delay_of_a_job_that_was_requeued_before_is_lifted(
    job: ScheduledJob, starts: bool
) -> None:
    """The ledger was lost after the requeue, or slurmd had died: the job waited for two minutes."""
    world = World()
    world.jobs = {job.name: job}
    steps = [step for step in world.decide() if isinstance(step, StartNow)]
    assert [(step.job, step.begin) for step in steps] == ([(job.name, NOW + 1)] if starts else [])
    for step in steps:
        world.carry_out(step)
        world.jobs[job.name] = replace(job, begins=NOW + 1)
        assert not any(isinstance(step, Answer) for step in world.decide())
        world.jobs[job.name] = replace(ELSEWHERE, name=job.name)
        (answer,) = world.decide()
        assert f"job {job.name} was requeued and runs again" in answer.why


@pytest.mark.parametrize(
    ("node", "job", "starts"),
    [
        (Node("n1", "DOWN*", down="DOWN: Not responding", is_responding=False), {}, True),
        (Node("n1", "IDLE"), {}, False),
        (Node("n1", "DOWN*", down="DOWN"), {"begins": NOW + 1}, False),
        (Node("n1", "DOWN*", down="DOWN"), {"previous_nodes": frozenset(["n2"])}, False),
    ],
)
def test_a_job_that_lost_its_node_starts_without_the_delay(
    node: Node, job: dict[str, object], starts: bool
) -> None:
    """slurmd died, and Slurm requeued the job: there was no advisory, and the job waited for two minutes."""
    world = World()
    world.node, world.advice = node, replace(ADVICE, action="AVOID", state="DONE")
    lost = {"previous_nodes": frozenset(["n1", "n2"]), **job}
    world.jobs = {"7": replace(WAITING, **lost)}  # type: ignore[arg-type]
    starting = [step for step in world.decide() if isinstance(step, StartNow)]
    assert [(step.job, step.begin) for step in starting] == ([("7", NOW + 1)] if starts else [])


def test_a_requeue_without_effect_is_repeated() -> None:
    """Another replica noted the requeue and was killed: the gang on the node has a count of restarts that begins at 0 again."""
    world = World()
    world.entry.jobs["7"] = JobProgress("start", 3, requeued=NOW)
    assert not any(isinstance(step, Requeue | Answer) for step in world.decide())
    world.now += evictions.STUCK_SECONDS + 1
    assert [type(step) for step in world.decide()] == [Requeue]
