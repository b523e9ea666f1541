"""What is done before the daemon is imported: its collectors are made, and the nursery is forked.

A page that the daemon writes to is copied, and what it imports after the fork its samplers never carry: so the
nursery is forked from a process that holds what samplers need, and nothing else.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..contract.block import Block
from ..contract.settings import SettingsError
from ..contract.signal import Pace
from .clock import Clock
from .collector import Collector
from .collectors import COLLECTORS
from .collectors.counter_files import DESCRIPTORS_MAX
from .config import AgentConfig
from .hardware.files import Roots
from .sampler.forkserver import Nursery
from .sampler.messages import PROCESSES_MAX, Lanes, lanes_of

#: The daemon has one more collector, made when there is a client to tell.
INVENTORY = "inventory"


class Broken:
    """Stands for a collector that could not even be made: says so each minute, harms no other."""

    pace = Pace.MINUTE
    enters_driver = False

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._words = f"could not be made: {type(error).__name__}: {error}"

    def collect(self) -> Sequence[Block]:
        raise RuntimeError(self._words)


def collectors_of(config: AgentConfig) -> list[Collector]:
    """Return the collectors that are not switched off, by name (`gpu_10s`) or all of a kind (`gpu`).

    Raises SettingsError for a name that is neither.
    """
    off = switched_off(config)
    return [_made(name, make, config.roots) for name, make in COLLECTORS.items() if name not in off]


def switched_off(config: AgentConfig) -> set[str]:
    """Return the names of the collectors that are not to be. Raises SettingsError."""
    off: set[str] = set()
    names = [*COLLECTORS, INVENTORY]
    for wanted in config.collectors_off:
        matching = {n for n in names if wanted in (n, n.rpartition("_")[0])}
        if not matching:
            raise SettingsError(f"collectors_off: no {wanted!r}; there are: {', '.join(names)}")
        off |= matching
    return off


def _made(name: str, make: Callable[[Roots], Collector], roots: Roots) -> Collector:
    try:
        return make(roots)
    except Exception as error:  # noqa: BLE001 - whatever a driver's library does when looked for
        return Broken(name, error)


@dataclass(frozen=True)
class Early:
    """What the daemon begins with. `nursery` is forked already."""

    collectors: list[Collector]
    lanes: Lanes
    nursery: Nursery


def begin(config: AgentConfig, clock: Clock) -> Early:
    """Make the collectors and fork the nursery. Before any thread is. Raises SettingsError.

    A nursery that could not be forked is tried again by `Samplers`.
    """
    raise_descriptor_limit()
    collectors = collectors_of(config)
    lanes = lanes_of(collectors)
    nursery = Nursery(lanes, clock, PROCESSES_MAX + 1)
    if lanes:
        with suppress(OSError):
            nursery.start()
    return Early(collectors, lanes, nursery)


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as counter files may want kept, if it may be allowed.

    The usual soft limit of 1,024 is there for select(), which nobody calls here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
