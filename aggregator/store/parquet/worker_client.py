"""The aggregator's end of the Parquet worker (`parquet_worker.py`), which sorts, rolls up and writes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Protocol

from ...workers import WorkerProcess
from . import parquet_worker

#: After this long without an answer a packer is killed, and its work repeated.
ANSWER_SECONDS_MAX = 900.0
#: Limit for a packer of the lowest priority, which may not get any CPU time.
LOW_PRIORITY_ANSWER_SECONDS_MAX = 120.0


class PackerError(Exception):
    """The packer failed or has ended; the message says why."""


class PackerStarvedError(PackerError):
    """A packer of the lowest priority did not answer in time; the next needs normal priority."""


class PackerHandle(Protocol):
    """Interface of a packer for `SegmentStore`."""

    is_behind: bool

    @property
    def is_low_priority(self) -> bool:
        """Return whether a packer of the lowest priority runs."""
        ...

    def start(self) -> None:
        """Start a packer if none runs. Raises OSError."""

    def call(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
        """Call a method of `Packer`. Raises PackerError."""

    def kill(self) -> None:
        """Kill the packer, from any thread: a waiting call fails."""

    def release(self) -> None:
        """End the packer until the next `start`."""


class PackerProcess:
    """A packer in a process. Use it in one thread, except `kill`."""

    def __init__(self, folder: Path, rows_max: int, memory_bytes_max: int) -> None:
        self._folder = folder
        self._rows_max = rows_max
        self._memory_bytes_max = memory_bytes_max
        self._worker: WorkerProcess | None = None
        self._low_priority = True
        self._answer_seconds_max = 0.0
        #: Whether history is behind: then the next process keeps normal priority.
        self.is_behind = False

    @property
    def pid(self) -> int:
        """Return the packer's process id, 0 without a process."""
        return self._worker.pid if self._worker else 0

    @property
    def is_low_priority(self) -> bool:
        """Return whether a packer of the lowest priority runs."""
        return self._worker is not None and self._low_priority

    def start(self) -> None:
        """Start a packer if none runs; its priority depends on `is_behind`. Raises OSError."""
        if self._worker is not None and not self._worker.has_ended:
            return
        self.release()
        settings = parquet_worker.PackerSettings(
            str(self._folder), self._rows_max, self._memory_bytes_max, os.getpid(), self.is_behind
        )
        # In its own session its niceness would not apply relative to the aggregator.
        self._worker = WorkerProcess(parquet_worker.__name__, settings.to_text(), own_session=False)
        self._low_priority = not self.is_behind
        self._answer_seconds_max = (
            LOW_PRIORITY_ANSWER_SECONDS_MAX if self._low_priority else ANSWER_SECONDS_MAX
        )
        self._worker.control.settimeout(self._answer_seconds_max)

    def call(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
        """Call a method of `Packer`; *memory*: a descriptor to pass last. Raises PackerError."""
        if self._worker is None:
            raise PackerError("the process that writes Parquet has ended")
        try:
            self._worker.send([name, arguments], *([] if memory is None else [memory]))
            data = self._worker.control.recv(parquet_worker.PACKET_BYTES_MAX)
        except TimeoutError as error:
            self.kill()
            self.release()
            raise (PackerStarvedError if self._low_priority else PackerError)(
                f"the process that writes Parquet did not answer for {self._answer_seconds_max:g} "
                "s and was killed; `dmesg` shows disk errors"
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
        assert self._worker is not None
        status = self._worker.end()
        self._worker = None
        if status == -signal.SIGKILL:
            return "was killed: out of memory? `dmesg` shows it"
        return f"ended with status {status}; the aggregator's log says why"

    def kill(self) -> None:
        """Kill the packer, from any thread: a waiting call fails."""
        worker = self._worker
        if worker is not None:
            worker.kill()

    def release(self) -> None:
        """End the process until the next `start`."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None
