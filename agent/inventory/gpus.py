"""GPUs, by NVIDIA's own binding: this child has the time and the memory for it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Container, Iterator
from typing import Any

from ..hardware.nvml import driver_gpu_uuid, driver_gpus
from ..hardware.roots import Roots
from . import Device

#: More GPUs than a host has; a broken library claimed four billion.
GPUS_MAX = 256


def gpus(roots: Roots) -> list[Device]:
    """Return the GPUs by UUID; none without pynvml, the driver or a GPU.

    Raises pynvml.NVMLError when the driver is there and refuses.
    """
    if not roots.is_this_machine and not roots.nvml_library:
        return []
    try:
        import pynvml
    except ImportError:
        return []
    if roots.nvml_library:
        # the binding loads a fixed name; this is its own place for the loaded library
        try:
            pynvml.nvmlLib = ctypes.CDLL(roots.nvml_library)
        except OSError:
            return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) in (
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        ):
            return []
        raise
    try:
        found = list(_answering(pynvml))
    finally:
        pynvml.nvmlShutdown()
    return found + _silent(roots, {device.attributes.get("pci_address") for device in found})


def _answering(pynvml: Any) -> Iterator[Device]:
    for index in range(min(GPUS_MAX, pynvml.nvmlDeviceGetCount())):
        with contextlib.suppress(pynvml.NVMLError):  # one lost GPU must not cost the others
            yield _gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))


def _silent(roots: Roots, seen: Container[str | None]) -> list[Device]:
    """Return the GPUs that the kernel's driver lists and NVML said nothing of."""
    return [
        Device(
            "gpu",
            driver_gpu_uuid(roots.proc, address) or address,
            {"pci_address": address, "problem": "NVML does not answer for this GPU"},
        )
        for address in driver_gpus(roots.proc)
        if address not in seen
    ]


def _gpu(pynvml: Any, handle: object) -> Device:
    questions: dict[str, Callable[[], object]] = {
        "name": lambda: pynvml.nvmlDeviceGetName(handle),
        "serial": lambda: pynvml.nvmlDeviceGetSerial(handle),
        "pci_address": lambda: sysfs_address(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        "memory_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        "vbios": lambda: pynvml.nvmlDeviceGetVbiosVersion(handle),
        "driver": pynvml.nvmlSystemGetDriverVersion,
        "compute_capability": lambda: ".".join(
            map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle))
        ),
        "ecc_mode": lambda: pynvml.nvmlDeviceGetEccMode(handle)[0],
        "persistence_mode": lambda: pynvml.nvmlDeviceGetPersistenceMode(handle),
    }
    attributes: dict[str, str] = {}
    for name, question in questions.items():
        with contextlib.suppress(pynvml.NVMLError):  # not every GPU has an answer to each
            attributes[name] = as_text(question())
    return Device("gpu", as_text(pynvml.nvmlDeviceGetUUID(handle)), attributes)


def as_text(value: object) -> str:
    """Return a value of the binding as text; older ones give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def sysfs_address(bus_id: str | bytes) -> str:
    """Return `0000:18:00.0` for NVML's `00000000:18:00.0`: sysfs writes four digits of domain."""
    domain, _, rest = as_text(bus_id).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
