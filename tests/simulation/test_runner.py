"""The simulated world in time: never a burst, real spools, a clean end."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gangline.agent.spool.lockdir import FolderError
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.wire import telemetry_pb2
from gangline.simulator import truth
from gangline.simulator.runner import LiveWorld, SimulationRunner, raise_file_limit
from gangline.simulator.simulated_host import SimulatedHost
from gangline.simulator.world import World
from tests.processes import Process, free_port, until
from tests.simulation.readings import Reading, calm

SECOND_NS = 1_000_000_000
WALL_NS = 1_700_000_000 * SECOND_NS


@dataclass
class HandedClock:
    now_ns: int = 5_000 * SECOND_NS

    def boottime_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return WALL_NS + self.now_ns


@dataclass
class Recorder:
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    started: bool = False
    closed_within_seconds: float = 0.0

    def send(
        self,
        boottime_ns: int,
        wall_ns: int,
        blocks: Sequence[Block],
        events: Sequence[telemetry_pb2.HealthEvent],
    ) -> None:
        self.sent.append((boottime_ns, wall_ns, len(blocks)))

    def start(self) -> None:
        self.started = True

    def close(self, seconds_max: float) -> None:
        self.closed_within_seconds = seconds_max


def test_a_late_tick_is_one_longer_step_and_no_burst() -> None:
    """After a pause of seven seconds a catching-up loop would send seven frames with the same time."""
    live, clock, host = calm(1, 1), HandedClock(), Recorder()
    runner = SimulationRunner(live, [host], clock)
    begin = clock.now_ns
    assert runner.tick() == begin + SECOND_NS
    clock.now_ns += SECOND_NS // 2
    assert runner.tick() == begin + SECOND_NS, "not yet"
    assert len(host.sent) == 1
    clock.now_ns = begin + 7 * SECOND_NS + 300_000_000
    assert runner.tick() == begin + 8 * SECOND_NS, "back on the grid"
    assert len(host.sent) == 2
    assert live.now_seconds == 8.0
    assert host.sent[-1][:2] == (clock.boottime_ns(), clock.wall_ns())


def test_a_host_that_is_away_is_closed_and_comes_back_as_another() -> None:
    """A host in repair that kept its connection would look like a gap, and readings would continue over the boot.

    A host with a wrong clock reports the offset, and a gap sends no frame.
    """
    world = World("parade", 1, hosts=16)
    row = next(a for a in world.schedule.downtimes if a.begin > 20)
    live, clock = LiveWorld(world), HandedClock()
    hosts, opened = [Recorder() for _ in range(16)], list[tuple[str, Recorder]]()

    def reopen(name: str) -> Recorder:
        opened.append((name, Recorder()))
        return opened[-1][1]

    runner, begin = SimulationRunner(live, hosts, clock, reopen), clock.now_ns
    for seconds in (0.0, row.begin + 1, row.begin + 2, row.end + 1, row.end + 2):
        clock.now_ns = begin + round(seconds * SECOND_NS)
        runner.tick()
    assert hosts[row.host].closed_within_seconds > 0
    (again,) = [host for name, host in opened if name == world.names[row.host]]
    assert again.started and again.sent and len(hosts[row.host].sent) == 1
    runner.close()
    assert again.closed_within_seconds > 0


def open_host(folder: Path, live: LiveWorld, clock: HandedClock) -> SimulatedHost:
    return SimulatedHost(
        "sim-000",
        live.devices("sim-000"),
        live.labels("sim-000"),
        folder=folder,
        aggregator=f"127.0.0.1:{free_port()}",
        clock=clock,
    )


def test_frames_and_events_wait_on_disk(tmp_path: Path) -> None:
    """Without an aggregator the model's frames are in the spool, through the real codec."""
    live, clock = calm(1, 1), HandedClock()
    host = open_host(tmp_path, live, clock)
    event = telemetry_pb2.HealthEvent(event_id="xid-1", name="gpu.xid", code=95)
    for _, blocks, _ in live.step(1.0):
        host.send(clock.boottime_ns(), clock.wall_ns(), blocks, [event])
    ((sequence, data),) = host.spool.pending(0, 10)
    frame = frames.decode(data)
    assert frame.stamp == frames.Stamp(
        host.spool.run_id, host.spool.boot_id, sequence, clock.boottime_ns(), clock.wall_ns()
    )
    reading = Reading(frame.blocks)
    assert reading.numbers("gpu.sm_clock_hertz")[0] > 1e9
    assert reading.column("agent.spool_bytes") == [0.0]
    assert reading.column("agent.cpu_seconds") == [None], "the process is shared by all hosts"
    (waiting,) = host.events.pending(10)
    assert waiting.event_id == f"{host.spool.boot_id.hex()}/xid-1"
    assert waiting.boottime_ns == clock.boottime_ns() and waiting.wall_time_ns == clock.wall_ns()
    host.close(1.0)


def test_each_start_is_a_boot_of_its_own(tmp_path: Path) -> None:
    """A restart with the same seed puts the faults in the future: findings about the host must end,
    as after a real reboot; unsent frames must stay.
    """
    live, clock = calm(1, 1), HandedClock()
    first = open_host(tmp_path, live, clock)
    first.send(clock.boottime_ns(), clock.wall_ns(), [], [])
    run_id, boot_id = first.spool.run_id, first.spool.boot_id
    first.close(1.0)
    second = open_host(tmp_path, live, clock)
    assert second.spool.run_id == run_id and second.spool.boot_id != boot_id
    assert len(second.spool.pending(0, 10)) == 1
    request = second.request()
    assert request.simulated and request.node == "sim-000"
    assert request.labels == {"simulated": "true", **live.labels("sim-000")}
    assert request.run_id == run_id and request.boot_id == second.spool.boot_id
    assert len(request.devices) == 17 and request.signals
    second.close(1.0)


def test_two_of_them_do_not_share_a_folder(tmp_path: Path) -> None:
    """Two processes that append to one spool would give one sequence to two frames."""
    live, clock = calm(1, 1), HandedClock()
    first = open_host(tmp_path, live, clock)
    with pytest.raises(FolderError, match="in use by process"):
        open_host(tmp_path, live, clock)
    first.close(1.0)
    open_host(tmp_path, live, clock).close(1.0)


def test_too_few_open_files_are_said_before_anything_is_opened() -> None:
    """512 hosts need thousands of file descriptors; an EMFILE in a thread would name no cause."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        raise_file_limit(4096)
        return
    with pytest.raises(OSError, match=f"{hard} are allowed. Use fewer hosts"):
        raise_file_limit(hard + 1)


def simulate(folder: Path, *more: str) -> Process:
    arguments = ["simulate", "--hosts", "4", "--data", str(folder / "data")]
    arguments += ["--aggregator", f"127.0.0.1:{free_port()}", *more]
    return Process(arguments, folder / "log")


def spooled(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("data/sim-003/spool/*.seg"))


@pytest.mark.slow
def test_it_runs_without_an_aggregator_and_ends_when_asked(tmp_path: Path) -> None:
    """Started before its aggregator, it keeps its frames on disk; after a stop no process or lock
    is left, and the exit code is 0.
    """
    written = tmp_path / "truth.jsonl"
    with simulate(tmp_path, "--truth", str(written), "--seed", "7") as process:
        until(lambda: spooled(tmp_path) > 5000, "frames of the last host are on disk")
        lines = [json.loads(line) for line in written.read_text().splitlines()]
        expected = map(json.loads, truth.lines(World("three", 7, hosts=4)))
        struck_hosts = [[line.get("struck") for line in log] for log in (lines, expected)]
        assert struck_hosts[0] == struck_hosts[1] and lines[0]["scenario"] == "three"
        pid = process.pid
        assert process.stop() == 0
        assert not os.path.exists(f"/proc/{pid}")
    log_text = (tmp_path / "log").read_text()
    assert "4 simulated hosts, scenario three, seed 7" in log_text and "Traceback" not in log_text
    before = spooled(tmp_path)
    with simulate(tmp_path) as process:  # the same folders serve again
        until(lambda: spooled(tmp_path) > before, "the next run appends")
        assert process.stop(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_held_folder_is_named(tmp_path: Path) -> None:
    """A second `make run` beside the first gets an error message, not a stack trace."""
    with simulate(tmp_path) as first:
        until(lambda: spooled(tmp_path) > 0, "the first runs")
        with Process(first.arguments[3:], tmp_path / "second") as second:
            assert second.child is not None
            assert second.child.wait(60) == 1
        assert "in use by process" in (tmp_path / "second").read_text()
        assert first.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "doom"], "'doom': expected one of quarter"),
        (["--world", "mine.toml"], "mine.toml: No such file"),
        (["--scenario", "demo", "--world", "/none.toml"], "/none.toml: No such file"),
        (["--hosts", "0"], "0: expected 1 to 512 hosts"),
        (["--hosts", "513"], "513: expected 1 to 512 hosts"),
        (["--hosts", "many"], "'many': expected a whole number"),
        (["--seed", "-1"], "-1: expected 0 or more"),
        (["--aggregator", "nowhere"], "expected HOST:PORT"),
    ],
)
def test_wrong_arguments_are_answered_in_words(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from gangline.cli import USAGE, main

    with pytest.raises(SystemExit) as stop:
        main(["simulate", *arguments])
    assert stop.value.code == USAGE
    assert message in capsys.readouterr().err
