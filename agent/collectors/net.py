"""Network interfaces, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping

from ...fingerprints.catalogue import Pace
from ..hardware.network import interfaces_with_device
from ..hardware.roots import Roots
from .folders import Device, FolderCollector, Plan, Source

_MEGABIT_BYTES = 125_000
#: `speed` of an interface that does not know it is -1, or that as an unsigned number.
_SPEED_MEGABITS_MAX = 10_000_000

SOURCES: Mapping[str, Source] = {
    "net.carrier_state": Source("carrier", most=1),
    "net.carrier_changes_count": Source("carrier_changes"),
    "net.speed_bytes_per_second": Source("speed", scale=_MEGABIT_BYTES, most=_SPEED_MEGABITS_MAX),
    "net.received_bytes": Source("statistics/rx_bytes"),
    "net.transmitted_bytes": Source("statistics/tx_bytes"),
    "net.received_packets": Source("statistics/rx_packets"),
    "net.transmitted_packets": Source("statistics/tx_packets"),
    "net.receive_errors": Source("statistics/rx_errors"),
    "net.transmit_errors": Source("statistics/tx_errors"),
    "net.receive_dropped_packets": Source("statistics/rx_dropped"),
    "net.receive_crc_errors": Source("statistics/rx_crc_errors"),
    "net.mtu_bytes": Source("mtu"),
}
_ABSENT = "no network interface with a device of its own in /sys/class/net"


def net_1s(roots: Roots) -> FolderCollector:
    """Carrier, traffic and errors. The kernel keeps these numbers: no driver is entered."""
    tables = ("net_1s", "net_1s_changes")
    return FolderCollector(Plan("net_1s", Pace.SECOND, tables, lambda: _devices(roots), _ABSENT))


def net_10s(roots: Roots) -> FolderCollector:
    """Speed and MTU. `speed` asks the driver, which asks firmware, under the kernel's network lock."""
    return FolderCollector(
        Plan(
            "net_10s",
            Pace.TEN_SECONDS,
            ("net_10s",),
            lambda: _devices(roots),
            _ABSENT,
            enters_driver=True,
        )
    )


def _devices(roots: Roots) -> list[Device]:
    interfaces = interfaces_with_device(roots.sys)
    return [Device(name, f"{folder}/", SOURCES) for name, folder in interfaces.items()]
