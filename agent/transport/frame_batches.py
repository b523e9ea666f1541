"""Messages of a stream: a live frame, or several late frames together.

Several late frames share a message: sent singly, they cost an aggregator over twice the CPU time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...contract.frame import deflate_frame, inflate_frame, is_plain
from ...contract.stream import LATE_FRAMES_MAX, Sender, StreamError
from ...contract.wire.telemetry_pb2 import TelemetryBatch
from .send_window import OutgoingFrame

#: Upper limit of the context kept per stream, even if the aggregator keeps more.
CONTEXT_BYTES_MAX = 1 << 18
#: Size at which a message of late frames is sent, so that it does not delay the next live frame.
BACKLOG_BATCH_BYTES = 1 << 15


class FrameBatchEncoder:
    """Encodes the frames of a stream. Unusable after a StreamError."""

    def __init__(self, context_bytes: int = 0, frames_per_batch_max: int = 0) -> None:
        """Take the aggregator's limits.

        *context_bytes*: the context it keeps per stream; 0: it accepts only whole frames.
        *frames_per_batch_max*: late frames per message; 0: it does not support such messages.
        """
        self._context_bytes = min(context_bytes, CONTEXT_BYTES_MAX)
        self._live_sender = Sender(self._context_bytes) if context_bytes else None
        #: Late frames per message; 0: each is sent whole.
        self.frames_per_batch = min(frames_per_batch_max, LATE_FRAMES_MAX) if context_bytes else 0

    def encode_live(self, outgoing: OutgoingFrame) -> TelemetryBatch:
        """Return the message of a live frame. Raises StreamError."""
        if self._live_sender is not None and is_plain(frame := _plain_frame(outgoing.frame)):
            return TelemetryBatch(
                sequence=outgoing.sequence, differences=self._live_sender.encode(frame)
            )
        return _whole_frame_batch(outgoing)

    def encode_backlog(self, frames: Iterable[OutgoingFrame]) -> Iterator[TelemetryBatch]:
        """Yield the messages for *frames*, in order. Frames that cannot be encoded stay whole."""
        batch = _BacklogBatch(self._context_bytes)
        for outgoing in frames:
            added = self.frames_per_batch > 0 and batch.add(outgoing)
            if (
                not added
                or len(batch.message.late) >= self.frames_per_batch
                or batch.size >= BACKLOG_BATCH_BYTES
            ):
                if batch.message.late:
                    yield batch.message
                batch = _BacklogBatch(self._context_bytes)
            if not added:
                yield _whole_frame_batch(outgoing)
        if batch.message.late:
            yield batch.message


class _BacklogBatch:
    """A message of late frames under construction."""

    def __init__(self, context_bytes: int) -> None:
        self.message = TelemetryBatch(backlog=True)
        self.size = 0
        self._sender = Sender(context_bytes)

    def add(self, outgoing: OutgoingFrame) -> bool:
        """Add a frame; False: it must be sent whole, and this message accepts no further frame."""
        frame = _plain_frame(outgoing.frame)
        if not is_plain(frame):
            return False
        try:
            differences = self._sender.encode(frame)
        except StreamError:
            return False
        if not self.message.late:
            self.message.sequence = outgoing.sequence
        self.message.late.append(differences)
        self.size += len(differences)
        return True


def _plain_frame(frame: bytes) -> bytes:
    return frame if is_plain(frame) else inflate_frame(frame)


def _whole_frame_batch(outgoing: OutgoingFrame) -> TelemetryBatch:
    return TelemetryBatch(
        sequence=outgoing.sequence, frame=deflate_frame(outgoing.frame), backlog=outgoing.backlog
    )
