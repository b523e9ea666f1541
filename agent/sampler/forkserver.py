"""The process that forks samplers: as small as the daemon was before it had a thread, and as old.

A fork of the daemon itself would copy its threads' locks as they stand. The nursery has one thread, sleeps
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
from ..hardware.processes import Task, parse_task
from .messages import Lanes
from .worker import ANEW_CODE, serve

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


class Excuse(Enum):
    """Why a process makes no progress, other than by its driver."""

    STARVED = "starved"
    STOPPED = "stopped"


def parse_excuse(stat: bytes, cpu_seconds: float) -> Excuse | None:
    """Return it by a `stat` file; None: there is none, or this is no such file. *cpu_seconds*: used until it spoke."""
    task = parse_task(stat)
    if task is None:
        return None
    if task.state in "Tt":
        return Excuse.STOPPED
    ticks = [parse_unsigned(each) for each in stat.rpartition(b")")[2].split()[_CPU]]
    if task.state != "R" or None in ticks:
        return None
    used = sum(filter(None, ticks)) / _TICKS_PER_SECOND - cpu_seconds
    return Excuse.STARVED if used < CPU_SECONDS_MIN else None


def excuse_of(pid: int, cpu_seconds: float) -> Excuse | None:
    """Return it for a process that lives; None where nothing is known."""
    try:
        return parse_excuse(_stat(pid), cpu_seconds)
    except OSError:
        return None


def alive(pid: int) -> Task | None:
    """Return a process that has not ended; None where there is none, or it is not shown."""
    try:
        task = parse_task(_stat(pid))
    except OSError:
        return None
    return None if task is None or task.state in "ZX" else task


def _stat(pid: int) -> bytes:
    with open(Path("/proc") / str(pid) / "stat", "rb") as file:
        return file.read(STAT_BYTES_MAX)


_ORDER = struct.Struct("<BIH")
_REPORT = struct.Struct("<BIi")
_FORK, _KILL = 1, 2
_BORN, _DIED, _NOT_BORN = 1, 2, 3
#: The daemon's orders and the nursery's reports are shorter.
MESSAGE_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a sampler; *words* is empty while it lives."""

    serial: int
    pid: int
    words: str


def words_of(status: int) -> str:
    """Say how a process ended, from its wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"


class Nursery:
    """The daemon's side. For one thread; no call blocks."""

    def __init__(self, lanes: Lanes, clock: Clock, slots: int) -> None:
        """*lanes*: what the samplers can sample. *slots*: how many of them there can be at once."""
        self._lanes, self._clock = lanes, clock
        self._memory = mmap.mmap(-1, place.SIZE_BYTES * slots)
        self._control: socket.socket | None = None
        self._bell = -1
        self.pid = 0

    def slot(self, number: int) -> memoryview:
        """Return the memory in which the sampler of that slot says where it is."""
        size = place.SIZE_BYTES
        return memoryview(self._memory)[number * size : (number + 1) * size]

    def start(self) -> None:
        """Fork it. OSError when the host has no process to give."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(False)
        gc.collect()
        process.be_small()
        process.trim()
        self._filling = process.Filling()
        gc.freeze()  # a collection in a child would write to, and so copy, every page of ours
        parent = os.getpid()
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self.pid = _fork()
        except OSError:
            here.close()
            there.close()
            os.close(bell)
            raise
        if not self.pid:
            _forever(lambda: Tending(there, self._lanes, self._clock, self.slot, bell).run(parent))
        there.close()
        self._control, self._bell = here, bell

    def fork(self, serial: int, slot: int) -> socket.socket:
        """Have a sampler forked, and return the way to it. OSError when the nursery is not there."""
        if self._control is None:
            raise OSError("no nursery")
        here, there = socket.socketpair()
        here.setblocking(False)
        try:
            socket.send_fds(self._control, [_ORDER.pack(_FORK, serial, slot)], [there.fileno()])
        except OSError:
            here.close()
            raise
        finally:
            there.close()
        return here

    def kill(self, serial: int) -> None:
        """Send SIGKILL to a sampler; one that is gone is nobody."""
        if self._control is not None:
            with suppress(OSError):
                self._control.send(_ORDER.pack(_KILL, serial, 0))

    def excuse(self, pid: int, cpu_seconds: float) -> Excuse | None:
        """Say why a sampler makes no progress, if not for its driver. *cpu_seconds*: used until it last spoke."""
        return excuse_of(pid, cpu_seconds)

    def start_ticks(self, pid: int) -> int:
        """Return when a sampler began, which no later process of its number did; 0: it is gone."""
        task = alive(pid)
        return task.start_ticks if task else 0

    def reports(self) -> list[Report] | None:
        """Return what it reports. None: it is gone, and its children with it."""
        found: list[Report] = []
        while self._control is not None:
            try:
                data = self._control.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return found
            except OSError:
                data = b""
            if not data:
                self._bury()
                break
            kind, serial, number = _REPORT.unpack(data)
            words = "" if kind == _BORN else words_of(number)
            if kind == _NOT_BORN:
                words = f"could not be forked: {os.strerror(number)}"
            found.append(Report(serial, number if kind == _BORN else 0, words))
        return None

    def hush(self) -> None:
        """Take note that a sampler has rung; what it said is to be read after this."""
        if self._bell >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)

    def descriptors(self) -> list[int]:
        """Return what to poll: for reports, and for samplers that have something to say at once."""
        return [] if self._control is None else [self._control.fileno(), self._bell]

    def kill_all(self) -> None:
        """End the nursery and all that it forked."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._bury()

    def _bury(self) -> None:
        if self._control is not None:
            self._control.close()
            os.close(self._bell)
            self._control, self._bell = None, -1
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


def _forever(run: Callable[[], int]) -> None:
    """Run and end this process with what that returns; nothing of the parent's is unwound in it."""
    code = 70
    try:
        code = run()
    finally:
        os._exit(code)


class Tending:
    """The nursery's side, in its own process."""

    def __init__(
        self,
        control: socket.socket,
        lanes: Lanes,
        clock: Clock,
        slot: Callable[[int], memoryview],
        bell: int,
    ) -> None:
        self._control, self._lanes, self._clock, self._slot = control, lanes, clock, slot
        self._bell = bell
        self._serials: dict[int, int] = {}  # by process id

    def run(self, parent: int) -> int:
        """Fork and reap until the daemon, process *parent*, is gone; return 0."""
        process.name(b"gangline-nurse")
        process.die_with_parent()
        if os.getppid() != parent:
            return 0
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _let_go({0, 1, 2, self._control.fileno(), self._bell, wake, waker})
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
            if self._control.fileno() in ready and not self._obey(wake, waker):
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
            self._report(_DIED, self._serials.pop(pid), status)

    def _report(self, kind: int, serial: int, number: int) -> None:
        with suppress(OSError):
            self._control.send(_REPORT.pack(kind, serial, number))

    def _obey(self, wake: int, waker: int) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, 1)
        except OSError:
            return False
        if not data:
            return False
        kind, serial, slot = _ORDER.unpack(data)
        if kind == _KILL:
            for pid in [pid for pid, known in self._serials.items() if known == serial]:
                os.kill(pid, signal.SIGKILL)
        else:
            self._fork(serial, slot, descriptors[0], (wake, waker))
            os.close(descriptors[0])
        return True

    def _fork(self, serial: int, slot: int, connection: int, own: tuple[int, int]) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._report(_NOT_BORN, serial, error.errno or 0)
            return
        if not pid:
            _forever(lambda: self._be_sampler(parent, slot, connection, own))
        self._serials[pid] = serial
        self._report(_BORN, serial, pid)

    def _be_sampler(self, parent: int, slot: int, connection: int, own: tuple[int, int]) -> int:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        process.name(b"gangline-spare")
        process.die_with_parent()
        if os.getppid() != parent:
            return 0
        self._control.close()
        for descriptor in own:
            os.close(descriptor)
        place.use(self._slot(slot))
        anew = serve(self._lanes, socket.socket(fileno=connection), self._clock, self._bell)
        return ANEW_CODE if anew else 0


def _let_go(kept: set[int]) -> None:
    """Let go of every descriptor but *kept*: locks, sockets and files of the daemon's are not ours.

    Their numbers stay taken, by /dev/null, for the objects of the daemon's that bear them are copied too.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept and number != null:
            with suppress(OSError):
                os.fstat(number)
                os.dup2(null, number, inheritable=False)
    os.close(null)
