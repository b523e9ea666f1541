"""TelemetryService on grpc.aio: sessions, a stream per host, receipts once frames are durable."""

from __future__ import annotations

import urllib.parse
from collections.abc import AsyncIterator, Callable
from typing import Any

from ...fingerprints.streaming import LATE_FRAMES_MAX
from ...fingerprints.wire import telemetry_pb2 as wire
from ...fingerprints.wire.telemetry_pb2_grpc import TelemetryServiceServicer
from ..access.caller import Caller, caller
from ..access.door import Pace
from ..ingest.intake import Ingest
from ..ingest.sessions import Session
from ..refusals import NoSession
from .errors import pushback
from .stream import Stream
from .turns import Turns


class TelemetryService(TelemetryServiceServicer):
    """How agents speak to the ingest."""

    def __init__(
        self,
        ingest: Ingest,
        turns: Turns,
        permit: Callable[[], wire.Permit | None] = lambda: None,
        pace: Callable[[Caller], Pace] | None = None,
    ) -> None:
        """*permit*: what each answer gives the host leave to; None takes it back.
        *pace*: how fast who has logged in may send; None: as fast as it can."""
        self._ingest, self._turns, self._permit = ingest, turns, permit
        self._pace = pace
        self._streams: set[Stream] = set()

    async def RegisterNode(
        self, request: wire.RegisterNodeRequest, context: Any
    ) -> wire.RegisterNodeResponse:
        """Who speaks, and what its signal ids mean."""
        address = _address(context.peer())
        self._turns.admit(request, address)
        response = self._ingest.register(request, address, caller(context))
        response.reconnect_seconds = self._turns.reconnect_seconds
        response.backlog_frames = self._turns.backlog_frames
        response.late_frames_max = LATE_FRAMES_MAX
        if permit := self._permit():
            response.permit.CopyFrom(permit)
        return response

    async def ReportEvents(
        self, request: wire.ReportEventsRequest, context: Any
    ) -> wire.ReportEventsResponse:
        """The fast lane."""
        return await self._ingest.events(self._session(context), request)

    async def StreamTelemetry(
        self, request_iterator: AsyncIterator[wire.TelemetryBatch], context: Any
    ) -> None:
        """Frames in, receipts out."""
        session = self._session(context)
        pace = self._pace(session.caller) if self._pace and session.caller.known else None
        stream = Stream(self._ingest, session, self._turns, self._permit, pace)
        self._streams.add(stream)
        self._turns.streams.add(stream)
        session.streams += 1
        try:
            await stream.run(request_iterator, context)
        finally:
            session.streams -= 1
            self._streams.discard(stream)
            self._turns.leave(stream)
        if self._turns.stopping:
            context.set_trailing_metadata(pushback(self._turns.retry_seconds(session.host)))

    @property
    def streams(self) -> int:
        """Open streams of agents."""
        return len(self._streams)

    def stop_reading(self) -> None:
        """Read no further frames; each stream ends once its last receipt is sent, told when to come back."""
        self._turns.stop()
        for stream in self._streams:
            stream.stop_reading()

    def say_not_stored(self) -> None:
        """Tell every agent that it is heard though nothing can be stored: it goes on, and keeps all."""
        for stream in self._streams:
            stream.say_heard()

    def _session(self, context: Any) -> Session:
        for key, value in context.invocation_metadata() or ():
            if key == "gangline-session":
                return self._ingest.sessions.get(str(value), caller(context))
        raise NoSession("metadata gangline-session is missing: call RegisterNode first")


def _address(peer: str) -> str:
    """Return `127.0.0.1:4711` of gRPC's `ipv4:127.0.0.1:4711`."""
    return urllib.parse.unquote(peer.partition(":")[2])
