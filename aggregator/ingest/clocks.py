"""How far each host's clocks are from ours, from when its messages come.

Boot time never jumps, so (our clock - boot time) is constant but for the delay on the way: the
smallest of the last minutes is the best estimate (as NTP's clock filter, RFC 5905 section 10). A
host's wall clock is judged against that, not against the arrival of a single message.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..fleet.fleet import BOOT_SLACK_NS

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


def words(error_seconds: float) -> str:
    """Return the finding's words."""
    way = "ahead of" if error_seconds > 0 else "behind"
    return (
        f"its clock is {_span(abs(error_seconds))} {way} the aggregator's; its readings are stored "
        "under the aggregator's time. Set its clock (chronyc tracking, timedatectl)"
    )


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} seconds"
