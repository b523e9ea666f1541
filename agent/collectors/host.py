"""The host as a whole: cores, pressure and memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from ...contract.block import Block
from ...contract.signal import Pace
from ...ext.hostfiles import CoreTimes, Glance, HostPass, line_numbers
from ..collector import Collector, ExcludingCollector, NoData
from ..hardware import cpu_cores, proc_files
from ..hardware.files import NumberFiles, OpenFile, Roots
from .block_writer import put, row_writer
from .counter_files import PeriodicListing

DEVICE = ("host",)
_MEMORY = (
    b"MemTotal:",
    b"SwapTotal:",
    b"SwapFree:",
    b"HugePages_Free:",
    b"HardwareCorrupted:",
    b"Active(file):",
)
#: Cores whose frequency is read, spread over the host: each read may take 10 ms (x86 before Linux
#: 5.18).
FREQUENCIES_MAX = 32


#: In the order of `ext.hostfiles.HostPass`.
_SECOND = (
    "host.cpu_user_ratio",
    "host.cpu_system_ratio",
    "host.cpu_idle_ratio",
    "host.cpu_iowait_ratio",
    "host.cpu_steal_ratio",
    "host.cpu_interrupt_ratio",
    "host.cpu_busiest_core_ratio",
    "host.cpu_busiest_core_number",
    "host.cores_saturated_count",
    "host.runnable_count",
    "host.blocked_count",
    "host.context_switches_count",
    "host.interrupts_count",
    "host.softirqs_count",
    "host.pressure_cpu_some_ratio",
    "host.pressure_cpu_some_microseconds",
    "host.pressure_memory_some_ratio",
    "host.pressure_memory_full_ratio",
    "host.pressure_memory_some_microseconds",
    "host.pressure_memory_full_microseconds",
    "host.pressure_io_some_ratio",
    "host.pressure_io_full_ratio",
    "host.pressure_io_some_microseconds",
    "host.pressure_io_full_microseconds",
    "host.memory_available_bytes",
    "host.memory_dirty_bytes",
)


#: In the order of `HostTenSeconds.collect`.
_TEN_SECONDS = (
    "host.memory_total_bytes",
    "host.swap_used_bytes",
    "host.hugepages_free_pages",
    "host.memory_corrupted_bytes",
    "host.file_cache_active_bytes",
    "host.uptime_seconds",
    "host.load_1m_ratio",
    "host.cpu_frequency_hertz",
    "host.cpu_frequency_min_hertz",
    "host.cpu_frequency_max_hertz",
)
_CHANGES = (
    "host.oom_kills_count",
    "host.cpu_throttles_count",
    "host.cpu_throttled_milliseconds",
    "host.cpu_core_throttles_count",
)


class HostSecond(Collector):
    """Shares of the cores' time since the last turn, pressure, available memory."""

    name = "host_1s"

    def __init__(self, roots: Roots) -> None:
        self._block = Block("host_1s", DEVICE)
        writer = row_writer(self._block, _SECOND)
        self._pass = HostPass(roots.proc, writer, cpu_cores.SATURATED_IDLE_RATIO_MAX)

    def collect(self) -> Sequence[Block]:
        """Return the block; no shares in the first turn. Raises NoData without /proc/stat."""
        if not self._pass.take():
            raise NoData("/proc/stat cannot be read")
        return (self._block,)


class HostTenSeconds(ExcludingCollector):
    """Total memory, load, frequency, OOM kills, thermal throttling."""

    name = "host_10s"
    enters_driver = True  # a frequency is read on its core: 10 ms each before Linux 5.18

    def __init__(self, roots: Roots) -> None:
        self._meminfo = OpenFile(roots.proc / "meminfo", whole=True)
        self._vmstat = OpenFile(roots.proc / "vmstat")
        self._uptime = OpenFile(roots.proc / "uptime", whole=True)
        self._loadavg = OpenFile(roots.proc / "loadavg", whole=True)
        self._stat = OpenFile(roots.proc / "stat", whole=True)
        self._times = CoreTimes()
        self._cores = _CoreFiles(roots.sys)
        self._block = Block("host_10s", DEVICE)
        self._changes = Block("host_10s_changes", DEVICE)
        self._writer = row_writer(self._block, _TEN_SECONDS)
        self._changes_writer = row_writer(self._changes, _CHANGES)

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip the frequencies of these cores."""
        super().exclude(devices)
        self._cores.exclude(devices)

    def collect(self) -> Sequence[Block]:
        """Return the block and the block of changes. Raises NoData without /proc/meminfo."""
        sizes = self._memory()
        frequencies, *throttles = self._cores.read()
        uptime = proc_files.parse_first_decimal(self._uptime.read())
        self._writer.put(0, (*sizes, uptime, self._load(), *_hertz(frequencies)))
        kills = proc_files.parse_vmstat(self._vmstat.read(), b"oom_kill")
        self._changes_writer.put(0, (kills, *map(_total, throttles)))
        return (self._block, self._changes)

    def _memory(self) -> tuple[int | None, ...]:
        """Return total memory, used swap, free huge pages, corrupted memory, active file cache."""
        data = self._meminfo.read()
        if not data:
            raise NoData("/proc/meminfo cannot be read")
        total, swap, swap_free, pages, corrupted, cache = line_numbers(data, _MEMORY)
        used = None if swap is None or swap_free is None else max(0, swap - swap_free)
        return total, used, pages, corrupted, cache

    def _load(self) -> float | None:
        load = proc_files.parse_first_decimal(self._loadavg.read())
        self._times.take(self._stat.read())
        return None if load is None or not self._times.count else load / self._times.count


def _hertz(kilohertz: Sequence[int | None]) -> tuple[float | None, ...]:
    """Return mean, minimum and maximum of the known frequencies, in hertz."""
    known = [value * 1000 for value in kilohertz if value is not None]
    if not known:
        return None, None, None
    return sum(known) / len(known), min(known), max(known)


def _total(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None without files or with a missing count, so that it does not fall."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


class _CoreFiles:
    """Frequencies, and three kinds of throttle counts, from files of cores.

    The files are listed again when a core or a frequency domain goes offline or comes back (its
    driver may be loaded late), and every hour: a host of 512 cores has thousands of them.
    """

    def __init__(self, sys: Path) -> None:
        self._sys = sys
        online = OpenFile(sys / "devices/system/cpu/online", whole=True)
        domains = Glance(sys / "devices/system/cpu/cpufreq")
        self._listing = PeriodicListing(
            self._list,
            Pace.TEN_SECONDS,
            seconds=3600,
            change_key=lambda: (online.read(), domains.look()),
        )
        self._files = NumberFiles(())
        self._excluded: frozenset[str] = frozenset()

    def exclude(self, devices: frozenset[str]) -> None:
        self._excluded = devices
        self._files.exclude(devices)

    def read(self) -> list[list[int | None]]:
        if self._listing.refresh():
            self._rebuild()
        numbers = iter(self._files.read())
        return [[*islice(numbers, len(files))] for files in self._listing.value]

    def _list(self) -> list[list[Path]]:
        return [
            cpu_cores.spread(cpu_cores.frequency_files(self._sys), FREQUENCIES_MAX),
            cpu_cores.package_throttle_files(self._sys, "package_throttle_count"),
            cpu_cores.package_throttle_files(self._sys, "package_throttle_total_time_ms"),
            cpu_cores.core_throttle_files(self._sys),
        ]

    def _rebuild(self) -> None:
        self._files.close()
        frequencies, *counts = self._listing.value
        others = [path for paths in counts for path in paths]
        cores = [*map(cpu_cores.core_of, frequencies), *[""] * len(others)]  # a count asks no core
        self._files = NumberFiles([*frequencies, *others], cores)
        self._files.exclude(self._excluded)


class HostMinute(Collector):
    """Number of cores, which changes when a core goes offline."""

    name = "host_60s"

    def __init__(self, roots: Roots) -> None:
        self._stat = OpenFile(roots.proc / "stat", whole=True)
        self._times = CoreTimes()
        self._block = Block("host_60s", DEVICE)

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData without /proc/stat."""
        self._times.take(self._stat.read())
        if not self._times.count:
            raise NoData("/proc/stat cannot be read")
        put(self._block, "host.cores_count", 0, self._times.count)
        return (self._block,)
