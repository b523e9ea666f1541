"""Fork server of the samplers, forked early, while the daemon is small and single-threaded.

A fork of the daemon itself would copy its threads' locks in their current state. The fork server
has one thread and sleeps until it gets a fork request or a child exits. It exits with the daemon,
and its children exit with it.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import socket
import warnings
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ...contract import workers
from ...ext import place, process
from ..clock import Clock
from ..hardware.files import parse_unsigned
from ..hardware.processes import TaskStat, parse_task
from .collector_groups import CollectorGroups
from .worker import RESTART_EXIT_CODE, serve

# Reasons why a sampler stalls, from /proc/PID/stat: reading it takes no lock that a hung process
# could hold (`agent.hardware.processes`).

STAT_BYTES_MAX = 4096
#: A process that is ready to run and used less CPU than this since its last message waits for a
#: CPU. A process that spins in a driver has used more when its call's deadline ends.
CPU_SECONDS_MIN = 0.3
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_CPU = slice(11, 13)  # utime and stime, after the name


class StallReason(Enum):
    """Causes of a stall other than the driver."""

    STARVED = "starved"
    STOPPED = "stopped"


def parse_stall_reason(stat: bytes, cpu_seconds: float) -> StallReason | None:
    """Return the reason in a `stat` file, or None. *cpu_seconds*: used until the last message."""
    task = parse_task(stat)
    if task is None:
        return None
    if task.state in "Tt":
        return StallReason.STOPPED
    ticks = [parse_unsigned(field) for field in stat.rpartition(b")")[2].split()[_CPU]]
    if task.state != "R" or None in ticks:
        return None
    used = sum(filter(None, ticks)) / _TICKS_PER_SECOND - cpu_seconds
    return StallReason.STARVED if used < CPU_SECONDS_MIN else None


def stall_reason(pid: int, cpu_seconds: float) -> StallReason | None:
    """Return the reason of a live process; None if unknown."""
    try:
        return parse_stall_reason(_stat(pid), cpu_seconds)
    except OSError:
        return None


def live_task(pid: int) -> TaskStat | None:
    """Return a process that has not ended; None for an ended or hidden process."""
    try:
        task = parse_task(_stat(pid))
    except OSError:
        return None
    return None if task is None or task.state in "ZX" else task


def _stat(pid: int) -> bytes:
    with open(Path("/proc") / str(pid) / "stat", "rb") as file:
        return file.read(STAT_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """State of a sampler; *message* is empty while it lives."""

    serial: int
    pid: int
    message: str


def exit_message(status: int) -> str:
    """Return how a process ended, from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


class ForkServer:
    """The daemon's side of the fork server. For a single thread; no call blocks."""

    def __init__(self, groups: CollectorGroups, clock: Clock, slots: int) -> None:
        """*groups*: the collectors of the samplers. *slots*: number of concurrent samplers."""
        self._groups, self._clock = groups, clock
        self._memory = mmap.mmap(-1, place.SIZE_BYTES * slots)
        self._control: socket.socket | None = None
        self._wakeup_fd = -1
        self.pid = 0

    def slot(self, number: int) -> memoryview:
        """Return the memory in which a slot's sampler publishes its current call."""
        size = place.SIZE_BYTES
        return memoryview(self._memory)[number * size : (number + 1) * size]

    def start(self) -> None:
        """Fork the fork server. Raises OSError if the fork fails."""
        local_end, remote_end = workers.packet_sockets()
        local_end.setblocking(False)
        gc.collect()
        process.be_small()
        process.trim()
        self._filling = process.Filling()
        gc.freeze()  # a collection in a child would write to, and so copy, every page of the parent
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
            workers.run_and_exit(lambda: self._serve(remote_end, wakeup_fd, parent))
        remote_end.close()
        self._control, self._wakeup_fd = local_end, wakeup_fd

    def fork(self, serial: int, slot: int) -> socket.socket:
        """Request a sampler; return the socket to it. Raises OSError without a fork server."""
        if self._control is None:
            raise OSError("no fork server")
        connection = workers.request_child(self._control, serial, slot)
        connection.setblocking(False)
        return connection

    def kill(self, serial: int) -> None:
        """Send SIGKILL to a sampler; a sampler that has exited is ignored."""
        if self._control is not None:
            workers.kill_child(self._control, serial)

    def stall_reason(self, pid: int, cpu_seconds: float) -> StallReason | None:
        """Return why a sampler stalls, except by its driver. *cpu_seconds*: as above."""
        return stall_reason(pid, cpu_seconds)

    def start_ticks(self, pid: int) -> int:
        """Return the start time of a sampler, which its pid's next owner does not have; 0: gone."""
        task = live_task(pid)
        return task.start_ticks if task else 0

    def reports(self) -> list[ProcessReport] | None:
        """Return new reports; None if the fork server has exited, and its children with it."""
        reports: list[ProcessReport] = []
        while self._control is not None:
            try:
                data = self._control.recv(workers.PACKET_BYTES_MAX)
            except BlockingIOError:
                return reports
            except OSError:
                data = b""
            if not data:
                self._reap()
                break
            reports.append(_process_report(workers.ChildReport.from_bytes(data)))
        return None

    def clear_wakeup(self) -> None:
        """Clear the samplers' wake-up; read their messages after this call."""
        if self._wakeup_fd >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wakeup_fd)

    def descriptors(self) -> list[int]:
        """Return the descriptors to poll: reports, and urgent messages of samplers."""
        return [] if self._control is None else [self._control.fileno(), self._wakeup_fd]

    def kill_all(self) -> None:
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

    def _serve(self, control: socket.socket, wakeup_fd: int, parent: int) -> int:
        """Run the fork server: fork and reap until the daemon, process *parent*, ends; return 0."""

        def run_worker(slot: int, connection: socket.socket) -> int:
            place.use(self.slot(slot))
            restart_required = serve(self._groups, connection, self._clock, wakeup_fd)
            return RESTART_EXIT_CODE if restart_required else 0

        process.name(b"gangline-nurse")
        if workers.end_with_parent(parent):
            _close_descriptors({0, 1, 2, control.fileno(), wakeup_fd})
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(
                    number, signal.SIG_IGN
                )  # the daemon handles them and ends its children
            workers.ForkLoop(control, b"gangline-spare", run_worker).serve()
        return 0


def _process_report(report: workers.ChildReport) -> ProcessReport:
    if report.event is workers.ChildEvent.STARTED:
        return ProcessReport(report.number, report.value, "")
    if report.event is workers.ChildEvent.FAILED:
        return ProcessReport(report.number, 0, f"could not be forked: {os.strerror(report.value)}")
    return ProcessReport(report.number, 0, exit_message(report.value))


def _fork() -> int:
    """Fork. The child has the locks of other threads in their state, but never takes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
        return os.fork()


def _close_descriptors(retained: set[int]) -> None:
    """Release all descriptors but *retained*: the daemon's locks, sockets and files.

    /dev/null takes their numbers, because copied objects of the daemon still hold these numbers.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in retained and number != null:
            with suppress(OSError):
                os.fstat(number)
                os.dup2(null, number, inheritable=False)
    os.close(null)
