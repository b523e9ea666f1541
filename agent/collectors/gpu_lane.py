"""What the lanes of the GPU signals share: finding the GPUs, one sweep a turn, letting go, and what was not shown."""

from __future__ import annotations

from collections.abc import Sequence

from ...ext.nvml import READINGS, Nvml, NvmlError, Sweep
from ...fingerprints.block import Block
from ...fingerprints.catalogue import PERIOD_SECONDS, TABLES, Pace
from ...fingerprints.nvml_fields import fields_of
from ..hardware.nvidia_capabilities import mig_monitor_line, sees_all_mig_instances
from ..hardware.nvml import driver_gpus
from ..hardware.nvml_session import session_of
from ..hardware.roots import Roots
from ..listening import Teller
from ..turn import Blind, NoData
from .gpu_cells import Cells
from .gpu_open import (
    LOOK_AGAIN_SECONDS,
    LookAgain,
    gpus_of,
    in_words,
    is_complete,
    keys_of,
    library_of,
    open_nvml,
)


class GpuLane:
    """The GPU signals of one pace.

    `collect` raises NoData where there is no driver or no GPU, Blind where the agent may not look.
    A GPU's error is that GPU's missing cells, counted in a signal of its own; never its neighbours'.
    What some GPU would not show is in `blind_words`.
    """

    enters_driver = True

    def __init__(self, pace: Pace, roots: Roots) -> None:
        """Loads nothing yet: the first `collect` does, in the thread that may be left behind."""
        self.name = f"gpu_{pace}"
        self.pace = pace
        self.blind_words = ""
        self._roots = roots
        self._session = session_of(library_of(roots))
        self._seat = self._session.seat(self._let_go)
        self._teller: Teller | None = None
        self._nvml: Nvml | None = None
        self._sweep: Sweep | None = None
        self._blocks: tuple[Block, ...] = ()
        self._cells = Cells()
        self._keys: list[str] = []
        self._complete = True
        self._hidden = ""  # in words: GPUs that NVML does not show
        self._nothing: Exception | None = None
        self._again = LookAgain(roots, pace)
        self._turns_to_wait = 0

    def listen(self, teller: Teller) -> None:
        """Take the teller: what becomes of a GPU is told at once."""
        self._teller = teller

    def close(self) -> None:
        """Nothing was started."""

    def collect(self) -> Sequence[Block]:
        """Read every GPU once."""
        if not self._seat.begin():
            raise RuntimeError(f"the turn before has not returned: {self.whereabouts()}")
        try:
            return self._collect()
        finally:
            self._seat.end()

    def _collect(self) -> Sequence[Block]:
        sweep = self._sweep or self._find()
        sweep.run()
        if sweep.ended:
            self._end(NvmlError("NVML lost the driver, and is opened anew", sweep.ended))
        self._look()
        self.blind_words = self._blind(sweep)
        self._turns_to_wait -= 1
        if self._turns_to_wait <= 0 and not self._complete:
            self._seat.vacate()  # after this turn: a GPU that is missing, or has no name, may have it by now
        return self._blocks

    def whereabouts(self) -> str:
        """Say, from another thread, which call on which GPU has not returned: a hang is named by it."""
        sweep, nvml = self._sweep, self._nvml
        if sweep and sweep.stuck_at():
            return sweep.words()
        return (nvml.doing if nvml else "") or ("between calls" if sweep else "finding the GPUs")

    def release(self) -> bool:
        """Let go of all GPUs, so that they can be reset; the next `collect` opens them again.

        During a `collect` this is False, and happens at its end: a handle cannot be taken from a call
        that uses it.
        """
        return self._seat.vacate()

    def _let_go(self) -> None:
        if self._nvml:
            self._nvml.close()
        self._nvml = self._sweep = self._nothing = None
        self._blocks, self._cells, self._keys = (), Cells(), []

    def _find(self) -> Sweep:
        """Open NVML and all GPUs; where there are none, say so and look again after a while."""
        if self._nothing is not None and not self._again.is_due():
            raise self._nothing.with_traceback(None)  # or each raise would make it longer
        try:
            self._nvml = open_nvml(self._roots)
            self._sweep = self._make_sweep(self._nvml)
        except (NoData, Blind, NvmlError) as reason:
            self._let_go()
            self._nothing = reason
            self._again.begin(reason)
            raise
        except BaseException:
            self._let_go()
            raise
        return self._sweep

    def _make_sweep(self, nvml: Nvml) -> Sweep:
        """Make the blocks of this pace, a row for each GPU in order of address, and the sweep that fills them."""
        devices = sorted(gpus_of(nvml, self._roots))
        if not devices:
            raise NoData("the NVIDIA driver has no GPU")
        addresses = [device.address for device in devices]
        hidden = [a for a in driver_gpus(self._roots.proc) if a not in addresses]
        opens = "let the agent open /dev/nvidia[0-9]*"
        self._hidden = f"NVML does not show GPU {', '.join(hidden)}; {opens}" if hidden else ""
        self._keys = keys_of(devices)
        self._complete = is_complete(nvml, self._keys)
        tables = (f"gpu_{self.pace}", f"gpu_{self.pace}_changes")
        self._blocks = tuple(Block(table, self._keys) for table in tables if table in TABLES)
        self._cells = Cells(self._blocks)
        targets = {
            signal.column: (block.cells, block.valid, column)
            for block in self._blocks
            for column, signal in enumerate(TABLES[block.table])
            if signal.column in READINGS
        }
        version = nvml.driver_version()
        self._opened(addresses, version)
        self._turns_to_wait = self._turns(LOOK_AGAIN_SECONDS)
        return Sweep(nvml, addresses, targets, fields_of(version))

    def _opened(self, addresses: Sequence[str], driver_version: str) -> None:
        """Take what was found, in the order of the rows, before the first turn over it."""

    def _look(self) -> None:
        """Look at what a turn has read, before it is handed over."""

    def _end(self, why: NvmlError) -> None:
        """The driver is gone or another: everybody in this process opens NVML anew."""
        self._session.open_anew(self._seat, driver_loaded=True)
        raise in_words(why, self._roots)

    def _blind(self, sweep: Sweep) -> str:
        """Return what the turn was not shown, and what would open it; empty: it saw all."""
        refusals = sweep.refusals()
        split = [
            address
            for row, address in enumerate(sweep.addresses)
            if address in self._session.split
            and (address in refusals or not self._shows_whole(row))
        ]
        if split and not sees_all_mig_instances(self._roots):
            return f"GPU {split[0]} is split (MIG); {mig_monitor_line(self._roots)}"
        for address, function in refusals.items():
            opens = "open /dev/nvidia[0-9]*" if "Handle" in function else "have CAP_SYS_ADMIN"
            return f"GPU {address}: no permission for {function}; let the agent {opens}"
        return self._hidden

    def _shows_whole(self, row: int) -> bool:
        """Say whether a GPU shows values of the whole GPU: its memory, or its ECC mode."""
        names = ("gpu.memory_used_bytes", "gpu.memory_total_bytes", "gpu.ecc_mode_state")
        return any(self._cells.number(name, row) is not None for name in names)

    def _turns(self, seconds: int) -> int:
        return seconds // PERIOD_SECONDS[self.pace]
