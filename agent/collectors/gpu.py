"""GPUs, through NVML: what changes within a second, what changes slowly at 10 s, what somebody sets at 60 s.

Each lane has a sweep of its own over all GPUs (`ext/nvml`): one pass, without the GIL, into blocks
that were made when the GPUs were found. A GPU is known by its UUID, and by its PCI address when it
fell off the bus before it could say who it is. What becomes of the GPUs is noticed and told by the
lane of 1 s, which also keeps back fields that have not proved what they are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...ext.nvml import NvmlError
from ...fingerprints.catalogue import Pace
from ...fingerprints.nvml_fields import MUST_PROVE
from ...fingerprints.wire.telemetry_pb2 import HealthEvent
from ..clock import Clock, SystemClock
from ..hardware.nvml import driver_gpus, kernel_driver_version
from ..hardware.roots import Roots
from .gpu_fields import FieldProofs
from .gpu_lane import GpuLane
from .gpu_lifecycle import Change, Lifecycle

#: Who is where is looked at this often; a GPU that comes back, at once.
IDENTITY_SECONDS = 60
#: While a GPU is lost NVML is opened anew, without which it could not come back: after this long, then ever
#: more rarely, for it disturbs the GPUs that are well.
REOPEN_SECONDS, REOPEN_SECONDS_MAX = 60, 600
#: Of these none falls while a GPU and its driver go on.
NEVER_FALL = (
    "gpu.energy_joules",
    "gpu.violation_power_nanoseconds",
    "gpu.violation_thermal_nanoseconds",
)

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
        self._driver_version = ""
        self._addresses: Sequence[str] = ()
        self._in_proc: tuple[str, list[str]] = ("", [])
        self._turns_to_identity, self._turns_to_reopen = IDENTITY_SECONDS, REOPEN_SECONDS
        self._reopen_seconds = REOPEN_SECONDS

    def release(self) -> bool:
        """As ever; and what was released for was a reset or another driver: all counters began anew."""
        self._lifecycle.restart(self._lifecycle.epochs)
        return super().release()

    def _opened(self, addresses: Sequence[str], driver_version: str) -> None:
        self._addresses, self._in_proc = addresses, self._kernels_side()
        self._turns_to_identity = IDENTITY_SECONDS
        if (
            self._driver_version != driver_version
        ):  # other ids: what was proved or contradicted is void
            self._proofs, self._driver_version = FieldProofs(MUST_PROVE), driver_version
        at = dict(zip(self._keys, addresses, strict=True))
        words = self._lifecycle.found(at, driver_version, self._session.driver_loads)
        if words:
            self._renew_inventory("; ".join(words))

    def _look(self) -> None:
        """Notice who is lost, back, reset or another; hide what is not proved."""
        changes = self._lifecycle.looked_at(self._lost())
        for change in changes:
            self._tell(change)
        self._turns_to_identity -= 1
        if self._turns_to_identity <= 0 or any(change.state == "back" for change in changes):
            self._turns_to_identity = IDENTITY_SECONDS
            self._look_who_is_where()
        for row, key in enumerate(self._keys):
            if self._lifecycle.counted(key, [self._cells.number(name, row) for name in NEVER_FALL]):
                self._renew_inventory(f"GPU {key} was reset: its counters began anew")
            if self._lifecycle.began_anew(key):
                self._proofs.restart([key])
            self._cells.put("gpu.counter_epoch_count", row, self._lifecycle.epochs[key])
        self._proofs.judge(self._clock.boottime_ns(), self._keys, self._cells)
        for words in self._proofs.new_contradictions():
            log.warning("%s", words, extra={"cause": "gpu.field"})
        self._open_anew_while_lost()

    def _lost(self) -> dict[str, bool]:
        """Return who is lost and who answers; who cannot be asked is neither."""
        states = {
            key: self._cells.integer("gpu.lost_state", row) for row, key in enumerate(self._keys)
        }
        return {key: bool(state) for key, state in states.items() if state is not None}

    def _tell(self, change: Change) -> None:
        words = "fell off the bus" if change.state == "lost" else "answers again"
        self._renew_inventory(f"GPU {change.key} at {change.address} {words}")
        if self._teller:
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
        assert self._nvml is not None
        for address, key in zip(self._addresses, self._keys, strict=True):
            try:
                uuid = self._nvml.device(address).uuid
            except NvmlError:
                continue  # the sweep says what is wrong with it
            if uuid and key.startswith("GPU-") and uuid != key:
                self._open_again(
                    f"GPU {uuid} is where {key} was, at {address}", driver_loaded=False
                )
        version, listed = self._kernels_side()
        if version != self._in_proc[0]:
            self._open_again(f"the kernel has driver {version or 'none'}", driver_loaded=True)
        if listed != self._in_proc[1]:
            self._open_again("the driver lists other GPUs than before", driver_loaded=False)

    def _open_again(self, why: str, *, driver_loaded: bool) -> None:
        self._session.open_anew(self._seat, driver_loaded=driver_loaded)
        raise RuntimeError(f"{why}: NVML is opened anew")

    def _open_anew_while_lost(self) -> None:
        """After this turn, now and then: NVML does not find again what it has lost."""
        if not self._lifecycle.any_lost:
            self._reopen_seconds = REOPEN_SECONDS
            self._turns_to_reopen = REOPEN_SECONDS
            return
        self._turns_to_reopen -= 1
        if self._turns_to_reopen <= 0:
            self._reopen_seconds = min(2 * self._reopen_seconds, REOPEN_SECONDS_MAX)
            self._turns_to_reopen = self._reopen_seconds
            self._session.open_anew(self._seat, driver_loaded=False)

    def _kernels_side(self) -> tuple[str, list[str]]:
        return kernel_driver_version(self._roots.proc), driver_gpus(self._roots.proc)

    def _renew_inventory(self, why: str) -> None:
        log.info("%s", why, extra={"cause": "gpu.lifecycle"})
        if self._teller:
            self._teller.renew_inventory(why)


class GpuTenSeconds(GpuLane):
    """What changes slowly: limits, ECC counts by location, row remapping, repairs, the PCIe link, the MIG mode."""

    def __init__(self, roots: Roots) -> None:
        super().__init__(Pace.TEN_SECONDS, roots)
        self._modes: dict[str, int] = {}

    def _look(self) -> None:
        """Note which GPUs are split, for all lanes; a mode that changed makes another host."""
        assert self._sweep is not None
        modes = {
            key: self._cells.integer("gpu.mig_mode_state", row)
            for row, key in enumerate(self._keys)
        }
        addresses = zip(self._sweep.addresses, self._keys, strict=True)
        self._session.split = frozenset(address for address, key in addresses if modes[key])
        known = {key: mode for key, mode in modes.items() if mode is not None}
        changed = [key for key, mode in known.items() if self._modes.get(key, mode) != mode]
        self._modes |= known
        if changed and self._teller:
            self._teller.renew_inventory(f"MIG was switched on or off at GPU {', '.join(changed)}")


class GpuMinute(GpuLane):
    """What somebody sets, and what the GPU was made with: modes, maximal clocks, limits of power and heat."""

    def __init__(self, roots: Roots) -> None:
        super().__init__(Pace.MINUTE, roots)
