"""The complete agent as a process: sampling, spooling, sending, and its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline import cli
from gangline.agent.collector import CollectOutcome, run_collector
from gangline.agent.collectors import COLLECTORS
from gangline.agent.config import AgentConfig
from gangline.agent.main import check
from gangline.agent.prefork import FailedCollector, create_collectors
from gangline.agent.spool.spool import Spool
from gangline.contract import frame as frames
from gangline.contract.settings import SettingsError
from gangline.contract.signals import BY_NAME
from gangline.contract.wire import telemetry_pb2, telemetry_pb2_grpc
from tests.hosts.reading import StoppedClock
from tests.processes import GUARD_SECONDS, Process, until

SECRET = "hunter2-hunter2"  # no output may show it
#: Modules that the daemon must never load; it may load h2 and protobuf.
HEAVY = {
    "asyncio", "duckdb", "email", "grpc", "importlib.metadata", "multiprocessing", "numpy",
    "pandas", "psutil", "pyarrow", "pynvml", "pyroute2", "sklearn",
}  # fmt: skip

LIGHT = """
import json, sys
from contextlib import ExitStack
from pathlib import Path
from gangline.agent import commands, main
from gangline.agent.clock import SystemClock
from gangline.agent.config import AgentConfig
import gangline.agent.commands.agent
folder = Path(sys.argv[1])
config = AgentConfig(
    aggregator="127.0.0.1:9", spool_folder=folder / "spool", events_folder=folder / "events",
    state_folder=folder / "state",
)
with ExitStack() as stack:
    daemon = main.build(config, SystemClock(), stack)
    for _ in range(3):
        daemon.tick()
json.dump(sorted(sys.modules), sys.stdout)
"""
ONE_NURSERY = """
import sys
from contextlib import ExitStack
from pathlib import Path
from gangline.agent import prefork, main
from gangline.agent.clock import SystemClock
from gangline.agent.config import AgentConfig
folder = Path(sys.argv[1])
config = AgentConfig(
    aggregator="127.0.0.1:9", spool_folder=folder / "spool", events_folder=folder / "events",
    state_folder=folder / "state", run_folder=str(folder / "run"),
)
began = prefork.prefork(config, SystemClock())
pid = began.fork_server.pid
with ExitStack() as stack:
    main.build(config, SystemClock(), stack, preforked=began).tick()
    print(pid > 0, began.fork_server.pid == pid)
print(began.fork_server.pid)
"""
FORKED = """
import sys
from gangline.agent.commands import agent
from gangline.agent import prefork
from gangline.agent.config import AgentConfig
collectors = prefork.create_collectors(AgentConfig())
assert not [each for each in collectors if isinstance(each, prefork.FailedCollector)]
print(*sys.modules)
"""
#: Modules of the daemon alone.
NOT_BEFORE_THE_FORK = (
    "daemon",
    "framing",
    "local.server",
    "main",
    "policy",
    "spool.spool",
    "transport",
)


def agent(folder: Path, *arguments: str, module: str = "gangline.cli") -> Process:
    command = ["agent"] if module == "gangline.cli" else []
    command += ["--aggregator", "127.0.0.1:9", "--set", "host=here"]
    command += ["--set", f"spool_folder={folder / 'spool'}"]
    command += ["--set", f"events_folder={folder / 'events'}"]
    command += ["--set", f"state_folder={folder / 'state'}"]
    command += ["--set", "spool_head_folder="]  # samples are on the disk at once
    return Process([*command, *arguments], folder / "log", module)


def spooled(folder: Path) -> list[frames.Frame]:
    """Return the content of a spool that no process holds any more."""
    spool = Spool.open(folder / "spool", bytes_max=1 << 24, boot_id=b"x" * 16, owner=owner(folder))
    try:
        kept = spool.pending(0, 10_000)
    finally:
        spool.close()
    return [frames.decode(frame) for _, frame in kept]


def owner(folder: Path) -> str:
    return str(json.loads((folder / "spool/meta.json").read_text())["owner"])


def spool_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "spool").glob("*.seg"))


class Aggregator(telemetry_pb2_grpc.TelemetryServiceServicer):
    """Accepts everything, sends a receipt for each frame, and records its input."""

    def __init__(self) -> None:
        self.registered: list[telemetry_pb2.RegisterNodeRequest] = []
        self.frames: list[frames.Frame] = []
        self.events: list[telemetry_pb2.HealthEvent] = []

    def RegisterNode(self, request, context):  # type: ignore[no-untyped-def]
        self.registered.append(request)
        return telemetry_pb2.RegisterNodeResponse(session="s", credit_frames=16)

    def StreamTelemetry(self, request_iterator, context):  # type: ignore[no-untyped-def]
        for batch in request_iterator:
            self.frames.append(frames.decode(batch.frame))
            span = telemetry_pb2.SequenceRange(first=batch.sequence, last=batch.sequence)
            yield telemetry_pb2.IngestAck(durable=[span], credit_frames=16)

    def ReportEvents(self, request, context):  # type: ignore[no-untyped-def]
        self.events.extend(request.events)
        return telemetry_pb2.ReportEventsResponse(accepted=len(request.events))


@contextmanager
def serving() -> Iterator[tuple[Aggregator, str]]:
    """Yield an aggregator and its address: a free port chosen earlier may be in use by now."""
    aggregator = Aggregator()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    telemetry_pb2_grpc.add_TelemetryServiceServicer_to_server(aggregator, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield aggregator, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait(GUARD_SECONDS)


def test_an_agent_without_an_aggregator_samples_spools_and_ends_when_asked(tmp_path: Path) -> None:
    """Most agents start before their aggregator; and a rolling update waits for the end of each."""
    with agent(tmp_path) as process:
        until(lambda: spool_bytes(tmp_path) > 2000, "more than a frame in the spool")
        assert process.stop() == cli.OK
    output = process.said()
    assert "stopping on SIGTERM" in output
    assert "trace=" not in output
    kept = spooled(tmp_path)
    sequences = [frame.stamp.sequence for frame in kept]
    assert sequences == list(range(1, len(kept) + 1))
    tables = {block.table for frame in kept for block in frame.blocks}
    assert {"host_1s", "host_10s", "collector_10s", "agent_10s"} <= tables
    # A late sampler has a frame of its own; the regular frames have the daemon's own turns.
    ticks = [f for f in kept if any(block.table == "host_1s" for block in f.blocks)]
    seconds = [frame.stamp.boottime_ns // 10**9 for frame in ticks]
    # on the grid: late on a busy machine, but without bursts
    assert seconds == sorted(set(seconds))


def test_a_killed_agent_goes_on_where_it_was(tmp_path: Path) -> None:
    """The kernel killed the agent because of a job's memory: its samples are still sent, once."""
    with agent(tmp_path) as process:
        until(lambda: spool_bytes(tmp_path) > 2000, "more than a frame in the spool")
        process.kill()
        size = spool_bytes(tmp_path)
        process.start()
        until(lambda: spool_bytes(tmp_path) > size, "a frame after the restart")
        assert process.stop(signal.SIGINT) == cli.OK
    kept = spooled(tmp_path)
    assert len({frame.stamp.run_id for frame in kept}) == 1
    sequences = [frame.stamp.sequence for frame in kept]
    assert sequences == list(range(1, len(kept) + 1))


@pytest.mark.slow
def test_an_agent_registers_sends_and_forgets_what_has_a_receipt(tmp_path: Path) -> None:
    with (
        serving() as (aggregator, address),
        agent(tmp_path, "--aggregator", address, module="gangline.agent") as process,
    ):
        until(lambda: len(aggregator.frames) >= 3, "three frames at the aggregator")
        until(
            lambda: any(event.name == "collector.outcome" for event in aggregator.events),
            "the outcome of a collector with nothing to read",
        )
        assert process.stop() == cli.OK
        output = process.said()
    assert "trace=" not in output and " connected" in output.replace('"', " ")
    # On a slow machine an earlier request may have no devices yet.
    request = aggregator.registered[-1]
    assert (request.node, len(request.run_id), len(request.boot_id)) == ("here", 16, 16)
    assert {signal.name for signal in request.signals} >= {"host.memory_available_bytes"}
    assert any(device.kind for device in request.devices)
    assert (
        len([registration for registration in aggregator.registered if registration.devices]) == 1
    )
    codes = {event.code for event in aggregator.events if event.name == "collector.outcome"}
    assert CollectOutcome.NO_DATA in codes
    ids = {(event.event_id, event.revision) for event in aggregator.events}
    assert len(ids) == len(aggregator.events)
    # Live frames go first: an earlier frame that was late on a busy machine may still be in the
    # spool.
    sequences = {frame.stamp.sequence for frame in aggregator.frames}
    kept = {frame.stamp.sequence for frame in spooled(tmp_path)}
    assert sequences | kept == set(range(1, max(sequences | kept) + 1))
    assert unacknowledged(aggregator.frames) < len(sequences)


def unacknowledged(sent: list[frames.Frame]) -> float:
    own = [block for frame in sent for block in frame.blocks if block.table == "agent_10s"][-1]
    return float(dict(own.values(0))[BY_NAME["agent.unacknowledged_frames"].signal_id] or 0)


@pytest.mark.slow
def test_an_aggregator_that_says_nothing_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Every agent's unit ran into its stop timeout and was killed, including its spool."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with agent(tmp_path, "--aggregator", address) as process:
            until(lambda: spool_bytes(tmp_path) > 0, "a frame in the spool")
            assert process.stop() == cli.OK


def test_a_second_agent_on_the_same_folder_is_told_so(tmp_path: Path) -> None:
    """Two agents with one run id would overwrite each other's sequences."""
    with agent(tmp_path) as first:
        until(lambda: spool_bytes(tmp_path) > 0, "a frame of the first")
        with agent(tmp_path) as second:
            assert second.child is not None
            assert second.child.wait(GUARD_SECONDS) == cli.FAILED
        assert f"is in use by process {first.pid}" in first.said()
        assert first.alive()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "spool_byte_max=5"], "unknown setting 'spool_byte_max'; did you mean"),
        (["--set", "spool_bytes_max=5"], "spool_bytes_max = 5: expected 1048576 to"),
        (["--aggregator", "nowhere"], "--server: 'nowhere': expected host:port"),
        (["--aggregator", "192.0.2.1:1"], "is not on loopback"),
        (
            ["--set", "collectors_off=gpus"],
            "collectors_off: unknown collector 'gpus'. Known: host_1s, ",
        ),
        (["--config", "absent.toml"], "absent.toml: No such file or directory"),
    ],
)
def test_a_wrong_setting_ends_with_two_and_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["agent", *arguments]) == cli.USAGE
    error = capfd.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_where_the_aggregator_is_comes_from_the_environment_last_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GANGLINE_AGGREGATOR", "nowhere")
    assert cli.main(["agent"]) == cli.USAGE
    assert "GANGLINE_AGGREGATOR: 'nowhere': expected host:port" in capfd.readouterr().err
    monkeypatch.setenv("GANGLINE_AGGREGATOR", "192.0.2.1:1")
    assert cli.main(["agent"]) == cli.USAGE
    assert "'192.0.2.1:1' is not on loopback" in capfd.readouterr().err
    assert cli.main(["agent", "--aggregator", "192.0.2.2:1"]) == cli.USAGE
    assert "'192.0.2.2:1' is not on loopback" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--aggregator", f"operator:{SECRET}@10.0.0.5:7600"],
        ["--set", f"host=token={SECRET}!"],
        ["--set", f"push_token={SECRET}"],
        ["--config", "agent.toml"],
    ],
)
def test_no_secret_in_what_is_said_of_a_wrong_setting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    """A password in the place of an address was in the journal of each host a minute later."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.toml").write_text(f'push_password = "{SECRET}"')
    assert cli.main(["agent", *arguments]) == cli.USAGE
    error = capfd.readouterr().err
    assert "gangline agent: " in error
    assert SECRET not in error


def test_settings_are_listed_without_a_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "--help-settings"]) == cli.OK
    assert 'aggregator = "127.0.0.1:7600"' in capsys.readouterr().out


def test_an_impossible_folder_exits_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "spool"
    arguments = ["--set", f"spool_folder={folder}", "--set", f"events_folder={tmp_path / 'events'}"]
    assert cli.main(["agent", *arguments]) == cli.FAILED
    assert f"{folder} cannot be used: Not a directory" in capfd.readouterr().err


def test_collectors_are_switched_off_by_name_or_by_kind() -> None:
    every = {c.name for c in create_collectors(AgentConfig())}
    assert every == COLLECTORS.keys()
    off = AgentConfig(collectors_off=("gpu", "host_10s", "inventory"))
    assert every - {c.name for c in create_collectors(off)} == {
        "gpu_1s",
        "gpu_10s",
        "gpu_60s",
        "host_10s",
    }
    with pytest.raises(
        SettingsError, match=r"collectors_off: unknown collector 'gp'\. Known: host_1s"
    ):
        create_collectors(AgentConfig(collectors_off=("gp",)))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"host": ""}, ""),
        ({"collectors_off": ("gp",)}, "collectors_off: unknown collector 'gp'"),
        ({"aggregator": "192.0.2.1:1"}, "is not on loopback"),
        ({"labels": ("gangline.rak=r12",)}, "labels: gangline.rak: expected one of gangline.rack"),
        ({"enforcing": ("nothing",)}, "enforcing: .*nothing"),
        ({"enforcing": ("nothing",), "policy_file": "/etc/gangline/policy.toml"}, ""),
    ],
)
def test_what_a_reload_looks_at_before_it_ends_the_run(
    setting: dict[str, Any], message: str
) -> None:
    """An error found only during wiring would appear after the end of the healthy run."""
    with pytest.raises(SettingsError, match=message) if message else nullcontext():
        check(replace(AgentConfig(), **setting))


def test_a_collector_that_cannot_be_made_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's library crashed in its own constructor when it was loaded."""

    def crash(_: object) -> FailedCollector:
        raise OSError("libnvidia-ml.so.1: invalid ELF header")

    monkeypatch.setitem(COLLECTORS, "gpu_1s", crash)
    (broken,) = [c for c in create_collectors(AgentConfig()) if c.name == "gpu_1s"]

    turn = run_collector(broken, StoppedClock())
    assert turn.outcome is CollectOutcome.ERROR
    assert turn.message.endswith(
        "could not be made: OSError: libnvidia-ml.so.1: invalid ELF header"
    )


def test_the_daemon_is_light_when_it_runs(tmp_path: Path) -> None:
    """An import within a function cost each of ten thousand hosts 26 MB, an hour after its start."""
    out = subprocess.run(
        [sys.executable, "-c", LIGHT, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=GUARD_SECONDS,
        env={**os.environ, "PYTHONPATH": ""},
    )
    loaded = set(json.loads(out.stdout))
    assert "gangline.agent.transport.client" in loaded
    assert not loaded & HEAVY
    assert not loaded & {"gangline.agent.local.metrics"}
    assert not loaded & {"_hashlib", "_ssl"}  # libcrypto: a megabyte


def test_the_nursery_that_was_forked_early_is_the_one_that_forks_samplers(tmp_path: Path) -> None:
    """A second fork server would also work, but cost the memory that the first saves."""
    out = subprocess.run(
        [sys.executable, "-c", ONE_NURSERY, str(tmp_path)],
        check=True, capture_output=True, text=True, cwd=tmp_path, timeout=GUARD_SECONDS,
    )  # fmt: skip
    assert out.stdout.split() == ["True", "True", "0"]


def test_what_only_the_daemon_needs_is_imported_after_the_fork(tmp_path: Path) -> None:
    """Such pages were copied when the daemon wrote to them: 3 MB."""
    out = subprocess.run(
        [sys.executable, "-c", FORKED], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    loaded = set(out.stdout.split())
    assert "gangline.agent.sampler.worker" in loaded and "gangline.agent.collectors.gpu" in loaded
    late = {f"gangline.agent.{name}" for name in NOT_BEFORE_THE_FORK}
    late |= {
        "gangline.contract.host_policy",
        "gangline.contract.xid.policy",
        "_hashlib",
        "h2",
        "random",
    }
    late |= {"gangline.agent.kernel_log.incidents", "gangline.agent.sampler.supervisor", "hpack"}
    assert not loaded & late, sorted(loaded & late)
    assert not loaded & HEAVY
