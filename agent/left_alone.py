"""Which GPU is to be left alone after what its driver said, and when that is said anew. Pure: events in, GPUs out.

A GPU that fell off the bus (XID 79), or whose firmware does not answer (119, 120), holds every call for seconds and may
never give it back. How long it is left alone, in growing intervals, is the supervisor's of the samplers; here is only
what begins it.
"""

from __future__ import annotations

import re

from ..fingerprints.wire.telemetry_pb2 import HealthEvent

SECOND_NS = 1_000_000_000
#: XIDs after which every call may hang, and why, in words.
CODES = {
    79: "XID 79: it fell off the bus",
    119: "XID 119: its firmware (GSP) does not answer",
    120: "XID 120: its firmware (GSP) failed",
}
LOST = "gpu.lost"
#: What was said longer ago is old news, as the log of hours ago that is read at a start: the samplers know better.
FRESH_NS_MAX = 60 * SECOND_NS
#: A storm about one GPU is one cause.
AGAIN_NS_MIN = 10 * SECOND_NS
GPUS_MAX = 256
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_address(name: str) -> bool:
    """Say whether *name* is a PCI address as sysfs writes it."""
    return _ADDRESS.fullmatch(name) is not None


def address_of(event: HealthEvent) -> str:
    """Return the PCI address of the GPU that *event* is about; empty when it names none."""
    for name in (event.attributes.get("pci_address", ""), event.device):
        if is_address(name):
            return name
    return ""


def reason_of(event: HealthEvent) -> str:
    """Return in words why the event's GPU is to be left alone; empty when it is not."""
    if event.attributes.get("previous_boot") == "yes":
        return ""
    if event.name == "gpu.xid":
        return CODES.get(event.code, "")
    # the collector's own word says "back" as well; it needs no second opinion
    lost = event.name == LOST and "state" not in event.attributes
    return CODES[79].replace("XID 79", "the driver") if lost else ""


class LeftAlone:
    """Remembers what was said of each GPU of late, so that a storm begins one rest."""

    def __init__(self) -> None:
        self._began_ns: dict[str, int] = {}

    def take(self, event: HealthEvent, now_ns: int) -> tuple[str, str] | None:
        """Return (PCI address, why) when a GPU is to be left alone from now on; else None."""
        why, address = reason_of(event), address_of(event)
        said_ns = max(event.boottime_ns, event.last_boottime_ns)
        if not why or not address or now_ns - said_ns > FRESH_NS_MAX:
            return None
        began_ns = self._began_ns.get(address)
        if began_ns is not None and now_ns - began_ns < AGAIN_NS_MIN:
            return None
        self._began_ns.pop(address, None)
        self._began_ns[address] = now_ns
        if len(self._began_ns) > GPUS_MAX:
            del self._began_ns[next(iter(self._began_ns))]
        return address, why
