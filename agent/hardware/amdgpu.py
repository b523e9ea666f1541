"""AMD GPUs in sysfs: /sys/class/drm, the RAS folder, and KFD's topology and processes.

Sources: Documentation/gpu/amdgpu (driver-misc, ras, thermal), drivers/gpu/drm/amd/amdkfd/kfd_topology.c and kfd_process.c.
AMD's own libraries are not used, because their binary interface changes from release to release.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from . import pci
from .files import READ, device_key, names_in, read_text, read_unsigned
from .kfd import KfdNode, kfd_nodes

AMD = 0x1002
DRIVER = "amdgpu"
#: Maximum of GPUs and of RAS blocks; more are left out.
GPUS_MAX, RAS_BLOCKS_MAX = 64, 64
#: AMD retires at most one page per 100 MB: 2,000 on an MI300X, in lines of 28 characters.
BAD_PAGES_BYTES_MAX = 256 << 10

_CARD = re.compile(r"card\d{1,6}$")
_UNIQUE_ID = re.compile(r"[0-9a-f]{16}$")
_LEVEL = re.compile(r"\s*\w{1,4}:\s*(\d{1,6})\s*[Mm][Hh]z")

_COUNT = "_err_count"
#: Tenths of GT/s -> PCIe generation.
GENERATIONS: Mapping[int, int] = {25: 1, 50: 2, 80: 3, 160: 4, 320: 5, 640: 6}


@dataclass(frozen=True, slots=True)
class Partition:
    """A compute partition of a GPU (XCP), which programs see as a GPU; in SPX the only one."""

    number: int
    kfd_id: int
    compute_units: int
    compute_dies: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """A GPU; the two dies of an MI250X are two GPUs."""

    key: str  # `GPU-` and the driver's unique id, as in ROCm; without an id the PCI address
    address: str
    folder: str  # folder of the PCI function
    hwmon: str  # folder of its sensors; empty: none
    compute_mode: str  # SPX, DPX, TPX, QPX, CPX; empty: cannot be split
    memory_mode: str  # NPS1, NPS2, NPS4, NPS8
    ras_blocks: tuple[str, ...]  # blocks that count errors: umc, gfx, sdma, ...
    partitions: tuple[Partition, ...]
    may_sleep: bool = False

    @property
    def is_split(self) -> bool:
        """Whether programs see it as several GPUs."""
        return self.compute_mode not in ("", "SPX")

    def partition_key(self, number: int) -> str:
        return device_key(f"{self.key}/xcp{number}")


def amd_gpus(sys: Path) -> list[AmdGpu]:
    """Return the driver's GPUs by PCI address. Never raises; unknown values are empty."""
    nodes = list(kfd_nodes(sys))
    gpus: dict[str, AmdGpu] = {}
    for card in names_in(sys / "class/drm"):
        folder = sys / "class/drm" / card / "device"
        if _CARD.match(card) and read_unsigned(folder / "vendor", 16) == AMD:
            gpu = _gpu(Path(os.path.realpath(folder)), nodes)
            if gpu is not None:  # partitions have cards too, without a PCI function
                gpus[gpu.address] = gpu
    return [gpus[address] for address in sorted(gpus)][:GPUS_MAX]


def _gpu(folder: Path, nodes: Iterable[KfdNode]) -> AmdGpu | None:
    address = folder.name
    if not pci.is_address(address) or (folder / "physfn").exists():
        return None
    sensors = [name for name in names_in(folder / "hwmon") if name.startswith("hwmon")]
    blocks = sorted(
        name.removesuffix(_COUNT) for name in names_in(folder / "ras") if name.endswith(_COUNT)
    )
    return AmdGpu(
        key=unique_key(folder) or address,
        address=address,
        folder=str(folder),
        hwmon=str(folder / "hwmon" / sensors[0]) if sensors else "",
        compute_mode=(read_text(folder / "current_compute_partition") or "").upper(),
        memory_mode=(read_text(folder / "current_memory_partition") or "").upper(),
        ras_blocks=tuple(blocks[:RAS_BLOCKS_MAX]),
        partitions=tuple(
            Partition(number, node.kfd_id, node.compute_units, node.compute_dies, node.memory_bytes)
            for number, node in enumerate(node for node in nodes if node.address == address)
        ),
        may_sleep=pci.may_sleep(folder),
    )


def unique_key(folder: Path) -> str:
    """Return `GPU-` and the unique id (16 hex digits) as in ROCR_VISIBLE_DEVICES, or ""."""
    text = (read_text(folder / "unique_id") or "").lower()
    return f"GPU-{text}" if _UNIQUE_ID.match(text) and text.strip("0") else ""


class BadPages(NamedTuple):
    """Counts of a GPU's bad memory pages. `more`: the list is longer than the part read."""

    reserved: int
    pending: int
    more: bool = False


def parse_bad_pages(text: bytes) -> BadPages:
    """Return the counts of `ras/gpu_vram_bad_pages`, with lines `0x00000001 : 0x00001000 : R`.

    R: reserved, no longer used. P and F: pending, or not yet removable; the driver reserves such a
    page when it is loaded again. Other lines are ignored.
    """
    flags = [
        line.rpartition(b":")[2].strip() for line in text.splitlines() if line.startswith(b"0x")
    ]
    return BadPages(
        flags.count(b"R"), flags.count(b"P") + flags.count(b"F"), len(text) >= BAD_PAGES_BYTES_MAX
    )


def read_bad_pages(folder: str) -> BadPages | None:
    """Return the bad pages of a GPU; None if it does not show them."""
    try:
        descriptor = os.open(f"{folder}/ras/gpu_vram_bad_pages", READ)
    except OSError:
        return None
    try:
        parts: list[bytes] = []
        while sum(map(len, parts)) < BAD_PAGES_BYTES_MAX and (part := os.read(descriptor, 65536)):
            parts.append(part)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return parse_bad_pages(b"".join(parts)[:BAD_PAGES_BYTES_MAX])


def parse_levels_max(text: str | None) -> float | None:
    """Return the highest clock of lines `1: 2100Mhz *` (pp_dpm_sclk) in hertz, or None."""
    matches = [_LEVEL.match(line) for line in (text or "").splitlines()[:64]]
    highest = max((int(match[1]) for match in matches if match is not None), default=0)
    return highest * 1e6 if highest else None


def link_max(sys: Path, gpu: AmdGpu) -> tuple[float | None, int | None]:
    """Return the highest PCIe generation and lane count that GPU and slot both support.

    A GPU of AMD is behind a switch of its own: the minimum is taken up to the first bridge of
    another vendor.
    """
    parents, _ = pci.chain_to_root(gpu.folder)
    speeds: list[int] = []
    widths: list[int] = []
    for folder in (Path(gpu.folder), *(sys / "bus/pci/devices" / parent for parent in parents)):
        speed = pci.parse_link_speed(read_text(folder / "max_link_speed"))
        width = read_unsigned(folder / "max_link_width")
        if speed is not None and round(speed / 1e8) in GENERATIONS:
            speeds.append(GENERATIONS[round(speed / 1e8)])
        if width is not None and 0 < width <= 32:
            widths.append(width)
        if read_unsigned(folder / "vendor", 16) != AMD or str(folder).endswith(
            parents[-1:] or ("",)
        ):
            break
    return min(speeds, default=None), min(widths, default=None)


def is_off_bus(folder: str) -> bool:
    """Return whether a GPU's configuration space reads as all ones: it is gone or hangs."""
    try:
        with open(f"{folder}/config", "rb", buffering=0) as file:
            return file.read(4) == b"\xff" * 4
    except OSError:
        return False


def driver_version(sys: Path, proc: Path) -> str:
    """Return the version of AMD's driver package, or of the kernel that has the driver."""
    own = read_text(sys / "module/amdgpu/version")
    if own:
        return own
    release = read_text(proc / "sys/kernel/osrelease")
    return f"linux-{release}" if release and (sys / "module/amdgpu").exists() else ""
