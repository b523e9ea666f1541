"""A fork server and its children: its reports, its kills, and that no child survives it."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.contract import workers
from gangline.contract.workers import (
    PACKET_BYTES_MAX,
    ChildEvent,
    ChildReport,
    ForkLoop,
    KillReason,
    kill_child,
    packet_sockets,
    request_child,
)
from tests.processes import GUARD_SECONDS, until

#: A child with this argument waits until it is killed.
FOREVER = 1000


def _child(argument: int, connection: socket.socket) -> int:
    connection.sendall(f"{argument}".encode())
    if argument == FOREVER:
        signal.pause()
    return argument


class Owner:
    """The owner's side of a fork server, which is a child of the test."""

    def __init__(self) -> None:
        self.control, remote_end = packet_sockets()
        self.pid = os.fork()
        if not self.pid:
            self.control.close()
            workers.run_and_exit(lambda: self._serve(remote_end))
        remote_end.close()

    def _serve(self, control: socket.socket) -> int:
        ForkLoop(control, b"gangline-test", _child).serve()
        return 0

    def report(self) -> ChildReport:
        assert select.select([self.control], [], [], GUARD_SECONDS)[0], "no report"
        return ChildReport.from_bytes(self.control.recv(PACKET_BYTES_MAX))

    def started(self, number: int) -> int:
        report = self.report()
        assert (report.event, report.number) == (ChildEvent.STARTED, number)
        return report.value

    def close(self) -> int:
        self.control.close()
        return os.waitpid(self.pid, 0)[1]


@pytest.fixture
def owner() -> Iterator[Owner]:
    one = Owner()
    yield one
    assert one.close() == 0


def test_a_child_has_its_socket_its_argument_and_its_name(owner: Owner) -> None:
    with request_child(owner.control, 7, FOREVER) as connection:
        pid = owner.started(7)
        assert connection.recv(16) == b"1000"
        assert Path(f"/proc/{pid}/comm").read_text() == "gangline-test\n"


def test_its_end_is_reported_with_its_cost(owner: Owner) -> None:
    request_child(owner.control, 1, 3).close()
    owner.started(1)
    report = owner.report()
    assert (report.event, report.number, report.kill_reason) == (ChildEvent.ENDED, 1, 0)
    status = os.waitstatus_to_exitcode(report.value)
    assert status in (3, 70)  # 70: its socket was closed
    assert report.rss_bytes_max > 1 << 20 and report.cpu_seconds >= 0.0


@pytest.mark.parametrize("seconds", [float("inf"), 0.0])
def test_a_child_is_killed_on_command_and_at_its_limit(owner: Owner, seconds: float) -> None:
    with request_child(owner.control, 2, FOREVER, seconds):
        owner.started(2)
        if seconds:
            kill_child(owner.control, 3)  # no such child
            kill_child(owner.control, 2)
        report = owner.report()
    assert os.waitstatus_to_exitcode(report.value) == -signal.SIGKILL and report.number == 2
    assert report.kill_reason is (KillReason.COMMAND if seconds else KillReason.OVERDUE)


@pytest.mark.parametrize("is_killed", [False, True])
def test_no_child_outlives_its_fork_server(is_killed: bool) -> None:
    """The owner or the fork server was killed for memory: the children of either held every GPU."""
    owner = Owner()
    with request_child(owner.control, 1, FOREVER) as connection:
        owner.started(1)
        assert connection.recv(16)
        if is_killed:
            os.kill(owner.pid, signal.SIGKILL)
        owner.close()
        assert connection.recv(16) == b""  # the last of its descriptors is closed: it has ended


def test_a_host_without_a_process_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """EAGAIN of fork(2) is reported as the child's end; the fork server continues."""
    fork = os.fork

    def refuse() -> int:
        raise OSError(errno.EAGAIN, "no process")

    def fork_once() -> int:
        monkeypatch.setattr(os, "fork", refuse)
        return fork()

    monkeypatch.setattr(os, "fork", fork_once)
    owner = Owner()
    request_child(owner.control, 5).close()
    assert owner.report() == ChildReport(ChildEvent.FAILED, 5, errno.EAGAIN)
    assert owner.close() == 0


def test_without_a_fork_server_the_owner_is_told() -> None:
    owner = Owner()
    os.kill(owner.pid, signal.SIGKILL)
    os.waitpid(owner.pid, 0)
    until(lambda: select.select([owner.control], [], [], 0)[0], "the end of the connection")
    kill_child(owner.control, 1)  # no such child
    with pytest.raises(OSError):
        request_child(owner.control, 1)
    owner.control.close()
