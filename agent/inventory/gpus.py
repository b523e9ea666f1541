"""NVIDIA GPUs, their MIG devices and remote ends of NVLinks, by NVIDIA's Python binding.

The binding is too large for the daemon, but not for this short-lived child. A query that fails
leaves out only its own value. NVML does not report the kind of HBM, and the number of SMs only on
some GPUs: neither is guessed.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..hardware.files import Roots
from ..hardware.nvidia import driver_gpu_uuid, driver_gpus, pci_gpus
from . import ExcludedGpus, HostDevice
from .gpu_platform import fabric, platform

#: Above the memory of any GPU (1 PiB): excludes NVML's all ones for "not available".
MEMORY_BYTES_MAX = 1 << 50
#: Above the GPUs of any host; a broken library reported four billion.
GPUS_MAX = 256
LINKS_MAX = 64
MIG_DEVICES_MAX = 64

#: nvmlDeviceArchitecture_t
ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
#: nvmlIntNvLinkDeviceType_t
FAR_ENDS = {0: "GPU", 1: "CPU", 2: "switch"}
#: Attributes of GPUs that were not queried: they do not respond, or permission is missing.
PROBLEM, HIDDEN = "problem", "hidden"
_NVLINK_COUNT, _REMOTE_LINK = 91, 146  # field ids
_OEM, _ECC, _POWER = 0, 1, 2  # nvmlInforomObject_t

Query = Callable[[], object]


def gpus(roots: Roots, left_out: ExcludedGpus = frozenset()) -> list[HostDevice]:
    """Return the GPUs by UUID, their MIG devices and NVLinks.

    The list is empty without pynvml, the driver or a GPU. GPUs in *left_out* are neither touched
    nor returned. Raises pynvml.NVMLError if the driver refuses.
    """
    if left_out is None or (not roots.is_this_machine and not roots.nvml_library):
        return []
    try:
        import pynvml
    except ImportError:
        return []
    if roots.nvml_library:
        # The binding loads a fixed name; this is its variable for the loaded library.
        try:
            pynvml.nvmlLib = ctypes.CDLL(roots.nvml_library)
        except OSError:
            return []
    try:
        # As in `ext/nvml.pyx`: with NO_ATTACH drivers before 590.37 show no GPU. Only its handle
        # attaches a GPU.
        pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) in (
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        ):
            return []
        raise
    try:
        devices = list(_responding_gpus(pynvml, roots, left_out))
    finally:
        pynvml.nvmlShutdown()
    known = {device.attributes.get("pci_address") for device in devices}
    return devices + [
        _driver_listed_gpu(roots, address, PROBLEM, "NVML does not respond for this GPU")
        for address in driver_gpus(roots.proc)
        if address not in known | left_out
    ]


def _handles(pynvml: Any, roots: Roots, left_out: frozenset[str]) -> Iterator[tuple[str, Query]]:
    """Yield each GPU's address and attaching call.

    Without a list of addresses, GPUs are attached by index and have the address "".
    """
    addresses = driver_gpus(roots.proc) or pci_gpus(roots.sys)
    for address in addresses[:GPUS_MAX]:
        if address not in left_out:
            yield address, partial(pynvml.nvmlDeviceGetHandleByPciBusId, address.encode())
    if not addresses and not left_out:
        for index in range(min(GPUS_MAX, pynvml.nvmlDeviceGetCount())):
            yield "", partial(pynvml.nvmlDeviceGetHandleByIndex, index)


def _responding_gpus(pynvml: Any, roots: Roots, left_out: frozenset[str]) -> Iterator[HostDevice]:
    for address, attach in _handles(pynvml, roots, left_out):
        try:  # a lost GPU must not affect the others
            handle = attach()
            gpu = _gpu(pynvml, handle)
            yield gpu
            yield from _links(pynvml, handle, gpu.key)
            yield from _mig_devices(pynvml, handle, gpu.key)
        except pynvml.NVMLError as error:
            if address and getattr(error, "value", None) == pynvml.NVML_ERROR_NO_PERMISSION:
                yield _driver_listed_gpu(
                    roots, address, HIDDEN, "no permission: let the agent open /dev/nvidia[0-9]*"
                )


def _driver_listed_gpu(roots: Roots, address: str, attribute: str, message: str) -> HostDevice:
    key = driver_gpu_uuid(roots.proc, address) or address
    return HostDevice("gpu", key, {"pci_address": address, attribute: message})


def _gpu(pynvml: Any, handle: object) -> HostDevice:
    attributes: dict[str, str] = {}
    for read in (_platform, _fabric):
        with contextlib.suppress(pynvml.NVMLError, AttributeError):
            attributes |= read(pynvml, handle)
    attributes |= _query_all(pynvml, _board(pynvml, handle) | _modes(pynvml, handle))
    return HostDevice("gpu", as_text(pynvml.nvmlDeviceGetUUID(handle)), attributes)


def _board(pynvml: Any, handle: object) -> dict[str, Query]:
    nv = pynvml
    return {
        "name": lambda: nv.nvmlDeviceGetName(handle),
        "serial": lambda: nv.nvmlDeviceGetSerial(handle),
        "pci_address": lambda: sysfs_address(nv.nvmlDeviceGetPciInfo(handle).busId),
        "board_part_number": lambda: nv.nvmlDeviceGetBoardPartNumber(handle),
        "board_id": lambda: nv.nvmlDeviceGetBoardId(handle),
        "architecture": lambda: _name_of(ARCHITECTURES, nv.nvmlDeviceGetArchitecture(handle)),
        "compute_capability": lambda: ".".join(
            map(str, nv.nvmlDeviceGetCudaComputeCapability(handle))
        ),
        "cuda_cores": lambda: nv.nvmlDeviceGetNumGpuCores(handle),
        "sm_count": lambda: nv.nvmlDeviceGetAttributes(handle).multiprocessorCount,
        "memory_bytes": lambda: _bytes(nv.nvmlDeviceGetMemoryInfo(handle).total),
        "memory_bus_bits": lambda: nv.nvmlDeviceGetMemoryBusWidth(handle),
        "nvlink_count": lambda: _field(nv, handle, _NVLINK_COUNT),
        "vbios": lambda: nv.nvmlDeviceGetVbiosVersion(handle),
        "inforom_image": lambda: nv.nvmlDeviceGetInforomImageVersion(handle),
        "inforom_oem": lambda: nv.nvmlDeviceGetInforomVersion(handle, _OEM),
        "inforom_ecc": lambda: nv.nvmlDeviceGetInforomVersion(handle, _ECC),
        "inforom_power": lambda: nv.nvmlDeviceGetInforomVersion(handle, _POWER),
        "module_id": lambda: nv.nvmlDeviceGetModuleId(handle),
    }


def _modes(pynvml: Any, handle: object) -> dict[str, Query]:
    """Return the queries of the driver's and the host's settings of a GPU."""
    nv = pynvml
    return {
        "driver": nv.nvmlSystemGetDriverVersion,
        "cuda_driver": lambda: cuda_version(nv.nvmlSystemGetCudaDriverVersion()),
        "gsp_mode": lambda: nv.nvmlDeviceGetGspFirmwareMode(handle)[0],
        "gsp_firmware": lambda: nv.nvmlDeviceGetGspFirmwareVersion(handle),
        "ecc_mode": lambda: nv.nvmlDeviceGetEccMode(handle)[0],
        "persistence_mode": lambda: nv.nvmlDeviceGetPersistenceMode(handle),
        "mig_mode": lambda: nv.nvmlDeviceGetMigMode(handle)[0],
        "mig_mode_pending": lambda: nv.nvmlDeviceGetMigMode(handle)[1],
        "mig_devices_max": lambda: nv.nvmlDeviceGetMaxMigDeviceCount(handle),
        "minor_number": lambda: nv.nvmlDeviceGetMinorNumber(handle),
        "numa_node": lambda: nv.nvmlDeviceGetNumaNodeId(handle),
        "confidential_computing": lambda: nv.nvmlSystemGetConfComputeState().ccFeature,
    }


def _bytes(total: int) -> int:
    """Return *total*; raise ValueError for NVML's "not available" (all ones)."""
    if not 0 < total < MEMORY_BYTES_MAX:
        raise ValueError(f"{total} bytes of memory")
    return total


def _query_all(pynvml: Any, queries: dict[str, Query]) -> dict[str, str]:
    """Return the available answers: some GPUs, drivers or bindings lack some."""
    values: dict[str, str] = {}
    for name, query in queries.items():
        with contextlib.suppress(pynvml.NVMLError, AttributeError, ValueError):
            values[name] = as_text(query())
    return {name: value for name, value in values.items() if value}


def _field(pynvml: Any, handle: object, field: int, scope: int = 0) -> int:
    """Return an unsigned field. Raises NVMLError without a value."""
    value = pynvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    wide = value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    return int(value.value.ullVal if wide else value.value.uiVal)


def _platform(pynvml: Any, handle: object) -> dict[str, str]:
    """Return the newer layout, or the older one if the driver does not support it."""
    try:
        info = pynvml.c_nvmlPlatformInfo_v2_t()
        pynvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(info))
        return platform(bytes(info), 2)
    except pynvml.NVMLError:
        info = pynvml.c_nvmlPlatformInfo_v1_t()
        pynvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(info))
        return platform(bytes(info), 1)


def _fabric(pynvml: Any, handle: object) -> dict[str, str]:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return fabric(bytes(info.clusterUuid), info.cliqueId, info.state)


def _links(pynvml: Any, handle: object, gpu: str) -> Iterator[HostDevice]:
    """Yield each NVLink with its remote end."""
    count = 0
    with contextlib.suppress(pynvml.NVMLError):
        count = min(LINKS_MAX, _field(pynvml, handle, _NVLINK_COUNT))
    for link in range(count):
        yield HostDevice(
            "nvlink", f"{gpu}/link{link}", {"gpu": gpu} | _far_end(pynvml, handle, link)
        )


def _far_end(pynvml: Any, handle: object, link: int) -> dict[str, str]:
    nv = pynvml
    return _query_all(
        pynvml,
        {
            "active": lambda: nv.nvmlDeviceGetNvLinkState(handle, link),
            "remote_kind": lambda: _name_of(
                FAR_ENDS, nv.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
            ),
            "remote_pci_address": lambda: sysfs_address(
                nv.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
            ),
            "remote_link": lambda: _field(nv, handle, _REMOTE_LINK, link),
        },
    )


def _mig_devices(pynvml: Any, handle: object, gpu: str) -> Iterator[HostDevice]:
    """Yield the MIG devices; an index without a device is skipped."""
    nv, count = pynvml, 0
    with contextlib.suppress(nv.NVMLError):
        if nv.nvmlDeviceGetMigMode(handle)[0]:
            count = min(MIG_DEVICES_MAX, nv.nvmlDeviceGetMaxMigDeviceCount(handle))
    for index in range(count):
        with contextlib.suppress(nv.NVMLError):
            mig = nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            uuid = as_text(nv.nvmlDeviceGetUUID(mig))
            yield HostDevice("mig", uuid, {"gpu": gpu} | _query_all(nv, _instance(nv, mig)))


def _instance(nv: Any, mig: object) -> dict[str, Query]:
    return {
        "name": lambda: nv.nvmlDeviceGetName(mig),
        "gpu_instance": lambda: nv.nvmlDeviceGetGpuInstanceId(mig),
        "compute_instance": lambda: nv.nvmlDeviceGetComputeInstanceId(mig),
        "memory_bytes": lambda: _bytes(nv.nvmlDeviceGetMemoryInfo(mig).total),
        "sm_count": lambda: nv.nvmlDeviceGetAttributes(mig).multiprocessorCount,
    }


def _name_of(names: dict[int, str], number: int) -> str:
    return names.get(number, str(number))


def cuda_version(number: int) -> str:
    """Return `12.9` for NVML's 12090."""
    return f"{number // 1000}.{number % 1000 // 10}"


def as_text(value: object) -> str:
    """Return a value of the binding as text; old bindings return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def sysfs_address(bus_id: str | bytes) -> str:
    """Return `0000:18:00.0` for NVML's `00000000:18:00.0`: sysfs has four digits of domain."""
    domain, _, rest = as_text(bus_id).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
