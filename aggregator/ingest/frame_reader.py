"""Reads the frames of one stream in place, and maps old table and signal names to current ones."""

from __future__ import annotations

from typing import Any

from ...contract.frame import FrameError, decode, read_stamp
from ...contract.signals import FORMER_TABLES, TABLES
from ...contract.stream import CONTEXT_BYTES_MAX, LATE_FRAMES_MAX, Receiver, StreamError
from ...contract.wire import telemetry_pb2 as wire
from ...ext.intake import Catalogue, Reader, Received
from ..errors import StreamDesync, StreamRefused
from ..fleet.fleet import Fleet
from ..fleet.tables import TRACKED_SIGNALS
from ..store.frame_rows import plan

#: Table -> its index in the fleet, if the fleet keeps any of it.
_TABLE_NUMBERS = {
    name: number for number, (name, table) in enumerate(Fleet().tables.items()) if table.is_tracked
}
#: Table -> signal id -> column in the fleet.
_COLUMNS = {
    name: {
        s.signal_id: index
        for index, s in enumerate(s for s in signals if s.name in TRACKED_SIGNALS)
    }
    for name, signals in TABLES.items()
}


def _plan(name: str, signal_ids: tuple[int, ...]) -> tuple[Any, ...]:
    name = FORMER_TABLES.get(name, name)
    known_columns = _COLUMNS.get(name, {})
    columns = [known_columns.get(signal_id, -1) for signal_id in signal_ids]
    return plan(name, signal_ids, _TABLE_NUMBERS.get(name, -1), columns)


#: Columns of agents' tables, shared by all streams.
CATALOGUE = Catalogue(_plan)


class FrameStreamReader:
    """Decoder state of a stream."""

    def __init__(self) -> None:
        self._differences = Receiver(CONTEXT_BYTES_MAX)
        self._reader = Reader(CATALOGUE, decode)
        #: Sequence of the last frame requested, from the frame or its message.
        self.sequence = 0
        # Current message with several late frames, and its decoder until its last frame.
        self._backlog_message: wire.TelemetryBatch | None = None
        self._backlog_receiver: Receiver | None = None
        self._backlog_left: list[bytes] = []  # its remaining frames in reverse order

    def frame(self, message: wire.TelemetryBatch) -> Received:
        """Return the frame of *message*; for a message of late frames the next frame with each
        call.

        Raises FrameError, StreamDesync.
        """
        if message is self._backlog_message or message.late:
            return self._next_backlog_frame(message)
        self.sequence = message.sequence
        if not message.differences:
            return self._reader.read(message.frame)
        try:
            return self._reader.read(self._differences.decode(message.differences))
        except (StreamError, FrameError) as error:  # wrong checksum: the two ends are out of sync
            raise StreamDesync(
                f"the differences of frame {message.sequence} do not give a valid frame: {error}; "
                "start a new stream"
            ) from error

    def _next_backlog_frame(self, message: wire.TelemetryBatch) -> Received:
        receiver = self._backlog_receiver
        if receiver is None or message is not self._backlog_message:
            receiver = self._backlog_receiver = Receiver(CONTEXT_BYTES_MAX)
            self._backlog_message, self._backlog_left = message, list(message.late)[::-1]
        data = self._backlog_left.pop()
        if not self._backlog_left:
            self._backlog_receiver = self._backlog_message = None
        try:
            return self._read_backlog_frame(receiver.decode(data))
        except StreamError as error:
            number = len(message.late) - len(self._backlog_left)
            raise StreamDesync(
                f"frame {number} of {len(message.late)} late ones in message {message.sequence} is "
                f"not a valid frame: {error}; start a new stream"
            ) from error

    def _read_backlog_frame(self, data: bytes) -> Received:
        """Read a late frame. Raises FrameError (its host's fault) or StreamError (damage)."""
        try:
            frame = self._reader.read(data)
        except FrameError:
            try:
                self.sequence = read_stamp(data).sequence
            except FrameError as error:  # damaged on its way
                raise StreamError(str(error)) from error
            raise
        self.sequence = frame.sequence
        return frame


def check_backlog(message: wire.TelemetryBatch) -> None:
    """Check late frames before they are queued. Raises StreamRefused; the agent keeps them."""
    if len(message.late) > LATE_FRAMES_MAX:
        raise StreamRefused(
            f"{len(message.late)} late frames in a message, at most {LATE_FRAMES_MAX} (late_frames_max)"
        )
    if not message.backlog:
        raise StreamRefused(f"message {message.sequence} has late frames but does not set backlog")
    if message.frame or message.differences:
        raise StreamRefused(
            f"message {message.sequence} has late frames and another frame. Send that frame in its "
            "own message"
        )


def read_frame(data: bytes) -> Received:
    """Return a frame that is independent of a stream. Raises FrameError."""
    return Reader(CATALOGUE, decode).read(data)
