"""When a part of judging fails, the others continue, and the failure is reported while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gangline.aggregator import judge_loop
from gangline.aggregator.fleet.fault_isolation import FAILURE_REPORT_SECONDS, FaultIsolation
from gangline.aggregator.model import AGGREGATOR_HOST, HealthState
from gangline.aggregator.scoring import evaluate, rules
from gangline.aggregator.scoring.rules import events
from gangline.aggregator.scoring.symptom import Symptom
from gangline.contract.wire import score_pb2
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from tests.worlds import SECOND_NS, World, gpu_of, in_job, pass_steps

PARTS = [
    ("identities of devices", lambda fleet: fleet.identity, "advance"),
    ("counters of gpu_1s", lambda fleet: fleet.tables["gpu_1s"], "advance"),
    ("what GPUs do", lambda fleet: fleet.activity, "advance"),
    ("words of collectors", lambda fleet: fleet.collector_statuses, "advance"),
    ("windows of gangs", lambda fleet: fleet.gangs, "sample"),
    ("resets of GPUs", lambda fleet: fleet.resets, "advance"),
    ("what hosts have", lambda fleet: fleet.ever_up, "advance"),
    ("ends of events", lambda fleet: fleet.active_events, "expire"),
    ("ends of jobs", lambda fleet: fleet.jobs, "sweep"),
    ("gangs", lambda fleet: fleet.gangs, "advance"),
]


def broken(*_: object) -> None:
    raise ZeroDivisionError("by zero")


@pytest.mark.slow
@pytest.mark.parametrize(("part", "owner", "method"), PARTS)
def test_a_part_of_the_fleet_that_fails_stops_no_judging(
    part: str, owner: Any, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """One GPU's odd reading made an array of the wrong shape: judging stopped silently."""
    world = World(gpus=2, seconds=10)
    with monkeypatch.context() as patch:
        patch.setattr(owner(world.fleet), method, broken)
        world.event(world.hosts[0], 79, gpu_of(world.hosts[0], 0))
        snapshot = world.run(12)
    assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY
    message = f"{part} failed: ZeroDivisionError: by zero"
    assert message in (snapshot.degraded_reason, snapshot.failed)
    assert len([record for record in caplog.records if f"{part} failed" in record.message]) == 1
    snapshot = world.run(round(FAILURE_REPORT_SECONDS) + 1)
    assert (snapshot.degraded_reason, snapshot.failed) == ("", "")


def test_what_a_rule_found_stands_while_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in one rule made every host with a fatal XID HEALTHY, and cleared its finding."""
    world = World(gpus=2, seconds=10)
    world.event(world.hosts[0], 79, gpu_of(world.hosts[0], 0))
    world.run(2)
    findings = dict(world.fleet.findings)

    def standing_xids(present: object) -> Iterator[Symptom]:
        if fails:
            raise ZeroDivisionError("by zero")
        return events.active_xids(present)  # type: ignore[arg-type]

    fails = False
    position = rules.DETECTORS.index(events.active_xids)
    monkeypatch.setattr(
        rules,
        "DETECTORS",
        (*rules.DETECTORS[:position], standing_xids, *rules.DETECTORS[position + 1 :]),
    )
    world.run(1)
    fails = True
    snapshot = world.run(90)
    assert world.states() == {"h0": "UNHEALTHY", "h1": "HEALTHY", "h2": "HEALTHY", "h3": "HEALTHY"}
    assert world.fleet.findings == findings and "rule standing_xids failed" in snapshot.failed
    world.hosts[0].reboot(world.now_ns)
    fails = False
    world.run(3)
    assert world.states()["h0"] == "HEALTHY" and not world.fleet.findings


def test_gangs_that_fail_leave_nobody_blamed_by_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The windows do not advance then: a verdict from them would never end."""
    world = in_job()
    assert world.fleet.gangs.comparison is not None
    monkeypatch.setattr(world.fleet.gangs, "advance", broken)
    pass_steps(world, 1)
    assert world.fleet.gangs.comparison is None


def test_who_waits_for_whom_that_fails_stops_no_judging(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Waits are only an explanation: a bug there left all hosts with scores hours old."""
    world = World(gpus=2, seconds=10)
    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "find_waits", broken)
        world.event(world.hosts[0], 79, gpu_of(world.hosts[0], 0))
        snapshot = world.run(3)
    assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY
    message = "finding waiting hosts failed: ZeroDivisionError: by zero"
    assert (snapshot.degraded_reason, snapshot.failed) == (message, message)
    assert (
        len(
            [
                record
                for record in caplog.records
                if "finding waiting hosts failed" in record.message
            ]
        )
        == 1
    )
    snapshot = world.run(1)
    assert (snapshot.degraded_reason, snapshot.failed) == ("", "")


def test_a_failure_is_told_for_a_minute_after_the_last_by_any_clock() -> None:
    """Gangs are checked every 10 s: between two failures advice would flap.

    The clock may be set back.
    """
    guard, minute = FaultIsolation(), round(FAILURE_REPORT_SECONDS * SECOND_NS)
    assert guard.run("a", lambda: None) and guard.failing(0) == ""
    assert not guard.run("a", broken)
    message = "a failed: ZeroDivisionError: by zero"
    assert [guard.failing(now_ns) for now_ns in (10, minute + 9, minute + 10)] == [
        message,
        message,
        "",
    ]
    guard.run("a", broken)
    guard.run("b", broken)
    assert guard.failing(minute) == f"{message}; b{message[1:]}"
    assert guard.failing(0) == "", "told until a minute from then, were the clock right"


@pytest.mark.slow
async def test_what_was_shown_is_on_record_though_the_end_comes_just_then(
    lab: Any, until: Any
) -> None:
    """A scheduler received UNHEALTHY, but a restart came before the state was stored."""
    async with lab.aggregator(judge_seconds=60.0) as aggregator, lab.agent(aggregator):
        before = aggregator.snapshot_holder.snapshot
        turn = asyncio.create_task(aggregator.judge_loop.turn())
        while aggregator.snapshot_holder.snapshot is before:
            await asyncio.sleep(0)
        turn.cancel()
        await asyncio.wait([turn])
        assert turn.cancelled()
        version = int(aggregator.snapshot_holder.snapshot.version)
    assert lab.rows("SELECT max(version) FROM scores") == [(version,)]


@pytest.mark.slow
async def test_judging_that_fails_as_a_whole_is_told_of(
    lab: Any, until: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Scores stayed HEALTHY for a night: responses must say that they are old, and why."""
    async with lab.aggregator(judge_seconds=0.05) as aggregator, lab.agent(aggregator) as agent:
        stub: Any = ScoreServiceStub(agent.channel)  # type: ignore[no-untyped-call]
        holder, findings = aggregator.snapshot_holder, aggregator.fleet.findings
        await until(lambda: holder.snapshot and len(holder.snapshot.names) == 1)
        version = holder.snapshot.version
        with monkeypatch.context() as patch:
            patch.setattr(judge_loop, "evaluate", broken)
            await until(lambda: holder.snapshot.degraded_reason)
            memory, before = aggregator.advisory_engine.machine.state, holder.snapshot
            assert memory.frozen.startswith("judging failed"), "nothing is granted meanwhile"
            assert before.version > version and before.names == ("host-1",)
            answer = await stub.ListNodeScores(score_pb2.ListNodeScoresRequest())
            assert answer.degraded and answer.node_scores
            assert answer.degraded_reason.startswith(
                "judging failed: ZeroDivisionError: by zero; scores are of "
            )
            key = AGGREGATOR_HOST, judge_loop.JUDGING_FINDING, ""
            assert findings[key].message == "judging failed: ZeroDivisionError: by zero"
        await until(lambda: not holder.snapshot.degraded_reason and not memory.frozen)
        assert key not in findings and holder.snapshot.version > before.version
    assert len([record for record in caplog.records if "judging failed" in record.message]) == 1
    assert lab.rows(
        "SELECT message, cleared IS NULL FROM findings WHERE name = 'judging.failed'"
    ) == [("judging failed: ZeroDivisionError: by zero", False)]


def test_however_long_a_judgement_takes_half_of_the_time_is_others() -> None:
    """A hall of hosts came back: judgements took 1.6 s each, and receipts were a minute late."""
    assert judge_loop.rest_seconds(0.1, 1.0) == pytest.approx(0.9), "each second, while that goes"
    assert judge_loop.rest_seconds(1.6, 1.0) == 1.6
    assert judge_loop.rest_seconds(1800.0, 1.0) == 5.0, (
        "stopped for half an hour, in the midst of one"
    )
