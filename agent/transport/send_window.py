"""Which frame goes next, and when to try again: decisions without socket or clock of their own.

Times are seconds of any steady clock, handed in.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

#: Of the aggregator's credit, backlog may use one part in this many; the rest is for live frames.
BACKLOG_CREDIT_SHARE = 2
#: Backlog goes at no more than this many times the live rate.
BACKLOG_RATE_RATIO = 2
#: When more live frames than this wait for credit, all but the newest become backlog.
LIVE_FRAMES_MAX = 8
#: Used until an aggregator says how many frames may be on their way.
CREDIT_FRAMES_DEFAULT = 16
#: However much the aggregator grants: what is on its way is remembered.
CREDIT_FRAMES_MAX = 1 << 14

BACKOFF_SECONDS_MIN = 0.5
BACKOFF_SECONDS_MAX = 30.0
#: After a refusal that trying again soon cannot change: between this and twice this.
BACKOFF_REFUSED_SECONDS = 30.0
#: However long an aggregator would have a fleet take to come back.
FLEET_SECONDS_MAX = 120.0


class FrameSource(Protocol):
    """What is asked of a spool."""

    def next_sequence(self) -> int: ...
    def pending(self, after: int, count_max: int) -> list[tuple[int, bytes]]:
        """Return frames past *after*. Raises BlockingIOError where none can be read now."""
        ...


class OutgoingFrame(NamedTuple):
    """A frame to be sent now."""

    sequence: int
    frame: bytes
    backlog: bool


class SendWindow:
    """The order of frames on one stream.

    Live is what was appended since this began; everything older is backlog, even the newest of it:
    a reading that is not of now must not pass for one. Live frames go first. Backlog goes oldest
    first, within half of the credit, at no more than twice the rate of live frames or, when those
    are rarer, of *live_hertz*; where several go in one message, once there may be so many: of a
    connection's first ones as many as went before, lest one that never lasts sends none.
    """

    def __init__(
        self, frames: FrameSource, credit_frames: int, live_hertz: float, now: float
    ) -> None:
        self._frames = frames
        self._live_hertz = live_hertz
        self._live_after = frames.next_sequence() - 1
        self._backlog_after = 0
        self._backlog_last = self._live_after
        self._in_flight: set[int] = set()
        self._backlog_in_flight: set[int] = set()  # those of them that are backlog
        self.backlog_credit_frames = 0
        #: Late frames that go in one message: fewer are waited with until there are as many.
        self.frames_per_batch = 0
        self._waiting_since = now  # for a receipt, or a word that there is none yet
        self.credit_frames = CREDIT_FRAMES_DEFAULT
        self.grant(credit_frames)
        self._reset_pace(now)

    def _reset_pace(self, now: float) -> None:
        self._paced_since = now
        self._paced_live = 0
        self._paced_backlog = 0

    @property
    def in_flight(self) -> int:
        """Frames sent that have neither receipt nor refusal."""
        return len(self._in_flight)

    @property
    def has_live(self) -> bool:
        """A live frame waits to be sent."""
        return self._frames.next_sequence() - 1 > self._live_after

    @property
    def has_backlog(self) -> bool:
        """There may be frames of before that are still to be sent."""
        return self._backlog_after < self._backlog_last

    def waiting_seconds(self, now: float) -> float:
        """How long frames have been on their way without a word from there; 0 if none are."""
        return now - self._waiting_since if self._in_flight else 0.0

    def note_response(self, now: float) -> None:
        """The aggregator spoke: it is there, though it may have nothing stored yet."""
        self._waiting_since = now

    def grant(self, credit_frames: int, backlog_credit_frames: int = 0) -> None:
        """Take the aggregator's credit; 0 says nothing and leaves it as it was. *backlog_credit_frames*: how many
        of it may be backlog; 0 where an aggregator says nothing of that."""
        if credit_frames > 0:
            self.credit_frames = min(credit_frames, CREDIT_FRAMES_MAX)
        self.backlog_credit_frames = backlog_credit_frames

    def next_frames(self, now: float, *, with_backlog: bool = True) -> list[OutgoingFrame]:
        """Return what goes now, in order. It then counts as sent."""
        if not self._in_flight:
            self._waiting_since = now
        found: list[OutgoingFrame] = []
        with suppress(BlockingIOError):  # what cannot be read now goes when it can be
            found += self._next_live()
            self._in_flight.update([outgoing.sequence for outgoing in found])
            backlog = self._next_backlog(now) if with_backlog else []
            self._in_flight.update([outgoing.sequence for outgoing in backlog])
            self._backlog_in_flight.update([outgoing.sequence for outgoing in backlog])
            found += backlog
        return found

    def _next_live(self) -> list[OutgoingFrame]:
        newest = self._frames.next_sequence() - 1
        room = self.credit_frames - len(self._in_flight)
        if room <= 0 or newest <= self._live_after:
            return []
        if newest - self._live_after > LIVE_FRAMES_MAX:
            self._live_after = self._backlog_last = newest - 1
        rows = self._frames.pending(self._live_after, room)
        if rows:
            self._live_after = rows[-1][0]
        else:  # lost
            self._live_after = self._backlog_last = newest
        self._paced_live += len(rows)
        return [OutgoingFrame(sequence, frame, backlog=False) for sequence, frame in rows]

    def _next_backlog(self, now: float) -> list[OutgoingFrame]:
        if not self.has_backlog:
            self._reset_pace(now)
            return []
        count = min(self._backlog_room(), self._backlog_allowance(now))
        if count <= 0 or (batch_frames := self._batch_frames()) > count:
            return []
        count -= count % batch_frames
        rows = self._frames.pending(self._backlog_after, count)
        rows = [row for row in rows if row[0] <= self._backlog_last]
        self._backlog_after = rows[-1][0] if rows else self._backlog_last
        rows = [row for row in rows if row[0] not in self._in_flight]
        self._paced_backlog += len(rows)
        return [OutgoingFrame(sequence, frame, backlog=True) for sequence, frame in rows]

    def _backlog_room(self) -> int:
        room = max(self.credit_frames // BACKLOG_CREDIT_SHARE, 1) - len(self._in_flight)
        if self.backlog_credit_frames:
            room = min(room, self.backlog_credit_frames - len(self._backlog_in_flight))
        return room

    def _batch_frames(self) -> int:
        """Return how many late frames make a message: as many as may, if they are left and may be on their way at once,
        and twice what went before: the wait is never longer than the one until now."""
        left = self._backlog_last - self._backlog_after
        room = self._backlog_room() + len(self._backlog_in_flight)
        grown = BACKLOG_RATE_RATIO + self._paced_backlog
        return max(1, min(self.frames_per_batch, left, room, grown))

    def _backlog_allowance(self, now: float) -> int:
        by_time = (now - self._paced_since) * self._live_hertz
        allowed = BACKLOG_RATE_RATIO * max(self._paced_live, by_time)
        return int(allowed) - self._paced_backlog

    def complete(self, first: int, last: int, now: float) -> list[tuple[int, int]]:
        """Take a receipt or refusal for first..last; return the ranges of it that were on their way.

        Only these may be forgotten: a receipt for what was never sent is somebody's mistake.
        """
        completed = [sequence for sequence in self._in_flight if first <= sequence <= last]
        if completed:
            self._in_flight.difference_update(completed)
            self._backlog_in_flight.difference_update(completed)
            self._waiting_since = now
        return merge_spans((sequence, sequence) for sequence in completed)


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return *spans* (first, last) ascending, those in one that follow one another without a gap."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and found[-1][1] == first - 1:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


class Backoff:
    """Seconds to wait before the next attempt: exponential, with full jitter.

    A thousand agents that lost one aggregator together must not come back together. So where it told
    within how long the whole fleet is to come, the second attempt and all that follow are at this
    host's own moment of so many seconds; the first is soon, for the loss may be ours alone.
    """

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source
        self._failures = 0
        self._fleet_seconds = self._host_seconds = 0.0

    def spread(self, host: str, fleet_seconds: float) -> None:
        """Take within how long the fleet is to come back; our moment of it is by our name."""
        self._fleet_seconds = min(fleet_seconds, FLEET_SECONDS_MAX)
        self._host_seconds = self._fleet_seconds * random.Random(host).random()

    def reset(self) -> None:
        """The next failure is the first again."""
        self._failures = 0

    def next_delay(self, *, refused: bool, retry_seconds: float | None = None) -> float:
        """Return how long to wait. *refused*: the aggregator said no to who we are; *retry_seconds*: it
        said when to come."""
        if refused:
            return self._random.uniform(BACKOFF_REFUSED_SECONDS, 2 * BACKOFF_REFUSED_SECONDS)
        if retry_seconds is not None:
            return retry_seconds
        self._failures += 1
        doubled = BACKOFF_SECONDS_MIN * 2.0 ** min(self._failures, 16)
        wait = self._random.uniform(BACKOFF_SECONDS_MIN, min(doubled, BACKOFF_SECONDS_MAX))
        if self._failures > 1 and self._fleet_seconds:
            return max(wait, self._host_seconds if self._failures == 2 else self._fleet_seconds)
        return wait
