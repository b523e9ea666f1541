"""Order of frames: decisions without a socket or clock.

Times are seconds of any steady clock, passed by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

#: Backlog may use one part of the aggregator's credit in this many; live frames have the rest.
BACKLOG_CREDIT_SHARE = 2
#: Backlog is sent at up to this multiple of the live rate.
BACKLOG_RATE_RATIO = 2
#: If more live frames than this wait for credit, all except the newest become backlog.
LIVE_FRAMES_MAX = 8
#: Frames in flight before an aggregator grants credit.
CREDIT_FRAMES_DEFAULT = 16
#: Upper limit of granted credit: each frame in flight takes memory.
CREDIT_FRAMES_MAX = 1 << 14


class FrameSource(Protocol):
    """Methods needed of a spool."""

    def next_sequence(self) -> int: ...
    def pending(self, after: int, count_max: int) -> list[tuple[int, bytes]]:
        """Return frames after *after*. Raises BlockingIOError if they cannot be read now."""
        ...


class OutgoingFrame(NamedTuple):
    """A frame to send now."""

    sequence: int
    frame: bytes
    backlog: bool


class SendWindow:
    """Order of the frames of a stream.

    Frames appended since this window began are live; all older frames are backlog, even the newest
    of them: an old reading must not pass for a current one. Live frames go first. Backlog goes
    oldest first, within half of the credit, at up to twice the rate of live frames or, if those are
    rarer, of *live_hertz*. Late frames that share a message wait until the rate allows them all.
    A connection's first messages have no more frames than were sent before: otherwise a connection
    that never lasts would send none.
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
        self._backlog_in_flight: set[int] = set()  # the backlog among them
        self.backlog_credit_frames = 0
        #: Late frames per message; 0: each has a message of its own.
        self.frames_per_batch = 0
        self._waiting_since = now  # start of waiting for any response
        self.credit_frames = CREDIT_FRAMES_DEFAULT
        self.grant(credit_frames)
        self._reset_pace(now)

    def _reset_pace(self, now: float) -> None:
        self._paced_since = now
        self._paced_live = 0
        self._paced_backlog = 0

    @property
    def in_flight(self) -> int:
        """Return the number of sent frames without acknowledgment or refusal."""
        return len(self._in_flight)

    @property
    def has_live(self) -> bool:
        return self._frames.next_sequence() - 1 > self._live_after

    @property
    def has_backlog(self) -> bool:
        """Whether older frames may wait."""
        return self._backlog_after < self._backlog_last

    def waiting_seconds(self, now: float) -> float:
        """Return how long frames in flight have had no response; 0 if none are in flight."""
        return now - self._waiting_since if self._in_flight else 0.0

    def note_response(self, now: float) -> None:
        """Record that the aggregator responded, even if it stored nothing yet."""
        self._waiting_since = now

    def grant(self, credit_frames: int, backlog_credit_frames: int = 0) -> None:
        """Set the aggregator's credit; 0 changes nothing.

        *backlog_credit_frames*: credit for backlog; 0: no limit of its own.
        """
        if credit_frames > 0:
            self.credit_frames = min(credit_frames, CREDIT_FRAMES_MAX)
        self.backlog_credit_frames = backlog_credit_frames

    def next_frames(self, now: float, *, with_backlog: bool = True) -> list[OutgoingFrame]:
        """Return the frames to send now, in order. They then count as sent."""
        if not self._in_flight:
            self._waiting_since = now
        outgoing_frames: list[OutgoingFrame] = []
        with suppress(BlockingIOError):  # frames that cannot be read now are sent later
            outgoing_frames += self._next_live()
            self._in_flight.update([outgoing.sequence for outgoing in outgoing_frames])
            backlog = self._next_backlog(now) if with_backlog else []
            self._in_flight.update([outgoing.sequence for outgoing in backlog])
            self._backlog_in_flight.update([outgoing.sequence for outgoing in backlog])
            outgoing_frames += backlog
        return outgoing_frames

    def _next_live(self) -> list[OutgoingFrame]:
        newest = self._frames.next_sequence() - 1
        capacity = self.credit_frames - len(self._in_flight)
        if capacity <= 0 or newest <= self._live_after:
            return []
        if newest - self._live_after > LIVE_FRAMES_MAX:
            self._live_after = self._backlog_last = newest - 1
        rows = self._frames.pending(self._live_after, capacity)
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
        capacity = max(self.credit_frames // BACKLOG_CREDIT_SHARE, 1) - len(self._in_flight)
        if self.backlog_credit_frames:
            capacity = min(capacity, self.backlog_credit_frames - len(self._backlog_in_flight))
        return capacity

    def _batch_frames(self) -> int:
        """Return the number of late frames in the next message.

        As many as are allowed, left, and within the credit, and up to twice the number sent before:
        so the wait is never longer than the previous one.
        """
        left = self._backlog_last - self._backlog_after
        capacity = self._backlog_room() + len(self._backlog_in_flight)
        grown = BACKLOG_RATE_RATIO + self._paced_backlog
        return max(1, min(self.frames_per_batch, left, capacity, grown))

    def _backlog_allowance(self, now: float) -> int:
        by_time = (now - self._paced_since) * self._live_hertz
        allowed = BACKLOG_RATE_RATIO * max(self._paced_live, by_time)
        return int(allowed) - self._paced_backlog

    def complete(self, first: int, last: int, now: float) -> list[tuple[int, int]]:
        """Record a response for first..last; return its ranges that were in flight.

        Only these may be forgotten: a receipt for a frame that was never sent is a peer's error.
        """
        completed = [sequence for sequence in self._in_flight if first <= sequence <= last]
        if completed:
            self._in_flight.difference_update(completed)
            self._backlog_in_flight.difference_update(completed)
            self._waiting_since = now
        return merge_spans((sequence, sequence) for sequence in completed)


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return *spans* (first, last) ascending, with adjacent spans merged."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and merged[-1][1] == first - 1:
            merged[-1] = merged[-1][0], last
        else:
            merged.append((first, last))
    return merged
