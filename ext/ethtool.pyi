"""A network driver's own statistics: their names once, their values in one ioctl a turn.

SIOCETHTOOL with ETHTOOL_GDRVINFO, GSSET_INFO, GSTRINGS and GSTATS (include/uapi/linux/ethtool.h). The
kernel holds its network lock (rtnl) meanwhile and the driver may ask firmware: call it from a thread
that can be left behind. The GIL is not held during an ioctl.
"""

from typing_extensions import Buffer

#: A driver that says it has more statistics than this is not read.
STATISTICS_MAX: int

class DriverStatistics:
    """A socket and the room for answers. One question at a time; not for two threads at once.

    Each question raises OSError: ENODEV without such an interface, EOPNOTSUPP when its driver has no
    statistics, EPERM; EFAULT when there came more than STATISTICS_MAX.
    """

    def __init__(self) -> None:
        """Open the socket. Raises OSError or MemoryError."""

    def driver(self, interface: str | bytes) -> tuple[bytes, bytes, bytes, bytes]:
        """Return driver, its version, firmware version, and the bus address of the interface."""

    def names(self, interface: str | bytes) -> list[bytes]:
        """Return the names in the order of the values: at most 32 bytes each, any bytes, also twice.

        Raises OverflowError when there are more than STATISTICS_MAX.
        """

    def read(self, interface: str | bytes, picks: Buffer, values: Buffer, expected: int) -> int:
        """Read all, and put number `picks[i]` (int32) into `values[i]` (uint64); return how many there
        are. When those are not *expected*, the names are others by now, and *values* is left as it was.

        Raises ValueError for a pick outside of 0 to *expected*.
        """

    def close(self) -> None:
        """Close the socket, unless another thread's question is under way."""
