"""Offset of each host's clocks from the aggregator's, estimated from message arrival times.

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

#: A wall clock further off than this is not used for the time of readings.
OFFSET_SECONDS_MAX = 2.0
#: A finding ends only below this, so that it does not flap.
CLEAR_SECONDS_MAX = 1.0
#: Crystals drift (50 millionths are 30 ms in this time), so that old minima are forgotten.
WINDOW_SECONDS = 600

_MAX_NS = int(OFFSET_SECONDS_MAX * 1e9)
_WINDOW_NS = WINDOW_SECONDS * 1_000_000_000


@dataclass(slots=True)
class HostClock:
    """One host's clocks, for the boot it runs in."""

    boot_id: bytes = b""
    #: Smallest (our clock - boot time) of the window before and of this one.
    before_ns: int | None = None
    least_ns: int = 0
    since_ns: int = 0
    #: The host's wall clock less ours: positive is ahead.
    error_ns: int = 0

    def observe(self, boot_id: bytes, boottime_ns: int, wall_ns: int, received_ns: int) -> None:
        """Take a message that was sent just now."""
        offset_ns = received_ns - boottime_ns
        if boot_id != self.boot_id:
            self.boot_id, self.before_ns = boot_id, None
            self.least_ns, self.since_ns = offset_ns, received_ns
        elif not 0 <= received_ns - self.since_ns <= _WINDOW_NS:  # also when our clock was set back
            self.before_ns, self.least_ns = self.least_ns, offset_ns
            self.since_ns = received_ns
        else:
            self.least_ns = min(self.least_ns, offset_ns)
        self.error_ns = wall_ns - boottime_ns - self.offset_ns

    @property
    def offset_ns(self) -> int:
        """What to add to boot time to have our clock's time."""
        return self.least_ns if self.before_ns is None else min(self.least_ns, self.before_ns)

    @property
    def error_seconds(self) -> float:
        """How far ahead the host's wall clock was at the last message."""
        return self.error_ns / 1e9

    def time_offset_ns(self, boot_id: bytes, boottime_ns: int, wall_ns: int) -> int:
        """Return what to add to *boottime_ns* to have the time at which a reading was made.

        The host's own wall clock where it is right; else by our estimate. Of an earlier boot only
        its wall clock tells, put right by as much as it is off today.
        """
        by_wall_ns = wall_ns - boottime_ns
        if boot_id != self.boot_id:
            return by_wall_ns - (self.error_ns if abs(self.error_ns) > _MAX_NS else 0)
        return by_wall_ns if abs(by_wall_ns - self.offset_ns) <= _MAX_NS else self.offset_ns

    def event_time_ns(self, boot_id: bytes, boottime_ns: int, wall_ns: int, now_ns: int) -> int:
        """Return when an event was, by our clock; never later than *now_ns*, and *now_ns* if it says neither.

        Of an event that does not tell its boot the clocks do: what they make of the moment of boot is,
        but for a wall clock that was set meanwhile, this boot's or an earlier one's.
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
    """Return the finding's words."""
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


# ----------------------------------------------------------------------
# Which hosts' clocks are written down: when they changed, and every five minutes.

log = logging.getLogger(__name__)

#: How often all clocks are looked at.
CHECK_SECONDS = 30
#: A change by less is not written before its time.
CHANGE_SECONDS = 0.1
#: An unchanged clock is written again after this long, if its host still speaks.
REPEAT_SECONDS = 300
#: What a crystal may drift: 50 millionths.
DRIFT_SECONDS = 50e-6 * WINDOW_SECONDS


class ClockSample(NamedTuple):
    """A host, its clocks, and when it last spoke."""

    host: str
    clock: HostClock
    last_received_ns: int


@dataclass(slots=True)
class _WrittenClock:
    offset_seconds: float
    measured_ns: int


class ClockLog:
    """Remembers what was written of each host."""

    def __init__(self) -> None:
        self._written: dict[str, _WrittenClock] = {}

    def due(self, hosts: Iterable[ClockSample]) -> list[ClockRecord]:
        """Return what must be written now, and take it as written."""
        found = []
        for host, clock, last_received_ns in hosts:
            offset = clock.error_seconds
            if self._is_due(self._written.get(host), offset, last_received_ns):
                self._written[host] = _WrittenClock(offset, last_received_ns)
                found.append(ClockRecord(host, offset, _error_seconds(clock), last_received_ns))
        return found

    def forget(self, records: Iterable[ClockRecord]) -> None:
        """Take what could not be written as not written."""
        for record in records:
            self._written.pop(record.host, None)

    @staticmethod
    def _is_due(before: _WrittenClock | None, offset_seconds: float, last_received_ns: int) -> bool:
        if before is None or last_received_ns < before.measured_ns:  # our clock was set back
            return True
        if last_received_ns == before.measured_ns:
            return False
        changed = abs(offset_seconds - before.offset_seconds) > CHANGE_SECONDS
        return changed or last_received_ns - before.measured_ns >= REPEAT_SECONDS * 1_000_000_000


def _error_seconds(clock: HostClock) -> float:
    """Return how far the offset may be off, NaN while only one span of ten minutes is known."""
    if clock.before_ns is None:
        return float("nan")
    return abs(clock.least_ns - clock.before_ns) / 1e9 + DRIFT_SECONDS


class ClockWriter:
    """Writes what is due, every LOOK_SECONDS, in a transaction of its own beside the commits of readings.

    Owned by the loop's thread. What a disk does not take now is written later.
    """

    def __init__(self, samples: Callable[[], Iterable[ClockSample]], store: Store) -> None:
        self._samples, self._store = samples, store
        self._log = ClockLog()
        self._checked_ns = 0
        self._task: asyncio.Task[None] | None = None

    def step(self, now_ns: int) -> None:
        """Begin to write what is due, if it is time to look."""
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
        except Exception as error:  # noqa: BLE001 - the store tells of its trouble itself
            log.debug("the hosts' clocks were not written: %s", error)
            self._log.forget(records)
