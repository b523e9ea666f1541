"""What the agent says on one connection and when: register, stream, report. No socket, no clock.

Bytes in by `receive`, bytes out by `step`, time handed in; a SessionError ends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from ...contract.frame import deflated, inflated, is_plain
from ...contract.stream import LATE_FRAMES_MAX, Sender, StreamError
from ...contract.wire.telemetry_pb2 import (
    HealthEvent,
    IngestAck,
    RegisterNodeRequest,
    RegisterNodeResponse,
    ReportEventsRequest,
    TelemetryBatch,
)
from .grpc_http2 import EVENTS, REGISTER, STREAM, Answer, Ended, Session, SessionError
from .send_window import Frames, Outflow, Outgoing, joined

# ----------------------------------------------------------------------
# Frames as messages of one stream: a live one as differences to those before, late ones several a
# message.
#
# A message costs both ends more than what is in it: each alone, late frames take an aggregator more
# than twice what they do together.

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


#: A unary call without an answer for so long ends the connection.
ANSWER_SECONDS_MAX = 10.0
#: So do frames on their way without any receipt or credit: a stalled aggregator and a half-open connection.
RECEIPT_SECONDS_MAX = 30.0
#: Events that the aggregator cannot take now wait this long, then twice as long each time, at most:
EVENTS_RETRY_SECONDS_MIN, EVENTS_RETRY_SECONDS_MAX = 1.0, 30.0
#: Events in one report; after one was refused they go one at a time until one is taken.
EVENTS_PER_REPORT_MAX = 64
#: While live frames come at their pace and no more of them than this wait for a receipt, nothing is read:
#: receipts of several frames are taken with one waking, which the next frame's sending is.
REST_FRAMES_MAX = 8
#: So many periods after a frame the next one is late, and the receipt is no longer waited for with it.
REST_PERIODS = 1.5
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
_LATER = frozenset(("UNAVAILABLE", "RESOURCE_EXHAUSTED"))
#: What servers say with RESOURCE_EXHAUSTED where a message is above their limit ("received message larger than
#: max", "message exceeds maximum size"): the same message is never taken.
_TOO_LARGE = re.compile(r"larger than max|too large|exceeds max", re.IGNORECASE)
#: Statuses of any call that say that this name is another's.
_REFUSALS_ANYWHERE = frozenset(("ALREADY_EXISTS", "PERMISSION_DENIED"))


#: What looks at the permit of a message.
Permitted = Callable[[RegisterNodeResponse | IngestAck], None]


class RefusedError(SessionError):
    """The aggregator does not take this host as it presents itself."""


class DifferencesError(SessionError):
    """The aggregator could not follow the differences of this stream."""


class SpooledFrames(Frames, Protocol):
    """What is asked of `spool.Spool`."""

    run_id: bytes
    boot_id: bytes

    def receipt(self, first: int, last: int) -> None: ...
    def refused(self, sequence: int, reason: str) -> None: ...


class QueuedEvents(Protocol):
    """What is asked of `events.EventQueue`."""

    @property
    def waiting(self) -> bool: ...
    def pending(self, count_max: int) -> list[HealthEvent]: ...
    def receipt(self, event_ids: Sequence[str]) -> None: ...
    def refused(self, event_ids: Sequence[str], reason: str) -> None: ...


class Conversation:
    """`registered` from the first answer on; `proven` once a receipt came over this connection."""

    def __init__(
        self,
        session: Session,
        register: Callable[[], RegisterNodeRequest],
        spool: SpooledFrames,
        events: QueuedEvents,
        live_hertz: float,
        *,
        differences: bool = True,
        permitted: Permitted = lambda _: None,
    ) -> None:
        """*differences*: send frames as such, where the aggregator takes them. *permitted* is
        shown each message that gives a permit to enforce or, by its absence, takes it back."""
        self.registered = False
        self.proven = False
        #: Our name, once it was said.
        self.host = ""
        #: Within how long the whole fleet is to come back should this connection be lost.
        self.reconnect_seconds = 0.0
        self._session = session
        self._register = register
        self._spool = spool
        self._events = events
        self._live_hertz = live_hertz
        self._permitted = permitted
        self._name = ""  # the session the aggregator gave
        self._stream = 0
        self._outflow: Outflow | None = None
        self._differences = differences
        self._messages = Messages()  # of this stream
        self._must_register = True
        self._finishing = False
        self._sent_at = 0.0  # the last live frame
        self._asked: dict[str, float] = {}  # unary method -> since when it waits for its answer
        self._reported: list[str] = []  # event ids on their way
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
        self._check_patience(now)
        if self._must_register and REGISTER not in self._asked:
            self._send_register(now)
        if self._outflow is not None:
            self._send_events(now)
            if self.unsent_bytes + queued_bytes <= UNSENT_BYTES_MAX:
                self._send_frames(self._outflow, now)
        return self._session.data_to_send()

    def _check_patience(self, now: float) -> None:
        for method, since in self._asked.items():
            if now - since >= ANSWER_SECONDS_MAX:
                raise SessionError(f"no answer to {method} within {ANSWER_SECONDS_MAX:g} s")
        outflow = self._outflow
        if outflow is not None and outflow.waiting_seconds(now) >= RECEIPT_SECONDS_MAX:
            raise SessionError(
                f"{outflow.in_flight} frames sent and no receipt within {RECEIPT_SECONDS_MAX:g} s"
            )

    def _send_register(self, now: float) -> None:
        request = self._register()
        request.run_id = self._spool.run_id
        request.boot_id = self._spool.boot_id
        self.host = request.node
        self._must_register = False
        self._asked[REGISTER] = now
        self._session.call(REGISTER, request)

    def _send_events(self, now: float) -> None:
        if not self._events.waiting or EVENTS in self._asked or now < self._report_at:
            return
        if not (events := self._events.pending(self._report_max)):
            return
        self._reported = [event.event_id for event in events]
        self._asked[EVENTS] = now
        self._session.call(EVENTS, ReportEventsRequest(events=events), self._name)

    def _send_frames(self, outflow: Outflow, now: float) -> None:
        going = outflow.take(now, with_backlog=not self._finishing)
        for one in going:
            if not one.backlog:
                self._send_live(one, now)
        for message in self._messages.late(one for one in going if one.backlog):
            self._session.send(self._stream, message)

    def step_at_rest(self, now: float) -> bytes:
        """Return the bytes of the frame that was added last, if that is all there is to do; none if it is not.

        Whoever waits as long as `wait_seconds` says looks how long we are kept waiting. Raises SessionError.
        """
        outflow = self._outflow
        if outflow is None or self._must_register or self._events.waiting:
            return b""
        if (going := outflow.take_newest(now)) is None:
            return b""
        self._send_live(going, now)
        return self._session.data_to_send()

    def _send_live(self, going: Outgoing, now: float) -> None:
        try:
            message = self._messages.live(going)
        except StreamError as error:
            raise DifferencesError(f"frame {going.sequence}: {error}") from error
        self._session.send(self._stream, message)
        self._sent_at = now

    def wait_seconds(self, now: float) -> float | None:
        """How long nothing needs to be done unless bytes or frames come; None: for ever."""
        waits = [since + ANSWER_SECONDS_MAX - now for since in self._asked.values()]
        if now < self._report_at:
            waits.append(self._report_at - now)
        if (outflow := self._outflow) is not None:
            if outflow.in_flight:
                waits.append(RECEIPT_SECONDS_MAX - outflow.waiting_seconds(now))
            if outflow.has_backlog:
                waits.append(1 / self._live_hertz)
        return max(min(waits), 0.0) if waits else None

    @property
    def unsent_bytes(self) -> int:
        """What waits for the peer to open its windows: its word that it does must be read."""
        return self._session.unsent_bytes

    @property
    def receipts_due(self) -> bool:
        """No further frame may be on its way before something is read."""
        outflow = self._outflow
        return outflow is not None and outflow.in_flight >= _frames_at_rest(outflow)

    def rest_seconds(self, now: float) -> float:
        """How long the socket need not be read, unless it is closed: 0 while anything else than
        receipts of a few live frames is to be expected, or they are late."""
        outflow = self._outflow
        if outflow is None or self._asked or self._finishing or not self.proven:
            return 0.0
        if outflow.in_flight > _frames_at_rest(outflow) or outflow.has_backlog or self.unsent_bytes:
            return 0.0
        return max(self._sent_at + REST_PERIODS / self._live_hertz - now, 0.0)

    def finish(self, now: float, queued_bytes: int = 0) -> tuple[bool, bytes]:
        """Return whether all that was to be said is said and receipted, and bytes to send.

        What is backlog stays on disk for the next time. Raises SessionError.
        """
        self._finishing = True
        out = self.step(now, queued_bytes)
        outflow = self._outflow
        if self._asked or outflow is None or outflow.in_flight or outflow.has_live:
            return False, out
        self._session.finish(self._stream)
        return True, out + self._session.data_to_send()

    # In ------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take bytes from the socket. Raises SessionError, whatever they are; nothing else."""
        durable: list[tuple[int, int]] = []
        try:
            for answer in self._answers(data):
                if isinstance(answer, Ended):
                    self._take_end(answer, now)
                else:
                    durable += self._take(answer, now)
        finally:
            for first, last in joined(durable):
                self._spool.receipt(first, last)
                self.proven = True

    def _answers(self, data: bytes) -> Iterator[Answer | Ended]:
        """Yield what came, also what came before that which ends the connection. Raises SessionError."""
        try:
            yield from self._session.receive(data)
        except SessionError as error:
            yield from error.before
            raise

    def _take(self, answer: Answer, now: float) -> list[tuple[int, int]]:
        """Take an answer; return the ranges of frames that are durable by it."""
        self._asked.pop(answer.method, None)
        message = answer.message
        if isinstance(message, RegisterNodeResponse | IngestAck):
            self._permitted(message)
            self.reconnect_seconds = float(message.reconnect_seconds)
        if isinstance(message, RegisterNodeResponse):
            self._take_registration(message, now)
        elif isinstance(message, IngestAck) and self._outflow is not None:
            return self._take_receipts(self._outflow, message, now)
        elif answer.method == EVENTS:
            self._events.receipt(self._reported)
            self._report_max = EVENTS_PER_REPORT_MAX
            self._report_retry_seconds = EVENTS_RETRY_SECONDS_MIN
        return []

    def _take_registration(self, response: RegisterNodeResponse, now: float) -> None:
        self._name = response.session
        self.registered = True
        if self._outflow is None:
            self._stream = self._session.open_stream(self._name)
            self._outflow = Outflow(self._spool, response.credit_frames, self._live_hertz, now)
            if self._differences:
                late_frames_max = response.late_frames_max
                self._messages = Messages(response.stream_context_bytes, late_frames_max)
                self._outflow.late_frames = self._messages.late_frames
        self._outflow.grant(response.credit_frames, response.backlog_frames)

    def _take_receipts(self, outflow: Outflow, ack: IngestAck, now: float) -> list[tuple[int, int]]:
        outflow.grant(ack.credit_frames, ack.backlog_frames)
        outflow.heard(now)
        for refused in ack.refused:
            if outflow.settle(refused.sequence, refused.sequence, now):
                self._spool.refused(refused.sequence, refused.reason)
                self.proven = True
        return [each for span in ack.durable for each in outflow.settle(span.first, span.last, now)]

    def _take_end(self, ended: Ended, now: float) -> None:
        self._asked.pop(ended.method, None)
        if ended.status in (_REFUSALS if ended.method == REGISTER else _REFUSALS_ANYWHERE):
            raise RefusedError(str(ended))
        if ended.method == STREAM and ended.status == "DATA_LOSS":
            raise DifferencesError(str(ended))
        if ended.method == EVENTS and ended.status == "INVALID_ARGUMENT":
            self._take_refused_report(str(ended))
            return
        if ended.method == EVENTS and ended.status == "RESOURCE_EXHAUSTED":
            too_large = _TOO_LARGE.search(ended.words) is not None
            if too_large and len(self._reported) == 1:
                self._events.refused(self._reported, str(ended))
            # A server or proxy may use other words for it: shorter reports cost little.
            self._report_max = max(len(self._reported) // 2, 1)
            if too_large:
                return
        if ended.method == EVENTS and ended.status in _LATER:
            self._report_at = now + self._report_retry_seconds
            self._report_retry_seconds = min(
                2 * self._report_retry_seconds, EVENTS_RETRY_SECONDS_MAX
            )
            return
        error = SessionError(str(ended))
        error.retry_seconds = ended.retry_seconds
        raise error

    def _take_refused_report(self, words: str) -> None:
        """One bad event must not hold up all others for ever: find it, one at a time."""
        if len(self._reported) == 1:
            self._events.refused(self._reported, words)
        self._report_max = 1


def _frames_at_rest(outflow: Outflow) -> int:
    """Return how many frames may be on their way while nothing is read."""
    return min(REST_FRAMES_MAX, outflow.credit_frames - 1)
