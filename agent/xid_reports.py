"""Reports each XID once, although the driver, NVML and DCGM all report it."""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

# NVML and the kernel log both report an XID, but only the kernel log's report has a text. So NVML's
# XID is held back for a moment, and reported only if the kernel log does not show it by then.
# Without a reader of the kernel log NVML's XID is reported at once.
SECOND_NS = 1_000_000_000
#: Maximum distance of both reports of an XID, and the time for which NVML's is held back.
DUPLICATE_NS_MAX = 2 * SECOND_NS
#: Minimum time between reports of a repeated event; meanwhile it is counted.
REPEAT_NS_MIN = 10 * SECOND_NS
#: Remembered pairs of GPU and code. Beyond, the oldest are forgotten.
ENTRIES_MAX = 1024


class XidDeduplicator:
    """Recent XIDs of the kernel log. For all threads and for processes forked later; never raises.

    The daemon reads the kernel log, a child of it NVML. Only a single process writes: an entry is
    void until it is complete.
    """

    _ENTRY = struct.Struct("<q16sQ")  # boot time, 0: void; PCI address; code

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory = mmap.mmap(-1, 8 + ENTRIES_MAX * self._ENTRY.size)
        self._count = 0

    @property
    def reads_the_kernel_log(self) -> bool:
        """Whether a process reads the kernel log now."""
        return bool(self._memory[0])

    @reads_the_kernel_log.setter
    def reads_the_kernel_log(self, reads: bool) -> None:
        self._memory[0] = int(reads)

    def record(self, address: str, code: int, boottime_ns: int) -> None:
        """Record an XID of a GPU, or SXID of an NVSwitch, at a PCI address and boot time."""
        with self._lock:
            offset = 8 + self._count % ENTRIES_MAX * self._ENTRY.size
            self._count += 1
            name = address.encode(errors="replace")[:16]
            self._memory[offset : offset + 8] = bytes(8)
            self._ENTRY.pack_into(self._memory, offset, 0, name, code & (1 << 64) - 1)
            struct.pack_into("<q", self._memory, offset, max(1, boottime_ns))

    def was_recorded(self, address: str, code: int, boottime_ns: int) -> bool:
        """Return whether the XID was recorded later than DUPLICATE_NS_MAX before *boottime_ns*."""
        name, since_ns = address.encode(errors="replace")[:16], boottime_ns - DUPLICATE_NS_MAX
        return any(
            at_ns and at_ns >= since_ns and number == code and recorded_name.rstrip(b"\0") == name
            for at_ns, recorded_name, number in self._ENTRY.iter_unpack(self._memory[8:])
        )


#: XIDs of the kernel log, shared with forked processes: NVML's reader uses it.
XID_DEDUPLICATOR = XidDeduplicator()
#: XIDs of NVML: written by the reader of NVML's events, for the reader of DCGM's.
NVML_XIDS = XidDeduplicator()


@dataclass(slots=True)
class PendingReport:
    """An XID received once or more since its last report."""

    first_ns: int
    last_ns: int
    count: int = 1


@dataclass(slots=True)
class PendingReports:
    """XIDs of NVML that wait for a report. For a single thread; the caller passes the time."""

    _waiting: dict[Hashable, PendingReport] = field(default_factory=dict[Hashable, PendingReport])
    _published_ns: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    dropped: int = 0  # events beyond ENTRIES_MAX different keys

    def add(self, key: Hashable, now_ns: int) -> None:
        known = self._waiting.get(key)
        if known:
            known.last_ns, known.count = now_ns, known.count + 1
        elif len(self._waiting) < ENTRIES_MAX:
            self._waiting[key] = PendingReport(now_ns, now_ns)
        else:
            self.dropped += 1

    def due(self, now_ns: int, hold_ns: int) -> list[tuple[Hashable, PendingReport]]:
        """Remove and return the entries that have waited *hold_ns* and were not reported lately."""
        due = [
            (key, report)
            for key, report in self._waiting.items()
            if now_ns >= report.first_ns + hold_ns
            and now_ns >= self._published_ns.get(key, now_ns - REPEAT_NS_MIN) + REPEAT_NS_MIN
        ]
        for key, _ in due:
            del self._waiting[key]
        recent = {key: ns for key, ns in self._published_ns.items() if now_ns - ns < REPEAT_NS_MIN}
        self._published_ns = recent | {key: now_ns for key, _ in due}
        return due
