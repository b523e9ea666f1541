"""`gangline gang -- srun ...`: runs a step in a Slurm allocation with spare nodes, and reruns it when a node fails.

Use it in batch scripts with spare nodes and `--no-kill`. Healthy nodes never leave the job, so the
restart needs no scheduling pass. Slurm decides which nodes are lost: those that left the
allocation, that are DOWN, failing or not responding, or from which an executor evicts jobs. A
program that fails is not a lost node. The command needs no aggregator and no login.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

OK, REFUSED, USAGE = 0, 1, 2
RESTARTS_DEFAULT, RESTARTS_MAX = 3, 1000
#: Time for Slurm to report a lost node after a step has failed.
SETTLE_SECONDS, POLL_SECONDS = 2.0, 0.05
#: Timeout and tries of a command to Slurm's controller; then the step's own exit code counts.
COMMAND_SECONDS, COMMAND_TRIES = 10.0, 3
NODES_MAX = 100_000
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: After such a signal the job ends: no step is started again.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Slurm's flags of a lost node, and of a node on which no step should run.
EVICTED = "EVICTED"
LOST = frozenset(
    {"DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "INVAL", "UNKNOWN", "ERROR", EVICTED}
)
UNWANTED = LOST | {"DRAIN", "MAINT", "REBOOT_ISSUED", "REBOOT_REQUESTED"}
#: Marks of an executor that evicts jobs: the reason of a drain, the name of a reservation.
EVICT_REASON = "gangline:v1;act=evict;"
EVICT_RESERVATION = re.compile(
    r"^ReservationName=gangline_a[0-9]+_evict .*? Nodes=(\S+)", re.MULTILINE
)
#: Slurm adds it to the state of a node that does not respond: `DOWN*`.
NOT_RESPONDING = "*"


class GangError(Exception):
    """Slurm does not respond, or there is no allocation; the message says what is expected."""


def main(arguments: list[str]) -> int:
    """Run the step; return its exit code. 1: no nodes, or no answer of Slurm; 2: wrong usage."""
    before, dashes, command = _split(arguments)
    parser = _parser()
    options = parser.parse_args(before)
    if not dashes or not command:
        parser.error("no step; put its command after --: gangline gang --nodes 4 -- srun ./train")
    if os.path.basename(command[0]) != "srun":
        parser.error(f"{command[0][:100]!r}: expected srun as the first word of the step")
    if clash := _own_placement(command):
        parser.error(f"{clash}: leave it out; gangline gang chooses the nodes of the step")
    try:
        return _Gang(options.nodes, options.restarts, command).run()
    except GangError as error:
        _report(str(error))
        return REFUSED


class _Gang:
    def __init__(self, nodes: int, restarts_max: int, command: Sequence[str]) -> None:
        self.job = os.environ.get("SLURM_JOB_ID", "")
        if not self.job:
            raise GangError(
                "no SLURM_JOB_ID. Run this in a batch script or an allocation of Slurm with "
                "more nodes than the step needs"
            )
        self.count, self.restarts_max, self.command = nodes, restarts_max, command
        self._child: subprocess.Popen[bytes] | None = None
        self._ended_by = 0

    def run(self) -> int:
        """Run the step until it ends by itself, or no nodes or restarts are left."""
        for number in FORWARDED:
            signal.signal(number, self._forward)
        restarts, lost_at = 0, 0.0
        while True:
            nodes = self._nodes_for_step()
            if self._ended_by:
                return 128 + self._ended_by
            code = self._step(nodes, restarts, lost_at)
            ended_at = time.monotonic()
            if code == OK or self._ended_by:
                return code
            lost = self._lost(nodes)
            if not lost:
                return code
            names = ", ".join(f"{name} ({state})" for name, state in lost.items())
            if restarts >= self.restarts_max:
                _report(
                    f"lost {names}; no restarts are left of {restarts}, the step's exit code is {code}"
                )
                return code
            restarts, lost_at = restarts + 1, ended_at
            _report(f"lost {names}; restart {restarts} of at most {self.restarts_max}")

    def _step(self, nodes: Sequence[str], restarts: int, lost_at: float) -> int:
        """Run srun on *nodes*; return its exit code."""
        listed = ",".join(nodes)
        placed = ["--kill-on-bad-exit=1", f"--nodes={len(nodes)}", f"--nodelist={listed}"]
        # srun would prefer these inherited variables to its options.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name
            not in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NODELIST", "SLURM_NO_KILL")
        }
        environment["GANGLINE_RESTART"] = str(restarts)
        command = [self.command[0], *placed, *self.command[1:]]
        try:
            self._child = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise GangError(
                f"{self.command[0]}: {error.strerror}; is Slurm on the PATH?"
            ) from error
        if lost_at:
            _report(
                f"started again on {listed} {time.monotonic() - lost_at:.2f} s after the step had ended"
            )
        if self._ended_by:  # a signal came before the child existed
            self._child.send_signal(self._ended_by)
        code = self._child.wait()
        self._child = None
        return code if code >= 0 else 128 - code

    def _forward(self, number: int, _frame: object) -> None:
        if number in ENDING:
            self._ended_by = number
        if self._child is not None:
            self._child.send_signal(number)

    def _nodes_for_step(self) -> list[str]:
        """Return the nodes for the step: healthy ones, then unwanted ones that still run."""
        states = self._states(self._allocated())
        healthy = [name for name, state in states.items() if not state & UNWANTED]
        usable = [
            *healthy,
            *(name for name, state in states.items() if state & UNWANTED and not state & LOST),
        ]
        if len(usable) < self.count:
            out = ", ".join(
                f"{name} ({'+'.join(sorted(state))})"
                for name, state in states.items()
                if state & LOST
            )
            more = f"; not usable: {out}" if out else ""
            raise GangError(
                f"nodes left of job {self.job}: {len(usable)}, the step needs {self.count}{more}"
            )
        return usable[: self.count]

    def _lost(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the lost *nodes* with Slurm's state of each; waits up to SETTLE_SECONDS."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            allocated = self._allocated()
            states = self._states(nodes)
            lost = {
                name: "+".join(sorted(states.get(name, frozenset())))
                if name in allocated
                else "left the job"
                for name in nodes
                if name not in allocated or states.get(name, frozenset()) & LOST
            }
            if lost or time.monotonic() >= end:
                return lost
            time.sleep(POLL_SECONDS)

    def _allocated(self) -> list[str]:
        """Return the job's present nodes."""
        listed = _slurm("squeue", "--noheader", f"--jobs={self.job}", "--format=%N").strip()
        if not listed or listed == "(null)":
            raise GangError(f"job {self.job} has no nodes: it has ended or never ran")
        return _slurm("scontrol", "show", "hostnames", listed.splitlines()[0]).split()[:NODES_MAX]

    def _states(self, nodes: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return the flags of each node, in the order of *nodes*; EVICTED is our own flag."""
        text = _slurm("scontrol", "-o", "show", "node", ",".join(nodes))
        states: dict[str, frozenset[str]] = {}
        for line in text.splitlines():
            head = re.match(r"NodeName=(\S+) .*? ?State=(\S+)", line)
            if head is None:
                continue
            name, state = head.groups()
            flags = {flag.rstrip("*~#!%$@^-+") for flag in state.split("+")}
            if NOT_RESPONDING in state:
                flags.add("NOT_RESPONDING")
            if f" Reason={EVICT_REASON}" in line:
                flags.add(EVICTED)
            states[name] = frozenset(flags)
        for name in _evicted_nodes() & states.keys():
            states[name] |= {EVICTED}
        return {name: states.get(name, frozenset({"UNKNOWN"})) for name in nodes}


def _evicted_nodes() -> set[str]:
    """Return the nodes in reservations by which executors evict jobs."""
    listed = EVICT_RESERVATION.findall(_slurm("scontrol", "-o", "show", "reservation"))
    return {
        name
        for node_list in listed
        for name in _slurm("scontrol", "show", "hostnames", node_list).split()
    }


def _slurm(*command: str) -> str:
    """Return the output of a Slurm command. Raises GangError."""
    reason = ""
    for _ in range(COMMAND_TRIES):
        try:
            completed = subprocess.run(
                command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            reason = f"no answer within {COMMAND_SECONDS:g} s"
            continue
        except OSError as error:
            raise GangError(f"{command[0]}: {error.strerror}; is Slurm on the PATH?") from error
        if completed.returncode == 0:
            return completed.stdout
        reason = completed.stderr.strip()[:200] or f"exit code {completed.returncode}"
        time.sleep(POLL_SECONDS)
    raise GangError(f"{' '.join(command)[:100]}: {reason}")


def _own_placement(command: Sequence[str]) -> str:
    """Return an srun option that places the step, or "". The program's own options are skipped."""
    for argument in command[1:]:
        if not argument.startswith("-"):
            if argument[0].isdigit():
                continue  # the value of the option before it
            return ""
        if re.match(
            r"(-w|-N|-K|-k|-x)|--(nodelist|nodes|kill-on-bad-exit|no-kill|exclude)\b", argument
        ):
            return argument
    return ""


def _split(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    """Return the arguments before `--`, whether `--` is present, and the arguments after it."""
    if "--" not in arguments:
        return arguments, False, []
    position = arguments.index("--")
    return arguments[:position], True, arguments[position + 1 :]


def _report(message: str) -> None:
    print(f"gangline gang: {message}", file=sys.stderr, flush=True)


def _count(text: str, maximum: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and int(text) <= maximum):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected a whole number up to {maximum}")
    return int(text)


def _nodes_option(text: str) -> int:
    if not (count := _count(text, NODES_MAX)):
        raise argparse.ArgumentTypeError("0: expected 1 or more")
    return count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline gang",
        usage="gangline gang --nodes N [--restarts N] -- srun [OPTION]... PROGRAM [ARGUMENT]...",
        description=(
            "Runs a step on N healthy nodes, in a batch script of Slurm with spare nodes "
            "(sbatch -N5 --no-kill). If a node is lost, restarts the step on healthy nodes. "
            "The program must resume from its last checkpoint; GANGLINE_RESTART contains the "
            "number of restarts."
        ),
        epilog=(
            "exit codes: the step's own; 1 if too few nodes are left or Slurm does not answer, "
            "2 wrong usage"
        ),
    )
    parser.add_argument(
        "--nodes",
        type=_nodes_option,
        required=True,
        metavar="N",
        help="number of nodes that the step needs",
    )
    parser.add_argument(
        "--restarts",
        type=lambda text: _count(text, RESTARTS_MAX),
        default=RESTARTS_DEFAULT,
        metavar="N",
        help=f"maximum number of restarts (default {RESTARTS_DEFAULT})",
    )
    return parser
