"""Index of devices: (host, name) -> row, and back, in few bytes per device."""

import numpy as np
from numpy.typing import NDArray

class DeviceKeys:
    """Rows from 0 on, in the order in which they are added; none ever goes, but one may be given to another device."""

    def __len__(self) -> int: ...
    def bind(self, hosts: NDArray[np.int32]) -> None:
        """Put each row's host into this array from now on, which has those of the rows before. ValueError: it is short."""
    def find(self, host: int, name: str) -> int:
        """Return the device's row; -1 when it has none."""
    def add(self, host: int, name: str) -> int:
        """Return the row of a device that has none yet. Raises ValueError if it has, its name is too long, or
        there is no room for its host.
        """
    def rename(self, row: int, name: str) -> None:
        """Give a row to another device of its host, which has none yet; the one before has none any more.

        Raises IndexError; ValueError if it has one, or its name is too long.
        """
    def name(self, row: int) -> str:
        """Return the name of a row. IndexError."""
