"""Judging's checkpoint is stored with each score, bounded, restored, and refused if invalid."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.dataclass_json import to_plain
from gangline.aggregator.fleet.fleet import Fleet, RestoredParts
from gangline.aggregator.model import HealthState
from gangline.aggregator.rule_catalogue import RULES
from gangline.aggregator.rule_catalogue.faults import THRESHOLDS
from gangline.aggregator.scoring import checkpoint
from gangline.aggregator.scoring.checkpoint import (
    PERIOD_NS,
    SYMPTOMS_PER_HOST_MAX,
    MemoryLog,
    decode,
    encode,
    restore,
)
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.scoring.hysteresis import TrackedSymptom
from gangline.aggregator.store.rows import HostMemory
from gangline.aggregator.store.store import Store
from gangline.contract.wire import score_pb2
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from tests.aggregator.process import Process
from tests.aggregator.scoring.test_restart import back, last_scores, restarted
from tests.worlds import SECOND_NS, World, gpu_of, throttle

NOBODY = RestoredParts(b"", frozenset())

GOOD = encode({}, NOBODY, 1)
GONE = {"worst": {"rule": "gone"}, "latest": None}


def sick_world() -> World:
    """Return a world: h0 with an XID and a throttled GPU, h1 with a flapping port, h2 healthy."""
    world = World(hosts=3)
    throttle(world.hosts[0], 2)
    world.run(20)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    world.hosts[1].set("rdma_1s_changes", "mlx5_0/1", link_downed_events=9)
    world.run(5)
    return world


def judged(world: World) -> Judgement:
    assert world.snapshot is not None
    return world.snapshot


def test_what_is_remembered_is_read_back_as_it_was() -> None:
    """A symptom restored with other times would end too early, or never."""
    world = sick_world()
    snapshot = judged(world)
    assert sorted(snapshot.tracked_symptoms) == [0, 1]
    [gpu, xid] = sorted(snapshot.tracked_symptoms[0].items())
    before = dict([gpu, xid])
    parts = RestoredParts(b"B" * 16, frozenset({(gpu_of(world.hosts[0], 2), "gpu.sm_clock_hertz")}))
    body = encode(before, parts, world.now_ns)
    assert decode(body, 0, world.now_ns + 60 * SECOND_NS) == (before, parts)
    moved, _ = decode(body, 7, world.now_ns)
    assert {(symptom.worst.host, symptom.latest.host) for symptom in moved.values()} == {(7, 7)}
    # The aggregator's clock was set back: no symptom may have been seen in the future.
    earlier, _ = decode(body, 0, world.now_ns - 3600 * SECOND_NS)
    assert all(
        symptom.last_seen_ns <= world.now_ns - 3600 * SECOND_NS for symptom in earlier.values()
    )


def test_a_row_of_the_version_before_is_read_back() -> None:
    """Format 1 stored each rule in full; an upgrade would have fallen back to the last scores."""
    world = sick_world()
    before = judged(world).tracked_symptoms[0]
    content = json.loads(encode(before, NOBODY, world.now_ns))
    for entry in content["symptoms"]:
        for symptom in filter(None, (entry["worst"], entry["latest"])):
            if isinstance(symptom["rule"], str):
                symptom["rule"] = to_plain(RULES[symptom["rule"]])
    old = json.dumps(content | {"format": 1})
    assert decode(old, 0, world.now_ns) == (before, NOBODY)
    assert len(old) > 1.2 * len(encode(before, NOBODY, world.now_ns))


def test_a_rule_that_is_as_declared_is_the_declared_one() -> None:
    """Rules compare by identity: a copy of a link's rule explained the very fault that it named."""
    world = sick_world()
    decoded, _ = decode(encode(judged(world).tracked_symptoms[0], NOBODY, 1), 0, 1)
    rules = [tracked.worst.rule for tracked in decoded.values()]
    assert any(rule is RULES.get(rule.name) for rule in rules)


def test_the_time_without_us_makes_no_symptom_count() -> None:
    """A symptom 1 s old counted at the first frame after an hour without the aggregator."""
    world = sick_world()
    [tracked, *_] = judged(world).tracked_symptoms[0].values()
    entering = {tracked.worst.key: replace(tracked, active=False)}
    [after] = decode(encode(entering, NOBODY, world.now_ns), 0, world.now_ns + 3600 * SECOND_NS)[
        0
    ].values()
    assert after.since_ns == tracked.since_ns + 3600 * SECOND_NS and not after.active


def test_a_counter_is_remembered_no_longer_by_two_restarts_than_by_one() -> None:
    """In a crash loop each start would have added five minutes."""
    world = sick_world()
    before = judged(world).tracked_symptoms[1]
    once, _ = decode(encode(before, NOBODY, world.now_ns), 1, world.now_ns)
    twice, _ = decode(encode(once, NOBODY, world.now_ns), 1, world.now_ns)
    assert once == twice != before


def due_hosts(rows: list[HostMemory]) -> dict[str, bool]:
    return {row.host: row.body is not None for row in rows}


def test_a_host_is_written_with_its_score_and_each_minute_and_is_removed_when_well() -> None:
    """Writing each second would fill the disk; a row that stays would return as a fault."""
    world = sick_world()
    snapshot, fleet = judged(world), world.fleet
    written = MemoryLog(Judgement(0, 0, 0.0, ()))
    assert due_hosts(written.take_due(snapshot, fleet, [2])) == {"h0": True, "h1": True}
    later = replace(snapshot, computed_ns=snapshot.computed_ns + PERIOD_NS - 1)
    assert written.take_due(later, fleet, [2]) == []
    assert due_hosts(written.take_due(later, fleet, [1])) == {"h1": True}, "with its score"
    minute = replace(snapshot, computed_ns=snapshot.computed_ns + PERIOD_NS)
    assert due_hosts(written.take_due(minute, fleet, [])) == {"h0": True}
    well = replace(minute, tracked_symptoms={0: snapshot.tracked_symptoms[0]})
    assert due_hosts(written.take_due(well, fleet, [1, 2])) == {"h1": False}
    assert written.take_due(well, fleet, [1, 2]) == []


def test_after_a_restart_hosts_are_written_over_the_whole_minute() -> None:
    """All hosts restored together were then written in the same second of each minute."""
    world = sick_world()
    restored = restore(Fleet(epoch=8), last_scores(world), world.now_ns)
    written = MemoryLog(restored)
    assert [
        PERIOD_NS + written_ns - restored.computed_ns for written_ns in written._written_ns.values()
    ] == [PERIOD_NS - host * SECOND_NS for host in range(3)]


def test_of_a_host_with_too_many_symptoms_the_gravest_are_remembered() -> None:
    """A counter on each of many interfaces, and one GPU that fell off the bus: the GPU is kept."""
    world = sick_world()
    xid = max(judged(world).tracked_symptoms[0].values(), key=lambda one: one.worst.severity)
    [flap] = judged(world).tracked_symptoms[1].values()

    def numbered(number: int) -> tuple[tuple[str, str], TrackedSymptom]:
        symptom = replace(flap.worst, device=f"veth{number}")
        return symptom.key, replace(flap, worst=symptom, latest=symptom)

    many = dict(map(numbered, range(2 * SYMPTOMS_PER_HOST_MAX))) | {xid.worst.key: xid}
    body = encode(many, NOBODY, 1)
    decoded, _ = decode(body, 0, 1)
    assert len(decoded) == SYMPTOMS_PER_HOST_MAX and xid.worst.key in decoded
    assert len(body) < 2_000 * SYMPTOMS_PER_HOST_MAX


@pytest.mark.parametrize(
    ("body", "outdated", "message"),
    [
        (GOOD[:30], False, "JSONDecodeError: Unterminated"),
        ("[]", False, "TypeError"),
        ("{}", False, "KeyError: 'format'"),
        (json.dumps(json.loads(GOOD) | {"format": 99}), False, "format 99, expected 2"),
        (json.dumps(json.loads(GOOD) | {"symptoms": [{"worst": 1}]}), False, "KeyError: 'latest'"),
        (json.dumps(json.loads(GOOD) | {"symptoms": [GONE]}), False, "KeyError: 'gone'"),
        (json.dumps(json.loads(GOOD) | {"boot_id": "xyz"}), False, "ValueError: non-hex"),
        (GOOD, True, "older than its last score"),
    ],
)
def test_a_memory_that_cannot_be_believed_is_not_and_the_log_says_so(
    body: str, outdated: bool, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After a torn, newer or outdated checkpoint the last score applies."""
    world = sick_world()
    last = [score._replace(memory=body, is_outdated=outdated) for score in last_scores(world)]
    findings = world.fleet.findings
    world.now_ns += 30 * SECOND_NS
    world.fleet = Fleet(epoch=8)
    with caplog.at_level(logging.WARNING, checkpoint.__name__):
        before = restore(world.fleet, last, world.now_ns)
    [line] = caplog.messages
    assert "checkpoint of 3 hosts is not used" in line and "h0: " in line and message in line
    world.fleet.findings.update(findings)
    world.snapshot = evaluate(world.fleet, world.now_ns, before)
    back(world)
    for _ in range(3):
        world.run(10)
        assert world.score(world.hosts[0]).state is HealthState.UNHEALTHY
    assert set(findings) <= set(world.fleet.findings)


@pytest.mark.slow
def test_what_needs_minutes_to_count_goes_on_counting_over_a_restart() -> None:
    """A GPU that joins no fabric counts after 2 min: with restarts each 90 s it never did."""
    world = World(hosts=2)
    host = world.hosts[0]
    host.set("gpu_fabric_1s_changes", gpu_of(host, 0), registration_state=1)
    world.run(int(0.7 * THRESHOLDS["gpu_fabric.unregistered"].rule.enter_seconds))
    assert world.score(host).state is HealthState.HEALTHY
    restarted(world)
    back(world)
    world.run(10)  # the state is read again within a minute; until then nothing counts
    assert world.score(host).state is HealthState.HEALTHY
    world.run(int(THRESHOLDS["gpu_fabric.unregistered"].rule.enter_seconds))
    assert world.score(host).state is HealthState.UNHEALTHY


@pytest.mark.slow
def test_after_kill_9_the_memory_is_that_of_the_last_score(
    lab: Any, connect: Any, make_agent: Any, until: Any
) -> None:
    """The memory and the score are written in the same commit."""
    agent = make_agent()

    async def life() -> None:
        process = Process(lab.folder, "--set", "commit_seconds=0.03", "--set", "judge_seconds=0.1")
        connection = connect(process.port, agent)
        await connection.register()
        await connection.send(agent.message(1))
        now_ns = time.time_ns()
        xid = wire.HealthEvent(
            event_id="e", device_kind="gpu", device="GPU-0", name="gpu.xid", code=79,
            wall_time_ns=now_ns, boottime_ns=now_ns - agent.booted_ns,
        )  # fmt: skip
        request = wire.ReportEventsRequest(events=[xid])
        await connection.stub.ReportEvents(request, metadata=connection.metadata)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{process.port}") as channel:
            scores: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
            score_request = score_pb2.GetNodeScoreRequest(name=f"nodes/{agent.host}")
            while (await scores.GetNodeScore(score_request)).state != HealthState.UNHEALTHY:
                await asyncio.sleep(0)
        await connection.send(agent.message(2))  # earlier messages are stored with this one
        process.end(signal.SIGKILL)
        await connection.close()

    async def next_life() -> tuple[Judgement, int]:
        async with lab.aggregator(judge_seconds=60.0) as aggregator:
            restored: Judgement = aggregator.judge_loop.restored
        return restored, aggregator.snapshot_holder.snapshot.computed_ns // 1000

    asyncio.run(life())
    restored, ended_us = asyncio.run(next_life())
    [symptom] = (s for s in restored.tracked_symptoms[0].values() if s.worst.signal == "gpu.xid")
    assert symptom.active and restored.settling[0].score.state is HealthState.UNHEALTHY
    stored = "SELECT epoch_us(time) FROM judge_memory"
    assert lab.rows(stored) == [(ended_us,)], "at a clean end it is that of the last judgement"


@pytest.mark.slow
def test_the_store_says_which_memory_is_older_than_its_score(tmp_path: Path) -> None:
    """A version without checkpoints ran in between, so the stored checkpoint is outdated."""
    world = sick_world()
    snapshot = judged(world)
    rows = MemoryLog(Judgement(0, 0, 0.0, ())).take_due(snapshot, world.fleet, ())

    def stored(at: Judgement, memories: Sequence[HostMemory]) -> dict[str, tuple[bool, bool]]:
        config = AggregatorConfig(data=tmp_path, ops_seconds=0)
        store = Store.open(tmp_path, config, lambda: world.now_ns)
        store.submit_scores(at, at.hosts[:], memories)
        assert store.close(60.0) == ""
        store = Store.open(tmp_path, config, lambda: world.now_ns)
        store.close(60.0)
        return {o.score.host: (o.memory is not None, o.is_outdated) for o in store.last_scores}

    first = {"h0": (True, False), "h1": (True, False), "h2": (False, False)}
    assert stored(snapshot, rows) == first
    later = replace(snapshot, version=9, computed_ns=snapshot.computed_ns + SECOND_NS)
    gone = [HostMemory("h1", later.computed_ns, None)]
    assert stored(later, gone) == first | {"h0": (True, True), "h1": (False, False)}
