"""`gangline` commands as child processes: started, watched, ended in order, none left behind.

`python -m` of this module, with a process id before the command, runs as such a child: it ends with
its parent. Whatever kills `gangline run` (kill -9, out of memory), no child may keep the port, the
store and the spools.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from ...cli import main
from ...contract.workers import end_with_parent, module_command

#: Log lines shown when a process ended unexpectedly.
LAST_LINES = 3


class ChildError(Exception):
    """A child ended unexpectedly or cannot be started; the message names it and the cause."""


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """A command, its arguments, and the seconds it may take to end after SIGTERM."""

    command: str
    arguments: tuple[str, ...]
    ends_seconds: float = 8.0


class Children:
    """Context that owns *folder*; leaving it ends all children, the last started first.

    Entering raises ChildError if the folder is unusable or owned by another run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs = folder / "log"
        self._lock: IO[str] | None = None
        self._running: list[tuple[ChildCommand, subprocess.Popen[bytes], IO[bytes]]] = []

    def __enter__(self) -> Self:
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            self._lock = open(self._logs / "lock", "a+")
        except OSError as error:
            raise ChildError(
                f"{self._folder} cannot be used as data folder: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip()
            self._lock.close()
            raise ChildError(
                f"{self._folder} is in use by another `gangline run` (process {owner}). Stop "
                "it, or use --data OTHER"
            ) from None
        self._lock.truncate(0)
        print(os.getpid(), file=self._lock, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        # All but the first (the aggregator, on which the others depend) get SIGTERM at once.
        for _child, process, _log in self._running[1:]:
            _send_signal(process, signal.SIGTERM)
        for child, process, log in reversed(self._running):
            _send_signal(process, signal.SIGTERM)
            _end(process, child.ends_seconds)
            log.close()
        self._running.clear()
        if self._lock is not None:
            self._lock.close()

    def start(self, child: ChildCommand) -> None:
        """Start a child in its own session: Ctrl-C reaches it only through this process."""
        log = self._log(child)
        process = subprocess.Popen(
            module_command(__name__, str(os.getpid()), child.command, *child.arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._running.append((child, process, log))

    def _log(self, child: ChildCommand) -> IO[bytes]:
        """Open a new log; keep the previous run's log for use after a crash."""
        path = self._logs / f"{child.command}.log"
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_suffix(".log.before"))
        return open(path, "wb")

    def check(self) -> None:
        """Raise ChildError if a child has ended."""
        for child, process, log in self._running:
            code = process.poll()
            if code is not None:
                raise ChildError(
                    f"`gangline {child.command}` {_exit_message(code, Path(str(log.name)))}"
                )


def _exit_message(code: int, log: Path) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; out of memory? `dmesg` says" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}; its log: {log}"
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    return f"ended with exit code {code}: {' | '.join(lines) or 'no output'}; its log: {log}"


def _send_signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        process.send_signal(number)


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} did not end within {seconds:g} s; killed", file=sys.stderr)
    # Its own children (such as the inventory child) are in its process group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    if not end_with_parent(int(sys.argv[1]), signal.SIGTERM):
        sys.exit(f"the parent process {sys.argv[1]} has ended")
    sys.exit(main(sys.argv[2:]))
