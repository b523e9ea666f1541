"""The agent's messages to the service manager, and the effect of a SIGHUP."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.agent import service_manager
from gangline.agent.config import AgentConfig
from gangline.agent.service_manager import Notifier, Reload, check_folders
from gangline.contract.settings import SettingsError

SECOND_NS = 1_000_000_000


class Manager:
    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)
        self.environment = {"NOTIFY_SOCKET": address}

    def heard(self) -> list[str]:
        """Return the first line of each message since the last call."""
        result: list[str] = []
        while True:
            try:
                result.append(self.socket.recv(4096).decode().splitlines()[0])
            except BlockingIOError:
                return result


@pytest.fixture(params=["abstract", "path"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    """Yield a manager with either kind of address: a path, and the abstract namespace."""
    created = Manager(
        str(tmp_path / "notify") if request.param == "path" else f"@gangline-test-{os.getpid()}"
    )
    yield created
    created.socket.close()


def test_ready_once_it_samples_and_watchdog_only_while_the_loop_turns(manager: Manager) -> None:
    """A separate thread sent WATCHDOG long after the loop had stopped."""
    now = [0]
    notifier = Notifier(lambda: now[0], {**manager.environment, "WATCHDOG_USEC": "30000000"})
    assert manager.heard() == []
    messages = []
    for second in range(31):
        now[0] = second * SECOND_NS
        notifier.heartbeat()
        messages.append(manager.heard())
    assert messages[0] == ["READY=1"]
    assert [second for second, lines in enumerate(messages) if lines == ["WATCHDOG=1"]] == [
        10,
        20,
        30,
    ]
    assert sum(map(len, messages)) == 4
    notifier.stopping()
    assert manager.heard() == ["STOPPING=1"]
    notifier.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "1"},
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"NOTIFY_SOCKET": "vsock:2:1234"},
        {"NOTIFY_SOCKET": "@" + "x" * 200, "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere\0odd"},
    ],
)
def test_without_a_manager_nothing_is_said_and_nothing_fails(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid address must not become a file name in the current folder."""
    monkeypatch.chdir(tmp_path)
    stranger = Manager("vsock:2:1234")
    before = sorted(os.listdir("/proc/self/fd"))
    notifier = Notifier(lambda: 0, environment)
    notifier.heartbeat()
    notifier.heartbeat()
    notifier.reloading()
    notifier.stopping()
    notifier.close()
    assert stranger.heard() == []
    assert sorted(os.listdir("/proc/self/fd")) == before
    stranger.socket.close()


def test_another_process_is_watched(manager: Manager) -> None:
    """systemd had started a wrapper script; its child must not answer for it."""
    environment = {**manager.environment, "WATCHDOG_USEC": "3", "WATCHDOG_PID": "1"}
    now = [0]
    notifier = Notifier(lambda: now[0], environment)
    notifier.heartbeat()
    now[0] = SECOND_NS
    notifier.heartbeat()
    assert manager.heard() == ["READY=1"]
    notifier.close()


def test_a_manager_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    """PID 1 was busy with a thousand units; its socket's buffer was full, and the agent hung."""
    manager = Manager(str(tmp_path / "notify"))
    now = [0]
    notifier = Notifier(lambda: now[0], {**manager.environment, "WATCHDOG_USEC": "1"})
    for now[0] in range(0, 5000 * 334, 334):
        notifier.heartbeat()
    assert manager.heard()[0] == "READY=1"
    notifier.close()
    manager.socket.close()


@pytest.fixture
def unblocked() -> Iterator[None]:
    yield
    service_manager.unblock_signals()


@pytest.mark.usefixtures("unblocked")
def test_good_and_bad(manager: Manager, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A comma was missing on all hosts: each agent ended, and none restarted."""
    settings = [SettingsError("agent.toml: not TOML: Expected '=' (at line 3)")]

    def read() -> AgentConfig:
        if settings:
            raise settings[0]
        return AgentConfig(spool_folder=tmp_path, events_folder=tmp_path, state_folder=tmp_path)

    checked: list[AgentConfig] = []
    notifier = Notifier(lambda: 0, manager.environment)
    reload = Reload(read, checked.append, notifier)
    caplog.set_level(logging.INFO)
    assert not reload.try_reload()
    assert caplog.messages == [
        "reload failed, the old settings stay in force: agent.toml: not TOML: Expected '=' (at line 3)"
    ]
    assert manager.heard() == ["RELOADING=1", "READY=1"]
    assert (checked, signal.SIGHUP in held_back()) == ([], False)
    settings.clear()
    assert reload.try_reload()
    assert manager.heard() == ["RELOADING=1"]
    assert len(checked) == 1
    notifier.close()
    assert signal.SIGHUP in held_back(), "a second one would end the process while it begins anew"


def held_back() -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, set()))


def test_a_folder_that_cannot_be_used_is_found_before_the_run_ends(tmp_path: Path) -> None:
    """The spool was moved to a disk that the agent's user could not write to."""
    file = tmp_path / "file"
    file.write_text("")
    config = AgentConfig(
        spool_folder=tmp_path / "a/b", events_folder=tmp_path, state_folder=tmp_path
    )
    check_folders(config)
    with pytest.raises(SettingsError, match=r"spool_folder = .*expected a folder that process"):
        check_folders(replace(config, spool_folder=file / "spool"))
    assert not (tmp_path / "a").exists(), "looking makes nothing"
