"""Base class of collectors that read GPUs through NVML: one sweep a turn, release, and waiting for the driver."""

from __future__ import annotations

from collections.abc import Sequence

from ...contract.block import Block
from ...contract.nvml_fields import fields_of
from ...contract.signal import Pace
from ...contract.signals import TABLES
from ...ext.nvml import READINGS, NvmlError, Sweep
from ..collector import Collector
from ..events import EventPublisher
from ..hardware.files import Roots
from ..hardware.mig_capabilities import mig_monitor_line, sees_all_mig_instances
from .block_writer import Cells
from .nvml_open import collector_error
from .nvml_session import session_of

#: Budget of a pass, in equal parts per GPU: values that a slow GPU returns after its part are
#: missing.
PASS_SECONDS_MAX = 0.5
#: Average time for slow NVML calls per GPU and pass. On an H200 the energy takes 3 to 5 ms, many
#: others 0.2 to 3 ms: with this and GPM's share (`gpu_fast.GPM_SECONDS`) NVML stays below 1 ms per
#: second and GPU.
SLOW_SECONDS = {Pace.SECOND: 150e-6, Pace.TEN_SECONDS: 400e-6, Pace.MINUTE: 600e-6}


class NvmlCollector(Collector):
    """The GPU signals of one pace.

    `collect` raises NoData without a driver or a GPU, AccessDenied without permission. An error of
    a GPU makes only its own cells missing, and is counted in a signal. `access_error` names values
    that a GPU did not show.
    """

    enters_driver = True

    def __init__(self, name: str, roots: Roots) -> None:
        """Load nothing: the first `collect` does."""
        self.name = name
        self._roots = roots
        self._session = session_of(roots)
        self._session.register(self)
        self._publisher: EventPublisher | None = None
        self._sweep: Sweep | None = None  # None while every GPU is excluded
        self._blocks: tuple[Block, ...] = ()
        self._cells = Cells()
        self._keys: list[str] = []
        self._addresses: list[str] = []

    def start(self, publisher: EventPublisher) -> None:
        """Take the publisher, to report changes of a GPU at once."""
        self._publisher = publisher

    def close(self) -> None:
        """Do nothing: no thread was started."""

    def collect(self) -> Sequence[Block]:
        """Read every GPU that is not excluded."""
        self._session.open()
        if not self._blocks:
            self._build()
        sweep = self._sweep
        if sweep is not None:
            sweep.run()
            if sweep.ended:
                self._on_driver_lost(NvmlError("NVML lost the driver and is reopened", sweep.ended))
        blocks = self._blocks
        self._after_sweep()
        self.access_error = self._access_error(sweep)
        return blocks

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip these GPUs; their rows stay, with missing cells."""
        self._session.exclude(devices)

    def slow_devices(self) -> frozenset[str]:
        """Return the GPUs that, unlike others, repeatedly exceeded their part of a pass."""
        return self._sweep.slow() if self._sweep else frozenset()

    def release(self) -> None:
        """Release the state that depends on the open NVML."""
        self._sweep = None
        self._blocks, self._cells, self._keys, self._addresses = (), Cells(), [], []

    def _build(self) -> None:
        """Create the blocks, a row per GPU in order of address, and the sweep that fills them."""
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
                spared=[gpu.address for gpu in session.gpus if gpu.excluded],
                budget_seconds=PASS_SECONDS_MAX,
                first=self.pace is Pace.SECOND,
                slow_seconds=SLOW_SECONDS[self.pace],
            )
        self._blocks = blocks
        self._on_open()

    def _on_open(self) -> None:
        """Inspect the GPUs before the first sweep."""

    def _after_sweep(self) -> None:
        """Inspect the readings of a turn before they are returned."""

    def _on_driver_lost(self, error: NvmlError) -> None:
        """Reopen NVML: the driver is gone or was replaced."""
        self._session.reopen(driver_loaded=True)
        raise collector_error(error, self._roots)

    def _access_error(self, sweep: Sweep | None) -> str:
        """Return the first value that the turn was refused, with the remedy; else ""."""
        session = self._session
        refusals = sweep.refusals() if sweep and sweep.is_refused else {}
        if session.mig_addresses:
            split = [
                address
                for row, address in enumerate(self._addresses)
                if address in session.mig_addresses
                and (address in refusals or not self._shows_whole_gpu(row))
            ]
            if split and not sees_all_mig_instances(self._roots):
                return f"GPU {split[0]} is split (MIG); {mig_monitor_line(self._roots)}"
        for address, function in refusals.items():
            remedy = "open /dev/nvidia[0-9]*" if "Handle" in function else "have CAP_SYS_ADMIN"
            return f"GPU {address}: no permission for {function}; let the agent {remedy}"
        return session.hidden

    def _shows_whole_gpu(self, row: int) -> bool:
        """Return whether the GPU's memory or ECC mode is readable: values of the whole GPU."""
        names = ("gpu.memory_used_bytes", "gpu.memory_total_bytes", "gpu.ecc_mode_state")
        return any(self._cells.number(name, row) is not None for name in names)
