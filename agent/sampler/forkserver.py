"""The process that forks samplers: as small as the daemon was before it had a thread, and as old.

A fork of the daemon itself would copy its threads' locks as they stand. The fork server has one thread, sleeps
until it is told to fork or a child has ended, and ends with the daemon; its children end with it.
"""

from __future__ import annotations

import gc
import mmap
import os
import select
import signal
import socket
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ...ext import place, process
from ..clock import Clock
from ..hardware.files import parse_unsigned
from ..hardware.processes import TaskStat, parse_task
from .messages import CollectorGroups
from .worker import RESTART_EXIT_CODE, serve

# ----------------------------------------------------------------------
# How a process of ours stands with the kernel: whether it waits for a driver, or only for its turn
# on a CPU.
#
# Of /proc/PID/stat, which takes no lock that a hung process could hold
# (`agent.hardware.processes`).

STAT_BYTES_MAX = 4096
#: One that is ready to run and had less of a CPU than this since it last spoke waits for that, not for a driver; who
#: spins in a driver has more by the time that a call's deadline is over.
CPU_SECONDS_MIN = 0.3
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_CPU = slice(11, 13)  # utime and stime, behind the name


class StallReason(Enum):
    """Why a process makes no progress, other than by its driver."""

    STARVED = "starved"
    STOPPED = "stopped"


def parse_stall_reason(stat: bytes, cpu_seconds: float) -> StallReason | None:
    """Return it by a `stat` file; None: there is none, or this is no such file. *cpu_seconds*: used until it spoke."""
    task = parse_task(stat)
    if task is None:
        return None
    if task.state in "Tt":
        return StallReason.STOPPED
    ticks = [parse_unsigned(each) for each in stat.rpartition(b")")[2].split()[_CPU]]
    if task.state != "R" or None in ticks:
        return None
    used = sum(filter(None, ticks)) / _TICKS_PER_SECOND - cpu_seconds
    return StallReason.STARVED if used < CPU_SECONDS_MIN else None


def stall_reason(pid: int, cpu_seconds: float) -> StallReason | None:
    """Return it for a process that lives; None where nothing is known."""
    try:
        return parse_stall_reason(_stat(pid), cpu_seconds)
    except OSError:
        return None


def live_task(pid: int) -> TaskStat | None:
    """Return a process that has not ended; None where there is none, or it is not shown."""
    try:
        task = parse_task(_stat(pid))
    except OSError:
        return None
    return None if task is None or task.state in "ZX" else task


def _stat(pid: int) -> bytes:
    with open(Path("/proc") / str(pid) / "stat", "rb") as file:
        return file.read(STAT_BYTES_MAX)


_COMMAND = struct.Struct("<BIH")
_REPORT = struct.Struct("<BIi")
_FORK, _KILL = 1, 2
_STARTED, _EXITED, _START_FAILED = 1, 2, 3
#: The daemon's orders and the fork server's reports are shorter.
MESSAGE_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What became of a sampler; *message* is empty while it lives."""

    serial: int
    pid: int
    message: str


def exit_message(status: int) -> str:
    """Say how a process ended, from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


class ForkServer:
    """The daemon's side. For one thread; no call blocks."""

    def __init__(self, groups: CollectorGroups, clock: Clock, slots: int) -> None:
        """*groups*: what the samplers can sample. *slots*: how many of them there can be at once."""
        self._groups, self._clock = groups, clock
        self._memory = mmap.mmap(-1, place.SIZE_BYTES * slots)
        self._control: socket.socket | None = None
        self._wakeup_fd = -1
        self.pid = 0

    def slot(self, number: int) -> memoryview:
        """Return the memory in which the sampler of that slot says where it is."""
        size = place.SIZE_BYTES
        return memoryview(self._memory)[number * size : (number + 1) * size]

    def start(self) -> None:
        """Fork it. OSError when the host has no process to give."""
        local_end, remote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        local_end.setblocking(False)
        gc.collect()
        process.be_small()
        process.trim()
        self._filling = process.Filling()
        gc.freeze()  # a collection in a child would write to, and so copy, every page of ours
        parent = os.getpid()
        wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self.pid = _fork()
        except OSError:
            local_end.close()
            remote_end.close()
            os.close(wakeup_fd)
            raise
        if not self.pid:
            _run_and_exit(
                lambda: ForkServerLoop(
                    remote_end, self._groups, self._clock, self.slot, wakeup_fd
                ).run(parent)
            )
        remote_end.close()
        self._control, self._wakeup_fd = local_end, wakeup_fd

    def fork(self, serial: int, slot: int) -> socket.socket:
        """Have a sampler forked, and return the way to it. OSError when the fork server is not there."""
        if self._control is None:
            raise OSError("no fork server")
        local_end, remote_end = socket.socketpair()
        local_end.setblocking(False)
        try:
            socket.send_fds(
                self._control, [_COMMAND.pack(_FORK, serial, slot)], [remote_end.fileno()]
            )
        except OSError:
            local_end.close()
            raise
        finally:
            remote_end.close()
        return local_end

    def kill(self, serial: int) -> None:
        """Send SIGKILL to a sampler; one that is gone is nobody."""
        if self._control is not None:
            with suppress(OSError):
                self._control.send(_COMMAND.pack(_KILL, serial, 0))

    def stall_reason(self, pid: int, cpu_seconds: float) -> StallReason | None:
        """Say why a sampler makes no progress, if not for its driver. *cpu_seconds*: used until it last spoke."""
        return stall_reason(pid, cpu_seconds)

    def start_ticks(self, pid: int) -> int:
        """Return when a sampler began, which no later process of its number did; 0: it is gone."""
        task = live_task(pid)
        return task.start_ticks if task else 0

    def reports(self) -> list[ProcessReport] | None:
        """Return what it reports. None: it is gone, and its children with it."""
        found: list[ProcessReport] = []
        while self._control is not None:
            try:
                data = self._control.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return found
            except OSError:
                data = b""
            if not data:
                self._reap()
                break
            kind, serial, number = _REPORT.unpack(data)
            message = "" if kind == _STARTED else exit_message(number)
            if kind == _START_FAILED:
                message = f"could not be forked: {os.strerror(number)}"
            found.append(ProcessReport(serial, number if kind == _STARTED else 0, message))
        return None

    def clear_wakeup(self) -> None:
        """Take note that a sampler has rung; what it said is to be read after this."""
        if self._wakeup_fd >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wakeup_fd)

    def descriptors(self) -> list[int]:
        """Return what to poll: for reports, and for samplers that have something to say at once."""
        return [] if self._control is None else [self._control.fileno(), self._wakeup_fd]

    def kill_all(self) -> None:
        """End the fork server and all that it forked."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        if self._control is not None:
            self._control.close()
            os.close(self._wakeup_fd)
            self._control, self._wakeup_fd = None, -1
        pid, self.pid = self.pid, 0
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _fork() -> int:
    """Fork. Of another thread of ours the child keeps nothing but its locks, and it takes none of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        return os.fork()


def _run_and_exit(run: Callable[[], int]) -> None:
    """Run and end this process with what that returns; nothing of the parent's is unwound in it."""
    code = 70
    try:
        code = run()
    finally:
        os._exit(code)


class ForkServerLoop:
    """The fork server's side, in its own process."""

    def __init__(
        self,
        control: socket.socket,
        groups: CollectorGroups,
        clock: Clock,
        slot: Callable[[int], memoryview],
        wakeup_fd: int,
    ) -> None:
        self._control, self._groups, self._clock, self._slot = control, groups, clock, slot
        self._wakeup_fd = wakeup_fd
        self._serials: dict[int, int] = {}  # by process id

    def run(self, parent: int) -> int:
        """Fork and reap until the daemon, process *parent*, is gone; return 0."""
        process.name(b"gangline-nurse")
        process.die_with_parent()
        if os.getppid() != parent:
            return 0
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _close_descriptors({0, 1, 2, self._control.fileno(), self._wakeup_fd, wake, waker})
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # they are the daemon's: it says when to end
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if wake in ready:
                os.read(wake, 512)
                self._reap()
            if self._control.fileno() in ready and not self._handle_command(wake, waker):
                break
        for pid in self._serials:
            os.kill(pid, signal.SIGKILL)
        return 0

    def _reap(self) -> None:
        while self._serials:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._report(_EXITED, self._serials.pop(pid), status)

    def _report(self, kind: int, serial: int, number: int) -> None:
        with suppress(OSError):
            self._control.send(_REPORT.pack(kind, serial, number))

    def _handle_command(self, wake: int, waker: int) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, 1)
        except OSError:
            return False
        if not data:
            return False
        kind, serial, slot = _COMMAND.unpack(data)
        if kind == _KILL:
            for pid in [pid for pid, known in self._serials.items() if known == serial]:
                os.kill(pid, signal.SIGKILL)
        else:
            self._fork(serial, slot, descriptors[0], (wake, waker))
            os.close(descriptors[0])
        return True

    def _fork(self, serial: int, slot: int, connection: int, wakeup_pipe: tuple[int, int]) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._report(_START_FAILED, serial, error.errno or 0)
            return
        if not pid:
            _run_and_exit(lambda: self._run_worker(parent, slot, connection, wakeup_pipe))
        self._serials[pid] = serial
        self._report(_STARTED, serial, pid)

    def _run_worker(
        self, parent: int, slot: int, connection: int, wakeup_pipe: tuple[int, int]
    ) -> int:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        process.name(b"gangline-spare")
        process.die_with_parent()
        if os.getppid() != parent:
            return 0
        self._control.close()
        for descriptor in wakeup_pipe:
            os.close(descriptor)
        place.use(self._slot(slot))
        restart_required = serve(
            self._groups, socket.socket(fileno=connection), self._clock, self._wakeup_fd
        )
        return RESTART_EXIT_CODE if restart_required else 0


def _close_descriptors(retained: set[int]) -> None:
    """Let go of every descriptor but *retained*: locks, sockets and files of the daemon's are not ours.

    Their numbers stay taken, by /dev/null, for the objects of the daemon's that bear them are copied too.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in retained and number != null:
            with suppress(OSError):
                os.fstat(number)
                os.dup2(null, number, inheritable=False)
    os.close(null)
