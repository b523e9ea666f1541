"""The unit of `packaging/systemd/`: systemd understands it, it is as closed as the docs say, and the agent works in it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.link_events import END_SECONDS_MAX
from gangline.agent.config import AgentConfig
from gangline.agent.main import FLUSH_SECONDS_MAX
from gangline.agent.service_manager import CHILDREN_SECONDS_MAX
from gangline.contract.settings import load
from tests import sandboxed
from tests.processes import GUARD_SECONDS, Process, until

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "packaging" / "systemd"
UNIT = FOLDER / "gangline-agent.service"
#: Settings that an older systemd does not know, and leaves out with a warning.
NEWER = {"RestartSteps": 254, "RestartMaxDelaySec": 254}


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = shutil.which("systemd-analyze")
    if command is None:
        pytest.skip("systemd-analyze is not installed (Debian's package `systemd`)")
    return subprocess.run(
        [command, "--no-pager", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
    )


def systemd_version() -> int:
    return int(systemd_analyze("--version").stdout.split()[1])


@pytest.fixture
def startable(tmp_path: Path) -> Path:
    """The unit with a command that this machine has."""
    unit_copy = tmp_path / UNIT.name
    unit_copy.write_text(UNIT.read_text().replace("/opt/gangline/bin/gangline", "/bin/true"))
    return unit_copy


def test_systemd_understands_every_line(startable: Path) -> None:
    """A misspelled setting is ignored with a mere warning, and the sandbox has a hole."""
    result = systemd_analyze("verify", str(startable))
    known = {name for name, since in NEWER.items() if systemd_version() < since}
    left = [
        line
        for line in result.stderr.splitlines()
        if not any(
            f"Unknown key '{name}'" in line or f"Unknown key name '{name}'" in line
            for name in known
        )
    ]
    assert (result.returncode, left) == (0, [])


def test_it_is_as_closed_as_the_docs_say(startable: Path) -> None:
    """The figure in docs/security.md is of this command; another systemd counts a little differently."""
    result = systemd_analyze("security", "--offline=true", str(startable))
    match = re.search(r"Overall exposure level for \S+: ([0-9.]+)", result.stdout)
    assert result.returncode == 0 and match
    assert float(match[1]) <= 4.0
    docs = re.search(r"exposure level ([0-9.]+) \(systemd (\d+)\)", docs_of("security.md"))
    assert docs
    if systemd_version() == int(docs[2]):
        assert match[1] == docs[1]


def docs_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_what_it_is_given_is_bounded_and_explained() -> None:
    """A capability was added for an experiment, and a year later its purpose was unknown."""
    given = sandboxed.words_of(UNIT, "AmbientCapabilities")
    assert given == sandboxed.words_of(UNIT, "CapabilityBoundingSet")
    assert set(re.findall(r"^\| `(CAP_\w+)` \|", docs_of("security.md"), re.MULTILINE)) == {
        *given,
        "CAP_DAC_OVERRIDE",
        "CAP_NET_ADMIN",
    }
    for name, value in sandboxed.settings(UNIT):
        if value in ("no", "default", "all") or name in (
            "DevicePolicy",
            "ProtectSystem",
            "SystemCallFilter",
        ):
            assert name in docs_of("security.md"), f"{name}={value} is not explained"


def test_it_waits_longer_than_an_end_takes() -> None:
    """A silent aggregator blocked the end of every agent: the units were killed, spools and all.

    The sum of the limits of each step; each step's own test checks its limit.
    """
    limits = (FLUSH_SECONDS_MAX, 1.0, CHILDREN_SECONDS_MAX, END_SECONDS_MAX)
    (seconds,) = sandboxed.words_of(UNIT, "TimeoutStopSec")
    assert sum(limits) < 0.6 * float(seconds)


def test_the_settings_that_come_with_it_are_settings() -> None:
    config = load(AgentConfig, FOLDER / "agent.toml")
    state = {
        line.partition("=")[2]
        for line in UNIT.read_text().splitlines()
        if line.startswith("StateDirectory=")
    }
    assert state == {"gangline"}
    for folder in (config.spool_folder, config.events_folder, config.state_folder):
        assert folder.parent == Path("/var/lib/gangline")
    commented = re.sub(
        r"^# (?=\w+ = )", "", (FOLDER / "agent.toml").read_text(), flags=re.MULTILINE
    )
    whole = FOLDER.parent / "agent.toml"
    assert not whole.exists()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(commented)
        file.flush()
        assert load(AgentConfig, Path(file.name)).metrics_listen == "127.0.0.1:9476"


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """Yield a folder that the unit's user may reach and write, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        (Path(name) / "own").mkdir()
        os.chown(Path(name) / "own", sandboxed.USER, sandboxed.USER)
        yield Path(name) / "own"


def outcomes(folder: Path, log: Path, command: list[str]) -> dict[str, int]:
    """Run an agent until each collector has had a turn; return their outcomes, as /metrics shows them."""
    socket_path = folder / "metrics"
    settings = [f"{name}_folder={folder / name}" for name in ("spool", "events", "state", "run")]
    settings += [f"spool_head_folder={folder}"]
    settings += [f"metrics_listen=unix:{socket_path}", "metrics_series_max=5000"]
    process = Process([], log)
    process.arguments = [*command, "agent", "--aggregator", "127.0.0.1:9"]
    process.arguments += [word for setting in settings for word in ("--set", setting)]
    by_collector: dict[str, int] = {}
    with process:
        until(
            lambda: (
                by_collector.update(shown(socket_path)) or len(by_collector) == len(COLLECTORS) + 1
            ),
            f"a turn of each; {process.said()}",
        )
        assert process.stop() == 0, process.said()
    assert "trace=" not in process.said()
    return by_collector


def shown(socket_path: Path) -> dict[str, int]:
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
        client.settimeout(GUARD_SECONDS)
        client.connect(str(socket_path))
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        with client.makefile() as answer:
            pairs = re.findall(r'outcome_state\{collector="(\w+)"\} (\d)', answer.read())
        return {name: int(outcome) for name, outcome in pairs}
    return {}


@pytest.mark.slow
def test_the_agent_works_in_it(own_folder: Path, tmp_path: Path) -> None:
    """adjtimex(3) is another system call than its name says: the filter had only the one, and the clock was blind."""
    if os.geteuid() or shutil.which("setpriv") is None or not sandboxed.HEADER.exists():
        pytest.skip("needs root, setpriv (util-linux) and the headers of x86-64 (linux-libc-dev)")
    systemd_analyze("--version")
    agent = [sys.executable, "-m", "gangline.cli"]
    free = outcomes(tmp_path, tmp_path / "log", agent)
    closed = outcomes(own_folder, own_folder.parent / "log", sandboxed.as_unit(UNIT, agent))
    assert {name: closed[name] for name in closed if closed[name] != free[name]} == {}
