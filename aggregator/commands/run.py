"""`gangline run`: one aggregator, one agent for this machine, simulated hosts alongside, and the table of hosts."""

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
from ...contract.settings import SettingsError
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
from .connection import ADDRESS_DEFAULT, FAILED, OK, CommandError, ConnectionOptions
from .host_table import folded, host_of, render
from .hosts import FoldMode, hosts_text
from .job import worst_job_text
from .job_client import JobClient
from .score_client import ScoreClient, ScoreListing
from .terminal import refreshed, table_width, wants_colour, width_of

# ----------------------------------------------------------------------
# What `gangline run` shows: the folder it begins in, and the simulated faults that `--once` waits
# for.

#: The live store, as `store.storefile.FILE` names it: that module imports DuckDB.
STORE = "gangline.duckdb"
#: The aggregator of a run that was killed ends by itself within this time, in seconds.
ENDS_SECONDS_MAX = 15.0
#: What of the aggregator's folder is a person's, also in a demonstration: certificates and tokens.
RETAINED = "access"

#: Fault of the scenarios that `gangline simulate` plays -> the reason that is right for it.
REASONS: dict[str, score_pb2.ReasonCode] = {
    "thermal": score_pb2.REASON_THERMAL_THROTTLE,
    "rdma_link": score_pb2.REASON_FABRIC,
    "hbm": score_pb2.REASON_XID_FATAL,
    "slow_host": score_pb2.REASON_STRAGGLER,
    "power_brake": score_pb2.REASON_POWER_CAP,
}
#: States of a host that something is wrong with.
BAD = (score_pb2.DEGRADED, score_pb2.SUSPECT, score_pb2.UNHEALTHY)


class FolderInUseError(Exception):
    """An aggregator runs in the folder that must be emptied."""


def reset_folder(data: Path) -> tuple[bool, str]:
    """Empty what a `gangline run` before left in *data*; return whether it is empty now, and what to say of it.

    Only a folder is emptied that `gangline run` began, and in which no `gangline aggregator` was started since; its
    `access` stays. Raises FolderInUseError, OSError.
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
    from ..store.duckdb_file import LOCK_FILE, StoreError, lock_folder  # DuckDB: only here

    try:
        claimed = lock_folder(aggregator)
    except StoreError as error:
        raise FolderInUseError(str(error)) from error
    try:
        # The store and the mark go last: where this is cut short, the next run does the rest.
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
    """Note that this `gangline run` begins the store in *data*, which is empty: the next run may empty it.

    The note is there before the store: a run that was killed while it started left a store that counted as a person's.
    """
    folder = data / "aggregator"
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    (folder / MARK).write_text(f"{os.getpid()}\n")


def wait_for_killed_run(data: Path, stop: threading.Event) -> None:
    """Wait until the aggregator of a `gangline run` that was killed has left *data*, at most ENDS_SECONDS_MAX."""
    aggregator = data / "aggregator"
    pid = owner_of(aggregator)
    if not pid or _exists(pid):
        return
    from ..store.duckdb_file import StoreError, lock_folder  # DuckDB: only here

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
    """A fault of the truth log that `gangline simulate` writes, and the aggregator never sees."""

    host: str
    kind: str


@dataclass(frozen=True, slots=True)
class TruthLog:
    """The truth log: what goes wrong, and how many hosts show what looks like a fault and is none."""

    faults: tuple[SimulatedFault, ...] = ()
    decoys: frozenset[str] = frozenset()
    count: int = 0  # of causes: a rack's is one


def read_truth(file: Path) -> TruthLog:
    """Return the faults to come; none while the log is not written."""
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
    return TruthLog(tuple(faulty), frozenset(others - {one.host for one in faulty}), len(faults))


def found_message(scores: Sequence[score_pb2.NodeScore], truth: TruthLog) -> str:
    """Say how many of the simulated faults are found, and how many hosts are named that have none."""
    if not truth.faults:
        return ""
    bad = {host_of(one): one.reason for one in scores if one.simulated and one.state in BAD}
    right = sum(bad.get(one.host) == REASONS.get(one.kind) for one in truth.faults)
    wrong = len(bad.keys() - {one.host for one in truth.faults})
    message = f"simulated: {truth.count} faults on {len(truth.faults)} hosts, {right} found"
    if truth.decoys:
        count = len(truth.decoys)
        plural = "" if count == 1 else "s"
        message += f"; {count} look-alike{plural}, {len(bad.keys() & truth.decoys)} blamed"
    return f"{message}; {wrong} blamed without a fault" if wrong else message


def missing_message(
    scores: Sequence[score_pb2.NodeScore], hosts: int, truth: Sequence[SimulatedFault]
) -> str:
    """Say what the table still lacks, or shows wrongly; empty when it is complete and right.

    *scores*: worst first. *hosts*: how many are expected to speak.
    """
    reporting = [s for s in scores if s.state not in (score_pb2.UNKNOWN, score_pb2.STALE)]
    if len(reporting) < hosts:
        return f"{len(reporting)} of {hosts} hosts have a score"
    if hosts > 1 and not truth:
        return "the simulated hosts have not reported which of them will fail"
    wanted = {t.host: REASONS[t.kind] for t in truth}
    worst = {host_of(s): s for s in scores[: len(wanted)]}
    for fault in truth:
        score = worst.get(fault.host)
        if score is None or score.state not in BAD:
            return f"{fault.host} ({fault.kind}) is not among the worst {len(wanted)}"
        if score.reason != wanted[fault.host]:
            name = score_pb2.ReasonCode.Name(score.reason)
            return f"{fault.host} ({fault.kind}) is listed for {name}: {score.reason_words}"
    extra = [host_of(s) for s in scores[len(wanted) :] if s.state in BAD]
    return f"{', '.join(extra)}: these have no fault" if extra else ""


# ----------------------------------------------------------------------
# A token of `gangline run`'s own, for when the aggregator in its folder asks everybody for one.

#: Whose the token is, in `gangline admin token list`.
NAME = "gangline-run"
#: It is revoked when we end; that of a run that was killed, when the next begins.
DAYS = 365


class RunToken:
    """`begin`, once nobody else runs in the folder; `refresh`, every second; then `end`.

    All parts of the run present the token from the start: an aggregator that asks for no login takes no notice of it. It
    is put among the aggregator's tokens as soon as there are any, also where the first one is made while we run. Anyone who
    may write in the folder may make a token anyway.
    """

    def __init__(self, data: Path, file: Path) -> None:
        """*data*: the aggregator's folder; *file*: where the token is put, for us and our children."""
        self._tokens, self._file = tokens_file(data), file
        self._secret = ""
        self._token: Token | None = None
        #: Whether the aggregator asks for it.
        self.is_needed = False

    @property
    def token_file(self) -> str:
        """The token's file."""
        return str(self._file)

    def begin(self) -> None:
        """Make the token. Raises TokensError, OSError."""
        self._secret, self._token = tokens.make_token(Role.ADMIN, NAME, DAYS, int(time.time()))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_private(self._file, f"{self._secret}\n".encode(), 0o600)
        self.refresh()

    def refresh(self) -> None:
        """Put the token among the aggregator's if there are some now, once. Raises TokensError, OSError."""
        token = self._token
        if self.is_needed or token is None or not self._tokens.exists():
            return
        tokens.update_tokens(
            self._tokens, lambda before: [*(one for one in before if one.name != NAME), token]
        )
        self.is_needed = True

    def end(self) -> None:
        """Revoke it. Raises TokensError, OSError."""
        token = self._token
        if token is None:
            return
        if self.is_needed:
            tokens.update_tokens(
                self._tokens, lambda before: [one for one in before if one.id != token.id]
            )
        with suppress(FileNotFoundError):
            if self._secret in self._file.read_text():
                self._file.unlink()
        self._token = None


SIMULATED_MAX = 512
#: What `gangline simulate` takes.
SEED_MAX = 2**64 - 1
#: The service must answer by then; DuckDB replays its log first.
START_SECONDS_MAX = 60.0
#: `--once` gives up here: faults begin 20 to 30 s after the start and show within half a minute, but for the host that
#: is slow at a normal clock, which takes nine windows of 10 s in which its job works.
ONCE_SECONDS_MAX = 300.0
ONCE_SECONDS_LIMIT = 3600.0
POLL_SECONDS = 1.0
#: Scenarios of `gangline simulate` whose faults the table is checked against. Of fewer hosts there are fewer jobs than
#: faults, which would hide each other.
FIVE, THREE, FIVE_HOSTS_MIN = "five", "three", 32
#: The night of docs/sql.md, which is always the same: its hosts, and the store before it, are made for it.
NIGHT = "night"
#: Without a fault.
CALM = "calm"
SCENARIOS = (FIVE, THREE, CALM, NIGHT)


def main(arguments: list[str]) -> int:
    """Run until Ctrl-C, or with `--once` until the table is complete. 1 with the reason if it fails."""
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
            "another `gangline run`, use it with `gangline watch` or stop it; otherwise use "
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
    """The processes of one run, and the table over them."""

    def __init__(
        self,
        options: argparse.Namespace,
        children: Children,
        run_token: RunToken,
        stop: threading.Event,
    ) -> None:
        self._options, self._children, self._run_token, self._stop = (
            options,
            children,
            run_token,
            stop,
        )
        self._truth = options.data / "simulated" / "truth.jsonl"
        self._are_gangs_reported = False

    def run(self, *, is_new: bool) -> int:
        """Start them, show the table, return the exit code. Raises ChildError, CommandError, OSError."""
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
        """Make the store of the night, and what is declared of its hosts; return the aggregator's settings for it."""
        if not is_new:
            raise ChildError(
                "the night needs an empty folder. Empty the folder of --data, or name another"
            )
        file = self._options.data / "night.toml"
        file.write_text(night.declared(time.time_ns() // 1000))
        from ..store.duckdb_file import StoreError  # DuckDB: for the night only

        try:
            night.prepare_store(self._options.data / "aggregator", time.time_ns() // 1000)
        except StoreError as error:
            raise ChildError(str(error)) from error
        return (f"declared={file}", *night.SETTINGS)

    def _report_night(self, client: ScoreClient, listing: ScoreListing) -> bool:
        """Report what the scheduler of the night reports, once its hosts are there; return whether all is reported."""
        if not {host_of(one) for one in listing.scores} >= {*night.HOSTS}:
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
                # A machine short of breath; a first token, made meanwhile.
                except CommandError as error:
                    message = f"this table is old: {error}; {message}"
                except grpc.RpcError as error:
                    message = f"the night's scheduler reports failed: {error}; {message}"
                truth = truth if truth.faults else self._read_truth()
                # Of the night's faults some are put over what the truth log knows.
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
                    explain_command=self._explain_command(),
                )
                show(text)
        print("stopping ...", flush=True)
        return OK

    def _schedulers(self, client: ScoreClient) -> str:
        """Return where a scheduler asks this aggregator; nobody knows as long as it does not respond."""
        try:
            address = client.scores_address()
        except CommandError:
            return ""
        return f"; listening on {self._options.listen}" + (
            f", for schedulers on {address}" if address else ""
        )

    def _once(self, client: ScoreClient) -> int:
        """Wait for the complete table, print it, return 0; what is missing at the end is the reason."""
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
            # Scores of before a restart are no answer to what is so now.
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
        """Return what to say where somebody made a token in our folder: other commands are refused without one."""
        if not self._run_token.is_needed:
            return ""
        return f"this aggregator now requires a token: use other commands with --token-file {self._run_token.token_file}"

    def _show_job(self) -> None:
        """Print the story of the job that a straggler holds up most; none is no failure of the run."""
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

    def _explain_command(self) -> str:
        return self._command("explain")

    def _command(self, name: str) -> str:
        """Return the beginning of a client command that asks our aggregator."""
        arguments = ["gangline", name]
        if self._options.listen != ADDRESS_DEFAULT:
            arguments += ["--server", self._options.listen]
        if self._run_token.is_needed:
            arguments += ["--token-file", self._run_token.token_file]
        return shlex.join(arguments)


def _wait_answering(client: ScoreClient, children: Children, stop: threading.Event) -> None:
    """Return once the service has a first snapshot. Raises ChildError when it never will."""
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
    # Queries yield to everything else: the story at the end takes long on a laptop that is busy.
    assignments = [word for setting in settings for word in ("--set", setting)]
    arguments = ("--data", str(data), "--listen", options.listen, *assignments)
    return ChildCommand("aggregator", arguments, ends_seconds=15.0)


def _agent(options: argparse.Namespace, token_file: str) -> ChildCommand:
    folders = ("spool", "events", "state")
    settings = [f"{name}_folder={options.data / 'agent' / name}" for name in folders]
    settings.append(f"token_file={token_file}")
    assignments = [word for setting in settings for word in ("--set", setting)]
    return ChildCommand("agent", ("--aggregator", options.listen, *assignments))


def _simulated(options: argparse.Namespace, truth: Path, token_file: str) -> ChildCommand:
    return ChildCommand(
        "simulate",
        (
            *("--hosts", str(options.simulated), "--seed", str(options.seed)),
            *("--aggregator", options.listen, "--data", str(options.data / "simulated")),
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
    parser.add_argument(
        "--simulated", type=_count, default=32, metavar="N", help="simulated hosts, 0 to 512"
    )
    parser.add_argument(
        "--seed", type=_seed, default=1, metavar="N", help="selects which hosts fail, and when"
    )
    parser.add_argument(
        "--scenario",
        choices=SCENARIOS,
        metavar="NAME",
        help="which faults happen. five (default): after 20 to 30 s a GPU overheats, a cable degrades, a GPU dies, and "
        "the power supply of a rack slows its GPUs; one host is slow at a normal clock, which takes two minutes to "
        f"detect. three (default below {FIVE_HOSTS_MIN} hosts): the first three of these. calm: none. night: the eight hosts of "
        "docs/sql.md, regardless of --simulated and --seed",
    )
    parser.add_argument(
        "--all", action="store_true", help="one row per host, including HEALTHY ones"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="wait until the faults are found, print the table once, exit",
    )
    parser.add_argument("--data", type=Path, default=Path("var"), metavar="DIR")
    parser.add_argument("--listen", type=_address, default=ADDRESS_DEFAULT, metavar="ADDRESS:PORT")
    parser.add_argument(
        "--seconds-max",
        type=_seconds_max,
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


def _seconds_max(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= ONCE_SECONDS_LIMIT:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to {ONCE_SECONDS_LIMIT:g} seconds")
    return seconds


def _address(text: str) -> str:
    try:
        _, port = parse_listen(text, beyond_loopback=False)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not port:
        raise argparse.ArgumentTypeError(f"{text}: needs a fixed port, such as 7600")
    return text
