"""Who of the agent's own processes holds a GPU: by the kernel's word, and by what the samplers know of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from .hardware.device_holders import blocking, holders, own_processes
from .hardware.roots import Roots

#: States of a device in which a process of ours is in a call on it (`agent.sampler.ward.State`).
STUCK = frozenset(("HUNG", "ABANDONED"))


class DeviceState(Protocol):
    """What is needed of the samplers' word on a device."""

    @property
    def device(self) -> str: ...
    @property
    def lane(self) -> str: ...
    @property
    def state(self) -> IntEnum: ...
    @property
    def call(self) -> str: ...
    @property
    def hung_seconds(self) -> float: ...
    @property
    def abandoned_count(self) -> int: ...
    @property
    def next_try_ns(self) -> int: ...


class Samplers(Protocol):
    """What is needed of `agent.sampler.samplers.Samplers`. Devices are PCI addresses; None stands for all GPUs."""

    @property
    def abandoned_count(self) -> int: ...
    def release(self, devices: frozenset[str] | None, seconds: float) -> None: ...
    def resume(self, devices: frozenset[str] | None) -> None: ...
    def released(self) -> Mapping[str | None, int]: ...
    def held(self, devices: frozenset[str] | None) -> bool: ...
    def leave_alone(self, device: str, why: str) -> None: ...
    def states(self) -> Sequence[DeviceState]: ...


class StillHeld(NamedTuple):
    """A process of ours that has not let go. `address` empty: of the driver as a whole; `process_id` 0: not known."""

    address: str
    process_id: int
    words: str


def still_held(
    samplers: Samplers, roots: Roots, nodes: Mapping[str, str], devices: frozenset[str] | None
) -> Sequence[StillHeld]:
    """Return who of us has one of *devices* (None: any, or the driver) open, by the kernel's word and by what the
    samplers know, and what they are stuck in. *nodes*: `nvidia3` -> PCI address."""
    stuck = _stuck(samplers)
    found = holders(roots.proc, roots.dev, own_processes(roots.proc)).found
    in_the_way = blocking(found, nodes, devices)
    held = sorted({(address, holder.process_id) for holder, address in in_the_way})
    if not held and samplers.held(devices):
        return [StillHeld("", 0, stuck or "a sampler has not let go")]
    return [StillHeld(address, process_id, stuck) for address, process_id in held]


def _stuck(samplers: Samplers) -> str:
    """Return the calls that do not return, in words."""
    return "; ".join(
        f"{state.call} on {state.device or 'the driver'} has not returned "
        f"for {state.hung_seconds:.0f} s"
        for state in samplers.states()
        if state.state.name in STUCK
    )
