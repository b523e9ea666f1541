"""What names the host as a whole."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ...ext.hostfiles import CoreTimes, line_numbers
from ..hardware.cpu import cpu_model
from ..hardware.files import KeptFile, read_text
from ..hardware.roots import Roots


def labels(roots: Roots) -> dict[str, str]:
    """Return hostname, kernel, os, cpu, memory and driver version; without those that are not known."""
    proc = roots.proc
    cores = CoreTimes()
    cores.take(KeptFile(proc / "stat").read())
    (memory,) = line_numbers(KeptFile(proc / "meminfo").read(), (b"MemTotal:",))
    found = {
        "hostname": read_text(proc / "sys/kernel/hostname"),
        "kernel": read_text(proc / "sys/kernel/osrelease"),
        "cpu_model": cpu_model(proc),
        "cpu_cores": str(cores.count or ""),
        "memory_bytes": str(memory or ""),
        "nvidia_driver_version": read_text(roots.sys / "module/nvidia/version"),
        "os": _os_name() if roots.is_this_machine else "",
        "cpu_physical_cores": _physical_cores() if roots.is_this_machine else "",
    }
    return {name: value for name, value in found.items() if value}


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
