"""`gangline check` and the health check: only the full set of conditions says no; all else is exit code 0."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline import cli
from gangline.agent import config as folder
from gangline.agent.commands import check
from gangline.agent.config import AgentConfig
from gangline.agent.events import EventPublisher
from gangline.agent.latest import LatestReadings
from gangline.agent.local import check as verdict
from gangline.agent.local.check import StatusError
from gangline.agent.local.host_status import EARLY_UPDATES_MAX, HostStatus, judged_tables
from gangline.contract.block import Block
from gangline.contract.host_policy import builtin
from gangline.contract.settings import SettingsError
from gangline.contract.wire.telemetry_pb2 import (
    HealthEvent,
    IngestAck,
    Permit,
    RegisterNodeResponse,
)
from tests.agent.local_world import BOOT, GPU, SECOND, Host
from tests.processes import GUARD_SECONDS

NOW = 5_000 * SECOND


def status(**changes: Any) -> dict[str, Any]:
    """Return a document in which everything allows that XID 79 is enforced."""
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
        "words": "GPU has fallen off the bus",
        "action": "drain now",
        "scope": "host",
        "clears_when": "the host boots",
        "since_ns": NOW - 700 * SECOND,
        "confirmed_ns": NOW - 2 * SECOND,
        "count": 1,
        "enforceable": True,
        **changes,
    }


#: What is missing of the full set -> the words that say why it is not enforced.
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


def test_the_full_set_is_enforced() -> None:
    """Named, deterministic, fresh, permitted: then, and only then, no job may start here."""
    assert [one["name"] for one in verdict.enforced_findings(status(), NOW)] == ["xid79"]


@pytest.mark.parametrize("case", NOT_ENFORCED)
def test_anything_less_is_not(case: str) -> None:
    """Each condition alone keeps the exit code at 0, and says that it does."""
    document, changed, words = NOT_ENFORCED[case]
    shown = status(findings=[finding(**changed)], **document)
    assert verdict.enforced_findings(shown, NOW) == []
    assert words in verdict.not_enforced_reason(shown, shown["findings"][0], NOW)
    assert "Not enforced: " in verdict.summary(shown, NOW)


def test_a_mild_finding_does_not_hide_behind_an_enforced_one() -> None:
    """Two findings, one enforced: it is told first, and the other beside it."""
    shown = status(
        findings=[finding(name="xid13", problem="user", severity="application"), finding()]
    )
    line = verdict.summary(shown, NOW)
    assert line.startswith(
        "gpu-017: [node_problem] xid79 on 0000:9b:00.0: GPU has fallen off the bus"
    )
    assert "ENFORCED by permit: ops: trial" in line and "Also: xid13" in line


def test_the_reason_speaks_slurms_grammar() -> None:
    """Others match the prefix, and only what is ours is ever resumed."""
    assert (
        verdict.drain_reason(finding())
        == "gangline:v1;act=drain;cause=xid79;dev=0000:9b:00.0;ttl=3600"
    )
    hostile = finding(address="", device="x; rm -rf / #\n$(id)", name="a;b=c")
    assert verdict.drain_reason(hostile) == "gangline:v1;act=drain;cause=abc;dev=xrm-rf/id;ttl=3600"


def test_a_document_is_read_as_it_was_written() -> None:
    """What the agent shows is what the command reads."""
    written = status(devices=[], cleared=[], pid=1)
    assert verdict.parse(json.dumps(written).encode()) == status()
    assert verdict.parse(json.dumps(status(permit=None)).encode())["permit"] is None


@pytest.mark.parametrize(
    ("content", "words"),
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
def test_a_document_that_is_none(content: bytes, words: str) -> None:
    """Half a file, another version's, somebody else's: refused whole, in words."""
    with pytest.raises(StatusError, match=words):
        verdict.parse(content)


def test_words_cannot_drive_a_terminal() -> None:
    """A device named in escape codes cleared the screen of who looked for the reason."""
    shown = verdict.parse(json.dumps(status(host="\x1b[2J" + "h" * 1000)).encode())
    assert shown["host"].isprintable() and len(shown["host"]) == verdict.TEXT_CHARACTERS_MAX


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(status())), _JSON)
def test_a_field_of_anything(key: str, value: Any) -> None:
    """Any one field may hold anything: the rest is read, or the whole refused, and never enforced by it."""
    assert faults_of(status(**{key: value})) == []


@given(st.sampled_from(sorted(finding())), _JSON)
def test_a_findings_field_of_anything(key: str, value: Any) -> None:
    """The same for the fields of a finding."""
    assert faults_of(status(findings=[finding(**{key: value})])) == []


def faults_of(document: dict[str, Any]) -> list[str]:
    """Return what is wrong with how the document is taken: words that a terminal cannot show, a drain without right."""
    try:
        shown = verdict.parse(json.dumps(document).encode())
    except StatusError as error:
        said, barred = [str(error)], []
    else:
        barred = verdict.enforced_findings(shown, NOW)
        said = [verdict.summary(shown, NOW), *map(verdict.drain_reason, barred)]
        if barred and not shown["permit"]:
            said.append("enforced without a permit\n")
    right = {("node", "fatal")}
    wrong = [one["name"] for one in barred if (one["problem"], one["severity"]) not in right]
    return [words for words in said if not words or not words.isprintable()] + wrong


# The command ---------------------------------------------------------------------------------


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., Path]:
    """Return what writes a status file of now, and returns its folder."""

    def write(**changes: Any) -> Path:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        found = finding(confirmed_ns=now_ns, since_ns=now_ns)
        made = {
            "boottime_ns": now_ns,
            "boot_id": check.boot_id() or "none",
            "permit": {"until_ns": now_ns + 50 * SECOND, "reason": "ops: trial"},
            "findings": [found],
            **changes,
        }
        (tmp_path / "status.json").write_text(json.dumps(status(**made)))
        return tmp_path

    return write


def run(where: Path, *arguments: str) -> int:
    return cli.main(["check", "--run-folder", str(where), *arguments])


def test_the_command_says_no(
    shown: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 10, and for Slurm's health check the reason alone."""
    where = shown()
    assert run(where, "--for", "healthcheck") == check.BLOCKED == 10
    assert capsys.readouterr().out.startswith("gangline:v1;act=drain;cause=xid79;dev=0000:9b:00.0")
    assert run(where, "--for=prolog") == 10
    assert capsys.readouterr().out.count("\n") == 1
    assert run(where, "--json") == 10
    answer = json.loads(capsys.readouterr().out)
    assert (answer["enforced"], answer["exit_code"]) == (["xid79"], 10)


def test_the_command_reports_and_goes_on(
    shown: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a permit the same finding is words."""
    assert run(shown(permit=None)) == 0
    line = capsys.readouterr().out
    assert "[node_problem] xid79" in line and "the aggregator gives no permit" in line


def test_cron_is_silent_while_all_is_well(
    shown: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """cron mails every line: ten thousand hosts, every five minutes."""
    where = shown(findings=[])
    assert run(where, "--for", "cron") == 0
    assert capsys.readouterr().out == ""
    assert run(where) == 0
    assert "gpu-017: nothing is wrong" in capsys.readouterr().out


def test_our_own_trouble_is_told_apart(
    shown: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy file that is refused is neither the node's problem nor the user's."""
    assert run(shown(findings=[], notes=["policy.toml is not used: line 3"]), "--for", "cron") == 0
    assert "; [agent_problem] policy.toml is not used: line 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fro", "prolog"], "'--fro': expected --for PURPOSE"),
        (["--for"], "--for: expected one of person, healthcheck"),
        (["--for", "prologue"], "--for: expected one of person"),
        (["--run-folder"], "--run-folder: expected a folder"),
        (["--run-folder="], "--run-folder: expected a folder"),
        (["prolog"], "'prolog': expected"),
    ],
)
def test_a_wrong_option_stops_no_fleet(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in the prolog of ten thousand hosts: words, and exit code 0."""
    assert cli.main(["check", *arguments]) == 0
    assert words in capsys.readouterr().out


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _others_may_write(path: Path) -> None:
    path.write_text(json.dumps(status()))
    path.chmod(0o666)


def _half(path: Path) -> None:
    path.write_text(json.dumps(status())[:300])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no agent runs here"),
        (_fifo, "not a regular file"),
        (Path.mkdir, "status.json: "),
        (_others_may_write, "so it is ignored"),
        (_half, "incomplete JSON"),
        (lambda path: path.symlink_to(path), "status.json: "),
        (lambda path: path.write_bytes(os.urandom(4096)), "not JSON"),
    ],
)
def test_a_file_that_is_none(
    make: Callable[[Path], object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing there, a FIFO that would be waited for, a planted or torn file: said, exit code 0."""
    make(tmp_path / "status.json")
    assert run(tmp_path) == 0
    assert words in (line := capsys.readouterr().out) and line.endswith("exit 0\n")


def test_the_command_knows_half_a_file(tmp_path: Path) -> None:
    """With `json` imported, as here, its scanner raises ValueError; in the command's own process it could not."""
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
    """A user left `var/agent/run/status.json` where the prolog of root runs: his host was drained."""
    below = tmp_path / "work/var/agent/run"
    below.mkdir(parents=True)
    shown().joinpath("status.json").rename(below / "status.json")
    monkeypatch.setattr(check, "FOLDERS", (str(tmp_path / "none"), check.FOLDERS[1]))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.chdir(tmp_path / "work")
    assert cli.main(["check", "--for", purpose]) == 0
    words = (
        "owned by another user, so it is ignored" if purpose == "person" else "no agent runs here"
    )
    assert words in capsys.readouterr().out


def test_a_file_of_another_boot(
    shown: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The host booted, which cleared everything; the file on disk is of before."""
    assert run(shown(boot_id="cd" * 16)) == 0
    assert "is of another boot" in capsys.readouterr().out


def test_a_fault_of_ours_is_exit_code_0(
    monkeypatch: pytest.MonkeyPatch, shown: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception of ours in the prolog would drain every host that runs the new version."""
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
    """It runs twice a job on each host: no argparse, no dataclasses, no protobuf, no json with its re."""
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
    """The command looks where the agent writes, without importing what would tell it."""
    assert (str(folder.SERVICE_RUN_FOLDER), str(folder.DEFAULT_RUN_FOLDER)) == check.FOLDERS
    assert check.FILE_NAME == folder.STATUS_NAME


# The agent's side ----------------------------------------------------------------------------


def answers(host: Host, tmp_path: Path, **settings: Any) -> HostStatus:
    config = AgentConfig(
        host="gpu-017",
        state_folder=tmp_path / "state",
        run_folder=str(tmp_path / "run"),
        **settings,
    )
    made = HostStatus(config, host.latest, host, BOOT, gpus=lambda: {GPU: "0000:9b:00.0"})
    host.findings = made.findings
    return made


def test_what_nobody_on_the_host_asks_for_is_not_kept(tmp_path: Path) -> None:
    """The tables of a host, copied each second for metrics that nobody had turned on; with them, or with a policy of
    the operator's own, any signal may be asked for."""
    read = [Block("gpu_1s", ["GPU-a"]), Block("net_1s", ["eth0"])]
    some, every = LatestReadings(judged_tables(AgentConfig())), LatestReadings()
    for latest in (some, every):
        latest.update(0, read)
    assert some.tables.keys() == {"gpu_1s"} and every.tables.keys() == {"gpu_1s", "net_1s"}
    assert judged_tables(AgentConfig(metrics_listen="127.0.0.1:9400")) is None
    assert judged_tables(AgentConfig(policy_file=str(tmp_path / "policy.toml"))) is None


def test_the_status_file_is_written_also_when_its_folder_was_removed(tmp_path: Path) -> None:
    """Somebody cleaned up /run: the host's prologs took the agent for dead."""
    host = Host()
    made = answers(host, tmp_path)
    second(host, made)
    shutil.rmtree(tmp_path / "run")
    second(host, made, 12)
    assert (tmp_path / "run/status.json").exists()


def test_an_event_is_judged_when_it_comes(tmp_path: Path) -> None:
    """A GPU fell off the bus, and for up to a second the prolog of a job was told that all was well."""
    host, posted = Host(), list[Callable[[], None]]()

    def post(callback: Callable[[], None]) -> bool:
        posted.append(callback)
        return True

    def names() -> list[str]:
        shown = json.loads((tmp_path / "run/status.json").read_text())
        return [one["name"] for one in shown["findings"]]

    made = answers(host, tmp_path)
    made.post_with(post)
    second(host, made)
    made.observe(xid_event(79, host.now_ns))
    made.observe(xid_event(31, host.now_ns))
    assert len(posted) == 1 and names() == []  # one look for both
    posted.pop()()
    assert names()[:1] == ["xid79"]
    assert "xid79" in made.health_check().output


def test_a_storm_of_events_is_judged_so_often_and_no_more(tmp_path: Path) -> None:
    """Each of a thousand incidents had the status written, while the samplers waited."""
    host, writes, full = Host(), list[int](), list[bool]()
    made = answers(host, tmp_path)

    def post(callback: Callable[[], None]) -> bool:
        if not full:
            callback()
        return not full

    made.post_with(post)
    made.observe(xid_event(79, host.now_ns))
    assert made.file.writes == 0, "nothing was read yet: what it says would be of nothing"
    for _ in range(2):
        second(host, made)
        before = made.file.writes
        for number in range(100):
            made.observe(xid_event(62, host.now_ns, f"0000:{number:02x}:00"))
        writes.append(made.file.writes - before)
    assert writes == [EARLY_UPDATES_MAX] * 2
    full.append(True)
    second(host, made)
    made.observe(xid_event(95, host.now_ns))  # no room to ask for a look
    full.clear()
    made.observe(xid_event(95, host.now_ns))
    assert any(one.name == "xid95" for one in made.findings.findings)


def xid_event(code: int, now_ns: int, address: str = "0000:9b:00") -> HealthEvent:
    return HealthEvent(
        event_id=os.urandom(8).hex(), name="gpu.xid", code=code, device=f"{address}.0", boot_id=BOOT,
        boottime_ns=now_ns, last_boottime_ns=now_ns, count=1, message=f"NVRM: Xid (PCI:{address}): {code}",
    )  # fmt: skip


def second(host: Host, made: HostStatus, seconds: int = 1) -> None:
    for _ in range(seconds):
        host.now_ns += SECOND
        made.update()


def ack(seconds: int = 60) -> IngestAck:
    return (
        IngestAck(permit=Permit(seconds=seconds, reason="ops: trial")) if seconds else IngestAck()
    )


def test_the_health_check_follows_permit_and_finding(tmp_path: Path) -> None:
    """Report-only, permitted, revoked with the next message, permitted again, and silence: each in turn."""
    host = Host()
    made = answers(host, tmp_path, enforcing=("xid79",))
    assert made.health_check(["--no-slurm"]).success
    host.event("gpu.xid", 79)
    second(host, made)
    healthy = made.health_check()
    assert (healthy.success, healthy.exit_code, healthy.error) == (True, 0, "")
    assert json.loads(healthy.output)["fail_count"] == 0
    assert json.loads(healthy.output)["findings"] == [f"xid79 {GPU}: GPU has fallen off the bus"]
    made.permit.update(RegisterNodeResponse(permit=Permit(seconds=60, reason="ops: trial")))
    second(host, made)
    barred = made.health_check()
    assert (barred.success, barred.exit_code) == (False, 1)
    said = json.loads(barred.output)
    assert (said["fail_count"], said["failed_checks"]) == (1, ["xid79 0000:9b:00.0"])
    made.permit.update(ack(0))
    second(host, made)
    assert made.health_check().success
    made.permit.update(ack(4_000_000))  # an aggregator that grants weeks at once is not believed
    second(host, made)
    assert not made.health_check().success
    second(host, made, 60)
    assert made.health_check().success


def test_a_daemon_that_hangs_is_healthy(tmp_path: Path) -> None:
    """The thread that judges is stuck; the socket's goes on answering, and does not bar the host for ever."""
    host = Host()
    made = answers(host, tmp_path, enforcing=("xid79",))
    host.event("gpu.xid", 79)
    made.permit.update(ack())
    second(host, made)
    assert not made.health_check().success
    host.now_ns += 29 * SECOND
    assert not made.health_check().success
    host.now_ns += SECOND
    assert made.health_check().success


def test_the_file_is_written_when_something_changed_and_every_ten_seconds(tmp_path: Path) -> None:
    """One write a second on ten thousand hosts is a write too many; a minute of silence looks dead."""
    host = Host()
    made = answers(host, tmp_path)
    second(host, made, 60)
    assert made.file.writes == 6
    host.event("gpu.xid", 79)
    second(host, made)
    assert made.file.writes == 7
    path = tmp_path / "run" / "status.json"
    read = verdict.parse(path.read_bytes())
    assert [one["name"] for one in read["findings"]] == ["xid79"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in path.parent.iterdir()] == ["status.json"]
    made.close()
    assert not path.exists()


def test_the_file_is_bounded_and_readable_whatever_stands(tmp_path: Path) -> None:
    """Four hundred sick links with long names: the gravest are shown, the rest counted."""
    host = Host()
    made = answers(host, tmp_path)
    for number in range(400):
        host.event("disk.error", device=f"{number}" + "x" * 5000, message="y" * 5000)
    host.event("gpu.xid", 79)
    second(host, made)
    content = (tmp_path / "run" / "status.json").read_bytes()
    assert len(content) <= verdict.STATUS_BYTES_MAX
    assert verdict.parse(content)["findings"][0]["name"] == "xid79"


def test_a_run_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """The disk is full, or the folder a file: the socket still answers."""
    (tmp_path / "run").write_text("a file")
    host = Host()
    made = answers(host, tmp_path)
    second(host, made)
    assert made.health_check().success and "status.json" in made.file.last_error


def test_an_unknown_name_is_refused_at_the_start(tmp_path: Path) -> None:
    """`enforcing = ["xid97"]`: the operator hears of it now, and not on the day that it should have acted."""
    with pytest.raises(SettingsError, match="enforcing: no finding is called 'xid9999'"):
        answers(Host(), tmp_path, enforcing=("xid9999",))


def test_a_restart_keeps_what_stands(tmp_path: Path) -> None:
    """XID 79, then an upgrade of the agent: the new one knows, without the kernel's log."""
    host = Host()
    made = answers(host, tmp_path)
    host.event("gpu.xid", 79)
    second(host, made, 2)
    host = Host(now_ns=host.now_ns)
    made = answers(host, tmp_path)
    second(host, made)
    assert host.names() == ["xid79"]


def test_a_torn_file_of_what_was_kept_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut left half of it: said once in the log, and not by cron on every run until the next XID."""
    (tmp_path / "state").mkdir()
    kept = tmp_path / "state" / "findings.json"
    kept.write_text('{"boot_id": "62')
    host = Host()
    made = answers(host, tmp_path)
    second(host, made)
    assert "findings.json: does not contain findings" in caplog.text
    assert made.document is not None and made.document["notes"] == []
    assert json.loads(kept.read_text())["boot_id"] == BOOT.hex()


def test_an_agent_that_was_away_is_not_sure_of_a_reset(tmp_path: Path) -> None:
    """XID 95, the agent stopped for an upgrade, the GPU reset within the hour: the new agent barred a healed host."""
    host = Host()
    made = answers(host, tmp_path, enforcing=("xid95", "xid79"))
    host.event("gpu.xid", 95)
    host.event("gpu.xid", 79)
    host.read(GPU, {"gpu.energy_joules": 5e6})
    second(host, made, 600)
    for away, sure in ((100, True), (3600, False)):
        later = Host(now_ns=host.now_ns + away * SECOND)
        restarted = answers(later, tmp_path, enforcing=("xid95", "xid79"))
        later.read(GPU, {"gpu.energy_joules": 6e6})
        restarted.update()
        seen = {one.name: one.enforceable for one in later.findings.findings}
        assert seen == {"xid95": sure, "xid79": True}, away


# The policy file -----------------------------------------------------------------------------

MINE = """version = "mine-1"
rollout_share = 1.0
[[row]]
name = "gpu_busy"
when = ["gpu.lost_state == 7"]
severity = "fatal"
words = "is odd"
action = "call me"
clears = "reading"
enforceable = true
source = "assumed"
"""


def test_a_policy_is_checked_taken_and_kept(tmp_path: Path) -> None:
    """Good, then bad, then a restart with the bad one: the last good one judges all the time."""
    file, host = tmp_path / "mine.toml", Host()
    file.write_text(MINE)
    made = answers(host, tmp_path, policy_file=str(file), enforcing=("gpu_busy",))
    host.read(GPU, {"gpu.lost_state": 7})
    host.after(0)
    second(host, made)
    assert made.document is not None and made.document["policy"] == "mine-1 over 1"
    assert made.document["enforcing"] == ["gpu_busy"]
    host.judge()
    assert "gpu_busy" in host.after(2)
    file.write_text(MINE.replace("lost_state", "lots_state"))
    second(host, made, 21)
    (note,) = made.document["notes"]
    assert "line 3: row 'gpu_busy': no signal is called 'gpu.lots_state'" in note
    assert made.document["policy"] == "mine-1 over 1"
    made = answers(Host(), tmp_path, policy_file=str(file), enforcing=("gpu_busy",))
    made.update()
    assert made.document is not None
    assert made.document["policy"] == "mine-1 over 1" and made.document["notes"]


def test_a_policy_waits_for_its_share(tmp_path: Path) -> None:
    """The first step of a rollout is not this host's: it goes on with what it had, and says so."""
    file, host = tmp_path / "mine.toml", Host()
    file.write_text(MINE.replace("share = 1.0", "share = 0.0"))
    made = answers(host, tmp_path, policy_file=str(file), enforcing=("gpu_busy", "xid79"))
    second(host, made)
    assert made.document is not None
    waits = "mine-1 over 1 waits: this host is not among its 0 %"
    assert made.document["policy"] == f"{builtin().version}; {waits}"
    assert made.document["enforcing"] == ["xid79"]
    assert len(made.document["notes"]) == 1, "but gpu_busy, nothing is wrong: cron would mail it"
    file.write_text(MINE)
    second(host, made, 21)
    assert (made.document["policy"], made.document["notes"]) == ("mine-1 over 1", [])


def test_half_a_policy_is_not_taken(tmp_path: Path) -> None:
    """It was copied over ssh: for a moment it ended before `for_seconds`, which condemned whoever looked just then."""
    file, host = tmp_path / "mine.toml", Host()
    file.write_text(MINE)
    made = answers(host, tmp_path, policy_file=str(file))
    second(host, made)
    for length in range(len(MINE) + 40, len(MINE) + 43):
        file.write_text(f"{MINE}# {'x' * length}".replace("mine-1", "mine-2"))
        second(host, made, 10)
        assert made.document is not None and made.document["policy"] == "mine-1 over 1"
    second(host, made, 10)
    assert made.document is not None and made.document["policy"] == "mine-2 over 1"


def test_what_bars_the_host_is_counted_without_a_permit(tmp_path: Path) -> None:
    """The aggregator withholds the permit by this count: it must not fall to 0 when it does."""
    host = Host()
    made = answers(host, tmp_path, enforcing=("xid79",))
    assert made.blocking_findings() == 0
    host.event("gpu.xid", 79)
    host.event("gpu.xid", 95)
    second(host, made)
    assert made.blocking_findings() == 1
    made.permit.update(ack())
    second(host, made)
    assert made.blocking_findings() == 1
    host.now_ns += 31 * SECOND
    assert made.blocking_findings() == 0, "the daemon hangs: nothing is known"


@pytest.mark.parametrize("make", ["missing", "folder", "fifo", "binary", "huge"])
def test_a_policy_file_that_is_none(make: str, tmp_path: Path) -> None:
    """Whatever stands there: a note that names it, and the built-in policy."""
    file = tmp_path / "mine.toml"
    if make == "folder":
        file.mkdir()
    elif make == "fifo":
        os.mkfifo(file)
    elif make != "missing":
        file.write_bytes(b"\xff\xfe" * (10 if make == "binary" else 200_000))
    host = Host()
    made = answers(host, tmp_path, policy_file=str(file))
    second(host, made)
    assert made.document is not None
    assert str(file) in made.document["notes"][0] and made.document["policy"] == "1"


# What feeds it --------------------------------------------------------------------------------


class Stuck(IntEnum):
    """As the supervisor's states."""

    HUNG = 1


@dataclass
class Hanging:
    """A device of the samplers that does not answer."""

    group: str = "gpu"
    device: str = "0000:9b:00.0"
    state: Stuck = Stuck.HUNG
    call: str = "nvmlDeviceGetFieldValues"
    hung_seconds: float = 3.04
    message: str = "does not return"


def test_devices_that_hang_are_shown(tmp_path: Path) -> None:
    """Which device, in which call, for how long: at once when it begins, not every second while it lasts."""
    host, devices = Host(), [Hanging()]
    config = AgentConfig(host="h", state_folder=tmp_path / "s", run_folder=str(tmp_path / "r"))
    made = HostStatus(config, host.latest, host, BOOT, devices=lambda: cast(Any, devices))
    second(host, made)
    devices[0].hung_seconds = 4.0
    second(host, made, 2)
    assert made.file.writes == 1 and made.document is not None
    assert made.document["devices"] == [
        {
            "lane": "gpu",
            "device": "0000:9b:00.0",
            "state": "hung",
            "call": "nvmlDeviceGetFieldValues",
            "hung_seconds": 3.0,
            "words": "does not return",
        }
    ]
    devices.clear()
    second(host, made)
    assert made.file.writes == 2 and made.document["devices"] == []


class Kept:
    """A queue of events in memory."""

    def __init__(self) -> None:
        self.events: list[HealthEvent] = []

    def put(self, event: HealthEvent) -> None:
        self.events.append(event)


def _chokes(event: HealthEvent) -> None:
    raise ZeroDivisionError(event.event_id)


def test_an_observer_that_fails_costs_no_event(caplog: pytest.LogCaptureFixture) -> None:
    """The findings choked on an event: it went to the aggregator all the same, and to the other observers."""
    host, queue, seen = Host(), Kept(), list[str]()
    teller = EventPublisher(host, queue, lambda: None, boot_id=BOOT)
    teller.observe(_chokes)
    teller.observe(lambda event: seen.append(event.event_id))
    teller.publish(HealthEvent(name="gpu.xid", code=79))
    assert [one.event_id for one in queue.events] == seen and seen[0]
    assert "an observer of events failed" in caplog.text


def test_a_judge_that_fails_does_not_end_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours in the findings: said in the log, and the file grows old, which reads as exit code 0."""
    host = Host()
    made = answers(host, tmp_path, enforcing=("xid79",))
    host.event("gpu.xid", 79)
    made.permit.update(ack())
    second(host, made)
    monkeypatch.setattr(made.findings, "evaluate", lambda *_: 1 / 0)
    second(host, made)
    assert "judging this host failed" in caplog.text and not made.health_check().success
    host.now_ns += 30 * SECOND
    made.update()
    assert made.health_check().success
