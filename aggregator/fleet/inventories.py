"""What is kept of the hosts' inventories: what judgement reads, equal things once.

All of an inventory is in the store. A host of eight GPUs lists two hundred devices with a dozen attributes each: in
memory that is 0.2 MB a host, and hosts of one make differ in little but the serial numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..messages import DeviceLike

#: Attributes that rules, `naming.py`, `peers.py` and `wiring.py` ask for.
ATTRIBUTES = (
    "board_part_number", "driver", "ecc_mode", "link_layer", "name", "parents", "pci_address", "vbios",
)  # fmt: skip
#: So many different devices are shared between hosts; more would be an attack, and is kept apart.
SHARED_MAX = 100_000

Attributes = dict[str, str]


class Inventories:
    """Makes the inventories of a fleet's hosts."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, str], tuple[str, str]] = {}
        self._attributes: dict[tuple[str, ...], Attributes] = {}

    def kept(self, devices: Sequence[DeviceLike]) -> dict[tuple[str, str], Attributes]:
        """Return (kind, key) -> attributes of one host; a device without any is there if it is a GPU."""
        found: dict[tuple[str, str], Attributes] = {}
        for device in devices:
            attributes = self._shared(device)
            if attributes or device.kind == "gpu":
                found[self._key(device)] = attributes
        return found

    def _key(self, device: DeviceLike) -> tuple[str, str]:
        if device.kind == "gpu":
            # The kind once for all, and the key once for here and for who runs there (`jobs.py`).
            return "gpu", sys.intern(device.key)
        key = device.kind, device.key
        if len(self._keys) >= SHARED_MAX:
            return key
        return self._keys.setdefault(key, key)

    def _shared(self, device: DeviceLike) -> Attributes:
        said = tuple(device.attributes.get(name, "") for name in ATTRIBUTES)
        known = self._attributes.get(said)
        if known is None:
            known = {name: text for name, text in zip(ATTRIBUTES, said, strict=True) if text}
            if len(self._attributes) < SHARED_MAX:
                self._attributes[said] = known
        return known
