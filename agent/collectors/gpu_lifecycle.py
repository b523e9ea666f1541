"""What has become of the GPUs: lost and back, moved, gone, reset, another driver. Pure: sightings in, words out.

A GPU is known by its key, its UUID where it has one. Whenever its counters began anew its epoch rises, so that
nobody subtracts over the gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """A GPU fell off the bus (`lost`), or answers again (`back`)."""

    key: str
    address: str
    state: str


class Lifecycle:
    """The GPUs of one host, over all openings of NVML in the life of the agent."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self._at: dict[str, str] = {}  # key -> PCI address, as last found
        self._lost: set[str] = set()
        self._driver = ("", 0)
        self._began_anew: set[str] = set()

    def found(self, at: Mapping[str, str], driver_version: str, driver_loads: int) -> list[str]:
        """Take what is there now (key -> address), and return in words what is not as it was.

        *driver_loads*: how often the driver was found gone. The first find is the beginning, no change.
        """
        before, self._at = self._at, dict(at)
        driver, self._driver = self._driver, (driver_version, driver_loads)
        for key in at:
            self.epochs.setdefault(key, 0)
        words = []
        if driver[0] and driver[0] != driver_version:
            words += [f"driver {driver[0]} is now {driver_version}"]
        if before and driver[1] != driver_loads:
            words += ["the driver was loaded again"]
        if words:
            self.restart(at)
        return words + (list(self._moves(before, at)) if before else [])

    def _moves(self, before: Mapping[str, str], at: Mapping[str, str]) -> Iterable[str]:
        for key, address in at.items():
            if key not in before:
                yield f"GPU {key} appeared at {address}"
            elif before[key] != address:
                yield f"GPU {key} moved from {before[key]} to {address}"
            else:
                continue
            self.restart([key])
        for key, address in before.items():
            if key not in at:
                yield f"GPU {key} is gone from {address}"

    def restart(self, keys: Iterable[str]) -> None:
        """The counters of these GPUs began anew."""
        for key in list(keys):
            self.epochs[key] = self.epochs.get(key, 0) + 1
            self._began_anew.add(key)

    def began_anew(self, key: str) -> bool:
        """Say, once, that the counters of a GPU began anew."""
        if key not in self._began_anew:
            return False
        self._began_anew.remove(key)
        return True

    def looked_at(self, lost: Mapping[str, bool]) -> list[Change]:
        """Take who is lost and who answers, and return the transitions, each once."""
        changes = []
        for key, is_lost in lost.items():
            if is_lost != (key in self._lost):
                changes.append(Change(key, self._at.get(key, ""), "lost" if is_lost else "back"))
        for change in changes:
            if change.state == "lost":
                self._lost.add(change.key)
            else:
                self._lost.discard(change.key)
                self.restart([change.key])
        return changes

    def recall(self, key: str, epoch: int, *, lost: bool) -> None:
        """Take what another process of this agent knew of a GPU. That it was lost was told, if so, by this one's lane."""
        if key not in self.epochs and lost:
            self._lost.add(key)
        self.epochs[key] = max(epoch, self.epochs.get(key, 0))

    def recall_driver(self, version: str) -> None:
        """Take which driver the process before this one had; empty: there was none."""
        if version and not self._driver[0]:
            self._driver = version, self._driver[1]

    @property
    def any_lost(self) -> bool:
        """Whether a GPU that was found last is lost."""
        return not self._lost.isdisjoint(self._at)
