"""Early judging: a fatal event is judged at once, despite other events, and an event storm costs a tenth of the time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.judge_loop import (
    EARLY_BURST_SECONDS,
    EARLY_DELAY_SECONDS,
    EARLY_SHARE_MAX,
    EarlyTurns,
    rest_seconds,
)
from gangline.contract.wire import telemetry_pb2
from tests.processes import GUARD_SECONDS

NOW_NS = 1_700_000_000 * 10**9
BOOT = bytes(16)


def test_an_early_turn_begins_a_moment_after_its_event() -> None:
    """Eight hosts of a rack write within a hundredth of a second, and were judged one by one."""
    assert EarlyTurns().begins_at(10.0, 9.9, 0.01) == pytest.approx(10.0 + EARLY_DELAY_SECONDS)


def test_half_of_the_time_is_left_to_others_before_an_early_turn_too() -> None:
    """Judging takes 0.4 s when all hosts are silent: their frames must still be received."""
    assert EarlyTurns().begins_at(10.0, 9.9, 0.4) == pytest.approx(10.3)
    assert EarlyTurns().begins_at(10.0, 9.9, 1800.0) == pytest.approx(14.9), "we were stopped"


@pytest.mark.parametrize("turn_seconds", [0.004, 0.16, 0.9])
def test_a_storm_of_fatal_events_costs_a_tenth_of_the_loop(turn_seconds: float) -> None:
    """After a failed driver update ten thousand hosts each wrote a fatal code, and the loop only judged."""
    turns, now, until, period = EarlyTurns(), 0.0, 120.0, 1.0
    early_seconds = all_seconds = 0.0
    count = 0
    while now < until:  # an event waits at any time
        due = now + rest_seconds(turn_seconds, period)
        begins = turns.begins_at(now, now, turn_seconds)
        now = min(begins, due) + turn_seconds
        all_seconds += turn_seconds
        if begins < due:
            turns.spend(turn_seconds, now)
            early_seconds += turn_seconds
            count += 1
    assert early_seconds <= EARLY_SHARE_MAX * until + EARLY_BURST_SECONDS + turn_seconds
    assert all_seconds <= until / 2 + turn_seconds
    assert count >= 2 or turn_seconds > 0.5, (
        "the first ones are judged at once, where there is room"
    )


def test_after_a_storm_there_is_room_again() -> None:
    turns = EarlyTurns()
    turns.spend(3.0, 10.0)
    assert turns.begins_at(10.0, 10.0, 0.01) == pytest.approx(30.0)
    turns.spend(0.1, 1000.0)
    assert turns.begins_at(1000.0, 1000.0, 0.01) == pytest.approx(1000.0 + EARLY_DELAY_SECONDS)


def xid(number: int, code: int, **more: Any) -> telemetry_pb2.HealthEvent:
    fields: dict[str, Any] = {
        "event_id": f"e{number}", "name": "gpu.xid", "device": "GPU-0", "device_kind": "gpu", "code": code,
        "boottime_ns": 10**9, "last_boottime_ns": 10**9, "wall_time_ns": NOW_NS,
        "message": f"NVRM: Xid (PCI:0000:9b:00): {code}",
    }  # fmt: skip
    return telemetry_pb2.HealthEvent(**(fields | more))


def test_only_a_new_fatal_fault_asks_for_a_turn() -> None:
    """An application that crashes repeats XID 31 all day, and a broken GPU its XID 79: only the first of each is new."""
    fleet = Fleet()
    fleet.register("a", simulated=False, boot_id=BOOT, devices=[])
    requested = [
        fleet.observe_event("a", event, NOW_NS)
        for event in (
            xid(1, 31),
            xid(2, 79),
            xid(2, 79, revision=1, count=9),
            xid(3, 79),
            xid(4, 95),
            xid(5, 0, name="gpu.lost"),
            xid(6, 0, name="host.hung_task", device="host", device_kind="host"),
        )
    ]
    assert requested == [False, True, False, False, True, True, False]
    assert fleet.observe_event("nobody", xid(7, 79), NOW_NS) is False


@pytest.mark.slow
def test_advice_for_a_fatal_event_does_not_wait_for_the_period(
    lab: Any, make_agent: Any, until: Any
) -> None:
    """The period is a minute here, and the advice is there before it: by the event alone."""
    agent = make_agent()

    async def work() -> int:
        async with asyncio.timeout(GUARD_SECONDS):
            async with (
                lab.aggregator(judge_seconds=60.0) as aggregator,
                lab.agent(aggregator, agent) as line,
            ):
                await line.send(agent.message(1))
                await aggregator.judge_loop.turn()
                boottime_ns = time.time_ns() - agent.booted_ns
                event = xid(
                    1, 79, boot_id=agent.boot_id, boottime_ns=boottime_ns,
                    last_boottime_ns=boottime_ns, wall_time_ns=time.time_ns(),
                )  # fmt: skip
                request = telemetry_pb2.ReportEventsRequest(events=[event])
                await line.stub.ReportEvents(request, metadata=line.metadata)
                await until(lambda: aggregator.advisory_engine.feed.open)
                (advisory,) = aggregator.advisory_engine.feed.open
                assert (advisory.action.name, advisory.state.name) == ("EVICT_NOW", "PROPOSED")
                return int(aggregator.judge_loop.early_turns)

    assert asyncio.run(work()) >= 1
