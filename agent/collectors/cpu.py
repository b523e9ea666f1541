"""Each core once a minute: time shares from /proc/stat, and its frequency."""

from __future__ import annotations

from collections.abc import Sequence

from ...contract.block import Block
from ...contract.signal import Pace
from ...ext.hostfiles import CoreTimes
from ..hardware.files import OpenFile, Roots
from .block_writer import row_writer
from .counter_files import CollectorSpec, CounterDevice, CounterFileCollector, FileField

#: Cores whose frequency is read, spread evenly: each read may take 10 ms (x86 before Linux 5.18).
CPU_FREQUENCIES_MAX = 64
_FREQUENCY = {"cpu.frequency_hertz": FileField("cpufreq/scaling_cur_freq", scale=1000)}
#: In the order of `ext.hostfiles.CoreTimes.shares`.
_SHARES = ("cpu.busy_ratio", "cpu.system_ratio", "cpu.interrupt_ratio", "cpu.steal_ratio")
_NO_SHARES = (None,) * len(_SHARES)


class CpuMinute(CounterFileCollector):
    """Shares of each core's time since the last turn, and its frequency.

    The base class reads the frequencies; this class adds the shares.
    """

    def __init__(self, roots: Roots) -> None:
        self._stat = OpenFile(roots.proc / "stat", whole=True)
        self._times = CoreTimes()
        folder = roots.sys / "devices/system/cpu"

        def devices() -> list[CounterDevice]:
            times = CoreTimes()
            times.take(self._stat.read())
            cores = sorted(times.cores)
            step = -(-len(cores) // CPU_FREQUENCIES_MAX)
            return [
                CounterDevice(
                    f"cpu{core}", f"{folder}/cpu{core}/", {} if position % step else _FREQUENCY
                )
                for position, core in enumerate(cores)
            ]

        no_data_reason = "/proc/stat names no core"
        super().__init__(
            CollectorSpec(
                "cpu_60s",
                Pace.MINUTE,
                ("cpu_60s",),
                devices,
                no_data_reason,
                enters_driver=True,
                list_seconds=60,
            )
        )

    def collect(self) -> Sequence[Block]:
        """Return the block; no shares in the first turn. Raises NoData without /proc/stat."""
        (block,) = super().collect()
        self._times.take(self._stat.read())
        shares = self._times.shares()
        writer = row_writer(block, _SHARES)
        for row, name in enumerate(block.devices):
            writer.put(row, shares.get(int(name[3:]), _NO_SHARES))
        return (block,)
