"""Network interfaces and RDMA ports in sysfs (Documentation/ABI/testing/sysfs-class-net, -infiniband)."""

from __future__ import annotations

from pathlib import Path

from .files import names_in


def interfaces_with_device(sys: Path) -> dict[str, Path]:
    """Return the folder of each interface that has a device of its own: no loopback, bridge or veth."""
    folder = sys / "class/net"
    return {name: folder / name for name in names_in(folder) if (folder / name / "device").exists()}


def rdma_ports(sys: Path) -> dict[str, Path]:
    """Return the folder of each RDMA port, by `device/port`."""
    folder = sys / "class/infiniband"
    return {
        f"{device}/{port}": folder / device / "ports" / port
        for device in names_in(folder)
        for port in names_in(folder / device / "ports")
        if port.isdecimal()
    }
