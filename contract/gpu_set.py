"""The set of GPUs expected on a host: all GPUs that it has ever had, until other GPUs replace them.

The agent uses it for the GPUs that it finds, the aggregator for the GPUs that hosts register. Pure: sets in, sets out.
A set maps each GPU (UUID, as NVML gives it) to its PCI address ("" where unknown).
"""

from __future__ import annotations

from collections.abc import Mapping

#: Limit of the expected set, above the GPUs of any host. Beyond it missing GPUs are dropped, present GPUs never.
GPUS_MAX = 256
#: Drivers that hand a PCI function to a virtual machine: its GPU does not belong to the host, and is not lost.
PASSTHROUGH_DRIVERS = frozenset({"vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub", "xen-pciback"})


def is_uuid(key: str) -> bool:
    """Return whether *key* names a GPU for good; a GPU that never gave its UUID has its PCI address as key."""
    return key.startswith("GPU-")


def update_expected(expected: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Return the GPUs to expect of a host, from those *expected* so far and those *found* to work.

    A missing GPU stays expected. It counts as replaced, and is no longer expected, if another GPU is at its address, or
    if the host has at least the expected number of GPUs.
    """
    if len(found) >= len(expected):
        return dict(found)
    lost = missing(expected, found)
    occupied = frozenset(filter(None, found.values()))
    still_expected = {key: address for key, address in lost.items() if address not in occupied}
    return {**dict(list(still_expected.items())[: GPUS_MAX - len(found)]), **found}


def missing(expected: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    return {key: address for key, address in expected.items() if key not in found}
