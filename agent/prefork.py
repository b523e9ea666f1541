"""Work before the daemon is imported: creates its collectors and forks the fork server.

A page that the daemon writes to is copied, and samplers do not inherit what the daemon imports after the fork. So the
fork server is forked from a process that holds only what samplers need.
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
from .sampler.forkserver import ForkServer
from .sampler.messages import PROCESSES_MAX, CollectorGroups, group_collectors

#: The daemon has one more collector, made when there is a client to tell.
INVENTORY = "inventory"


class FailedCollector(Collector):
    """Stands for a collector that could not even be made: says so each minute, harms no other."""

    pace = Pace.MINUTE
    enters_driver = False

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._message = f"could not be made: {type(error).__name__}: {error}"

    def collect(self) -> Sequence[Block]:
        raise RuntimeError(self._message)


def create_collectors(config: AgentConfig) -> list[Collector]:
    """Return the collectors that are not switched off, by name (`gpu_10s`) or all of a kind (`gpu`).

    Raises SettingsError for a name that is neither.
    """
    disabled = disabled_collectors(config)
    return [
        _create(name, make, config.roots)
        for name, make in COLLECTORS.items()
        if name not in disabled
    ]


def disabled_collectors(config: AgentConfig) -> set[str]:
    """Return the names of the collectors that are not to be. Raises SettingsError."""
    disabled: set[str] = set()
    names = [*COLLECTORS, INVENTORY]
    for wanted in config.collectors_off:
        matching = {n for n in names if wanted in (n, n.rpartition("_")[0])}
        if not matching:
            raise SettingsError(
                f"collectors_off: unknown collector {wanted!r}. Known: {', '.join(names)}"
            )
        disabled |= matching
    return disabled


def _create(name: str, make: Callable[[Roots], Collector], roots: Roots) -> Collector:
    try:
        return make(roots)
    except Exception as error:  # noqa: BLE001 - whatever a driver's library does when looked for
        return FailedCollector(name, error)


@dataclass(frozen=True)
class Prefork:
    """What the daemon begins with. `fork_server` is forked already."""

    collectors: list[Collector]
    groups: CollectorGroups
    fork_server: ForkServer


def prefork(config: AgentConfig, clock: Clock) -> Prefork:
    """Make the collectors and fork the fork server. Before any thread is. Raises SettingsError.

    A fork server that could not be forked is tried again by `SamplerPool`.
    """
    raise_descriptor_limit()
    collectors = create_collectors(config)
    groups = group_collectors(collectors)
    fork_server = ForkServer(groups, clock, PROCESSES_MAX + 1)
    if groups:
        with suppress(OSError):
            fork_server.start()
    return Prefork(collectors, groups, fork_server)


def raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as counter files may want kept, if it may be allowed.

    The usual soft limit of 1,024 is there for select(), which nobody calls here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
