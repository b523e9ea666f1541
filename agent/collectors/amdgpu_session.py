"""State that the AMD collectors of one process share: the GPUs, their RAS counters, their processes.

Listing GPUs reads a hundred small files, and reading a RAS counter calls the GPU's firmware. Both are done once for all
collectors, which run one at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...contract.block import Block
from ...contract.signals import index_of
from ...ext.counterfiles import KEYED, CounterFiles
from ...ext.hostfiles import Glance
from ...ext.nvml import ALL_BITS, Rows
from ..clock import Clock, SystemClock
from ..collector import NoData, call_slot_name
from ..hardware import pci
from ..hardware.amdgpu import AmdGpu, amd_gpus
from ..hardware.files import Roots, device_key
from ..hardware.kfd import KfdHolding, kfd_holdings, kfd_processes

SECOND_NS = 1_000_000_000
#: Interval of checks for new and removed cards and KFD nodes; the next check is at once when a GPU
#: does not respond.
CHECK_NS = 10 * SECOND_NS
#: GPUs are listed again after this time, and at once when a card, a node or a GPU's mode changes.
LIST_NS = 3600 * SECOND_NS
#: Interval between reads of a GPU's RAS counts: each read calls the firmware.
RAS_NS = 10 * SECOND_NS
#: The holdings are read again after this time, and at once when a process starts or ends.
HOLDINGS_NS = 10 * SECOND_NS
#: Blocks that count errors of links, not of the GPU's memory and compute units.
LINK_BLOCKS = frozenset({"xgmi_wafl", "pcie_bif"})
MEMORY_BLOCK = "umc"
NO_GPU = "no AMD GPU that the amdgpu driver shows in /sys/class/drm"
_RAS_TABLE = "ras_10s_changes"
#: Lines of `ras/umc_err_count`: `ue: 0`, `ce: 3`, and `de: 0` since Linux 6.9.
_RAS_FIELDS = {
    "ras.corrected_errors": b"ce:",
    "ras.uncorrected_errors": b"ue:",
    "ras.deferred_errors": b"de:",
}


class RasCounts:
    """The counts of all RAS blocks of all GPUs, in one block of readings, read GPU by GPU."""

    def __init__(self, gpus: Sequence[AmdGpu]) -> None:
        rows = [(gpu, block) for gpu in gpus for block in gpu.ras_blocks]
        self.block = Block(_RAS_TABLE, [ras_key(gpu, block) for gpu, block in rows])
        self._gpus = gpus
        self._rows = {
            gpu.key: {block: row for row, (owner, block) in enumerate(rows) if owner is gpu}
            for gpu in gpus
        }
        self._files = [self._files_of(gpu) for gpu in gpus]
        self._read_ns = [-RAS_NS] * len(gpus)
        self._next = 0  # the GPU whose turn is next
        #: Per GPU: number of reads, and number of changed rows. Other collectors compare `changes`.
        self.reads = [0] * len(gpus)
        self.changes = [0] * len(gpus)
        self._owners = [number for number, gpu in enumerate(gpus) for _ in gpu.ras_blocks]
        columns = [
            (self.block.cells, self.block.valid, index_of(name), ALL_BITS) for name in _RAS_FIELDS
        ]
        self._watch = Rows(self.block.rows, columns)

    def _files_of(self, gpu: AmdGpu) -> CounterFiles:
        files = CounterFiles([(self.block.cells, self.block.valid)], kept_max=len(gpu.ras_blocks))
        for name, row in self._rows[gpu.key].items():
            path = f"{gpu.folder}/ras/{name}_err_count"
            files.add_file(path, device=call_slot_name(gpu.address))
            for signal, key in _RAS_FIELDS.items():
                files.add_cell(index_of(signal) * self.block.rows + row, shape=KEYED, key=key)
        return files

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip these GPUs, and no others."""
        for files in self._files:
            files.spare(devices)

    def read(self, now_ns: int, gpus_max: int) -> None:
        """Read at most *gpus_max* GPUs whose counts are due.

        A sleeping GPU is not woken and keeps its counts.
        """
        for _ in range(min(gpus_max, len(self._gpus))):
            number = self._next
            if now_ns - self._read_ns[number] < RAS_NS:
                break
            self._read_ns[number] = now_ns
            self._next = (number + 1) % len(self._gpus)
            gpu = self._gpus[number]
            if not (gpu.may_sleep and pci.is_asleep(Path(gpu.folder))):
                self._files[number].read()
                self.reads[number] += 1
                for row in self._watch.changed():
                    self.changes[self._owners[row]] += 1

    def count(self, gpu: AmdGpu, block: str, signal: str) -> int | None:
        """Return a count of one block of a GPU; None: not read, or no such block."""
        row = self._rows[gpu.key].get(block)
        return None if row is None else self._cell(index_of(signal), row)

    def _cell(self, column: int, row: int) -> int | None:
        cell = column * self.block.rows + row
        return self.block.ints[cell] if self.block.valid[cell] else None

    def total(self, gpu: AmdGpu, signal: str) -> int | None:
        """Return the sum over all blocks except links; None if no block was read."""
        counts = [
            self._cell(index_of(signal), row)
            for block, row in self._rows[gpu.key].items()
            if block not in LINK_BLOCKS
        ]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None


def ras_key(gpu: AmdGpu, block: str) -> str:
    """Return the key of a block's counts: `GPU-8f3c9c1d2e4a5b60/umc`."""
    return device_key(f"{gpu.key}/{block}")


class AmdGpuSession:
    """The AMD GPUs of a host. `generation` rises when the GPUs or their partitions change."""

    def __init__(self, roots: Roots, clock: Clock) -> None:
        self.gpus: Sequence[AmdGpu] = ()
        self.generation = 0
        self.ras = RasCounts(())
        self.excluded: frozenset[str] = frozenset()
        #: KFD's holdings of GPUs and partitions at the last read; None: KFD shows no processes.
        self.holdings: Sequence[KfdHolding] | None = None
        self._roots, self._clock = roots, clock
        self._glances = [
            Glance(roots.sys / "class/drm"),
            Glance(roots.sys / "class/kfd/kfd/topology/nodes"),
        ]
        self._last_seen_keys: list[int] = []
        self._listed_ns = -LIST_NS
        self._next_check_ns = -LIST_NS
        self._pids: list[int] = []
        self._holdings_ns = -HOLDINGS_NS

    def refresh(self) -> int:
        """List the GPUs if a check shows a change; return the boot time.

        Raises NoData without a GPU.
        """
        now_ns = self._clock.boottime_ns()
        if now_ns >= self._next_check_ns:
            self._next_check_ns = now_ns + CHECK_NS
            before = self._last_seen_keys
            self._last_seen_keys = [reading.look() for reading in self._glances]
            if before != self._last_seen_keys or now_ns - self._listed_ns >= LIST_NS:
                self._list(now_ns)
        if not self.gpus:
            raise NoData(NO_GPU)
        return now_ns

    @property
    def rests(self) -> bool:
        """Return whether the last list has no GPU and the next check is not due."""
        return not self.gpus and self._clock.boottime_ns() < self._next_check_ns

    def check_soon(self) -> None:
        """Check the GPUs at the next turn: one did not respond."""
        self._next_check_ns = 0

    def _list(self, now_ns: int) -> None:
        self._listed_ns = now_ns
        gpus = amd_gpus(self._roots.sys)
        if gpus != self.gpus:
            self.gpus = gpus
            self.generation += 1
            self.ras = RasCounts(gpus)
            self.ras.exclude(self.excluded)
            self._holdings_ns = -HOLDINGS_NS

    def exclude(self, devices: frozenset[str]) -> None:
        self.excluded = devices
        self.ras.exclude(devices)

    def read_holdings(self, now_ns: int) -> Sequence[KfdHolding] | None:
        """Return the holdings; None without KFD.

        They are read again after HOLDINGS_NS, or when a process came or went.
        """
        if not (self._roots.sys / "class/kfd/kfd/proc").is_dir():
            self.holdings = None
            return None
        pids = kfd_processes(self._roots.sys)
        if self.holdings is None or pids != self._pids or now_ns - self._holdings_ns >= HOLDINGS_NS:
            self._pids, self._holdings_ns = pids, now_ns
            self.holdings = [
                holding for pid in pids for holding in kfd_holdings(self._roots.sys, pid)
            ]
        return self.holdings

    def partition_of(self) -> Mapping[int, tuple[AmdGpu, int]]:
        """Return the GPU and the partition number of each KFD id."""
        return {
            partition.kfd_id: (gpu, partition.number)
            for gpu in self.gpus
            for partition in gpu.partitions
        }


_SESSIONS: weakref.WeakValueDictionary[Roots, AmdGpuSession] = weakref.WeakValueDictionary()


def amd_session_of(roots: Roots, clock: Clock | None = None) -> AmdGpuSession:
    """Return the host's session, which lives while a caller holds it.

    *clock* is used at its creation.
    """
    session = _SESSIONS.get(roots)
    if session is None:
        session = _SESSIONS[roots] = AmdGpuSession(roots, clock or SystemClock())
    return session
