"""The processes that NVML lists, from the collector that asks for them to the one that finds out whose they are.

Both take their turns in one process, one after the other, so that nothing here needs a lock.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

from ..hardware.roots import Roots


class Holding(NamedTuple):
    """A process that holds a GPU, or under MIG an instance of it."""

    gpu: str  # as the GPU's readings are keyed
    pid: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_bytes: int | None = None


class Listing(NamedTuple):
    """One look. A GPU that did not answer is not among `gpus`: of it nothing is known."""

    gpus: tuple[str, ...]
    holdings: tuple[Holding, ...]


class Held:
    """The last listing, for one who takes it."""

    def __init__(self) -> None:
        self._listing: Listing | None = None

    def put(self, listing: Listing) -> None:
        """Note what NVML has just listed: the same object as long as it is the same."""
        self._listing = listing

    def take(self) -> Listing | None:
        """Return what was put since the last call; None: there was no look since then."""
        listing, self._listing = self._listing, None
        return listing


_HELD: weakref.WeakValueDictionary[Roots, Held] = weakref.WeakValueDictionary()


def held_of(roots: Roots) -> Held:
    """Return the one of this host; it lives as long as somebody keeps it."""
    held = _HELD.get(roots)
    if held is None:
        held = _HELD[roots] = Held()
    return held
