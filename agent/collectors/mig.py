"""MIG devices of each GPU, with placement, memory and occupancy, every 10 s. (The mode itself is `gpu.mig_mode_state`.)

Looking up MIG devices is expensive (a dozen calls each), so it is done only if MIG mode is on. It is repeated each time,
because NVML reuses the handles of deleted instances.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...contract.block import Block
from ...contract.signal import Kind, Pace
from ...contract.signals import TABLES
from ...ext.nvml import Nvml, NvmlError
from ...ext.nvml_gpm import Gpm
from ...ext.nvml_parts import MigDevice, Parts
from ..clock import Clock, SystemClock
from ..collector import NoData
from ..events import EventPublisher
from ..hardware.files import Roots, device_key
from .gpu_fast import METRICS
from .gpu_parts import GpuPartsCollector, cleared_block

# ----------------------------------------------------------------------
# What share of a GPU instance of MIG was at work since the turn before, by GPM: Hopper and later
# have it.

#: Those of GPM's metrics that are reported an instance: the shares, as columns of `mig_10s`.
SHARES = tuple(metric for metric in METRICS if metric[2].endswith("_ratio"))
#: NVML_ERROR_NOT_SUPPORTED, and a driver that lacks the function: there is nothing to see.
LACKING = (3, 13)

#: Key of a MIG device, address of its GPU, number of its GPU instance.
InstanceKey = tuple[str, str, int]


class Occupancy:
    """The samples of some MIG devices, kept from turn to turn.

    A device that was not there the turn before, or failed in it, has no share yet: it starts over.
    """

    def __init__(self) -> None:
        self._instances: dict[InstanceKey, GpmInstance] = {}

    def retain(self, instance_keys: Collection[InstanceKey]) -> None:
        """Free the samples of all other devices: an instance recreated in their place is another."""
        for key in self._instances.keys() - set(instance_keys):
            self._instances.pop(key).close()

    def read(self, nvml: Nvml, key: InstanceKey, now_ns: int) -> dict[str, float]:
        """Return the shares of one device by column, without those that are missing. Raises NvmlError."""
        _, address, number = key
        try:
            instance = self._instances.get(key)
            if instance is None:
                instance = self._instances[key] = GpmInstance(nvml, address, number)
            return instance.read(now_ns)
        except NvmlError:  # asked for from the start at the next turn: by then it may be permitted
            if key in self._instances:
                self._instances.pop(key).close()
            raise

    def close(self) -> None:
        """Free all samples. Before the library is released."""
        self.retain(())


class GpmInstance:
    """Two samples of one GPU instance, used in turn."""

    def __init__(self, nvml: Nvml, address: str, number: int) -> None:
        """Raises NvmlError where the GPU cannot be opened now."""
        self._cells, self._valid = bytearray(8 * len(SHARES)), bytearray(len(SHARES))
        targets = [
            (metric, scale, most, self._cells, self._valid, column)
            for column, (metric, (scale, most), _) in enumerate(SHARES)
        ]
        handles = [nvml.handle_address(address)]
        self._gpm = Gpm(nvml, handles, targets, [number], addresses=[address])

    def read(self, now_ns: int) -> dict[str, float]:
        """Take a sample, and return the means since the one before; none at first. Raises NvmlError."""
        self._gpm.run(now_ns)
        error = self._gpm.error(0)
        if error is not None and error.code not in LACKING:
            raise error
        values = memoryview(self._cells).cast("d")
        # At most 1: drivers round 100.02 % up.
        return {
            name: min(1.0, values[column])
            for column, (_, _, name) in enumerate(SHARES)
            if self._valid[column]
        }

    def close(self) -> None:
        """Free the samples."""
        self._gpm.close()


#: Column of `mig_10s` or `mig_10s_changes` -> its value in a MigDevice; the others are of the occupancy.
DEVICE_FIELDS = {
    "gpu_instance_number": "gpu_instance",
    "compute_instance_number": "compute_instance",
    "profile_number": "profile",
    "placement_start_number": "placement_start",
    "placement_slices_count": "placement_slices",
    "gpu_slices_count": "gpu_slices",
    "compute_slices_count": "compute_slices",
    "multiprocessors_count": "multiprocessors",
    "ecc_sram_uncorrected_errors": "sram_uncorrected_errors",
    "memory_total_bytes": "memory_total_bytes",
    "memory_used_bytes": "memory_used_bytes",
}


class MigDevices(GpuPartsCollector):
    """MIG devices. A device that went has no row; that the devices are others asks for a new inventory."""

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("mig_10s", Pace.TEN_SECONDS, roots)
        self._clock = clock or SystemClock()
        self._occupancy = Occupancy()
        self._publisher: EventPublisher | None = None
        self._devices: dict[str, Block] = {}
        self._known: dict[str, frozenset[tuple[object, ...]]] = {}  # of each GPU, by its key

    def start(self, publisher: EventPublisher) -> None:
        """Take the publisher: MIG devices come and go without a restart."""
        self._publisher = publisher

    def close(self) -> None:
        """Nothing runs between turns."""

    def release(self) -> None:
        """Free the samples of instances too."""
        self._occupancy.close()
        super().release()

    def _read(self, parts: Parts) -> Sequence[Block]:
        modes = {a: mode for a, mode in self._query(parts.mig_mode).items() if mode is not None}
        if not modes:
            raise NoData("no GPU can be cut into MIG instances")
        on = [address for address, mode in modes.items() if mode[0]]
        most = self._query(parts.mig_devices_max, on)
        found = self._list_devices(parts, most)
        self._compare(modes, found)
        return self._fill(found, self._shares(found))

    def _list_devices(
        self, parts: Parts, most: Mapping[str, int | None]
    ) -> dict[str, list[MigDevice]]:
        """Return the MIG devices of the GPUs in MIG mode."""
        found = self._query(lambda address: parts.mig_devices(address, most[address] or 0), most)
        for address, devices in found.items():
            if any(device.refused for device in devices) and not self.access_error:
                self.access_error = f"GPU {address}: MIG: {self.permission_message()}"
        return found

    def _compare(
        self, modes: Mapping[str, tuple[int, int]], found: Mapping[str, list[MigDevice]]
    ) -> None:
        """Ask for a new inventory when a GPU's devices are not those of the turn before; what did not answer
        stands as it was."""
        for address, mode in modes.items():
            if mode[0] and address not in found:
                continue
            key = self._gpus[address]
            now = frozenset((d.uuid, *d[1:9]) for d in found.get(address, ()))
            if self._known.get(key, now) != now and self._publisher is not None:
                self._publisher.request_inventory(f"MIG devices of {key} are others")
            self._known[key] = now

    def _shares(self, found: Mapping[str, list[MigDevice]]) -> dict[str, dict[str, float]]:
        """Return what share of each device's GPU instance was at work, by its key; what could not be had is noted."""
        nvml = self._session.nvml
        assert nvml is not None
        instance_keys: list[InstanceKey] = [
            (_key(self._gpus[address], device), address, device.gpu_instance)
            for address, devices in found.items()
            for device in devices
            if device.gpu_instance is not None
        ]
        self._occupancy.retain(instance_keys)
        shares: dict[str, dict[str, float]] = {}
        errors: dict[str, NvmlError] = {}
        for key in instance_keys:
            try:
                shares[key[0]] = self._occupancy.read(nvml, key, self._clock.boottime_ns())
            except NvmlError as error:
                errors.setdefault(key[1], error)
        self._record_errors(errors)
        return shares

    def _fill(
        self, found: Mapping[str, list[MigDevice]], shares: Mapping[str, Mapping[str, float]]
    ) -> Sequence[Block]:
        by_key = {
            _key(self._gpus[address], device): device
            for address, devices in found.items()
            for device in devices
        }
        for table in ("mig_10s", "mig_10s_changes"):
            block = self._devices[table] = cleared_block(self._devices.get(table), table, by_key)
            for row, (key, device) in enumerate(by_key.items()):
                values: dict[str, Any] = {
                    c: getattr(device, name) for c, name in DEVICE_FIELDS.items()
                }
                values |= shares.get(key, {})
                for column, signal in enumerate(TABLES[table]):
                    put = block.put_float if signal.kind is Kind.GAUGE else block.put_int
                    put(column, row, values.get(signal.column))
        return tuple(self._devices.values())


def _key(gpu: str, device: MigDevice) -> str:
    """Return the device's UUID; where it does not tell it, its place in its GPU."""
    return device_key(device.uuid or f"{gpu}/gi{device.gpu_instance}/ci{device.compute_instance}")
