"""Real processes for tests: started, waited for, killed; nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

#: A guard, never a measure: on a loaded two-core machine everything takes longer.
GUARD_SECONDS = 60.0


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], object], what: str, seconds: float = GUARD_SECONDS) -> None:
    """Return once *condition* holds; AssertionError with *what* when the guard runs out.

    For things that another process does and tells nobody: the only way to know is to look.
    """
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


class Process:
    """A `gangline` command (or any module) in a process group of its own, its output in a file."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        module: str = "gangline.cli",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.environment = environment or {}
        self.arguments = [sys.executable, "-m", module, *arguments]
        self.log = log
        self.child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it (again)."""
        with open(self.log, "ab") as out:
            self.child = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
            )

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    def kill(self) -> None:
        """kill -9, children too, and wait until it is gone."""
        if self.child is not None:
            with_group(self.child.pid, signal.SIGKILL)
            self.child.wait(GUARD_SECONDS)
            self.child = None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end, and return its exit code."""
        assert self.child is not None
        self.child.send_signal(number)
        code = self.child.wait(GUARD_SECONDS)
        self.child = None
        return code

    def alive(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def said(self) -> str:
        """All it printed so far."""
        return self.log.read_text(errors="replace")


def with_group(pid: int, number: int) -> None:
    """Send a signal to a process group that may be gone already."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def listening(port: int) -> bool:
    """Say whether somebody accepts on the loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
