"""Interfaces, bonds and RDMA ports in sysfs (Documentation/ABI/testing/sysfs-class-net, -infiniband)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .files import FILE_READER, FileReader, names_in, parse_unsigned, read_text, read_unsigned

_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{4}", re.ASCII)
#: Maximum of GIDs per port. The GID table has up to 65,536 entries; RoCE uses the first few per
#: address.
GIDS_MAX = 256
#: Slaves of a bond beyond this number are ignored.
SLAVES_MAX = 64

#: The states of `operstate` in the order of RFC 2863 (net/core/net-sysfs.c): a state's index is its
#: number.
OPERATIONAL_STATES = b"unknown notpresent down lowerlayerdown testing dormant up"
#: `link_layer` in the order of enum rdma_link_layer (include/rdma/ib_verbs.h).
LINK_LAYERS = b"Unspecified InfiniBand Ethernet"


def interfaces_with_device(sys: Path) -> dict[str, Path]:
    """Return the folder of each interface with a device of its own: no loopback, bridge or veth."""
    folder = sys / "class/net"
    return {name: folder / name for name in names_in(folder) if (folder / name / "device").exists()}


def bonds(sys: Path) -> dict[str, Path]:
    folder = sys / "class/net"
    return {
        name: folder / name for name in names_in(folder) if (folder / name / "bonding").is_dir()
    }


def rdma_ports(sys: Path) -> dict[str, Path]:
    """Return the folder of each RDMA port, by `device/port`."""
    folder = sys / "class/infiniband"
    return {
        f"{device}/{port}": folder / device / "ports" / port
        for device in names_in(folder)
        for port in names_in(folder / device / "ports")
        if port.isdecimal()
    }


def was_up(sys: Path, address: str) -> bool:
    """Return whether sysfs shows a carrier of the adapter at a PCI address in this boot.

    False without counters: the driver is loading, or InfiniBand has no IPoIB. No file is read that
    queries the adapter.
    """
    folder = sys / "bus/pci/devices" / address / "net"
    for name in names_in(folder):
        ups = read_unsigned(folder / name / "carrier_up_count")
        # The only count before Linux 4.16
        changes = read_unsigned(folder / name / "carrier_changes")
        if ups or (ups is None and (changes or 0) > 1):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a port's GID table: `type` as in sysfs (`RoCE v2`), and its interface, if any."""

    index: int
    gid: str
    type: str = ""
    interface: str = ""


def gids(port: Path) -> Iterator[Gid]:
    """Yield the entries that are set. The files of other entries are refused or all zero."""
    indexes = (parse_unsigned(name) for name in names_in(port / "gids"))
    for index in sorted(i for i in indexes if i is not None)[:GIDS_MAX]:
        gid = parse_gid(read_text(port / f"gids/{index}"))
        if gid:
            yield Gid(
                index,
                gid,
                read_text(port / f"gid_attrs/types/{index}") or "",
                read_text(port / f"gid_attrs/ndevs/{index}") or "",
            )


def parse_gid(text: str | None) -> str | None:
    """Return a GID of eight groups of four hex digits; None for an invalid or unset one.

    An unset entry is all zero, or only the link-local prefix.
    """
    groups = (text or "").split(":")
    if len(groups) != 8 or not all(_HEXADECIMAL.fullmatch(group) for group in groups):
        return None
    return text if any(int(group, 16) for group in groups[1:]) else None


@dataclass(frozen=True, slots=True)
class Slave:
    """An interface in a bond; `failures`: number of failures of its link."""

    name: str
    up: bool | None
    failures: int | None


@dataclass(frozen=True, slots=True)
class Bond:
    """A bond in sysfs. `active` is empty without a single active slave (802.3ad)."""

    mode: str
    up: bool | None
    active: str
    slaves: tuple[Slave, ...]


def read_bond(sys: Path, name: str, files: FileReader = FILE_READER) -> Bond:
    """Return the bond; unreadable values are None or empty."""
    net = f"{sys}/class/net"
    folder = f"{net}/{name}/bonding"
    names = (files.text(f"{folder}/slaves", name) or "").split()[:SLAVES_MAX]
    return Bond(
        mode=(files.text(f"{folder}/mode") or "").partition(" ")[0],
        up=parse_mii_status(files.text(f"{folder}/mii_status")),
        active=files.text(f"{folder}/active_slave") or "",
        slaves=tuple(_slave(f"{net}/{slave}/bonding_slave", slave, files) for slave in names),
    )


def _slave(folder: str, name: str, files: FileReader) -> Slave:
    return Slave(
        name,
        parse_mii_status(files.text(f"{folder}/mii_status")),
        files.unsigned(f"{folder}/link_failure_count"),
    )


def parse_mii_status(text: str | None) -> bool | None:
    """Return whether a link is up: `up`, or `going down` while it still has a carrier.

    None for words unknown to the bonding driver (drivers/net/bonding/bond_main.c,
    bond_slave_link_status).
    """
    known = {"up": True, "going down": True, "down": False, "going back": False}
    return known.get(text or "")
