"""Statistics that a network driver counts by itself: one ioctl per interface and turn."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...contract.block import Block
from ...contract.signal import Pace
from ...ext.ethtool import DriverStatistics
from ..collector import ExcludingCollector, NoData, driver_call
from ..hardware.files import Roots, device_key, read_unsigned
from ..hardware.network import interfaces_with_device
from ..hardware.nic_statistics import select_statistics
from ..hardware.pci import is_asleep
from .block_writer import clear_row, put
from .counter_files import DEVICES_MAX, PeriodicListing

NO_INTERFACE = "no network interface with a device of its own in /sys/class/net"
#: Lists the interfaces to read, by name; a test lists a veth pair.
InterfaceLister = Callable[[Path], dict[str, Path]]
#: The host is a folder, not this machine.
FOLDER_REASON = "a host that is a folder has no drivers to query"
REFUSED = frozenset((errno.EPERM, errno.EACCES))


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface to query; a new index under an old name is a new interface."""

    name: str
    index: int


class EthtoolInterfaces:
    """The interfaces to query, listed every turn."""

    def __init__(self, roots: Roots, list_interfaces: InterfaceLister) -> None:
        self._sys, self._list_interfaces = roots.sys, list_interfaces
        self._listing = PeriodicListing(self._list, Pace.TEN_SECONDS)

    def refresh(self) -> bool:
        """Return whether the list changed since the last turn."""
        return self._listing.refresh()

    @property
    def current(self) -> list[Interface]:
        """The interfaces of the last `refresh`."""
        return self._listing.value

    def is_asleep(self, interface: Interface) -> bool:
        """Return whether the device is suspended: any ethtool request would wake it."""
        return is_asleep(self._sys / "class/net" / interface.name / "device")

    def _list(self) -> list[Interface]:
        folders = list(self._list_interfaces(self._sys).items())[:DEVICES_MAX]
        indexes = [(name, index_of_interface(folder)) for name, folder in folders]
        return [Interface(name, index) for name, index in indexes if index]


def index_of_interface(folder: Path) -> int:
    """Return the ifindex of an interface; 0 if it was just removed."""
    return read_unsigned(folder / "ifindex") or 0


@dataclass(slots=True)
class _SelectedStatistics:
    """The statistics read from an interface: their positions, values and signals."""

    signals: tuple[str, ...]
    positions: array[int]
    values: array[int]
    count: int  # number of all statistics of the driver


class NicStatistics(ExcludingCollector):
    """The driver's statistics, under the kernel's network lock: one ioctl per interface and turn.

    Names are read once.
    """

    name = "nic_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True

    def __init__(
        self,
        roots: Roots,
        list_interfaces: InterfaceLister = interfaces_with_device,
        open_socket: Callable[[], DriverStatistics] = DriverStatistics,
    ) -> None:
        self._roots, self._open = roots, open_socket
        self._interfaces = EthtoolInterfaces(roots, list_interfaces)
        self._statistics: DriverStatistics | None = None
        self._selected: dict[Interface, _SelectedStatistics] = {}
        self._blocks = (Block("nic_10s", ()), Block("nic_10s_changes", ()))
        self.access_error = ""

    def collect(self) -> Sequence[Block]:
        """Return both blocks. Raises NoData without an interface, OSError without a socket."""
        if not self._roots.is_this_machine:
            raise NoData(FOLDER_REASON)
        if self._interfaces.refresh():
            self._selected.clear()  # the names of a new interface are read
            keys = [device_key(interface.name) for interface in self._interfaces.current]
            self._blocks = Block("nic_10s", keys), Block("nic_10s_changes", keys)
        if not self._interfaces.current:
            raise NoData(NO_INTERFACE)
        statistics = self._statistics = self._statistics or self._open()
        refused = [
            device_key(interface.name)
            for row, interface in enumerate(self._interfaces.current)
            if self._fill(statistics, row, interface) in REFUSED
        ]
        self.access_error = refusal_message("statistics", refused)
        return self._blocks

    def _fill(self, statistics: DriverStatistics, row: int, interface: Interface) -> int:
        """Fill a row; return the driver's errno, 0 if it has values or was skipped."""
        for block in self._blocks:
            clear_row(block, row)
        if self.is_excluded(interface.name) or self._interfaces.is_asleep(interface):
            return 0
        try:
            with driver_call(interface.name, "ETHTOOL_GSTATS"):
                selected = self._read(statistics, interface)
        except OSError as error:
            self._selected.pop(interface, None)
            return error.errno or errno.EIO
        except OverflowError:
            return errno.E2BIG
        put(self._blocks[0], "nic.statistics_count", row, selected.count)
        put(self._blocks[0], "nic.counter_epoch_count", row, interface.index)
        for signal, value in zip(selected.signals, selected.values, strict=True):
            put(self._blocks[1], signal, row, value)
        return 0

    def _read(self, statistics: DriverStatistics, interface: Interface) -> _SelectedStatistics:
        """Return the selected statistics; read the names again if their number changed."""
        selected = self._selected.get(interface)
        if selected is None or not _is_read(statistics, interface, selected):
            selected = self._selected[interface] = _select(statistics, interface.name)
            if not _is_read(statistics, interface, selected):
                raise OSError(errno.EAGAIN, "the driver's statistics are changing")
        return selected


def _is_read(
    statistics: DriverStatistics, interface: Interface, selected: _SelectedStatistics
) -> bool:
    if not selected.count:
        return True
    count = statistics.read(interface.name, selected.positions, selected.values, selected.count)
    return count == selected.count


def _select(statistics: DriverStatistics, interface: str) -> _SelectedStatistics:
    names = statistics.names(interface)
    positions = select_statistics(statistics.driver(interface)[0], names)
    values = array("Q", bytes(8 * len(positions)))
    return _SelectedStatistics(tuple(positions), array("i", positions.values()), values, len(names))


def refusal_message(what: str, refused: Sequence[str]) -> str:
    """Return a message about interfaces that refuse, with the remedy; empty without one."""
    if not refused:
        return ""
    return f"{', '.join(refused)} refuse {what}: give the agent CAP_NET_ADMIN"
