"""The units beside the agent's: systemd understands each line, and they are as closed as the docs say."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.contract.settings import load
from tests import sandboxed
from tests.test_systemd_unit import NEWER, docs_of, systemd_analyze, systemd_version

ROOT = Path(__file__).parent.parent.parent
SYSTEMD = ROOT / "packaging" / "systemd"
AGGREGATOR = SYSTEMD / "gangline-aggregator.service"
UNITS = sorted(
    path
    for folder in ("systemd", "slurm")
    for path in (ROOT / "packaging" / folder).glob("gangline-*.*")
    if path.suffix in (".service", ".timer")
)
#: The oldest systemd that packages are made for: RHEL 8.
SYSTEMD_OLDEST = 239
#: setting -> the first systemd that knows it. An older one leaves it out with a warning, and nothing else changes.
SINCE = {
    **NEWER,
    "ProtectKernelLogs": 244,
    "ProtectClock": 245,
    "ProtectHostname": 242,
    "RestrictSUIDSGID": 242,
    "ProtectProc": 247,
    "ProcSubset": 247,
}
#: Settings of these units that systemd 239 knows.
KNOWN = frozenset(
    [
        "Description",
        "Documentation",
        "After",
        "Wants",
        "StartLimitIntervalSec",
        "Type",
        "NotifyAccess",
        "ExecStart",
        "ExecReload",
        "User",
        "Group",
        "WorkingDirectory",
        "Environment",
        "EnvironmentFile",
        "KillMode",
        "TimeoutStartSec",
        "TimeoutStopSec",
        "WatchdogSec",
        "Restart",
        "RestartSec",
        "RuntimeDirectory",
        "RuntimeDirectoryMode",
        "RuntimeDirectoryPreserve",
        "StateDirectory",
        "StateDirectoryMode",
        "UMask",
        "MemoryMax",
        "TasksMax",
        "LimitNOFILE",
        "LimitCORE",
        "OOMScoreAdjust",
        "CapabilityBoundingSet",
        "AmbientCapabilities",
        "NoNewPrivileges",
        "PrivateDevices",
        "PrivateUsers",
        "PrivateTmp",
        "DevicePolicy",
        "DeviceAllow",
        "SystemCallFilter",
        "SystemCallErrorNumber",
        "SystemCallArchitectures",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "KeyringMode",
        "RemoveIPC",
        "ProtectSystem",
        "ProtectHome",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ProtectControlGroups",
        "WantedBy",
        "Nice",
        "IOSchedulingClass",
        "OnCalendar",
        "RandomizedDelaySec",
        "Persistent",
    ]
)


def startable(unit: Path, folder: Path) -> Path:
    """Copy the unit and its referenced units, with a command and users that this machine has."""
    for path in unit.parent.glob("gangline-*.*"):
        text = re.sub(r"/opt/gangline/bin/gangline", "/bin/true", path.read_text())
        (folder / path.name).write_text(text)
    return folder / unit.name


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_every_line(unit: Path, tmp_path: Path) -> None:
    """A misspelled setting is ignored with a mere warning, and the sandbox has a hole."""
    unit_copy = startable(unit, tmp_path)
    result = systemd_analyze("verify", "--man=no", str(unit_copy))
    newer = {name for name, since in SINCE.items() if systemd_version() < since}
    left = [
        line
        for line in result.stderr.splitlines()
        if unit_copy.stem in line and not any(f"'{name}'" in line for name in newer)
    ]
    assert (result.returncode, left) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_an_older_systemd_ignores_only_what_is_listed(unit: Path) -> None:
    """RHEL 8 has systemd 239: an ignored setting may protect something, which would then be open unnoticed."""
    names = {name for name, _ in sandboxed.settings(unit)}
    assert {name: SINCE.get(name, 0) for name in names - KNOWN if name not in SINCE} == {}
    assert all(since > SYSTEMD_OLDEST for since in SINCE.values())
    if unit.parent == SYSTEMD and unit.suffix == ".service":
        listed = set(re.findall(r"`(\w+)` \(\d+\)", docs_of("install.md")))
        assert names & SINCE.keys() <= listed


@pytest.mark.parametrize("name", ["gangline-aggregator", "gangline-backup"])
def test_they_are_as_closed_as_the_docs_say(name: str, tmp_path: Path) -> None:
    """The figure in docs/security.md is of this command; another systemd counts a little differently."""
    unit_copy = startable(SYSTEMD / f"{name}.service", tmp_path)
    result = systemd_analyze("security", "--offline=true", str(unit_copy))
    match = re.search(r"Overall exposure level for \S+: ([0-9.]+)", result.stdout)
    assert result.returncode == 0 and match
    assert float(match[1]) <= 4.0
    docs = re.search(rf"`{name}.service` has exposure\s+level ([0-9.]+)", docs_of("security.md"))
    assert docs
    if systemd_version() == 252:
        assert match[1] == docs[1]


def test_the_aggregator_has_the_time_that_it_needs_to_stop() -> None:
    """Stopping takes up to 25 s while the disk does not answer: killed earlier, the aggregator
    cannot report unstored data.
    """
    assert sandboxed.words_of(AGGREGATOR, "TimeoutStopSec") == ["30"]


def test_the_aggregator_has_no_privilege() -> None:
    """The aggregator parses hosts' input: an exploited parser must gain nothing."""
    assert sandboxed.words_of(AGGREGATOR, "CapabilityBoundingSet") == []
    assert sandboxed.words_of(AGGREGATOR, "AmbientCapabilities") == []
    for setting in ("NoNewPrivileges", "PrivateUsers", "MemoryDenyWriteExecute", "PrivateDevices"):
        assert sandboxed.words_of(AGGREGATOR, setting) == ["yes"]


def test_the_settings_that_come_with_it_are_settings(tmp_path: Path) -> None:
    """Every line of the file, those that are commented out too."""
    text = (SYSTEMD / "aggregator.toml").read_text()
    config = load(AggregatorConfig, SYSTEMD / "aggregator.toml")
    (folder,) = sandboxed.words_of(AGGREGATOR, "StateDirectory")
    assert config.data == Path("/var/lib") / folder
    whole = tmp_path / "aggregator.toml"
    whole.write_text(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))
    assert load(AggregatorConfig, whole).metrics_listen == "127.0.0.1:9477"


def test_the_backup_is_of_the_same_store_and_user() -> None:
    """A backup of the wrong folder is found out on the day that it is needed."""
    backup = SYSTEMD / "gangline-backup.service"
    command = sandboxed.words_of(backup, "ExecStart")
    assert command[1:3] == ["admin", "backup"]
    config = load(AggregatorConfig, SYSTEMD / "aggregator.toml")
    assert command[command.index("--data") + 1] == str(config.data)
    assert sandboxed.words_of(backup, "User") == sandboxed.words_of(AGGREGATOR, "User")


def test_the_timer_starts_at_a_time_of_its_own() -> None:
    """`systemd-analyze` knows the calendar."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian's package `systemd`)")
    (value,) = (
        v for n, v in sandboxed.settings(SYSTEMD / "gangline-backup.timer") if n == "OnCalendar"
    )
    assert systemd_analyze("calendar", value).returncode == 0
