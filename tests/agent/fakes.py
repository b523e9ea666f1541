"""Stand-ins that tests of the agent share: a clock, and a queue of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from gangline.agent.clock import SystemClock
from gangline.agent.collector import Collector, CollectResult, run_collector
from gangline.agent.hardware.files import Roots
from gangline.contract.block import Block
from gangline.contract.signals import BY_ID
from gangline.contract.wire.telemetry_pb2 import HealthEvent

SECOND = 1_000_000_000
Row = dict[str, float | int | None]
Created = TypeVar("Created")


class Lane:
    """Creates collectors of a host."""

    def __init__(self, roots: Roots) -> None:
        self.roots, self.created = roots, list[Any]()

    def __call__(self, kind: Callable[[Roots], Created]) -> Created:
        self.created.append(kind(self.roots))
        return cast(Created, self.created[-1])


def turn(collector: Collector) -> CollectResult:
    return run_collector(collector, SystemClock())


@dataclass
class HandedClock:
    """A clock that advances only by hand."""

    now_ns: int = 1000 * SECOND
    wall_ahead_ns: int = 1_700_000_000 * SECOND

    def boottime_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns + self.wall_ahead_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)


@dataclass
class KeptEvents:
    """A queue of events in memory."""

    events: list[HealthEvent] = field(default_factory=list)
    dropped_events: int = 0

    def put(self, event: HealthEvent) -> bool:
        self.events.append(event)
        return True


def named(block: Block, row: int = 0) -> Row:
    """Return the values of a row by column."""
    return {BY_ID[number].column: value for number, value in block.values(row)}


def read(blocks: Iterable[Block]) -> dict[str, Row]:
    """Return the values of all tables by device and column."""
    result: dict[str, Row] = {}
    for block in blocks:
        for row, key in enumerate(block.devices):
            result.setdefault(key, {}).update(named(block, row))
    return result
