"""When each GPU was last seen to be reset, in the boot that its host runs in."""

from __future__ import annotations

import numpy as np

from .activity import Activity
from .arrays import Codes, Times, grown
from .tables import DeviceTable

#: Counters that a reset sets to zero, in the table of the GPUs' errors.
VOLATILE = ("ecc_corrected_volatile_errors", "ecc_uncorrected_volatile_errors")


class GpuResets:
    """A GPU was reset when its agent says so, or when its energy or its volatile errors fell.

    A boot sets all of them to zero as well, and is none: it ends more than a reset does.
    """

    def __init__(self, activity: Activity, second: DeviceTable, changes: DeviceTable) -> None:
        self._activity, self._second, self._changes = activity, second, changes
        self._devices = second.devices
        self._count: Codes = np.zeros(self._devices.capacity, dtype=np.int32)
        self._boot: Codes = np.zeros(self._devices.capacity, dtype=np.int32)
        self._at_ns: Times = np.zeros(self._devices.capacity, dtype=np.int64)

    def _fit(self) -> None:
        if self._boot.shape[0] < self._devices.capacity:
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, name, grown(array, self._devices.capacity))

    def advance(self, boottime_ns: Times) -> None:
        """Note which GPUs were reset since the last call; *boottime_ns* of each host is its last frame's."""
        self._fit()
        rows = slice(0, self._devices.count)
        counts = self._activity.resets + self._devices.renewals
        for column in VOLATILE:
            counts = counts + self._changes.resets(column)
        boot = self._second.boot
        same = boot == self._boot[rows]
        reset = same & (counts > self._count[rows])
        now_ns = boottime_ns[self._devices.host]
        self._at_ns[rows] = np.where(reset, now_ns, np.where(same, self._at_ns[rows], 0))
        self._count[rows], self._boot[rows] = counts, boot

    def has_read(self, row: int, boot: int) -> bool:
        """Say whether the GPU in *row* was read in *boot*."""
        return row < self._boot.shape[0] and int(self._boot[row]) == boot

    def at_ns(self, row: int, boot: int) -> int:
        """Return the boot time until which the GPU in *row* was last reset; 0: not in *boot*."""
        return int(self._at_ns[row]) if self.has_read(row, boot) else 0
