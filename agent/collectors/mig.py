"""MIG devices of each GPU, with placement, memory and occupancy, every 10 s.

Looking up MIG devices is expensive (a dozen calls each), so it is done only if MIG mode is on. It is repeated each time,
because NVML reuses the handles of deleted instances.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...contract.block import Block
from ...contract.signal import Kind
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

#: GPM's metrics that are reported per instance: the shares, as columns of `mig_10s`.
SHARES = tuple(metric for metric in METRICS if metric[2].endswith("_ratio"))
#: NVML_ERROR_NOT_SUPPORTED, and NVML_ERROR_FUNCTION_NOT_FOUND of an old driver: there is no GPM.
LACKING = (3, 13)

#: (key of a MIG device, address of its GPU, number of its GPU instance).
InstanceKey = tuple[str, str, int]

#: Column of `mig_10s` or `mig_10s_changes` -> attribute of MigDevice; the other columns are shares.
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


class Occupancy:
    """GPM shares of MIG devices (Hopper and later), from samples kept between turns.

    A device that is new, or failed in the turn before, has no share yet.
    """

    def __init__(self) -> None:
        self._instances: dict[InstanceKey, GpmInstance] = {}

    def retain(self, instance_keys: Collection[InstanceKey]) -> None:
        """Free the samples of other devices: a recreated instance in their place is new."""
        for key in self._instances.keys() - set(instance_keys):
            self._instances.pop(key).close()

    def read(self, nvml: Nvml, key: InstanceKey, now_ns: int) -> dict[str, float]:
        """Return the known shares of a device by column. Raises NvmlError."""
        _, address, number = key
        try:
            instance = self._instances.get(key)
            if instance is None:
                instance = self._instances[key] = GpmInstance(nvml, address, number)
            return instance.read(now_ns)
        except NvmlError:  # recreated at the next turn: by then it may be permitted
            if key in self._instances:
                self._instances.pop(key).close()
            raise

    def close(self) -> None:
        """Free all samples, before the library is released."""
        self.retain(())


class GpmInstance:
    """Two samples of one GPU instance, used in turn."""

    def __init__(self, nvml: Nvml, address: str, number: int) -> None:
        """Raises NvmlError if the GPU cannot be opened now."""
        self._cells, self._valid = bytearray(8 * len(SHARES)), bytearray(len(SHARES))
        targets = [
            (metric, scale, maximum, self._cells, self._valid, column)
            for column, (metric, (scale, maximum), _) in enumerate(SHARES)
        ]
        handles = [nvml.handle_address(address)]
        self._gpm = Gpm(nvml, handles, targets, [number], addresses=[address])

    def read(self, now_ns: int) -> dict[str, float]:
        """Take a sample; return the means since the previous sample. Raises NvmlError.

        The first result is empty.
        """
        self._gpm.run(now_ns)
        error = self._gpm.error(0)
        if error is not None and error.code not in LACKING:
            raise error
        values = memoryview(self._cells).cast("d")
        # Drivers round up to 100.02 %.
        return {
            name: min(1.0, values[column])
            for column, (_, _, name) in enumerate(SHARES)
            if self._valid[column]
        }

    def close(self) -> None:
        self._gpm.close()


class MigDevices(GpuPartsCollector):
    """MIG devices. A removed device has no row; a changed list requests a new inventory."""

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("mig_10s", roots)
        self._clock = clock or SystemClock()
        self._occupancy = Occupancy()
        self._publisher: EventPublisher | None = None
        self._devices: dict[str, Block] = {}
        self._known: dict[str, frozenset[tuple[object, ...]]] = {}  # GPU's key -> its devices

    def start(self, publisher: EventPublisher) -> None:
        """Take the publisher: MIG devices come and go without a restart."""
        self._publisher = publisher

    def close(self) -> None:
        """Do nothing: no thread was started."""

    def release(self) -> None:
        """Free the samples of instances too."""
        self._occupancy.close()
        super().release()

    def _read(self, parts: Parts) -> Sequence[Block]:
        modes = {a: mode for a, mode in self._query(parts.mig_mode).items() if mode is not None}
        if not modes:
            raise NoData("no GPU can be cut into MIG instances")
        on = [address for address, mode in modes.items() if mode[0]]
        devices_max = self._query(parts.mig_devices_max, on)
        devices = self._list_devices(parts, devices_max)
        self._compare(modes, devices)
        return self._fill(devices, self._shares(devices))

    def _list_devices(
        self, parts: Parts, maxima: Mapping[str, int | None]
    ) -> dict[str, list[MigDevice]]:
        devices_by_gpu = self._query(
            lambda address: parts.mig_devices(address, maxima[address] or 0), maxima
        )
        for address, devices in devices_by_gpu.items():
            if any(device.refused for device in devices) and not self.access_error:
                self.access_error = f"GPU {address}: MIG: {self.permission_message()}"
        return devices_by_gpu

    def _compare(
        self, modes: Mapping[str, tuple[int, int]], devices_by_gpu: Mapping[str, list[MigDevice]]
    ) -> None:
        """Request a new inventory when a GPU's devices changed; a silent GPU keeps its devices."""
        for address, mode in modes.items():
            if mode[0] and address not in devices_by_gpu:
                continue
            key = self._gpus[address]
            now = frozenset((d.uuid, *d[1:9]) for d in devices_by_gpu.get(address, ()))
            if self._known.get(key, now) != now and self._publisher is not None:
                self._publisher.request_inventory(f"MIG devices of {key} are others")
            self._known[key] = now

    def _shares(self, devices_by_gpu: Mapping[str, list[MigDevice]]) -> dict[str, dict[str, float]]:
        """Return the shares of each device's GPU instance by device key; record errors."""
        nvml = self._session.nvml
        assert nvml is not None
        instance_keys: list[InstanceKey] = [
            (_key(self._gpus[address], device), address, device.gpu_instance)
            for address, devices in devices_by_gpu.items()
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
        self,
        devices_by_gpu: Mapping[str, list[MigDevice]],
        shares: Mapping[str, Mapping[str, float]],
    ) -> Sequence[Block]:
        by_key = {
            _key(self._gpus[address], device): device
            for address, devices in devices_by_gpu.items()
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
    """Return the device's UUID, or its position in its GPU if the UUID is unknown."""
    return device_key(device.uuid or f"{gpu}/gi{device.gpu_instance}/ci{device.compute_instance}")
