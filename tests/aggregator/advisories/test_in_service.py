"""Advice end to end: processes from agents, gangs from a scheduler, in a real aggregator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from gangline.aggregator.advisories.advisory_limits import HOUR_NS, SECOND_NS
from gangline.aggregator.advisories.workloads import Gang
from gangline.aggregator.judge_loop import ClockJumpDetector
from gangline.contract.wire import advisory_pb2 as wire
from gangline.contract.wire import telemetry_pb2
from gangline.contract.wire.advisory_pb2_grpc import AdvisoryServiceStub
from tests.processes import GUARD_SECONDS


class Clock:
    """The machine's clock plus `ahead_ns`."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return time.time_ns() + self.ahead_ns


def event(agent: Any, name: str, number: int, **more: Any) -> telemetry_pb2.HealthEvent:
    """Return a current event of the first GPU."""
    boottime_ns = time.time_ns() - agent.booted_ns
    return telemetry_pb2.HealthEvent(
        event_id=f"{agent.boot_id.hex()}/{name}/{number}", device="GPU-0", device_kind="gpu", name=name,
        boot_id=agent.boot_id, boottime_ns=boottime_ns, last_boottime_ns=boottime_ns,
        wall_time_ns=time.time_ns(), **more,
    )  # fmt: skip


async def _report(connection: Any, *events: telemetry_pb2.HealthEvent) -> None:
    request = telemetry_pb2.ReportEventsRequest(events=events)
    await connection.stub.ReportEvents(request, metadata=connection.metadata)


@pytest.mark.slow
def test_from_a_process_and_an_xid_to_a_drain_at_a_checkpoint(
    lab: Any, make_agent: Any, until: Callable[..., Any]
) -> None:
    """In service no advice knew of any job, although all parts existed."""
    agent, clock = make_agent(), Clock()

    async def listed(port: int, job: str, state: int = wire.PROPOSED) -> Any:
        """Return the list once the advisory has *job* and *state*."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
            while True:
                response = await stub.ListAdvisories(wire.ListAdvisoriesRequest())
                if [(advisory.workload, advisory.state) for advisory in response.advisories] == [
                    (job, state)
                ]:
                    return response
                await asyncio.sleep(0.02)

    async def work() -> tuple[Any, Any]:
        async with asyncio.timeout(GUARD_SECONDS):
            async with lab.aggregator(clock) as aggregator, lab.agent(aggregator, agent) as line:
                await line.send(agent.message(1))
                owner = {"source": "slurm", "job_id": "123", "state": "running"}
                await _report(line, event(agent, "gpu.process", 1, attributes=owner))
                await _report(line, event(agent, "gpu.xid", 2, code=95))
                await until(lambda: aggregator.advisory_engine.machine.state.cases)
                clock.ahead_ns = 4 * 10**9  # past the time of gathering
                before = await listed(aggregator.port, "123")
                async with grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}") as channel:
                    stub: Any = AdvisoryServiceStub(channel)  # type: ignore[no-untyped-call]
                    gang = wire.Gang(workload="llm-7", nodes=["nodes/host-1"], gpus_count=512)
                    gang.checkpoint_interval.FromSeconds(1800)
                    await stub.ReportGangs(wire.ReportGangsRequest(actor="slurm", gangs=[gang]))
                    await listed(aggregator.port, "llm-7")
                    out = wire.UnavailableNode(node="nodes/host-1", reason="it is ours to drain")
                    request = wire.ReportUnavailableNodesRequest(actor="slurm", nodes=[out])
                    assert (await stub.ReportUnavailableNodes(request)).nodes_count == 1
                after = await listed(aggregator.port, "llm-7", wire.DEFERRED)  # by the next turn
            # no agent or scheduler has reported to this one yet
            async with lab.aggregator(clock) as aggregator:
                await until(lambda: aggregator.snapshot_holder.snapshot)
                again = await listed(aggregator.port, "llm-7", wire.DEFERRED)
            assert again.advisories[0].etag == after.advisories[0].etag
            assert again.unavailable_nodes == after.unavailable_nodes
        return before, after

    before, after = asyncio.run(work())
    (advisory,) = before.advisories
    assert (advisory.action, advisory.HasField("checkpoint_interval")) == (wire.EVICT_NOW, False)
    assert "= 2 GPUs x 8 h" in advisory.arithmetic
    (advisory,) = after.advisories
    assert (advisory.action, advisory.checkpoint_interval.seconds) == (
        wire.DRAIN_AT_CHECKPOINT,
        1800,
    )
    assert "= 512 GPUs x 8 h" in advisory.arithmetic
    assert [node.reason for node in after.unavailable_nodes] == ["it is ours to drain"]
    assert lab.rows("SELECT host, who FROM unavailable") == [("host-1", "slurm")]
    assert lab.rows("SELECT workload, gpus FROM gangs") == [("llm-7", 512)]


@pytest.mark.slow
@pytest.mark.parametrize("stood", [False, True])
async def test_a_clock_of_ours_that_is_set_forward_ends_no_advice(lab: Any, stood: bool) -> None:
    """After a jump every lease, hold and gang was over, as it is after a suspension."""
    clock = Clock()

    def boottime_ns() -> int:
        return time.monotonic_ns() + (clock.ahead_ns if stood else 0)

    async with lab.aggregator(clock, judge_seconds=60.0) as aggregator:
        aggregator.judge_loop.jump_detector = ClockJumpDetector(
            clock, time.monotonic_ns, boottime_ns
        )
        await aggregator.judge_loop.turn()
        until_ns = clock() + 60 * SECOND_NS
        gang = Gang("llm-7", ("host-1",), 8, 0.0, until_ns, "slurm", clock())
        aggregator.advisory_engine.update_gangs([gang], [])
        clock.ahead_ns = HOUR_NS
        await aggregator.judge_loop.turn()
        assert (aggregator.advisory_engine.gangs.on("host-1") is None) is stood
