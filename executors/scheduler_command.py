"""Runs a scheduler's command with limits, and reads the host lists that Slurm and Flux print."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence

from ..contract.host_sets import HostSetError, expand_hosts
from . import model
from .model import SchedulerError

COMMAND_SECONDS = 10.0
#: Larger output of a command is refused. The limit suffices for 100,000 nodes or 200,000 jobs.
OUTPUT_BYTES_MAX = 256 << 20
ERROR_CHARACTERS_MAX = 300
#: Texts that Slurm prints for an unknown time or an empty list.
NO_TIMES = ("", "N/A", "NONE", "Unknown", "(null)")
Run = Callable[[Sequence[str]], str]


def run_command(
    command: Sequence[str],
    seconds_max: float = COMMAND_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return the output of *command*. Raises SchedulerError with the command's error message."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=seconds_max,
            check=False,
            stdin=subprocess.DEVNULL,
            # With another format of times, the author of a drain and the start of a job could not be parsed.
            env={
                **(os.environ if environment is None else environment),
                "SLURM_TIME_FORMAT": "standard",
            },
        )
    except subprocess.TimeoutExpired as error:
        raise model.SchedulerError(f"{command[0]}: no answer within {seconds_max:g} s") from error
    except OSError as error:
        raise model.SchedulerError(f"{command[0]}: {error.strerror}; is it on the PATH?") from error
    if len(done.stdout) > OUTPUT_BYTES_MAX:
        raise model.SchedulerError(f"{command[0]}: more than {OUTPUT_BYTES_MAX} bytes of output")
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        message = " ".join(done.stderr.decode("utf-8", "replace").split()) or text.strip()
        raise model.SchedulerError(
            f"{' '.join(command[:3])}: {message[:ERROR_CHARACTERS_MAX] or f'exit code {done.returncode}'}"
        )
    return text


def site_command(template: str, node: str) -> list[str]:
    """Return a site's command for *node*, to run without a shell. Raises SchedulerError if *template* is empty."""
    command = [part.replace("{node}", node) for part in shlex.split(template)]
    if not command:
        raise model.SchedulerError("no command is configured for it")
    return command


def host_names(listed: str) -> list[str]:
    """Return the names in a list of Slurm or Flux; [] for "(null)". Raises SchedulerError."""
    listed = listed.strip()
    if listed in NO_TIMES or listed.strip("()") == "None assigned":
        return []
    try:
        return expand_hosts(listed)
    except HostSetError as error:
        raise SchedulerError(f"host list {listed[:80]!r}: {error}") from error


def host_names_or_problem(listed: str) -> tuple[list[str], str]:
    """Return (names, problem): an unreadable host list must not hide all other jobs."""
    try:
        return host_names(listed), ""
    except SchedulerError as error:
        return [], str(error)
