"""The host as a whole: cores, pressure, memory, from /proc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware import cpu, memory
from ..hardware.files import KeptFile
from ..hardware.numberfiles import NumberFiles
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import columns_of
from .listing import Listing

DEVICE = ("host",)
_COLUMN = columns_of("host_1s", "host_10s", "host_10s_changes", "host_60s")


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
        self._block.put_int(_COLUMN["host.context_switches_count"], 0, now.context_switches)
        self._put_pressure()
        self._put_memory()
        self._before = now
        return (self._block,)

    def _put(self, name: str, value: float | None) -> None:
        self._block.put_float(_COLUMN[name], 0, value)

    def _put_times(self, now: cpu.Stat) -> None:
        shares = cpu.shares_of_time(self._before, now)
        self._put("host.cpu_user_ratio", shares.user)
        self._put("host.cpu_system_ratio", shares.system)
        self._put("host.cpu_idle_ratio", shares.idle)
        self._put("host.cpu_iowait_ratio", shares.iowait)
        self._put("host.cpu_steal_ratio", shares.steal)
        self._put("host.cpu_busiest_core_ratio", shares.busiest_core)

    def _put_pressure(self) -> None:
        found = {kind: memory.parse_pressure(f.read()) for kind, f in self._pressure.items()}
        self._put("host.pressure_cpu_some_ratio", found["cpu"].some_ratio)
        self._put("host.pressure_memory_some_ratio", found["memory"].some_ratio)
        self._put("host.pressure_memory_full_ratio", found["memory"].full_ratio)
        self._put("host.pressure_io_some_ratio", found["io"].some_ratio)
        self._put("host.pressure_io_full_ratio", found["io"].full_ratio)

    def _put_memory(self) -> None:
        data = self._meminfo.read()
        available, dirty = memory.parse_meminfo(data, b"MemAvailable", b"Dirty")
        self._put("host.memory_available_bytes", available)
        self._put("host.memory_dirty_bytes", dirty)


class HostTenSeconds:
    """Memory in all, load, frequency, and what the kernel had to kill or brake."""

    name = "host_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._meminfo = KeptFile(roots.proc / "meminfo")
        self._vmstat = KeptFile(roots.proc / "vmstat")
        self._uptime = KeptFile(roots.proc / "uptime")
        self._loadavg = KeptFile(roots.proc / "loadavg")
        self._stat = KeptFile(roots.proc / "stat")
        self._frequency = _Numbers(lambda: cpu.frequency_files(roots.sys))
        self._throttles = _Numbers(lambda: cpu.throttle_files(roots.sys))
        self._block = Block("host_10s", DEVICE)
        self._changes = Block("host_10s_changes", DEVICE)

    def collect(self) -> Sequence[Block]:
        """Return the block and the block of changes. NoData without /proc/meminfo."""
        self._put_memory()
        self._put("host.uptime_seconds", memory.parse_first_decimal(self._uptime.read()))
        self._put("host.load_1m_ratio", self._load())
        self._put("host.cpu_frequency_hertz", self._frequency_hertz())
        kills = memory.parse_vmstat(self._vmstat.read(), b"oom_kill")
        self._changes.put_int(_COLUMN["host.oom_kills_count"], 0, kills)
        self._changes.put_int(_COLUMN["host.cpu_throttles_count"], 0, self._throttles_sum())
        return (self._block, self._changes)

    def _put(self, name: str, value: float | None) -> None:
        self._block.put_float(_COLUMN[name], 0, value)

    def _put_memory(self) -> None:
        data = self._meminfo.read()
        if not data:
            raise NoData("/proc/meminfo cannot be read")
        total, swap, swap_free, pages = memory.parse_meminfo(
            data, b"MemTotal", b"SwapTotal", b"SwapFree", b"HugePages_Free"
        )
        used = None if swap is None or swap_free is None else max(0, swap - swap_free)
        self._put("host.memory_total_bytes", total)
        self._put("host.swap_used_bytes", used)
        self._put("host.hugepages_free_pages", pages)

    def _load(self) -> float | None:
        load = memory.parse_first_decimal(self._loadavg.read())
        cores = len(cpu.parse_stat(self._stat.read()).idle_by_core)
        return None if load is None or not cores else load / cores

    def _frequency_hertz(self) -> float | None:
        kilohertz = [value for value in self._frequency.read() if value is not None]
        return sum(kilohertz) / len(kilohertz) * 1000 if kilohertz else None

    def _throttles_sum(self) -> int | None:
        """Sum over the packages; None if one is missing, lest the sum seem to fall."""
        total = 0
        counts = self._throttles.read()
        for count in counts:
            if count is None:
                return None
            total += count
        return total if counts else None


class _Numbers:
    """Numbers of files that are listed again each minute."""

    def __init__(self, files: Callable[[], list[Path]]) -> None:
        self._listing = Listing(files, Pace.TEN_SECONDS, seconds=60)
        self._files = NumberFiles(())

    def read(self) -> list[int | None]:
        if self._listing.renew():
            self._files.close()
            self._files = NumberFiles(self._listing.value)
        return self._files.read()


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
        self._block.put_float(_COLUMN["host.cores_count"], 0, cores)
        return (self._block,)
