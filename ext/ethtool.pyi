"""A network driver's own statistics: their names once, their values in one ioctl per turn.

SIOCETHTOOL with ETHTOOL_GDRVINFO, GSSET_INFO, GSTRINGS and GSTATS (include/uapi/linux/ethtool.h).
The kernel holds its network lock (rtnl) meanwhile, and the driver may query firmware: call this in
a thread that may be abandoned. The GIL is not held during an ioctl.
"""

from typing_extensions import Buffer

#: A driver with more statistics than this is not read.
STATISTICS_MAX: int

class DriverStatistics:
    """A socket and a buffer for answers. Not thread-safe.

    Each query raises OSError: ENODEV without such an interface, EOPNOTSUPP if its driver has no
    statistics, EPERM; EFAULT if the driver returns more than STATISTICS_MAX.
    """

    def __init__(self) -> None:
        """Open the socket. Raises OSError or MemoryError."""

    def driver(self, interface: str | bytes) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the interface's driver, driver version, firmware version and bus address."""

    def names(self, interface: str | bytes) -> list[bytes]:
        """Return the names in the order of the values: up to 32 arbitrary bytes, not unique.

        Raises OverflowError for more than STATISTICS_MAX.
        """

    def read(self, interface: str | bytes, picks: Buffer, values: Buffer, expected: int) -> int:
        """Copy value number `picks[i]` (int32) to `values[i]` (uint64); return how many exist.

        If the number is not *expected*, the names have changed, and *values* stays unchanged.
        Raises ValueError for a pick outside of 0 to *expected*.
        """

    def close(self) -> None:
        """Close the socket, unless another thread's query is running."""
