"""The collector of the kernel log: each record is reported at once, and refusals have a message."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline.agent.collector import AccessDenied, NoData
from gangline.agent.collectors import kernel_log as collector_module
from gangline.agent.collectors.kernel_log import KernelLog
from gangline.agent.events import EventPublisher
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.kmsg import Kmsg
from gangline.agent.kernel_log.checkpoint_file import FILE_NAME, CheckpointFile
from gangline.agent.kernel_log.reader import LogReader
from gangline.agent.kernel_log.timestamps import TimestampConverter
from gangline.agent.xid_reports import XID_DEDUPLICATOR
from gangline.tests.processes import until
from tests.agent.fakes import HandedClock, KeptEvents
from tests.agent.test_kernel_log import BOOT, SECOND, XID

CLOSED = """
import os, sys
from gangline.agent.collectors.kernel_log import KernelLog
from gangline.agent.hardware.files import Roots
from gangline.agent.kernel_log import gpu_rules as driver, network_rules as adapters, reader as follow, reader as position, reader as stamps
from gangline.agent.collector import AccessDenied
driver.XidDecoder(str)  # who leaves root may not read its own library any more
os.setgid(65534); os.setuid(65534)
try:
    KernelLog(Roots()).collect()
except AccessDenied as reason:
    print(reason)
"""


class Busy:
    """An endless log, a clock on which each record costs 1 ms, and a record of the rests."""

    def __init__(self) -> None:
        self.ns = 0
        self.rests: list[float] = []

    def boottime_ns(self) -> int:
        self.ns += SECOND // 1000
        return self.ns

    def wall_ns(self) -> int:
        return self.ns

    def fileno(self) -> int:
        return -1

    def read(self) -> bytes:
        return b"6,%d,1,-;words\n" % self.ns

    def close(self) -> None: ...

    def is_set(self) -> bool:
        return len(self.rests) == 3

    def set(self) -> None: ...

    def wait(self, seconds: float) -> None:
        self.rests.append(seconds)


def test_a_storm_costs_half_a_core_however_dear_its_lines(tmp_path: Path) -> None:
    """Lines of XID 74 are decoded one by one: their storm took four fifths of a core from the job."""
    busy = Busy()
    log = KernelLog(Roots(dev=tmp_path), lambda path: busy)
    log._closing = busy  # type: ignore[assignment]
    follower = LogReader(BOOT, lambda event: True, CheckpointFile(None), busy, TimestampConverter())
    began_ns = busy.ns
    assert log._read_log(follower, busy) is False
    assert sum(busy.rests) >= (busy.ns - began_ns) / SECOND * 0.95
    assert follower.read_count == 3 * collector_module.RECORDS_PER_GROUP


def values(log: KernelLog) -> list[float | int | None]:
    [block] = log.collect()
    return [value for _, value in block.values(0)]


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a socket pair that acts like /dev/kmsg: a record a read, poll."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def listening(tmp_path: Path, source: socket.socket) -> tuple[KernelLog, KeptEvents]:
    events = KeptEvents()
    roots = Roots(proc=tmp_path, sys=tmp_path, dev=tmp_path, state=tmp_path)
    log = KernelLog(roots, lambda path: Kmsg(source.detach()))
    log.start(EventPublisher(HandedClock(), events, lambda: None))
    return log, events


def test_told_at_once(tmp_path: Path, sockets: tuple[socket.socket, socket.socket]) -> None:
    """The thread waits in poll: no tick and no timer is between the kernel's line and the event."""
    log, events = listening(tmp_path, sockets[0])
    sockets[1].send(b"6,7,5000000000,-;nothing\n")
    sockets[1].send(b"3,8,5000000000,-;" + XID.format(0x9B, 79).encode() + b"\n")
    until(lambda: len(events.events) == 1, "the XID is told")
    until(lambda: values(log) == [2, 1, 0, 0, 1.0], "it is counted")
    sockets[1].send(b"3,12,5000000000,-;" + XID.format(0x9B, 79).encode() + b"\n")
    until(lambda: len(events.events) == 2, "the loss is told")
    assert [(e.name, e.count) for e in events.events] == [
        ("gpu.xid", 1),
        ("host.kernel_log_lost", 3),
    ]
    log.close()
    assert events.events[-1].count == 2  # at the end, with the unreported lines
    assert (tmp_path / "kernel_log" / FILE_NAME).exists()


def test_xids_are_recorded(tmp_path: Path, sockets: tuple[socket.socket, socket.socket]) -> None:
    """NVML delivers the same XID without its text: two events of one fault count as two faults."""
    log, events = listening(tmp_path, sockets[0])
    until(
        lambda: XID_DEDUPLICATOR.reads_the_kernel_log,
        "NVML's word is held back while the log is read",
    )
    sockets[1].send(b"3,8,5000000000,-;" + XID.format(0x9B, 92).encode() + b"\n")
    until(lambda: len(events.events) == 1, "the XID is told")
    assert XID_DEDUPLICATOR.was_recorded("0000:9b:00.0", 92, events.events[0].boottime_ns)
    assert not XID_DEDUPLICATOR.was_recorded("0000:9b:00.0", 48, events.events[0].boottime_ns)
    log.close()
    until(lambda: not XID_DEDUPLICATOR.reads_the_kernel_log, "nobody reads it any more")


def test_a_log_that_ends(tmp_path: Path, sockets: tuple[socket.socket, socket.socket]) -> None:
    """In nested containers /dev/kmsg is a link to /dev/null or a console."""
    log, _ = listening(tmp_path, sockets[0])
    sockets[1].close()

    def nothing() -> str:
        try:
            log.collect()
        except NoData as reason:
            return str(reason)
        return ""

    until(nothing, "an end of the log")
    assert nothing() == "it has an end, so it is not the kernel's log"
    log.close()


def test_without_a_log_there_is_no_data(tmp_path: Path) -> None:
    """A container without /dev/kmsg is not a failure."""
    log = KernelLog(Roots(dev=tmp_path))
    with pytest.raises(NoData, match="--device=/dev/kmsg"):
        log.collect()


def test_a_turn_to_which_nobody_listens_reads_by_itself(tmp_path: Path) -> None:
    """A host folder."""
    (tmp_path / "kmsg").write_text("6,5,1,-;Linux\n3,6,2,-;" + XID.format(1, 79) + "\n junk\nbad\n")
    log = KernelLog(Roots(dev=tmp_path))
    assert values(log) == [3, 1, 0, 1, 0.0]
    assert values(log) == [3, 1, 0, 1, 0.0]
    log.close()


def test_the_log_of_this_machine_is_followed() -> None:
    log = KernelLog(Roots())
    try:
        read = values(log)[0]
    except (AccessDenied, NoData) as reason:
        pytest.skip(f"no kernel log here: {reason}")
    assert read is not None and read > 0
    log.close()


def test_a_closed_log_is_blindness_with_the_line_that_opens_it() -> None:
    """kernel.dmesg_restrict is 1 on most distributions."""
    if os.geteuid() != 0 or Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "1":
        pytest.skip("needs root to leave it, and kernel.dmesg_restrict=1")
    completed = subprocess.run(
        [sys.executable, "-c", CLOSED], capture_output=True, text=True, check=True
    ).stdout
    assert "AmbientCapabilities=CAP_SYSLOG" in completed and "kernel.dmesg_restrict=0" in completed
    assert len(completed) <= 240


def closed_by(number: int) -> Callable[[Path], Kmsg]:
    def refuse(path: Path) -> Kmsg:
        raise OSError(number, os.strerror(number), str(path))

    return refuse


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EPERM, AccessDenied, "kernel.dmesg_restrict=0"),
        (errno.EACCES, AccessDenied, "chmod a\\+r"),
        (errno.ENXIO, NoData, "no "),
        (errno.EIO, RuntimeError, "Input/output error"),
    ],
)
def test_refusals(number: int, kind: type[Exception], message: str, tmp_path: Path) -> None:
    """An operator reads the remedy, not an errno."""
    with pytest.raises(kind, match=message):
        KernelLog(Roots(dev=tmp_path), closed_by(number)).collect()
