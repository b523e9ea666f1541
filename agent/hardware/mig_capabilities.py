"""Permission to see all MIG instances: capability files of the NVIDIA driver (MIG user guide)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .files import Roots, read_text

# A process that can open this capability file (MIG user guide, "Device nodes and capabilities"), or
# has CAP_SYS_ADMIN, sees all MIG instances. Any other process gets `no permission`, or fewer NVML
# events.
_FILE = "driver/nvidia/capabilities/mig/monitor"
_CAPABILITY_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d{1,7})\s*$", re.MULTILINE)
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-fA-F]{1,32})\s*$", re.MULTILINE)
_CAP_SYS_ADMIN = 21  # include/uapi/linux/capability.h


def parse_capability_minor(text: str) -> int | None:
    """Return the minor number of the capability's device node; None without one."""
    match = _CAPABILITY_MINOR.search(text)
    return int(match.group(1)) if match else None


def parse_is_administrator(status: str) -> bool:
    """Return whether a /proc/PID/status has CAP_SYS_ADMIN in effect."""
    match = _CAPABILITIES.search(status)
    return bool(match and int(match.group(1), 16) >> _CAP_SYS_ADMIN & 1)


def mig_monitor_node(roots: Roots) -> Path | None:
    """Return the device node of `mig/monitor`; None if the driver has no such capability."""
    minor = parse_capability_minor(read_text(roots.proc / _FILE) or "")
    return None if minor is None else roots.dev / f"nvidia-caps/nvidia-cap{minor}"


def sees_all_mig_instances(roots: Roots) -> bool:
    """Return whether this process may see instances of other owners."""
    if parse_is_administrator(read_text(roots.proc / "self/status") or ""):
        return True
    node = mig_monitor_node(roots)
    return node is not None and os.access(node, os.R_OK)


def mig_monitor_line(roots: Roots) -> str:
    """Return the command that lets this process see all MIG instances."""
    file = roots.proc / _FILE
    node = mig_monitor_node(roots) or roots.dev / "nvidia-caps/nvidia-cap2"
    return f"grant {file}: nvidia-modprobe -f {file} && setfacl -m u:{os.geteuid()}:r {node}"
