"""`gangline check` and the health check fail only under all conditions; else exit code 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline import cli
from gangline.agent import config as folder
from gangline.agent.commands import check
from gangline.agent.local import check as verdict
from gangline.agent.local.check import StatusError
from tests.agent.local_world import SECOND
from tests.processes import GUARD_SECONDS

NOW = 5_000 * SECOND

#: Missing condition -> the message that explains why the finding is not enforced.
NOT_ENFORCED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "report-only": ({"enforcing": []}, {}, "report-only"),
    "another name": ({"enforcing": ["xid95", "gpu_lost"]}, {}, "report-only"),
    "no permit": ({"permit": None}, {}, "gives no permit"),
    "expired": ({"permit": {"until_ns": NOW, "reason": "r"}}, {}, "has expired"),
    "endless permit": (
        {"permit": {"until_ns": NOW + 61 * SECOND, "reason": "r"}},
        {},
        "longer than",
    ),
    "not confirmed": ({}, {"confirmed_ns": NOW - 30 * SECOND}, "last confirmed 30 s ago"),
    "of the future": ({}, {"confirmed_ns": NOW + 3 * SECOND}, "its time is ahead"),
    "a program's fault": ({}, {"problem": "user"}, "caused by a program"),
    "not fatal": ({}, {"severity": "hazard"}, "never enforced"),
    "not enforceable": ({}, {"enforceable": False}, "never enforced"),
    "stale file": ({"boottime_ns": NOW - 31 * SECOND}, {}, "31 s old"),
    "file of the future": ({"boottime_ns": NOW + 3 * SECOND}, {}, "ahead"),
}
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def status(**changes: Any) -> dict[str, Any]:
    return {
        "format": verdict.FORMAT,
        "host": "gpu-017",
        "agent_version": "0.1.0",
        "policy": "1",
        "boot_id": "ab" * 16,
        "boottime_ns": NOW - 2 * SECOND,
        "enforcing": ["xid79"],
        "permit": {"until_ns": NOW + 50 * SECOND, "reason": "ops: trial"},
        "notes": [],
        "findings": [finding()],
        "left_out": 0,
        "agent": None,
        **changes,
    }


def finding(**changes: Any) -> dict[str, Any]:
    return {
        "name": "xid79",
        "device": "GPU-3f2a",
        "address": "0000:9b:00.0",
        "severity": "fatal",
        "problem": "node",
        "message": "GPU has fallen off the bus",
        "action": "drain now",
        "scope": "host",
        "clears_when": "the host boots",
        "since_ns": NOW - 700 * SECOND,
        "confirmed_ns": NOW - 2 * SECOND,
        "count": 1,
        "enforceable": True,
        **changes,
    }


def test_the_full_set_is_enforced() -> None:
    """Only a named, deterministic, fresh and permitted finding stops jobs on this host."""
    assert [finding["name"] for finding in verdict.enforced_findings(status(), NOW)] == ["xid79"]


@pytest.mark.parametrize("case", NOT_ENFORCED)
def test_anything_less_is_not(case: str) -> None:
    """Without any one condition the exit code is 0, with a message."""
    document, changed, message = NOT_ENFORCED[case]
    shown = status(findings=[finding(**changed)], **document)
    assert verdict.enforced_findings(shown, NOW) == []
    assert message in verdict.not_enforced_reason(shown, shown["findings"][0], NOW)
    assert "Not enforced: " in verdict.summary(shown, NOW)


def test_a_mild_finding_does_not_hide_behind_an_enforced_one() -> None:
    """Two findings, one enforced: the enforced one comes first, then the other."""
    shown = status(
        findings=[finding(name="xid13", problem="user", severity="application"), finding()]
    )
    line = verdict.summary(shown, NOW)
    assert line.startswith(
        "gpu-017: [node_problem] xid79 on 0000:9b:00.0: GPU has fallen off the bus"
    )
    assert "ENFORCED by permit: ops: trial" in line and "Also: xid13" in line


def test_the_reason_speaks_slurms_grammar() -> None:
    """Others match the prefix, and only our own drains are ever resumed."""
    assert (
        verdict.drain_reason(finding())
        == "gangline:v1;act=drain;cause=xid79;dev=0000:9b:00.0;ttl=3600"
    )
    hostile = finding(address="", device="x; rm -rf / #\n$(id)", name="a;b=c")
    assert verdict.drain_reason(hostile) == "gangline:v1;act=drain;cause=abc;dev=xrm-rf/id;ttl=3600"


def test_a_document_is_read_as_it_was_written() -> None:
    """The command reads the agent's document without loss."""
    written = status(devices=[], cleared=[], pid=1)
    assert verdict.parse(json.dumps(written).encode()) == status()
    assert verdict.parse(json.dumps(status(permit=None)).encode())["permit"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON, or incomplete JSON"),
        (json.dumps(status()).encode()[:-40], "not JSON, or incomplete JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"1" * 5000, "not JSON"),
        (b"[]", "not of format 1"),
        (json.dumps(status(format=2)).encode(), "different versions"),
        (json.dumps(status(findings=[finding(count="1")])).encode(), "has a wrong type"),
        (json.dumps(status(findings=[finding(enforceable=1)])).encode(), "has a wrong type"),
        (json.dumps(status(findings=[finding()] * 65)).encode(), "has a wrong type"),
        (json.dumps(status(findings={})).encode(), "has a wrong type"),
        (json.dumps(status(boottime_ns=-1)).encode(), "has a wrong type"),
        (json.dumps(status(boottime_ns=1e9)).encode(), "has a wrong type"),
        (
            json.dumps(status(permit={"until_ns": True, "reason": ""})).encode(),
            "has a wrong type",
        ),
        (json.dumps(status(enforcing="xid79")).encode(), "has a wrong type"),
        (b" " * (verdict.STATUS_BYTES_MAX + 1), "longer than 262144 bytes"),
    ],
)
def test_a_document_that_is_none(content: bytes, message: str) -> None:
    """Half a file, another version's file, another program's file: all refused, with a message."""
    with pytest.raises(StatusError, match=message):
        verdict.parse(content)


def test_words_cannot_drive_a_terminal() -> None:
    """A device named in escape codes cleared the operator's screen."""
    shown = verdict.parse(json.dumps(status(host="\x1b[2J" + "h" * 1000)).encode())
    assert shown["host"].isprintable() and len(shown["host"]) == verdict.TEXT_CHARACTERS_MAX


@given(st.sampled_from(sorted(status())), _JSON)
def test_a_field_of_anything(key: str, value: Any) -> None:
    """The document is read or refused, but a bad field enforces nothing."""
    assert faults_of(status(**{key: value})) == []


@given(st.sampled_from(sorted(finding())), _JSON)
def test_a_findings_field_of_anything(key: str, value: Any) -> None:
    assert faults_of(status(findings=[finding(**{key: value})])) == []


def faults_of(document: dict[str, Any]) -> list[str]:
    """Return errors in the handling of a document: unprintable messages, or an unjustified drain."""
    try:
        shown = verdict.parse(json.dumps(document).encode())
    except StatusError as error:
        result, barred = [str(error)], []
    else:
        barred = verdict.enforced_findings(shown, NOW)
        result = [verdict.summary(shown, NOW), *map(verdict.drain_reason, barred)]
        if barred and not shown["permit"]:
            result.append("enforced without a permit\n")
    right = {("node", "fatal")}
    wrong = [
        entry["name"] for entry in barred if (entry["problem"], entry["severity"]) not in right
    ]
    return [message for message in result if not message or not message.isprintable()] + wrong


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a current status file and returns its folder."""

    def write(**changes: Any) -> Path:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        result = finding(confirmed_ns=now_ns, since_ns=now_ns)
        created = {
            "boottime_ns": now_ns,
            "boot_id": check.boot_id() or "none",
            "permit": {"until_ns": now_ns + 50 * SECOND, "reason": "ops: trial"},
            "findings": [result],
            **changes,
        }
        (tmp_path / "status.json").write_text(json.dumps(status(**created)))
        return tmp_path

    return write


def run(where: Path, *arguments: str) -> int:
    return cli.main(["check", "--run-folder", str(where), *arguments])


def test_the_exit_code(shown: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 10, and for Slurm's health check only the reason."""
    where = shown()
    assert run(where, "--for", "healthcheck") == check.BLOCKED == 10
    assert capsys.readouterr().out.startswith("gangline:v1;act=drain;cause=xid79;dev=0000:9b:00.0")
    assert run(where, "--for=prolog") == 10
    assert capsys.readouterr().out.count("\n") == 1
    assert run(where, "--json") == 10
    answer = json.loads(capsys.readouterr().out)
    assert (answer["enforced"], answer["exit_code"]) == (["xid79"], 10)


@pytest.mark.parametrize(
    ("changes", "arguments", "words"),
    [
        ({"permit": None}, (), ["[node_problem] xid79", "the aggregator gives no permit"]),
        ({"findings": []}, ("--for", "cron"), []),
        ({"findings": []}, (), ["gpu-017: nothing is wrong"]),
        (
            {"findings": [], "notes": ["policy.toml is not used: line 3"]},
            ("--for", "cron"),
            ["; [agent_problem] policy.toml is not used: line 3"],
        ),
        ({"boot_id": "cd" * 16}, (), ["is of another boot"]),
    ],
    ids=["no permit", "cron mails every line", "well", "a fault of the agent", "another boot"],
)
def test_the_command_goes_on(
    shown: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    arguments: tuple[str, ...],
    words: list[str],
) -> None:
    assert run(shown(**changes), *arguments) == 0
    output = capsys.readouterr().out
    assert all(word in output for word in words) and bool(output) == bool(words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fro", "prolog"], "'--fro': expected --for PURPOSE"),
        (["--for"], "--for: expected one of person, healthcheck"),
        (["--for", "prologue"], "--for: expected one of person"),
        (["--run-folder"], "--run-folder: expected a folder"),
        (["--run-folder="], "--run-folder: expected a folder"),
        (["prolog"], "'prolog': expected"),
    ],
)
def test_wrong_option(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in the prolog of ten thousand hosts: a message, and exit code 0."""
    assert cli.main(["check", *arguments]) == 0
    assert message in capsys.readouterr().out


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _others_may_write(path: Path) -> None:
    path.write_text(json.dumps(status()))
    path.chmod(0o666)


def _link_to_a_good_file(path: Path) -> None:
    """Root opens it in each prolog: a link to a watchdog would reboot the host."""
    target = path.with_name("elsewhere")
    target.write_text(json.dumps(status()))
    path.symlink_to(target)


def _half(path: Path) -> None:
    path.write_text(json.dumps(status())[:300])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no agent runs here"),
        (_fifo, "not a regular file"),
        (Path.mkdir, "status.json: "),
        (_others_may_write, "so it is ignored"),
        (_half, "incomplete JSON"),
        (lambda path: path.symlink_to(path), "status.json: "),
        (_link_to_a_good_file, "status.json: "),
        (lambda path: path.write_bytes(os.urandom(4096)), "not JSON"),
    ],
)
def test_a_file_that_is_none(
    make: Callable[[Path], object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Missing file, blocking FIFO, planted or torn file: a message and exit code 0."""
    make(tmp_path / "status.json")
    assert run(tmp_path) == 0
    assert message in (line := capsys.readouterr().out) and line.endswith("exit 0\n")


def test_the_command_knows_half_a_file(tmp_path: Path) -> None:
    """With `json` imported its scanner raises ValueError; in the command's process it could not."""
    _half(tmp_path / "status.json")
    command = [sys.executable, "-m", "gangline.cli", "check", "--run-folder", str(tmp_path)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stdout.count("\n") == 1 and "not JSON, or incomplete JSON" in ended.stdout


def test_a_folder_of_several_lines_is_said_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Path("/nowhere/a\nb")) == 0
    assert "no /nowhere/a b/status.json" in capsys.readouterr().out


@pytest.mark.parametrize("purpose", check.PURPOSES)
def test_a_file_below_where_somebody_works_is_not_believed(
    purpose: str,
    shown: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A user left `var/agent/run/status.json` in a prolog's folder: the host was drained."""
    below = tmp_path / "work/var/agent/run"
    below.mkdir(parents=True)
    shown().joinpath("status.json").rename(below / "status.json")
    monkeypatch.setattr(check, "FOLDERS", (str(tmp_path / "none"), check.FOLDERS[1]))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.chdir(tmp_path / "work")
    assert cli.main(["check", "--for", purpose]) == 0
    message = (
        "owned by another user, so it is ignored" if purpose == "person" else "no agent runs here"
    )
    assert message in capsys.readouterr().out


def test_a_fault_of_ours_is_exit_code_0(
    monkeypatch: pytest.MonkeyPatch, shown: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception of the check in the prolog would drain every host with the new version."""
    monkeypatch.setattr(verdict, "enforced_findings", lambda *_: 1 / 0)
    assert run(shown()) == 0
    assert "the check itself failed: ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["/dev/full", "closed", "gone"])
def test_who_does_not_read_changes_nothing(where: str, shown: Callable[..., Path]) -> None:
    """stdout full, closed, or a pipe whose reader left: the exit code is the verdict's."""
    for changes, code in (({}, 10), ({"permit": None}, 0)):
        command = [
            sys.executable,
            "-m",
            "gangline.cli",
            "check",
            "--run-folder",
            str(shown(**changes)),
        ]
        if where == "closed":
            command = ["sh", "-c", '"$@" >&-', "sh", *command]
        if where == "gone":
            reader, writer = os.pipe()
            os.close(reader)
        else:
            writer = os.open(where if where != "closed" else os.devnull, os.O_WRONLY)
        ended = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=GUARD_SECONDS
        )
        os.close(writer)
        assert (ended.returncode, ended.stderr) == (code, b"")


def test_the_command_is_light(shown: Callable[..., Path]) -> None:
    """It runs twice a job on each host: no argparse, dataclasses, protobuf or json with re."""
    code = (
        "import sys; before = set(sys.modules); from gangline.agent.commands import check; "
        f"check.main(['--run-folder', '{shown()}']); print(*sorted(set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "[node_problem] xid79" in out.stdout
    assert set(out.stdout.splitlines()[-1].split()) <= {
        "gangline", "gangline.agent", "gangline.agent.commands", "gangline.agent.commands.check",
        "gangline.agent.local", "gangline.agent.local.check", "__future__", "stat", "os", "time", "_json",
    }  # fmt: skip


def test_command_and_agent_mean_the_same_folder() -> None:
    """The command finds the agent's folder without importing its definition."""
    assert (str(folder.SERVICE_RUN_FOLDER), str(folder.DEFAULT_RUN_FOLDER)) == check.FOLDERS
    assert check.FILE_NAME == folder.STATUS_NAME
