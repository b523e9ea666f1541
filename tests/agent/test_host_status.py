"""The host's own status: the status file, the health check, and the state over a restart."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, cast

import pytest

from gangline import torchrun
from gangline.agent.config import AgentConfig
from gangline.agent.events import EventPublisher
from gangline.agent.latest import LatestReadings
from gangline.agent.local import check as verdict
from gangline.agent.local.host_status import EARLY_UPDATES_MAX, HostStatus, judged_tables
from gangline.contract.block import Block
from gangline.contract.faults.table import builtin
from gangline.contract.settings import SettingsError
from gangline.contract.wire.telemetry_pb2 import (
    HealthEvent,
    IngestAck,
    Permit,
    RegisterNodeResponse,
)
from tests.agent.fakes import KeptEvents
from tests.agent.local_world import BOOT, GPU, SECOND, Host

MINE = """version = "mine-1"
rollout_share = 1.0
[[row]]
name = "gpu_busy"
when = ["gpu.lost_state == 7"]
severity = "fatal"
message = "is odd"
action = "call me"
clears = "reading"
enforceable = true
source = "assumed"
"""


def answers(host: Host, tmp_path: Path, **settings: Any) -> HostStatus:
    config = AgentConfig(
        host="gpu-017",
        state_folder=tmp_path / "state",
        run_folder=str(tmp_path / "run"),
        **settings,
    )
    host_status = HostStatus(config, host.latest, host, BOOT, gpus=lambda: {GPU: "0000:9b:00.0"})
    host.findings = host_status.findings
    return host_status


def begun(tmp_path: Path, **settings: Any) -> tuple[Host, HostStatus]:
    host = Host()
    return host, answers(host, tmp_path, **settings)


def document(host_status: HostStatus) -> dict[str, Any]:
    assert host_status.document is not None
    return host_status.document


def test_what_nobody_on_the_host_asks_for_is_not_kept(tmp_path: Path) -> None:
    """Tables were copied each second for disabled metrics."""
    read = [Block("gpu_1s", ["GPU-a"]), Block("net_1s", ["eth0"])]
    selected, every = LatestReadings(judged_tables(AgentConfig())), LatestReadings()
    for latest in (selected, every):
        latest.update(0, read)
    assert selected.tables.keys() == {"gpu_1s"} and every.tables.keys() == {"gpu_1s", "net_1s"}
    assert judged_tables(AgentConfig(metrics_listen="127.0.0.1:9400")) is None
    assert judged_tables(AgentConfig(policy_file=str(tmp_path / "policy.toml"))) is None


def test_the_status_file_is_written_also_when_its_folder_was_removed(tmp_path: Path) -> None:
    """A clean-up of /run removed it: the host's prologs took the agent for dead."""
    host, host_status = begun(tmp_path)
    second(host, host_status)
    shutil.rmtree(tmp_path / "run")
    second(host, host_status, 12)
    assert (tmp_path / "run/status.json").exists()


def test_an_event_is_judged_when_it_comes(tmp_path: Path) -> None:
    """A GPU fell off the bus, and for up to a second the prolog of a job passed."""
    host, posted = Host(), list[Callable[[], None]]()

    def post(callback: Callable[[], None]) -> bool:
        posted.append(callback)
        return True

    def names() -> list[str]:
        shown = json.loads((tmp_path / "run/status.json").read_text())
        return [entry["name"] for entry in shown["findings"]]

    host_status = answers(host, tmp_path)
    host_status.post_with(post)
    second(host, host_status)
    host_status.observe(xid_event(79, host.now_ns))
    host_status.observe(xid_event(31, host.now_ns))
    assert len(posted) == 1 and names() == []  # one pass for both
    posted.pop()()
    assert names()[:1] == ["xid79"]
    assert "xid79" in host_status.health_check().output


def test_a_storm_of_events_is_judged_so_often_and_no_more(tmp_path: Path) -> None:
    """Each of a thousand incidents wrote the status, while the samplers waited."""
    host, writes, full = Host(), list[int](), list[bool]()
    host_status = answers(host, tmp_path)

    def post(callback: Callable[[], None]) -> bool:
        if not full:
            callback()
        return not full

    host_status.post_with(post)
    host_status.observe(xid_event(79, host.now_ns))
    assert host_status.file.writes == 0, "nothing was read yet: what it says would be of nothing"
    for _ in range(2):
        second(host, host_status)
        before = host_status.file.writes
        for number in range(100):
            host_status.observe(xid_event(62, host.now_ns, f"0000:{number:02x}:00"))
        writes.append(host_status.file.writes - before)
    assert writes == [EARLY_UPDATES_MAX] * 2
    full.append(True)
    second(host, host_status)
    host_status.observe(xid_event(95, host.now_ns))  # no capacity to request a pass
    full.clear()
    host_status.observe(xid_event(95, host.now_ns))
    assert any(finding.name == "xid95" for finding in host_status.findings.findings)


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
    """Report-only, permitted, revoked, permitted again, and silence; torchrun reads the same in the file."""
    host, host_status = begun(tmp_path, enforcing=("xid79",))

    def barred_reason() -> str:
        return torchrun.barred_reason(str(tmp_path / "run/status.json"), host.now_ns)

    assert host_status.health_check(["--no-slurm"]).success
    host.event("gpu.xid", 79)
    second(host, host_status)
    healthy = host_status.health_check()
    assert (healthy.success, healthy.exit_code, healthy.error) == (True, 0, "")
    assert json.loads(healthy.output)["fail_count"] == 0
    assert json.loads(healthy.output)["findings"] == [f"xid79 {GPU}: GPU has fallen off the bus"]
    assert barred_reason() == ""
    host_status.permit.update(RegisterNodeResponse(permit=Permit(seconds=60, reason="ops: trial")))
    second(host, host_status)
    barred = host_status.health_check()
    assert (barred.success, barred.exit_code) == (False, 1)
    assert barred_reason() == "xid79 0000:9b:00.0: GPU has fallen off the bus"
    reported = json.loads(barred.output)
    assert (reported["fail_count"], reported["failed_checks"]) == (1, ["xid79 0000:9b:00.0"])
    host_status.permit.update(ack(0))
    second(host, host_status)
    assert host_status.health_check().success and barred_reason() == ""
    host_status.permit.update(ack(4_000_000))  # a permit of weeks at once is not accepted
    second(host, host_status)
    assert not host_status.health_check().success and barred_reason()
    second(host, host_status, 60)
    assert host_status.health_check().success and barred_reason() == ""


def test_a_daemon_that_hangs_is_healthy(tmp_path: Path) -> None:
    """The judging thread is stuck; the socket's thread still answers."""
    host, host_status = begun(tmp_path, enforcing=("xid79",))
    host.event("gpu.xid", 79)
    host_status.permit.update(ack())
    second(host, host_status)
    assert not host_status.health_check().success
    host.now_ns += 29 * SECOND
    assert not host_status.health_check().success
    host.now_ns += SECOND
    assert host_status.health_check().success


def test_the_file_is_written_when_something_changed_and_every_ten_seconds(tmp_path: Path) -> None:
    """One write a second on ten thousand hosts is too many; a minute of silence looks dead."""
    host, host_status = begun(tmp_path)
    second(host, host_status, 60)
    assert host_status.file.writes == 6
    host.event("gpu.xid", 79)
    second(host, host_status)
    assert host_status.file.writes == 7
    path = tmp_path / "run" / "status.json"
    read = verdict.parse(path.read_bytes())
    assert [entry["name"] for entry in read["findings"]] == ["xid79"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["status.json"]
    host_status.close()
    assert not path.exists()


def test_the_file_is_bounded_and_readable_whatever_stands(tmp_path: Path) -> None:
    """Four hundred faulty links with long names: the most severe are shown, the rest counted."""
    host, host_status = begun(tmp_path)
    for number in range(400):
        host.event("disk.error", device=f"{number}" + "x" * 5000, message="y" * 5000)
    host.event("gpu.xid", 79)
    second(host, host_status)
    content = (tmp_path / "run" / "status.json").read_bytes()
    assert len(content) <= verdict.STATUS_BYTES_MAX
    assert verdict.parse(content)["findings"][0]["name"] == "xid79"


def test_a_run_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    """The disk is full, or the folder a file: the socket still answers."""
    (tmp_path / "run").write_text("a file")
    host, host_status = begun(tmp_path)
    second(host, host_status)
    assert host_status.health_check().success and "status.json" in host_status.file.last_error


def test_an_unknown_name_is_refused_at_the_start(tmp_path: Path) -> None:
    """`enforcing = ["xid97"]`: the error must come at the start."""
    with pytest.raises(SettingsError, match="enforcing: no finding is called 'xid9999'"):
        answers(Host(), tmp_path, enforcing=("xid9999",))


def test_a_restart_keeps_what_stands(tmp_path: Path) -> None:
    """XID 79, then an upgrade of the agent: the new one knows it without the kernel's log."""
    host, host_status = begun(tmp_path)
    host.event("gpu.xid", 79)
    second(host, host_status, 2)
    host = Host(now_ns=host.now_ns)
    host_status = answers(host, tmp_path)
    second(host, host_status)
    assert host.names() == ["xid79"]


def test_a_torn_file_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A power cut left half of it: logged once, and not by cron on every run until the next XID."""
    (tmp_path / "state").mkdir()
    kept = tmp_path / "state" / "findings.json"
    kept.write_text('{"boot_id": "62')
    host, host_status = begun(tmp_path)
    second(host, host_status)
    assert "findings.json: does not contain findings" in caplog.text
    assert document(host_status)["notes"] == []
    assert json.loads(kept.read_text())["boot_id"] == BOOT.hex()


def test_an_agent_that_was_away_is_not_sure_of_a_reset(tmp_path: Path) -> None:
    """XID 95, then a reset during the agent's upgrade: the new agent barred a repaired host."""
    host, host_status = begun(tmp_path, enforcing=("xid95", "xid79"))
    host.event("gpu.xid", 95)
    host.event("gpu.xid", 79)
    host.read(GPU, {"gpu.energy_joules": 5e6})
    second(host, host_status, 600)
    for away, sure in ((100, True), (3600, False)):
        later = Host(now_ns=host.now_ns + away * SECOND)
        restarted = answers(later, tmp_path, enforcing=("xid95", "xid79"))
        later.read(GPU, {"gpu.energy_joules": 6e6})
        restarted.update()
        seen = {finding.name: finding.enforceable for finding in later.findings.findings}
        assert seen == {"xid95": sure, "xid79": True}, away


def test_a_policy_is_checked_taken_and_kept(tmp_path: Path) -> None:
    """Good, then bad, then a restart with the bad one: the last good policy always judges."""
    file, host = tmp_path / "mine.toml", Host()
    file.write_text(MINE)
    host_status = answers(host, tmp_path, policy_file=str(file), enforcing=("gpu_busy",))
    host.read(GPU, {"gpu.lost_state": 7})
    host.after(0)
    second(host, host_status)
    assert document(host_status)["policy"] == "mine-1 over 1"
    assert document(host_status)["enforcing"] == ["gpu_busy"]
    host.judge()
    assert "gpu_busy" in host.after(2)
    file.write_text(MINE.replace("lost_state", "lots_state"))
    second(host, host_status, 21)
    (note,) = document(host_status)["notes"]
    assert "line 3: row 'gpu_busy': no signal is called 'gpu.lots_state'" in note
    assert document(host_status)["policy"] == "mine-1 over 1"
    host_status = answers(Host(), tmp_path, policy_file=str(file), enforcing=("gpu_busy",))
    host_status.update()
    assert document(host_status)["policy"] == "mine-1 over 1" and document(host_status)["notes"]


def test_a_policy_waits_for_its_share(tmp_path: Path) -> None:
    """The first step of a rollout excludes this host: it keeps the old policy, and reports it."""
    file, host = tmp_path / "mine.toml", Host()
    file.write_text(MINE.replace("share = 1.0", "share = 0.0"))
    host_status = answers(host, tmp_path, policy_file=str(file), enforcing=("gpu_busy", "xid79"))
    second(host, host_status)
    waits = "mine-1 over 1 waits: this host is not among its 0 %"
    assert document(host_status)["policy"] == f"{builtin().version}; {waits}"
    assert document(host_status)["enforcing"] == ["xid79"]
    assert len(document(host_status)["notes"]) == 1, (
        "but gpu_busy, nothing is wrong: cron would mail it"
    )
    file.write_text(MINE)
    second(host, host_status, 21)
    assert (document(host_status)["policy"], document(host_status)["notes"]) == (
        "mine-1 over 1",
        [],
    )


def test_half_a_policy_is_not_taken(tmp_path: Path) -> None:
    """A copy over ssh ended before `for_seconds`, which condemned the host at that moment."""
    file, host = tmp_path / "mine.toml", Host()
    file.write_text(MINE)
    host_status = answers(host, tmp_path, policy_file=str(file))
    second(host, host_status)
    for length in range(len(MINE) + 40, len(MINE) + 43):
        file.write_text(f"{MINE}# {'x' * length}".replace("mine-1", "mine-2"))
        second(host, host_status, 10)
        assert document(host_status)["policy"] == "mine-1 over 1"
    second(host, host_status, 10)
    assert document(host_status)["policy"] == "mine-2 over 1"


def test_what_bars_the_host_is_counted_without_a_permit(tmp_path: Path) -> None:
    """The aggregator withholds the permit by this count: it must not fall to 0 for that reason."""
    host, host_status = begun(tmp_path, enforcing=("xid79",))
    assert host_status.blocking_findings() == 0
    host.event("gpu.xid", 79)
    host.event("gpu.xid", 95)
    second(host, host_status)
    assert host_status.blocking_findings() == 1
    host_status.permit.update(ack())
    second(host, host_status)
    assert host_status.blocking_findings() == 1
    host.now_ns += 31 * SECOND
    assert host_status.blocking_findings() == 0, "the daemon hangs: nothing is known"


@pytest.mark.parametrize("make", ["missing", "folder", "fifo", "binary", "huge"])
def test_a_policy_file_that_is_none(make: str, tmp_path: Path) -> None:
    """Any invalid file: a note that names it, and the built-in policy."""
    file = tmp_path / "mine.toml"
    if make == "folder":
        file.mkdir()
    elif make == "fifo":
        os.mkfifo(file)
    elif make != "missing":
        file.write_bytes(b"\xff\xfe" * (10 if make == "binary" else 200_000))
    host, host_status = begun(tmp_path, policy_file=str(file))
    second(host, host_status)
    assert str(file) in document(host_status)["notes"][0] and document(host_status)["policy"] == "1"


class Stuck(IntEnum):
    """States like the supervisor's."""

    HUNG = 1


@dataclass
class Hanging:
    """A device whose sampler call does not return."""

    group: str = "gpu"
    device: str = "0000:9b:00.0"
    state: Stuck = Stuck.HUNG
    call: str = "nvmlDeviceGetFieldValues"
    hung_seconds: float = 3.04
    message: str = "does not return"


def test_devices_that_hang_are_shown(tmp_path: Path) -> None:
    """Which device, in which call, for how long: at once when it begins, but not every second."""
    host, devices = Host(), [Hanging()]
    config = AgentConfig(host="h", state_folder=tmp_path / "s", run_folder=str(tmp_path / "r"))
    host_status = HostStatus(config, host.latest, host, BOOT, devices=lambda: cast(Any, devices))
    second(host, host_status)
    devices[0].hung_seconds = 4.0
    second(host, host_status, 2)
    assert host_status.file.writes == 1
    assert document(host_status)["devices"] == [
        {
            "lane": "gpu",
            "device": "0000:9b:00.0",
            "state": "hung",
            "call": "nvmlDeviceGetFieldValues",
            "hung_seconds": 3.0,
            "message": "does not return",
        }
    ]
    devices.clear()
    second(host, host_status)
    assert host_status.file.writes == 2 and document(host_status)["devices"] == []


def _chokes(event: HealthEvent) -> None:
    raise ZeroDivisionError(event.event_id)


def test_an_observer_that_fails_costs_no_event(caplog: pytest.LogCaptureFixture) -> None:
    """The findings failed on an event: it still went to the aggregator and to the other observers."""
    host, queue, seen = Host(), KeptEvents(), list[str]()
    teller = EventPublisher(host, queue, lambda: None, boot_id=BOOT)
    teller.observe(_chokes)
    teller.observe(lambda event: seen.append(event.event_id))
    teller.publish(HealthEvent(name="gpu.xid", code=79))
    assert [event.event_id for event in queue.events] == seen and seen[0]
    assert "an observer of events failed" in caplog.text


def test_a_judge_that_fails_does_not_end_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in the findings: logged, and the file becomes outdated, which means exit code 0."""
    host, host_status = begun(tmp_path, enforcing=("xid79",))
    host.event("gpu.xid", 79)
    host_status.permit.update(ack())
    second(host, host_status)
    monkeypatch.setattr(host_status.findings, "evaluate", lambda *_: 1 / 0)
    second(host, host_status)
    assert "judging this host failed" in caplog.text and not host_status.health_check().success
    host.now_ns += 30 * SECOND
    host_status.update()
    assert host_status.health_check().success
