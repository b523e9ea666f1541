"""The host as a whole: cores, pressure, memory, from /proc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...ext.hostfiles import CoreTimes, line_numbers, pressure
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares
from ..hardware import cpu, memory
from ..hardware.files import KeptFile
from ..hardware.numberfiles import NumberFiles
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import places_of, put
from .listing import Listing

DEVICE = ("host",)
_MEMORY = (b"MemTotal:", b"SwapTotal:", b"SwapFree:", b"HugePages_Free:", b"HardwareCorrupted:")
#: Frequencies of so many cores are read, spread over the host: each may take 10 ms (x86 before Linux 5.18).
FREQUENCIES_MAX = 32


#: In the order of `ext.hostfiles.CoreTimes.take`, then of pressure and memory as they are read.
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
    # of the host as a whole the kernel says 0 for `full` of cpu, whatever happens
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


class HostSecond:
    """Shares of the cores' time since the last turn, pressure, memory to be had."""

    name = "host_1s"
    pace = Pace.SECOND
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._stat = KeptFile(roots.proc / "stat")
        self._meminfo = KeptFile(roots.proc / "meminfo")
        self._cpu, self._memory, self._io = (
            KeptFile(roots.proc / "pressure" / kind) for kind in ("cpu", "memory", "io")
        )
        self._times = CoreTimes(cpu.SATURATED_IDLE_RATIO_MAX)
        self._block = Block("host_1s", DEVICE)
        self._places = places_of(self._block, _SECOND)

    def collect(self) -> Sequence[Block]:
        """Return the one block; shares are missing in the first turn. NoData without /proc/stat."""
        data = self._stat.read()
        if not data:
            raise NoData("/proc/stat cannot be read")
        some, _, some_microseconds, _ = pressure(self._cpu.read())
        values = (
            *self._times.take(data),
            some,
            some_microseconds,
            *pressure(self._memory.read()),
            *pressure(self._io.read()),
            *line_numbers(self._meminfo.read(), (b"MemAvailable:", b"Dirty:")),
        )
        self._places.put(0, values)
        return (self._block,)


class HostTenSeconds(Spares):
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
        self._times = CoreTimes()
        self._sys = roots.sys
        self._frequency = self._numbers(
            lambda: cpu.spread(cpu.frequency_files(roots.sys), FREQUENCIES_MAX), cpu.core_of
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

    def spare(self, devices: frozenset[str]) -> None:
        """Ask none of these cores for its frequency."""
        super().spare(devices)
        self._frequency.spare(devices)

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

    def _numbers(
        self, files: Callable[[], list[Path]], device_of: Callable[[Path], str] | None = None
    ) -> _Numbers:
        """Files of cores: others when a core is taken offline or comes back."""
        online = KeptFile(self._sys / "devices/system/cpu/online")
        return _Numbers(files, online.read, device_of)

    def _put_memory(self) -> None:
        data = self._meminfo.read()
        if not data:
            raise NoData("/proc/meminfo cannot be read")
        total, swap, swap_free, pages, corrupted = line_numbers(data, _MEMORY)
        used = None if swap is None or swap_free is None else max(0, swap - swap_free)
        self._put("host.memory_total_bytes", total)
        self._put("host.swap_used_bytes", used)
        self._put("host.hugepages_free_pages", pages)
        self._put("host.memory_corrupted_bytes", corrupted)

    def _load(self) -> float | None:
        load = memory.parse_first_decimal(self._loadavg.read())
        self._times.take(self._stat.read())
        return None if load is None or not self._times.count else load / self._times.count

    def _put_frequency(self) -> None:
        hertz = [value * 1000 for value in self._frequency.read() if value is not None]
        self._put("host.cpu_frequency_hertz", sum(hertz) / len(hertz) if hertz else None)
        self._put("host.cpu_frequency_min_hertz", min(hertz, default=None))
        self._put("host.cpu_frequency_max_hertz", max(hertz, default=None))


class _Numbers:
    """Numbers of files that are listed again when a glance shows another thing than before, and each hour.

    A host of 512 cores has thousands of files to be looked for.
    """

    def __init__(
        self,
        files: Callable[[], list[Path]],
        glance: Callable[[], object],
        device_of: Callable[[Path], str] | None,
    ) -> None:
        """*device_of*: whose driver a file enters; None: no file enters any."""
        self._listing = Listing(files, Pace.TEN_SECONDS, seconds=3600, glance=glance)
        self._files = NumberFiles(())
        self._device_of = device_of
        self._spared: frozenset[str] = frozenset()

    def spare(self, devices: frozenset[str]) -> None:
        self._spared = devices
        self._files.spare(devices)

    def read(self) -> list[int | None]:
        if self._listing.renew():
            self._files.close()
            paths = self._listing.value
            devices = [self._device_of(path) for path in paths] if self._device_of else ()
            self._files = NumberFiles(paths, devices)
            self._files.spare(self._spared)
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
        self._times = CoreTimes()
        self._block = Block("host_60s", DEVICE)

    def collect(self) -> Sequence[Block]:
        """Return the one block. NoData without /proc/stat."""
        self._times.take(self._stat.read())
        if not self._times.count:
            raise NoData("/proc/stat cannot be read")
        put(self._block, "host.cores_count", 0, self._times.count)
        return (self._block,)
