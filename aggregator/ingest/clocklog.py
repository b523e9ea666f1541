"""Which hosts' clocks are written down: when they changed, and every five minutes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import duckdb

from ..store.hostclocks import ClockRecord, put
from ..store.store import Store
from .clocks import WINDOW_SECONDS, HostClock

log = logging.getLogger(__name__)

#: How often all clocks are looked at.
LOOK_SECONDS = 30
#: A change by less is not written before its time.
CHANGE_SECONDS = 0.1
#: An unchanged clock is written again after this long, if its host still speaks.
REPEAT_SECONDS = 300
#: What a crystal may drift: 50 millionths.
DRIFT_SECONDS = 50e-6 * WINDOW_SECONDS


class Heard(NamedTuple):
    """A host, its clocks, and when it last spoke."""

    host: str
    clock: HostClock
    heard_ns: int


@dataclass(slots=True)
class _Written:
    offset_seconds: float
    measured_ns: int


class ClockLog:
    """Remembers what was written of each host."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}

    def due(self, hosts: Iterable[Heard]) -> list[ClockRecord]:
        """Return what is to be written now, and take it as written."""
        found = []
        for host, clock, heard_ns in hosts:
            offset = clock.error_seconds
            if self._is_due(self._written.get(host), offset, heard_ns):
                self._written[host] = _Written(offset, heard_ns)
                found.append(ClockRecord(host, offset, _error_seconds(clock), heard_ns))
        return found

    def forget(self, records: Iterable[ClockRecord]) -> None:
        """Take what could not be written as not written."""
        for record in records:
            self._written.pop(record.host, None)

    @staticmethod
    def _is_due(before: _Written | None, offset_seconds: float, heard_ns: int) -> bool:
        if before is None or heard_ns < before.measured_ns:  # our clock was set back
            return True
        if heard_ns == before.measured_ns:
            return False
        changed = abs(offset_seconds - before.offset_seconds) > CHANGE_SECONDS
        return changed or heard_ns - before.measured_ns >= REPEAT_SECONDS * 1_000_000_000


def _error_seconds(clock: HostClock) -> float:
    """Return how far the offset may be off, NaN while only one span of ten minutes is known."""
    if clock.before_ns is None:
        return float("nan")
    return abs(clock.least_ns - clock.before_ns) / 1e9 + DRIFT_SECONDS


class ClockWriter:
    """Writes what is due, every LOOK_SECONDS, in a transaction of its own beside the commits of readings.

    Owned by the loop's thread. What a disk does not take now is written later.
    """

    def __init__(self, heard: Callable[[], Iterable[Heard]], store: Store) -> None:
        self._heard, self._store = heard, store
        self._log = ClockLog()
        self._looked_ns = 0
        self._task: asyncio.Task[None] | None = None

    def step(self, now_ns: int) -> None:
        """Begin to write what is due, if it is time to look."""
        busy = self._task is not None and not self._task.done()
        if busy or 0 <= now_ns - self._looked_ns < LOOK_SECONDS * 1_000_000_000:
            return
        if not (hosts := list(self._heard())):
            return
        self._looked_ns = now_ns
        if records := self._log.due(hosts):
            self._task = asyncio.create_task(self._write(records))

    async def _write(self, records: list[ClockRecord]) -> None:
        def work(connection: duckdb.DuckDBPyConnection) -> None:
            put(connection, records)

        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._store.in_transaction, work)
        except Exception as error:  # noqa: BLE001 - the store tells of its trouble itself
            log.debug("the hosts' clocks were not written: %s", error)
            self._log.forget(records)
