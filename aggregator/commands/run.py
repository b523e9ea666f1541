"""`gangline run`: an aggregator, this machine's agent and simulated hosts; shows the host table."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from ...cli import USAGE
from ...contract.client.connection import (
    ADDRESS_DEFAULT,
    FAILED,
    OK,
    CommandError,
    ConnectionOptions,
)
from ...contract.client.score_client import ScoreClient, ScoreListing
from ...contract.client.terminal import refreshed, table_width, wants_colour, width_of
from ...contract.options import duration
from ...contract.settings import SettingsError
from ...contract.text import counted
from ...contract.wire import score_pb2
from ..auth import tokens
from ..auth.access import tokens_file
from ..auth.tokens import Token, TokensError, write_private
from ..config import parse_listen
from ..principal import Role
from . import night
from .aggregator import DEMONSTRATION as MARK
from .aggregator import owner_of
from .child_process import ChildCommand, ChildError, Children
from .host_table import folded, host_of, render
from .hosts import FoldMode, hosts_text
from .job import worst_job_text
from .job_client import JobClient

#: The live store, as `store.storefile.FILE` names it: that module imports DuckDB.
STORE = "gangline.duckdb"
#: The aggregator of a run that was killed ends by itself within this time, in seconds.
ENDS_SECONDS_MAX = 15.0
#: Kept in the aggregator's folder, also in a demonstration: certificates and tokens.
RETAINED = "access"

#: Fault of the scenarios that `gangline simulate` plays -> the reason that is right for it.
REASONS: dict[str, score_pb2.ReasonCode] = {
    "thermal": score_pb2.REASON_THERMAL_THROTTLE,
    "rdma_link": score_pb2.REASON_FABRIC,
    "hbm": score_pb2.REASON_XID_FATAL,
    "slow_host": score_pb2.REASON_STRAGGLER,
    "power_brake": score_pb2.REASON_POWER_CAP,
}
#: States of a host with a problem.
BAD = (score_pb2.DEGRADED, score_pb2.SUSPECT, score_pb2.UNHEALTHY)

#: Name of the token in `gangline admin token list`.
NAME = "gangline-run"
#: The token is revoked when the run ends, or by the next run after a kill.
DAYS = 365
SIMULATED_MAX = 512
#: Largest seed that `gangline simulate` accepts.
SEED_MAX = 2**64 - 1
#: The service must answer within this time; DuckDB replays its log first.
START_SECONDS_MAX = 60.0
#: Default time limit of `--once`. Faults begin 20 to 30 s after the start and show within 30 s. A
#: host that is slow at a normal clock takes nine windows of 10 s in which its job works.
ONCE_SECONDS_MAX = 300.0
ONCE_SECONDS_LIMIT = 3600.0
POLL_SECONDS = 1.0
#: Scenarios whose faults `--once` checks. Below FIVE_HOSTS_MIN hosts there are fewer jobs than
#: faults, and faults would hide each other.
FIVE, THREE, FIVE_HOSTS_MIN = "five", "three", 32
#: The night of docs/sql.md, always the same, with its own hosts and a prepared store.
NIGHT = "night"
#: No faults.
CALM = "calm"
SCENARIOS = (FIVE, THREE, CALM, NIGHT)


class FolderInUseError(Exception):
    """An aggregator runs in the folder that must be emptied."""


def reset_folder(data: Path) -> tuple[bool, str]:
    """Empty the data of an earlier `gangline run` in *data*; return (is empty now, message).

    Only a folder that `gangline run` created and no `gangline aggregator` has used since is
    emptied; its `access` stays. Raises FolderInUseError, OSError.
    """
    aggregator, simulated = data / "aggregator", data / "simulated"
    if not (aggregator / STORE).exists():
        return True, ""
    if aggregator.is_symlink() or not (aggregator / MARK).exists():
        return False, (
            f"{aggregator} has data that no `gangline run` created: this run continues with it, "
            "and also shows its old "
            "hosts and findings; for an empty start use --data OTHER, or remove the folder"
        )
    from ..store.store_folder import LOCK_FILE, StoreError, lock_folder

    try:
        claimed = lock_folder(aggregator)
    except StoreError as error:
        raise FolderInUseError(str(error)) from error
    try:
        # The store and the mark go last: after an interruption the next run removes the rest.
        last = (STORE, MARK)
        removable = [
            path for path in aggregator.iterdir() if path.name not in (RETAINED, LOCK_FILE, *last)
        ]
        for path in [*removable, *(aggregator / name for name in last)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    finally:
        claimed.discard()
    if simulated.is_dir() and not simulated.is_symlink():
        shutil.rmtree(simulated)
    return True, f"{aggregator}: removed what the `gangline run` before had stored"


def mark_started(data: Path) -> None:
    """Mark the empty store in *data* as created by `gangline run`: the next run may empty it.

    The mark is written before the store: a run killed during its start left an unmarked store,
    which was then kept as an operator's.
    """
    folder = data / "aggregator"
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    (folder / MARK).write_text(f"{os.getpid()}\n")


def wait_for_killed_run(data: Path, stop: threading.Event) -> None:
    """Wait until the aggregator of a killed `gangline run` exits, at most ENDS_SECONDS_MAX."""
    aggregator = data / "aggregator"
    pid = owner_of(aggregator)
    if not pid or _exists(pid):
        return
    from ..store.store_folder import StoreError, lock_folder

    end = time.monotonic() + ENDS_SECONDS_MAX
    while time.monotonic() < end:
        try:
            lock_folder(aggregator).release()
        except StoreError:
            if not stop.wait(0.2):
                continue
        return


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """A fault from the truth log of `gangline simulate`, which the aggregator never sees."""

    host: str
    kind: str


@dataclass(frozen=True, slots=True)
class TruthLog:
    """The truth log: the faults, and the hosts that look faulty without a fault (decoys)."""

    faults: tuple[SimulatedFault, ...] = ()
    decoys: frozenset[str] = frozenset()
    count: int = 0  # number of causes; a rack fault counts once


def read_truth(file: Path) -> TruthLog:
    """Return the truth log of *file*; an empty one while the file does not exist."""
    try:
        lines = file.read_text().splitlines()
    except FileNotFoundError:
        return TruthLog()
    incidents = [fields for fields in map(json.loads, lines) if fields.get("what") == "incident"]
    faults = [fields for fields in incidents if fields["sort"] == "faults"]
    faulty = [
        SimulatedFault(host, fields["class"]) for fields in faults for host, _ in fields["struck"]
    ]
    others = {h for fields in incidents if fields["sort"] != "faults" for h, _ in fields["struck"]}
    return TruthLog(tuple(faulty), frozenset(others - {f.host for f in faulty}), len(faults))


def found_message(scores: Sequence[score_pb2.NodeScore], truth: TruthLog) -> str:
    """Return how many simulated faults are found, and how many hosts are blamed without a fault."""
    if not truth.faults:
        return ""
    bad = {host_of(s): s.reason for s in scores if s.simulated and s.state in BAD}
    right = sum(bad.get(fault.host) == REASONS.get(fault.kind) for fault in truth.faults)
    wrong = len(bad.keys() - {fault.host for fault in truth.faults})
    message = f"simulated: {truth.count} faults on {len(truth.faults)} hosts, {right} found"
    if truth.decoys:
        message += (
            f"; {counted(len(truth.decoys), 'look-alike')}, {len(bad.keys() & truth.decoys)} blamed"
        )
    return f"{message}; {wrong} blamed without a fault" if wrong else message


def missing_message(
    scores: Sequence[score_pb2.NodeScore], hosts: int, truth: Sequence[SimulatedFault]
) -> str:
    """Return the first deficiency of the table; "" when it is complete and correct.

    *scores*: worst first. *hosts*: number of hosts that must report.
    """
    reporting = [s for s in scores if s.state not in (score_pb2.UNKNOWN, score_pb2.STALE)]
    if len(reporting) < hosts:
        return f"{len(reporting)} of {hosts} hosts have a score"
    if hosts > 1 and not truth:
        return "the simulated hosts have not reported which of them will fail"
    wanted = {fault.host: REASONS[fault.kind] for fault in truth}
    worst = {host_of(s): s for s in scores[: len(wanted)]}
    for fault in truth:
        score = worst.get(fault.host)
        if score is None or score.state not in BAD:
            return f"{fault.host} ({fault.kind}) is not among the worst {len(wanted)}"
        if score.reason != wanted[fault.host]:
            name = score_pb2.ReasonCode.Name(score.reason)
            return f"{fault.host} ({fault.kind}) is listed for {name}: {score.reason_message}"
    extra = [host_of(s) for s in scores[len(wanted) :] if s.state in BAD]
    return f"{', '.join(extra)}: these have no fault" if extra else ""


class RunToken:
    """The run's own token.

    Call `begin` once the folder is free, `refresh` every second, then `end`. All processes of the
    run present the token from the start; an aggregator without login ignores it. It is registered
    as soon as the aggregator has any token, also one made while the run is active. That grants
    nothing new: write access to the folder suffices to make a token.
    """

    def __init__(self, data: Path, file: Path) -> None:
        """*data*: the aggregator's folder; *file*: token file for this process and its children."""
        self._tokens, self._file = tokens_file(data), file
        self._secret = ""
        self._token: Token | None = None
        #: Whether the aggregator requires a token.
        self.is_needed = False

    @property
    def token_file(self) -> str:
        """The token's file."""
        return str(self._file)

    def begin(self) -> None:
        """Create the token and write its file. Raises TokensError, OSError."""
        self._secret, self._token = tokens.make_token(Role.ADMIN, NAME, DAYS, int(time.time()))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._file, f"{self._secret}\n".encode(), 0o600)
        self.refresh()

    def refresh(self) -> None:
        """Register the token once the aggregator has any tokens. Raises TokensError, OSError."""
        token = self._token
        if self.is_needed or token is None or not self._tokens.exists():
            return
        tokens.update_tokens(
            self._tokens,
            lambda before: [*(existing for existing in before if existing.name != NAME), token],
        )
        self.is_needed = True

    def end(self) -> None:
        """Revoke the token and remove its file. Raises TokensError, OSError."""
        token = self._token
        if token is None:
            return
        if self.is_needed:
            tokens.update_tokens(
                self._tokens,
                lambda before: [existing for existing in before if existing.id != token.id],
            )
        with suppress(FileNotFoundError):
            if self._secret in self._file.read_text():
                self._file.unlink()
        self._token = None


def main(arguments: list[str]) -> int:
    """Run until Ctrl-C; with `--once`, until the table is complete. Return 1 on failure."""
    options = _parser().parse_args(arguments)
    if options.scenario is None:
        options.scenario = FIVE if options.simulated >= FIVE_HOSTS_MIN else THREE
    if options.scenario == NIGHT:
        options.simulated = len(night.HOSTS)
    if options.once and options.scenario in (CALM, NIGHT):
        print("gangline run: --once cannot check the table of this --scenario", file=sys.stderr)
        return USAGE
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    wait_for_killed_run(options.data, stop)
    if _in_use(options.listen):
        print(
            f"gangline run: another process already listens on {options.listen}. If it is "
            "another `gangline run`, use it with `gangline hosts --watch` or stop it; otherwise use "
            "--listen 127.0.0.1:PORT",
            file=sys.stderr,
        )
        return FAILED
    run_token = RunToken(options.data / "aggregator", options.data / "run.token")
    try:
        with Children(options.data) as children:
            is_new, message = reset_folder(options.data)
            if message:
                print(message, flush=True)
            try:
                run_token.begin()
                return _DemonstrationRun(options, children, run_token, stop).run(is_new=is_new)
            finally:
                run_token.end()
    except (ChildError, CommandError, FolderInUseError, TokensError, OSError) as error:
        print(f"gangline run: {error}", file=sys.stderr)
        return FAILED


class _DemonstrationRun:
    """The processes of a run, and the table that shows their state."""

    def __init__(
        self,
        options: argparse.Namespace,
        children: Children,
        run_token: RunToken,
        stop: threading.Event,
    ) -> None:
        self._options = options
        self._children = children
        self._run_token = run_token
        self._stop = stop
        self._truth = options.data / "simulated" / "truth.jsonl"
        self._are_gangs_reported = False

    def run(self, *, is_new: bool) -> int:
        """Start the processes, show the table, and return the exit code.

        Raises ChildError, CommandError, OSError.
        """
        options, children, token_file = self._options, self._children, self._run_token.token_file
        print(f"data and logs under {options.data}; starting the aggregator ...", flush=True)
        if is_new:
            mark_started(options.data)
        declared = self._before_night(is_new=is_new) if options.scenario == NIGHT else ()
        children.start(_aggregator(options, declared))
        connection = ConnectionOptions(options.listen, token_file=token_file)
        with ScoreClient(connection, in_loop=True) as client:
            _wait_answering(client, children, self._stop)
            if self._stop.is_set():  # Ctrl-C before the service answered
                return self._ended_early() if options.once else OK
            children.start(_agent(options, token_file))
            if options.simulated:
                self._truth.unlink(missing_ok=True)
                children.start(_simulated(options, self._truth, token_file))
            return self._once(client) if options.once else self._watch(client)

    def _before_night(self, *, is_new: bool) -> tuple[str, ...]:
        """Prepare the store and the declarations of the night; return the aggregator's settings."""
        if not is_new:
            raise ChildError(
                "the night needs an empty folder. Empty the folder of --data, or name another"
            )
        file = self._options.data / "night.toml"
        file.write_text(night.declared(time.time_ns() // 1000))
        from ..store.store_folder import StoreError

        try:
            night.prepare_store(self._options.data / "aggregator", time.time_ns() // 1000)
        except StoreError as error:
            raise ChildError(str(error)) from error
        return (f"declared={file}", *night.SETTINGS)

    def _report_night(self, client: ScoreClient, listing: ScoreListing) -> bool:
        """Send the night's scheduler reports once its hosts are present.

        Return whether all reports are sent.
        """
        if not {host_of(score) for score in listing.scores} >= {*night.HOSTS}:
            return False
        now_us = time.time_ns() // 1000
        if not self._are_gangs_reported:
            night.send_scheduler_reports(client.channel, now_us)
            self._are_gangs_reported = True
        return night.report_outcome(client.channel, now_us)

    def _watch(self, client: ScoreClient) -> int:
        terminal = sys.stdout.isatty()
        schedulers = self._schedulers(client)
        listing = ScoreListing([], 0, "")
        truth, is_night_reported = TruthLog(), self._options.scenario != NIGHT
        with refreshed(in_place=terminal) as show:
            while not self._stop.wait(POLL_SECONDS):
                self._children.check()
                self._run_token.refresh()
                message = f"jobs: {self._command('job')}{schedulers}; Ctrl-C ends everything"
                try:
                    listing = client.hosts()
                    is_night_reported = is_night_reported or self._report_night(client, listing)
                # A busy machine, or a token created meanwhile.
                except CommandError as error:
                    message = f"this table is old: {error}; {message}"
                except grpc.RpcError as error:
                    message = f"the night's scheduler reports failed: {error}; {message}"
                truth = truth if truth.faults else self._read_truth()
                # Some faults of the night are not in the truth log.
                faults = (
                    "" if self._options.scenario == NIGHT else found_message(listing.scores, truth)
                )
                lines = (faults, self._login(), message)
                text = hosts_text(
                    listing,
                    "\n".join(filter(None, lines)),
                    is_terminal=terminal,
                    in_place=terminal,
                    fold=FoldMode.NEVER if self._options.all else FoldMode.ALWAYS,
                    explain_command=self._command("explain"),
                )
                show(text)
        print("stopping ...", flush=True)
        return OK

    def _schedulers(self, client: ScoreClient) -> str:
        """Return a message with the addresses for clients and schedulers; "" without an answer."""
        try:
            address = client.scores_address()
        except CommandError:
            return ""
        return f"; listening on {self._options.listen}" + (
            f", for schedulers on {address}" if address else ""
        )

    def _once(self, client: ScoreClient) -> int:
        """Print the table once it is complete and return 0; else report what is missing."""
        options = self._options
        end = time.monotonic() + options.seconds_max
        lacking = "no table yet"
        listing = ScoreListing([], 0, "")
        while time.monotonic() < end:
            if self._stop.wait(POLL_SECONDS):
                return self._ended_early()
            self._children.check()
            self._run_token.refresh()
            try:
                listing = client.hosts()
            except CommandError as error:
                lacking = str(error)
                continue
            # Scores from before a restart do not describe the present.
            lacking = listing.degraded_reason or missing_message(
                listing.scores, 1 + options.simulated, self._read_truth().faults
            )
            if not lacking:
                break
        fold = sys.stdout.isatty() and not options.all
        rows = folded(listing.scores, None) if fold else listing.scores
        print(render(rows, table_width(), colour=wants_colour()))
        if message := found_message(listing.scores, self._read_truth()):
            print(message)
        self._show_job()
        if lacking:
            print(f"gangline run: after {options.seconds_max:g} s: {lacking}", file=sys.stderr)
        return FAILED if lacking else OK

    def _ended_early(self) -> int:
        print("gangline run: ended before the table was complete", file=sys.stderr)
        return FAILED

    def _read_truth(self) -> TruthLog:
        return read_truth(self._truth) if self._options.simulated else TruthLog()

    def _login(self) -> str:
        """Return the hint that other commands need a token; "" while none exists in our folder."""
        if not self._run_token.is_needed:
            return ""
        return f"this aggregator now requires a token: use other commands with --token-file {self._run_token.token_file}"

    def _show_job(self) -> None:
        """Print the job that a straggler delays most; a run without such a job is no failure."""
        token_file = self._run_token.token_file
        connection = ConnectionOptions(self._options.listen, token_file=token_file)
        try:
            with JobClient(connection) as client:
                text = worst_job_text(
                    client, self._command("job"), width_of(sys.stdout), colour=wants_colour()
                )
        except CommandError as error:
            text = f"the jobs cannot be shown: {error}"
        if text:
            print(f"\n{text}")

    def _command(self, name: str) -> str:
        """Return the start of a client command that addresses this run's aggregator."""
        arguments = ["gangline", name]
        if self._options.listen != ADDRESS_DEFAULT:
            arguments += ["--server", self._options.listen]
        if self._run_token.is_needed:
            arguments += ["--token-file", self._run_token.token_file]
        return shlex.join(arguments)


def _wait_answering(client: ScoreClient, children: Children, stop: threading.Event) -> None:
    """Wait for the first snapshot, until *stop* is set. Raises ChildError, CommandError."""
    end = time.monotonic() + START_SECONDS_MAX
    while not stop.wait(0.2):
        children.check()
        try:
            client.hosts()
            return
        except CommandError:
            if time.monotonic() > end:
                raise


def _aggregator(options: argparse.Namespace, settings: Sequence[str]) -> ChildCommand:
    data = options.data / "aggregator"
    assignments = [word for setting in settings for word in ("--set", setting)]
    arguments = ("--data", str(data), "--listen", options.listen, *assignments)
    return ChildCommand("aggregator", arguments, ends_seconds=15.0)


def _agent(options: argparse.Namespace, token_file: str) -> ChildCommand:
    folders = ("spool", "events", "state")
    settings = [f"{name}_folder={options.data / 'agent' / name}" for name in folders]
    settings.append(f"token_file={token_file}")
    assignments = [word for setting in settings for word in ("--set", setting)]
    return ChildCommand("agent", ("--server", options.listen, *assignments))


def _simulated(options: argparse.Namespace, truth: Path, token_file: str) -> ChildCommand:
    return ChildCommand(
        "simulate",
        (
            *("--hosts", str(options.simulated), "--seed", str(options.seed)),
            *("--server", options.listen, "--data", str(options.data / "simulated")),
            *("--truth", str(truth), "--token-file", token_file),
            *("--scenario", options.scenario),
        ),
    )


def _in_use(listen: str) -> bool:
    address, _, port = listen.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, int(port))) == 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline run",
        description="Try Gangline on this machine: starts one aggregator on loopback, one agent for this machine "
        "and simulated 8-GPU hosts, some of which fail. Shows the table of hosts, the worst last. Ctrl-C stops "
        "everything. Each run starts with an empty folder, unless another aggregator has stored data in it.",
    )
    add = parser.add_argument
    add("--simulated", type=_count, default=32, metavar="N", help="simulated hosts, 0 to 512")
    add("--seed", type=_seed, default=1, metavar="N", help="selects which hosts fail, and when")
    add(
        "--scenario",
        choices=SCENARIOS,
        metavar="NAME",
        help="which faults happen. five (default): after 20 to 30 s a GPU overheats, a cable degrades, a GPU dies, and "
        "the power supply of a rack slows its GPUs; one host is slow at a normal clock, which takes two minutes to "
        f"detect. three (default below {FIVE_HOSTS_MIN} hosts): the first three of these. calm: none. night: the eight hosts of "
        "docs/sql.md, regardless of --simulated and --seed",
    )
    add("--all", action="store_true", help="one row per host, including HEALTHY ones")
    add(
        "--once",
        action="store_true",
        help="wait until the faults are found, print the table once, exit",
    )
    add("--data", type=Path, default=Path("var"), metavar="DIR")
    add("--listen", type=_address, default=ADDRESS_DEFAULT, metavar="ADDRESS:PORT")
    add(
        "--seconds-max",
        type=duration(1.0, ONCE_SECONDS_LIMIT),
        default=ONCE_SECONDS_MAX,
        metavar="N",
        help="time limit of --once",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > SIMULATED_MAX:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, 0 to {SIMULATED_MAX}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > SEED_MAX:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, 0 to {SEED_MAX}")
    return int(text)


def _address(text: str) -> str:
    try:
        _, port = parse_listen(text, beyond_loopback=False)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not port:
        raise argparse.ArgumentTypeError(f"{text}: needs a fixed port, such as 7600")
    return text
