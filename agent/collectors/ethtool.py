"""What a network driver counts by itself, by one ioctl an interface and turn.

It enters the driver under the kernel's network lock, and from there firmware.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...ext.ethtool import DriverStatistics
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares, entering
from ..hardware.driver_statistics import pick
from ..hardware.files import device_key, read_unsigned
from ..hardware.network import interfaces_with_device
from ..hardware.pci import is_asleep
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import clear_row, put
from .folders import DEVICES_MAX
from .listing import Listing
from .net import ABSENT, Choose

#: An interface of a host that is a folder has no driver that could be asked.
FOLDER_WORDS = "the drivers of a host that is a folder cannot be asked"
REFUSED = frozenset((errno.EPERM, errno.EACCES))


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface that is asked: another index is another one under the old name."""

    name: str
    index: int


class Interfaces:
    """The interfaces that are asked, listed anew in each turn."""

    def __init__(self, roots: Roots, choose: Choose) -> None:
        self._sys, self._choose = roots.sys, choose
        self._listing = Listing(self._list, Pace.TEN_SECONDS)

    def renew(self) -> bool:
        """Return whether they are others than in the turn before."""
        return self._listing.renew()

    @property
    def now(self) -> list[Interface]:
        """Those of the last `renew`."""
        return self._listing.value

    def is_asleep(self, interface: Interface) -> bool:
        """Say whether its device is suspended: the kernel would wake it for any question of ethtool."""
        return is_asleep(self._sys / "class/net" / interface.name / "device")

    def _list(self) -> list[Interface]:
        found = list(self._choose(self._sys).items())[:DEVICES_MAX]
        read = [(name, index_of_interface(folder)) for name, folder in found]
        return [Interface(name, index) for name, index in read if index]


def index_of_interface(folder: Path) -> int:
    """Return the ifindex of an interface, 0 when it has just gone."""
    return read_unsigned(folder / "ifindex") or 0


@dataclass(slots=True)
class _Picked:
    """What is read of one interface: the places of its statistics, and where their values go."""

    signals: tuple[str, ...]
    places: array[int]
    values: array[int]
    count: int  # of all statistics that the driver has


class NicStatistics(Spares):
    """The driver's statistics: one ioctl an interface and turn; the names are read once."""

    name = "nic_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True

    def __init__(
        self,
        roots: Roots,
        choose: Choose = interfaces_with_device,
        open_socket: Callable[[], DriverStatistics] = DriverStatistics,
    ) -> None:
        self._roots, self._open = roots, open_socket
        self._interfaces = Interfaces(roots, choose)
        self._statistics: DriverStatistics | None = None
        self._picked: dict[Interface, _Picked] = {}
        self._blocks = (Block("nic_10s", ()), Block("nic_10s_changes", ()))
        self.blind_words = ""

    def collect(self) -> Sequence[Block]:
        """Return both blocks. Raises NoData without an interface, OSError without a socket."""
        if not self._roots.is_this_machine:
            raise NoData(FOLDER_WORDS)
        if self._interfaces.renew():
            self._picked.clear()  # an interface that is new is asked for its names
            keys = [device_key(interface.name) for interface in self._interfaces.now]
            self._blocks = Block("nic_10s", keys), Block("nic_10s_changes", keys)
        if not self._interfaces.now:
            raise NoData(ABSENT)
        statistics = self._statistics = self._statistics or self._open()
        refused = [
            device_key(interface.name)
            for row, interface in enumerate(self._interfaces.now)
            if self._fill(statistics, row, interface) in REFUSED
        ]
        self.blind_words = refused_words("statistics", refused)
        return self._blocks

    def _fill(self, statistics: DriverStatistics, row: int, interface: Interface) -> int:
        """Fill a row; return the errno of what the driver answered, 0 when it was the values or not asked."""
        for block in self._blocks:
            clear_row(block, row)
        if self.is_spared(interface.name) or self._interfaces.is_asleep(interface):
            return 0
        try:
            with entering(interface.name, "ETHTOOL_GSTATS"):
                picked = self._read(statistics, interface)
        except OSError as error:
            self._picked.pop(interface, None)
            return error.errno or errno.EIO
        except OverflowError:
            return errno.E2BIG
        put(self._blocks[0], "nic.statistics_count", row, picked.count)
        put(self._blocks[0], "nic.counter_epoch_count", row, interface.index)
        for signal, value in zip(picked.signals, picked.values, strict=True):
            put(self._blocks[1], signal, row, value)
        return 0

    def _read(self, statistics: DriverStatistics, interface: Interface) -> _Picked:
        """Return the picks with their values; the names are asked for again when they are others."""
        picked = self._picked.get(interface)
        if picked is None or not _is_read(statistics, interface, picked):
            picked = self._picked[interface] = _pick(statistics, interface.name)
            if not _is_read(statistics, interface, picked):
                raise OSError(errno.EAGAIN, "the driver's statistics are changing")
        return picked


def _is_read(statistics: DriverStatistics, interface: Interface, picked: _Picked) -> bool:
    if not picked.count:
        return True
    found = statistics.read(interface.name, picked.places, picked.values, picked.count)
    return found == picked.count


def _pick(statistics: DriverStatistics, interface: str) -> _Picked:
    names = statistics.names(interface)
    places = pick(statistics.driver(interface)[0], names)
    values = array("Q", bytes(8 * len(places)))
    return _Picked(tuple(places), array("i", places.values()), values, len(names))


def refused_words(what: str, refused: Sequence[str]) -> str:
    """Return which interfaces refuse, and what would open them; empty when none does."""
    if not refused:
        return ""
    return f"{', '.join(refused)} refuse {what}: give the agent CAP_NET_ADMIN"
