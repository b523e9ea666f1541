"""Network interfaces, bonds and VLANs: from netlink by pyroute2 where it is, else from sysfs."""

from __future__ import annotations

from pathlib import Path

from ..hardware.files import device_key, names_in, read_text
from ..hardware.network import interfaces_with_device
from ..hardware.roots import Roots
from . import Device
from .kernel import link_name, pci_address


def interfaces(roots: Roots) -> list[Device]:
    """Return the interfaces with a device of their own, and what is built on them."""
    kinds = _kinds_by_netlink() if roots.is_this_machine else {}
    physical = interfaces_with_device(roots.sys)
    folder = roots.sys / "class/net"
    devices: list[Device] = []
    for name in names_in(folder):
        attributes = _of_sysfs(folder / name) | kinds.get(name, {})
        if name in physical:
            attributes |= {
                "pci_address": pci_address(folder / name),
                "driver": link_name(folder / name / "device/driver"),
            }
        elif attributes.get("link") not in ("bond", "vlan"):
            continue
        filled = {key: value for key, value in attributes.items() if value}
        devices.append(Device("net", device_key(name), filled))
    return devices


def _of_sysfs(folder: Path) -> dict[str, str]:
    """What sysfs tells: `uevent` names the kind, `lower_*` are links to the interfaces below."""
    lines = (read_text(folder / "uevent") or "").splitlines()
    kinds = [line.removeprefix("DEVTYPE=") for line in lines if line.startswith("DEVTYPE=")]
    below = [device_key(n[6:]) for n in names_in(folder) if n.startswith("lower_")]
    return {
        "address": read_text(folder / "address") or "",
        "link": kinds[0] if kinds else "",
        "below": " ".join(below),
        "mode": read_text(folder / "bonding/mode") or "",
    }


def _kinds_by_netlink() -> dict[str, dict[str, str]]:
    """Return kind and VLAN number of each link of this machine; nothing when pyroute2 is not there."""
    try:
        from pyroute2 import IPRoute
    except ImportError:
        return {}
    found: dict[str, dict[str, str]] = {}
    with IPRoute() as route:
        for message in route.get_links():
            info = message.get_attr("IFLA_LINKINFO")
            kind = info.get_attr("IFLA_INFO_KIND") if info else None
            data = info.get_attr("IFLA_INFO_DATA") if info and kind == "vlan" else None
            number = data.get_attr("IFLA_VLAN_ID") if data else None
            told = {"link": kind or "", "vlan": "" if number is None else str(number)}
            name = message.get_attr("IFLA_IFNAME")
            found[name] = {key: value for key, value in told.items() if value}
    return found
