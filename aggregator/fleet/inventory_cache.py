"""Inventories of hosts in memory: attributes of devices, with equal values shared.

The store has the complete inventories. A host of eight GPUs has 200 devices with a dozen attributes
each: 0.2 MB per host, although similar hosts differ only in serial numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from ...contract.wire.telemetry_pb2 import Device, HealthEvent

#: Attributes that rules, VerifyIsolation, `fleet.py`, `peers.py` and `devices.py` use.
ATTRIBUTES = (
    "board_part_number", "cpus", "device_number", "driver", "ecc_mode", "iommu_group", "iommu_type", "link_layer",
    "mig_mode", "minor_number", "name", "nearest_nics", "numa_node", "parents", "pci_address", "problem", "vbios",
    "vendor",
)  # fmt: skip
#: Devices of these kinds are kept even without attributes, because rules check that they exist: a
#: mount that disappeared is no longer read-only, and a bond that disappeared is not down.
ALWAYS_LISTED_KINDS = ("gpu", "filesystem", "net")
#: Limit of distinct shared values, against hosts that invent devices; further ones are not shared.
SHARED_MAX = 100_000
Attributes = dict[str, str]


class InventoryCache:
    """Shares equal keys and attributes between hosts."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}
        self._attributes: dict[tuple[str, ...], Attributes] = {}

    def intern(self, devices: Sequence[Device]) -> dict[tuple[str, str], Attributes]:
        """Return (kind, key) -> attributes of a host.

        Devices without attributes are included only if their kind is in ALWAYS_LISTED_KINDS.
        """
        inventory: dict[tuple[str, str], Attributes] = {}
        for device in devices:
            attributes = self._shared(device)
            if attributes or device.kind in ALWAYS_LISTED_KINDS:
                inventory[self._key(device)] = attributes
        return inventory

    def _key(self, device: Device) -> tuple[str, str]:
        if device.kind == "gpu":
            # Shared with the keys in `jobs.py`.
            return "gpu", sys.intern(device.key)
        key = device.kind, device.key
        if len(self._keys) >= SHARED_MAX:
            return key
        return self._keys.setdefault(key, key)

    def _shared(self, device: Device) -> Attributes:
        values = tuple(device.attributes.get(name, "") for name in ATTRIBUTES)
        known = self._attributes.get(values)
        if known is None:
            known = {name: text for name, text in zip(ATTRIBUTES, values, strict=True) if text}
            if len(self._attributes) < SHARED_MAX:
                self._attributes[values] = known
        return known


#: (kind, key) of each device -> its attributes.
Inventory = Mapping[tuple[str, str], Mapping[str, str]]


def device_of(inventory: Inventory, event: HealthEvent) -> str:
    """Return the device of *event*: a GPU's UUID, even if the kernel named its PCI address."""
    device = event.device or "host"
    if not event.name.startswith("gpu."):
        return device
    wanted = device.lower()
    for (kind, key), attributes in inventory.items():
        if kind == "gpu" and wanted in (key.lower(), attributes.get("pci_address", "").lower()):
            return key
    return device


def driver_of(inventory: Inventory, device: str) -> str:
    """Return the driver version of the GPU, or of any GPU of the host; "" if unknown."""
    driver = inventory.get(("gpu", device), {}).get("driver")
    others = (a["driver"] for (kind, _), a in inventory.items() if kind == "gpu" and "driver" in a)
    return driver or next(others, "")
