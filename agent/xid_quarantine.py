"""GPUs that must be closed because of an XID: their driver hangs, or they are being repaired."""

from __future__ import annotations

import re

from ..contract.wire.telemetry_pb2 import HealthEvent

# A GPU that fell off the bus (XID 79), or whose firmware does not respond (119, 120), blocks each
# call for seconds or forever. This part starts the exclusion; the samplers' supervisor decides on
# retries.
SECOND_NS = 1_000_000_000
#: XIDs after which every call may hang -> reason.
HANGING_XIDS = {
    79: "XID 79: it fell off the bus",
    119: "XID 119: its firmware (GSP) does not respond",
    120: "XID 120: its firmware (GSP) failed",
}
LOST = "gpu.lost"
#: Older events are ignored, for example of an old log read at the start: the samplers know better.
FRESH_NS_MAX = 60 * SECOND_NS
#: Further events of a GPU within this time count as the same cause.
REPEAT_NS_MIN = 10 * SECOND_NS
GPUS_MAX = 256
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_address(name: str) -> bool:
    """Return whether *name* is a PCI address as sysfs writes it."""
    return _ADDRESS.fullmatch(name) is not None


def address_of(event: HealthEvent) -> str:
    """Return the PCI address of the event's GPU, or ""."""
    for name in (event.attributes.get("pci_address", ""), event.device):
        if is_address(name):
            return name
    return ""


def quarantine_reason(event: HealthEvent) -> str:
    """Return why the event's GPU must be excluded, or ""."""
    if event.attributes.get("previous_boot") == "yes":
        return ""
    if event.name == "gpu.xid":
        return HANGING_XIDS.get(event.code, "")
    # An event with `state` comes from the collector, which also reports "back" itself.
    lost = event.name == LOST and "state" not in event.attributes
    return HANGING_XIDS[79].replace("XID 79", "the driver") if lost else ""


class XidQuarantine:
    """Recent events of each GPU, so that a storm of events starts one exclusion."""

    def __init__(self) -> None:
        self._began_ns: dict[str, int] = {}

    def check(self, event: HealthEvent, now_ns: int) -> tuple[str, str] | None:
        """Return (PCI address, reason) if a GPU must be excluded now; else None."""
        reason, address = quarantine_reason(event), address_of(event)
        reported_ns = max(event.boottime_ns, event.last_boottime_ns)
        if not reason or not address or now_ns - reported_ns > FRESH_NS_MAX:
            return None
        began_ns = self._began_ns.get(address)
        if began_ns is not None and now_ns - began_ns < REPEAT_NS_MIN:
            return None
        self._began_ns.pop(address, None)
        self._began_ns[address] = now_ns
        if len(self._began_ns) > GPUS_MAX:
            del self._began_ns[next(iter(self._began_ns))]
        return address, reason
