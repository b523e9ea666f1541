"""Each core, once a minute: /proc/stat and its frequency."""

from __future__ import annotations

from collections.abc import Sequence

from ...ext.hostfiles import CoreTimes
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.files import KeptFile
from ..hardware.roots import Roots
from .columns import places_of
from .folders import Device, FolderCollector, Plan, Source

#: The frequency of so many cores is read, evenly over all: each may take 10 ms (x86 before Linux 5.18).
FREQUENCIES_MAX = 64
_FREQUENCY = {"cpu.frequency_hertz": Source("cpufreq/scaling_cur_freq", scale=1000)}

#: In the order of `ext.hostfiles.CoreTimes.shares`.
_SHARES = ("cpu.busy_ratio", "cpu.system_ratio", "cpu.interrupt_ratio", "cpu.steal_ratio")
_NOTHING = (None,) * len(_SHARES)


class CpuMinute(FolderCollector):
    """Shares of each core's time since the last turn, and its frequency now.

    The folders' collector reads the frequencies, this class fills in the shares.
    """

    def __init__(self, roots: Roots) -> None:
        self._stat = KeptFile(roots.proc / "stat", whole=True)
        self._times = CoreTimes()
        folder = roots.sys / "devices/system/cpu"

        def devices() -> list[Device]:
            times = CoreTimes()
            times.take(self._stat.read())
            cores = sorted(times.cores)
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
        self._times.take(self._stat.read())
        shares = self._times.shares()
        places = places_of(block, _SHARES)
        for row, name in enumerate(block.devices):
            places.put(row, shares.get(int(name[3:]), _NOTHING))
        return (block,)
