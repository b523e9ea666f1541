"""MIG devices of each GPU, with placement, memory and occupancy, every 10 s. (The mode itself is `gpu.mig_mode_state`.)

To look MIG devices up is dear (a dozen calls each): it is done only where the mode is on, and afresh each time, for
NVML's handles of instances that are gone are dealt to others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...ext.nvml import NvmlError
from ...ext.nvml_parts import MigDevice, Parts
from ...fingerprints.block import Block
from ...fingerprints.catalogue import TABLES, Kind, Pace
from ..clock import Clock, SystemClock
from ..hardware.files import device_key
from ..hardware.roots import Roots
from ..listening import Teller
from ..turn import NoData
from .gpu_parts import PartsLane, remade
from .mig_occupancy import Occupancy, Place

#: Column of `mig_10s` or `mig_10s_changes` -> its value in a MigDevice; the others are of the occupancy.
VALUES = {
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


class Mig(PartsLane):
    """MIG devices. A device that went has no row; that the devices are others asks for a new inventory."""

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("mig_10s", Pace.TEN_SECONDS, roots)
        self._clock = clock or SystemClock()
        self._occupancy = Occupancy()
        self._teller: Teller | None = None
        self._devices: dict[str, Block] = {}
        self._known: dict[str, frozenset[tuple[object, ...]]] = {}  # of each GPU, by its key

    def listen(self, teller: Teller) -> None:
        """Take the teller: MIG devices come and go without a restart."""
        self._teller = teller

    def close(self) -> None:
        """Nothing runs between turns."""

    def let_go(self) -> None:
        """Free the samples of instances too."""
        self._occupancy.close()
        super().let_go()

    def _read(self, parts: Parts) -> Sequence[Block]:
        modes = {a: mode for a, mode in self._ask(parts.mig_mode).items() if mode is not None}
        if not modes:
            raise NoData("no GPU can be cut into MIG instances")
        on = [address for address, mode in modes.items() if mode[0]]
        most = self._ask(parts.mig_devices_max, on)
        found = self._look_up(parts, most)
        self._compare(modes, found)
        return self._fill(found, self._shares(found))

    def _look_up(self, parts: Parts, most: Mapping[str, int | None]) -> dict[str, list[MigDevice]]:
        """Return the MIG devices of the GPUs in MIG mode."""
        found = self._ask(lambda address: parts.mig_devices(address, most[address] or 0), most)
        for address, devices in found.items():
            if any(device.refused for device in devices) and not self.blind_words:
                self.blind_words = f"GPU {address}: MIG: {self.refused_words()}"
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
            if self._known.get(key, now) != now and self._teller is not None:
                self._teller.renew_inventory(f"MIG devices of {key} are others")
            self._known[key] = now

    def _shares(self, found: Mapping[str, list[MigDevice]]) -> dict[str, dict[str, float]]:
        """Return what share of each device's GPU instance was at work, by its key; what could not be had is noted."""
        nvml = self._session.nvml
        assert nvml is not None
        places: list[Place] = [
            (_key(self._gpus[address], device), address, device.gpu_instance)
            for address, devices in found.items()
            for device in devices
            if device.gpu_instance is not None
        ]
        self._occupancy.keep(places)
        shares: dict[str, dict[str, float]] = {}
        errors: dict[str, NvmlError] = {}
        for place in places:
            try:
                shares[place[0]] = self._occupancy.read(nvml, place, self._clock.boottime_ns())
            except NvmlError as error:
                errors.setdefault(place[1], error)
        self._note(errors)
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
            block = self._devices[table] = remade(self._devices.get(table), table, by_key)
            for row, (key, device) in enumerate(by_key.items()):
                said: dict[str, Any] = {c: getattr(device, name) for c, name in VALUES.items()}
                said |= shares.get(key, {})
                for column, signal in enumerate(TABLES[table]):
                    put = block.put_float if signal.kind is Kind.GAUGE else block.put_int
                    put(column, row, said.get(signal.column))
        return tuple(self._devices.values())


def _key(gpu: str, device: MigDevice) -> str:
    """Return the device's UUID; where it does not tell it, its place in its GPU."""
    return device_key(device.uuid or f"{gpu}/gi{device.gpu_instance}/ci{device.compute_instance}")
