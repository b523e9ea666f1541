"""The agent's messages on a connection: register, stream, report. No socket, no clock.

`receive` takes bytes, `step` returns bytes, the caller passes the time; a SessionError ends the
connection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ...contract.stream import StreamError
from ...contract.wire.telemetry_pb2 import (
    HealthEvent,
    IngestAck,
    RegisterNodeRequest,
    RegisterNodeResponse,
    ReportEventsRequest,
)
from .frame_batches import FrameBatchEncoder
from .grpc_http2 import EVENTS, REGISTER, STREAM, UPLOAD, CallEnd, CallResponse, ClientSession
from .http2 import SessionError
from .recording_uploads import RecordingUploads
from .send_window import FrameSource, OutgoingFrame, SendWindow, merge_spans

#: An unanswered first registration ends the connection after this time.
RESPONSE_SECONDS_MAX = 10.0
#: Frames without an acknowledgment or credit end the connection too (a stalled aggregator, a
#: half-open connection). So does a later call if nothing at all arrives: the aggregator answers
#: events once they are on its disk.
ACK_SECONDS_MAX = 30.0
#: A later call without an answer ends the connection after this time, even if other data arrives.
CALL_SECONDS_MAX = 300.0
#: Delay of events that the aggregator cannot accept now, and the limit of its doubling.
EVENTS_RETRY_SECONDS_MIN, EVENTS_RETRY_SECONDS_MAX = 1.0, 30.0
#: Events per report. After a refusal they are sent singly until the aggregator accepts a report.
EVENTS_PER_REPORT_MAX = 64
#: With at most this number of live frames in flight, acknowledgments are read when the next frame
#: is sent: one wake-up of the agent instead of two.
QUIET_FRAMES_MAX = 8
#: Periods after a frame at which the next frame is late, and the acknowledgment is read without it.
QUIET_PERIODS = 1.5
#: While more than this waits for the socket or the peer's windows, no frame is read from the disk.
UNSENT_BYTES_MAX = 1 << 16

#: Statuses of RegisterNode that an early retry cannot change.
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
#: Temporary statuses of ReportEvents: an aggregator's full disk must not end the stream of frames.
_RETRYABLE = frozenset(("UNAVAILABLE", "RESOURCE_EXHAUSTED"))
#: Messages of servers for RESOURCE_EXHAUSTED if a message exceeds their limit ("received message
#: larger than max", "message exceeds maximum size"): a retry of the same message is useless.
_TOO_LARGE = re.compile(r"larger than max|too large|exceeds max", re.IGNORECASE)
#: Statuses of any call that mean that another host has this name.
_REFUSALS_ANYWHERE = frozenset(("ALREADY_EXISTS", "PERMISSION_DENIED"))

#: Called with each message that may have a permit.
PermitHandler = Callable[[RegisterNodeResponse | IngestAck], None]


class RefusedError(SessionError):
    """The aggregator rejects this host's identity."""


class StreamDesyncError(SessionError):
    """The aggregator could not decode the differences of this stream."""


class SpooledFrames(FrameSource, Protocol):
    """Methods needed of `spool.Spool`."""

    run_id: bytes
    boot_id: bytes

    def acknowledge(self, first: int, last: int) -> None: ...
    def mark_refused(self, sequence: int, reason: str) -> None: ...


class QueuedEvents(Protocol):
    """Methods needed of `event_queue.EventQueue`."""

    @property
    def waiting(self) -> bool: ...
    def pending(self, count_max: int) -> list[HealthEvent]: ...
    def acknowledge(self, event_ids: Sequence[str]) -> None: ...
    def mark_refused(self, event_ids: Sequence[str], reason: str) -> None: ...


class TelemetryProtocol:
    """A connection's state. `has_ack`: an acknowledgment came over this connection."""

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
        """*delta_encoding*: send differences if the aggregator accepts them.

        *on_permit* gets each message that grants a permit to enforce or, without a permit, revokes
        it. *uploads*: requested recordings.
        """
        self._uploads = uploads or RecordingUploads()
        self.registered = False
        self.has_ack = False
        #: This host's name, "" before the first registration.
        self.host = ""
        #: Time in which the whole fleet should reconnect after a loss of this connection.
        self.reconnect_seconds = 0.0
        self._session = session
        self._register = register
        self._spool = spool
        self._events = events
        self._live_hertz = live_hertz
        self._on_permit = on_permit
        self._session_id = ""  # from the aggregator
        self._stream = 0
        self._window: SendWindow | None = None
        self._delta_encoding = delta_encoding
        self._encoder = FrameBatchEncoder()
        self._must_register = True
        self._finishing = False
        self._sent_at = 0.0  # time of the last live frame
        self._received_at = 0.0  # time of the last bytes
        self._open_calls: dict[str, float] = {}  # unanswered unary method -> start of the call
        self._reported_ids: list[str] = []  # ids of unacknowledged events
        self._report_max = EVENTS_PER_REPORT_MAX
        self._report_at = 0.0  # earliest time of the next report
        self._report_retry_seconds = EVENTS_RETRY_SECONDS_MIN

    def register_again(self) -> None:
        """Send RegisterNode again at the next step, for example after an inventory change."""
        self._must_register = True

    def step(self, now: float, queued_bytes: int = 0) -> bytes:
        """Return the bytes to send now; the socket still has *queued_bytes*.

        Raises SessionError if the aggregator has not answered in time.
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
        """Return the deadline of a call that began at *since*."""
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
        for frame in outgoing:
            if not frame.backlog:
                self._send_live(frame)
                self._sent_at = now
        if backlog := [frame for frame in outgoing if frame.backlog]:
            for message in self._encoder.encode_backlog(backlog):
                self._session.send(self._stream, message)

    def _send_live(self, outgoing: OutgoingFrame) -> None:
        try:
            message = self._encoder.encode_live(outgoing)
        except StreamError as error:
            raise StreamDesyncError(f"frame {outgoing.sequence}: {error}") from error
        self._session.send(self._stream, message)

    def wait_seconds(self, now: float) -> float | None:
        """Return the time to the next deadline; None without a deadline."""
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
        """Return how long only acknowledgments are expected, which can wait for the next frame."""
        window = self._window
        if window is None or self._open_calls or self._finishing or not self.has_ack:
            return 0.0
        frames_max = min(QUIET_FRAMES_MAX, window.credit_frames - 1)
        if window.in_flight > frames_max or window.has_backlog or self._session.unsent_bytes:
            return 0.0
        return max(self._sent_at + QUIET_PERIODS / self._live_hertz - now, 0.0)

    def finish(self, now: float, queued_bytes: int = 0) -> tuple[bool, bytes]:
        """Return whether everything is sent and acknowledged, and the bytes to send.

        Backlog stays on disk. Raises SessionError.
        """
        self._finishing = True
        out = self.step(now, queued_bytes)
        window = self._window
        if self._open_calls or window is None or window.in_flight or window.has_live:
            return False, out
        self._session.finish(self._stream)
        return True, out + self._session.data_to_send()

    def receive(self, data: bytes, now: float) -> None:
        """Process bytes from the socket. Raises only SessionError."""
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
        """Yield all responses, also those before an error. Raises SessionError."""
        try:
            yield from self._session.receive(data)
        except SessionError as error:
            yield from error.received
            raise

    def _on_response(self, response: CallResponse, now: float) -> list[tuple[int, int]]:
        """Process a response; return the ranges of frames that it makes durable."""
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
            completed
            for span in ack.durable
            for completed in window.complete(span.first, span.last, now)
        ]

    def _on_call_end(self, ended: CallEnd, now: float) -> None:
        self._open_calls.pop(ended.method, None)
        if ended.method == UPLOAD:  # never ends the connection: readings matter more
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
            # Other servers or proxies use other messages; shorter reports cost little.
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
        """Report events singly until the invalid event is found and refused."""
        if len(self._reported_ids) == 1:
            self._events.mark_refused(self._reported_ids, reason)
        self._report_max = 1
