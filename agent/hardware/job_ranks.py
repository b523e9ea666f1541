"""Reads the rank and world size of processes through a short-lived child (`job_ranks_child.py`).

Reading `environ` takes the lock of the process's memory and can block as long as a driver holds that process. It also
exposes secrets. So neither the daemon nor a sampler reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..clock import Clock

CHILD = Path(__file__).with_name("job_ranks_child.py")
#: Isolated: without users' folders, site packages and variables of Python. A start takes 20 ms.
COMMAND = (sys.executable, "-I", "-S", "-X", "utf8", str(CHILD))
#: Processes per child; further ones wait for the next child.
BATCH_MAX = 64
WAITING_MAX = 4096
#: A child that runs longer is killed. It normally ends itself earlier.
DEADLINE_NS = 6_000_000_000
#: Wait after a child could not be started.
RETRY_NS = 60_000_000_000
#: Ten times the lines of BATCH_MAX processes.
OUTPUT_BYTES_MAX = 1 << 20
REMEDY = (
    "environments of other users' processes are not shown: AmbientCapabilities=CAP_SYS_PTRACE in the agent's "
    "unit opens them, or set read_ranks=false"
)

#: PID and start in clock ticks.
Identity = tuple[int, int]

#: Attribute -> its variables; the first that exists is used.
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "rank": ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX"),
    "world_size": ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "local_rank": ("LOCAL_RANK", "SLURM_LOCALID"),
    "array_job_id": ("SLURM_ARRAY_JOB_ID",),
    "array_task_id": ("SLURM_ARRAY_TASK_ID",),
    "het_job_id": ("SLURM_HET_JOB_ID",),
    "checkpoint_seconds": ("GANGLINE_CHECKPOINT_SECONDS",),
    "gres_gpus": ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"),
    "mps_threads": ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",),
    "mps_memory": ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",),
}


class RankAnswer(NamedTuple):
    """The helper's answer about a process: attributes by name, or the reason of a refusal."""

    identity: Identity
    attributes: dict[str, str]
    refused: str = ""


def attributes_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes, with the variable names behind rank and GPUs: launchers differ."""
    attributes: dict[str, str] = {}
    for attribute, names in _VARIABLES.items():
        name = next((name for name in names if name in variables), "")
        if name:
            attributes[attribute] = variables[name]
            if attribute in ("rank", "gres_gpus"):
                attributes[f"{attribute}_source"] = name
    return attributes


def parse_answers(output: bytes) -> list[RankAnswer]:
    """Return the answers in the helper's lines; other lines are ignored. Never raises."""
    answers: list[RankAnswer] = []
    for line in output.split(b"\n"):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            fields = json.loads(line)
            variables = {str(k): str(v) for k, v in fields.get("variables", {}).items()}
            identity = int(fields["pid"]), int(fields["start"])
            answers.append(
                RankAnswer(identity, attributes_of(variables), str(fields.get("refused", "")))
            )
    return answers


class RankReader:
    """Runs the helper without waiting. While a child cannot be killed, no other is started."""

    def __init__(self, proc: Path, clock: Clock, command: Sequence[str] = COMMAND) -> None:
        self._proc, self._clock, self._command = proc, clock, tuple(command)
        self._waiting: dict[Identity, None] = {}
        self._requested: list[Identity] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._output = b""
        self._until_ns = 0  # the child's deadline, or the earliest next start
        #: Message about the obstacle; empty: none.
        self.access_error = ""

    def request(self, processes: Iterable[Identity]) -> None:
        """Queue processes for later calls of `poll`. Those beyond WAITING_MAX are dropped."""
        self._waiting |= dict.fromkeys(processes)
        for identity in list(self._waiting)[WAITING_MAX:]:
            del self._waiting[identity]

    def poll(self) -> list[RankAnswer]:
        """Return the answers since the last call. Never waits, never raises."""
        if self._child is None:
            self._start()
            return []
        self._read_output(self._child)
        return self._finish(self._child)

    def _start(self) -> None:
        now_ns = self._clock.boottime_ns()
        if not self._waiting or now_ns < self._until_ns:
            return
        self._requested = list(self._waiting)[:BATCH_MAX]
        command = [
            *self._command,
            str(self._proc),
            *(f"{pid}:{start}" for pid, start in self._requested),
        ]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._until_ns = now_ns + RETRY_NS
            self.access_error = f"the helper for ranks could not be started: {error.strerror}"
            return
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        for identity in self._requested:
            self._waiting.pop(identity, None)
        self._output, self._until_ns = b"", now_ns + DEADLINE_NS

    def _read_output(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while (part := os.read(child.stdout.fileno(), 1 << 16)) and len(
                self._output
            ) < OUTPUT_BYTES_MAX:
                self._output += part

    def _finish(self, child: subprocess.Popen[bytes]) -> list[RankAnswer]:
        """Return the answers of a child that has ended; kill a child that is late."""
        if child.poll() is None:
            if self._clock.boottime_ns() >= self._until_ns:
                child.kill()  # it may be blocked in the kernel, and blocks the next start
                self.access_error = f"the helper for ranks (process {child.pid}) does not respond"
            return []
        self._read_output(child)
        assert child.stdout is not None
        child.stdout.close()
        self._child, self._until_ns = None, 0
        requested = set(self._requested)
        answers = [answer for answer in parse_answers(self._output) if answer.identity in requested]
        answered = {answer.identity for answer in answers}
        unanswered = [identity for identity in self._requested if identity not in answered]
        # Blocked by the first unanswered process: the child reads in order
        if child.returncode < 0:
            self._waiting = dict.fromkeys([*unanswered[1:], *self._waiting])
            del unanswered[1:]
        denied = any(answer.refused == "no permission" for answer in answers)
        self.access_error = REMEDY if denied else ""
        return answers + [RankAnswer(identity, {}, "not answered") for identity in unanswered]

    def close(self) -> None:
        """Kill the child, if one runs, with at most 0.1 s of waiting. Never raises."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.1)
            if child.stdout is not None:
                child.stdout.close()
