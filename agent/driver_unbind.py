"""Signs that a driver is being unbound from a GPU: lines of the kernel log, and events of the driver."""

from __future__ import annotations

from collections.abc import Iterable

from ..contract.wire.telemetry_pb2 import HealthEvent
from .xid_quarantine import GPUS_MAX, SECOND_NS

#: If the driver is still bound this long after a sign of an unbind, it stays bound.
UNBIND_NS_MAX = 10 * SECOND_NS
#: Part of the line that nv-pci.c writes before it waits for open handles.
UNBIND_WAIT_MESSAGE = "non-zero usage count"


def is_unbind(event: HealthEvent) -> bool:
    """Return whether the event shows a starting unbind, which may wait for our handle."""
    if event.name == "gpu.driver_binding":
        return event.attributes.get("state") == "unbind"
    return event.name == "gpu.driver_message" and UNBIND_WAIT_MESSAGE in event.message


def is_bind(event: HealthEvent) -> bool:
    """Return whether the event shows that a driver was bound to its GPU."""
    return event.name == "gpu.driver_binding" and event.attributes.get("state") == "bind"


class DriverUnbindTracker:
    """GPUs being unbound. Pure. By PCI address; times are boot time from the caller."""

    def __init__(self, bound: frozenset[str]) -> None:
        """*bound*: the GPUs to which the driver is bound now, by sysfs."""
        self._bound = self._ever_bound = bound
        self._since_ns: dict[str, int] = {}  # GPU -> start of its unbind

    def unbind_started(self, addresses: Iterable[str], now_ns: int) -> frozenset[str]:
        """Return the *addresses* to release: each unbind once."""
        new = frozenset(addresses) - self._since_ns.keys()
        for address in sorted(new)[: GPUS_MAX - len(self._since_ns)]:
            self._since_ns[address] = now_ns
        return new

    def bound_again(self, addresses: Iterable[str]) -> frozenset[str]:
        """Return the *addresses* to resume, if sysfs confirms that they are bound."""
        bound = [address for address in addresses if not self.is_unbound(address)]
        return frozenset(
            address for address in bound if self._since_ns.pop(address, None) is not None
        )

    @property
    def has_unbound(self) -> bool:
        """Whether an unbind was started: then `update` is needed also if sysfs has not changed."""
        return bool(self._since_ns)

    def update(self, bound: frozenset[str], now_ns: int) -> tuple[frozenset[str], frozenset[str]]:
        """Use the *bound* GPUs of sysfs; return the GPUs to release, and the GPUs to resume."""
        unbound, rebound = self._bound - bound, bound - self._bound
        never_unbound = {
            address
            for address, since_ns in self._since_ns.items()
            if address in bound and now_ns - since_ns >= UNBIND_NS_MAX
        }
        self._bound = bound
        self._ever_bound = frozenset(sorted(self._ever_bound | bound)[:GPUS_MAX])
        return self.unbind_started(unbound, now_ns), self.bound_again(rebound | never_unbound)

    def is_unbound(self, address: str) -> bool:
        """Return whether sysfs shows that a GPU has lost the driver."""
        return address in self._ever_bound and address not in self._bound
