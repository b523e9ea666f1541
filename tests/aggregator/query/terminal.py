"""A command on a pseudo-terminal, and its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.aggregator.query.asking import children
from tests.processes import GUARD_SECONDS

#: Makes the terminal its own, so that Ctrl-C reaches it, also if who runs the tests ignores it, and becomes the command.
_ON_IT = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")


class Terminal:
    """Runs a command on a terminal of 30 lines and *columns*; `said` is its whole output as text."""

    def __init__(self, command: list[str], environment: dict[str, str], columns: int = 100) -> None:
        self.said = ""
        self._seen = 0
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_IT, *command],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=environment,
            start_new_session=True,
        )
        os.close(inside)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, words: str) -> str:
        """Read until *words* (a regular expression) were printed; return all since the last time."""
        begin, deadline = self._seen, time.monotonic() + GUARD_SECONDS
        while not (match := re.compile(words).search(self.said, begin)):
            assert time.monotonic() < deadline, f"no {words!r} in {self.said[begin:]!r}"
            if select.select([self._terminal], [], [], 0.2)[0] and not self._take():
                raise AssertionError(f"ended without {words!r}: {self.said[begin:]!r}")
        self._seen = match.end()
        return self.said[begin : match.end()]

    def runs_a_query(self) -> None:
        """Wait until a process two below the command, the nursery's, has worked for half a second.

        One that is spare is always there, and works a little. While the line is still being taken Ctrl-C is a key,
        and lost with the prompt that is left: the terminal says when it is a signal again.
        """
        deadline = time.monotonic() + GUARD_SECONDS
        while not self._ctrl_c_is_a_signal() or not any(
            _has_worked(child)
            for child_pid in children(self._process.pid)
            for child in children(child_pid)
        ):
            assert time.monotonic() < deadline, "no query runs"
            select.select([], [], [], 0.01)

    def _ctrl_c_is_a_signal(self) -> bool:
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ISIG)

    def _take(self) -> bool:
        try:
            data = os.read(self._terminal, 1 << 16).decode(errors="replace")
        except OSError:
            return False
        if "\x1b[6n" in data:  # where is the cursor?
            self.type("\x1b[1;1R")
        self.said += _CONTROL.sub("", data)
        return bool(data)

    def end(self, leave: str = "") -> int:
        """Wait for its end; return its exit code. *leave* is typed each second: keys that come while a prompt is
        left are lost."""
        begin, deadline, typed = self._seen, time.monotonic() + GUARD_SECONDS, 0.0
        while not select.select([self._terminal], [], [], 0.2)[0] or self._take():
            if leave and time.monotonic() > typed + 1:
                typed = time.monotonic()
                with suppress(OSError):  # it has ended meanwhile
                    self.type(leave)
            assert time.monotonic() < deadline, f"no end after {self.said[begin:]!r}"
        return self._process.wait(GUARD_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


def _has_worked(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended meanwhile
        return False
    return int(text.rpartition(")")[2].split()[11]) >= os.sysconf("SC_CLK_TCK") / 2
