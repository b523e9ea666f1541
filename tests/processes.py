"""Real processes for tests: started, waited for, killed; nothing is left behind."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

#: A guard, never a measure: on a loaded two-core machine everything takes longer.
GUARD_SECONDS = 200.0

#: Ports that `free_port` returned last: bound here, so that no other process gets them.
_RESERVED: deque[socket.socket] = deque()
RESERVED_MAX = 64


@cache
def made_store() -> Path:
    """A new store with all views and macros, before anything else has been done to it; made once by each process."""
    from gangline.aggregator.store import store_folder
    from gangline.aggregator.store.writer import Writer

    folder = Path(tempfile.mkdtemp(prefix="gangline-made-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / store_folder.STORE_FILE
    Writer(path, retention_hours=24, history_days=30).close()
    return path


def with_store(folder: Path) -> Path:
    """Put an empty store into the data folder of an aggregator before its start, if it has none; return the folder.

    Creating a store takes a third of a start, and has its own test.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / made_store().name).exists():
        shutil.copyfile(made_store(), folder / made_store().name)
    return folder


def free_port() -> int:
    """Return a free loopback port, followed by another free port (for an aggregator's score process).

    Both stay reserved while their server is down: a server that sets SO_REUSEADDR, as nearly all
    do, may listen there, and the kernel gives the ports neither to another server nor to the near
    end of a connection. Where the local port range has the port, one in 30,000 attempts to connect
    to it connects to itself: the port then looks used, and no process can listen for a minute.
    """
    while True:
        pair = [socket.socket(), socket.socket()]
        try:
            pair[0].bind(("127.0.0.1", 0))
            port: int = pair[0].getsockname()[1]
            pair[1].bind(("127.0.0.1", port + 1))
        except (OSError, OverflowError):
            for bound in pair:
                bound.close()
            continue
        for bound in pair:  # after `bind`, which then reports whether another process has the port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _RESERVED.extend(pair)
        while len(_RESERVED) > RESERVED_MAX:
            _RESERVED.popleft().close()
        return port


def until(
    condition: Callable[[], object],
    what: str | Callable[[], str],
    seconds: float = GUARD_SECONDS,
) -> None:
    """Return once *condition* holds; AssertionError with *what*, or its result, when the guard runs out.

    For actions of another process without a notification: polling is the only way.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            raise AssertionError(
                f"after {seconds} s still not: {what if isinstance(what, str) else what()}"
            )
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
        """Kill -9, children too, and wait for the end."""
        if self.child is not None:
            with_group(self.child.pid, signal.SIGKILL)
            self.child.wait(GUARD_SECONDS)
            self.child = None

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.child is not None
        self.child.send_signal(number)
        code = self.child.wait(GUARD_SECONDS)
        self.child = None
        return code

    def alive(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def records(self) -> list[dict[str, Any]]:
        """Return the JSON objects that the process printed, a line each, without an incomplete last line."""
        whole = [line for line in self.said().splitlines(keepends=True) if line[-1] == "\n"]
        return [json.loads(line) for line in whole if line[0] == "{"]


def with_group(pid: int, number: int) -> None:
    """Send a signal to a process group that may have ended already."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def listening(port: int) -> bool:
    """Return whether a process accepts on the loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
