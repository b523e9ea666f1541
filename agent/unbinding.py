"""GPUs that the driver is being taken off: let go of, and taken back when it is on them again. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ..fingerprints.wire.telemetry_pb2 import HealthEvent

SECOND_NS = 1_000_000_000
#: A driver that was said to go and is still there after this long has stayed.
STAYS_NS = 10 * SECOND_NS
GPUS_MAX = 256
#: Of the line that nv-pci.c writes before it waits until nobody has the GPU open.
WAITS = "non-zero usage count"


def is_taken_off(event: HealthEvent) -> bool:
    """Say whether the event tells that the driver is being taken off its GPU, and may wait for us."""
    if event.name == "gpu.driver_binding":
        return event.attributes.get("state") == "unbind"
    return event.name == "gpu.driver_message" and WAITS in event.message


def is_put_on(event: HealthEvent) -> bool:
    """Say whether the event tells that a driver is on its GPU again."""
    return event.name == "gpu.driver_binding" and event.attributes.get("state") == "bind"


class Unbinding:
    """What is known of it. PCI addresses; times are boot time, handed in."""

    def __init__(self, bound: frozenset[str]) -> None:
        """*bound*: the GPUs that the driver is on now, by sysfs."""
        self._bound = self._ever = bound
        self._since_ns: dict[str, int] = {}  # those that it is being, or was, taken off

    def taken_off(self, addresses: Iterable[str], now_ns: int) -> frozenset[str]:
        """Return those of *addresses* that are to be let go of: of each unbind once."""
        new = frozenset(addresses) - self._since_ns.keys()
        for address in sorted(new)[: GPUS_MAX - len(self._since_ns)]:
            self._since_ns[address] = now_ns
        return new

    def put_on(self, addresses: Iterable[str]) -> frozenset[str]:
        """Return those of *addresses* that may be taken back: sysfs has the last word."""
        on = [each for each in addresses if not self.is_without(each)]
        return frozenset(each for each in on if self._since_ns.pop(each, None) is not None)

    @property
    def is_under_way(self) -> bool:
        """Whether a GPU is being, or was, taken off: `look` is to be asked also when sysfs shows what it showed."""
        return bool(self._since_ns)

    def look(self, bound: frozenset[str], now_ns: int) -> tuple[frozenset[str], frozenset[str]]:
        """Take what sysfs shows now, and return what is to be let go of, and what may be taken back."""
        gone, back = self._bound - bound, bound - self._bound
        stayed = {
            address
            for address, since_ns in self._since_ns.items()
            if address in bound and now_ns - since_ns >= STAYS_NS
        }
        self._bound, self._ever = bound, frozenset(sorted(self._ever | bound)[:GPUS_MAX])
        return self.taken_off(gone, now_ns), self.put_on(back | stayed)

    def is_without(self, address: str) -> bool:
        """Say whether a GPU that had the driver has none now, as far as sysfs shows."""
        return address in self._ever and address not in self._bound
