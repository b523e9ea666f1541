"""What /sys and /proc say of the host's parts."""

from __future__ import annotations

import os
from pathlib import Path

from ..hardware import block_devices, network, numa, pci, power
from ..hardware.files import KeptFile, device_key, names_in, read_text
from ..hardware.roots import Roots
from . import Device

_SECTOR_BYTES = 512  # `size` counts these, whatever the disk's own


def numa_nodes(roots: Roots) -> list[Device]:
    """Nodes with their cores, and the distance to each node."""
    return [
        Device(
            "numa",
            name,
            {
                "cpus": read_text(folder / "cpulist") or "",
                "distances": " ".join(map(str, numa.distances(folder))),
            },
        )
        for name, folder in numa.nodes(roots.sys).items()
    ]


def pcie_functions(roots: Roots) -> list[Device]:
    """Functions with their bridges up to the root; a GPU's also say how near each NIC is."""
    functions = pci.watched_functions(roots.sys)
    nics = [function for function in functions.values() if function.is_network]
    devices: list[Device] = []
    for function in functions.values():
        attributes = _known(
            function.folder, {"vendor": "vendor", "device": "device", "numa_node": "numa_node"}
        )
        attributes |= {
            "class": f"0x{function.class_code:06x}",
            "parents": " ".join(function.parents),
            "root": function.root,
            "driver": link_name(function.folder / "driver"),
        }
        if function.is_gpu:
            attributes |= {f"near {nic.address}": pci.nearness(function, nic) for nic in nics}
        devices.append(Device("pcie", function.address, attributes))
    return devices


def disks(roots: Roots) -> list[Device]:
    """Disks with model, firmware, size and the PCIe function they hang from."""
    devices: list[Device] = []
    for name in block_devices.disks_with_backing(roots.sys):
        folder = roots.sys / "block" / name.replace("/", "!")
        sectors = read_text(folder / "size") or ""
        attributes = _known(
            folder / "device",
            {"model": "model", "firmware": "firmware_rev", "transport": "transport"},
        )
        attributes |= {
            "size_bytes": str(int(sectors) * _SECTOR_BYTES) if sectors.isdecimal() else "",
            "rotational": read_text(folder / "queue/rotational") or "",
            "pci_address": pci_address(folder),
        }
        devices.append(Device("disk", device_key(name), _filled(attributes)))
    return devices


def filesystems(roots: Roots) -> list[Device]:
    """Local filesystems with what they are on."""
    mounts = block_devices.parse_mountinfo(KeptFile(roots.proc / "self/mountinfo").read())
    return [
        Device(
            "filesystem",
            device_key(mount.point),
            {"source": device_key(mount.source), "type": device_key(mount.type)},
        )
        for mount in mounts
    ]


def sensors(roots: Roots) -> list[Device]:
    """RAPL zones and hwmon sensors with the names that their numbers do not say."""
    zones = power.rapl_zones(roots.sys).items()
    found = [Device("rapl", name, {"label": power.zone_label(folder)}) for name, folder in zones]
    for name, sensor in power.sensors(roots.sys).items():
        attributes = {
            "chip": read_text(Path(sensor.prefix).parent / "name") or "",
            "label": read_text(Path(f"{sensor.prefix}_label")) or "",
            "pci_address": pci_address(Path(sensor.prefix).parent),
        }
        found.append(Device("hwmon", device_key(name), _filled(attributes)))
    return found


def rdma_ports(roots: Roots) -> list[Device]:
    """Ports with firmware, link layer, and the network interfaces of the same function."""
    devices: list[Device] = []
    for name, folder in network.rdma_ports(roots.sys).items():
        device = roots.sys / "class/infiniband" / name.partition("/")[0]
        attributes = _known(
            device,
            {"firmware": "fw_ver", "hca": "hca_type", "board": "board_id", "guid": "node_guid"},
        )
        attributes |= _known(folder, {"link_layer": "link_layer", "lid": "lid"})
        attributes |= _known(device / "device", {"numa_node": "numa_node"})
        attributes |= {
            "pci_address": pci_address(device),
            "interfaces": " ".join(names_in(device / "device/net")),
        }
        devices.append(Device("rdma", device_key(name), _filled(attributes)))
    return devices


def pci_address(folder: Path) -> str:
    """Return the nearest PCI function that a device's real path goes through; empty without one."""
    parents, _ = pci.chain_to_root(os.path.realpath(folder) + "/")
    return parents[0] if parents else ""


def link_name(link: Path) -> str:
    """Return the name that a symbolic link points to; empty when it is none."""
    try:
        return device_key(os.path.basename(os.readlink(link)))
    except OSError:
        return ""


def _known(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """Return the attributes whose files exist."""
    return _filled({name: read_text(folder / file) or "" for name, file in files.items()})


def _filled(attributes: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value}
