"""SIGHUP and SIGTERM to a real agent: its messages, its settings, and that no frame is lost."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangline import cli
from gangline.contract import frame as frames
from tests.agent.gpu_host import GpuHost
from tests.agent.test_main import agent, spooled
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import gpus
from tests.processes import Process, until


class Manager:
    """The service manager's socket: the first line of each message."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self._said: list[str] = []
        self._expected: list[str] = []

    def waits_for(self, *lines: str) -> None:
        """Wait until exactly these lines have followed the earlier ones."""
        self._expected += lines
        until(self._heard, f"said {self._expected}")

    def _heard(self) -> bool:
        try:
            while True:
                self._said.append(self.socket.recv(4096).decode().splitlines()[0])
        except BlockingIOError:
            return self._said == self._expected


@contextmanager
def managed(folder: Path, *arguments: str) -> Iterator[tuple[Process, Manager]]:
    manager = Manager(folder / "notify")
    os.environ["NOTIFY_SOCKET"] = str(folder / "notify")
    settings = (
        "--config",
        str(folder / "agent.toml"),
        "--set",
        f"spool_head_folder={folder}",
    )
    process = agent(folder, *settings, *arguments)
    try:
        with process:
            os.environ.pop("NOTIFY_SOCKET")
            yield process, manager
    finally:
        manager.socket.close()


def hang_up(process: Process) -> None:
    os.kill(process.pid, signal.SIGHUP)


@pytest.mark.slow
def test_a_reload_loses_nothing_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    """A file with a missing quote was distributed to all hosts and reloaded."""
    settings = tmp_path / "agent.toml"
    settings.write_text('collectors_off = ["gpu"]\n')
    with managed(tmp_path) as (process, manager):
        manager.waits_for("READY=1")
        pid = process.pid
        for wrong in (
            'collectors_off = ["gpu]\n',
            'collectors_off = ["gp"]\n',
            "spool_bytes_max = 1\n",
        ):
            settings.write_text(wrong)
            hang_up(process)
            manager.waits_for("RELOADING=1", "READY=1")
        assert process.said().count("reload failed, the old settings stay in force") == 1, (
            "one line a minute"
        )
        settings.write_text('collectors_off = ["gpu", "net"]\n')
        hang_up(process)
        manager.waits_for("RELOADING=1", "READY=1")
        assert process.said().count('msg="host here') == 2, "it began anew"
        assert process.pid == pid and process.alive()
        assert process.stop() == cli.OK
        manager.waits_for("STOPPING=1")
    assert "trace=" not in process.said()
    kept = spooled(tmp_path)
    assert len({frame.stamp.run_id for frame in kept}) == 1
    assert [frame.stamp.sequence for frame in kept] == list(range(1, len(kept) + 1))
    assert any("net_1s" in tables(frame) for frame in kept)
    assert "net_1s" not in tables(kept[-1])


def tables(frame: frames.Frame) -> set[str]:
    return {block.table for block in frame.blocks}


def test_many_at_once_and_an_end_among_them(tmp_path: Path) -> None:
    """A tool reloaded each unit of a host once per changed file; and then the host shut down."""
    (tmp_path / "agent.toml").write_text('collectors_off = ["gpu"]\n')
    with managed(tmp_path) as (process, manager):
        manager.waits_for("READY=1")
        for _ in range(3):
            hang_up(process)
        until(lambda: process.said().count('msg="host here') >= 2, "it began anew")
        hang_up(process)
        assert process.stop() == cli.OK, process.said()
    assert "trace=" not in process.said()


def test_a_terminal_that_is_closed_ends_what_was_started_in_it(tmp_path: Path) -> None:
    """`make run` was ended by closing its window; 32 simulated hosts continued for a week."""
    with agent(tmp_path) as process:
        until(lambda: 'msg="host here' in process.said(), f"it runs; {process.said()}")
        assert process.stop(signal.SIGHUP) == cli.OK
    assert "stopping on SIGHUP" in process.said()


def test_a_hung_driver_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit ran into its stop time-out and was killed, including its spool."""
    library = str(build(tmp_path / "library"))
    host = GpuHost(tmp_path, library, monkeypatch)
    entered = tmp_path / "entered"
    os.mkfifo(entered)
    (gpu,) = gpus(1)
    gpu.lines.append(f"block nvmlDeviceGetFieldValues fifo {entered}")
    host.play([gpu])
    host.list_in_proc([gpu])
    here = ("--set", f"nvml_library={library}", "--set", f"proc_root={host.roots.proc}")
    (tmp_path / "agent.toml").write_text("")
    with managed(tmp_path, *here) as (process, manager):
        manager.waits_for("READY=1")
        descriptors: list[int] = []
        until(lambda: descriptors or opened(entered, descriptors), "it is in the driver")
        assert process.stop() == cli.OK
        os.close(descriptors[0])
    assert "trace=" not in process.said()
    assert spooled(tmp_path)


def opened(fifo: Path, descriptors: list[int]) -> bool:
    try:
        descriptors.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
