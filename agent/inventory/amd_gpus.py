"""AMD GPUs and their partitions, from sysfs, without ROCm's libraries."""

from __future__ import annotations

from pathlib import Path

from ..hardware import pci
from ..hardware.amdgpu import AmdGpu, amd_gpus, driver_version
from ..hardware.files import Roots, read_text
from . import ExcludedGpus, HostDevice

#: Characters reported of an attribute's text.
TEXT_CHARACTERS_MAX = 128
#: PCI device -> model, for boards whose FRU has no name (drivers/gpu/drm/amd/amdgpu/amdgpu_drv.c,
#: AMD's data sheets).
MODELS = {
    "0x7408": "AMD Instinct MI250X",
    "0x740c": "AMD Instinct MI250",
    "0x740f": "AMD Instinct MI210",
    "0x74a0": "AMD Instinct MI300A",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a5": "AMD Instinct MI325X",
    "0x75a0": "AMD Instinct MI350X",
    "0x75a3": "AMD Instinct MI355X",
}
#: Bit of `ras/features`: the memory (UMC) corrects errors; AMDGPU_RAS_BLOCK__UMC.
_MEMORY_FEATURE = 1 << 0
_FILES = {
    "serial": "serial_number",
    "board_part_number": "product_number",
    "vbios": "vbios_version",
    "memory_bytes": "mem_info_vram_total",
    "memory_vendor": "mem_info_vram_vendor",
    "xgmi_hive": "xgmi_hive_info/xgmi_hive_id",
    "xgmi_device": "xgmi_device_id",
}


def amd_devices(roots: Roots, left_out: ExcludedGpus = frozenset()) -> list[HostDevice]:
    """Return the AMD GPUs by unique id, and the partitions of split GPUs.

    GPUs in *left_out* are neither touched nor returned. ROCm's libraries are not used.
    """
    if left_out is None:
        return []
    driver = driver_version(roots.sys, roots.proc)
    devices: list[HostDevice] = []
    for gpu in amd_gpus(roots.sys):
        if gpu.address not in left_out:
            attributes = _attributes(gpu, driver)
            devices.append(HostDevice("gpu", gpu.key, attributes))
            devices += _partitions(gpu, attributes["name"])
    return devices


def _attributes(gpu: AmdGpu, driver: str) -> dict[str, str]:
    folder = Path(gpu.folder)
    node = pci.numa_node(folder)
    texts = {
        name: (read_text(folder / file) or "")[:TEXT_CHARACTERS_MAX]
        for name, file in _FILES.items()
    }
    attributes = {
        "name": _model(folder),
        "vendor": "AMD",
        "pci_address": gpu.address,
        "unique_id": gpu.key.removeprefix("GPU-") if gpu.key != gpu.address else "",
        "driver": driver,
        "numa_node": "" if node is None else str(node),
        "ecc_mode": _ecc_mode(folder),
        "compute_partition": gpu.compute_mode,
        "memory_partition": gpu.memory_mode,
        "compute_units": str(sum(partition.compute_units for partition in gpu.partitions) or ""),
        **texts,
    }
    return {name: value for name, value in attributes.items() if value}


def _model(folder: Path) -> str:
    """Return the board's name without its module form: the GPU is the same in every form."""
    name = (read_text(folder / "product_name") or "").removesuffix(" OAM")
    device = read_text(folder / "device") or "unknown"
    return name[:TEXT_CHARACTERS_MAX] or MODELS.get(device, f"AMD GPU {device}")


def _ecc_mode(folder: Path) -> str:
    """Return 1 if the memory corrects errors, 0 if not; empty if unknown."""
    text = read_text(folder / "ras/features") or ""
    mask = text.partition("feature mask: ")[2].partition("\n")[0].strip()
    try:
        return str(int(bool(int(mask, 16) & _MEMORY_FEATURE)))
    except ValueError:
        return ""


def _partitions(gpu: AmdGpu, model: str) -> list[HostDevice]:
    if not gpu.is_split:
        return []
    return [
        HostDevice(
            "mig",
            gpu.partition_key(partition.number),
            {
                "gpu": gpu.key,
                "name": f"{model} {gpu.compute_mode}/{gpu.memory_mode or 'NPS1'} partition {partition.number}",
                "gpu_instance": str(partition.number),
                "memory_bytes": str(partition.memory_bytes),
                "compute_units": str(partition.compute_units),
            },
        )
        for partition in gpu.partitions
    ]
