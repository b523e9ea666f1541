"""One stream of an agent: frames in, each judged and queued for the store; receipts out once they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from ...fingerprints.frames import FrameError
from ...fingerprints.wire import telemetry_pb2 as wire
from ..access.door import Pace
from ..ingest.intake import Accepted, Ingest
from ..ingest.reading import Incoming, check_late
from ..ingest.sessions import Session
from ..refusals import NotReady, StreamRefused
from ..store.ledger import joined
from .turns import Turns

#: After so many refused frames in a row the stream is closed with words.
REFUSED_IN_ROW_MAX = 32
#: While receipts are not read, a stream looks this often whether they are, and reads nothing.
UNREAD_SECONDS = 0.05
#: Receipts and refusals that a stream's agent does not read; with so many it is read no further either.
UNREAD_MAX = 8192
#: A closed stream's last receipts are waited for at most this long.
LAST_RECEIPTS_SECONDS = 10.0


class Stream:
    """One stream: a task that reads, and a loop that writes what the reader and the store tell."""

    def __init__(
        self,
        ingest: Ingest,
        session: Session,
        turns: Turns,
        permit: Callable[[], wire.Permit | None],
        pace: Pace | None = None,
    ) -> None:
        self._ingest, self._turns, self._permit = ingest, turns, permit
        self._allowed = pace
        self._session = session
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        if session.pace is None:
            session.pace = turns.pace(now)
        #: How fast the host's late frames are taken.
        self.pace = session.pace
        self._spoke = now
        self._failure: Exception | None = None  # for which the stream ends
        # Ten thousand streams have these: an Event or a deque that is empty takes 0.7 kB.
        self._woken = False
        self._sleeper: asyncio.Future[None] | None = None  # waited for until woken
        self._waking = False
        self._durable: list[int] = []  # filled by the writer thread, emptied by the loop
        self._refused: list[wire.RefusedFrame] = []
        self._refused_in_row = 0
        self._incoming = Incoming()
        self._ready: Accepted | None = None  # a late frame for which the store had no room
        self._unreceipted = 0
        self._passed_over = 0  # judged and not stored, for the disk is full
        self._say_heard = False
        self._reader: asyncio.Task[None] | None = None

    async def run(self, requests: AsyncIterator[wire.TelemetryBatch], context: Any) -> None:
        """Serve the stream to its end. Raises what ends it early, after the receipts due by then."""
        self._reader = asyncio.create_task(self._read(requests))
        self._reader.add_done_callback(lambda _: self.wake())
        try:
            while not self._reader.done():
                await self._to_be_woken()
                await self._answer(context)
                if self._failure is not None:
                    raise self._failure
            async with asyncio.timeout(LAST_RECEIPTS_SECONDS):
                while self._unreceipted or self._refused:
                    await self._answer(context)
                    if self._unreceipted:
                        await self._to_be_woken()
        except TimeoutError:
            pass  # without receipt: the agent sends them again
        finally:
            self._reader.cancel()
        if not self._reader.cancelled() and self._reader.done():
            self._reader.result()

    def stop_reading(self) -> None:
        """Take no further frames."""
        if self._reader is not None:
            self._reader.cancel()

    def say_heard(self) -> None:
        """Send credit without a receipt soon."""
        self._say_heard = True
        self.wake()

    def quiet_since(self, since: float) -> bool:
        """Say whether the agent waits for receipts and had no word since then."""
        waits = self._unreceipted > 0 or self._turns.late.waits(self)
        return waits and self._spoke <= since

    async def _read(self, requests: AsyncIterator[wire.TelemetryBatch]) -> None:
        async for message in requests:
            while len(self._refused) + self._unreceipted >= UNREAD_MAX:
                await asyncio.sleep(UNREAD_SECONDS)
            if message.backlog or message.late:
                self._hold(message)
                await self._hold_back(message, 0)
                continue
            self.pace.live_frames += 1
            good = self._accept(message)
            await self._hold_back(message, good.cost_rows if good else 0)
            if good is not None and await self._submit(good):
                self._unreceipted += 1

    def _accept(self, message: wire.TelemetryBatch) -> Accepted | None:
        """Return what is good of a message; None: it was refused."""
        try:
            good = self._ingest.accept(self._session, message, self._incoming)
        except FrameError as error:
            self._refuse(self._incoming.sequence, str(error))
            return None
        self._refused_in_row = 0
        return good

    def _hold(self, message: wire.TelemetryBatch) -> None:
        """Let late frames wait for their turn, so that the live ones behind them do not. Raises StreamRefused."""
        if message.late:
            check_late(message)
        if message.differences:
            self._refuse(message.sequence, "a late frame goes whole, not as differences")
        else:
            self._turns.late.hold(self, message)

    def send_again(self, frames: int) -> None:
        """End the stream: its agent waits for receipts of *frames* late frames, and may send no others before."""
        words = f"{frames} late frames came when no more could wait: send them again"
        self._fail(self._again(words))

    def _fail(self, why: Exception) -> None:
        self._failure = why
        self.wake()

    def take_late(self, message: wire.TelemetryBatch, frames_max: int) -> int:
        """Take the next late frames of a message, whose turn it is; return how many, fewer if the store has no room."""
        for taken in range(frames_max):
            good, self._ready = self._ready, None
            try:
                good = good or self._accept(message)
            except Exception as error:  # noqa: BLE001 - told to the agent; other streams' turn comes
                self._fail(error)
                return frames_max
            if good is not None and not self._submit_late(good):
                self._ready = good
                return taken
        return frames_max

    def _submit_late(self, good: Accepted) -> bool:
        stored = self._ingest.submit(self._session, good, self.durable)
        if stored and self._allowed is not None:
            self._allowed.take(0, 0, good.cost_rows)  # what is read next waits the longer for it
        self._unreceipted += stored
        return stored

    def _again(self, words: str) -> NotReady:
        """Return what ends the stream, so that its agent sends again what has no receipt."""
        refusal = NotReady(words)
        refusal.retry_seconds = self._turns.retry_seconds(self._session.host)
        return refusal

    async def _hold_back(self, message: wire.TelemetryBatch, rows: int) -> None:
        """Read no further for as long as the agent has sent more than it may."""
        if self._allowed is None:
            return
        size_bytes = len(message.frame) + len(message.differences) + sum(map(len, message.late))
        if wait := self._allowed.take(len(message.late) or 1, size_bytes, rows):
            self._ingest.held_back(self._session)
            await asyncio.sleep(wait)

    async def _submit(self, good: Accepted) -> bool:
        """Queue a frame, once there is room. False: there will be none while the disk is full.

        The frame has been judged, and the agent keeps it; it sends it again on its next stream,
        which it is made to open once frames are stored again.
        """
        if self._passed_over and self._ingest.storing:
            raise self._again(
                f"frames are stored again; {self._passed_over} were judged only: send them again"
            )
        while not self._ingest.submit(self._session, good, self.durable):
            if not self._ingest.storing:
                self._passed_over += 1
                return False
            await self._turns.room()
        return True

    def _refuse(self, sequence: int, reason: str) -> None:
        self._ingest.refused_frames += 1
        self._refused.append(wire.RefusedFrame(sequence=sequence, reason=reason))
        self._refused_in_row += 1
        self.wake()
        if self._refused_in_row >= REFUSED_IN_ROW_MAX:
            raise StreamRefused(
                f"{self._refused_in_row} frames in a row were refused, the last because: {reason}"
            )

    def durable(self, sequence: int) -> None:
        """Called by the writer thread once a frame is on disk."""
        self._durable.append(sequence)
        if not self._waking:
            self._waking = True
            self._turns.receipted(self)

    def wake(self) -> None:
        """Send the receipts there are."""
        self._woken = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _to_be_woken(self) -> None:
        """Return once `wake` was called since `_answer`."""
        if not self._woken:
            self._sleeper = self._loop.create_future()
            await self._sleeper
            self._sleeper = None

    async def _answer(self, context: Any) -> None:
        """Send the receipts and refusals there are."""
        self._woken = False
        self._waking = False
        refused, self._refused = self._refused, []
        ranges = self._receipts()
        heard, self._say_heard = self._say_heard, False
        if not ranges and not refused and not heard:
            return
        self._spoke = self._loop.time()
        await context.write(
            wire.IngestAck(
                durable=ranges,
                refused=refused,
                credit_frames=self._credit_frames(),
                permit=self._permit(),
                reconnect_seconds=self._turns.reconnect_seconds,
                backlog_frames=self._turns.backlog_frames,
            )
        )

    def _credit_frames(self) -> int:
        """While late frames press, those of this stream do not count: live ones do not wait for them. While nothing
        is stored, nothing that has no receipt counts: judging needs live frames.
        """
        if self._ingest.storing:
            late_frames = self._turns.late.frames_of(self)
            return min(self._turns.credit_frames + late_frames, self._ingest.credit_frames)
        return self._unreceipted + self._passed_over + self._ingest.credit_frames_max

    def _receipts(self) -> list[wire.SequenceRange]:
        sequences = self._durable[:]
        del self._durable[: len(sequences)]  # not those that came meanwhile
        self._unreceipted -= len(sequences)
        self._ingest.receipts += len(sequences)
        return [wire.SequenceRange(first=first, last=last) for first, last in joined(sequences)]
