"""A full disk: judging continues, the failure is shown, and nothing is lost or duplicated."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gangline.contract.wire import score_pb2
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from tests.processes import GUARD_SECONDS, with_store

_SERVING = health_pb2.HealthCheckResponse.SERVING
LIMIT = resource.RLIMIT_FSIZE
#: File size limits of a full and a free disk: writes past the first fail.
FULL, FREE = (1, resource.RLIM_INFINITY), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


class Process:
    """`gangline aggregator` on a free port, and its stderr."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.said = ""  # known at the end; a pipe, because a file would hit the limit as well
        self.child = subprocess.Popen(
            [*_command(with_store(folder)), "--set", "commit_seconds=0.05", *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert "listening on 127.0.0.1:" in line
        self.port = int(line.partition("127.0.0.1:")[2].partition(",")[0])

    def disk(self, state: tuple[int, int]) -> None:
        resource.prlimit(self.child.pid, LIMIT, state)

    def end(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        _, self.said = self.child.communicate(timeout=GUARD_SECONDS)
        return self.child.returncode


def _command(folder: Path) -> list[str]:
    command = [sys.executable, "-m", "gangline.cli", "aggregator", "--data", str(folder)]
    settings = ("--set", "judge_seconds=0.1", "--set", "ops_seconds=0")
    return [*command, "--listen", "127.0.0.1:0", *settings]


@pytest.fixture
def start(lab: Any) -> Iterator[Any]:
    """Start an aggregator; it ends with the test."""
    processes: list[Process] = []

    def begin(*more: str) -> Process:
        processes.append(Process(lab.folder, *more))
        return processes[-1]

    yield begin
    for process in processes:
        if process.child.poll() is None:
            process.child.kill()
            with process.child:
                process.child.wait(GUARD_SECONDS)


async def _reason(channel: Any, enough: Any) -> score_pb2.ListNodeScoresResponse:
    """Repeat the request until *enough* accepts the response."""
    stub: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
    async with asyncio.timeout(GUARD_SECONDS):
        while True:
            try:
                answer = await stub.ListNodeScores(score_pb2.ListNodeScoresRequest())
            except grpc.aio.AioRpcError:  # not judged yet
                continue
            if enough(answer):
                return answer  # type: ignore[no-any-return]


async def _is_serving(channel: Any) -> bool:
    """Return whether TelemetryService is SERVING by its health check, after the next judgement."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="gangline.v1.TelemetryService"))
    degraded = (await _reason(channel, lambda it: True)).degraded_reason
    wanted = health_pb2.HealthCheckResponse.NOT_SERVING if degraded else _SERVING
    async with asyncio.timeout(GUARD_SECONDS):
        while (status := (await watch.read()).status) != wanted:
            pass
    watch.cancel()
    return bool(status == _SERVING)


async def _until_durable(connection: Any, sequences: set[int]) -> None:
    async with asyncio.timeout(GUARD_SECONDS):
        while connection.durable != sequences:
            await connection.acknowledgement()


@pytest.mark.slow
def test_a_full_disk_is_said_and_events_are_judged(
    lab: Any, start: Any, connect: Any, make_agent: Any
) -> None:
    """QA filled the disk: no message appeared, an XID 95 was ignored, the host went silent."""
    process, agent = start("--set", "ops_seconds=15"), make_agent()
    now_ns = time.time_ns()
    xid = wire.HealthEvent(
        event_id="e1",
        device_kind="gpu",
        device="GPU-0",
        name="gpu.xid",
        code=95,
        wall_time_ns=now_ns,
        boottime_ns=now_ns - agent.booted_ns,
    )
    report = wire.ReportEventsRequest(events=[xid])

    async def report_events() -> None:
        connection = connect(process.port, agent)
        await connection.register()
        await connection.send(agent.message(1))
        process.disk(FULL)
        await connection.stream.write(agent.message(2))
        channel = connection.channel
        response = await _reason(channel, lambda response_now: response_now.degraded_reason)
        pattern = r"not storing since \d\d:\d\d:\d\d UTC: .+; 2 readings wait"
        assert re.search(pattern, response.degraded_reason)
        assert connection.durable == {1}
        assert not await _is_serving(channel)
        ack = await connection.acknowledgement()  # a keepalive, with more credit than was used
        assert not ack.durable and ack.credit_frames > 64
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await connection.stub.ReportEvents(report, metadata=connection.metadata)
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        sick = await _reason(
            channel,
            lambda response_now: (
                response_now.node_scores and response_now.node_scores[0].state == 5
            ),
        )
        assert "95" in sick.node_scores[0].reason_message
        process.disk(FREE)
        await _until_durable(connection, {1, 2})
        await _reason(channel, lambda response_now: not response_now.degraded_reason)
        assert await _is_serving(channel)
        for accepted in (1, 0):
            answer = await connection.stub.ReportEvents(report, metadata=connection.metadata)
            assert answer.accepted == accepted
        await connection.send(agent.message(3))
        await connection.close()

    asyncio.run(report_events())
    assert process.end() == 0
    stderr = process.said
    assert stderr.count("ERROR cannot store") == 1 and stderr.count("storing again") == 1
    assert lab.rows("SELECT event_id FROM events") == [("e1",)]
    assert lab.rows("SELECT count(*), count(DISTINCT power_watts) FROM readings.gpu_1s") == [(6, 3)]
    [(host, pattern, cleared)] = lab.rows(
        "SELECT host, message, cleared > since FROM findings WHERE name = 'store.failing'"
    )
    assert host == "(aggregator)" and "nothing is stored or acknowledged" in pattern and cleared


@pytest.mark.slow
def test_more_than_memory_holds_is_judged_and_sent_again(
    lab: Any, start: Any, connect: Any, make_agent: Any
) -> None:
    """A disk full until the queue is full as well: no host goes silent or loses a reading."""
    process, agent = start("--set", "queue_bytes_max=1048576"), make_agent()

    def big(sequence: int) -> wire.TelemetryBatch:
        return agent.message(sequence, blocks=[agent.block(sequence, gpus=400)])  # type: ignore[no-any-return]

    async def send_frames() -> None:
        connection = connect(process.port, agent)
        await connection.register()
        await connection.send(big(1))
        process.disk(FULL)
        await connection.stream.write(big(2))
        await _reason(connection.channel, lambda it: it.degraded_reason)
        for sequence in range(3, 40):
            await connection.stream.write(big(sequence))
        async with asyncio.timeout(GUARD_SECONDS):
            while (await connection.acknowledgement()).credit_frames < 64 + 38:
                pass
        process.disk(FREE)
        await _reason(connection.channel, lambda it: not it.degraded_reason)
        await connection.stream.write(big(40))
        # the frames that fit are acknowledged, then:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            while True:
                await connection.acknowledgement()
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "send them again" in str(error.value.details())
        missing = set(range(1, 41)) - connection.durable
        assert missing and 2 in connection.durable
        again = connect(process.port, agent)
        await again.register()
        await again.send(*map(big, sorted(missing)))
        await again.close()
        await connection.close()

    asyncio.run(send_frames())
    assert process.end() == 0
    counted = lab.rows("SELECT count(*), count(DISTINCT power_watts) FROM readings.gpu_1s")
    assert counted == [(16000, 40)]


@pytest.mark.slow
def test_an_end_that_could_not_store_is_a_failure(
    lab: Any, start: Any, connect: Any, make_agent: Any
) -> None:
    """systemd must not see success if the last readings could not be written."""
    process, agent = start(), make_agent()

    async def send_frames() -> None:
        connection = connect(process.port, agent)
        await connection.register()
        await connection.send(agent.message(1))
        process.disk(FULL)
        await connection.stream.write(agent.message(2))
        await _reason(connection.channel, lambda it: it.degraded_reason)
        await connection.close()

    asyncio.run(send_frames())
    assert process.end() == 1
    stderr = process.said
    assert "closed without storing 1 frames" in stderr and "send them again" in stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_a_start_on_a_full_disk(lab: Any, start: Any) -> None:
    """QA saw a raw DuckDB traceback instead of a line with the folder and the cause."""
    assert start().end() == 0
    done = subprocess.run(
        _command(lab.folder),
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=False,
        preexec_fn=lambda: resource.setrlimit(LIMIT, FULL),
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    [line] = [
        output_line
        for output_line in done.stderr.splitlines()
        if output_line.startswith("gangline")
    ]
    assert str(lab.folder) in line
    assert start().end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("theirs", ["no database", "another database"])
def test_a_folder_that_is_not_ours_gets_no_file(lab: Any, theirs: str) -> None:
    """The message said "left untouched", but a lock file remained."""
    lab.folder.mkdir()
    file = lab.folder / "gangline.duckdb"
    if theirs == "no database":
        file.write_bytes(b"payroll" * 100)
    else:
        with duckdb.connect(str(file)) as connection:
            connection.execute("CREATE TABLE payroll (name VARCHAR)")
    before = file.read_bytes()
    done = subprocess.run(
        _command(lab.folder), capture_output=True, text=True, timeout=GUARD_SECONDS, check=False
    )
    assert done.returncode == 1 and "unchanged" in done.stderr
    assert os.listdir(lab.folder) == ["gangline.duckdb"] and file.read_bytes() == before
