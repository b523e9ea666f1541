"""Packing: the aggregator's end of the process that sorts, rolls up and writes Parquet (`parquet_worker.py`)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ...workers import environment
from . import parquet_worker

#: A packer that does not answer for so long hangs: it is killed, and what it was at is done again.
ANSWER_SECONDS_MAX = 900.0
#: One that goes last may not have been let run at all.
LOW_PRIORITY_ANSWER_SECONDS_MAX = 120.0
#: One that does not end when it has nothing more to do is killed after so long.
END_SECONDS = 2.0
#: One that was killed and is not gone after so long waits for a disk: it ends with that, and writes nothing more.
GONE_SECONDS = 5.0


class PackerError(Exception):
    """The packer could not do what it was asked, or is gone; the words say why."""


class PackerStarvedError(PackerError):
    """One that goes last did not answer in its time: it was ended, and the next should not go last."""


class PackerHandle(Protocol):
    """What `SegmentStore` needs of a packer, wherever it runs."""

    is_behind: bool

    @property
    def is_low_priority(self) -> bool:
        """Whether there is one that goes last."""
        ...

    def start(self) -> None:
        """Have a packer. Raises OSError."""

    def call(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
        """Call a method of `Packer`. Raises PackerError."""

    def kill(self) -> None:
        """End it at once, from any thread: a call that waits for it fails."""

    def release(self) -> None:
        """Let go of it until the next `start`."""


class PackerProcess:
    """Used by one thread but for `kill`."""

    def __init__(self, folder: Path, rows_max: int, memory_bytes_max: int) -> None:
        self._folder = folder
        self._rows_max = rows_max
        self._memory_bytes_max = memory_bytes_max
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._low_priority = True
        self._answer_seconds_max = 0.0
        #: Whether history is behind: then the next process does not go last.
        self.is_behind = False

    @property
    def pid(self) -> int:
        """The packer's process, 0 without one."""
        return self._process.pid if self._process else 0

    @property
    def is_low_priority(self) -> bool:
        """Whether there is one that goes last at the processor."""
        return self._process is not None and self._low_priority

    def start(self) -> None:
        """Have a packer that runs; one that is made now is as urgent as history is. Raises OSError."""
        if self._process is not None and self._process.poll() is None:
            return
        self.release()
        settings = parquet_worker.PackerSettings(
            str(self._folder), self._rows_max, self._memory_bytes_max, os.getpid(), self.is_behind
        )
        parent_socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with child_socket:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", parquet_worker.__name__, settings.to_text()],
                    stdin=child_socket.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=environment(),
                    # Not in a session of its own: Linux shares processors between sessions first (autogroup,
                    # sched(7)), and its niceness would count for nothing against us.
                )
        except BaseException:
            parent_socket.close()
            raise
        self._control, self._low_priority = parent_socket, not self.is_behind
        self._answer_seconds_max = (
            LOW_PRIORITY_ANSWER_SECONDS_MAX if self._low_priority else ANSWER_SECONDS_MAX
        )
        parent_socket.settimeout(self._answer_seconds_max)

    def call(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
        """Call a method of `Packer`, with descriptor *memory* last. Raises PackerError."""
        if self._control is None:
            raise PackerError("the process that writes Parquet has ended")
        packet = json.dumps([name, arguments]).encode()
        try:
            socket.send_fds(self._control, [packet], [] if memory is None else [memory])
            data = self._control.recv(parquet_worker.PACKET_BYTES_MAX)
        except TimeoutError as error:
            self.kill()
            self.release()
            raise (PackerStarvedError if self._low_priority else PackerError)(
                f"the process that writes Parquet did not answer for {self._answer_seconds_max:g} s and was "
                "killed; does the disk answer? `dmesg` says"
            ) from error
        except OSError:
            data = b""
        if not data:
            raise PackerError(f"the process that writes Parquet {self._exit_report()}")
        answer = json.loads(data)
        if "error" in answer:
            raise PackerError(answer["error"])
        return answer["value"]

    def _exit_report(self) -> str:
        assert self._process is not None
        process = self._process
        self.release()
        if process.returncode == -signal.SIGKILL:
            return "was killed: for want of memory? `dmesg` says"
        return f"ended with status {process.returncode}; the aggregator's log says why"

    def kill(self) -> None:
        """End it at once, from any thread: a call that waits for it fails."""
        process = self._process
        if process is not None:
            process.kill()

    def release(self) -> None:
        """Let go of the process and its memory until the next `start`."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(GONE_SECONDS)
            self._process = None
