"""Network interfaces and bonds, from sysfs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...ext.counterfiles import WORD
from ...ext.hostfiles import Glance
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares
from ..hardware.files import Files
from ..hardware.network import (
    OPERATIONAL_STATES,
    bonds,
    interfaces_with_device,
    read_bond,
)
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import block_of, places_of
from .folders import DEVICES_MAX, Device, FolderCollector, Plan, Source
from .remembering import Remembered

_MEGABIT_BYTES = 125_000
#: `speed` of an interface that does not know it is -1, or that as an unsigned number.
_SPEED_MEGABITS_MAX = 10_000_000

SOURCES: Mapping[str, Source] = {
    "net.counter_epoch_count": Source("ifindex"),
    "net.carrier_state": Source("carrier", most=1),
    "net.carrier_changes_count": Source("carrier_changes"),
    "net.carrier_up_events": Source("carrier_up_count"),
    "net.carrier_down_events": Source("carrier_down_count"),
    "net.operational_state": Source("operstate", WORD, OPERATIONAL_STATES),
    "net.speed_bytes_per_second": Source("speed", scale=_MEGABIT_BYTES, most=_SPEED_MEGABITS_MAX),
    "net.received_bytes": Source("statistics/rx_bytes"),
    "net.transmitted_bytes": Source("statistics/tx_bytes"),
    "net.received_packets": Source("statistics/rx_packets"),
    "net.transmitted_packets": Source("statistics/tx_packets"),
    "net.receive_errors": Source("statistics/rx_errors"),
    "net.transmit_errors": Source("statistics/tx_errors"),
    "net.receive_dropped_packets": Source("statistics/rx_dropped"),
    "net.transmit_dropped_packets": Source("statistics/tx_dropped"),
    "net.receive_missed_errors": Source("statistics/rx_missed_errors"),
    "net.receive_overrun_errors": Source("statistics/rx_fifo_errors"),
    "net.receive_crc_errors": Source("statistics/rx_crc_errors"),
    "net.transmit_carrier_errors": Source("statistics/tx_carrier_errors"),
    "net.mtu_bytes": Source("mtu"),
}
ABSENT = "no network interface with a device of its own in /sys/class/net"

#: Which interfaces are read, by name: a test watches a veth pair.
Choose = Callable[[Path], dict[str, Path]]


def net_1s(roots: Roots, choose: Choose = interfaces_with_device) -> FolderCollector:
    """Carrier, traffic and errors. `carrier` waits for the kernel's network lock (Linux 6.8 and later), which
    a driver may hold as long as its firmware does not answer; the statistics may be the driver's to add up.

    An interface that comes or goes is listed anew in the next turn. One that was replaced under its
    name is told by its ifindex, in the same block as its first counters.
    """
    return FolderCollector(
        Plan(
            "net_1s",
            Pace.SECOND,
            ("net_1s", "net_1s_changes"),
            lambda: _devices(roots, choose),
            ABSENT,
            enters_driver=True,
            list_seconds=60,
            glance=Glance(roots.sys / "class/net").look,
        )
    )


def net_10s(roots: Roots, choose: Choose = interfaces_with_device) -> FolderCollector:
    """Speed and MTU. `speed` asks the driver, which asks firmware, under the kernel's network lock."""
    return FolderCollector(
        Plan(
            "net_10s",
            Pace.TEN_SECONDS,
            ("net_10s",),
            lambda: _devices(roots, choose),
            ABSENT,
            enters_driver=True,
            list_seconds=60,
            glance=Glance(roots.sys / "class/net").look,
        )
    )


def _devices(roots: Roots, choose: Choose) -> list[Device]:
    return [Device(name, f"{folder}/", SOURCES) for name, folder in choose(roots.sys).items()]


#: In the order of `Bonds._values`.
_BOND = (
    "bond.link_state",
    "bond.active_slave_number",
    "bond.slave_failures_events",
    "bond.slaves_count",
    "bond.slaves_up_count",
)


class Bonds(Spares):
    """Bonds, and how many of their slaves are up: half the bandwidth is gone and nothing else says so."""

    name = "bond_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True  # `bonding/slaves` waits for the kernel's network lock

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._bonds = Remembered(self._work_out)
        self._block = Block(self.name, ())

    def spare(self, devices: frozenset[str]) -> None:
        """Ask nothing of these bonds."""
        super().spare(devices)
        self._bonds.spare(devices)

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData without a bond."""
        is_new = self._bonds.look()
        if not self._bonds.value:
            raise NoData("no bond in /sys/class/net")
        if is_new:
            self._block = block_of(self._block, self._bonds.value)
            places = places_of(self._block, _BOND)
            for row, values in enumerate(self._bonds.value.values()):
                places.put(row, values)
        return (self._block,)

    def _work_out(self, files: Files) -> dict[str, tuple[int | None, ...]]:
        """Return the values of each bond. An interface that comes or goes is an entry of class/net."""
        files.names(self._sys / "class/net")
        return {
            name: (None,) * len(_BOND) if self.is_spared(name) else self._values(name, files)
            for name in list(bonds(self._sys))[:DEVICES_MAX]
        }

    def _values(self, interface: str, files: Files) -> tuple[int | None, ...]:
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
