"""All faults at once, real collectors in real processes: healthy devices are read each second."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import hosts
from tests.agent.gpu_host import GpuHost
from tests.agent.sampler import fuse
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import gpus
from tests.fake_nvml.sick import blocks_for_ever, crashes, is_lost, talks_garbage
from tests.processes import Process, until

PORT = "mlx5_0/1"
COUNTER = "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data"


class Run:
    def __init__(self, process: Process) -> None:
        self.process = process

    def lines(self) -> list[dict[str, Any]]:
        return self.process.records()

    def last(self, what: str) -> Any:
        lines = self.lines()
        return lines[-1][what] if lines else {}

    def read_since(self, line: int) -> set[str]:
        return {
            name for each in self.lines()[line:] for name, whole in each["whole"].items() if whole
        }

    def wait(self, *names: str) -> None:
        line = len(self.lines())
        until(lambda: set(names) <= self.read_since(line), f"readings of {names}")


@contextmanager
def running(library: str, proc: Path, log: Path) -> Iterator[Run]:
    with Process([library, str(proc), "2"], log, "tests.agent.sampler.real_gpus") as process:
        yield Run(process)


def test_gpus_with_all_faults_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rack lost its cooling: each of its GPUs failed in its own way, and a port's firmware with
    them. Then the agent was killed, and its successor left another process in each of them, and so
    did the next, all night.
    """
    library = str(build(tmp_path / "fake_nvml"))
    host = GpuHost(tmp_path, library, monkeypatch)
    hosts.unpack("h100-ib", tmp_path / "as")
    (tmp_path / "as/sys").rename(tmp_path / "sys")
    (tmp_path / "sys" / COUNTER).resolve().unlink()
    (tmp_path / "sys" / COUNTER).symlink_to(tmp_path / "fuse/port")
    devices = gpus(6)
    garbage, lost, crashing, stuck, *well = devices
    talks_garbage(garbage)
    is_lost(lost, step=1)
    crashes(crashing, step=2)
    blocks_for_ever(stuck, tmp_path / "fuse/gpu", step=3)
    scenario = host.play(devices)
    host.list_in_proc(devices)
    others = [gpu.uuid for gpu in well]
    proc, log = host.roots.proc, tmp_path / "log"
    with fuse.mounted(tmp_path / "fuse", ["gpu", "port"]) as files:
        with running(library, proc, log) as run:
            run.wait(*others, lost.uuid, crashing.uuid, stuck.uuid, PORT)
            assert run.last("states") == {}
            scenario.step(1)
            files.stick("port")
            until(lambda: run.last("states") == {PORT: "ABANDONED"}, "a port in which one hangs")
            assert run.last("calls")[PORT] == "read counters/port_rcv_data"
            scenario.step(2)
            until(lambda: crashing.address in run.last("states"), "a GPU in which one died")
            run.wait(*others, stuck.uuid)
            scenario.step(3)
            files.stick("gpu")
            until(
                lambda: run.last("states").get(stuck.address) == "ABANDONED", "one stuck in a GPU"
            )
            run.wait(*others, "mlx5_1/1")
            assert run.last("roles").count("abandoned") == files.waiting() == 2
            os.kill(run.process.pid, signal.SIGKILL)
        with running(library, proc, log.with_suffix(".2")) as run:
            run.wait(*others, "mlx5_1/1")
            result = run.last("states")
            assert (result[stuck.address], result[PORT]) == ("ABANDONED", "ABANDONED")
            assert files.waiting() == 2  # no process has entered either
            scenario.step(0)
            files.let("gpu")
            files.let("port")
            run.wait(*others, stuck.uuid, PORT)  # by the same processes, without a restart
            assert run.last("roles").count("abandoned") == 0
