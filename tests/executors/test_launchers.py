"""The executor's interfaces for launchers: cycle-info files, segment files and the attribution
service, without the real client.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.advisories.advisory import Action
from gangline.executors import reports
from gangline.executors.kubernetes.jobs import GangHistory, parse_pod
from gangline.executors.launchers import attribution, launchers
from gangline.executors.launchers import segments as launcher_segments
from gangline.executors.launchers.attribution import (
    AttributionBoard,
    HealthView,
    health_view,
    job_of_log,
    recommend,
)
from gangline.executors.launchers.attribution_clients import AttributionClients
from gangline.executors.launchers.attribution_server import (
    LIMITS,
    AttributionServer,
)
from gangline.executors.launchers.cycle_info import (
    FILE_BYTES_MAX,
    CycleInfo,
    CycleInfoError,
    parse_cycle_info,
    read_cycle_info,
    with_cycles,
)
from gangline.executors.ledger import SET, Entry, ExecutorLedger
from gangline.executors.model import Advice, Node, ScheduledJob, SchedulerState
from gangline.executors.settings import parse_listen
from gangline.executors.slurm.output import parse_nodes
from tests.executors.advice_server import serving_advice
from tests.executors.contract import Rig
from tests.executors.model_scheduler import ModelScheduler
from tests.executors.test_contract_model import ModelSite
from tests.processes import GUARD_SECONDS

NOW = 1_800_000_000.0
LOG = "/logs/train_cycle0.log"
NEXT_LOG = "/logs/train_cycle1.log"

#: Job 7 of the tests runs on n1 (127.0.0.1) and others; job 666, of another user, on n8, which is broken.
HOME, HOSTILE, STRANGER = "127.0.0.1", "127.0.0.66", "127.0.0.9"
FOREIGN = (403, f"job_id: the address {HOSTILE} is of no host of job 7")
TAKEN = (409, "log_path: it is the log of another job")


def job(name: str, *nodes: str, **fields: Any) -> ScheduledJob:
    return ScheduledJob(
        name, "RUNNING", frozenset(nodes), gpus=8 * len(nodes), submitted=NOW - 900, started=NOW - 600, **fields,
    )  # fmt: skip


def state(*jobs: ScheduledJob) -> SchedulerState:
    nodes = {f"n{index}": Node(f"n{index}", "ALLOCATED") for index in range(1, 9)}
    return SchedulerState(nodes, {job.name: job for job in jobs})


def cycle(number: int, *active: str, started: float = NOW - 300, ended: float = 0.0, name: str = "7") -> CycleInfo:  # fmt: skip
    return CycleInfo(name, 0, number, started, ended, f"/logs/train_cycle{number}.log", frozenset(active), frozenset())  # fmt: skip


def advice(node: str, action: str = "EVICT_NOW", **fields: Any) -> Advice:
    given = {"state": "PROPOSED", "basis": "DETERMINISTIC", "reason": "GPU 3: XID 79", **fields}
    return Advice("a1", "a1-1", action, node=node, **given)


def described(**fields: object) -> str:
    return json.dumps(
        {
            "job_id": "7", "attempt_index": 1, "cycle_number": 2, "cycle_start_time": "2027-01-15T08:00:00.5Z", "cycle_end_time": "",
            "cycle_log_file": LOG, "active_nodes": "n[1-3,05]", "standby_nodes": "n4,rack-b", "active_ranks": "0-3", "generation": "0",
            **fields,
        }
    )  # fmt: skip


def test_a_file_is_read_as_its_launcher_writes_it() -> None:
    info = parse_cycle_info(described())
    assert (info.job, info.attempt, info.cycle, info.started, info.ended) == ("7", 1, 2, NOW + 0.5, 0.0)  # fmt: skip
    assert info.active == {"n1", "n2", "n3", "n05"} and info.standby == {"n4", "rack-b"}
    assert (info.log_file, info.ranks) == (LOG, "0-3")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        (described(job_id=7), "job_id is not text"),
        (described(cycle_number=-1), "cycle_number is not an integer from 0 to 999999999"),
        (described(cycle_number=True), "cycle_number is not an integer"),
        (described(cycle_start_time="yesterday"), "cycle_start_time is not a time of ISO 8601"),
        (described(active_nodes="n[1-[2]]"), "active_nodes is not a list of at most 10000 hosts"),
        (described(active_nodes="n[1-999999999]"), "active_nodes is not a list of at most 10000 hosts"),
        (described(active_nodes="n[1-9000]," * 90), "active_nodes is not a list of at most 10000 hosts"),
        (described(standby_nodes="n[1-" + "9" * 5000 + "]"), "is not a list of at most 10000 hosts"),
        (described(active_nodes="n[2-1]" + ",n" * 10_001), "is not a list of at most 10000 hosts"),
    ],
)  # fmt: skip
def test_what_is_no_cycle_info_is_refused(text: str, why: str) -> None:
    """Users write these files: a bad file must neither end the executor nor fill its memory."""
    with pytest.raises(CycleInfoError, match=why):
        parse_cycle_info(text)


def test_the_link_leads_to_a_file_of_that_job_in_its_folder_only(tmp_path: Path) -> None:
    """Otherwise a user could make the executor read any file, or block at a FIFO."""
    assert read_cycle_info(tmp_path, "7") is None
    link = tmp_path / "cycle_info.7.current"
    secret = tmp_path / "secret"
    secret.write_text(described())
    for target in ("secret", "/etc/passwd", "../cycle_info.7.0.1", "cycle_info.8.0.1"):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(CycleInfoError, match="does not lead to a file of this job"):
            read_cycle_info(tmp_path, "7")
    link.unlink()
    link.symlink_to("cycle_info.7.0.1")
    assert read_cycle_info(tmp_path, "7") is None, "not there yet"
    file = tmp_path / "cycle_info.7.0.1"
    file.symlink_to("secret")
    with pytest.raises(OSError, match="symbolic links"):
        read_cycle_info(tmp_path, "7")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CycleInfoError, match="not a regular file"):
        read_cycle_info(tmp_path, "7")
    file.unlink()
    file.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(CycleInfoError, match="larger than"):
        read_cycle_info(tmp_path, "7")
    file.write_text(described(job_id="8"))
    with pytest.raises(CycleInfoError, match="names another job"):
        read_cycle_info(tmp_path, "7")
    file.write_text(described())
    info = read_cycle_info(tmp_path, "7")
    assert info is not None and info.cycle == 2


def test_a_gang_is_the_hosts_that_its_launcher_uses() -> None:
    """A hot spare of the allocation is not a member: it slows no host down, and its drain costs nothing."""
    merged = with_cycles(state(job("7", "n1", "n2", "n3.cluster")), {"7": cycle(0, "n1", "n3")})
    (gang,) = merged.jobs.values()
    assert (gang.name, gang.nodes, gang.gpus, gang.cycle) == (
        "7",
        frozenset({"n1", "n3.cluster"}),
        16,
        1,
    )


def test_tasks_of_an_array_are_one_gang() -> None:
    tasks = [job(str(number), f"n{number}", array="7", array_task=str(number)) for number in (7, 8)]
    merged = with_cycles(state(*tasks, job("9", "n1")), {"7": cycle(0, "n7", "n8")})
    assert {name: job.nodes for name, job in merged.jobs.items()} == {
        "7": {"n7", "n8"},
        "9": {"n1"},
    }


@pytest.mark.parametrize(
    "info",
    [cycle(0, "n8"), cycle(0, "n1", started=NOW - 700), cycle(0, "n1", name="8")],
    ids=["other hosts", "of the run before", "another job"],
)
def test_a_file_is_believed_only_about_hosts_and_the_run_of_its_job(info: CycleInfo) -> None:
    before = state(job("7", "n1", "n2"))
    assert with_cycles(before, {info.job: info}) == before


def test_a_launchers_restart_is_an_outcome_and_the_host_that_was_left_is_blamed(tmp_path: Path) -> None:  # fmt: skip
    """The scheduler sees a single run of the job; the launcher's losses within it were in no
    outcome, and hazards stayed too low.
    """
    ledger = ExecutorLedger(tmp_path / "ledger.json")
    ledger.entries["a1"] = Entry("a1", "n2", "EVICT_NOW", "x", 1, NOW, NOW + 7200, phase=SET, mark="hold")  # fmt: skip
    reported = reports.Reported()
    plain = state(job("7", "n1", "n2", "n3"))
    first = with_cycles(plain, {"7": cycle(0, "n1", "n2")})
    second = with_cycles(plain, {"7": cycle(1, "n1", "n3", started=NOW - 10)})
    for shown in (plain, first, plain, second):  # now and then the file cannot be read
        reports.collect_outcomes(reported, reports.ReportedCluster("c", shown, NOW, str), ledger)
    (outcome,) = reported.outcomes
    assert outcome.outcome_id.endswith("-0-c1")
    assert list(outcome.nodes) == ["nodes/n1", "nodes/n2"]
    assert outcome.interrupted and outcome.blamed_node == "nodes/n2" and outcome.advice_followed
    assert outcome.end_reason == "restarted by its launcher; lost: n2"
    assert outcome.start_time.seconds == NOW - 300
    third = with_cycles(plain, {"7": cycle(2, "n1", "n3", started=NOW - 5)})
    reports.collect_outcomes(reported, reports.ReportedCluster("c", third, NOW, str), ledger)
    assert not reported.outcomes[1].interrupted, "a crash of its own program"
    assert reported.outcomes[1].end_reason == "restarted by its launcher"


def marked(tmp_path: Path, node: str, action: str) -> ExecutorLedger:
    ledger = ExecutorLedger(tmp_path / "ledger.json")
    ledger.entries["a1"] = Entry("a1", node, action, "x", 1, NOW, NOW + 7200, phase=SET, mark="hold")  # fmt: skip
    return ledger


def test_a_segment_is_out_while_a_node_of_it_is(tmp_path: Path) -> None:
    """In a job that is not an array only the first process reads the file: with several nodes it
    would exclude the wrong node.
    """
    tasks = [job(str(number), f"n{number}", array="4", array_task=str(number)) for number in (5, 6)]
    shown = state(*tasks, job("7", "n1", "n2"), job("8", "n3"))
    assert list(launcher_segments.wanted_files(shown, marked(tmp_path, "n5", "EVICT_NOW"))) == ["segment_health_check.4.5"]  # fmt: skip
    assert list(launcher_segments.wanted_files(shown, marked(tmp_path, "n3", "DRAIN_AT_CHECKPOINT"))) == ["segment_health_check.8.8"]  # fmt: skip
    assert not launcher_segments.wanted_files(shown, marked(tmp_path, "n1", "EVICT_NOW"))
    for action in ("AVOID", "DRAIN_AFTER_JOB"):
        assert not launcher_segments.wanted_files(shown, marked(tmp_path, "n5", action))


def test_only_our_own_files_are_taken_back(tmp_path: Path) -> None:
    """A site's own program excludes segments: its decisions stay."""
    theirs, theirs_too = (tmp_path / f"segment_health_check.{name}" for name in ("1.1", "1.2"))
    theirs.write_text("out by hand\n")
    theirs_too.touch()
    (tmp_path / "segment_health_check.1.5").symlink_to("elsewhere")
    content = "gangline:v1;act=out;adv=a1;node=n1\n"
    wanted = dict.fromkeys(["segment_health_check.1.1", "segment_health_check.1.2", "segment_health_check.1.3"], content)  # fmt: skip
    wanted["segment_health_check.1.5"] = content
    problems = launcher_segments.sync(tmp_path, wanted, tidy=True)
    assert [
        line.endswith("was not written by Gangline and stays unchanged") for line in problems
    ] == [True] * 3
    assert (tmp_path / "segment_health_check.1.3").read_text() == content
    assert launcher_segments.managed_files(tmp_path) == ["segment_health_check.1.3"]
    launcher_segments.sync(tmp_path, {}, tidy=True)
    assert theirs.read_text() == "out by hand\n" and theirs_too.read_text() == ""
    assert not (tmp_path / "segment_health_check.1.3").exists() and not (tmp_path / "elsewhere").exists()  # fmt: skip


def test_a_launcher_never_reads_a_file_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher takes an empty file for healthy: a half-written file stayed empty, and the
    executor took it for a foreign one.
    """
    path, content = tmp_path / "segment_health_check.1.1", "gangline:v1;act=out;adv=a1;node=n1\n"

    def full(*arguments: object) -> None:
        assert not path.exists(), "it is seen before it is whole"
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            launcher_segments.sync(tmp_path, {path.name: content}, tidy=True)
    assert list(tmp_path.iterdir()) == [], "nothing is left of it"
    path.touch()
    [_] = launcher_segments.sync(tmp_path, {path.name: content}, tidy=True)
    assert path.read_text() == "", "somebody may be about to write"
    os.utime(path, (1.0, 1.0))
    assert launcher_segments.sync(tmp_path, {path.name: content}, tidy=True) == []
    assert path.read_text() == content
    path.write_text("gangline:v1;ac")  # left by an earlier executor on a full disk
    assert launcher_segments.managed_files(tmp_path) == [path.name]
    launcher_segments.sync(tmp_path, {}, tidy=True)
    assert list(tmp_path.iterdir()) == []


def test_an_executor_writes_and_takes_back_segment_files(tmp_path: Path) -> None:
    """From the advisory to the file, and from the return to its removal; a start after a kill finds
    the existing files.
    """
    site = ModelSite(drain_ends=False)
    model = site.scheduler
    assert isinstance(model, ModelScheduler)
    folder = tmp_path / "segments"
    folder.mkdir()
    left = folder / "segment_health_check.99.1"
    left.write_text("gangline:v1;act=out;adv=a9;node=n8\n")
    for node in ("n1", "n2"):
        name = site.submit(1, may_requeue=False)
        job_state, count = model.jobs[name]
        assert job_state.nodes == {node}
        model.jobs[name] = replace(job_state, array="40", array_task=name), count
    with serving_advice() as server, _stack() as stack:
        rig = Rig(site, server, tmp_path, stack)
        rig.start(segment_health_dir=str(folder))
        rig.until(lambda: "1" in server.gangs(), "the gang is reported")
        server.fault("n1", Action.EVICT_NOW, job="1")
        file = folder / "segment_health_check.40.1"
        rig.until(file.exists, "the file is written")
        rig.until(lambda: file.read_text() == "gangline:v1;act=out;adv=a1;node=n1\n", "its content")
        rig.until(lambda: not left.exists(), "what an executor before us left is gone")
        rig.until(lambda: rig.is_done("n1"), "done")
        server.heal("n1")
        rig.until(lambda: not file.exists(), "taken back at the return")
        assert list(folder.iterdir()) == []


def _stack() -> Any:
    from contextlib import ExitStack

    return ExitStack()


def test_in_shadow_no_file_is_written(tmp_path: Path) -> None:
    site = ModelSite(drain_ends=False)
    folder = tmp_path / "segments"
    folder.mkdir()
    (folder / "segment_health_check.9.9").write_text("gangline:v1;act=out;adv=a9;node=n8\n")
    with serving_advice() as server, _stack() as stack:
        rig = Rig(site, server, tmp_path, stack)
        rig.start(shadow=True, segment_health_dir=str(folder))
        rig.until(lambda: rig.client and rig.client.is_live(), "a turn with advice")
        rig.launchers.turn()
        assert [path.name for path in folder.iterdir()] == ["segment_health_check.9.9"]


def seen(shown: SchedulerState, *all_advice: Advice, cycles: dict[str, CycleInfo] | None = None, before: HealthView | None = None, live: bool = True) -> HealthView:  # fmt: skip
    return health_view(shown, cycles or {}, all_advice, before or HealthView(), NOW, is_live=live)


def verdict(view: HealthView, requested: float = NOW - 60.0) -> tuple[str, bool, str]:
    advised = recommend(view, "7", LOG, requested, NOW, 120.0)
    return advised.action, advised.is_final, advised.reason


RUNNING = state(job("7", "n1", "n2", "n3"))
NEXT = {"7": cycle(1, "n1", "n2", started=NOW - 5)}


def test_stop_where_the_next_cycle_runs_on_the_broken_host() -> None:
    answer = verdict(seen(RUNNING, advice("n2"), cycles=NEXT))
    assert answer[:2] == ("STOP", True) and "n2: GPU 3: XID 79 (a1)" in answer[2]


def test_restart_where_the_broken_host_is_out_of_the_job() -> None:
    """A spare replaced the host: stopping would cost a job that has healed itself."""
    before = seen(RUNNING, cycles={"7": cycle(0, "n1", "n3")})
    answer = verdict(seen(RUNNING, advice("n3"), cycles=NEXT, before=before))
    assert answer[:2] == ("RESTART", True) and "out of the job: n3: GPU 3: XID 79" in answer[2]


def test_restart_where_the_job_was_requeued_elsewhere() -> None:
    before = seen(RUNNING)
    waiting = seen(state(replace(RUNNING.jobs["7"], state="PENDING", nodes=frozenset())), before=before)  # fmt: skip
    answer = verdict(seen(state(job("7", "n4", "n5", "n6")), advice("n2"), before=waiting))
    assert answer[:2] == ("RESTART", True)


def test_the_launcher_waits_for_its_next_cycle_before_anything_is_said() -> None:
    """The launcher's own node check may be about to leave the host: a STOP would end a job that heals itself."""
    same = {"7": cycle(0, "n1", "n2", ended=NOW - 60)}
    view = seen(RUNNING, advice("n2"), cycles=same)
    assert verdict(view)[:2] == ("UNKNOWN", False)
    assert verdict(view, requested=NOW - 121)[:2] == ("UNKNOWN", True)


@pytest.mark.parametrize(
    "one",
    [
        advice("n2", basis="STATISTICAL"),
        advice("n2", basis="SHARED_CAUSE"),
        advice("n2", "DRAIN_AFTER_JOB"),
        advice("n2", "AVOID"),
        advice("n2", state="REJECTED"),
        advice("n2", state="DONE", expires=NOW - 1),
        advice("n8"),
    ],
    ids=lambda one: f"{one.action} {one.basis} {one.state} {one.node}",
)  # fmt: skip
def test_never_stop_for_less(one: Advice) -> None:
    """Never on statistics, never if the job may continue there, never for rejected advice, never for another host."""
    assert verdict(seen(RUNNING, one, cycles=NEXT))[:2] == ("UNKNOWN", True)


def test_never_stop_without_the_launchers_word_for_its_hosts() -> None:
    """In an allocation with spares only the launcher knows whether the host is used."""
    answer = verdict(seen(RUNNING, advice("n2")), requested=NOW - 1000)
    assert answer[:2] == ("UNKNOWN", True) and "not known without cycle-info files" in answer[2]


def test_never_stop_while_the_aggregator_is_away() -> None:
    answer = verdict(seen(RUNNING, advice("n2"), cycles=NEXT, live=False))
    assert answer == ("UNKNOWN", True, "Gangline: the aggregator is not connected")
    assert recommend(seen(RUNNING), "8", LOG, NOW, NOW, 1.0).reason == "Gangline: no job 8 runs here"  # fmt: skip


def test_a_log_is_of_the_one_job_that_it_can_be_of() -> None:
    view = seen(state(job("7", "n1"), job("19", "n2")), cycles={"7": cycle(0, "n1")})
    assert job_of_log(view, LOG) == "7", "by its cycle-info"
    assert job_of_log(view, "/logs/slurm-19.out") == "19"
    assert job_of_log(view, "/logs/7/19/out") == "", "two jobs have such names"
    assert job_of_log(view, "/logs/2026/out") == ""
    assert job_of_log(seen(state(job("ml/llm", "n1"))), "/logs/llm/out") == "ml/llm"


def resolve(name: str) -> list[str]:
    if name not in ("n1", "n2"):
        raise OSError("no such name")
    return {"n1": [HOME], "n2": ["fe80::1%eth0", "::ffff:127.0.0.2"]}[name]


def board_of(view: HealthView) -> AttributionBoard:
    board = AttributionBoard(60.0, AttributionClients(resolve, "executor"))
    board.view = view
    return board


def hostile(**cycles: CycleInfo) -> HealthView:
    """Return a view in which job 666 gets a STOP, and job 7 has no broken host."""
    shown = state(job("7", "n1", "n2", "n3"), job("666", "n8"))
    shown.nodes["n8"] = replace(shown.nodes["n8"], address=HOSTILE)  # type: ignore[index]
    next_cycle = cycle(9, "n8", started=NOW + 1, name="666")
    return seen(shown, advice("n8"), cycles={"666": next_cycle, **cycles})


def test_logs_of_a_job_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One job's client announced a log after the other, and the logs of all other jobs were forgotten."""
    monkeypatch.setattr(attribution, "LOGS_PER_JOB_MAX", 3)
    board = board_of(hostile())
    board.submit("/log", "7", HOME, NOW)
    for index in range(5):
        board.submit(f"/log{index}", "666", HOSTILE, NOW)
        board.answer(f"/666/{index}", HOSTILE, NOW, wait=True)
    assert {name: len(logs) for name, logs in board._failures.items()} == {"7": 1, "666": 3}
    board.view = seen(RUNNING)
    board.submit("/log", "7", HOME, NOW)
    assert list(board._failures) == ["7"], "a job that is over needs no memory"


@pytest.fixture
def server() -> Iterator[AttributionServer]:
    board = board_of(seen(RUNNING, advice("n2"), cycles=NEXT))
    attribution_server = AttributionServer(board, "127.0.0.1:0", lambda: NOW)
    attribution_server.start()
    yield attribution_server
    attribution_server.close()


def ask(server: AttributionServer, method: str, path: str, body: bytes | None = None, client: str = HOME) -> tuple[int, Any]:  # fmt: skip
    connection = http.client.HTTPConnection(
        server.address, timeout=GUARD_SECONDS, source_address=(client, 0)
    )
    connection.request(method, path, body)
    answer = connection.getresponse()
    document = json.loads(answer.read())
    connection.close()
    return answer.status, document


def test_the_service_answers_as_the_launcher_reads_it(server: AttributionServer) -> None:
    assert ask(server, "GET", "/healthz") == (200, {"status": "ok", "issues": []})
    body = json.dumps({"log_path": LOG, "job_id": "7", "analysis_intent": "terminal"}).encode()
    status, submitted = ask(server, "POST", "/logs", body)
    assert (status, submitted["submitted"]) == (200, True)
    status, answer = ask(server, "GET", f"/logs?log_path={LOG}&wait=False")
    assert (status, answer["status"], answer["recommendation"]["action"]) == (200, "in_progress", "UNKNOWN")  # fmt: skip
    status, answer = ask(server, "GET", f"/logs?log_path={LOG}")
    assert (answer["status"], answer["recommendation"]["action"]) == ("completed", "UNKNOWN")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/logs", b"{", 400, "the body is not JSON"),
        ("POST", "/logs", b"[" * 60_000, 400, "the body is not JSON"),
        ("POST", "/logs", b"[]", 400, "the body is not a JSON object with log_path"),
        ("POST", "/logs", b"{}", 400, "log_path: the log's path, 1 to 4096 characters"),
        ("POST", "/logs", b'{"log_path": 3}', 400, "log_path: the log's path, 1 to 4096 characters"),
        ("POST", "/logs", b'{"log_path": "/x", "job_id": 3}', 400, "job_id: text of at most 128 characters"),
        ("GET", "/logs", None, 400, "log_path: the log's path, 1 to 4096 characters"),
        ("GET", "/logs?log_path=" + "x" * 5000, None, 400, "log_path: the log's path, 1 to 4096 characters"),
        ("GET", "/logs?" + "a=1&" * 30, None, 400, "more than 20 parameters"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_told_what_would_be_right(server: AttributionServer, method: str, path: str, body: bytes | None, status: int, message: str) -> None:  # fmt: skip
    assert ask(server, method, path, body) == (status, {"error_code": "invalid_request", "message": message})  # fmt: skip


def test_its_paths_and_its_limit_of_a_body(server: AttributionServer) -> None:
    """Errors that the HTTP server itself finds name the correct form."""
    assert "expected one of /healthz, /logs" in ask(server, "GET", "/")[1]["error"]
    assert ask(server, "POST", "/healthz", b"{}")[0] == 405
    status, answer = ask(server, "POST", "/logs", b" " * (LIMITS.body_bytes_max + 1))
    assert (status, answer["error"]) == (413, "a body has at most 65536 bytes")


@pytest.mark.parametrize(
    "listen", ["9482", "host:", ":1", "host:x", "host:70000", "::1", "[host]:1"]
)
def test_what_is_no_address_is_refused(listen: str) -> None:
    assert parse_listen("[::1]:1") == ("::1", 1)
    with pytest.raises(ValueError, match=r"ADDRESS:PORT, as 127\.0\.0\.1:9482"):
        parse_listen(listen)


def claim(server: AttributionServer, log: str, job: str, client: str) -> tuple[int, str]:
    body = json.dumps({"log_path": log, "job_id": job}).encode()
    status, answer = ask(server, "POST", "/logs", body, client)
    return status, answer.get("message", "")


def verdict_for(server: AttributionServer, log: str, client: str) -> tuple[str, str]:
    _, answer = ask(server, "GET", f"/logs?log_path={log}", None, client)
    return answer["recommendation"]["action"], answer["recommendation"]["reason"]


def test_a_claim_needs_an_address_of_the_job(server: AttributionServer) -> None:
    """Any client of the port mapped another's log to its own job, whose STOP that job's launcher then got."""
    server.board.view = hostile()
    assert claim(server, "/logs/a", "7", HOSTILE) == FOREIGN
    assert claim(server, "/logs/a", "7", STRANGER)[0] == 403
    assert claim(server, "/logs/a", "7", HOME) == (200, "")
    assert claim(server, "/logs/a", "7", "127.0.0.2") == (200, ""), "another host of the job"
    assert claim(server, "/logs/a", "666", HOME)[0] == 403
    # The other job may claim the same path on its own host, and gets its own answer.
    assert claim(server, "/logs/a", "666", HOSTILE) == (200, "")
    assert verdict_for(server, "/logs/a", HOSTILE)[0] == "STOP"
    assert "no host of this job" in verdict_for(server, "/logs/a", HOME)[1]
    assert verdict_for(server, "/logs/a", STRANGER) == (
        "UNKNOWN", f"Gangline: the address {STRANGER} is of no host of the job of this log",
    )  # fmt: skip


def test_a_claim_before_the_launchers_own_changes_no_answer(server: AttributionServer) -> None:
    """The name of the next log can be predicted, and the first claim was kept."""
    server.board.view = hostile()
    for log in "/logs/b", "/logs/7/c":
        assert claim(server, log, "666", HOSTILE) == (200, "")
    assert verdict_for(server, "/logs/b", HOME)[0] == "UNKNOWN"
    assert claim(server, "/logs/b", "7", HOME) == (200, "")
    for log in "/logs/b", "/logs/7/c":
        assert "no host of this job" in verdict_for(server, log, HOME)[1]


def test_of_two_jobs_on_a_host_the_first_claim_is_kept(server: AttributionServer) -> None:
    """Two jobs on one host have one address. The launcher's own file decides, else the first claim."""
    server.board.view = view = hostile()
    shared = replace(view.jobs["666"], addresses=frozenset({"n8", "n1"}))
    server.board.view = replace(view, jobs={**view.jobs, "666": shared})
    assert claim(server, "/logs/a", "7", HOME) == (200, "")
    assert claim(server, "/logs/a", "666", HOME) == TAKEN
    assert claim(server, "/logs/a", "", HOME) == (200, ""), "0.6 sends no job"
    assert "no host of this job" in verdict_for(server, "/logs/a", HOME)[1]
    assert claim(server, "/logs/b", "666", HOME) == (200, "")
    own = replace(view.jobs["7"], log_file="/logs/b")
    server.board.view = replace(view, jobs={"7": own, "666": shared})
    assert claim(server, "/logs/b", "666", HOME) == TAKEN
    assert claim(server, "/logs/b", "7", HOME) == (200, "")
    assert "no host of this job" in verdict_for(server, "/logs/b", HOME)[1]


def test_addresses_are_resolved_once_and_again_later() -> None:
    """A name service that does not answer must not delay each request."""
    calls, now = [], [0.0]

    def count(name: str) -> list[str]:
        calls.append(name)
        return resolve(name)

    clients = AttributionClients(count, "executor.example", lambda: now[0])
    names = ["n1", "n2", "gone", "10.1.2.3", "executor"]
    assert clients.is_of(names, "10.1.2.3") and clients.is_of(names, "127.0.0.77") and not calls
    assert clients.is_of(names[:3], "::ffff:127.0.0.2") and not clients.is_of(names[:3], "10.0.0.1")
    assert not clients.is_of(names[:3], "no address") and calls == ["gone", "n1", "n2"]
    now[0] = 61.0
    clients.is_of(names[:3], "10.0.0.1")
    assert calls[3:] == ["gone"]
    now[0] = 3601.0
    clients.is_of(names[:3], "10.0.0.1")
    assert calls[4:] == ["gone", "n1", "n2"]


def test_addresses_come_from_the_scheduler() -> None:
    """Slurm reports NodeAddr, Kubernetes the addresses of a pod and of its node."""
    line = "NodeName=n1 Arch=x86_64 State=IDLE NodeAddr=10.0.0.1 Weight=3 Reason=NodeAddr=6.6.6.6"
    assert parse_nodes(line)["n1"].address == "10.0.0.1"
    pod = parse_pod(
        {
            "metadata": {"namespace": "ml", "name": "a-0", "uid": "u"},
            "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
            "status": {"phase": "Running", "podIP": "10.244.1.7", "hostIP": "10.0.0.1"},
        },
        ["nvidia.com/gpu"],
    )  # fmt: skip
    assert pod is not None
    (gang,) = GangHistory().jobs([pod], (), NOW).values()
    view = seen(
        SchedulerState({"n1": Node("n1", "IDLE", address="node-1.example")}, {gang.name: gang})
    )
    assert view.jobs[gang.name].addresses == {"n1", "node-1.example", "10.244.1.7", "10.0.0.1"}


def test_one_users_file_keeps_no_others_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """active_nodes: "[0-9]9999999999" in one file: an AssertionError, and no cycle of any job was read any more."""
    with pytest.raises(CycleInfoError, match="active_nodes"):
        parse_cycle_info(described(active_nodes="[0-9]9999999999"))

    def failing(folder: Path, job: str) -> CycleInfo | None:
        if job == "6":
            raise AssertionError("of a library")
        return read_cycle_info(folder, job)

    monkeypatch.setattr(launchers, "read_cycle_info", failing)
    (tmp_path / "cycle_info.7.0.1").write_text(described())
    (tmp_path / "cycle_info.7.current").symlink_to("cycle_info.7.0.1")
    complaints: list[str] = []
    reader: Any = launchers.Launchers.__new__(launchers.Launchers)
    reader._folders = (tmp_path,)
    reader._complain = complaints.append
    assert set(reader._read(("6", "7"))) == {"7"}
    assert "cycle_info.6: AssertionError" in complaints[0]
