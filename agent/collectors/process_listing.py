"""The processes that NVML lists, passed from the collector that lists them to the collector that finds their owners."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from ..hardware.files import Roots


class GpuProcess(NamedTuple):
    """A process that holds a GPU, or under MIG an instance of it."""

    gpu: str  # the key of the GPU's readings
    pid: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_bytes: int | None = None


class GpuProcessList(NamedTuple):
    """A listing. The processes of a GPU that is not in `gpus` are unknown: it did not answer."""

    gpus: tuple[str, ...]
    processes: tuple[GpuProcess, ...]


class ProcessListing:
    """Each driver's last listing, for `gpu_job_1s`. Collectors take turns, so no lock is needed."""

    def __init__(self) -> None:
        self._new: dict[str, GpuProcessList] = {}
        self._parts: tuple[GpuProcessList, ...] = ()
        self._joined = GpuProcessList((), ())

    def put(self, collector: str, listing: GpuProcessList) -> None:
        """Store a collector's last listing; an unchanged listing is the same object."""
        self._new[collector] = listing

    def take(self) -> GpuProcessList | None:
        """Return the joined listings since the last call; None without a listing.

        The result is the same object while every listing is.
        """
        parts, self._new = tuple(self._new.values()), {}
        if len(parts) < 2:
            return parts[0] if parts else None
        if len(parts) != len(self._parts) or any(
            new is not old for new, old in zip(parts, self._parts, strict=True)
        ):
            self._parts = parts
            self._joined = GpuProcessList(
                tuple(gpu for part in parts for gpu in part.gpus),
                tuple(process for part in parts for process in part.processes),
            )
        return self._joined


_LISTINGS: weakref.WeakValueDictionary[Roots, ProcessListing] = weakref.WeakValueDictionary()


def process_listing_of(roots: Roots) -> ProcessListing:
    """Return the host's listing, which lives while a caller holds it."""
    listing = _LISTINGS.get(roots)
    if listing is None:
        listing = _LISTINGS[roots] = ProcessListing()
    return listing
