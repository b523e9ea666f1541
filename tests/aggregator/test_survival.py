"""The aggregator as a real process that is killed: acknowledged data is stored exactly once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.aggregator.store.duckdb_file import migrations
from tests.aggregator.process import Process
from tests.processes import GUARD_SECONDS, until

#: The operators' file as by default.
WITH_FILE = ("--set", "ops_seconds=15")

_IN_DUCKDB = """
import sys, duckdb
from gangline.aggregator.store.snapshot_file import OpsFile
from gangline.cli import main
def write(*_):
    open(sys.argv[3] + "/writing", "w").close()
    duckdb.sql("SELECT sum(hash(a.range + b.range)) FROM range(1000000) AS a, range(1000000) AS b").fetchall()
OpsFile.write = write
sys.exit(main(sys.argv[1:]))
"""


async def _send_until_dead(agent: Any, first: int, enough: int, process: Process) -> None:
    """Send without pause; kill -9 once *enough* receipts came; return when the stream breaks."""

    async def send() -> None:
        sequence = first
        while True:
            await agent.stream.write(agent.agent.message(sequence))
            sequence += 1

    agent.open()
    sender = asyncio.create_task(send())
    with pytest.raises(grpc.aio.AioRpcError):
        while True:
            await agent.acknowledgement()
            if len(agent.durable) >= enough:
                process.child.send_signal(signal.SIGKILL)
    await asyncio.wait([sender])
    assert sender.exception() is not None
    with process.child:
        process.child.wait(GUARD_SECONDS)


@pytest.mark.slow
def test_kill_9_under_load(lab: Any, connect: Any, make_agent: Any) -> None:
    """Killed while frames pour in, three times over; the agent sends everything unreceipted again."""
    agents = make_agent(host="a"), make_agent(host="b", run_id=b"s" * 16)

    async def way() -> dict[str, set[int]]:
        durable: dict[str, set[int]] = {agent.host: set() for agent in agents}
        for life in range(3):
            process = Process(
                lab.folder, "--set", "commit_seconds=0.05", "--set", "ops_seconds=0.5"
            )
            connections = [connect(process.port, agent) for agent in agents]
            for entry in connections:
                entry.durable = durable[entry.agent.host]
                await entry.register()
            first = 1 + max(len(connections[0].durable) - 20, 0)  # overlaps what is durable
            await _send_until_dead(connections[0], first, 200 * (life + 1), process)
            for entry in connections:
                await entry.close()
        process = Process(lab.folder)
        for agent in agents:
            connection = connect(process.port, agent)
            await connection.register()
            await connection.send(*(agent.message(n) for n in range(1, 1000)))
            durable[agent.host] |= connection.durable
            await connection.close()
        assert process.end(signal.SIGTERM) == 0
        return durable

    durable = asyncio.run(way())
    stored = lab.rows(
        "SELECT host, CAST(power_watts AS INTEGER), count(*) FROM readings.gpu_1s GROUP BY ALL"
    )
    assert {count for _, _, count in stored} == {2}  # a row per GPU, none lost, none doubled
    for host, sequences in durable.items():
        assert sequences <= {sequence for name, sequence, _ in stored if name == host}


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_it_ends_when_told_to(lab: Any, number: int) -> None:
    """systemd stops it, a person presses Ctrl-C: exit 0, and a store that opens without a WAL."""
    process = Process(lab.folder, *WITH_FILE)
    until(
        lambda: (lab.folder / "operators.duckdb").exists(),
        "the operators' file, which is begun at the start",
    )
    assert process.end(number) == 0
    newest = migrations()[-1][0]
    assert lab.rows("SELECT schema_version FROM gangline_store") == [(newest,)]
    assert not (lab.folder / "gangline.duckdb.wal").exists()
    assert lab.rows("FROM ops.hosts", "operators.duckdb") == []


@pytest.mark.slow
def test_two_aggregators_on_one_folder(lab: Any) -> None:
    """Started twice by mistake: the second says whose folder it is, and the first goes on."""
    first = Process(lab.folder)
    try:
        second = _fails(lab.folder, "--listen", "127.0.0.1:0")
        assert f"process {first.child.pid}" in second and "--data" in second
    finally:
        assert first.end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_a_port_in_use(lab: Any, tmp_path: Path) -> None:
    """Another process listens on the port: the error names it and the remedy, without a traceback."""
    first = Process(lab.folder)
    try:
        message = _fails(tmp_path / "other", "--listen", f"127.0.0.1:{first.port}")
        assert not (tmp_path / "other").exists()
        assert f"ss -tanp 'sport = :{first.port}'" in message and "--listen" in message
    finally:
        assert first.end(signal.SIGTERM) == 0


def _fails(folder: Path, *more: str, code: int = 1) -> str:
    command = [sys.executable, "-m", "gangline.cli", "aggregator", "--data", str(folder), *more]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=GUARD_SECONDS, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
def test_the_lock_dies_with_its_process(lab: Any) -> None:
    """After kill -9 the folder's lock is free: the kernel gave it back with the process."""
    process = Process(lab.folder)
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    assert Process(lab.folder).end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_a_stop_while_the_operators_file_is_written(tmp_path: Path) -> None:
    """Stopped soon after a start it aborted, one time in three: Python's end unwound a thread that was in DuckDB."""
    process = Process(tmp_path, *WITH_FILE, program=("-c", _IN_DUCKDB))
    until((tmp_path / "writing").exists, "the operators' file is being written")
    assert process.end(signal.SIGTERM) == 0
