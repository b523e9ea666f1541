"""Who may see all MIG instances: a capability file of the NVIDIA driver (MIG user guide, "Device nodes and
capabilities"). A process that can open it, or has CAP_SYS_ADMIN, sees the instances of others; any other process
gets `no permission`, or, of NVML events, just less."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .files import read_text
from .roots import Roots

_FILE = "driver/nvidia/capabilities/mig/monitor"
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d{1,7})\s*$", re.MULTILINE)
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-fA-F]{1,32})\s*$", re.MULTILINE)
_CAP_SYS_ADMIN = 21  # include/uapi/linux/capability.h


def parse_minor(text: str) -> int | None:
    """Return the minor number of the capability's device node; None for a text that has none."""
    found = _MINOR.search(text)
    return int(found.group(1)) if found else None


def parse_is_administrator(status: str) -> bool:
    """Say whether a /proc/PID/status shows CAP_SYS_ADMIN in effect."""
    found = _CAPABILITIES.search(status)
    return bool(found and int(found.group(1), 16) >> _CAP_SYS_ADMIN & 1)


def mig_monitor_node(roots: Roots) -> Path | None:
    """Return the device node of `mig/monitor`; None where the driver has no such capability."""
    minor = parse_minor(read_text(roots.proc / _FILE) or "")
    return None if minor is None else roots.dev / f"nvidia-caps/nvidia-cap{minor}"


def sees_all_mig_instances(roots: Roots) -> bool:
    """Say whether this process may see instances that are not its own."""
    if parse_is_administrator(read_text(roots.proc / "self/status") or ""):
        return True
    node = mig_monitor_node(roots)
    return node is not None and os.access(node, os.R_OK)


def mig_monitor_line(roots: Roots) -> str:
    """Return the command that would let this process see all MIG instances."""
    file, node = (
        roots.proc / _FILE,
        mig_monitor_node(roots) or roots.dev / "nvidia-caps/nvidia-cap2",
    )
    return f"grant {file}: nvidia-modprobe -f {file} && setfacl -m u:{os.geteuid()}:r {node}"
