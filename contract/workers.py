"""Child processes: a child that exits with its parent, and the loop of a fork server.

A small single-threaded process forks the agent's samplers and the aggregator's queries, because a fork of a daemon
would copy its threads' locks in their current state. Its owner sends it commands, and it sends a `ChildReport` when a
child has started and when it has exited. A command that requests a child carries one end of the child's own socket.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, NoReturn, Self

from ..ext import process

#: Limit of a fork server's sleep: the time of a child may be any number of seconds.
POLL_SECONDS_MAX = 3600.0
#: Limit of a packet between a fork server and its owner.
PACKET_BYTES_MAX = 64
#: Whether to fork, the child's number, its argument, and the seconds until it is killed.
_COMMAND = struct.Struct("<?IId")
_REPORT = struct.Struct("<BIiBdQ")


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs *module* in a child process.

    Without -P, `python -m` would import from the current folder first: a module that another user put into /tmp, or
    another checkout of gangline.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def packet_sockets() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection that keeps packets apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def end_with_parent(parent: int, signal_number: int = signal.SIGKILL) -> bool:
    """Make this process, a child of *parent*, end with *parent*. Return False if the parent has ended already.

    Linux sends the signal when the thread that forked this process ends.
    """
    process.die_with_parent(signal_number)
    return os.getppid() == parent


def run_and_exit(run: Callable[[], int]) -> NoReturn:
    """Run *run*, and end this process with its result; the parent's stack is not unwound in it."""
    code = os.EX_SOFTWARE
    try:
        code = run()
    finally:
        os._exit(code)


class ChildEvent(IntEnum):
    """Kind of a fork server's report."""

    STARTED, FAILED, ENDED = range(3)


class KillReason(IntEnum):
    """Reason for which a fork server killed a child."""

    NONE, COMMAND, OVERDUE = range(3)


class ChildReport(NamedTuple):
    """Report on a child of a fork server."""

    event: ChildEvent
    number: int
    value: int  # STARTED: its process id; FAILED: errno of fork(2); ENDED: its wait status
    kill_reason: KillReason = KillReason.NONE
    cpu_seconds: float = 0.0
    rss_bytes_max: int = 0

    @classmethod
    def from_bytes(cls, packet: bytes) -> Self:
        """Return the report that `ForkLoop` sent as *packet*."""
        event, number, value, reason, *usage = _REPORT.unpack(packet)
        return cls(ChildEvent(event), number, value, KillReason(reason), *usage)


def request_child(
    control: socket.socket, number: int, argument: int = 0, seconds: float = math.inf
) -> socket.socket:
    """Ask a fork server to fork a child, and return this process's end of the child's socket. Raises OSError.

    The child is killed after *seconds*. *argument* is passed to the child's `run`.
    """
    local_end, remote_end = socket.socketpair()
    try:
        with remote_end:
            command = _COMMAND.pack(True, number, argument, seconds)
            socket.send_fds(control, [command], [remote_end.fileno()])
    except OSError:
        local_end.close()
        raise
    return local_end


def kill_child(control: socket.socket, number: int) -> None:
    """Ask a fork server to kill a child. A child or a fork server that has exited is ignored."""
    with suppress(OSError):
        control.send(_COMMAND.pack(False, number, 0, 0.0))


@dataclass(slots=True)
class _ForkedChild:
    number: int
    kill_at: float
    kill_reason: KillReason = KillReason.NONE


class ForkLoop:
    """The fork server's side: forks, kills and reaps at the owner's command. For the only thread of its process."""

    def __init__(
        self, control: socket.socket, name: bytes, run: Callable[[int, socket.socket], int]
    ) -> None:
        """*control*: from `packet_sockets`. A child's process name is *name*; its exit code is the result of *run* for
        its argument and socket. The loop installs its own SIGCHLD handler."""
        self._control, self._name, self._run = control, name, run
        self._children: dict[int, _ForkedChild] = {}  # by process id
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Serve until the owner closes its end or exits; then kill all children."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(self._timeout_milliseconds())}
            if self._woken in ready:
                os.read(self._woken, 512)
            if self._control.fileno() in ready and not self._receive():
                break
            self._kill_overdue()
            self._reap()
        self._kill(self._children, KillReason.COMMAND)

    def _receive(self) -> bool:
        try:
            command, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES_MAX, 1)
        except OSError:
            return False
        if not command:
            return False
        is_fork, number, argument, seconds = _COMMAND.unpack(command)
        if is_fork:
            self._fork(number, argument, seconds, descriptors[0])
        else:
            pids = [pid for pid, child in self._children.items() if child.number == number]
            self._kill(pids, KillReason.COMMAND)
        for each in descriptors:
            os.close(each)
        return True

    def _fork(self, number: int, argument: int, seconds: float, connection: int) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._report(ChildReport(ChildEvent.FAILED, number, error.errno or 0))
            return
        if not pid:
            run_and_exit(lambda: self._run_child(parent, argument, connection))
        self._children[pid] = _ForkedChild(number, time.monotonic() + seconds)
        self._report(ChildReport(ChildEvent.STARTED, number, pid))

    def _run_child(self, parent: int, argument: int, connection: int) -> int:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        process.name(self._name)
        if not end_with_parent(parent):
            return 0
        self._control.close()
        os.close(self._woken)
        os.close(self._waker)
        return self._run(argument, socket.socket(fileno=connection))

    def _timeout_milliseconds(self) -> float | None:
        first = min((each.kill_at for each in self._children.values()), default=math.inf)
        if first == math.inf:
            return None
        return 1e3 * max(0.0, min(first - time.monotonic(), POLL_SECONDS_MAX))

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        overdue = [pid for pid, child in self._children.items() if child.kill_at <= now]
        self._kill(overdue, KillReason.OVERDUE)

    def _kill(self, pids: Iterable[int], reason: KillReason) -> None:
        for pid in pids:
            child = self._children[pid]
            child.kill_at, child.kill_reason = math.inf, child.kill_reason or reason
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while self._children:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            child = self._children.pop(pid)
            used = child.kill_reason, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
            self._report(ChildReport(ChildEvent.ENDED, child.number, status, *used))

    def _report(self, report: ChildReport) -> None:
        with suppress(OSError):
            self._control.send(_REPORT.pack(*report))
