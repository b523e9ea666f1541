"""Samplers as real processes: hung despite SIGKILL, stopped, dead of SIGSEGV, or orphaned."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Process, until

GPUS = ["0000:1a:00.0", "0000:1b:00.0", "0000:1c:00.0"]


class Run:
    def __init__(self, process: Process) -> None:
        self.process = process

    def lines(self) -> list[dict[str, Any]]:
        return self.process.records()

    def last(self) -> dict[str, Any]:
        lines = self.lines()
        return lines[-1] if lines else {"states": {}, "pids": {}, "at": 0.0, "nursery": 0}

    def read_since(self, at: float) -> set[str]:
        return {name for line in self.lines() if line["at"] > at for name in line["read"]}

    def pid(self, role: str) -> int:
        return next((int(pid) for pid, is_a in self.last()["pids"].items() if is_a == role), 0)

    def wait(self, *devices: str) -> None:
        """Wait until these devices have new readings, and a standby is ready."""
        at = self.last()["at"]
        until(lambda: set(devices) <= self.read_since(at), f"readings of {devices}")
        until(lambda: self.pid("standby") > 0, "a standby")


@contextmanager
def running(tmp_path: Path, folder: Path) -> Iterator[Run]:
    with Process([str(folder)], tmp_path / "log", "tests.agent.sampler.real") as process:
        yield Run(process)


def made(tmp_path: Path) -> Path:
    folder = tmp_path / "lanes"
    for lane, names in (("gpu", GPUS), ("host", ["sda", "sdb"])):
        (folder / lane).mkdir(parents=True)
        for name in names:
            (folder / lane / name).write_text("1\n")
    return folder


def is_there(pid: int) -> bool:
    """Return whether the process lives; a dead but unreaped process does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_sampler_that_is_stopped_is_replaced(tmp_path: Path) -> None:
    """SIGSTOP was sent to the wrong process, on a Friday."""
    with running(tmp_path, made(tmp_path)) as run:
        run.wait(*GPUS, "sda", "sdb")
        stopped = run.pid("lane")
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: not is_there(stopped), "the stopped sampler's end")
        run.wait(*GPUS, "sda", "sdb")
        assert (run.last()["states"], run.last()["abandoned"]) == ({}, 0)


def test_without_its_nursery_a_daemon_forks_another_one(tmp_path: Path) -> None:
    with running(tmp_path, made(tmp_path)) as run:
        run.wait(*GPUS, "sda")
        nursery, children = run.last()["nursery"], [int(pid) for pid in run.last()["pids"]]
        os.kill(nursery, signal.SIGKILL)
        until(lambda: run.last()["nursery"] not in (0, nursery), "another nursery")
        run.wait(*GPUS, "sda")
        assert not any(map(is_there, children))


@pytest.mark.parametrize("is_killed", [True, False])
def test_no_process_outlives_its_daemon(tmp_path: Path, is_killed: bool) -> None:
    """The OOM killer killed the daemon; its samplers held every GPU for the rest of the week."""
    with running(tmp_path, made(tmp_path)) as run:
        run.wait(*GPUS, "sda")
        family = [run.last()["nursery"], *(int(pid) for pid in run.last()["pids"])]
        assert len(family) == 4 and all(map(is_there, family))
        if is_killed:
            os.kill(run.process.pid, signal.SIGKILL)
        else:
            assert run.process.stop() == 0
        until(lambda: not any(map(is_there, family)), "the end of all of them")
