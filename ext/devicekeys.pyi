"""Index of devices: (host, name) -> row, and back, in few bytes per device."""

import numpy as np
from numpy.typing import NDArray

class DeviceKeys:
    """Rows from 0, in the order of `add`. A row is never removed, but may be renamed."""

    def __len__(self) -> int: ...
    def bind(self, hosts: NDArray[np.int32]) -> None:
        """Store hosts of rows in this array, which has those of earlier rows. Raises ValueError."""
    def find(self, host: int, name: str) -> int:
        """Return the device's row, or -1."""
    def add(self, host: int, name: str) -> int:
        """Return the new row of a device.

        Raises ValueError for a device with a row, a long name, or without space for its host.
        """
    def rename(self, row: int, name: str) -> None:
        """Give a row to another device of its host, which has none yet.

        Raises IndexError; ValueError for a device with a row, or a name that is too long.
        """
    def name(self, row: int) -> str:
        """Return the name of a row's device. Raises IndexError."""
