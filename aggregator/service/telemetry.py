"""TelemetryService on grpc.aio: sessions, admission, streams, and receipts of durable frames."""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Protocol

from ...contract.frame import FrameError
from ...contract.stream import LATE_FRAMES_MAX
from ...contract.wire import telemetry_pb2 as wire
from ...contract.wire.telemetry_pb2_grpc import TelemetryServiceServicer
from ..auth.access import AgentRateLimit
from ..config import AggregatorConfig
from ..errors import NoSession, NotFound, ResourceExhausted, ServiceUnavailable, StreamRefused
from ..fleet.fleet import Fleet
from ..ingest import backlog
from ..ingest.frame_reader import FrameStreamReader, check_backlog
from ..ingest.ingest import AcceptedFrame, Ingest
from ..ingest.sessions import Session
from ..principal import Principal, current_principal, is_name
from ..recordings import RecordingExchange
from ..store.received_ledger import range_set
from ..store.store import Store
from .status import pushback

log = logging.getLogger(__name__)

#: Interval of the admission task.
TICK_SECONDS = 0.1
#: Delay after a commit, so that the streams with durable frames are acknowledged together.
RECEIPTS_SECONDS = 0.005
#: Maximum interval between messages to an agent that waits for receipts: after 30 s of silence the
#: agent would reconnect and send everything again.
QUIET_SECONDS_MAX = 10.0

#: After this many rejected frames in a row the stream is closed with an error.
REFUSED_IN_ROW_MAX = 32
#: While receipts are unread, a stream reads nothing and checks again after this time.
UNREAD_SECONDS = 0.05
#: A stream is not read while its agent has this many unread receipts and refusals.
UNREAD_MAX = 8192
#: Maximum wait for the last receipts of a closed stream.
LAST_RECEIPTS_SECONDS = 10.0


class AdmittedStream(backlog.BacklogStream, Protocol):
    """The methods of a stream that AdmissionControl uses."""

    def send_credit(self) -> None: ...
    def wake(self) -> None: ...
    def quiet_since(self, since: float) -> bool: ...


class AdmissionControl:
    """Schedules late frames, streams that wait for space in the store, and registrations.

    A single task serves all streams a few times per second; `ingest/backlog.py` has the rules.
    Create it in the event loop that owns it; `stop` ends its task.
    """

    def __init__(
        self, ingest: Ingest, store: Store, fleet: Fleet, config: AggregatorConfig
    ) -> None:
        self._ingest, self._store, self._fleet = ingest, store, fleet
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self.backlog = backlog.BacklogQueue(
            config.queue_bytes_max // backlog.WAITING_BYTES_SHARE, now
        )
        self.registrations = backlog.RegistrationQueue(config.reconnects_per_second, now)
        self.streams: set[AdmittedStream] = set()
        #: Set at shutdown: no more frames are read.
        self.stopping = False
        self._backlog_hertz = float(config.backlog_frames_per_second)
        self._spread = backlog.ReconnectSpread(config.reconnects_per_second)
        self._sent_away_max = max(1, int(config.reconnects_per_second * TICK_SECONDS))
        self._room: asyncio.Future[None] = self._loop.create_future()
        # Filled by the writer thread, emptied by the loop.
        self._receipted: deque[AdmittedStream] = deque()
        self._is_waking = False
        self._sent_credit = self.credit_frames
        self._checked = now
        self._task = asyncio.create_task(self._poll_always())

    @property
    def credit_frames(self) -> int:
        """Number of frames that a host may have in flight."""
        credit = self._ingest.credit_frames
        return min(credit, backlog.CREDIT_FRAMES_PRESSED) if self.backlog.is_pressed else credit

    @property
    def backlog_frames(self) -> int:
        """Number of late frames that a host may have in flight."""
        return backlog.BACKLOG_FRAMES_PRESSED if self.backlog.is_pressed else backlog.BACKLOG_FRAMES

    @property
    def reconnect_seconds(self) -> int:
        """Period over which all hosts should reconnect after losing their connections."""
        return self._spread.seconds(len(self._fleet))

    def retry_seconds(self, host: str) -> float:
        """Return the delay after which *host* should reconnect if all are sent away now."""
        return self._spread.retry_seconds(host, len(self._fleet))

    def new_quota(self, now: float) -> backlog.HostQuota:
        """Return the quota of a host with its first stream."""
        return backlog.HostQuota(self._backlog_hertz, now)

    def admit(self, request: wire.RegisterNodeRequest, address: str) -> None:
        """Admit a registration. Raises ResourceExhausted if too many arrive at once."""
        if not is_name(request.node):
            return  # rejected later; do not store a name of megabytes in the queue
        identity = request.node, request.run_id, request.boot_id, address
        if self._ingest.sessions.is_registered(*identity):
            return
        wait = self.registrations.wait_seconds(request.node, self._loop.time())
        if wait:
            raise ResourceExhausted(
                f"many agents register at once; try again in {wait:.1f} s", wait
            )

    def leave(self, stream: AdmittedStream) -> None:
        """Remove a stream that has ended, and its waiting frames."""
        self.streams.discard(stream)
        self.backlog.drop(stream)

    def receipted(self, stream: AdmittedStream) -> None:
        """Wake the loop once per commit. The writer thread calls it for each stream."""
        self._receipted.append(stream)
        if not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # the loop has ended, no receipt can be sent
                self._loop.call_soon_threadsafe(
                    self._loop.call_later, RECEIPTS_SECONDS, self._wake_receipted
                )

    def _wake_receipted(self) -> None:
        self._is_waking = False
        while self._receipted:
            self._receipted.popleft().wake()

    async def room(self) -> None:
        """Return when the store may have space again, or cannot store now."""
        await asyncio.shield(self._room)

    async def _poll_always(self) -> None:
        due = self._loop.time()
        while not self.stopping:
            due = max(due + TICK_SECONDS, self._loop.time())
            await asyncio.sleep(due - self._loop.time())
            now = self._loop.time()
            try:
                self.poll(now, now - due)
            except Exception:
                log.exception("handling late frames and waiting agents failed")

    def poll(self, now: float, lag_seconds: float) -> None:
        """Run the due work. *lag_seconds*: delay of the event loop."""
        room = self._store.room
        if room or not self._ingest.storing:
            before, self._room = self._room, self._loop.create_future()
            before.set_result(None)
        self.backlog.step(now, lag_seconds, room)
        for stream, frames in self.backlog.passed_over(self._sent_away_max):
            stream.request_resend(frames)
        self._send_credit()
        if now - self._checked >= QUIET_SECONDS_MAX / 4:
            self._checked = now
            self._send_keepalives(now)

    def _send_credit(self) -> None:
        """Send credit to all streams once it has halved: the next receipt could be late."""
        credit = self.credit_frames
        if 2 * credit <= self._sent_credit:
            for stream in self.streams:
                stream.send_credit()
            self._sent_credit = credit
        self._sent_credit = max(self._sent_credit, credit)

    def _send_keepalives(self, now: float) -> None:
        """Send credit if receipts are overdue: a slow disk must not look like a dead aggregator."""
        for stream in self.streams:
            if stream.quiet_since(now - QUIET_SECONDS_MAX):
                stream.send_credit()

    def stop(self) -> None:
        """End the task; streams that end afterwards get a reconnect delay."""
        self.stopping = True
        self._task.cancel()


class TelemetryStream:
    """An agent's stream: a task that reads frames, and a loop that writes receipts and refusals."""

    def __init__(
        self,
        ingest: Ingest,
        session: Session,
        admission_control: AdmissionControl,
        permit: Callable[[], wire.Permit | None],
        rate_limit: AgentRateLimit | None = None,
        verdict: Callable[[str], wire.HostVerdict | None] = lambda _: None,
        recordings: RecordingExchange | None = None,
    ) -> None:
        self._ingest, self._admission_control, self._permit = ingest, admission_control, permit
        self._verdict, self._recordings = verdict, recordings
        self._rate_limit = rate_limit
        self._session = session
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        if session.quota is None:
            session.quota = admission_control.new_quota(now)
        #: Rate limit of the host's late frames.
        self.quota = session.quota
        self._last_sent = now
        self._failure: Exception | None = None  # ends the stream
        # No Event or deque here: there are 10,000 streams, and an empty one takes 0.7 kB each.
        self._woken = False
        self._sleeper: asyncio.Future[None] | None = None  # pending until `wake`
        self._waking = False
        self._durable: list[int] = []  # filled by the writer thread, emptied by the loop
        self._refused: list[wire.RefusedFrame] = []
        self._refused_in_row = 0
        self._incoming = FrameStreamReader()
        self._ready: AcceptedFrame | None = None  # a late frame for which the store had no space
        self._unreceipted = 0
        self._passed_over = 0  # judged but not stored, because the disk is full
        self._is_credit_due = False
        self._reader: asyncio.Task[None] | None = None

    async def run(self, requests: AsyncIterator[wire.TelemetryBatch], context: Any) -> None:
        """Serve the stream to its end; send due receipts, then raise the error that ended it."""
        self._reader = asyncio.create_task(self._read(requests))
        self._reader.add_done_callback(lambda _: self.wake())
        try:
            while not self._reader.done():
                await self._wait_woken()
                await self._answer(context)
                if self._failure is not None:
                    raise self._failure
            async with asyncio.timeout(LAST_RECEIPTS_SECONDS):
                while self._unreceipted or self._refused:
                    await self._answer(context)
                    if self._unreceipted:
                        await self._wait_woken()
        except TimeoutError:
            pass  # the agent resends frames without receipt
        finally:
            self._reader.cancel()
        if not self._reader.cancelled() and self._reader.done():
            self._reader.result()

    def stop_reading(self) -> None:
        """Stop reading frames."""
        if self._reader is not None:
            self._reader.cancel()

    def send_credit(self) -> None:
        """Send credit soon, even without a receipt."""
        self._is_credit_due = True
        self.wake()

    def quiet_since(self, since: float) -> bool:
        """Return whether the agent waits for receipts and was sent nothing since *since*."""
        waits = self._unreceipted > 0 or self._admission_control.backlog.is_waiting(self)
        return waits and self._last_sent <= since

    async def _read(self, requests: AsyncIterator[wire.TelemetryBatch]) -> None:
        async for message in requests:
            while len(self._refused) + self._unreceipted >= UNREAD_MAX:
                await asyncio.sleep(UNREAD_SECONDS)
            if message.backlog or message.late:
                self._enqueue_backlog(message)
                await self._hold_back(message, 0)
                continue
            self.quota.live_frames += 1
            good = self._accept(message)
            await self._hold_back(message, good.cost_rows if good else 0)
            if good is not None and await self._submit(good):
                self._unreceipted += 1

    def _accept(self, message: wire.TelemetryBatch) -> AcceptedFrame | None:
        """Return the accepted frame of a message; None if it was rejected."""
        try:
            good = self._ingest.accept(self._session, message, self._incoming)
        except FrameError as error:
            self._refuse(self._incoming.sequence, str(error))
            return None
        self._refused_in_row = 0
        return good

    def _enqueue_backlog(self, message: wire.TelemetryBatch) -> None:
        """Queue late frames, so that live frames behind them do not wait. Raises StreamRefused."""
        if message.late:
            check_backlog(message)
        if message.differences:
            self._refuse(message.sequence, "late frames must be complete, not differences")
        else:
            self._admission_control.backlog.enqueue(self, message)

    def request_resend(self, frames: int) -> None:
        """End the stream: its agent waits for receipts of *frames* late frames, and must resend."""
        reason = f"{frames} late frames arrived when the queue was full: send them again"
        self._fail(self._resend_error(reason))

    def _fail(self, why: Exception) -> None:
        self._failure = why
        self.wake()

    def take_backlog(self, message: wire.TelemetryBatch, frames_max: int) -> int:
        """Accept late frames; return the count, below *frames_max* if the store is full."""
        for taken in range(frames_max):
            good, self._ready = self._ready, None
            try:
                good = good or self._accept(message)
            except Exception as error:  # noqa: BLE001 - sent to the agent; other streams must continue
                self._fail(error)
                return frames_max
            if good is not None and not self._submit_backlog(good):
                self._ready = good
                return taken
        return frames_max

    def _submit_backlog(self, good: AcceptedFrame) -> bool:
        stored = self._ingest.submit(self._session, good, self.durable)
        if stored and self._rate_limit is not None:
            self._rate_limit.take(0, 0, good.cost_rows)  # throttles the next reads
        self._unreceipted += stored
        return stored

    def _resend_error(self, reason: str) -> ServiceUnavailable:
        """Return the error that ends the stream: the agent then resends frames without receipt."""
        refusal = ServiceUnavailable(reason)
        refusal.retry_seconds = self._admission_control.retry_seconds(self._session.host)
        return refusal

    async def _hold_back(self, message: wire.TelemetryBatch, rows: int) -> None:
        """Pause reading while the agent exceeds its rate limit."""
        if self._rate_limit is None:
            return
        size_bytes = len(message.frame) + len(message.differences) + sum(map(len, message.late))
        if wait := self._rate_limit.take(len(message.late) or 1, size_bytes, rows):
            self._ingest.report_held_back(self._session)
            await asyncio.sleep(wait)

    async def _submit(self, good: AcceptedFrame) -> bool:
        """Queue a frame once there is space; False while the disk is full.

        The frame is judged, and the agent keeps it. Once frames are stored again, the agent is made
        to reconnect and sends it again.
        """
        if self._passed_over and self._ingest.storing:
            raise self._resend_error(
                f"frames are stored again; {self._passed_over} were judged only: send them again"
            )
        while not self._ingest.submit(self._session, good, self.durable):
            if not self._ingest.storing:
                self._passed_over += 1
                return False
            await self._admission_control.room()
        return True

    def _refuse(self, sequence: int, reason: str) -> None:
        self._ingest.refused_frames += 1
        self._refused.append(wire.RefusedFrame(sequence=sequence, reason=reason))
        self._refused_in_row += 1
        self.wake()
        if self._refused_in_row >= REFUSED_IN_ROW_MAX:
            raise StreamRefused(
                f"{self._refused_in_row} frames in a row were rejected; the last reason: {reason}"
            )

    def durable(self, sequence: int) -> None:
        """Called by the writer thread once a frame is on disk."""
        self._durable.append(sequence)
        if not self._waking:
            self._waking = True
            self._admission_control.receipted(self)

    def wake(self) -> None:
        """Make the loop send the pending receipts."""
        self._woken = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _wait_woken(self) -> None:
        """Return once `wake` was called since the last `_answer`."""
        if not self._woken:
            self._sleeper = self._loop.create_future()
            await self._sleeper
            self._sleeper = None

    async def _answer(self, context: Any) -> None:
        """Send the pending receipts and refusals."""
        self._woken = False
        self._waking = False
        refused, self._refused = self._refused, []
        ranges = self._receipts()
        is_credit_due, self._is_credit_due = self._is_credit_due, False
        if not ranges and not refused and not is_credit_due:
            return
        self._last_sent = self._loop.time()
        await context.write(
            wire.IngestAck(
                durable=ranges,
                refused=refused,
                credit_frames=self._credit_frames(),
                permit=self._permit(),
                reconnect_seconds=self._admission_control.reconnect_seconds,
                backlog_frames=self._admission_control.backlog_frames,
                verdict=self._verdict(self._session.host),
                recordings=self._recording_requests(),
            )
        )

    @property
    def host(self) -> str:
        """The stream's host."""
        return self._session.host

    def _recording_requests(self) -> list[wire.RecordingRequest]:
        if self._recordings is None:
            return []
        return self._recordings.requests(self._session.host, self._session.token)

    def _credit_frames(self) -> int:
        """Return the frames that the agent may have in flight.

        This stream's queued late frames do not count, because live frames do not wait for them.
        While nothing is stored, frames without receipt do not count: judging needs live frames.
        """
        if self._ingest.storing:
            late_frames = self._admission_control.backlog.frames_of(self)
            return min(
                self._admission_control.credit_frames + late_frames, self._ingest.credit_frames
            )
        return self._unreceipted + self._passed_over + self._ingest.credit_frames_max

    def _receipts(self) -> list[wire.SequenceRange]:
        sequences = self._durable[:]
        del self._durable[: len(sequences)]  # keep those added meanwhile
        self._unreceipted -= len(sequences)
        self._ingest.receipts += len(sequences)
        return [wire.SequenceRange(first=first, last=last) for first, last in range_set(sequences)]


class TelemetryService(TelemetryServiceServicer):
    """The agents' interface to the ingest."""

    def __init__(
        self,
        ingest: Ingest,
        admission_control: AdmissionControl,
        permit: Callable[[], wire.Permit | None] = lambda: None,
        rate_limit: Callable[[Principal], AgentRateLimit] | None = None,
        verdict: Callable[[str], wire.HostVerdict | None] = lambda _: None,
        recordings: RecordingExchange | None = None,
    ) -> None:
        """*permit*: sent with each answer; None withdraws it.

        *rate_limit*: limit of a logged-in caller; None: unlimited. *verdict*: a host's verdict;
        None: not judged yet. *recordings*: requested recordings.
        """
        self._recordings = recordings
        self._ingest, self._admission_control, self._permit = ingest, admission_control, permit
        self._rate_limit, self._verdict = rate_limit, verdict
        self._streams: set[TelemetryStream] = set()

    async def RegisterNode(
        self, request: wire.RegisterNodeRequest, context: Any
    ) -> wire.RegisterNodeResponse:
        """Register an agent and its signal ids."""
        address = _address(context.peer())
        self._admission_control.admit(request, address)
        response = self._ingest.register(request, address, current_principal(context))
        response.reconnect_seconds = self._admission_control.reconnect_seconds
        response.backlog_frames = self._admission_control.backlog_frames
        response.late_frames_max = LATE_FRAMES_MAX
        if permit := self._permit():
            response.permit.CopyFrom(permit)
        return response

    async def ReportEvents(
        self, request: wire.ReportEventsRequest, context: Any
    ) -> wire.ReportEventsResponse:
        """Receive events, ahead of frames."""
        return await self._ingest.events(self._session(context), request)

    async def UploadRecording(
        self, request: wire.UploadRecordingRequest, context: Any
    ) -> wire.UploadRecordingResponse:
        """Receive a piece of a recording that was requested from the host."""
        session = self._session(context)
        if self._recordings is None:
            raise NotFound("no recording was requested")
        self._recordings.receive(session.host, request)
        return wire.UploadRecordingResponse()

    def request_recordings(self, host: str) -> bool:
        """Send *host* its pending requests at once; False: it has no stream."""
        streams = [stream for stream in self._streams if stream.host == host]
        for stream in streams:
            stream.send_credit()
        return bool(streams)

    async def StreamTelemetry(
        self, request_iterator: AsyncIterator[wire.TelemetryBatch], context: Any
    ) -> None:
        """Receive frames, send receipts."""
        session = self._session(context)
        if self._rate_limit and session.principal.is_authenticated:
            rate_limit = self._rate_limit(session.principal)
        else:
            rate_limit = None
        stream = TelemetryStream(
            self._ingest, session, self._admission_control, self._permit, rate_limit, self._verdict,
            self._recordings,
        )  # fmt: skip
        self._streams.add(stream)
        self._admission_control.streams.add(stream)
        session.streams += 1
        try:
            await stream.run(request_iterator, context)
        finally:
            session.streams -= 1
            self._streams.discard(stream)
            self._admission_control.leave(stream)
        if self._admission_control.stopping:
            context.set_trailing_metadata(
                pushback(self._admission_control.retry_seconds(session.host))
            )

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def stop_reading(self) -> None:
        """Stop reading frames; each stream ends after its last receipt, with a reconnect delay."""
        self._admission_control.stop()
        for stream in self._streams:
            stream.stop_reading()

    def report_not_storing(self) -> None:
        """Send credit to every agent, so that it continues and keeps its frames."""
        for stream in self._streams:
            stream.send_credit()

    def _session(self, context: Any) -> Session:
        for key, value in context.invocation_metadata() or ():
            if key == "gangline-session":
                return self._ingest.sessions.get(str(value), current_principal(context))
        raise NoSession("metadata gangline-session is missing: call RegisterNode first")


def _address(peer: str) -> str:
    """Return `127.0.0.1:4711` from gRPC's `ipv4:127.0.0.1:4711`."""
    return urllib.parse.unquote(peer.partition(":")[2])
