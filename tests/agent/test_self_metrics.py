"""The agent's own metrics."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, cast

import pytest

from gangline.agent.collector import CollectOutcome, CollectResult
from gangline.agent.log import RateLimitFilter
from gangline.agent.self_metrics import ConnectionLog, SelfMetrics
from gangline.contract.signals import TABLES


def test_a_signal_of_the_agent_without_a_value_is_found_at_the_start() -> None:
    """A signal was added to the catalogue and empty on every host for a release."""
    counts = {signal.name: 1.0 for signal in TABLES["agent_10s"]}
    SelfMetrics([], lambda: counts)
    del counts["agent.cpu_seconds"]
    with pytest.raises(ValueError, match=r"no value, or no such signal: agent\.cpu_seconds"):
        SelfMetrics([], lambda: counts)


def test_a_value_that_is_not_to_be_had_is_missing_and_not_what_it_was() -> None:
    """/proc was hidden from the agent after its start; its memory must not keep the last value."""
    memory: list[float | None] = [4.0, 5.0, None]
    counts = {signal.name: 1.0 for signal in TABLES["agent_10s"]}
    own = SelfMetrics([], lambda: counts | {"agent.memory_bytes": memory.pop(0)})
    column = [signal.name for signal in TABLES["agent_10s"]].index("agent.memory_bytes")
    assert [list(own.blocks()[1].values(0))[column][1] for _ in range(2)] == [5.0, None]


def test_what_a_host_s_verdict_rests_on_is_told_at_once_and_the_rest_at_its_time() -> None:
    """The fleet learned ten seconds later than before that a collector hung."""
    lost = [0]
    counts = {signal.name: 1.0 for signal in TABLES["agent_10s"]}
    own = SelfMetrics(["gpu_1s"], lambda: counts, lambda: lost[0])
    assert told(own, CollectResult("gpu_1s", (), 0.5, CollectOutcome.OK), 0) == (0.5, 0, 0)
    assert told(own, CollectResult("gpu_1s", (), 0.6, CollectOutcome.OK), 7) is None
    assert told(own, CollectResult("gpu_1s", (), 0.9, CollectOutcome.HUNG, "NVML"), 7) == (
        0.9,
        4,
        7,
    )
    assert told(own, CollectResult("gpu_1s", (), 0.9, CollectOutcome.HUNG, "NVML"), 8) is None
    lost[0] = 3
    assert own.has_changes
    assert [value for _, value in own.blocks()[0].values(0)] == [0.9, 4, 8]
    assert not own.has_changes


def test_the_list_of_results_is_another_one_only_when_a_turn_ends_otherwise() -> None:
    """Forty sources were grouped by their reasons each second, although none had changed for days."""
    own = SelfMetrics(["gpu_1s"], lambda: {signal.name: 1.0 for signal in TABLES["agent_10s"]})
    own.record(CollectResult("gpu_1s", (), 0.5, CollectOutcome.OK), 0)
    before = own.last_results()
    own.record(CollectResult("gpu_1s", (), 0.6, CollectOutcome.OK), 1)
    assert own.last_results() is before
    for outcome, message in [(CollectOutcome.BLIND, "closed"), (CollectOutcome.BLIND, "shut")]:
        own.record(CollectResult("gpu_1s", (), 0.6, outcome, message), 1)
        assert [(result.outcome, result.message) for result in own.last_results()] == [
            (outcome, message)
        ]


def told(own: SelfMetrics, turn: CollectResult, skipped: int) -> tuple[object, ...] | None:
    """Return the values of a turn that are reported at once."""
    own.record(turn, skipped)
    return tuple(value for _, value in own.blocks()[0].values(0)) if own.has_changes else None


@dataclass
class Connection:
    connected: bool = False
    last_error: str = ""


def test_the_log_tells_what_changed_and_only_that(caplog: pytest.LogCaptureFixture) -> None:
    """An operator reads in the agent's log since when it is disconnected, and why."""
    connection, lost = Connection(), [0, 0]
    reasons = {"frames refused": lambda: "too old", "frames dropped": lambda: "it was full"}
    troubles = ConnectionLog(cast(Any, connection), reasons, lambda: (lost[0], lost[1]))
    with caplog.at_level(logging.INFO, "gangline"):
        troubles.update()
        connection.last_error = "Connection refused"
        troubles.update()
        troubles.update()
        connection.connected = True
        lost[1] = 12
        troubles.update()
        troubles.update()
    assert [record.getMessage() for record in caplog.records] == [
        "not connected: Connection refused",
        "connected",
        "12 frames dropped so far; it was full",
    ]


@pytest.mark.parametrize("flaps", range(1, 6))
def test_the_last_line_says_how_it_stands(caplog: pytest.LogCaptureFixture, flaps: int) -> None:
    """The log said "not connected" for hours; it must neither guess nor fill a disk."""
    now, connection = [0.0], Connection(True)
    once = RateLimitFilter(lambda: now[0])
    caplog.handler.addFilter(once)
    troubles = ConnectionLog(cast(Any, connection), {}, tuple, lambda: now[0])

    def second() -> None:
        now[0] += 1.0
        troubles.update()

    with caplog.at_level(logging.INFO, "gangline"):
        second()
        for flap in range(flaps):
            connection.connected, connection.last_error = False, f"Connection refused ({flap})"
            second()
            connection.connected = True
            second()
        assert caplog.messages[-1] == "connected"
        assert len(caplog.messages) == 3
        connection.connected, connection.last_error = False, "No route to host"
        for _ in range(60):
            second()
        assert caplog.messages[-1] == "not connected: No route to host"
        connection.connected = True
        second()
    caplog.handler.removeFilter(once)  # the handler outlives the test
    assert caplog.messages[-1] == "connected"
    assert len(caplog.messages) == 5
