"""Kernel log: a thread that turns records into events, and a turn that reports its counts."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...contract.block import Block
from ...contract.signal import Pace
from ..clock import Clock, SystemClock
from ..collector import AccessDenied, Collector, NoData
from ..events import EventPublisher
from ..hardware.amdgpu import amd_gpus
from ..hardware.files import Roots, read_text
from ..hardware.kmsg import KmsgSource, PlainFile, is_overrun, is_too_long, open_log, suspended_ns
from ..hardware.nvidia import driver_gpus, pci_gpus
from ..hardware.proc_files import boot_id
from ..xid_reports import XID_DEDUPLICATOR
from .block_writer import put

if TYPE_CHECKING:
    from ..kernel_log.reader import LogReader

#: Interval of attempts to open the log.
REOPEN_SECONDS = 60.0
#: Records taken between two checks at the clock: due events are reported even during a storm.
RECORDS_PER_GROUP = 256
#: Pause between groups in a storm; at least the duration of the last group, so half a core at most.
STORM_REST_SECONDS = 0.003
#: Groups read per turn without `start`.
GROUPS_PER_TURN_MAX = 1024
CLOSE_SECONDS_MAX = 1.0


class KernelLog(Collector):
    """Reports kernel log lines at once; `collect` counts how many were read, reported and lost.

    Without `start` a turn reads the available records itself, and publishes nothing.
    """

    name = "kernel_log_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(
        self,
        roots: Roots,
        open_source: Callable[[Path], KmsgSource] = open_log,
        clock: Clock | None = None,
    ) -> None:
        """*open_source*: opens the records of /dev/kmsg.

        *clock*: for turns without `start`, which brings its own; None: the system's.
        """
        self._clock = clock or SystemClock()
        self._path = roots.dev / "kmsg"
        self._roots = roots
        self._open_source = open_source
        self._reader: LogReader | None = None
        self._source: KmsgSource | None = None
        self._last_error: Exception | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._wake_descriptor = -1
        self._block = Block("kernel_log_10s", ("host",))

    def collect(self) -> Sequence[Block]:
        """Return the counts. Raises NoData without a log, AccessDenied without permission."""
        if self._thread is None:
            self._read_available()
        if self._last_error is not None:
            raise self._last_error.with_traceback(None)
        if (reader := self._reader) is not None:
            self._put("read_count", reader.read_count)
            self._put("told_events", reader.reported_count)
            self._put("lost_count", reader.lost_count)
            self._put("not_understood_count", reader.not_understood_count)
            self._put("incidents_count", len(reader.incidents))
        return (self._block,)

    def _put(self, name: str, value: int) -> None:
        put(self._block, f"kernel_log.{name}", 0, value)

    def _read_available(self) -> None:
        """Read the available records in the caller's thread."""
        try:
            if self._reader is None:
                self._reader = self._make_reader(self._clock, None)
            if self._source is None:
                self._source = self._open(self._reader)
            for _ in range(GROUPS_PER_TURN_MAX):
                if _read_group(self._source, self._reader, live=False):
                    break
            self._reader.on_drained()
            self._reader.flush_due()
        except (OSError, NoData) as error:
            self._last_error = self._collector_error(error)

    def start(self, publisher: EventPublisher) -> None:
        self._reader = self._make_reader(publisher.clock, publisher)
        self._wake_descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(
            target=self._run, args=(self._reader, publisher.clock), name="kernel-log", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, which reports its pending counts. Returns within a second."""
        self._closing.set()
        if self._thread is not None:
            with suppress(OSError):
                os.eventfd_write(self._wake_descriptor, 1)
            self._thread.join(CLOSE_SECONDS_MAX)
            if not self._thread.is_alive():
                os.close(self._wake_descriptor)
                self._thread = None
        elif self._source is not None:
            self._source.close()
            self._source = None

    def _make_reader(self, clock: Clock, publisher: EventPublisher | None) -> LogReader:
        # Imported late: the samplers are forked with this class, and read no kernel log.
        from ..kernel_log.checkpoint_file import CheckpointFile
        from ..kernel_log.gpu_rules import GpuFinder, XidDecoder
        from ..kernel_log.network_rules import AdapterFilter
        from ..kernel_log.reader import LogReader
        from ..kernel_log.timestamps import TimestampConverter

        state = self._roots.state if publisher else None
        adapters = AdapterFilter(self._roots.sys)
        xids, gpus = XidDecoder(self._driver_version), GpuFinder(self._nvidia_gpus, self._amd_gpus)
        reader = LogReader(
            boot_id(self._roots.proc),
            publisher.publish if publisher else lambda event: True,
            CheckpointFile(state / "kernel_log" if state else None),
            clock,
            TimestampConverter(suspended_ns),
            lambda parsed, text: xids.decode(gpus.complete(parsed, text), text),
            adapters.is_wanted,
            _job_lookup(self._roots.proc, publisher),
        )
        adapters.resumed = reader.resumed
        return reader

    def _nvidia_gpus(self) -> Sequence[str]:
        return driver_gpus(self._roots.proc) or pci_gpus(self._roots.sys)

    def _amd_gpus(self) -> Sequence[str]:
        return [gpu.address for gpu in amd_gpus(self._roots.sys)]

    def _driver_version(self) -> str:
        return read_text(self._roots.sys / "module/nvidia/version") or ""

    def _run(self, reader: LogReader, clock: Clock) -> None:
        while not self._closing.is_set():
            again = False
            try:
                again = self._read_log(reader, clock)
            except Exception as error:  # noqa: BLE001 - after any error the log is opened again
                self._last_error = self._collector_error(error)
            if not again:
                self._closing.wait(REOPEN_SECONDS)
        reader.finish()

    def _open(self, reader: LogReader) -> KmsgSource:
        if self._roots.dev == Path("/dev") and not self._roots.is_this_machine:
            raise NoData("this host is a folder: it has no kernel")
        source = self._open_source(self._path)
        reader.on_open()
        return source

    def _read_log(self, reader: LogReader, clock: Clock) -> bool:
        """Follow the log until `close`. True: read it again from its beginning at once."""
        source = self._open(reader)
        try:
            self._last_error = None
            XID_DEDUPLICATOR.reads_the_kernel_log = True
            live = False
            while not self._closing.is_set():
                start_ns = clock.boottime_ns()
                drained = _read_group(source, reader, live=live)
                live = False
                if drained and not reader.on_drained():
                    return True
                reader.flush_due()
                if drained:
                    live = self._wait(source, reader.next_ns(), clock)
                else:
                    elapsed_seconds = (clock.boottime_ns() - start_ns) / 1e9
                    self._closing.wait(max(STORM_REST_SECONDS, elapsed_seconds))
        finally:
            XID_DEDUPLICATOR.reads_the_kernel_log = False
            source.close()
        return False

    def _wait(self, source: KmsgSource, until_ns: int | None, clock: Clock) -> bool:
        """Return True for a new record, False when a report is due or at `close`."""
        poll = select.poll()
        poll.register(self._wake_descriptor, select.POLLIN)
        if source.fileno() >= 0:
            poll.register(source.fileno(), select.POLLIN)
        milliseconds = None
        if until_ns is not None:  # rounded up, or the last millisecond would spin
            milliseconds = max(0, until_ns - clock.boottime_ns()) // 1_000_000 + 1
        return source.fileno() in {descriptor for descriptor, _ in poll.poll(milliseconds)}

    def _collector_error(self, error: Exception) -> Exception:
        """Return the exception that a turn raises for *error*."""
        if isinstance(error, NoData):
            return error
        if not isinstance(error, OSError):
            return RuntimeError(f"the kernel log's reader failed: {type(error).__name__}: {error}")
        if error.errno == errno.EPERM:
            return AccessDenied(
                f"{self._path} needs CAP_SYSLOG (kernel.dmesg_restrict is 1); open it with "
                "AmbientCapabilities=CAP_SYSLOG in the agent's unit, or: sysctl kernel.dmesg_restrict=0"
            )
        if error.errno == errno.EACCES:
            return AccessDenied(
                f"{self._path}: permission denied; allow it with: chmod a+r {self._path}"
            )
        if error.errno in (errno.ENOENT, errno.ENXIO, errno.ENODEV):
            return NoData(f"no {self._path}; in a container, pass --device=/dev/kmsg")
        return RuntimeError(f"{self._path}: {error.strerror}")


def _job_lookup(proc: Path, publisher: EventPublisher | None) -> Callable[[int], Mapping[str, str]]:
    if publisher is None:
        return lambda pid: {}
    from .process_jobs import ProcessJobs

    jobs = ProcessJobs(proc)
    publisher.observe(jobs.observe)
    return jobs.attributes


def _read_group(source: KmsgSource, reader: LogReader, *, live: bool) -> bool:
    """Read a group of records; return whether no further record is available.

    *live*: the first record was written just now. Raises OSError; NoData at the end of a file,
    which the kernel's log does not have.
    """
    for _ in range(RECORDS_PER_GROUP):
        try:
            data = source.read()
        except BlockingIOError:
            return True
        except OSError as error:
            if is_too_long(error):
                reader.on_too_long()
            elif not is_overrun(error):  # a gap in the sequence numbers will show the loss
                raise
            live = False
            continue
        if not data:
            if isinstance(source, PlainFile):
                return True
            raise NoData("it has an end, so it is not the kernel's log")
        reader.feed(data, live=live)
        live = False
    return False
