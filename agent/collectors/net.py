"""Network interfaces and bonds: sysfs, the driver's own statistics, and ethtool netlink."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...contract.block import Block
from ...contract.signal import Pace
from ...contract.signals import BY_NAME
from ...ext.counterfiles import WORD
from ...ext.ethtool import DriverStatistics
from ...ext.hostfiles import Glance
from ..collector import AccessDenied, ExcludingCollector, NoData, driver_call
from ..hardware import netlink
from ..hardware.files import FileReader, Roots, device_key, read_unsigned
from ..hardware.netlink import EthtoolNetlink
from ..hardware.network import OPERATIONAL_STATES, bonds, interfaces_with_device, read_bond
from ..hardware.nvidia import select_statistics
from ..hardware.pci import is_asleep
from .block_writer import block_of, clear_row, put, row_writer
from .counter_files import (
    DEVICES_MAX,
    CollectorSpec,
    CounterDevice,
    CounterFileCollector,
    FileField,
    PeriodicListing,
)
from .file_cache import FileCache

_MEGABIT_BYTES = 125_000
#: `speed` of an interface with unknown speed is -1, or its unsigned form.
_SPEED_MEGABITS_MAX = 10_000_000

FIELDS: Mapping[str, FileField] = {
    "net.counter_epoch_count": FileField("ifindex"),
    "net.carrier_state": FileField("carrier", raw_max=1),
    "net.carrier_changes_count": FileField("carrier_changes"),
    "net.carrier_up_events": FileField("carrier_up_count"),
    "net.carrier_down_events": FileField("carrier_down_count"),
    "net.operational_state": FileField("operstate", WORD, OPERATIONAL_STATES),
    "net.speed_bytes_per_second": FileField(
        "speed", scale=_MEGABIT_BYTES, raw_max=_SPEED_MEGABITS_MAX
    ),
    "net.received_bytes": FileField("statistics/rx_bytes"),
    "net.transmitted_bytes": FileField("statistics/tx_bytes"),
    "net.received_packets": FileField("statistics/rx_packets"),
    "net.transmitted_packets": FileField("statistics/tx_packets"),
    "net.receive_errors": FileField("statistics/rx_errors"),
    "net.transmit_errors": FileField("statistics/tx_errors"),
    "net.receive_dropped_packets": FileField("statistics/rx_dropped"),
    "net.transmit_dropped_packets": FileField("statistics/tx_dropped"),
    "net.receive_missed_errors": FileField("statistics/rx_missed_errors"),
    "net.receive_overrun_errors": FileField("statistics/rx_fifo_errors"),
    "net.receive_crc_errors": FileField("statistics/rx_crc_errors"),
    "net.transmit_carrier_errors": FileField("statistics/tx_carrier_errors"),
    "net.mtu_bytes": FileField("mtu"),
}
NO_INTERFACE = "no network interface with a device of its own in /sys/class/net"

#: Lists the interfaces to read, by name; a test lists a veth pair.
InterfaceLister = Callable[[Path], dict[str, Path]]


def net_1s(
    roots: Roots, list_interfaces: InterfaceLister = interfaces_with_device
) -> CounterFileCollector:
    """Return the collector of carrier, traffic and errors.

    Reading `carrier` waits for the kernel's network lock (Linux 6.8 and later), which a driver may
    hold while its firmware does not respond; the driver may compute the statistics.

    A new or removed interface is listed in the next turn. An interface that was replaced under its
    name is recognized by its ifindex, in the same block as its first counters.
    """
    return CounterFileCollector(
        CollectorSpec(
            "net_1s",
            Pace.SECOND,
            ("net_1s", "net_1s_changes"),
            lambda: _devices(roots, list_interfaces),
            NO_INTERFACE,
            enters_driver=True,
            list_seconds=60,
            change_key=Glance(roots.sys / "class/net").look,
        )
    )


def net_10s(
    roots: Roots, list_interfaces: InterfaceLister = interfaces_with_device
) -> CounterFileCollector:
    """Return the collector of speed and MTU.

    Reading `speed` calls driver and firmware under the network lock.
    """
    return CounterFileCollector(
        CollectorSpec(
            "net_10s",
            Pace.TEN_SECONDS,
            ("net_10s",),
            lambda: _devices(roots, list_interfaces),
            NO_INTERFACE,
            enters_driver=True,
            list_seconds=60,
            change_key=Glance(roots.sys / "class/net").look,
        )
    )


def _devices(roots: Roots, list_interfaces: InterfaceLister) -> list[CounterDevice]:
    return [
        CounterDevice(name, f"{folder}/", FIELDS)
        for name, folder in list_interfaces(roots.sys).items()
    ]


#: In the order of `Bonds._values`.
_BOND = (
    "bond.link_state",
    "bond.active_slave_number",
    "bond.slave_failures_events",
    "bond.slaves_count",
    "bond.slaves_up_count",
)


class Bonds(ExcludingCollector):
    """Bonds and their active slaves: a bond without half its bandwidth shows no other sign."""

    name = "bond_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True  # `bonding/slaves` waits for the kernel's network lock

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._bonds = FileCache(self._compute)
        self._block = Block(self.name, ())

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip these bonds."""
        super().exclude(devices)
        self._bonds.exclude(devices)

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData without a bond."""
        is_new = self._bonds.refresh()
        if not self._bonds.value:
            raise NoData("no bond in /sys/class/net")
        if is_new:
            self._block = block_of(self._block, self._bonds.value)
            writer = row_writer(self._block, _BOND)
            for row, values in enumerate(self._bonds.value.values()):
                writer.put(row, values)
        return (self._block,)

    def _compute(self, files: FileReader) -> dict[str, tuple[int | None, ...]]:
        """Return the values of each bond. New and removed interfaces are noticed in class/net."""
        files.names(self._sys / "class/net")
        return {
            name: (None,) * len(_BOND) if self.is_excluded(name) else self._values(name, files)
            for name in list(bonds(self._sys))[:DEVICES_MAX]
        }

    def _values(self, interface: str, files: FileReader) -> tuple[int | None, ...]:
        bond = read_bond(self._sys, interface, files)
        ups = [slave.up for slave in bond.slaves]
        failures = [slave.failures for slave in bond.slaves if slave.failures is not None]
        whole = len(failures) == len(bond.slaves)
        active = self._sys / "class/net" / bond.active / "ifindex" if bond.active else None
        return (
            bond.up,
            files.unsigned(active) if active else None,
            sum(failures) if whole else None,
            len(bond.slaves),
            None if None in ups else sum(map(bool, ups)),
        )


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
        """Return the selected statistics with their values.

        Read the names again if their number changed.
        """
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


class LinkDetails(ExcludingCollector):
    """Signal, speed, FEC and pause of each link, by four ethtool netlink requests per turn.

    A request enters the driver, and possibly its firmware, under the kernel's network lock.
    """

    name = "link_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True

    def __init__(
        self,
        roots: Roots,
        list_interfaces: InterfaceLister = interfaces_with_device,
        open_socket: Callable[[], EthtoolNetlink] = EthtoolNetlink,
    ) -> None:
        self._roots, self._open = roots, open_socket
        self._interfaces = EthtoolInterfaces(roots, list_interfaces)
        self._netlink: EthtoolNetlink | None = None
        self._blocks = (Block("link_10s", ()), Block("link_10s_changes", ()))
        self.access_error = ""

    def collect(self) -> Sequence[Block]:
        """Return both blocks.

        Raises NoData without an interface or with a kernel before Linux 5.6, AccessDenied when
        netlink is refused.
        """
        if not self._roots.is_this_machine:
            raise NoData(FOLDER_REASON)
        if self._interfaces.refresh():
            keys = [device_key(interface.name) for interface in self._interfaces.current]
            self._blocks = Block("link_10s", keys), Block("link_10s_changes", keys)
        if not self._interfaces.current:
            raise NoData(NO_INTERFACE)
        source = self._netlink = self._netlink or self._open_netlink()
        refused = [
            device_key(interface.name)
            for row, interface in enumerate(self._interfaces.current)
            if self._fill(source, row, interface)
        ]
        self.access_error = refusal_message("link details", refused)
        return self._blocks

    def _open_netlink(self) -> EthtoolNetlink:
        try:
            return self._open()
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise NoData(
                    "this kernel has no ethtool netlink (Linux 5.6 and later have)"
                ) from error
            if error.errno in (*REFUSED, errno.EAFNOSUPPORT):
                raise AccessDenied(
                    "generic netlink is blocked; allow it: RestrictAddressFamilies=AF_NETLINK in "
                    "the "
                    "agent's unit"
                ) from error
            raise

    def _fill(self, source: EthtoolNetlink, row: int, interface: Interface) -> bool:
        """Fill a row, each request by itself; return whether a request was refused."""
        for block in self._blocks:
            clear_row(block, row)
        if self.is_excluded(interface.name) or self._interfaces.is_asleep(interface):
            return False
        refused = False
        for request_name, command, with_statistics, values_of in _REQUESTS:
            try:
                with driver_call(interface.name, request_name):
                    reply = source.request(
                        command, interface.index, with_statistics=with_statistics
                    )
            except OSError as error:  # its values are missing, others are not affected
                if error.errno == errno.ENODEV:
                    return False
                refused |= error.errno in REFUSED
                continue
            for signal, value in values_of(reply).items():
                self._put(signal, row, value)
        self._put("link.counter_epoch_count", row, interface.index)
        return refused

    def _put(self, signal: str, row: int, value: float | None) -> None:
        put(self._blocks[BY_NAME[signal].on_change], signal, row, value)


_Values = dict[str, float | None]


def _of_state(reply: bytes) -> _Values:
    state = netlink.parse_link_state(reply)
    return {
        "link.detected_state": state.detected,
        "link.signal_quality_number": state.quality,
        "link.signal_quality_max_number": state.quality_max,
        "link.down_reason_code": state.reason,
        "link.down_detail_code": state.detail,
        "link.external_down_events": state.external_downs,
    }


def _of_modes(reply: bytes) -> _Values:
    modes = netlink.parse_link_modes(reply)
    speed = modes.speed_megabits
    return {
        "link.autonegotiation_state": modes.autonegotiation,
        "link.speed_bytes_per_second": None if speed is None else speed * _MEGABIT_BYTES,
        "link.duplex_state": modes.duplex,
        "link.width_lanes": modes.lanes,
    }


def _of_fec(reply: bytes) -> _Values:
    fec = netlink.parse_fec(reply)
    return {
        "link.fec_automatic_state": fec.automatic,
        "link.fec_active_code": fec.active,
        "link.fec_corrected_count": fec.corrected,
        "link.fec_uncorrectable_errors": fec.uncorrectable,
        "link.fec_corrected_bits_count": fec.corrected_bits,
    }


def _of_pause(reply: bytes) -> _Values:
    pause = netlink.parse_pause(reply)
    return {
        "link.pause_autonegotiation_state": pause.autonegotiation,
        "link.pause_receive_state": pause.receive,
        "link.pause_transmit_state": pause.transmit,
        "link.received_pause_frames": pause.received_frames,
        "link.transmitted_pause_frames": pause.transmitted_frames,
    }


#: Name of the request, its command, whether it requests counts, and the parser of the reply.
_REQUESTS: tuple[tuple[str, int, bool, Callable[[bytes], _Values]], ...] = (
    ("ETHTOOL_MSG_LINKSTATE_GET", netlink.LINKSTATE_GET, False, _of_state),
    ("ETHTOOL_MSG_LINKMODES_GET", netlink.LINKMODES_GET, False, _of_modes),
    ("ETHTOOL_MSG_FEC_GET", netlink.FEC_GET, True, _of_fec),
    ("ETHTOOL_MSG_PAUSE_GET", netlink.PAUSE_GET, True, _of_pause),
)
