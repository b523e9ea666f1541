"""What share of a GPU instance of MIG was at work since the turn before, by GPM: Hopper and later have it."""

from __future__ import annotations

from collections.abc import Collection

from ...ext.nvml import Nvml, NvmlError
from ...ext.nvml_gpm import Gpm
from .gpu_fast import METRICS

#: Those of GPM's metrics that are told of an instance: the shares, as columns of `mig_10s`.
SHARES = tuple(metric for metric in METRICS if metric[2].endswith("_ratio"))
#: NVML_ERROR_NOT_SUPPORTED, and a driver that lacks the function: there is nothing to see.
LACKING = (3, 13)

#: Key of a MIG device, address of its GPU, number of its GPU instance.
Place = tuple[str, str, int]


class Occupancy:
    """The samples of some MIG devices, kept from turn to turn.

    A device that was not there the turn before, or failed in it, has no share yet: it begins anew.
    """

    def __init__(self) -> None:
        self._instances: dict[Place, Instance] = {}

    def keep(self, places: Collection[Place]) -> None:
        """Free the samples of all other devices: an instance made anew in their place is another."""
        for place in self._instances.keys() - set(places):
            self._instances.pop(place).close()

    def read(self, nvml: Nvml, place: Place, now_ns: int) -> dict[str, float]:
        """Return the shares of one device by column, without those that are missing. Raises NvmlError."""
        _, address, number = place
        try:
            instance = self._instances.get(place)
            if instance is None:
                instance = self._instances[place] = Instance(nvml, address, number)
            return instance.read(now_ns)
        except NvmlError:  # asked for from the start at the next turn: by then it may be permitted
            if place in self._instances:
                self._instances.pop(place).close()
            raise

    def close(self) -> None:
        """Free all samples. Before the library is let go of."""
        self.keep(())


class Instance:
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
