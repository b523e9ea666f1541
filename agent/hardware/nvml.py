"""What the kernel's side of the NVIDIA driver says of its GPUs without a call into any of them."""

from __future__ import annotations

import re
from pathlib import Path

from ...ext import place
from .files import names_in, read_text

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", re.MULTILINE)
_KERNEL_VERSION = re.compile(r"^NVRM version:.*?\s(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)\s", re.MULTILINE)


def driver_gpus(proc: Path) -> list[str]:
    """Return the PCI addresses in /proc/driver/nvidia/gpus, in order; also of GPUs that are lost."""
    return [n for n in names_in(proc / "driver/nvidia/gpus") if _ADDRESS.fullmatch(n)]


def driver_gpu_uuid(proc: Path, address: str) -> str:
    """Return the UUID that the driver remembers of a GPU; empty when it never learned it. Asks the driver."""
    place.enter(address.encode(), b"read /proc/driver/nvidia/gpus information")
    text = read_text(proc / "driver/nvidia/gpus" / address / "information")
    place.leave()
    return parse_uuid(text or "")


def pci_gpus(sys: Path) -> list[str]:
    """Return the PCI addresses that the NVIDIA driver is on, in order, as the kernel has it. Asks no driver."""
    return [n for n in names_in(sys / "bus/pci/drivers/nvidia") if _ADDRESS.fullmatch(n)]


def is_bound(sys: Path, address: str) -> bool | None:
    """Say whether the NVIDIA driver is on a GPU; None where the kernel's list is not to be seen. Asks no driver."""
    folder = sys / "bus/pci/drivers/nvidia"
    return (folder / address).exists() if folder.is_dir() else None


def parse_uuid(information: str) -> str:
    """Return the UUID of an `information` file; empty for `GPU-????????-...` (never attached)."""
    found = _UUID.search(information)
    return found.group(1) if found else ""


def kernel_driver_version(proc: Path) -> str:
    """Return the version of the driver that the kernel has loaded, from /proc/driver/nvidia/version; or nothing."""
    return parse_kernel_driver_version(read_text(proc / "driver/nvidia/version") or "")


def parse_kernel_driver_version(text: str) -> str:
    """Return `590.48.01` of `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  590.48.01  Release Build ...`."""
    found = _KERNEL_VERSION.search(text)
    return found.group(1) if found else ""
