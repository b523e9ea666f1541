"""Which row each device has: (host, name) -> row, and back, in few bytes a device."""

class DeviceKeys:
    """Rows from 0 on, in the order in which they are added; none ever goes."""

    def __len__(self) -> int: ...
    def find(self, host: int, name: str) -> int:
        """Return the device's row; -1 when it has none."""
    def add(self, host: int, name: str) -> int:
        """Return the row of a device that has none yet. Raises ValueError if it has, or its name is too long."""
    def host(self, row: int) -> int:
        """Return the host of a row. IndexError."""
    def name(self, row: int) -> str:
        """Return the name of a row. IndexError."""
