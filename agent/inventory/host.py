"""Parts of the host, from /sys and /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from ...ext.hostfiles import CoreTimes, line_numbers
from ..hardware import edac, nvme, pci, power_sensors, settings, storage
from ..hardware.cpu_cores import cpu_model
from ..hardware.files import OpenFile, Roots, device_key, names_in, read_text, read_unsigned
from ..hardware.numa_nodes import distances, nodes
from . import HostDevice

_SECTOR_BYTES = 512  # unit of `size`, whatever the disk's sector size
#: Network filesystem -> device kind of its readings.
_NETWORK_KINDS = {"nfs": "nfs", "nfs4": "nfs", "lustre": "lustre"}

#: Attribute -> its file in a function's folder. `label` is the board vendor's name of the slot.
_FUNCTION_FILES = {
    "vendor": "vendor",
    "device": "device",
    "subsystem_vendor": "subsystem_vendor",
    "subsystem_device": "subsystem_device",
    "numa_node": "numa_node",
    "cpus": "local_cpulist",
    "label": "label",
}
#: Files that are read from the device itself, which wakes it.
_LINK_FILES = {"link_speed_max": "max_link_speed", "link_width_max": "max_link_width"}


def numa_nodes(roots: Roots) -> list[HostDevice]:
    """Return the NUMA nodes with their cores and distances."""
    return [
        HostDevice(
            "numa",
            name,
            {
                "cpus": read_text(folder / "cpulist") or "",
                "distances": " ".join(map(str, distances(folder))),
            },
        )
        for name, folder in nodes(roots.sys).items()
    ]


def pcie_functions(roots: Roots) -> list[HostDevice]:
    """Return the functions with their bridges up to the root; GPUs also with distances of NICs."""
    functions = pci.watched_functions(roots.sys)
    nics = [function for function in functions.values() if function.is_network]
    rdma = _rdma_by_function(roots)
    devices: list[HostDevice] = []
    for function in functions.values():
        attributes = _read_attributes(function.folder, _FUNCTION_FILES)
        if not pci.is_asleep(function.folder):
            attributes |= _read_attributes(function.folder, _LINK_FILES)
        attributes |= {
            "class": f"0x{function.class_code:06x}",
            "parents": " ".join(function.parents),
            "root": function.root,
            "driver": link_name(function.folder / "driver"),
        }
        group = link_name(function.folder / "iommu_group")
        attributes |= {"iommu_group": group} if group else {}
        kind = read_text(function.folder / "iommu_group/type") or ""
        attributes |= {"iommu_type": kind} if kind else {}
        if function.is_gpu:
            attributes |= {f"near {nic.address}": pci.nearness(function, nic) for nic in nics}
            attributes |= _nearest(function, nics, rdma)
        devices.append(HostDevice("pcie", function.address, attributes))
    return devices


def _nearest(
    gpu: pci.Function, nics: list[pci.Function], rdma: Mapping[str, str]
) -> dict[str, str]:
    """Return a GPU's nearest NICs and RDMA devices on its socket, with their distance."""
    nearness, near = pci.nearest(gpu, nics)
    rdma_nearness, near_rdma = pci.nearest(gpu, [nic for nic in nics if nic.address in rdma])
    return _without_empty(
        {
            "nearest_nics": " ".join(nic.address for nic in near),
            "nearest_nics_at": nearness,
            "nearest_rdma": " ".join(rdma[nic.address] for nic in near_rdma),
            "nearest_rdma_at": rdma_nearness,
        }
    )


def _rdma_by_function(roots: Roots) -> dict[str, str]:
    folder = roots.sys / "class/infiniband"
    return {pci_address(folder / name): device_key(name) for name in names_in(folder)}


def disks(roots: Roots) -> list[HostDevice]:
    """Return the disks with model, firmware, size, queue settings and PCIe function."""
    devices: list[HostDevice] = []
    for name in storage.disks_with_backing(roots.sys):
        folder = roots.sys / "block" / name.replace("/", "!")
        sectors = read_unsigned(folder / "size")
        attributes = _read_attributes(
            folder / "device",
            {
                "model": "model",
                "firmware": "firmware_rev",
                "serial": "serial",
                "transport": "transport",
            },
        )
        attributes |= _read_attributes(
            folder, {"device_number": "dev", "wwid": "wwid", "queue_requests": "queue/nr_requests"}
        )
        attributes |= {
            "size_bytes": "" if sectors is None else str(sectors * _SECTOR_BYTES),
            "rotational": read_text(folder / "queue/rotational") or "",
            "scheduler": _bracketed(read_text(folder / "queue/scheduler") or ""),
            "pci_address": pci_address(folder),
        }
        devices.append(HostDevice("disk", device_key(name), _without_empty(attributes)))
    return devices


def nvme_controllers(roots: Roots) -> list[HostDevice]:
    """Return the NVMe controllers with their identity and disks."""
    devices: list[HostDevice] = []
    for name, folder in nvme.nvme_controllers(roots.sys).items():
        attributes = _read_attributes(
            folder,
            {
                "model": "model",
                "serial": "serial",
                "firmware": "firmware_rev",
                "transport": "transport",
                "subsystem": "subsysnqn",
                "numa_node": "numa_node",
            },
        )
        attributes |= {
            "disks": " ".join(nvme.nvme_namespaces(folder)),
            "pci_address": pci_address(folder),
        }
        devices.append(HostDevice("nvme", device_key(name), _without_empty(attributes)))
    return devices


def filesystems(roots: Roots) -> list[HostDevice]:
    """Return local filesystems, and network filesystems, of which some have no readings."""
    data = OpenFile(roots.proc / "self/mountinfo").read()
    local = [("filesystem", mount) for mount in storage.parse_mountinfo(data)]
    remote = [
        (_NETWORK_KINDS.get(mount.type, "network_filesystem"), mount)
        for mount in storage.parse_network_mounts(data)
    ]
    return [
        HostDevice(
            kind,
            device_key(mount.point),
            {"source": device_key(mount.source), "type": device_key(mount.type)},
        )
        for kind, mount in local + remote
    ]


def sensors(roots: Roots) -> list[HostDevice]:
    """Return the RAPL zones and hwmon sensors with their labels."""
    zones = power_sensors.rapl_zones(roots.sys).items()
    devices = [
        HostDevice("rapl", name, {"label": power_sensors.zone_label(folder)})
        for name, folder in zones
    ]
    for name, sensor in power_sensors.sensors(roots.sys).items():
        chip = Path(sensor.prefix).parent
        attributes = {
            "chip": read_text(chip / "name") or "",
            "label": read_text(Path(f"{sensor.prefix}_label")) or "",
            "pci_address": pci_address(chip / "device"),
        }
        devices.append(HostDevice("hwmon", device_key(name), _without_empty(attributes)))
    return devices


def memory_modules(roots: Roots) -> list[HostDevice]:
    """Return the memory controllers and DIMMs, with the label that is printed beside the socket."""
    files = {
        "controller": {"name": "mc_name", "size_megabytes": "size_mb"},
        "dimm": {
            "label": "dimm_label",
            "location": "dimm_location",
            "size_megabytes": "size",
            "memory": "dimm_mem_type",
            "ecc": "dimm_edac_mode",
        },
        "row": {"memory": "mem_type", "ecc": "edac_mode", "size_megabytes": "size_mb"},
        "channel": {"label": "dimm_label"},
    }
    return [
        HostDevice(
            "edac",
            name,
            _read_attributes(
                location.folder,
                {key: f"{location.prefix}{file}" for key, file in files[location.kind].items()},
            ),
        )
        for name, location in edac.edac_locations(roots.sys).items()
    ]


def kernel_settings(roots: Roots) -> list[HostDevice]:
    """Return settings that are text: the kernel's start parameters, drivers and governors."""
    cpu, kernel = roots.sys / "devices/system/cpu", roots.proc / "sys"
    clock = roots.sys / "devices/system/clocksource/clocksource0/current_clocksource"
    governors = {word for word in settings.domain_values(roots.sys, "scaling_governor") if word}
    attributes = {
        "kernel_flags": settings.kernel_flags(read_text(roots.proc / "cmdline")),
        "kernel_build": (read_text(kernel / "kernel/version") or "")[:256],
        "clocksource": read_text(clock) or "",
        "cpu_governors": " ".join(sorted(governors)),
        "frequency_driver": read_text(cpu / "cpufreq/policy0/scaling_driver") or "",
        "idle_driver": read_text(cpu / "cpuidle/current_driver") or "",
        "isolated_cpus": read_text(cpu / "isolated") or "",
        "tcp_congestion": read_text(kernel / "net/ipv4/tcp_congestion_control") or "",
    }
    filled = _without_empty(attributes)
    return [HostDevice("settings", "host", filled)] if filled else []


def pci_address(folder: Path) -> str:
    """Return the nearest PCI function in a device's real path; empty without one."""
    parents, _ = pci.chain_to_root(os.path.realpath(folder) + "/")
    return parents[0] if parents else ""


def link_name(link: Path) -> str:
    """Return the name of a symbolic link's target; empty without a link."""
    try:
        return device_key(os.path.basename(os.readlink(link)))
    except OSError:
        return ""


def _read_attributes(folder: Path, files: dict[str, str]) -> dict[str, str]:
    return _without_empty({name: read_text(folder / file) or "" for name, file in files.items()})


def _bracketed(text: str) -> str:
    """Return the choice in brackets: `none` for `[none] mq-deadline`."""
    return text.partition("[")[2].partition("]")[0]


def _without_empty(attributes: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value}


def labels(roots: Roots) -> dict[str, str]:
    """Return the known values of hostname, kernel, os, cpu, memory and driver version."""
    proc = roots.proc
    cores = CoreTimes()
    cores.take(OpenFile(proc / "stat").read())
    (memory,) = line_numbers(OpenFile(proc / "meminfo").read(), (b"MemTotal:",))
    values = {
        "hostname": read_text(proc / "sys/kernel/hostname"),
        "kernel": read_text(proc / "sys/kernel/osrelease"),
        "cpu_model": cpu_model(proc),
        "cpu_cores": str(cores.count or ""),
        "memory_bytes": str(memory or ""),
        "nvidia_driver_version": read_text(roots.sys / "module/nvidia/version"),
        "os": _os_name() if roots.is_this_machine else "",
        "cpu_physical_cores": _physical_cores() if roots.is_this_machine else "",
    }
    return {name: value for name, value in values.items() if value}


def _os_name() -> str:
    for line in (read_text(Path("/etc/os-release")) or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""


def _physical_cores() -> str:
    with contextlib.suppress(Exception):  # psutil is optional, and this is a label
        import psutil

        return str(psutil.cpu_count(logical=False) or "")
    return ""
