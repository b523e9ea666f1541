"""NVIDIA GPUs as /proc and sysfs show them, read without calling the GPU."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from ...ext import place
from .files import names_in, read_text

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)
_KERNEL_VERSION = re.compile(r"^NVRM version:.*?\s(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)\s", re.MULTILINE)


def driver_gpus(proc: Path) -> list[str]:
    """Return the sorted PCI addresses in /proc/driver/nvidia/gpus, including lost GPUs."""
    return [n for n in names_in(proc / "driver/nvidia/gpus") if _ADDRESS.fullmatch(n)]


def driver_gpu_uuid(proc: Path, address: str) -> str:
    """Return the driver's UUID of a GPU; empty if it never read one. Enters the driver."""
    place.enter(address.encode(), b"read /proc/driver/nvidia/gpus information")
    text = read_text(proc / "driver/nvidia/gpus" / address / "information")
    place.leave()
    return parse_uuid(text or "")


def driver_gpu_minors(proc: Path) -> dict[str, int]:
    """Return UUID -> minor number of the device node of each GPU. Enters the driver."""
    minors: dict[str, int] = {}
    for address in driver_gpus(proc):
        place.enter(address.encode(), b"read /proc/driver/nvidia/gpus information")
        text = read_text(proc / "driver/nvidia/gpus" / address / "information") or ""
        place.leave()
        if match := _MINOR.search(text):
            minors[parse_uuid(text)] = int(match[1])
    return minors


def pci_gpus(sys: Path) -> list[str]:
    """Return the sorted PCI addresses bound to the NVIDIA driver, without calling it."""
    return [n for n in names_in(sys / "bus/pci/drivers/nvidia") if _ADDRESS.fullmatch(n)]


def device_rules_deny(dev: Path) -> bool:
    """Return whether a cgroup denies this process the driver's control device.

    That gives EPERM; the mode of a file gives EACCES. The kernel refuses before it calls the driver
    (security/device_cgroup.c; for cgroup v2 a BPF program).
    """
    place.enter(b"", b"open /dev/nvidiactl")
    try:
        os.close(os.open(dev / "nvidiactl", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno == errno.EPERM
    finally:
        place.leave()
    return False


def is_bound(sys: Path, address: str) -> bool | None:
    """Return whether a GPU is bound to the NVIDIA driver; None if unknown.

    This does not call the driver.
    """
    folder = sys / "bus/pci/drivers/nvidia"
    return (folder / address).exists() if folder.is_dir() else None


def parse_uuid(information: str) -> str:
    """Return the UUID of an `information` file; empty for `GPU-????????-...` (never attached)."""
    match = _UUID.search(information)
    return match.group(1) if match else ""


def kernel_driver_version(proc: Path) -> str:
    """Return the loaded driver's version, by /proc/driver/nvidia/version; "" without a driver."""
    return parse_kernel_driver_version(read_text(proc / "driver/nvidia/version") or "")


def parse_kernel_driver_version(text: str) -> str:
    """Return `590.48.01` from `NVRM version: NVIDIA UNIX ... x86_64  590.48.01  Release ...`."""
    match = _KERNEL_VERSION.search(text)
    return match.group(1) if match else ""
