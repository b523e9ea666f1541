"""The set of GPUs expected on a host: all it has ever had, until others replace them.

The agent uses it for the GPUs that it finds, the aggregator for the GPUs that hosts register. Pure: sets in, sets out.
A set maps each GPU (UUID, as NVML gives it) to its PCI address ("" where unknown).
"""

from __future__ import annotations

from collections.abc import Mapping

#: More GPUs than a host has. Of GPUs that are gone no more are expected beside those that are there.
GPUS_MAX = 256
#: Drivers that hand a PCI function to a virtual machine: its GPU is none of the host's, and not lost.
PASSTHROUGH_DRIVERS = frozenset({"vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub", "xen-pciback"})


def is_uuid(key: str) -> bool:
    """Return whether *key* names a GPU for good: not the PCI address of one that never said who it is."""
    return key.startswith("GPU-")


def update_expected(expected: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Return the GPUs to expect of a host of which these were *expected*, once *found* was seen to work.

    A GPU that is gone stays expected. It counts as replaced, and is no longer expected, if another GPU is at its
    address, or if the host has as many GPUs as expected.
    """
    if len(found) >= len(expected):
        return dict(found)
    lost = missing(expected, found)
    occupied = frozenset(filter(None, found.values()))
    still_expected = {key: address for key, address in lost.items() if address not in occupied}
    return {**dict(list(still_expected.items())[: GPUS_MAX - len(found)]), **found}


def missing(expected: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
    """Return those of *expected* that are not among *found*."""
    return {key: address for key, address in expected.items() if key not in found}
