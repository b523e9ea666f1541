"""A restart with ten thousand hosts: the view of a scheduler at once, after a minute, and later."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.model import (
    AGGREGATOR_HOST,
    Evidence,
    Finding,
    HealthState,
    HostScore,
    Reason,
    Snapshot,
)
from gangline.aggregator.scoring.checkpoint import restore
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.scoring.missing_readings import SETTLING_SECONDS
from gangline.aggregator.store.restored_state import LastScore
from gangline.aggregator.store.rows import HostRecord
from gangline.aggregator.store.store import Store
from tests.worlds import SECOND_NS, World, gpu_of

HOSTS = 10_000
#: Every tenth host was ill.
ILL = 10


def score_of(index: int, heard_ns: int) -> HostScore:
    """The last judgement of a host."""
    ill = index % ILL == 0
    because = Evidence(
        "gpu.xid", f"GPU-{index}", 79.0, "", "none", 8.0, 1.0, -0.9, Reason.XID_FATAL,
        "GPU fell off the bus", heard_ns, "SELECT 1",
    )  # fmt: skip
    return HostScore(
        f"host-{index:05d}", index, False, 0.05 if ill else 0.999, 0.01 if ill else 0.99, 1.0,
        HealthState.UNHEALTHY if ill else HealthState.HEALTHY, 0.4 if ill else 1e-4, 0.99,
        Reason.XID_FATAL if ill else Reason.NONE, "GPU fell off the bus" if ill else "",
        "the GPU is reset" if ill else "", heard_ns, (because,) if ill else (),
    )  # fmt: skip


def fill(folder: Any, now_ns: int) -> None:
    """Create the store that a killed aggregator of ten thousand hosts leaves."""
    store = Store.open(folder, AggregatorConfig(data=folder), lambda: now_ns)
    hosts = [score_of(index, now_ns - SECOND_NS) for index in range(HOSTS)]
    for score in hosts:
        record = HostRecord(
            score.host, score.node_index, False, score.host.encode().ljust(16), b"b" * 16, "0.1",
            "10.0.0.1:4", {}, now_ns, (("gpu", f"GPU-{score.node_index}", {}),),
        )  # fmt: skip
        store.submit_host(record, {})
    store.submit_scores(Snapshot(7, now_ns, 28_800.0, tuple(hosts)), hosts)
    store.submit_findings(
        [
            Finding("host-00010", "gpu.xid", "GPU-10 gpu.xid 79", "off the bus", now_ns - 900 * SECOND_NS),
            Finding("gone-long-ago", "gpu.xid", "GPU-0 gpu.xid 79", "off the bus", now_ns),
        ]
    )  # fmt: skip
    assert store.close(60.0) == ""


@pytest.mark.slow
async def test_ten_thousand_hosts_stand_as_before_at_once(
    lab: Any, make_agent: Any, until: Any
) -> None:
    """A deployment of the aggregator made a cluster UNKNOWN, and a scheduler placed no jobs."""
    begin_ns = time.time_ns()
    fill(lab.folder, begin_ns)
    async with lab.aggregator(judge_seconds=1.0) as aggregator:
        first = aggregator.snapshot_holder.snapshot  # served from the start
        states = Counter(host.state for host in first.hosts)
        assert states == {
            HealthState.HEALTHY: HOSTS * 9 // 10,
            HealthState.UNHEALTHY: HOSTS // 10,
        }
        assert f"{HOSTS} of {HOSTS} hosts are shown as they were before" in first.degraded_reason
        assert first.hosts[10].evidence[0].message == "GPU fell off the bus"
        assert aggregator.admission_control.reconnect_seconds == HOSTS // 200
        async with lab.agent(aggregator, make_agent(host="host-00001", run_id=b"host-00001".ljust(16))) as connection:  # fmt: skip
            await connection.send(connection.agent.message(1))
            await until(lambda: aggregator.snapshot_holder.snapshot.version > first.version)
            states = Counter(host.state for host in aggregator.snapshot_holder.snapshot.hosts)
            assert HealthState.UNKNOWN not in states and HealthState.STALE not in states
    # A busy machine adds findings about its own pauses and late frames.
    findings = lab.rows(
        "SELECT host, epoch_us(since), cleared IS NULL FROM findings WHERE name = 'gpu.xid' ORDER BY host"
    )
    assert findings == [
        ("gone-long-ago", begin_ns // 1000, False),
        ("host-00010", (begin_ns - 900 * SECOND_NS) // 1000, True),
    ]


def back(scores: list[HostScore], now_ns: int, away: int) -> tuple[Fleet, Judgement]:
    """Restart *away* seconds after the last frames of the hosts."""
    fleet = Fleet(epoch=2)
    before = restore(fleet, [LastScore(score, 0) for score in scores], now_ns + away * SECOND_NS)
    return fleet, evaluate(fleet, now_ns + away * SECOND_NS, before)


def run_on(fleet: Fleet, last: Judgement, silent: int, seconds: list[int]) -> dict[int, Judgement]:
    """Report all hosts but the first *silent* each time; judge at *seconds* after the start."""
    start_ns, judgements = last.computed_ns, {}
    for second in seconds:
        now_ns = start_ns + second * SECOND_NS
        for host in range(silent, len(fleet)):
            fleet._first_received_ns[host] = fleet._first_received_ns[host] or start_ns + SECOND_NS
            fleet._last_received_ns[host] = now_ns
        last = judgements[second] = evaluate(fleet, now_ns, last)
    return judgements


@pytest.mark.parametrize(
    ("away", "lost", "after_a_minute", "after_a_quarter"),
    [
        (
            30,
            4,
            HealthState.STALE,
            HealthState.STALE,
        ),  # four hosts of a hundred did not come back: they are ill
        (
            30,
            6,
            HealthState.HEALTHY,
            HealthState.STALE,
        ),  # six: more likely the aggregator's fault, for a quarter of an hour
        (7200, 6, HealthState.HEALTHY, HealthState.STALE),  # however long the aggregator was away
        (7200, 4, HealthState.STALE, HealthState.STALE),
    ],
)
def test_hosts_that_do_not_come_back(
    away: int, lost: int, after_a_minute: HealthState, after_a_quarter: HealthState
) -> None:
    """A switch of the aggregator's rack stayed dark: its hosts must not be excluded."""
    scores = [score_of(2 * index + 1, 10**18) for index in range(100)]
    fleet, first = back([replace(s, node_index=i) for i, s in enumerate(scores)], 10**18, away)
    assert {host.state for host in first.hosts} == {HealthState.HEALTHY}
    later = SETTLING_SECONDS + 5
    judgements = run_on(fleet, first, lost, [1, 30, later, 600, 1000])
    assert {host.state for host in judgements[30].hosts} == {HealthState.HEALTHY}
    assert f"{lost} of them have not reported again yet" in judgements[30].degraded_reason
    assert {host.state for host in judgements[later].hosts[:lost]} == {after_a_minute}
    assert ("frozen" in judgements[later].degraded_reason) == (
        after_a_minute is HealthState.HEALTHY
    )
    assert {host.state for host in judgements[1000].hosts[:lost]} == {after_a_quarter}
    assert {host.state for host in judgements[1000].hosts[lost:]} == {HealthState.HEALTHY}


def test_what_was_stale_before_is_stale_still() -> None:
    """Hosts that were dead before the restart do not hide behind the aggregator's outage."""
    scores = [replace(score_of(2 * i + 1, 10**18), node_index=i) for i in range(100)]
    stale = {"state": HealthState.STALE, "last_received_ns": 10**18 - 3600 * SECOND_NS}
    scores[:6] = [replace(score, **stale) for score in scores[:6]]  # type: ignore[arg-type]
    fleet, first = back(scores, 10**18, 30)
    assert {host.state for host in first.hosts[:6]} == {HealthState.STALE}
    judgements = run_on(fleet, first, 6, [SETTLING_SECONDS + 5])
    assert {host.state for host in judgements[SETTLING_SECONDS + 5].hosts[:6]} == {
        HealthState.STALE
    }


@pytest.mark.slow
def test_a_finding_keeps_its_first_moment_and_ends_when_it_does_not_show(
    lab: Any, make_agent: Any, until: Any
) -> None:
    """A finding of last week must not begin when the aggregator was updated."""
    agent = make_agent()
    now_ns = time.time_ns()
    fill_one = Store.open(lab.folder, AggregatorConfig(data=lab.folder))
    score = replace(score_of(10, now_ns), host="host-1", node_index=0)
    fill_one.submit_scores(Snapshot(7, now_ns, 28_800.0, (score,)), [score])
    week_ns = now_ns - 7 * 86_400 * SECOND_NS
    fill_one.submit_findings(
        [
            Finding("host-1", "gpu.xid", "GPU-0 gpu.xid 79", "off the bus", week_ns),
            Finding("host-1", "clock.offset", "", "its clock is an hour ahead", week_ns),
            Finding(AGGREGATOR_HOST, "store.failing", "", "nothing is stored", week_ns),
        ]
    )
    fill_one.close(20.0)

    async def restart() -> set[tuple[str, str]]:
        async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
            await connection.send(agent.message(1))
            findings = aggregator.fleet.findings
            # the clock is right, the disk stores everything
            await until(lambda: len(findings) == 1)
            [kept] = findings.values()
            assert (kept.name, kept.since_ns) == ("gpu.xid", week_ns // 1000 * 1000)
            return {(finding.host, finding.name) for finding in findings.values()}

    assert asyncio.run(restart()) == {("host-1", "gpu.xid")}
    assert lab.rows("SELECT name, cleared IS NULL FROM findings ORDER BY name") == [
        ("clock.offset", False), ("gpu.xid", True), ("store.failing", False),
    ]  # fmt: skip


def test_a_finding_of_before_is_given_a_minute() -> None:
    """Signals sent on change return within a minute: no finding is cleared before."""
    world = World(seconds=20)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    world.run(2)
    assert world.snapshot
    [finding] = world.fleet.findings.values()
    last = [LastScore(score, 8) for score in world.snapshot.hosts]
    world.now_ns += 30 * SECOND_NS
    world.fleet = Fleet(epoch=8)
    key = finding.host, finding.name, finding.subject
    before = restore(world.fleet, last, world.now_ns)
    world.fleet.add_finding(finding)
    world.snapshot = evaluate(world.fleet, world.now_ns, before)
    for host in world.hosts:
        world.register(host)
    world.run(SETTLING_SECONDS - 2)
    assert list(world.fleet.findings) == [key]
    world.run(5)  # the event was not reported again
    assert not world.fleet.findings
