"""`gangline run`: the whole way on this machine, as a newcomer meets it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb
import pytest

from gangline.agent.hardware import open_handles
from gangline.aggregator.auth import tokens
from gangline.aggregator.auth.access import tokens_file
from gangline.aggregator.commands.aggregator import DEMONSTRATION
from gangline.aggregator.commands.child_process import ChildCommand, ChildError, Children
from gangline.aggregator.commands.run import (
    REASONS,
    FolderInUseError,
    RunToken,
    SimulatedFault,
    TruthLog,
    found_message,
    mark_started,
    missing_message,
    read_truth,
    reset_folder,
    wait_for_killed_run,
)
from gangline.aggregator.principal import Role
from gangline.aggregator.store import store_folder
from gangline.contract.wire import score_pb2
from tests.processes import GUARD_SECONDS, Process, free_port, until

PROC = Path("/proc")
TRUTH = [SimulatedFault("b", "thermal"), SimulatedFault("c", "hbm")]


def score(host: str, state: str, reason: str = "REASON_CODE_UNSPECIFIED") -> score_pb2.NodeScore:
    return score_pb2.NodeScore(
        node=f"nodes/{host}",
        state=getattr(score_pb2, state),
        reason=getattr(score_pb2, reason),
    )


XID = score("c", "UNHEALTHY", "REASON_XID_FATAL")
HEAT = score("b", "DEGRADED", "REASON_THERMAL_THROTTLE")
WELL = score("a", "HEALTHY")


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([XID, HEAT, WELL], ""),
        ([XID, HEAT], "2 of 3 hosts have a score"),
        ([XID, HEAT, score("a", "UNKNOWN")], "2 of 3 hosts have a score"),
        ([XID, WELL, score("b", "HEALTHY")], "b (thermal) is not among the worst 2"),
        (
            [XID, score("b", "DEGRADED", "REASON_PCIE"), WELL],
            "b (thermal) is listed for REASON_PCIE: ",
        ),
        ([XID, HEAT, score("a", "SUSPECT")], "a: these have no fault"),
    ],
)
def test_what_the_table_lacks(scores: list[score_pb2.NodeScore], message: str) -> None:
    """`make run ONCE=1` in a script must fail when the wrong host is at the bottom."""
    assert missing_message(scores, 3, TRUTH) == message


def test_simulated_hosts_must_say_who_fails(tmp_path: Path) -> None:
    """Without the truth log nothing would be checked, and everything would pass."""
    assert read_truth(tmp_path / "absent") == TruthLog()
    assert "have not reported" in missing_message([XID, HEAT, WELL], 3, [])
    assert missing_message([WELL], 1, []) == ""


def test_the_table_says_what_of_the_faults_is_found() -> None:
    """The table hid that look-alikes ran and no host was named for them, although this is half of the point."""
    log_of_truth = TruthLog((*TRUTH, SimulatedFault("d", "power_brake")), frozenset({"e"}), 2)
    for fault in (XID, HEAT):
        fault.simulated = True
    assert found_message([XID, HEAT, WELL], log_of_truth) == (
        "simulated: 2 faults on 3 hosts, 2 found; 1 look-alike, 0 blamed"
    )
    wrong = score("e", "SUSPECT")
    wrong.simulated = True
    assert found_message([XID, wrong], log_of_truth).endswith(
        "1 found; 1 look-alike, 1 blamed; 1 blamed without a fault"
    )
    assert found_message([WELL], TruthLog()) == ""


def store(data: Path) -> Path:
    """Put what an aggregator leaves into its folder below *data*; return that folder."""
    aggregator = data / "aggregator"
    (aggregator / "segments").mkdir(parents=True)
    (aggregator / "access").mkdir()
    for name in (
        store_folder.STORE_FILE,
        "operators.duckdb",
        "segments/x.parquet",
        "access/tokens.json",
    ):
        (aggregator / name).write_text("x")
    (data / "simulated" / "sim-000").mkdir(parents=True)
    return aggregator


def test_a_run_empties_what_a_run_before_it_began(tmp_path: Path) -> None:
    """The second `make run` differed: from second 5 on the faults of the earlier run were in the table."""
    assert reset_folder(tmp_path) == (True, "")
    aggregator = store(tmp_path)
    mark_started(tmp_path)
    is_new, message = reset_folder(tmp_path)
    assert is_new and "removed what the `gangline run` before had stored" in message
    assert [path.name for path in aggregator.iterdir()] == ["access"], "a person made these"
    assert not (tmp_path / "simulated").exists()
    assert reset_folder(tmp_path) == (True, "")


def test_a_run_removes_nobody_elses_data(tmp_path: Path) -> None:
    """`gangline aggregator` also stores under ./var/aggregator: months of readings must survive a `make run`."""
    aggregator = store(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    is_new, message = reset_folder(tmp_path)
    assert not is_new and "this run continues with it" in message
    assert sorted(path for path in tmp_path.rglob("*")) == before
    elsewhere = tmp_path / "real"
    aggregator.rename(elsewhere)
    aggregator.symlink_to(elsewhere)
    mark_started(tmp_path)
    assert not reset_folder(tmp_path)[0] and (elsewhere / store_folder.STORE_FILE).exists()


def test_a_run_removes_nothing_of_an_aggregator_that_still_runs(tmp_path: Path) -> None:
    """The killed run's aggregator was still ending: its store must stay until its end."""
    aggregator = store(tmp_path)
    mark_started(tmp_path)
    claimed = store_folder.lock_folder(aggregator)
    try:
        with pytest.raises(FolderInUseError, match="in use"):
            reset_folder(tmp_path)
    finally:
        claimed.release()
    assert (aggregator / store_folder.STORE_FILE).exists()
    assert reset_folder(tmp_path)[0]


@pytest.mark.slow
def test_an_aggregator_makes_a_demonstrations_folder_its_own(tmp_path: Path) -> None:
    """After a `make run` real use began in the same folder: it must no longer count as a demonstration's."""
    data = tmp_path / "aggregator"
    mark_started(tmp_path)
    (data / DEMONSTRATION).write_text(
        "1\n"
    )  # another process: the parent of the aggregator is this one
    arguments = ["aggregator", "--data", str(data), "--listen", "127.0.0.1:0"]
    with Process(arguments, tmp_path / "aggregator.log") as process:
        until(lambda: "listening" in process.said(), "listening")
        assert not (data / DEMONSTRATION).exists()


def test_a_token_made_meanwhile_does_not_lock_the_run_out(tmp_path: Path) -> None:
    """`gangline admin token new` while it ran: its table, its agent and its hosts were refused until it was started again."""
    own = RunToken(tmp_path / "aggregator", tmp_path / "run.token")
    path = tokens_file(tmp_path / "aggregator")
    own.begin()
    secret = Path(own.token_file).read_text().strip()
    own.refresh()
    assert not path.exists() and not own.is_needed, "no login is asked for by our doing"
    _, alice = tokens.make_token(Role.OPERATOR, "alice", 1.0, int(time.time()))
    tokens.update_tokens(path, lambda _: [alice])
    own.refresh()
    assert own.is_needed
    ours = tokens.Tokens(path).find(secret, time.time())
    assert ours is not None and (ours.role, ours.name) == (Role.ADMIN, "gangline-run")
    tokens.update_tokens(path, lambda _: [alice])
    own.refresh()
    assert tokens.read_tokens(path) == [alice], "who revokes it means it"
    own.end()
    assert tokens.read_tokens(path) == [alice] and not (tmp_path / "run.token").exists()


@pytest.mark.slow
def test_a_child_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    """The aggregator's port was in use: the reason must not stay hidden in a log file."""
    with Children(tmp_path) as children:
        children.start(ChildCommand("aggregator", ("--listen", "nowhere")))

        def died() -> bool:
            try:
                children.check()
            except ChildError as error:
                assert "`gangline aggregator` ended with exit code 2" in str(error)
                assert "expected address:port" in str(error)
                return True
            return False

        until(died, "its end is noticed")


def descendants(pid: int) -> set[int]:
    pids, todo = set[int](), [pid]
    while todo:
        current = todo.pop()
        below = open_handles.children(PROC, current)
        pids.update(below)
        todo += below
    return pids


def living(pids: set[int]) -> set[int]:
    """Return the processes that still run: a dead orphan stays listed until process 1 collects it."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    return {pid for pid in pids if runs(pid)}


def opens(store: Path) -> bool:
    with duckdb.connect(str(store), read_only=True) as base:
        row = base.execute("SELECT count(*) FROM readings.host_1s").fetchone()
    return row is not None and row[0] > 0


@pytest.mark.slow
def test_a_killed_child_is_named_by_its_signal(tmp_path: Path) -> None:
    """The kernel's out-of-memory killer took the service: not `exit code -9` and its first log line."""
    before = set(open_handles.children(PROC, os.getpid()))
    with Children(tmp_path) as children:
        children.start(
            ChildCommand("aggregator", ("--data", str(tmp_path / "a"), "--listen", "127.0.0.1:0"))
        )
        log = tmp_path / "log" / "aggregator.log"
        until(lambda: log.exists() and "listening" in log.read_text(), "listening")
        (child,) = set(open_handles.children(PROC, os.getpid())) - before
        os.kill(child, signal.SIGKILL)

        def died() -> bool:
            try:
                children.check()
            except ChildError as error:
                assert "was killed by SIGKILL; out of memory?" in str(error)
                return True
            return False

        until(died, "its end is noticed")


@pytest.mark.slow
def test_nothing_outlives_a_killed_run(tmp_path: Path) -> None:
    """kill -9 of `gangline run` left three processes that held the port and the store."""
    with running(tmp_path, "--simulated", "1") as process:
        until(lambda: "sim-000" in process.said(), f"the table: {process.log}")
        children = descendants(process.pid)
        assert len(children) >= 3
        process.kill()
        until(lambda: not living(children), "all gone")


def test_a_run_that_is_killed_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    """Its store, begun and not yet marked, counted as a person's: the next run continued with it, and `--scenario night` refused."""
    with running(tmp_path, "--simulated", "0") as process:
        store_file = tmp_path / "var" / "aggregator" / store_folder.STORE_FILE
        until(store_file.exists, f"the store is begun: {process.log}")
        children = descendants(process.pid)
        process.kill()
    wait_for_killed_run(tmp_path / "var", threading.Event())
    assert reset_folder(tmp_path / "var")[0]
    until(lambda: not living(children), "all gone")


@pytest.mark.slow
def test_ctrl_c_while_the_aggregator_starts(tmp_path: Path) -> None:
    """No traceback, no process, no store that counts as a person's; and `--once` has not succeeded."""
    with running(tmp_path, "--simulated", "2", "--once") as process:
        until(lambda: "starting the aggregator" in process.said(), f"it starts: {process.log}")
        until(lambda: len(descendants(process.pid)) > 0, "a child")
        children = descendants(process.pid)
        assert process.stop(signal.SIGINT) == 1
        assert "ended before the table was complete" in process.said()
        until(lambda: not living(children), "no process left")
    assert "Traceback" not in process.said()
    assert reset_folder(tmp_path / "var")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--data", "/proc/nowhere"], "/proc/nowhere cannot be used as data folder", 1),
        (
            ["--data", "/dev/null/x"],
            "/dev/null/x cannot be used as data folder: Not a directory",
            1,
        ),
        (["--listen", "nosuchhost:7711"], "is not loopback", 2),
        (["--listen", "127.0.0.1:0"], "needs a fixed port", 2),
        (["--simulated", "513"], "0 to 512", 2),
        (["--seed", "-1"], "expected a whole number", 2),
        (["--seconds-max", "nan"], "expected a duration from 1s to 1h", 2),
        (["--scenario", "night", "--once"], "--once cannot check the table of this --scenario", 2),
        (["--scenario", "day"], "invalid choice: 'day'", 2),
    ],
)
def test_wrong_words_get_words(
    tmp_path: Path, arguments: list[str], message: str, code: int
) -> None:
    """A traceback at the first try drives newcomers away."""
    free = ["--listen", f"127.0.0.1:{free_port()}"]
    process = Process(["run", *free, *arguments], tmp_path / "run.log")
    with process:
        assert process.child is not None
        assert process.child.wait(GUARD_SECONDS) == code
    assert message in process.said()
    assert "Traceback" not in process.said()


def test_one_folder_one_run(tmp_path: Path) -> None:
    """A second run in the same folder must not overwrite the first one's logs."""
    with Children(tmp_path), pytest.raises(ChildError, match="in use by another `gangline run`"):
        Children(tmp_path).__enter__()


@contextmanager
def running(place: Path, *more: str) -> Iterator[Process]:
    listen = f"127.0.0.1:{free_port()}"
    arguments = ["run", "--data", str(place / "var"), "--listen", listen, *more]
    process = Process(arguments, place / "run.log")
    with process:
        yield process
        left = descendants(process.pid) if process.alive() else set[int]()
    for pid in left:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_the_five_faults_in_real_time(tmp_path: Path) -> None:
    """A newcomer's first two minutes: 32 simulated hosts, five faults, the right eight hosts at the bottom."""
    with running(tmp_path, "--once", "--seed", "11", "--seconds-max", "600") as process:
        assert process.child is not None
        code = process.child.wait(600 + GUARD_SECONDS)
        output = process.said()
    assert code == 0, output
    lines = [line for line in output.splitlines() if line.strip()]
    (last,) = (index for index, line in enumerate(lines) if line.startswith("simulated: "))
    assert lines[last].startswith("simulated: 5 faults on 8 hosts, 8 found")
    truth = read_truth(tmp_path / "var" / "simulated" / "truth.jsonl")
    assert {fault.kind for fault in truth.faults} == REASONS.keys() and len(truth.faults) == 8
    for fault in truth.faults:
        assert any(line.startswith(fault.host) for line in lines[last - 9 : last]), output
    assert opens(tmp_path / "var" / "aggregator" / "gangline.duckdb")


def assert_ends_cleanly(process: Process, number: signal.Signals, folder: Path) -> None:
    """Stop a run: no process is left, and its store opens."""
    children = descendants(process.pid)
    assert len(children) >= 3
    assert process.stop(number) == 0
    # A child that read for the inventory just then sees its pipe end a moment after its parent's end.
    until(lambda: not living(children), "no process left")
    assert opens(folder / "var" / "aggregator" / "gangline.duckdb")


def test_it_ends_cleanly_when_told(tmp_path: Path) -> None:
    """Ctrl-C; the two tests below end as a service manager and a closed terminal end it."""
    with running(tmp_path, "--simulated", "2") as process:
        until(lambda: "sim-001" in process.said(), f"the table: {process.log}")
        assert_ends_cleanly(process, signal.SIGINT, tmp_path)


@pytest.mark.slow
def test_a_second_one_says_who_is_there(tmp_path: Path) -> None:
    """Two terminals, two `make run`: the second must not compete for the port. SIGTERM ends the first."""
    with running(tmp_path, "--simulated", "0") as first:
        until(lambda: "HOST" in first.said(), f"the table: {first.log}")
        second = Process(first.arguments[3:], tmp_path / "second.log")
        with second:
            assert second.child is not None
            assert second.child.wait(GUARD_SECONDS) == 1
        assert "another process already listens on" in second.said()
        assert_ends_cleanly(first, signal.SIGTERM, tmp_path)


@pytest.mark.slow
def test_the_night_of_the_page_is_played(tmp_path: Path) -> None:
    """Its store begins with the earlier state, its hosts with the page's job."""
    with running(tmp_path, "--scenario", "night", "--seed", "9") as process:
        until(lambda: "  123" in process.said(), f"job 123 in the table: {process.log}")
        output = process.said()
        assert process.stop(signal.SIGINT) == 0
    assert "sim-007 (sim)" in output and "sim-008" not in output
    store_file = tmp_path / "var" / "aggregator" / "gangline.duckdb"
    with duckdb.connect(str(store_file), read_only=True) as base:
        query = "SELECT (SELECT count(*) FROM models), (SELECT count(*) FROM declared_versions)"
        assert base.execute(query).fetchone() == (2, 1)


@pytest.mark.slow
def test_after_the_first_token_it_runs_as_before(tmp_path: Path) -> None:
    """After `gangline admin token new` in the same folder the demonstration showed nothing, because
    its own parts had no login.

    The demonstration also has more hosts than a single agent login may have connections. SIGHUP ends it.
    """
    tokens_path = tokens_file(tmp_path / "var" / "aggregator")
    _, alice = tokens.make_token(Role.OPERATOR, "alice", 1.0, int(time.time()))
    tokens.update_tokens(tokens_path, lambda _: [alice])
    with running(tmp_path, "--simulated", "12") as process:
        until(lambda: "sim-011" in process.said(), f"the table: {process.log}")
        (secret,) = (tmp_path / "var" / "run.token").read_text().split()
        assert [token.name for token in tokens.read_tokens(tokens_path)] == [
            "alice",
            "gangline-run",
        ]
        for pid in (process.pid, *descendants(process.pid)):
            with suppress(FileNotFoundError, ProcessLookupError):  # the inventory's child ends soon
                assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert_ends_cleanly(process, signal.SIGHUP, tmp_path)
    assert (
        tokens.read_tokens(tokens_path) == [alice] and not (tmp_path / "var" / "run.token").exists()
    )
    logs = (tmp_path / "var" / "log").glob("*.log")
    assert not any(secret in log.read_text() for log in logs)
