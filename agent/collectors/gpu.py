"""GPUs, through NVML, in three groups: read every second, every 10 s and every 60 s.

Each lane sweeps all GPUs (`ext/nvml`) in one pass, without the GIL, into blocks that were created
when the GPUs were listed. A GPU's name is its UUID, or its PCI address if it fell off the bus
before its UUID was read. The 1 s lane reports lost and returned GPUs, and withholds fields that are
not verified yet. Values that have not changed since the last second are skipped without running
Python code.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...contract.block import Block
from ...contract.nvml_fields import NEEDS_VALIDATION
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...ext import nvml as library
from ...ext.nvml import NvmlError, Rows
from ..clock import Clock, SystemClock
from ..collector import AccessDenied
from ..hardware.files import Roots
from ..hardware.nvidia import device_rules_deny, driver_gpus, kernel_driver_version
from .block_writer import Cells
from .gpu_field_check import FieldFilter, FieldValidators
from .gpu_lifecycle import IDENTITY_SECONDS, NEVER_FALL, GpuLifecycle, GpuStateChange
from .nvml_collector import NvmlCollector
from .nvml_open import DEVICES_CLOSED, OTHER_VERSION, REFUSED

log = logging.getLogger(__name__)


class GpuSecond(NvmlCollector):
    """Signals that change within a second: clocks, throttle reasons, power, heat, use, ECC totals.

    Reports `gpu.lost` once when a GPU falls off the bus and once when it is back. Requests a new
    inventory when the GPUs or the driver change. A GPU whose counters restarted gets a new epoch.
    """

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("gpu_1s", roots)
        self._clock = clock or SystemClock()
        self._lifecycle = GpuLifecycle()
        self._validators = FieldValidators(NEEDS_VALIDATION)
        self._validated_driver = ""
        self._last_kernel_state: tuple[str, list[str]] = ("", [])
        self._turns_to_identity = IDENTITY_SECONDS
        self._states: Rows | None = None  # lost GPUs
        self._error_codes: Rows | None = None  # GPUs that answer no call
        self._any_error_code = False
        self._counts: Rows | None = None  # counters that never fall
        self._field_filter: FieldFilter | None = None

    def warm_up(self) -> None:
        """Load NVML; open no GPU."""
        self._session.warm_up()

    def collect(self) -> Sequence[Block]:
        """Read all GPUs; if library and driver differ in version, the rows report only that."""
        try:
            return super().collect()
        except NvmlError as error:
            if error.code != OTHER_VERSION or not self._session.gpus:
                raise
            return self._driver_updating_blocks(str(error))

    def _driver_updating_blocks(self, message: str) -> Sequence[Block]:
        self._keys = [gpu.key for gpu in self._session.gpus]
        blocks = tuple(Block(table, self._keys) for table in ("gpu_1s", "gpu_1s_changes"))
        cells = Cells(blocks)
        for row, key in enumerate(self._keys):
            cells.put("gpu.driver_updating_state", row, 1)
            cells.put("gpu.counter_epoch_count", row, self._lifecycle.epochs.get(key))
        self.access_error = message
        return blocks

    def release(self) -> None:
        self._states = self._error_codes = self._counts = self._field_filter = None
        super().release()

    def _on_open(self) -> None:
        session = self._session
        self._last_kernel_state, self._turns_to_identity = self._kernel_state(), IDENTITY_SECONDS
        if self._validated_driver != session.driver_version and session.nvml is not None:
            self._start_validation(session.driver_version)
        for gpu in session.gpus:
            known = library.account(gpu.address)
            self._lifecycle.recall(gpu.key, known.epoch, lost=known.lost)
        if session.nvml is not None:
            self._lifecycle.recall_driver(library.account("").uuid)
            library.remember("", uuid=session.driver_version)
            addresses = {gpu.key: gpu.address for gpu in session.gpus}
            changes = self._lifecycle.update(
                addresses, session.driver_version, session.driver_loads
            )
            if changes:
                self._request_inventory("; ".join(changes))
        self._watch()
        self._record_restarts()
        for row in range(len(self._keys)):
            self._put_epoch(row)
            self._cells.put("gpu.driver_updating_state", row, 0)

    def _start_validation(self, driver_version: str) -> None:
        """Discard validation results of another driver, but keep those of another process."""
        self._validators, self._validated_driver = FieldValidators(NEEDS_VALIDATION), driver_version
        is_same = library.account("").uuid == driver_version
        for gpu in self._session.gpus:
            if is_same:
                self._validators.recall(gpu.key, library.account(gpu.address).proofs)
            else:
                library.remember(gpu.address, proofs=0)

    def _watch(self) -> None:
        rows, column_of = len(self._keys), self._cells.column_of
        self._states = Rows(rows, [(*column_of("gpu.lost_state"), library.ALL_BITS)])
        self._error_codes = Rows(rows, [(*column_of("gpu.error_code_state"), library.ALL_BITS)])
        never_fall = [(*column_of(name), mask) for name, mask in NEVER_FALL.items()]
        self._counts = Rows(rows, never_fall, self._addresses)  # continues from the earlier counts
        self._field_filter = FieldFilter(self._validators, self._keys, self._addresses, self._cells)

    def _after_sweep(self) -> None:
        """Detect lost, returned, reset and replaced GPUs; hide fields that are not validated."""
        assert self._states and self._error_codes and self._counts and self._field_filter
        changed = self._states.changed()
        is_back = bool(changed) and self._check_lost(changed)
        self._turns_to_identity -= 1
        if (self._turns_to_identity <= 0 or is_back) and self._session.nvml is not None:
            self._turns_to_identity = IDENTITY_SECONDS
            self._check_identity()
        for row in self._counts.fallen():
            self._request_inventory(f"GPU {self._keys[row]} was reset: its counters restarted")
            self._restart_counters([self._keys[row]])
        self._field_filter.update(self._clock.boottime_ns())
        if self._error_codes.changed():
            self._check_error_codes()
        if self._lifecycle.any_lost or self._any_error_code:
            self._session.schedule_reopen()

    def _check_lost(self, rows: Sequence[int]) -> bool:
        """Report GPUs that were lost or are back; return whether a GPU is back.

        A GPU of unknown state is left out.
        """
        states = {self._keys[row]: self._cells.integer("gpu.lost_state", row) for row in rows}
        changes = self._lifecycle.update_lost(
            {k: bool(v) for k, v in states.items() if v is not None}
        )
        for change in changes:
            self._publish(change)
        back = any(change.state == "back" for change in changes)
        self._record_restarts()
        if back and not self._lifecycle.any_lost and not self._any_error_code:
            self._session.cancel_reopen()
        return back

    def _check_error_codes(self) -> None:
        """Note whether a GPU answers no call.

        Raises AccessDenied if this container may not open the devices, for which NVML returns the
        same code (999).
        """
        codes = {
            self._cells.integer("gpu.error_code_state", row) for row in range(len(self._keys))
        } - {None, 0}
        if codes & REFUSED and device_rules_deny(self._roots.dev):
            self._session.close()
            raise AccessDenied(DEVICES_CLOSED)
        if self._any_error_code and not codes and not self._lifecycle.any_lost:
            self._session.cancel_reopen()
        self._any_error_code = bool(codes)

    def _restart_counters(self, keys: Sequence[str]) -> None:
        """Raise the epochs of these GPUs: their counters restarted."""
        self._lifecycle.restart(keys)
        self._record_restarts()

    def _record_restarts(self) -> None:
        """Restart the validation of GPUs whose counters restarted.

        Their epochs are stored, also for later processes.
        """
        restarted = {key for key in self._lifecycle.epochs if self._lifecycle.take_restarted(key)}
        self._validators.restart(restarted)
        for gpu in self._session.gpus:
            if gpu.key in restarted:
                epoch = self._lifecycle.epochs[gpu.key]
                state_bits = self._validators.state_bits(gpu.key)
                library.remember(gpu.address, epoch=epoch, proofs=state_bits)
        for row, key in enumerate(self._keys):
            if key in restarted and self._counts is not None:
                self._counts.forget(row)
                self._put_epoch(row)

    def _put_epoch(self, row: int) -> None:
        key = self._keys[row]
        self._cells.put("gpu.counter_epoch_count", row, self._lifecycle.epochs.get(key, 0))

    def _publish(self, change: GpuStateChange) -> None:
        message = "fell off the bus" if change.state == "lost" else "answers again"
        self._request_inventory(f"GPU {change.key} at {change.address} {message}")
        if self._publisher:  # else this process cannot report it
            library.remember(change.address, lost=change.state == "lost")
            self._publisher.publish(
                HealthEvent(
                    device_kind="gpu",
                    device=change.address,
                    name="gpu.lost",
                    message=f"GPU {change.key} at {change.address} {message}",
                    attributes={"state": change.state, "uuid": change.key},
                )
            )

    def _check_identity(self) -> None:
        """Compare each GPU's UUID, the kernel's list of GPUs and its driver with the earlier ones.

        After a difference this turn's values may be of other GPUs: reopen NVML and raise.
        """
        for gpu in self._session.gpus:
            uuid = "" if gpu.excluded else self._uuid(gpu.address)
            if uuid and gpu.key.startswith("GPU-") and uuid != gpu.key:
                self._reopen(
                    f"GPU {uuid} is where {gpu.key} was, at {gpu.address}", driver_loaded=False
                )
        version, listed = self._kernel_state()
        if version != self._last_kernel_state[0]:
            self._reopen(f"the kernel has driver {version or 'none'}", driver_loaded=True)
        if listed != self._last_kernel_state[1]:
            self._reopen("the driver lists different GPUs than before", driver_loaded=False)

    def _uuid(self, address: str) -> str:
        assert self._session.nvml is not None
        try:
            return self._session.nvml.uuid(address)
        except NvmlError:
            return ""  # the sweep reports the error

    def _reopen(self, reason: str, *, driver_loaded: bool) -> None:
        self._session.reopen(driver_loaded=driver_loaded)
        raise RuntimeError(f"{reason}: reopening NVML")

    def _kernel_state(self) -> tuple[str, list[str]]:
        return kernel_driver_version(self._roots.proc), driver_gpus(self._roots.proc)

    def _request_inventory(self, reason: str) -> None:
        log.info("%s", reason, extra={"cause": "gpu.lifecycle"})
        if self._publisher:
            self._publisher.request_inventory(reason)


class GpuTenSeconds(NvmlCollector):
    """Signals that change slowly: limits, ECC by location, row remaps, PCIe, MIG, driver calls."""

    def __init__(self, roots: Roots) -> None:
        super().__init__("gpu_10s", roots)
        self._modes: dict[str, int] = {}
        self._capped: set[str] = set()  # addresses

    def _after_sweep(self) -> None:
        """Store the split GPUs for all lanes; request an inventory if a MIG mode changed."""
        modes = {
            key: self._cells.integer("gpu.mig_mode_state", row)
            for row, key in enumerate(self._keys)
        }
        addresses = zip(self._addresses, self._keys, strict=True)
        self._session.mig_addresses = frozenset(address for address, key in addresses if modes[key])
        known = {key: mode for key, mode in modes.items() if mode is not None}
        changed = [key for key, mode in known.items() if self._modes.get(key, mode) != mode]
        self._modes |= known
        if changed and self._publisher:
            self._publisher.request_inventory(
                f"MIG was switched on or off at GPU {', '.join(changed)}"
            )
        self._count_calls()

    def _count_calls(self) -> None:
        for row, address in enumerate(self._addresses):
            account = library.account(address)
            self._cells.put("gpu.driver_calls_count", row, account.calls)
            self._cells.put("gpu.driver_calls_left_out_count", row, account.left_out)
            if account.left_out and address not in self._capped:
                self._capped.add(address)
                self._publish_capped(address, self._keys[row])

    def _publish_capped(self, address: str, key: str) -> None:
        message = f"GPU {key}: over {library.CALLS_PER_SECOND_MAX} calls a second, further calls are left out"
        log.warning("%s", message, extra={"cause": "gpu.calls"})
        if self._publisher:
            self._publisher.publish(
                HealthEvent(
                    device_kind="gpu",
                    device=key,
                    name="gpu.driver_calls_capped",
                    message=message,
                    attributes={"pci_address": address},
                )
            )


class GpuMinute(NvmlCollector):
    """Settings and properties: modes, maximum clocks, limits of power and heat."""

    def __init__(self, roots: Roots) -> None:
        super().__init__("gpu_60s", roots)
