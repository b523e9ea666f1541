"""Which device an event is about, by the inventory that its host registered."""

from __future__ import annotations

from collections.abc import Mapping

from ..messages import EventLike

#: (kind, key) of each device -> its attributes.
Inventory = Mapping[tuple[str, str], Mapping[str, str]]


def device_of(inventory: Inventory, event: EventLike) -> str:
    """Return the device of *event*: a GPU's UUID where the kernel named it by PCI address."""
    device = event.device or "host"
    if not event.name.startswith("gpu."):
        return device
    wanted = device.lower()
    for (kind, key), attributes in inventory.items():
        if kind == "gpu" and wanted in (key.lower(), attributes.get("pci_address", "").lower()):
            return key
    return device


def driver_of(inventory: Inventory, device: str) -> str:
    """Return the version of the GPU's driver, or of any GPU's; "" where the host told none."""
    own = inventory.get(("gpu", device), {}).get("driver")
    others = (a["driver"] for (kind, _), a in inventory.items() if kind == "gpu" and "driver" in a)
    return own or next(others, "")
