"""What the agent says on one connection and when: register, stream, report. No socket, no clock.

Bytes in by `receive`, bytes out by `step`, time handed in; a SessionError ends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from ...contract.frame import deflate_frame, inflate_frame, is_plain
from ...contract.stream import LATE_FRAMES_MAX, Sender, StreamError
from ...contract.wire.telemetry_pb2 import (
    HealthEvent,
    IngestAck,
    RegisterNodeRequest,
    RegisterNodeResponse,
    ReportEventsRequest,
    TelemetryBatch,
)
from .grpc_http2 import (
    EVENTS,
    REGISTER,
    STREAM,
    UPLOAD,
    CallEnd,
    CallResponse,
    ClientSession,
)
from .http2 import SessionError
from .recording_uploads import RecordingUploads
from .send_window import FrameSource, OutgoingFrame, SendWindow, merge_spans

# ----------------------------------------------------------------------
# Frames as messages of one stream: a live one as differences to those before, late ones several a
# message.
#
# A message costs both ends more than what is in it: each alone, late frames take an aggregator more
# than twice what they do together.

#: What we remember of a stream at most, however much the aggregator would.
CONTEXT_BYTES_MAX = 1 << 18
#: With so much in it a message of late frames goes: the live frame behind it is not to wait for long.
BACKLOG_BATCH_BYTES = 1 << 15


class FrameBatchEncoder:
    """Of one stream; of no more use after a StreamError."""

    def __init__(self, context_bytes: int = 0, frames_per_batch_max: int = 0) -> None:
        """*context_bytes*: what the aggregator remembers of a stream; 0: it takes frames whole only.
        *frames_per_batch_max*: late frames that it takes in one message; 0: it knows of no such message."""
        self._context_bytes = min(context_bytes, CONTEXT_BYTES_MAX)
        self._live_sender = Sender(self._context_bytes) if context_bytes else None
        #: Late frames that go in one message.
        self.frames_per_batch = min(frames_per_batch_max, LATE_FRAMES_MAX) if context_bytes else 0

    def encode_live(self, outgoing: OutgoingFrame) -> TelemetryBatch:
        """Return the message of a live frame. Raises StreamError."""
        if self._live_sender is not None and is_plain(frame := _plain_frame(outgoing.frame)):
            return TelemetryBatch(
                sequence=outgoing.sequence, differences=self._live_sender.encode(frame)
            )
        return _whole_frame_batch(outgoing)

    def encode_backlog(self, frames: Iterable[OutgoingFrame]) -> Iterator[TelemetryBatch]:
        """Yield the messages of late frames, in order. A frame that cannot be coded as differences is sent whole."""
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
    """A message of several late frames, while it is made."""

    def __init__(self, context_bytes: int) -> None:
        self.message = TelemetryBatch(backlog=True)
        self.size = 0
        self._sender = Sender(context_bytes)

    def add(self, outgoing: OutgoingFrame) -> bool:
        """Add a frame; False: it must go whole, and none is to be added after it."""
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


#: A first registration without an answer for this long ends the connection.
RESPONSE_SECONDS_MAX = 10.0
#: Frames on their way without any receipt or credit end it too: a stalled aggregator, a half-open connection. So does a
#: later call if neither its answer nor anything else arrives: the aggregator answers events once they are on its disk.
ACK_SECONDS_MAX = 30.0
#: A later call without an answer ends the connection after this, whatever else arrives.
CALL_SECONDS_MAX = 300.0
#: Events that the aggregator cannot take now wait this long, then twice as long each time, at most:
EVENTS_RETRY_SECONDS_MIN, EVENTS_RETRY_SECONDS_MAX = 1.0, 30.0
#: Events in one report; after one was refused they go one at a time until one is taken.
EVENTS_PER_REPORT_MAX = 64
#: With at most this many live frames on their way, their receipts are read when the next frame is sent, which costs
#: the agent one wake-up instead of two.
QUIET_FRAMES_MAX = 8
#: This many periods after a frame the next one is late: the receipt is then read without it.
QUIET_PERIODS = 1.5
#: While more than this waits for the socket or the peer's windows, no further frame is taken from the disk.
UNSENT_BYTES_MAX = 1 << 16

#: Statuses of RegisterNode that trying again soon cannot change.
_REFUSALS = frozenset(
    (
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    )
)
#: Statuses of ReportEvents that pass: a full disk there must not end the stream of frames.
_RETRYABLE = frozenset(("UNAVAILABLE", "RESOURCE_EXHAUSTED"))
#: What servers say with RESOURCE_EXHAUSTED where a message is above their limit ("received message larger than
#: max", "message exceeds maximum size"): the same message is never taken.
_TOO_LARGE = re.compile(r"larger than max|too large|exceeds max", re.IGNORECASE)
#: Statuses of any call that say that this name is another's.
_REFUSALS_ANYWHERE = frozenset(("ALREADY_EXISTS", "PERMISSION_DENIED"))


#: What looks at the permit of a message.
PermitHandler = Callable[[RegisterNodeResponse | IngestAck], None]


class RefusedError(SessionError):
    """The aggregator does not take this host as it presents itself."""


class StreamDesyncError(SessionError):
    """The aggregator could not follow the differences of this stream."""


class SpooledFrames(FrameSource, Protocol):
    """What is asked of `spool.Spool`."""

    run_id: bytes
    boot_id: bytes

    def acknowledge(self, first: int, last: int) -> None: ...
    def mark_refused(self, sequence: int, reason: str) -> None: ...


class QueuedEvents(Protocol):
    """What is asked of `events.EventQueue`."""

    @property
    def waiting(self) -> bool: ...
    def pending(self, count_max: int) -> list[HealthEvent]: ...
    def acknowledge(self, event_ids: Sequence[str]) -> None: ...
    def mark_refused(self, event_ids: Sequence[str], reason: str) -> None: ...


class TelemetryProtocol:
    """`registered` from the first answer on; `has_ack` once a receipt came over this connection."""

    def __init__(
        self,
        session: ClientSession,
        register: Callable[[], RegisterNodeRequest],
        spool: SpooledFrames,
        events: QueuedEvents,
        live_hertz: float,
        *,
        delta_encoding: bool = True,
        on_permit: PermitHandler = lambda _: None,
        uploads: RecordingUploads | None = None,
    ) -> None:
        """*delta_encoding*: send frames as such, where the aggregator takes them. *on_permit* is
        shown each message that gives a permit to enforce or, by its absence, takes it back. *uploads*: recordings
        that were requested."""
        self._uploads = uploads or RecordingUploads()
        self.registered = False
        self.has_ack = False
        #: Our name, once it was said.
        self.host = ""
        #: Within how long the whole fleet is to come back should this connection be lost.
        self.reconnect_seconds = 0.0
        self._session = session
        self._register = register
        self._spool = spool
        self._events = events
        self._live_hertz = live_hertz
        self._on_permit = on_permit
        self._session_id = ""  # the session the aggregator gave
        self._stream = 0
        self._window: SendWindow | None = None
        self._delta_encoding = delta_encoding
        self._encoder = FrameBatchEncoder()  # of this stream
        self._must_register = True
        self._finishing = False
        self._sent_at = 0.0  # the last live frame
        self._received_at = 0.0  # the last bytes
        self._open_calls: dict[
            str, float
        ] = {}  # unary method -> since when it waits for its answer
        self._reported_ids: list[str] = []  # event ids on their way
        self._report_max = EVENTS_PER_REPORT_MAX
        self._report_at = 0.0  # not before
        self._report_retry_seconds = EVENTS_RETRY_SECONDS_MIN

    def register_again(self) -> None:
        """Send RegisterNode once more at the next step, as after a change of the inventory."""
        self._must_register = True

    # Out -----------------------------------------------------------------------------------

    def step(self, now: float, queued_bytes: int = 0) -> bytes:
        """Do what can be done now; return the bytes for the socket, which has *queued_bytes* to take yet.

        Raises SessionError when the aggregator has kept us waiting for too long.
        """
        self._check_timeouts(now)
        if self._must_register and REGISTER not in self._open_calls:
            self._send_register(now)
        if self._window is not None:
            self._send_events(now)
            self._send_upload(now)
            if self._session.unsent_bytes + queued_bytes <= UNSENT_BYTES_MAX:
                self._send_frames(self._window, now)
        return self._session.data_to_send()

    def _check_timeouts(self, now: float) -> None:
        for method, since in self._open_calls.items():
            if now >= self._response_due(since):
                seconds = min(now - since, CALL_SECONDS_MAX)
                raise SessionError(f"no answer to {method} within {seconds:.0f} s")
        window = self._window
        if window is not None and window.waiting_seconds(now) >= ACK_SECONDS_MAX:
            raise SessionError(
                f"{window.in_flight} frames sent, but no acknowledgment within {ACK_SECONDS_MAX:g} s"
            )

    def _response_due(self, since: float) -> float:
        """Return when a call that began at *since* has waited for too long."""
        if self.registered:
            quiet_until = max(since, self._received_at) + ACK_SECONDS_MAX
            return min(quiet_until, since + CALL_SECONDS_MAX)
        return since + RESPONSE_SECONDS_MAX

    def _send_register(self, now: float) -> None:
        request = self._register()
        request.run_id = self._spool.run_id
        request.boot_id = self._spool.boot_id
        self.host = request.node
        self._must_register = False
        self._open_calls[REGISTER] = now
        self._session.call(REGISTER, request)

    def _send_events(self, now: float) -> None:
        if not self._events.waiting or EVENTS in self._open_calls or now < self._report_at:
            return
        if not (events := self._events.pending(self._report_max)):
            return
        self._reported_ids = [event.event_id for event in events]
        self._open_calls[EVENTS] = now
        self._session.call(EVENTS, ReportEventsRequest(events=events), self._session_id)

    def _send_upload(self, now: float) -> None:
        if UPLOAD in self._open_calls or self._finishing or not self._uploads.waiting:
            return
        if (piece := self._uploads.next_piece()) is not None:
            self._open_calls[UPLOAD] = now
            self._session.call(UPLOAD, piece, self._session_id)

    def _send_frames(self, window: SendWindow, now: float) -> None:
        outgoing = window.next_frames(now, with_backlog=not self._finishing)
        for one in outgoing:
            if not one.backlog:
                self._send_live(one)
                self._sent_at = now
        if backlog := [one for one in outgoing if one.backlog]:
            for message in self._encoder.encode_backlog(backlog):
                self._session.send(self._stream, message)

    def _send_live(self, outgoing: OutgoingFrame) -> None:
        try:
            message = self._encoder.encode_live(outgoing)
        except StreamError as error:
            raise StreamDesyncError(f"frame {outgoing.sequence}: {error}") from error
        self._session.send(self._stream, message)

    def wait_seconds(self, now: float) -> float | None:
        """How long nothing needs to be done unless bytes or frames come; None: for ever."""
        waits = [self._response_due(since) - now for since in self._open_calls.values()]
        if now < self._report_at:
            waits.append(self._report_at - now)
        if (window := self._window) is not None:
            if window.in_flight:
                waits.append(ACK_SECONDS_MAX - window.waiting_seconds(now))
            if window.has_backlog:
                waits.append(1 / self._live_hertz)
        return max(min(waits), 0.0) if waits else None

    def quiet_seconds(self, now: float) -> float:
        """Return how long nothing but receipts of a few live frames is to come, which can wait for the next frame."""
        window = self._window
        if window is None or self._open_calls or self._finishing or not self.has_ack:
            return 0.0
        frames_max = min(QUIET_FRAMES_MAX, window.credit_frames - 1)
        if window.in_flight > frames_max or window.has_backlog or self._session.unsent_bytes:
            return 0.0
        return max(self._sent_at + QUIET_PERIODS / self._live_hertz - now, 0.0)

    def finish(self, now: float, queued_bytes: int = 0) -> tuple[bool, bytes]:
        """Return whether all that was to be said is said and receipted, and bytes to send.

        What is backlog stays on disk for the next time. Raises SessionError.
        """
        self._finishing = True
        out = self.step(now, queued_bytes)
        window = self._window
        if self._open_calls or window is None or window.in_flight or window.has_live:
            return False, out
        self._session.finish(self._stream)
        return True, out + self._session.data_to_send()

    # In ------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the socket. Raises SessionError, whatever they are; nothing else."""
        self._received_at = now
        durable: list[tuple[int, int]] = []
        try:
            for response in self._responses(data):
                if isinstance(response, CallEnd):
                    self._on_call_end(response, now)
                else:
                    durable += self._on_response(response, now)
        finally:
            for first, last in merge_spans(durable):
                self._spool.acknowledge(first, last)
                self.has_ack = True

    def _responses(self, data: bytes) -> Iterator[CallResponse | CallEnd]:
        """Yield what came, also what came before that which ends the connection. Raises SessionError."""
        try:
            yield from self._session.receive(data)
        except SessionError as error:
            yield from error.received
            raise

    def _on_response(self, response: CallResponse, now: float) -> list[tuple[int, int]]:
        """Take an answer; return the ranges of frames that are durable by it."""
        self._open_calls.pop(response.method, None)
        message = response.message
        if isinstance(message, RegisterNodeResponse | IngestAck):
            self._on_permit(message)
            self.reconnect_seconds = float(message.reconnect_seconds)
        if isinstance(message, RegisterNodeResponse):
            self._on_registration(message, now)
        elif isinstance(message, IngestAck) and self._window is not None:
            return self._on_ack(self._window, message, now)
        elif response.method == EVENTS:
            self._events.acknowledge(self._reported_ids)
            self._report_max = EVENTS_PER_REPORT_MAX
            self._report_retry_seconds = EVENTS_RETRY_SECONDS_MIN
        elif response.method == UPLOAD:
            self._uploads.accept()
        return []

    def _on_registration(self, response: RegisterNodeResponse, now: float) -> None:
        self._session_id = response.session
        self.registered = True
        if self._window is None:
            self._stream = self._session.open_stream(self._session_id)
            self._window = SendWindow(self._spool, response.credit_frames, self._live_hertz, now)
            if self._delta_encoding:
                frames_per_batch_max = response.late_frames_max
                self._encoder = FrameBatchEncoder(
                    response.stream_context_bytes, frames_per_batch_max
                )
                self._window.frames_per_batch = self._encoder.frames_per_batch
        self._window.grant(response.credit_frames, response.backlog_frames)

    def _on_ack(self, window: SendWindow, ack: IngestAck, now: float) -> list[tuple[int, int]]:
        window.grant(ack.credit_frames, ack.backlog_frames)
        window.note_response(now)
        for refusal in ack.refused:
            if window.complete(refusal.sequence, refusal.sequence, now):
                self._spool.mark_refused(refusal.sequence, refusal.reason)
                self.has_ack = True
        return [
            each for span in ack.durable for each in window.complete(span.first, span.last, now)
        ]

    def _on_call_end(self, ended: CallEnd, now: float) -> None:
        self._open_calls.pop(ended.method, None)
        if ended.method == UPLOAD:  # whatever it was: readings are worth more than a recording
            self._uploads.refuse(str(ended))
            return
        if ended.status in (_REFUSALS if ended.method == REGISTER else _REFUSALS_ANYWHERE):
            raise RefusedError(str(ended))
        if ended.method == STREAM and ended.status == "DATA_LOSS":
            raise StreamDesyncError(str(ended))
        if ended.method == EVENTS and ended.status == "INVALID_ARGUMENT":
            self._on_report_refused(str(ended))
            return
        if ended.method == EVENTS and ended.status == "RESOURCE_EXHAUSTED":
            too_large = _TOO_LARGE.search(ended.message) is not None
            if too_large and len(self._reported_ids) == 1:
                self._events.mark_refused(self._reported_ids, str(ended))
            # A server or proxy may use other words for it: shorter reports cost little.
            self._report_max = max(len(self._reported_ids) // 2, 1)
            if too_large:
                return
        if ended.method == EVENTS and ended.status in _RETRYABLE:
            self._report_at = now + self._report_retry_seconds
            self._report_retry_seconds = min(
                2 * self._report_retry_seconds, EVENTS_RETRY_SECONDS_MAX
            )
            return
        error = SessionError(str(ended))
        error.retry_seconds = ended.retry_seconds
        raise error

    def _on_report_refused(self, reason: str) -> None:
        """One bad event must not hold up all others for ever: find it, one at a time."""
        if len(self._reported_ids) == 1:
            self._events.mark_refused(self._reported_ids, reason)
        self._report_max = 1
