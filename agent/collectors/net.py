"""Network interfaces and bonds, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...contract.block import Block
from ...ext.counterfiles import WORD
from ...ext.hostfiles import Glance
from ..collector import ExcludingCollector, NoData
from ..hardware.files import FileReader, Roots
from ..hardware.network import OPERATIONAL_STATES, bonds, interfaces_with_device, read_bond
from .block_writer import block_of, row_writer
from .counter_files import (
    DEVICES_MAX,
    CollectorSpec,
    CounterDevice,
    CounterFileCollector,
    FileField,
)
from .file_cache import FileCache
from .nic_statistics import NO_INTERFACE, InterfaceLister

MEGABIT_BYTES = 125_000
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
        "speed", scale=MEGABIT_BYTES, raw_max=_SPEED_MEGABITS_MAX
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

#: In the order of `Bonds._values`.
_BOND = (
    "bond.link_state",
    "bond.active_slave_number",
    "bond.slave_failures_events",
    "bond.slaves_count",
    "bond.slaves_up_count",
)


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
            lambda: _devices(roots, list_interfaces),
            NO_INTERFACE,
            tables=("net_1s", "net_1s_changes"),
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


class Bonds(ExcludingCollector):
    """Bonds and their active slaves: a bond without half its bandwidth shows no other sign."""

    name = "bond_10s"
    enters_driver = True  # `bonding/slaves` waits for the kernel's network lock

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._bonds = FileCache(self._compute)
        self._block = Block(self.name, ())

    def exclude(self, devices: frozenset[str]) -> None:
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
