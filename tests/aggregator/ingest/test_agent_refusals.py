"""Refused agents are visible at the aggregator, whoever they are and however many."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest

from gangline.aggregator.errors import InvalidArgument, NoSession, PermissionDenied
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest import agent_refusals
from gangline.aggregator.ingest.agent_refusals import FINDING, AgentRefusals
from gangline.aggregator.ingest.findings import EXPIRES_SECONDS, ActiveFindings
from gangline.aggregator.model import AGGREGATOR_HOST
from gangline.contract.wire import telemetry_pb2 as wire

SECOND_NS = 1_000_000_000
METHOD = "TelemetryService/RegisterNode"


class Refusals:
    """Refusals with a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 10**18
        self.fleet = Fleet()
        self.findings = ActiveFindings(self.fleet)
        self.refusals = AgentRefusals(self.findings, lambda: self.now_ns)

    def refuse(self, node: str, error: Any, method: str = METHOD) -> None:
        self.refusals.refuse(method, node, "10.0.0.7", error)

    @property
    def found(self) -> dict[str, str]:
        return {
            subject: finding.message
            for (host, name, subject), finding in self.fleet.findings.items()
            if (host, name) == (AGGREGATOR_HOST, FINDING)
        }


async def test_a_refused_registration_is_logged_and_found(
    lab: Any, make_agent: Any, connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A whole fleet was refused after an upgrade: no log line, no finding, no alarm named a host or the reason."""
    async with lab.aggregator() as aggregator:
        agent = connect(aggregator.port, make_agent(host="gpu007"))
        wrong = wire.SignalDefinition(signal_id=1, name="gpu.wrong_watts", kind="gauge")
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError, match="different builds"):
                await agent.register(signals=[wrong])
        [line] = [r.getMessage() for r in caplog.records if "is refused" in r.getMessage()]
        assert (
            "the agent of gpu007 (127.0.0.1) is refused: signals: id 1 is gpu.wrong_watts" in line
        )
        findings = aggregator.fleet.findings
        assert "id 1 is" in findings[AGGREGATOR_HOST, FINDING, "gpu007"].message
        values = aggregator._self_monitor._pull()
        assert values["refused_agents"] == 1
        await agent.register()
        assert (AGGREGATOR_HOST, FINDING, "gpu007") not in findings
        await agent.close()


def test_each_reason_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log has a line per host and reason; the finding has the latest reason and ends after the last refusal."""
    world = Refusals()
    for count in range(3):
        world.refuse("gpu1", InvalidArgument("devices", f"{count} of them"))
        world.refuse("gpu1", NoSession("call RegisterNode first"))  # brief: a restart
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    world.refuse("gpu1", PermissionDenied("writes as its own host\nonly"))
    assert len(caplog.records) == 2
    assert world.found == {
        "gpu1": f"{METHOD} of its agent (10.0.0.7) is refused: writes as its own host?only"
    }
    world.now_ns += (EXPIRES_SECONDS + 1) * SECOND_NS
    world.refuse("gpu1", PermissionDenied("writes as its own host only"))
    world.findings.sweep(world.now_ns)
    assert world.found and world.refusals.count(world.now_ns) == 1
    world.now_ns += (EXPIRES_SECONDS + 1) * SECOND_NS
    world.findings.sweep(world.now_ns)
    assert not world.found and world.refusals.count(world.now_ns) == 0


def test_refusals_take_bounded_memory(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile caller with a new name or reason each time fills neither log, findings nor memory."""
    monkeypatch.setattr(agent_refusals, "AGENTS_MAX", 500)
    world = Refusals()
    for number in range(1000):
        world.refuse(f"host{number}", InvalidArgument("node", "x" * 10_000))
        world.refuse("n" * 10_000, InvalidArgument(f"field{number}", "no name"))
    assert len(caplog.records) == agent_refusals.REPORTS_BURST
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)
    assert len(world.found) <= agent_refusals.FINDINGS_MAX
    assert world.refusals.count(world.now_ns) <= 500
