"""Lost, returned, moved, removed and reset GPUs, and a restarted driver, from their readings. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...ext import nvml as library

#: Seconds between identity checks; a GPU that comes back is checked at once.
IDENTITY_SECONDS = 60
#: Counters that never fall while a GPU and its driver continue. The energy is a gauge of doubles.
NEVER_FALL = {
    "gpu.energy_joules": 0,
    "gpu.violation_power_nanoseconds": library.ALL_BITS,
    "gpu.violation_thermal_nanoseconds": library.ALL_BITS,
}


@dataclass(frozen=True, slots=True)
class GpuStateChange:
    """A GPU fell off the bus (`lost`), or answers again (`back`)."""

    key: str
    address: str
    state: str


class GpuLifecycle:
    """The GPUs of a host, over all openings of NVML in the life of the agent. Pure.

    A GPU's key is its UUID if known. A restart of its counters raises its epoch, so that no
    difference is taken across the restart.
    """

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self._addresses: dict[str, str] = {}  # key -> last PCI address
        self._lost: set[str] = set()
        self._driver = ("", 0)
        self._restarted: set[str] = set()

    def update(
        self, addresses: Mapping[str, str], driver_version: str, driver_loads: int
    ) -> list[str]:
        """Take the current GPUs (key -> address), and return the changes as text.

        *driver_loads*: how often the driver was found gone. The first call reports no change.
        """
        before, self._addresses = self._addresses, dict(addresses)
        driver, self._driver = self._driver, (driver_version, driver_loads)
        for key in addresses:
            self.epochs.setdefault(key, 0)
        changes = []
        if driver[0] and driver[0] != driver_version:
            changes += [f"driver {driver[0]} is now {driver_version}"]
        if before and driver[1] != driver_loads:
            changes += ["the driver was loaded again"]
        if changes:
            self.restart(addresses)
        return changes + (list(self._moves(before, addresses)) if before else [])

    def _moves(self, before: Mapping[str, str], addresses: Mapping[str, str]) -> Iterable[str]:
        for key, address in addresses.items():
            if key not in before:
                yield f"GPU {key} appeared at {address}"
            elif before[key] != address:
                yield f"GPU {key} moved from {before[key]} to {address}"
            else:
                continue
            self.restart([key])
        for key, address in before.items():
            if key not in addresses:
                yield f"GPU {key} is gone from {address}"

    def restart(self, keys: Iterable[str]) -> None:
        """Raise the epochs of these GPUs: their counters restarted."""
        for key in list(keys):
            self.epochs[key] = self.epochs.get(key, 0) + 1
            self._restarted.add(key)

    def take_restarted(self, key: str) -> bool:
        """Return whether the counters of a GPU restarted since the last call."""
        if key not in self._restarted:
            return False
        self._restarted.remove(key)
        return True

    def update_lost(self, lost: Mapping[str, bool]) -> list[GpuStateChange]:
        """Take which GPUs are lost, and return the transitions, each once."""
        changes = []
        for key, is_lost in lost.items():
            if is_lost != (key in self._lost):
                changes.append(
                    GpuStateChange(key, self._addresses.get(key, ""), "lost" if is_lost else "back")
                )
        for change in changes:
            if change.state == "lost":
                self._lost.add(change.key)
            else:
                self._lost.discard(change.key)
                self.restart([change.key])
        return changes

    def recall(self, key: str, epoch: int, *, lost: bool) -> None:
        """Take the state of a GPU from an earlier process, which has reported a loss."""
        if key not in self.epochs and lost:
            self._lost.add(key)
        self.epochs[key] = max(epoch, self.epochs.get(key, 0))

    def recall_driver(self, version: str) -> None:
        """Take the driver of the previous process; empty: none."""
        if version and not self._driver[0]:
            self._driver = version, self._driver[1]

    @property
    def any_lost(self) -> bool:
        """Whether a GPU of the last list is lost."""
        return not self._lost.isdisjoint(self._addresses)
