"""The host as a whole: cores, pressure, memory, from /proc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware import cpu, memory
from ..hardware.files import KeptFile, read_text
from ..hardware.numberfiles import NumberFiles
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import put
from .listing import Listing

DEVICE = ("host",)
#: Frequencies of so many cores are read, spread over the host: each may take 10 ms (x86 before Linux 5.18).
FREQUENCIES_MAX = 32


class HostSecond:
    """Shares of the cores' time since the last turn, pressure, memory to be had."""

    name = "host_1s"
    pace = Pace.SECOND
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._stat = KeptFile(roots.proc / "stat")
        self._meminfo = KeptFile(roots.proc / "meminfo")
        self._pressure = {
            kind: KeptFile(roots.proc / "pressure" / kind) for kind in ("cpu", "memory", "io")
        }
        self._before: cpu.Stat | None = None
        self._block = Block("host_1s", DEVICE)

    def collect(self) -> Sequence[Block]:
        """Return the one block; shares are missing in the first turn. NoData without /proc/stat."""
        data = self._stat.read()
        if not data:
            raise NoData("/proc/stat cannot be read")
        now = cpu.parse_stat(data)
        self._put_times(now)
        self._put("host.runnable_count", now.runnable)
        self._put("host.blocked_count", now.blocked)
        self._put("host.context_switches_count", now.context_switches)
        self._put("host.interrupts_count", now.interrupts)
        self._put("host.softirqs_count", now.softirqs)
        self._put_pressure()
        self._put_memory()
        self._before = now
        return (self._block,)

    def _put(self, name: str, value: float | None) -> None:
        put(self._block, name, 0, value)

    def _put_times(self, now: cpu.Stat) -> None:
        shares = cpu.shares_of_time(self._before, now)
        self._put("host.cpu_user_ratio", shares.user)
        self._put("host.cpu_system_ratio", shares.system)
        self._put("host.cpu_idle_ratio", shares.idle)
        self._put("host.cpu_iowait_ratio", shares.iowait)
        self._put("host.cpu_steal_ratio", shares.steal)
        self._put("host.cpu_interrupt_ratio", shares.interrupt)
        self._put("host.cpu_busiest_core_ratio", shares.busiest_core)
        self._put("host.cpu_busiest_core_number", shares.busiest_core_number)
        self._put("host.cores_saturated_count", shares.saturated_cores)

    def _put_pressure(self) -> None:
        for kind, file in self._pressure.items():
            found = memory.parse_pressure(file.read())
            name = f"host.pressure_{kind}"
            self._put(f"{name}_some_ratio", found.some_ratio)
            self._put(f"{name}_some_microseconds", found.some_microseconds)
            if kind != "cpu":  # of the host as a whole the kernel says 0 there, whatever happens
                self._put(f"{name}_full_ratio", found.full_ratio)
                self._put(f"{name}_full_microseconds", found.full_microseconds)

    def _put_memory(self) -> None:
        data = self._meminfo.read()
        available, dirty = memory.parse_meminfo(data, b"MemAvailable", b"Dirty")
        self._put("host.memory_available_bytes", available)
        self._put("host.memory_dirty_bytes", dirty)


class HostTenSeconds:
    """Memory in all, load, frequency, and what the kernel had to kill or brake."""

    name = "host_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True  # a frequency asks its core: 10 ms each before Linux 5.18

    def __init__(self, roots: Roots) -> None:
        self._meminfo = KeptFile(roots.proc / "meminfo")
        self._vmstat = KeptFile(roots.proc / "vmstat")
        self._uptime = KeptFile(roots.proc / "uptime")
        self._loadavg = KeptFile(roots.proc / "loadavg")
        self._stat = KeptFile(roots.proc / "stat")
        self._sys = roots.sys
        self._frequency = self._numbers(
            lambda: cpu.spread(cpu.frequency_files(roots.sys), FREQUENCIES_MAX)
        )
        self._throttles = {
            "host.cpu_throttles_count": self._numbers(
                lambda: cpu.package_throttle_files(roots.sys, "package_throttle_count")
            ),
            "host.cpu_throttled_milliseconds": self._numbers(
                lambda: cpu.package_throttle_files(roots.sys, "package_throttle_total_time_ms")
            ),
            "host.cpu_core_throttles_count": self._numbers(
                lambda: cpu.core_throttle_files(roots.sys)
            ),
        }
        self._block = Block("host_10s", DEVICE)
        self._changes = Block("host_10s_changes", DEVICE)

    def collect(self) -> Sequence[Block]:
        """Return the block and the block of changes. NoData without /proc/meminfo."""
        self._put_memory()
        self._put("host.uptime_seconds", memory.parse_first_decimal(self._uptime.read()))
        self._put("host.load_1m_ratio", self._load())
        self._put_frequency()
        kills = memory.parse_vmstat(self._vmstat.read(), b"oom_kill")
        put(self._changes, "host.oom_kills_count", 0, kills)
        for name, files in self._throttles.items():
            put(self._changes, name, 0, files.total())
        return (self._block, self._changes)

    def _put(self, name: str, value: float | None) -> None:
        put(self._block, name, 0, value)

    def _numbers(self, files: Callable[[], list[Path]]) -> _Numbers:
        """Files of cores: others when a core is taken offline or comes back."""
        return _Numbers(files, lambda: read_text(self._sys / "devices/system/cpu/online"))

    def _put_memory(self) -> None:
        data = self._meminfo.read()
        if not data:
            raise NoData("/proc/meminfo cannot be read")
        total, swap, swap_free, pages, corrupted = memory.parse_meminfo(
            data, b"MemTotal", b"SwapTotal", b"SwapFree", b"HugePages_Free", b"HardwareCorrupted"
        )
        used = None if swap is None or swap_free is None else max(0, swap - swap_free)
        self._put("host.memory_total_bytes", total)
        self._put("host.swap_used_bytes", used)
        self._put("host.hugepages_free_pages", pages)
        self._put("host.memory_corrupted_bytes", corrupted)

    def _load(self) -> float | None:
        load = memory.parse_first_decimal(self._loadavg.read())
        cores = len(cpu.parse_stat(self._stat.read()).idle_by_core)
        return None if load is None or not cores else load / cores

    def _put_frequency(self) -> None:
        hertz = [value * 1000 for value in self._frequency.read() if value is not None]
        self._put("host.cpu_frequency_hertz", sum(hertz) / len(hertz) if hertz else None)
        self._put("host.cpu_frequency_min_hertz", min(hertz, default=None))
        self._put("host.cpu_frequency_max_hertz", max(hertz, default=None))


class _Numbers:
    """Numbers of files that are listed again when a glance shows another thing than before, and each hour.

    A host of 512 cores has thousands of files to be looked for.
    """

    def __init__(self, files: Callable[[], list[Path]], glance: Callable[[], object]) -> None:
        self._listing = Listing(files, Pace.TEN_SECONDS, seconds=3600, glance=glance)
        self._files = NumberFiles(())

    def read(self) -> list[int | None]:
        if self._listing.renew():
            self._files.close()
            self._files = NumberFiles(self._listing.value)
        return self._files.read()

    def total(self) -> int | None:
        """Return the sum; None without a file or if one holds no number, lest the sum seem to fall."""
        counts = self.read()
        whole = [count for count in counts if count is not None]
        known = counts and len(whole) == len(counts) and sum(whole) < 1 << 64
        return sum(whole) if known else None


class HostMinute:
    """What changes when a core is taken offline."""

    name = "host_60s"
    pace = Pace.MINUTE
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._stat = KeptFile(roots.proc / "stat")
        self._block = Block("host_60s", DEVICE)

    def collect(self) -> Sequence[Block]:
        """Return the one block. NoData without /proc/stat."""
        cores = len(cpu.parse_stat(self._stat.read()).idle_by_core)
        if not cores:
            raise NoData("/proc/stat cannot be read")
        put(self._block, "host.cores_count", 0, cores)
        return (self._block,)
