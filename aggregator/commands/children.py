"""Other `gangline` commands as child processes: started, watched, ended in order, none left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

#: So much of a log is shown when its process ended by itself.
LAST_LINES = 5


class ChildError(Exception):
    """A child ended that should run; the words hold what it said last."""


@dataclass(frozen=True, slots=True)
class Child:
    """A command, its arguments, and how long it may take to end when asked."""

    command: str
    arguments: tuple[str, ...]
    ends_seconds: float = 8.0


class Children:
    """A context: leaving it ends all children, the last started first."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[tuple[Child, subprocess.Popen[bytes], IO[bytes]]] = []

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        # All but the first (the aggregator, on which the others lean) are asked at once.
        for _child, process, _log in self._running[1:]:
            _tell(process, signal.SIGTERM)
        for child, process, log in reversed(self._running):
            _tell(process, signal.SIGTERM)
            _end(process, child.ends_seconds)
            log.close()
        self._running.clear()

    def start(self, child: Child) -> None:
        """Start it in a process group of its own, so that Ctrl-C reaches it through us only."""
        log = open(self._logs / f"{child.command}.log", "wb")  # noqa: SIM115 - closed on exit
        process = subprocess.Popen(
            [sys.executable, "-m", "gangline.cli", child.command, *child.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._running.append((child, process, log))

    def check(self) -> None:
        """Raise ChildError if one has ended."""
        for child, process, log in self._running:
            code = process.poll()
            if code is not None:
                words = _last_words(Path(str(log.name)))
                raise ChildError(f"`gangline {child.command}` ended with exit code {code}: {words}")


def _tell(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} did not end in {seconds:g} s: killed", file=sys.stderr)
    # What it may have started itself (the inventory child) is of its group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return " | ".join(lines[-LAST_LINES:]) or f"it said nothing; see {log}"
