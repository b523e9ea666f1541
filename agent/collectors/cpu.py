"""Each core, once a minute: /proc/stat and its frequency."""

from __future__ import annotations

from collections.abc import Sequence

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.cpu import CpuTimes, Shares, parse_core_times, shares_between
from ..hardware.files import KeptFile
from ..hardware.roots import Roots
from .columns import put
from .folders import Device, FolderCollector, Plan, Source

#: The frequency of so many cores is read, evenly over all: each may take 10 ms (x86 before Linux 5.18).
FREQUENCIES_MAX = 64
_FREQUENCY = {"cpu.frequency_hertz": Source("cpufreq/scaling_cur_freq", scale=1000)}


class CpuMinute(FolderCollector):
    """Shares of each core's time since the last turn, and its frequency now.

    The folders' collector reads the frequencies, this class fills in the shares.
    """

    def __init__(self, roots: Roots) -> None:
        self._stat = KeptFile(roots.proc / "stat")
        self._before: dict[int, CpuTimes] = {}
        folder = roots.sys / "devices/system/cpu"

        def devices() -> list[Device]:
            cores = sorted(parse_core_times(self._stat.read()))
            step = -(-len(cores) // FREQUENCIES_MAX)
            return [
                Device(f"cpu{core}", f"{folder}/cpu{core}/", {} if at % step else _FREQUENCY)
                for at, core in enumerate(cores)
            ]

        absent = "/proc/stat names no core"
        super().__init__(
            Plan(
                "cpu_60s",
                Pace.MINUTE,
                ("cpu_60s",),
                devices,
                absent,
                enters_driver=True,
                list_seconds=60,
            )
        )

    def collect(self) -> Sequence[Block]:
        """Return the one block; shares are missing in the first turn. NoData without /proc/stat."""
        (block,) = super().collect()
        now = parse_core_times(self._stat.read())
        for row, name in enumerate(block.devices):
            core = int(name[3:])
            known = core in now and core in self._before
            shares = shares_between(self._before[core], now[core]) if known else Shares()
            put(block, "cpu.busy_ratio", row, shares.busy)
            put(block, "cpu.system_ratio", row, shares.system)
            put(block, "cpu.interrupt_ratio", row, shares.interrupt)
            put(block, "cpu.steal_ratio", row, shares.steal)
        self._before = now
        return (block,)
