"""GPUs, through NVML: what changes within a second, what changes slowly at 10 s, what somebody sets at 60 s.

Each lane has a sweep of its own over all GPUs (`ext/nvml`): one pass, without the GIL, into blocks
that were made when the GPUs were found. A GPU is known by its UUID, and by its PCI address when it
fell off the bus before it could say who it is. What becomes of the GPUs is noticed and told by the
lane of 1 s, which also keeps back fields that have not proved what they are. What is as it was the
second before is not looked at in Python.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...ext import nvml as library
from ...ext.nvml import NvmlError, Rows
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ...fingerprints.nvml_fields import MUST_PROVE
from ...fingerprints.wire.telemetry_pb2 import HealthEvent
from ..clock import Clock, SystemClock
from ..hardware.nvml import driver_gpus, kernel_driver_version
from ..hardware.roots import Roots
from .gpu_cells import Cells
from .gpu_fields import FieldLook, FieldProofs
from .gpu_lane import GpuLane
from .gpu_lifecycle import Change, Lifecycle
from .gpu_open import OTHER_VERSION

#: Who is where is looked at this often; a GPU that comes back, at once.
IDENTITY_SECONDS = 60
#: Of these none falls while a GPU and its driver go on. The energy is a gauge: of doubles.
NEVER_FALL = {
    "gpu.energy_joules": 0,
    "gpu.violation_power_nanoseconds": library.ALL_BITS,
    "gpu.violation_thermal_nanoseconds": library.ALL_BITS,
}

log = logging.getLogger(__name__)


class GpuSecond(GpuLane):
    """What changes within a second: clocks and why they are held down, power, heat, use, ECC totals.

    Tells `gpu.lost` when a GPU falls off the bus and when it is back, once each, and asks for a new inventory
    whenever GPUs or the driver are not what they were; a GPU whose counters began anew has another epoch.
    """

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__(Pace.SECOND, roots)
        self._clock = clock or SystemClock()
        self._lifecycle = Lifecycle()
        self._proofs = FieldProofs(MUST_PROVE)
        self._proved_driver = ""
        self._in_proc: tuple[str, list[str]] = ("", [])
        self._turns_to_identity = IDENTITY_SECONDS
        self._states: Rows | None = None  # of who is lost
        self._counts: Rows | None = None  # of what never falls
        self._fields: FieldLook | None = None

    def warm(self) -> None:
        """Load NVML; open no GPU."""
        self._session.warm()

    def collect(self) -> Sequence[Block]:
        """As the other lanes; while library and driver are of different versions, the rows say that and no more."""
        try:
            return super().collect()
        except NvmlError as error:
            if error.code != OTHER_VERSION or not self._session.gpus:
                raise
            return self._updating(str(error))

    def _updating(self, words: str) -> Sequence[Block]:
        self._keys = [gpu.key for gpu in self._session.gpus]
        blocks = tuple(Block(table, self._keys) for table in ("gpu_1s", "gpu_1s_changes"))
        cells = Cells(blocks)
        for row, key in enumerate(self._keys):
            cells.put("gpu.driver_updating_state", row, 1)
            cells.put("gpu.counter_epoch_count", row, self._lifecycle.epochs.get(key))
        self.blind_words = words
        return blocks

    def let_go(self) -> None:
        self._states = self._counts = self._fields = None
        super().let_go()

    def _made(self) -> None:
        session = self._session
        self._in_proc, self._turns_to_identity = self._kernels_side(), IDENTITY_SECONDS
        if self._proved_driver != session.driver_version and session.nvml is not None:
            self._begin_proofs(session.driver_version)
        for gpu in session.gpus:
            known = library.account(gpu.address)
            self._lifecycle.recall(gpu.key, known.epoch, lost=known.lost)
        if session.nvml is not None:
            self._lifecycle.recall_driver(library.account("").uuid)
            library.remember("", uuid=session.driver_version)
            at = {gpu.key: gpu.address for gpu in session.gpus}
            words = self._lifecycle.found(at, session.driver_version, session.driver_loads)
            if words:
                self._renew_inventory("; ".join(words))
        self._watch()
        self._note_restarts()
        for row in range(len(self._keys)):
            self._put_epoch(row)
            self._cells.put("gpu.driver_updating_state", row, 0)

    def _begin_proofs(self, driver_version: str) -> None:
        """With another driver, and other ids, what was proved or contradicted is void; not in another process."""
        self._proofs, self._proved_driver = FieldProofs(MUST_PROVE), driver_version
        is_same = library.account("").uuid == driver_version
        for gpu in self._session.gpus:
            if is_same:
                self._proofs.recall(gpu.key, library.account(gpu.address).proofs)
            else:
                library.remember(gpu.address, proofs=0)

    def _watch(self) -> None:
        rows, place = len(self._keys), self._cells.place
        self._states = Rows(rows, [(*place("gpu.lost_state"), library.ALL_BITS)])
        never_fall = [(*place(name), mask) for name, mask in NEVER_FALL.items()]
        self._counts = Rows(rows, never_fall, self._addresses)  # goes on where it was
        self._fields = FieldLook(self._proofs, self._keys, self._addresses, self._cells)

    def _look(self) -> None:
        """Notice who is lost, back, reset or another; hide what is not proved."""
        assert self._states and self._counts and self._fields
        changed = self._states.changed()
        is_back = bool(changed) and self._look_who_is_lost(changed)
        self._turns_to_identity -= 1
        if (self._turns_to_identity <= 0 or is_back) and self._session.nvml is not None:
            self._turns_to_identity = IDENTITY_SECONDS
            self._look_who_is_where()
        for row in self._counts.fallen():
            self._renew_inventory(f"GPU {self._keys[row]} was reset: its counters began anew")
            self._restart([self._keys[row]])
        self._fields.look(self._clock.boottime_ns())
        if self._lifecycle.any_lost:
            self._session.ail()

    def _look_who_is_lost(self, rows: Sequence[int]) -> bool:
        """Tell who fell off the bus and who answers again; who cannot be asked is neither. True: somebody is back."""
        states = {self._keys[row]: self._cells.integer("gpu.lost_state", row) for row in rows}
        changes = self._lifecycle.looked_at(
            {k: bool(v) for k, v in states.items() if v is not None}
        )
        for change in changes:
            self._tell(change)
        back = any(change.state == "back" for change in changes)
        self._note_restarts()
        if back and not self._lifecycle.any_lost:
            self._session.is_well()
        return back

    def _restart(self, keys: Sequence[str]) -> None:
        """The counters of these GPUs began anew."""
        self._lifecycle.restart(keys)
        self._note_restarts()

    def _note_restarts(self) -> None:
        """Begin the proofs of those whose counters began anew again, and tell their epochs: to those who come after
        this process too."""
        anew = {key for key in self._lifecycle.epochs if self._lifecycle.began_anew(key)}
        self._proofs.restart(anew)
        for gpu in self._session.gpus:
            if gpu.key in anew:
                epoch, proofs = self._lifecycle.epochs[gpu.key], self._proofs.known(gpu.key)
                library.remember(gpu.address, epoch=epoch, proofs=proofs)
        for row, key in enumerate(self._keys):
            if key in anew and self._counts is not None:
                self._counts.forget(row)
                self._put_epoch(row)

    def _put_epoch(self, row: int) -> None:
        key = self._keys[row]
        self._cells.put("gpu.counter_epoch_count", row, self._lifecycle.epochs.get(key, 0))

    def _tell(self, change: Change) -> None:
        words = "fell off the bus" if change.state == "lost" else "answers again"
        self._renew_inventory(f"GPU {change.key} at {change.address} {words}")
        if self._teller:  # else nobody is to hear of it from this process
            library.remember(change.address, lost=change.state == "lost")
            self._teller.tell(
                HealthEvent(
                    device_kind="gpu",
                    device=change.address,
                    name="gpu.lost",
                    message=f"GPU {change.key} at {change.address} {words}",
                    attributes={"state": change.state, "uuid": change.key},
                )
            )

    def _look_who_is_where(self) -> None:
        """Compare each GPU's UUID, the kernel's list of GPUs and its driver with what they were.

        Where they differ this turn's values are not known to be whose they seem, and are thrown away.
        """
        for gpu in self._session.gpus:
            uuid = "" if gpu.spared else self._uuid(gpu.address)
            if uuid and gpu.key.startswith("GPU-") and uuid != gpu.key:
                self._open_again(
                    f"GPU {uuid} is where {gpu.key} was, at {gpu.address}", driver_loaded=False
                )
        version, listed = self._kernels_side()
        if version != self._in_proc[0]:
            self._open_again(f"the kernel has driver {version or 'none'}", driver_loaded=True)
        if listed != self._in_proc[1]:
            self._open_again("the driver lists other GPUs than before", driver_loaded=False)

    def _uuid(self, address: str) -> str:
        assert self._session.nvml is not None
        try:
            return self._session.nvml.uuid(address)
        except NvmlError:
            return ""  # the sweep says what is wrong with it

    def _open_again(self, why: str, *, driver_loaded: bool) -> None:
        self._session.open_anew(driver_loaded=driver_loaded)
        raise RuntimeError(f"{why}: NVML is opened anew")

    def _kernels_side(self) -> tuple[str, list[str]]:
        return kernel_driver_version(self._roots.proc), driver_gpus(self._roots.proc)

    def _renew_inventory(self, why: str) -> None:
        log.info("%s", why, extra={"cause": "gpu.lifecycle"})
        if self._teller:
            self._teller.renew_inventory(why)


class GpuTenSeconds(GpuLane):
    """What changes slowly: limits, ECC counts by location, row remapping, repairs, the PCIe link, the MIG mode; and
    how many calls all that is known of a GPU has cost."""

    def __init__(self, roots: Roots) -> None:
        super().__init__(Pace.TEN_SECONDS, roots)
        self._modes: dict[str, int] = {}
        self._capped: set[str] = set()  # addresses

    def _look(self) -> None:
        """Note which GPUs are split, for all lanes; a mode that changed makes another host."""
        modes = {
            key: self._cells.integer("gpu.mig_mode_state", row)
            for row, key in enumerate(self._keys)
        }
        addresses = zip(self._addresses, self._keys, strict=True)
        self._session.split = frozenset(address for address, key in addresses if modes[key])
        known = {key: mode for key, mode in modes.items() if mode is not None}
        changed = [key for key, mode in known.items() if self._modes.get(key, mode) != mode]
        self._modes |= known
        if changed and self._teller:
            self._teller.renew_inventory(f"MIG was switched on or off at GPU {', '.join(changed)}")
        self._count_calls()

    def _count_calls(self) -> None:
        for row, address in enumerate(self._addresses):
            account = library.account(address)
            self._cells.put("gpu.driver_calls_count", row, account.calls)
            self._cells.put("gpu.driver_calls_left_out_count", row, account.left_out)
            if account.left_out and address not in self._capped:
                self._capped.add(address)
                self._tell_capped(address, self._keys[row])

    def _tell_capped(self, address: str, key: str) -> None:
        words = (
            f"GPU {key}: over {library.CALLS_PER_SECOND_MAX} calls a second, the rest is left out"
        )
        log.warning("%s", words, extra={"cause": "gpu.calls"})
        if self._teller:
            self._teller.tell(
                HealthEvent(
                    device_kind="gpu",
                    device=key,
                    name="gpu.driver_calls_capped",
                    message=words,
                    attributes={"pci_address": address},
                )
            )


class GpuMinute(GpuLane):
    """What somebody sets, and what the GPU was made with: modes, maximal clocks, limits of power and heat."""

    def __init__(self, roots: Roots) -> None:
        super().__init__(Pace.MINUTE, roots)
