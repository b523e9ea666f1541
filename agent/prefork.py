"""Work before the daemon is imported: creates collectors and forks the fork server.

A page that the daemon writes to is copied, and samplers do not inherit modules imported after the
fork. So the fork server is forked from a process that has only what samplers need.
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
from .sampler.collector_groups import PROCESSES_MAX, CollectorGroups, group_collectors
from .sampler.forkserver import ForkServer

#: The daemon's additional collector, created after the client.
INVENTORY = "inventory"


class FailedCollector(Collector):
    """Replaces a collector whose creation failed: reports the error each minute."""

    pace = Pace.MINUTE
    enters_driver = False

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._message = f"could not be made: {type(error).__name__}: {error}"

    def collect(self) -> Sequence[Block]:
        raise RuntimeError(self._message)


def create_collectors(config: AgentConfig) -> list[Collector]:
    """Return the collectors that are not disabled.

    A setting is a collector's name (`gpu_10s`) or a kind (`gpu`); raises SettingsError for others.
    """
    disabled = disabled_collectors(config)
    return [
        _create(name, make, config.roots)
        for name, make in COLLECTORS.items()
        if name not in disabled
    ]


def disabled_collectors(config: AgentConfig) -> set[str]:
    """Return the names of the disabled collectors. Raises SettingsError."""
    disabled: set[str] = set()
    names = [*COLLECTORS, INVENTORY]
    for wanted in config.collectors_off:
        matching = {name for name in names if wanted in (name, name.rpartition("_")[0])}
        if not matching:
            raise SettingsError(
                f"collectors_off: unknown collector {wanted!r}. Known: {', '.join(names)}"
            )
        disabled |= matching
    return disabled


def _create(name: str, make: Callable[[Roots], Collector], roots: Roots) -> Collector:
    try:
        return make(roots)
    except Exception as error:  # noqa: BLE001 - loading a driver's library may fail in any way
        return FailedCollector(name, error)


@dataclass(frozen=True)
class Prefork:
    """Input of the daemon. `fork_server` is already forked."""

    collectors: list[Collector]
    groups: CollectorGroups
    fork_server: ForkServer


def prefork(config: AgentConfig, clock: Clock) -> Prefork:
    """Create the collectors and fork the fork server, before any thread. Raises SettingsError.

    If the fork fails, `SamplerPool` tries again.
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
    """Raise the soft limit of descriptors to DESCRIPTORS_MAX, or to the hard limit.

    Counter files stay open. The usual soft limit of 1,024 exists for select(), which is not used.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
