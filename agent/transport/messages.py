"""Frames as messages of one stream: a live one as differences to those before, late ones several a message.

A message costs both ends more than what is in it: each alone, late frames take an aggregator more than twice what they
do together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...fingerprints.frames import deflated, inflated, is_plain
from ...fingerprints.streaming import LATE_FRAMES_MAX, Sender, StreamError
from ...fingerprints.wire.telemetry_pb2 import TelemetryBatch
from .outflow import Outgoing

#: What we remember of a stream at most, however much the aggregator would.
CONTEXT_BYTES_MAX = 1 << 18
#: With so much in it a message of late frames goes: the live frame behind it is not to wait for long.
LATE_BYTES = 1 << 15


class Messages:
    """Of one stream; of no more use after a StreamError."""

    def __init__(self, context_bytes: int = 0, late_frames_max: int = 0) -> None:
        """*context_bytes*: what the aggregator remembers of a stream; 0: it takes frames whole only.
        *late_frames_max*: late frames that it takes in one message; 0: it knows of no such message."""
        self._context_bytes = min(context_bytes, CONTEXT_BYTES_MAX)
        self._live = Sender(self._context_bytes) if context_bytes else None
        #: Late frames that go in one message.
        self.late_frames = min(late_frames_max, LATE_FRAMES_MAX) if context_bytes else 0

    def live(self, going: Outgoing) -> TelemetryBatch:
        """Return the message of a live frame. Raises StreamError."""
        if self._live is not None and is_plain(frame := _plain(going.frame)):
            return TelemetryBatch(sequence=going.sequence, differences=self._live.encode(frame))
        return _whole(going)

    def late(self, frames: Iterable[Outgoing]) -> Iterator[TelemetryBatch]:
        """Yield the messages of late frames, in their order. What cannot be told by differences goes whole."""
        batch = _Late(self._context_bytes)
        for going in frames:
            added = self.late_frames > 0 and batch.add(going)
            if not added or len(batch.message.late) >= self.late_frames or batch.size >= LATE_BYTES:
                if batch.message.late:
                    yield batch.message
                batch = _Late(self._context_bytes)
            if not added:
                yield _whole(going)
        if batch.message.late:
            yield batch.message


class _Late:
    """A message of several late frames, while it is made."""

    def __init__(self, context_bytes: int) -> None:
        self.message = TelemetryBatch(backlog=True)
        self.size = 0
        self._sender = Sender(context_bytes)

    def add(self, going: Outgoing) -> bool:
        """Add a frame; False: it must go whole, and none is to be added after it."""
        frame = _plain(going.frame)
        if not is_plain(frame):
            return False
        try:
            differences = self._sender.encode(frame)
        except StreamError:
            return False
        if not self.message.late:
            self.message.sequence = going.sequence
        self.message.late.append(differences)
        self.size += len(differences)
        return True


def _plain(frame: bytes) -> bytes:
    return frame if is_plain(frame) else inflated(frame)


def _whole(going: Outgoing) -> TelemetryBatch:
    return TelemetryBatch(
        sequence=going.sequence, frame=deflated(going.frame), backlog=going.backlog
    )
