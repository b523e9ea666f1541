"""Network interfaces and bonds, from sysfs."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...contract.block import Block
from ...contract.signal import Pace
from ...contract.signals import BY_NAME
from ...ext.counterfiles import WORD
from ...ext.hostfiles import Glance
from ..collector import AccessDenied, ExcludingCollector, NoData, driver_call
from ..hardware import ethtool_netlink
from ..hardware.ethtool_netlink import EthtoolNetlink
from ..hardware.files import FileReader, Roots, device_key
from ..hardware.network import OPERATIONAL_STATES, bonds, interfaces_with_device, read_bond
from .block_writer import block_of, clear_row, put, row_writer
from .counter_files import (
    DEVICES_MAX,
    CollectorSpec,
    CounterDevice,
    CounterFileCollector,
    FileField,
)
from .file_cache import FileCache
from .nic_statistics import FOLDER_REASON, REFUSED, EthtoolInterfaces, Interface, refusal_message

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
    state = ethtool_netlink.parse_link_state(reply)
    return {
        "link.detected_state": state.detected,
        "link.signal_quality_number": state.quality,
        "link.signal_quality_max_number": state.quality_max,
        "link.down_reason_code": state.reason,
        "link.down_detail_code": state.detail,
        "link.external_down_events": state.external_downs,
    }


def _of_modes(reply: bytes) -> _Values:
    modes = ethtool_netlink.parse_link_modes(reply)
    speed = modes.speed_megabits
    return {
        "link.autonegotiation_state": modes.autonegotiation,
        "link.speed_bytes_per_second": None if speed is None else speed * _MEGABIT_BYTES,
        "link.duplex_state": modes.duplex,
        "link.width_lanes": modes.lanes,
    }


def _of_fec(reply: bytes) -> _Values:
    fec = ethtool_netlink.parse_fec(reply)
    return {
        "link.fec_automatic_state": fec.automatic,
        "link.fec_active_code": fec.active,
        "link.fec_corrected_count": fec.corrected,
        "link.fec_uncorrectable_errors": fec.uncorrectable,
        "link.fec_corrected_bits_count": fec.corrected_bits,
    }


def _of_pause(reply: bytes) -> _Values:
    pause = ethtool_netlink.parse_pause(reply)
    return {
        "link.pause_autonegotiation_state": pause.autonegotiation,
        "link.pause_receive_state": pause.receive,
        "link.pause_transmit_state": pause.transmit,
        "link.received_pause_frames": pause.received_frames,
        "link.transmitted_pause_frames": pause.transmitted_frames,
    }


#: Name of the request, its command, whether it requests counts, and the parser of the reply.
_REQUESTS: tuple[tuple[str, int, bool, Callable[[bytes], _Values]], ...] = (
    ("ETHTOOL_MSG_LINKSTATE_GET", ethtool_netlink.LINKSTATE_GET, False, _of_state),
    ("ETHTOOL_MSG_LINKMODES_GET", ethtool_netlink.LINKMODES_GET, False, _of_modes),
    ("ETHTOOL_MSG_FEC_GET", ethtool_netlink.FEC_GET, True, _of_fec),
    ("ETHTOOL_MSG_PAUSE_GET", ethtool_netlink.PAUSE_GET, True, _of_pause),
)
