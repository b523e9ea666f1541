"""Processes that are killed (SIGKILL) at a step of their work, forked from a process that has imported all of it.

Starting Python and importing the aggregator costs a second of a processor, a fork a hundredth. The
forking process has no DuckDB open and no threads. A start after a kill finds exactly the bytes on
disk; so among consecutive steps without a changed byte, a kill at the first represents a kill at
each (`worth_killing`), and a single process that copies the disk before each such step represents
as many killed processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import traceback
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class LifeError(Exception):
    """The function raised in the other process."""


def life(act: Callable[[], Any]) -> Any:
    """Run *act* in a process of its own; return its result (as JSON), or the signal's number if it was killed.

    Raises LifeError when *act* raised, with the other process's traceback.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            text = json.dumps(["", act()], default=str)
        except BaseException:  # noqa: BLE001 - told to the one who looks
            text = json.dumps([traceback.format_exc(), None])
        with os.fdopen(writing, "w") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    raised, returned = json.loads(text)
    if raised:
        raise LifeError(raised)
    return returned


def again(before: Path, work: Path, act: Callable[[], Any]) -> Any:
    """Make *work* a copy of the folder *before*, run *act* there as `life` does, and return its result."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(before, work)
    return life(act)


def as_killed(kept: Path, at: int, work: Path) -> int:
    """Restore in *work* the disk before step *at*, as kept in *kept*, once. Returns the signal of a kill."""
    shutil.rmtree(work, ignore_errors=True)
    (kept / str(at)).rename(work)
    return signal.SIGKILL


def on_disk(folder: Path) -> int:
    """Return a checksum of the names and bytes of all files under *folder*."""
    checksum = 0
    for path in sorted(folder.rglob("*")):
        checksum = zlib.crc32(f"{path.relative_to(folder)}\0".encode(), checksum)
        if path.is_file():
            checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


class Killer:
    """Called at each step; kills this process at step *at*, or records for each step the disk's state in *folder*.

    States that changed since the previous step are kept in *kept*, a folder for each (`as_killed`).
    """

    def __init__(self, folder: Path, at: int = -1, kept: Path | None = None) -> None:
        self.folder, self.at, self._kept = folder, at, kept
        self.steps, self.states = list[str](), list[int]()

    def __call__(self, name: str) -> None:
        if self.at < 0:
            self._look()
        self.steps.append(name)
        if len(self.steps) - 1 == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _look(self) -> None:
        state = on_disk(self.folder)
        if self._kept and (not self.states or state != self.states[-1]):
            shutil.copytree(self.folder, self._kept / str(len(self.states)))
        self.states.append(state)


def worth_killing(states: Sequence[int]) -> list[int]:
    """Return the numbers of the steps before which something changed on disk; the first is one."""
    return [index for index, state in enumerate(states) if index == 0 or state != states[index - 1]]


class Dying:
    """A DuckDB connection that calls a killer before each statement."""

    def __init__(self, connection: Any, killer: Killer) -> None:
        self._connection, self._killer = connection, killer

    def execute(self, query: str, parameters: object = None) -> Any:
        """Run the statements of *query* one by one; return the result of the last."""
        result = None
        for statement in self._connection.extract_statements(query):
            self._killer(statement.query.strip(" ;\n")[:40])
            result = self._connection.execute(statement, parameters)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def dying(connect: Callable[..., Any], killer: Killer) -> Callable[..., Any]:
    """Return a function that connects as *connect* does, and calls the killer before each statement."""
    return lambda *arguments, **named: Dying(connect(*arguments, **named), killer)
