"""`gangline doctor`: readings, blind spots and their remedies, over hosts that are folders."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gangline import cli
from gangline.agent.collector import CollectOutcome, CollectResult, run_collector
from gangline.agent.commands import doctor
from gangline.agent.config import AgentConfig
from gangline.agent.hardware import pci
from gangline.agent.local import check, diagnosis, source_reading
from gangline.agent.local.diagnosis import BLIND, NOTE, OK, PROBLEM, DiagnosedHost, DiagnosisResult
from gangline.agent.local.self_status import UnreadSources, group_unread
from gangline.agent.registration import version
from gangline.aggregator.auth.ca import make_authority
from tests.agent.test_agent_status import section
from tests.agent.test_check import status
from tests.hosts import NAMES, unpack
from tests.hosts.reading import TIMEX, StoppedClock, collectors_of

ROOT = Path(__file__).parent.parent.parent
NOW = 10_000 * check.SECOND_NS
ALL_CAPABILITIES = "CapEff:\t000001ffffffffff\n"
#: statvfs of a disk with free space.
ROOM = os.statvfs_result((4096, 4096, 1 << 24, 1 << 23, 1 << 23, 1000, 900, 900, 0, 255))


def healthy(tmp_path: Path, name: str = "h100-ib", **changes: Any) -> DiagnosedHost:
    """Return a folder host with a healthy running agent; *changes* of the host seen by the checks."""
    host = unpack(name, tmp_path / "host")
    agent = section(NOW)
    process = host.root / f"proc/{agent['pid']}"
    process.mkdir(parents=True, exist_ok=True)
    (process / "status").write_text(ALL_CAPABILITIES)
    driver = host.root / "proc/driver/nvidia"
    driver.mkdir(parents=True, exist_ok=True)
    (driver / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build\n"
    )
    for address in pci.nvidia_gpus(host.roots.sys):
        (driver / "gpus" / address).mkdir(parents=True, exist_ok=True)
    (host.root / "dev").mkdir(exist_ok=True)
    (host.root / "dev/nvidiactl").touch()
    config = AgentConfig(
        sys_root=host.roots.sys, proc_root=host.roots.proc, dev_root=host.roots.dev, run_root=host.root / "run",
        spool_folder=tmp_path / "spool", events_folder=tmp_path / "events", state_folder=tmp_path / "state",
    )  # fmt: skip
    document = check.parse(
        json.dumps(status(agent=agent, agent_version=version(), findings=[])).encode()
    )
    fields: dict[str, Any] = {
        "config": config,
        "config_file": Path("/etc/gangline/agent.toml"),
        "config_error": "",
        "status": document,
        "no_agent_reason": "",
        "unread": [UnreadSources("no_data", "no such disk", ["nvme_60s"])],
        "read_count": 31,
        "timex": lambda: TIMEX,
        "statvfs": lambda folder: ROOM,
        "connect": lambda config: "",
        "library_folders": [],
        "environment": lambda name: None,
        "boottime_ns": NOW,
    }
    return DiagnosedHost(**{**fields, **changes})


def found(host: DiagnosedHost, level: str) -> list[DiagnosisResult]:
    return [result for result in diagnosis.diagnose(host) if result.level == level]


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_host_has_no_problem(name: str, tmp_path: Path) -> None:
    """An operator who sees a red line on each host stops reading them."""
    host = healthy(tmp_path, name)
    assert (found(host, PROBLEM), found(host, BLIND)) == ([], [])
    assert {"agent", "aggregator", "clock", "disk"} <= {result.check for result in found(host, OK)}


@pytest.mark.parametrize("name", NAMES)
def test_without_an_agent_the_sources_are_read_here(name: str, tmp_path: Path) -> None:
    """Before the first start an operator wants to know what the agent will see."""
    there = unpack(name, tmp_path / "read")
    results = [run_collector(result, StoppedClock()) for result in collectors_of(there.roots)]
    unread = group_unread(results)
    host = healthy(
        tmp_path,
        name,
        status=None,
        no_agent_reason="no agent runs here",
        unread=unread,
        read_count=9,
    )
    problems = found(host, PROBLEM)
    assert [(problem.check, problem.text) for problem in problems] == [
        ("agent", "no agent runs here")
    ]
    assert "systemctl enable --now gangline-agent" in problems[0].remedy
    named = {name for result in unread if result.outcome == "blind" for name in result.names}
    assert (
        len(found(host, BLIND)) == sum(result.outcome == "blind" for result in unread) or not named
    )


def only(host: DiagnosedHost, name: str, level: str = PROBLEM) -> DiagnosisResult:
    (result,) = [result for result in found(host, level) if result.check == name]
    return result


def test_driver_and_library_of_different_versions(tmp_path: Path) -> None:
    """An unattended upgrade replaced the library under a loaded driver."""
    library = tmp_path / "lib"
    library.mkdir()
    (library / "libnvidia-ml.so.595.10").touch()
    (library / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.595.10")
    result = only(healthy(tmp_path, library_folders=[tmp_path, library]), "driver")
    assert "590.48.01" in result.text and "595.10" in result.text and "reboot" in result.remedy


def test_gpus_without_a_driver(tmp_path: Path) -> None:
    """GPUs without a driver's answer: nouveau, or a module that was not built for this kernel."""
    host = healthy(tmp_path, "h200-roce")
    (tmp_path / "host/proc/driver/nvidia/version").unlink()
    result = only(host, "gpus")
    assert "8 on the PCI bus, and the NVIDIA driver is not loaded" in result.text
    assert "modprobe nvidia" in result.remedy


def test_a_gpu_that_the_driver_lost(tmp_path: Path) -> None:
    host = healthy(tmp_path, "h200-roce")
    folder = sorted((tmp_path / "host/proc/driver/nvidia/gpus").iterdir())[1]
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink()
    folder.rmdir()
    assert folder.name in only(host, "gpus").text


def test_a_pod_without_the_runtime_class(tmp_path: Path) -> None:
    """The GPU is healthy: the pod has no device nodes."""
    host = healthy(tmp_path, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}.get)
    (tmp_path / "host/dev/nvidiactl").unlink()
    assert "runtimeClassName" in only(host, "gpus").remedy
    assert "nvidia-docker" in only(host, "container", NOTE).text


@pytest.mark.parametrize(
    ("comm", "first_has_mark", "container"),
    [
        ("kthreadd\n", True, False),
        ("kthreadd\n", False, True),
        ("bash\n", True, True),
        (None, False, True),
    ],
)
def test_microvm(tmp_path: Path, comm: str | None, first_has_mark: bool, container: bool) -> None:
    """Its root had `/.dockerenv`. With `--pid=host` process 1 is the host's."""
    host = healthy(tmp_path)
    root, proc = host.config.run_root.parent, host.config.proc_root
    (root / ".dockerenv").touch()
    for folder in ("1", "2"):
        (proc / folder).mkdir(exist_ok=True)
    if comm:
        (proc / "2/comm").write_text(comm)
    (tmp_path / "machine").mkdir()
    (proc / "1/root").symlink_to(root if first_has_mark else tmp_path / "machine")
    assert [result.check for result in found(host, NOTE) if result.check == "container"] == [
        "container"
    ] * container


@pytest.mark.parametrize(
    ("message", "text", "remedy"),
    [
        (
            "/dev/kmsg is closed; open it with AmbientCapabilities=CAP_SYSLOG in the agent's unit",
            "/dev/kmsg is closed",
            "open it with AmbientCapabilities=CAP_SYSLOG in the agent's unit",
        ),
        ("it is broken", "it is broken", ""),
    ],
)
def test_a_blind_source_has_a_remedy(message: str, text: str, remedy: str, tmp_path: Path) -> None:
    """doctor, `agent status` and the log show the collector's own message."""
    host = healthy(tmp_path, unread=[UnreadSources("blind", message, ["kernel_log_10s"])])
    (result,) = found(host, BLIND)
    assert result == (BLIND, "kernel_log_10s", text, remedy)


def test_each_source_that_says_what_opens_it_is_split() -> None:
    """A collector whose message `split_remedy` does not know would show it as one long line."""
    texts = "".join(path.read_text() for path in (ROOT / "agent/collectors").glob("*.py"))
    known = re.findall(r"AmbientCapabilities=\w+", texts)
    assert len(known) >= 5
    for path in (ROOT / "agent/collectors").glob("*.py"):
        for line in path.read_text().splitlines():
            if "AmbientCapabilities=" in line and "; " in line:
                assert diagnosis.split_remedy(line)[1], line


def test_a_hung_source_is_a_problem(tmp_path: Path) -> None:
    host = healthy(tmp_path, unread=[UnreadSources("hung", "in nvmlInit for 40 s", ["gpu_1s"])])
    assert only(host, "gpu_1s").text == "hangs: in nvmlInit for 40 s"


def test_a_missing_capability_is_a_blind_spot(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    mask = sum(1 << bit for bit, _ in diagnosis.CAPABILITIES.values()) & ~(1 << 21)
    (host.process / "status").write_text(f"CapEff:\t{mask:016x}\n")
    (result,) = found(host, BLIND)
    assert "CAP_SYS_ADMIN" in result.text and "AmbientCapabilities=CAP_SYS_ADMIN" in result.remedy


def test_the_capabilities_are_those_of_the_unit() -> None:
    """Unit, docs and this module have the same list."""
    unit = (ROOT / "packaging/systemd/gangline-agent.service").read_text()
    (names,) = re.findall(r"^AmbientCapabilities=(.*)$", unit, re.MULTILINE)
    assert set(names.split()) == set(diagnosis.CAPABILITIES)


def test_selinux_is_named_where_a_source_is_blind(tmp_path: Path) -> None:
    host = healthy(tmp_path, unread=[UnreadSources("blind", "closed", ["power_1s"])])
    (host.config.sys_root / "fs/selinux").mkdir(parents=True)
    (host.config.sys_root / "fs/selinux/enforce").write_text("1")
    (host.process / "attr").mkdir()
    (host.process / "attr/current").write_text("system_u:system_r:unconfined_service_t:s0\0")
    result = only(host, "selinux", NOTE)
    assert "unconfined_service_t:s0:" in result.text and result.remedy.startswith("ausearch")


def test_a_clock_that_nobody_keeps(tmp_path: Path) -> None:
    host = healthy(tmp_path, timex=lambda: (5, 0x40, *TIMEX[2:]))
    assert "timedatectl set-ntp true" in only(host, "clock").remedy


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"f_flag": os.ST_RDONLY}, "read-only"),
        ({"f_bavail": 3}, "0 MB and 900 inodes"),
        ({"f_favail": 0}, "0 inodes"),
    ],
)
def test_a_disk_without_room(changes: dict[str, int], part: str, tmp_path: Path) -> None:
    names = "f_bsize f_frsize f_blocks f_bfree f_bavail f_files f_ffree f_favail f_flag f_namemax"
    values = dict(zip(names.split(), ROOM, strict=True)) | changes
    host = healthy(tmp_path, statvfs=lambda folder: os.statvfs_result(tuple(values.values())))
    assert part in only(host, "disk").text


def test_an_aggregator_that_is_away(tmp_path: Path) -> None:
    """With an agent its connection counts, without one doctor's own."""
    host = healthy(tmp_path, connect=lambda config: "not to be called")
    assert host.status is not None
    host.status["agent"].update(connected=False, last_error="10.0.0.1:7600: Connection refused")
    assert "Connection refused; 4 frames wait here" in only(host, "aggregator").text
    alone = healthy(tmp_path / "alone", status=None, connect=lambda config: "no route")
    assert "127.0.0.1:7600 cannot be reached: no route" in only(alone, "aggregator").text


def test_a_refused_connection_is_in_words() -> None:
    """Port 1 of loopback: nothing listens there."""
    config = AgentConfig(aggregator="127.0.0.1:1")
    assert diagnosis.connection_error(config) == "Connection refused"


def test_certificates_are_read(tmp_path: Path) -> None:
    """An expired certificate is found before the agent is blamed."""
    file = make_authority(tmp_path, "example", datetime.now(UTC)).certificate
    host = healthy(tmp_path)
    host.config = replace(host.config, tls_ca_file=str(file), tls_key_file=str(tmp_path / "no.key"))
    texts = [result.text for result in found(host, PROBLEM)]
    assert "tls_certificate_file and tls_key_file go together: set both, or neither" in texts
    assert any("no.key does not exist" in text for text in texts)
    host.wall_seconds = 10**11
    assert any(f"{file} expired" in result.text for result in found(host, PROBLEM))
    file.write_text("no certificate")
    assert any(f"{file}: " in result.text for result in found(host, PROBLEM))


def test_an_agent_of_another_version(tmp_path: Path) -> None:
    """GANGLINE_NO_RESTART=1: the old version runs on, which the operator must see."""
    host = healthy(tmp_path)
    assert host.status is not None
    host.status["agent_version"] = "0.0.1"
    assert only(host, "agent", NOTE).remedy == "systemctl restart gangline-agent"


def test_what_a_child_that_hung_had_read_is_shown() -> None:
    """The GPU driver hangs: all other sources are known, and the hung one is named."""
    output = b'["disk_1s", 4, ""]\n["disk_1s", 0, ""]\n["gpu_1s", 4, ""]\n["gp'
    results = {result.collector: result for result in source_reading.parse(output, 20.0)}
    assert results["disk_1s"].outcome is CollectOutcome.OK
    assert results["gpu_1s"].message == "did not return within 20 s: its driver hangs"
    (nothing,) = source_reading.parse(b"", 20.0)
    assert nothing.outcome is CollectOutcome.ERROR


def test_settings_that_this_user_may_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/etc/gangline is closed to others: `gangline doctor` of a user ended with a traceback."""
    monkeypatch.setattr(doctor, "CONFIG_FILE", tmp_path / ("a" * 300))
    monkeypatch.setattr(doctor, "read_sources", lambda roots, off: [])
    host = doctor.host_of(None, str(tmp_path))
    assert host.config_error.endswith("run this as root, or as the agent's user")


def test_the_child_reads_a_host_that_is_a_folder(tmp_path: Path) -> None:
    roots = unpack("plain-vm", tmp_path).roots
    results = {
        result.collector: result for result in source_reading.read_sources(roots, ["disk_1s"])
    }
    assert results["host_1s"].outcome is CollectOutcome.OK and "disk_1s" not in results


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong settings, no agent: a message, an exit code, and JSON that names its format."""
    settings = tmp_path / "agent.toml"
    settings.write_text(f'agregator = "head:7600"\nsys_root = "{tmp_path}"\n')
    arguments = ["--config", str(settings), "--run-folder", str(tmp_path / "run")]
    unread = [CollectResult("x", (), 0.0, CollectOutcome.OK)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "read_sources", lambda roots, off: unread)
        patch.setattr(diagnosis, "connection_error", lambda config: "")
        assert cli.main(["doctor", *arguments]) == cli.FAILED
        text = capsys.readouterr().out
        assert "did you mean 'aggregator'?" in text and "-> gangline agent --help-settings" in text
        assert cli.main(["doctor", *arguments, "--json"]) == cli.FAILED
    answer = json.loads(capsys.readouterr().out)
    assert answer["format"] == cli.JSON_FORMAT and answer["counts"]["problem"] >= 2
    assert {"level", "check", "text", "remedy"} == set(answer["results"][0])
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "--jsonn"])
    assert ended.value.code == cli.USAGE


def test_the_settings_of_a_running_agent_are_found(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    for arguments in (["--config", "/etc/x.toml"], ["--config=/etc/x.toml"]):
        (tmp_path / "42/cmdline").write_bytes("\0".join(["gangline", "agent", *arguments]).encode())
        assert doctor.settings_of(tmp_path, 42) == Path("/etc/x.toml")
    (tmp_path / "42/cmdline").write_bytes(b"gangline\0agent\0--config")
    assert doctor.settings_of(tmp_path, 42) is None


def test_lines_fit_a_terminal_and_a_remedy_is_one_line(tmp_path: Path) -> None:
    """A command that is wrapped cannot be pasted."""
    long = "word " * 60
    results = [
        DiagnosisResult(PROBLEM, "gpus", long, "x " * 90),
        DiagnosisResult(OK, "a" * 40, long),
    ]
    printed = list(doctor.lines(results, dict.fromkeys((PROBLEM, BLIND, NOTE, OK), 0), 80))
    assert all(len(line) <= 80 for line in printed if "->" not in line)
    assert sum("->" in line for line in printed) == 1
    assert printed[-1] == "0 problems, 0 blind spots, 0 notes, 0 ok"
    (counts,) = doctor.lines([], {PROBLEM: 1, BLIND: 1, NOTE: 2, OK: 1}, 80)
    assert counts == "1 problem, 1 blind spot, 2 notes, 1 ok"
