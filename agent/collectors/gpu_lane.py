"""What the lanes of the GPU signals share: one sweep a turn over the GPUs, letting go, and what was not shown."""

from __future__ import annotations

from collections.abc import Sequence

from ...ext.nvml import READINGS, NvmlError, Sweep
from ...fingerprints.block import Block
from ...fingerprints.catalogue import TABLES, Pace
from ...fingerprints.nvml_fields import fields_of
from ..hardware.nvidia_capabilities import mig_monitor_line, sees_all_mig_instances
from ..hardware.roots import Roots
from ..listening import Teller
from .gpu_cells import Cells
from .gpu_open import in_words
from .gpu_session import session_of

#: What a pass over all GPUs may take, each GPU its share: what one that is slow would say beyond it is missing.
PASS_SECONDS_MAX = 0.5


class GpuLane:
    """The GPU signals of one pace.

    `collect` raises NoData where there is no driver or no GPU, Blind where the agent may not look.
    A GPU's error is that GPU's missing cells, counted in a signal of its own; never its neighbours'.
    What some GPU would not show is in `blind_words`.
    """

    enters_driver = True

    def __init__(self, pace: Pace, roots: Roots) -> None:
        """Loads nothing yet: the first `collect` does."""
        self.name = f"gpu_{pace}"
        self.pace = pace
        self.blind_words = ""
        self._roots = roots
        self._session = session_of(roots)
        self._session.join(self)
        self._teller: Teller | None = None
        self._sweep: Sweep | None = None  # None while every GPU is spared
        self._blocks: tuple[Block, ...] = ()
        self._cells = Cells()
        self._keys: list[str] = []
        self._addresses: list[str] = []

    def listen(self, teller: Teller) -> None:
        """Take the teller: what becomes of a GPU is told at once."""
        self._teller = teller

    def close(self) -> None:
        """Nothing was started."""

    def collect(self) -> Sequence[Block]:
        """Read every GPU once that is not spared."""
        self._session.open()
        if not self._blocks:
            self._make()
        sweep = self._sweep
        if sweep is not None:
            sweep.run()
            if sweep.ended:
                self._end(NvmlError("NVML lost the driver, and is opened anew", sweep.ended))
        blocks = self._blocks
        self._look()
        self.blind_words = self._blind(sweep)
        return blocks

    def spare(self, devices: frozenset[str]) -> None:
        """Ask these GPUs nothing; their rows remain, and are missing."""
        self._session.spare(devices)

    def slow_devices(self) -> frozenset[str]:
        """Return the GPUs that took longer than their part of a pass, again and again, while others did not."""
        return self._sweep.slow() if self._sweep else frozenset()

    def let_go(self) -> None:
        """Forget what was made of the open NVML."""
        self._sweep = None
        self._blocks, self._cells, self._keys, self._addresses = (), Cells(), [], []

    def _make(self) -> None:
        """Make the blocks of this pace, a row for each GPU in order of address, and the sweep that fills them."""
        session = self._session
        self._keys = [gpu.key for gpu in session.gpus]
        self._addresses = [gpu.address for gpu in session.gpus]
        tables = (f"gpu_{self.pace}", f"gpu_{self.pace}_changes")
        blocks = tuple(Block(table, self._keys) for table in tables if table in TABLES)
        self._cells = Cells(blocks)
        targets = {
            signal.column: (block.cells, block.valid, column)
            for block in blocks
            for column, signal in enumerate(TABLES[block.table])
            if signal.column in READINGS
        }
        if session.nvml is not None:
            self._sweep = Sweep(
                session.nvml,
                self._addresses,
                targets,
                fields_of(session.driver_version),
                spared=[gpu.address for gpu in session.gpus if gpu.spared],
                budget_seconds=PASS_SECONDS_MAX,
                first=self.pace is Pace.SECOND,
            )
        self._blocks = blocks
        self._made()

    def _made(self) -> None:
        """Look at what was found, before the first turn over it."""

    def _look(self) -> None:
        """Look at what a turn has read, before it is handed over."""

    def _end(self, why: NvmlError) -> None:
        """The driver is gone or another: NVML is opened anew."""
        self._session.open_anew(driver_loaded=True)
        raise in_words(why, self._roots)

    def _blind(self, sweep: Sweep | None) -> str:
        """Return what the turn was not shown, and what would open it; empty: it saw all."""
        session = self._session
        refusals = sweep.refusals() if sweep and sweep.is_refused else {}
        if session.split:
            split = [
                address
                for row, address in enumerate(self._addresses)
                if address in session.split and (address in refusals or not self._shows_whole(row))
            ]
            if split and not sees_all_mig_instances(self._roots):
                return f"GPU {split[0]} is split (MIG); {mig_monitor_line(self._roots)}"
        for address, function in refusals.items():
            opens = "open /dev/nvidia[0-9]*" if "Handle" in function else "have CAP_SYS_ADMIN"
            return f"GPU {address}: no permission for {function}; let the agent {opens}"
        return session.hidden

    def _shows_whole(self, row: int) -> bool:
        """Say whether a GPU shows values of the whole GPU: its memory, or its ECC mode."""
        names = ("gpu.memory_used_bytes", "gpu.memory_total_bytes", "gpu.ecc_mode_state")
        return any(self._cells.number(name, row) is not None for name in names)
