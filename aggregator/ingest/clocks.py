"""Offset of each host's clocks from the aggregator's, estimated from message arrival times, and its storage.

Boot time never jumps, so (aggregator's clock - boot time) is constant except for network delay: the smallest value of the last
minutes is the best estimate (as in NTP's clock filter, RFC 5905 section 10). A host's wall clock is compared with that
estimate, not with the arrival of a single message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import duckdb

from ..fleet.fleet import BOOT_SLACK_NS
from ..store.rows import ClockRecord, put_clocks
from ..store.store import Store

#: With a larger deviation a host's wall clock is not used for the time of its readings.
OFFSET_SECONDS_MAX = 2.0
#: A finding ends below this lower limit, so that it does not flap.
CLEAR_SECONDS_MAX = 1.0
#: Crystals drift (50 ppm is 30 ms in this time), so older minima are discarded.
WINDOW_SECONDS = 600

_MAX_NS = int(OFFSET_SECONDS_MAX * 1e9)
_WINDOW_NS = WINDOW_SECONDS * 1_000_000_000

log = logging.getLogger(__name__)
#: Period of the check of all clocks.
CHECK_SECONDS = 30
#: A smaller change is not stored early.
CHANGE_SECONDS = 0.1
#: A clock is stored at least this often while its host sends messages.
REPEAT_SECONDS = 300
#: Drift of a crystal of 50 ppm.
DRIFT_SECONDS = 50e-6 * WINDOW_SECONDS


@dataclass(slots=True)
class HostClock:
    """A host's clocks in its current boot."""

    boot_id: bytes = b""
    #: Minimum of (aggregator's clock - boot time) in the previous window and in this one.
    before_ns: int | None = None
    least_ns: int = 0
    since_ns: int = 0
    #: The host's wall clock minus the aggregator's; positive: ahead.
    error_ns: int = 0

    def observe(self, boot_id: bytes, boottime_ns: int, wall_ns: int, received_ns: int) -> None:
        """Add a message that was just sent."""
        offset_ns = received_ns - boottime_ns
        if boot_id != self.boot_id:
            self.boot_id, self.before_ns = boot_id, None
            self.least_ns, self.since_ns = offset_ns, received_ns
        elif not 0 <= received_ns - self.since_ns <= _WINDOW_NS:  # also if our clock was set back
            self.before_ns, self.least_ns = self.least_ns, offset_ns
            self.since_ns = received_ns
        else:
            self.least_ns = min(self.least_ns, offset_ns)
        self.error_ns = wall_ns - boottime_ns - self.offset_ns

    @property
    def offset_ns(self) -> int:
        """Return the offset from boot time to the aggregator's clock."""
        return self.least_ns if self.before_ns is None else min(self.least_ns, self.before_ns)

    @property
    def error_seconds(self) -> float:
        """Return by how many seconds the host's wall clock was ahead at the last message."""
        return self.error_ns / 1e9

    def time_offset_ns(self, boot_id: bytes, boottime_ns: int, wall_ns: int) -> int:
        """Return the offset from *boottime_ns* to the time of a reading.

        It comes from the host's wall clock if that is right, otherwise from the estimate. Readings
        of an earlier boot have only a wall-clock time, which is corrected by the current deviation.
        """
        by_wall_ns = wall_ns - boottime_ns
        if boot_id != self.boot_id:
            return by_wall_ns - (self.error_ns if abs(self.error_ns) > _MAX_NS else 0)
        return by_wall_ns if abs(by_wall_ns - self.offset_ns) <= _MAX_NS else self.offset_ns

    def event_time_ns(self, boot_id: bytes, boottime_ns: int, wall_ns: int, now_ns: int) -> int:
        """Return the time of an event, aggregator's clock, at most *now_ns*; *now_ns* if it has no
        time.

        Without a boot id the boot follows from the event's times: they show an earlier boot if the
        wall-clock time is earlier than the boot time allows, unless the wall clock was set in
        between.
        """
        wall_ns -= self.error_ns if abs(self.error_ns) > _MAX_NS and wall_ns else 0
        by_boot_ns = boottime_ns + self.offset_ns
        if not boottime_ns:
            return min(max(0, wall_ns) or now_ns, now_ns)
        earlier_boot = 0 < wall_ns < by_boot_ns - BOOT_SLACK_NS
        if boot_id:
            earlier_boot = boot_id != self.boot_id and wall_ns > 0
        near = abs(wall_ns - by_boot_ns) <= _MAX_NS
        return max(0, min(wall_ns if earlier_boot or near else by_boot_ns, now_ns))


def offset_message(error_seconds: float) -> str:
    direction = "ahead of" if error_seconds > 0 else "behind"
    return (
        f"its clock is {_span(abs(error_seconds))} {direction} the aggregator's; its readings are stored "
        "under the aggregator's time. Set its clock (chronyc tracking, timedatectl)"
    )


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"


class ClockSample(NamedTuple):
    """A host, its clocks, and the time of its last message."""

    host: str
    clock: HostClock
    last_received_ns: int


@dataclass(slots=True)
class _WrittenClock:
    offset_seconds: float
    measured_ns: int


class ClockLog:
    """The last stored clock of each host."""

    def __init__(self) -> None:
        self._written: dict[str, _WrittenClock] = {}

    def due(self, hosts: Iterable[ClockSample]) -> list[ClockRecord]:
        """Return the clocks to store now, and mark them as stored."""
        records = []
        for host, clock, last_received_ns in hosts:
            offset = clock.error_seconds
            if self._is_due(self._written.get(host), offset, last_received_ns):
                self._written[host] = _WrittenClock(offset, last_received_ns)
                records.append(ClockRecord(host, offset, _error_seconds(clock), last_received_ns))
        return records

    def forget(self, records: Iterable[ClockRecord]) -> None:
        """Mark *records* as not stored, after a failure."""
        for record in records:
            self._written.pop(record.host, None)

    @staticmethod
    def _is_due(before: _WrittenClock | None, offset_seconds: float, last_received_ns: int) -> bool:
        if before is None or last_received_ns < before.measured_ns:  # the clock was set back
            return True
        if last_received_ns == before.measured_ns:
            return False
        changed = abs(offset_seconds - before.offset_seconds) > CHANGE_SECONDS
        return changed or last_received_ns - before.measured_ns >= REPEAT_SECONDS * 1_000_000_000


def _error_seconds(clock: HostClock) -> float:
    """Return the uncertainty of the offset; NaN during the first window."""
    if clock.before_ns is None:
        return float("nan")
    return abs(clock.least_ns - clock.before_ns) / 1e9 + DRIFT_SECONDS


class ClockWriter:
    """Stores due clocks every CHECK_SECONDS; after a failure they are stored later."""

    def __init__(self, samples: Callable[[], Iterable[ClockSample]], store: Store) -> None:
        self._samples, self._store = samples, store
        self._log = ClockLog()
        self._checked_ns = 0
        self._task: asyncio.Task[None] | None = None

    def step(self, now_ns: int) -> None:
        """Start storing due clocks if the next check is due."""
        busy = self._task is not None and not self._task.done()
        if busy or 0 <= now_ns - self._checked_ns < CHECK_SECONDS * 1_000_000_000:
            return
        if not (hosts := list(self._samples())):
            return
        self._checked_ns = now_ns
        if records := self._log.due(hosts):
            self._task = asyncio.create_task(self._write(records))

    async def _write(self, records: list[ClockRecord]) -> None:
        def work(connection: duckdb.DuckDBPyConnection) -> None:
            put_clocks(connection, records)

        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._store.in_transaction, work)
        except Exception as error:  # noqa: BLE001 - the store reports its own failures
            log.debug("the hosts' clocks were not written: %s", error)
            self._log.forget(records)
