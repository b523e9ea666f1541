"""`gangline agent status`: connected or not, pending data, and unreadable sources."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline import cli
from gangline.agent.collector import CollectOutcome, CollectResult
from gangline.agent.commands import check
from gangline.agent.local import check as verdict
from gangline.agent.local.self_status import GROUPS_MAX, SelfStatus, group_unread
from gangline.contract.wire.telemetry_pb2 import HostVerdict, IngestAck, RegisterNodeResponse
from tests.agent.local_world import SECOND, Host
from tests.agent.test_check import status
from tests.agent.test_host_status import answers, second

NOW = 50_000 * SECOND
BLIND = {"outcome": "blind", "message": "/dev/kmsg is closed to us", "names": ["kernel_log"]}


@dataclass
class FakeDaemon:
    """A connection, a spool and sources, like the daemon's."""

    target: str = "10.0.0.1:7600"
    connected: bool = False
    last_error: str = ""
    unacknowledged_frames: int = 0
    acknowledged_frames: int = 0
    bytes: int = 0
    dropped_frames: int = 0
    refused_frames: int = 0
    write_errors: int = 0
    dropped_events: int = 0
    turns: list[CollectResult] = field(default_factory=list)

    def __len__(self) -> int:
        return 3


def shown(daemon: FakeDaemon, tmp_path: Path) -> tuple[Host, Any, Callable[[], dict[str, Any]]]:
    """Return a host, its answers, and a reader of the agent's part of the status file."""
    host = Host()
    host_status = answers(host, tmp_path)
    agent = cast(Any, daemon)
    host_status.self_status = SelfStatus(agent, agent, agent, lambda: daemon.turns, host)

    def read() -> dict[str, Any]:
        document: dict[str, Any] = verdict.parse((tmp_path / "run/status.json").read_bytes())[
            "agent"
        ]
        assert document is not None
        return document

    return host, host_status, read


def test_a_connection_is_shown_as_soon_as_it_changes(tmp_path: Path) -> None:
    """An operator must not wait for the next renewal of the file to see that the agent is back."""
    daemon = FakeDaemon(last_error="10.0.0.1:7600: Connection refused")
    host, created, read = shown(daemon, tmp_path)
    second(host, created, 15)
    assert (read()["connected"], read()["last_receipt_ns"]) == (False, None)
    began = host.now_ns
    daemon.connected, daemon.acknowledged_frames, daemon.unacknowledged_frames = True, 6, 2
    second(host, created)
    document = read()
    assert (document["connected"], document["since_ns"]) == (True, began + SECOND)
    assert (document["waiting_frames"], document["last_receipt_ns"]) == (2, began + SECOND)
    daemon.turns = [CollectResult("kernel_log", (), 0.1, CollectOutcome.BLIND, "closed to us")]
    second(host, created)
    assert read()["sources_unread"][0]["names"] == ["kernel_log"]
    writes = created.file.writes
    daemon.turns = [
        CollectResult("kernel_log", (), 0.1, CollectOutcome.BLIND, "closed to us, for 2 s")
    ]
    second(host, created, 3)
    assert created.file.writes == writes, "words that change each second cost a write each"


def test_lost_frames_are_no_receipts(tmp_path: Path) -> None:
    """A full spool drops its oldest frames: these never reached the aggregator."""
    daemon = FakeDaemon(unacknowledged_frames=9)
    host, created, read = shown(daemon, tmp_path)
    daemon.unacknowledged_frames, daemon.dropped_frames = 4, 15
    second(host, created, 12)
    assert (read()["lost_frames"], read()["last_receipt_ns"]) == (15, None)


@given(st.lists(st.tuples(st.sampled_from(CollectOutcome), st.text(max_size=3)), max_size=60))
def test_every_source_is_read_or_has_its_reason(outcomes: list[tuple[CollectOutcome, str]]) -> None:
    turns = [CollectResult(f"s{n}", (), 0.0, *outcome) for n, outcome in enumerate(outcomes)]
    groups = group_unread(turns)
    assert len(groups) <= GROUPS_MAX
    assert [CollectOutcome[group.outcome.upper()] for group in groups] == sorted(
        (CollectOutcome[group.outcome.upper()] for group in groups), reverse=True
    )
    named = [name for group in groups for name in group.names]
    unread = {turn.collector for turn in turns if turn.outcome is not CollectOutcome.OK}
    assert len(named) == len({*named}) and {*named} <= unread
    if len(groups) < GROUPS_MAX:
        assert {*named} == unread


def section(now_ns: int, **changes: Any) -> dict[str, Any]:
    return {
        "pid": 42,
        "aggregator": "10.0.0.1:7600",
        "connected": True,
        "since_ns": now_ns - 7200 * SECOND,
        "last_error": "",
        "last_receipt_ns": now_ns - 3 * SECOND,
        "waiting_frames": 4,
        "waiting_bytes": 8000,
        "waiting_events": 1,
        "lost_frames": 0,
        "refused_frames": 0,
        "lost_events": 0,
        "write_errors": 0,
        "sources_well": 31,
        "verdict": None,
        "sources_unread": [
            {"outcome": "blind", "message": "/dev/kmsg is closed to us", "names": ["kernel_log"]},
            {"outcome": "no_data", "message": "no NVML", "names": [f"gpu_{n}s" for n in range(9)]},
        ],
        **changes,
    }


@pytest.fixture
def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: NOW)

    def ask(
        agent: dict[str, Any] | None,
        *arguments: str,
        age: int = 0,
        command: Sequence[str] = ("agent", "status"),
    ) -> tuple[int, str]:
        now_ns = NOW - age * SECOND
        if agent is not None:
            agent = section(now_ns, **agent)
        written = status(
            boottime_ns=now_ns, boot_id=check.boot_id() or "none", findings=[], agent=agent
        )
        (tmp_path / "status.json").write_text(json.dumps(written))
        where = ["--run-folder", str(tmp_path)]
        code = cli.main([*command, *where, *arguments])
        output = capsys.readouterr()
        return code, output.out + output.err

    return ask


def test_what_a_person_reads(run: Callable[..., tuple[int, str]]) -> None:
    code, output = run({})
    assert (code, output.splitlines()[1:]) == (
        cli.OK,
        [
            "connected to 10.0.0.1:7600 for 2 h, last receipt 3 s ago",
            "waiting for a receipt: 4 frames (8 kB), 1 events",
            "sources: 31 read",
            "  blind: kernel_log: /dev/kmsg is closed to us",
            "  no data: gpu_0s, gpu_1s, gpu_2s, gpu_3s, gpu_4s, gpu_5s and 3 more: no NVML",
        ],
    )
    code, output = run({"connected": False, "last_error": "refused", "lost_frames": 7})
    assert code == cli.OK, "that the aggregator is away is no failure of the question"
    assert "NOT CONNECTED to 10.0.0.1:7600 for 2 h, last receipt 3 s ago: refused" in output
    assert "LOST since the agent started: 7 frames dropped" in output


def test_as_json(run: Callable[..., tuple[int, str]]) -> None:
    code, output = run({"last_receipt_ns": None}, "--json")
    document = json.loads(output)
    assert (code, document["format"], document["known"]) == (cli.OK, 1, True)
    assert document["last_receipt_seconds"] is None and document["state_seconds"] == 7200.0


@pytest.mark.parametrize(
    ("agent", "age", "message"),
    [
        ({}, 60, "the agent is down, or hangs"),
        (None, 0, "version is too old to report its state"),
        ({"lost_frames": "many"}, 0, "version is too old to report its state"),
    ],
)
def test_where_no_agent_runs(
    run: Callable[..., tuple[int, str]], agent: dict[str, Any] | None, age: int, message: str
) -> None:
    """Exit code 3, as without an aggregator, and the reason."""
    code, output = run(agent, age=age)
    assert (
        code == cli.NO_ANSWER and output.startswith("gangline agent status: ") and message in output
    )
    code, output = run(agent, "--json", age=age)
    assert (code, json.loads(output)["format"], json.loads(output)["known"]) == (3, 1, False)


def test_no_run_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["agent", "status", "--run-folder", str(tmp_path)]) == cli.NO_ANSWER
    assert "no agent runs here" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_what_the_aggregator_finds_is_known_on_the_host(tmp_path: Path) -> None:
    """`gangline hosts` reported WATCH, and `gangline check` on the host "nothing is wrong"."""
    host, created, read = shown(FakeDaemon(connected=True), tmp_path)
    second(host, created)
    writes = created.file.writes
    created.on_response(RegisterNodeResponse())
    created.on_response(IngestAck(verdict=HostVerdict(state="WATCH", reason="kept by nobody")))
    second(host, created)
    assert created.file.writes == writes + 1
    document = read()["verdict"]
    assert (document["state"], document["reason"]) == ("WATCH", "kept by nobody")
    created.on_response(
        IngestAck(verdict=HostVerdict(state="WATCH", reason="kept by nobody, for 9 s"))
    )
    second(host, created)
    assert created.file.writes == writes + 1, "words that change each second cost a write each"
    # an aggregator of an earlier version, or before its first judgement
    created.on_response(IngestAck())
    second(host, created)
    assert read()["verdict"] is None


def said_by(state: str, reason: str = "", age: int = 1) -> dict[str, Any]:
    at_ns = NOW - age * SECOND
    return {"verdict": {"state": state, "reason": reason, "at_ns": at_ns}, "sources_unread": []}


#: The agent's own state -> the lines for a person below the host's line.
BEYOND: list[tuple[dict[str, Any] | None, list[str]]] = [
    (None, []),
    (said_by("HEALTHY"), []),
    (
        said_by("WATCH", "host clock is not synchronized"),
        ["the aggregator says WATCH: host clock is not synchronized (`gangline explain gpu-017`)"],
    ),
    (
        said_by("WATCH", age=300),
        ["the aggregator reports no state of this host, because 5 min: `gangline agent status`"],
    ),
    (
        {**said_by("WATCH"), "connected": False, "last_error": "refused"},
        ["the aggregator is not reachable: 2 h (refused): its findings are unknown here"],
    ),
    (
        {**said_by("HEALTHY"), "sources_unread": [BLIND, {**BLIND, "outcome": "no_data"}]},
        ["blind: kernel_log: /dev/kmsg is closed to us"],
    ),
]


@pytest.mark.parametrize(("agent", "lines"), BEYOND)
def test_check_tells_a_person_what_it_cannot_see(
    run: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    agent: dict[str, Any] | None,
    lines: list[str],
) -> None:
    """Only on a terminal: the line for a prolog or cron job, and the exit code, are unchanged."""
    first = "gangline: gpu-017: nothing is wrong, as of 0 s ago"
    for arguments in ((), ("--for", "prolog"), ("--for", "epilog")):
        assert run(agent, *arguments, command=("check",)) == (0, f"{first}\n")
    assert run(agent, "--for", "cron", command=("check",)) == (0, "")
    assert "agent" not in json.loads(run(agent, "--json", command=("check",))[1])
    monkeypatch.setattr(os, "isatty", lambda _: True)
    for others in (("--for", "prolog"), ("--for", "cron"), ("--json",)):
        assert lines == [] or lines[0] not in run(agent, *others, command=("check",))[1]
    code, output = run(agent, command=("check",))
    assert (code, output.splitlines()) == (0, [first, *(f"gangline: {line}" for line in lines)])


def test_the_status_says_it_too(run: Callable[..., tuple[int, str]]) -> None:
    assert "the aggregator says WATCH: no clock (1 s ago)\n" in run(said_by("WATCH", "no clock"))[1]
    document = json.loads(run(said_by("WATCH", "no clock"), "--json")[1])["verdict"]
    assert document == {"state": "WATCH", "reason": "no clock", "age_seconds": 1.0}
