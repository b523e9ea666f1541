"""Network interfaces, bonds, VLANs, RDMA ports: from sysfs, and netlink if pyroute2 exists."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from ...ext.ethtool import DriverStatistics
from ..collectors.rdma import counter_files, unnamed
from ..hardware.ethtool_netlink import (
    LINKMODES_GET,
    EthtoolNetlink,
    SupportedMode,
    parse_supported_modes,
)
from ..hardware.files import OpenFile, Roots, device_key, names_in, read_text
from ..hardware.network import gids, interfaces_with_device, rdma_ports, read_bond
from ..hardware.pci import is_asleep
from . import VALUE_CHARACTERS_MAX, HostDevice
from .host import link_name, pci_address

#: Items of a long list in an attribute.
LISTED_MAX = 64

_DEVICE_FILES = {
    "firmware": "fw_ver",
    "hca": "hca_type",
    "board": "board_id",
    "guid": "node_guid",
    "image_guid": "sys_image_guid",
    "description": "node_desc",
    "numa_node": "device/numa_node",
}
_PORT_FILES = {
    "link_layer": "link_layer",
    "lid": "lid",
    "sm_lid": "sm_lid",
    "lid_mask_count": "lid_mask_count",
    "capabilities": "cap_mask",
}


def interfaces(roots: Roots) -> list[HostDevice]:
    """Return the interfaces with a device of their own, and bonds and VLANs."""
    kinds = _kinds_by_netlink() if roots.is_this_machine else {}
    physical = interfaces_with_device(roots.sys)
    modes = _modes_by_netlink(roots, physical) if roots.is_this_machine else {}
    folder = roots.sys / "class/net"
    devices: list[HostDevice] = []
    for name in names_in(folder):
        attributes = _sysfs_attributes(folder / name) | kinds.get(name, {})
        if name in physical:
            attributes |= {
                "pci_address": pci_address(folder / name),
                "driver": link_name(folder / name / "device/driver"),
            }
            attributes |= _driver_attributes(folder / name) if roots.is_this_machine else {}
            attributes |= mode_attributes(modes.get(name, ()))
        elif attributes.get("link") not in ("bond", "vlan"):
            continue
        if (folder / name / "bonding").is_dir():
            attributes |= _bond_attributes(roots, name)
        elif attributes.get("link") == "vlan":
            attributes |= _vlan_attributes(roots, name)
        filled = {key: value for key, value in attributes.items() if value}
        devices.append(HostDevice("net", device_key(name), filled))
    return devices


def _sysfs_attributes(folder: Path) -> dict[str, str]:
    """Return sysfs attributes: `uevent` has the kind, `lower_*` link to interfaces below."""
    lines = (read_text(folder / "uevent") or "").splitlines()
    kinds = [line.removeprefix("DEVTYPE=") for line in lines if line.startswith("DEVTYPE=")]
    below = [device_key(n[6:]) for n in names_in(folder) if n.startswith("lower_")]
    return {
        "address": read_text(folder / "address") or "",
        "link": kinds[0] if kinds else "",
        "below": " ".join(below),
        "ifindex": read_text(folder / "ifindex") or "",
        "mtu": read_text(folder / "mtu") or "",
        "operational": read_text(folder / "operstate") or "",
        "alias": read_text(folder / "ifalias") or "",
    }


def _driver_attributes(folder: Path) -> dict[str, str]:
    """Return version and firmware (ETHTOOL_GDRVINFO); {} for a suspended device, not to wake it."""
    if is_asleep(folder / "device"):
        return {}
    try:
        _, version, firmware, _ = DriverStatistics().driver(folder.name)
    except OSError:
        return {}
    return {
        "driver_version": version.decode(errors="replace"),
        "firmware": firmware.decode(errors="replace"),
    }


def _modes_by_netlink(roots: Roots, names: Iterable[str]) -> dict[str, list[SupportedMode]]:
    """Return the supported modes of each interface.

    A suspended interface is not queried, which would wake it. An interface whose driver does not
    report modes is left out; without ethtool netlink (Linux 5.6) all are left out.
    """
    modes: dict[str, list[SupportedMode]] = {}
    with contextlib.suppress(OSError), contextlib.closing(EthtoolNetlink()) as source:
        for name in names:
            if is_asleep(roots.sys / "class/net" / name / "device"):
                continue
            with contextlib.suppress(OSError):
                reply = source.request(LINKMODES_GET, socket.if_nametoindex(name))
                modes[name] = parse_supported_modes(reply)
    return modes


def mode_attributes(modes: Iterable[SupportedMode]) -> dict[str, str]:
    """Return highest speed, most lanes, and the fastest modes' names that fit."""
    fastest = sorted(modes, key=lambda mode: mode.speed_megabits, reverse=True)
    if not fastest:
        return {}
    names = " ".join(mode.name for mode in fastest)
    if len(names) > VALUE_CHARACTERS_MAX:
        names = names[: VALUE_CHARACTERS_MAX + 1].rpartition(" ")[0]
    return {
        "speed_max": f"{fastest[0].speed_megabits} Mb/s",
        "lanes_max": str(max(mode.lanes for mode in fastest)),
        "link_modes": names,
    }


def _bond_attributes(roots: Roots, name: str) -> dict[str, str]:
    """Return the state of the bond, and each slave with its state and number of failures."""
    bond, folder = read_bond(roots.sys, name), roots.sys / "class/net" / name / "bonding"
    states = {True: "up", False: "down", None: "unknown"}
    slaves = [
        f"{device_key(s.name)}={states[s.up]}" + (f"/{s.failures}" if s.failures else "")
        for s in bond.slaves
    ]
    return {
        "mode": read_text(folder / "mode") or "",
        "state": states[bond.up],
        "active_slave": device_key(bond.active),
        "slaves": " ".join(slaves),
        "transmit_hash": read_text(folder / "xmit_hash_policy") or "",
        "lacp_rate": read_text(folder / "lacp_rate") or "",
        "lacp_partner": read_text(folder / "ad_partner_mac") or "",
        "lacp_ports": read_text(folder / "ad_num_ports") or "",
    }


def _vlan_attributes(roots: Roots, name: str) -> dict[str, str]:
    """Return VLAN number and interface below, from /proc/net/vlan, readable by root only."""
    text = OpenFile(roots.proc / "net/vlan/config").read()
    for interface, number, below in parse_vlans(text):
        if interface == device_key(name):
            return {"vlan": str(number), "below": below}
    return {}


def parse_vlans(text: bytes) -> list[tuple[str, int, str]]:
    """Return (interface, number, interface below) for each line of /proc/net/vlan/config.

    The lines are `eth0.100  | 100  | eth0`, after two heading lines.
    """
    vlans: list[tuple[str, int, str]] = []
    for line in text.split(b"\n"):
        fields = [field.strip() for field in line.split(b"|")]
        if len(fields) == 3 and fields[0] and fields[1].isdigit() and len(fields[1]) <= 4:
            names = [device_key(os.fsdecode(field)) for field in (fields[0], fields[2])]
            vlans.append((names[0], int(fields[1]), names[1]))
    return vlans


def rdma(roots: Roots) -> list[HostDevice]:
    """Return the ports with firmware, link layer, addresses, and their network interfaces."""
    return [
        HostDevice(
            "rdma", device_key(name), {k: v for k, v in _port(roots, name, folder).items() if v}
        )
        for name, folder in rdma_ports(roots.sys).items()
    ]


def _port(roots: Roots, name: str, folder: Path) -> dict[str, str]:
    device = roots.sys / "class/infiniband" / name.partition("/")[0]
    table = list(gids(folder))
    interfaces = {gid.interface for gid in table if gid.interface} | set(
        names_in(device / "device/net")
    )
    hidden = unnamed(counter_files(folder))
    attributes = {
        attribute: read_text(device / file) or "" for attribute, file in _DEVICE_FILES.items()
    }
    attributes |= {
        attribute: read_text(folder / file) or "" for attribute, file in _PORT_FILES.items()
    }
    return attributes | {
        "pci_address": pci_address(device),
        "interfaces": " ".join(sorted(device_key(interface) for interface in interfaces)),
        "gids": ", ".join(
            " ".join(filter(None, (f"{g.index}={g.gid}", g.type, device_key(g.interface))))
            for g in table[:LISTED_MAX]
        ),
        "gids_count": str(len(table)) if table else "",
        "unnamed_counters": " ".join(device_key(counter) for counter in hidden[:LISTED_MAX]),
    }


def _kinds_by_netlink() -> dict[str, dict[str, str]]:
    """Return kind and VLAN number of this machine's links.

    The result is empty without pyroute2, or if netlink is refused.
    """
    attributes_by_link: dict[str, dict[str, str]] = {}
    with contextlib.suppress(Exception):
        _query_netlink(attributes_by_link)
    return attributes_by_link


def _query_netlink(links: dict[str, dict[str, str]]) -> None:
    from pyroute2 import IPRoute

    with IPRoute() as route:
        for message in route.get_links():
            info = message.get_attr("IFLA_LINKINFO")
            kind = info.get_attr("IFLA_INFO_KIND") if info else None
            data = info.get_attr("IFLA_INFO_DATA") if info and kind == "vlan" else None
            number = data.get_attr("IFLA_VLAN_ID") if data else None
            attributes = {"link": kind or "", "vlan": "" if number is None else str(number)}
            name = message.get_attr("IFLA_IFNAME")
            links[name] = {key: value for key, value in attributes.items() if value}
