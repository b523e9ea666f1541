"""RecordingService: fetches the contents of a host's flight recorder on request."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable
from typing import Any

from ...contract.wire import recording_pb2
from ...contract.wire.recording_pb2_grpc import RecordingServiceServicer
from ..errors import DeadlineExceeded, FailedPrecondition, NotFound, ServiceUnavailable
from ..ingest.sessions import SILENT_SECONDS, Sessions
from ..recordings import PIECE_BYTES_MAX, PendingRecording, RecordingExchange

#: Hosts answer within a few seconds; an agent reads our messages at least once in ten seconds.
ANSWER_SECONDS_MAX = 30.0


class RecordingService(RecordingServiceServicer):
    """Coroutine of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(
        self,
        exchange: RecordingExchange,
        sessions: Sessions,
        send_request: Callable[[str], bool],
        wall_ns: Callable[[], int],
        answer_seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> None:
        """*send_request*: sends pending requests on a host's stream; False: no stream."""
        self._exchange, self._sessions = exchange, sessions
        self._send_request, self._wall_ns = send_request, wall_ns
        self._answer_seconds_max = answer_seconds_max

    async def RecordHost(self, request: recording_pb2.RecordHostRequest, context: Any) -> None:
        """Stream the host's answer."""
        host = request.host.removeprefix("nodes/")
        self._check_host(host)
        with self._exchange.request(
            host, seconds=request.seconds, name=request.name, list_stored=request.list
        ) as pending:
            if not self._send_request(host):
                raise ServiceUnavailable(f"host {host} is not connected now: try again soon")
            try:
                async with asyncio.timeout(self._answer_seconds_max):
                    await pending.done
            except TimeoutError:
                raise DeadlineExceeded(
                    f"host {host} did not answer within {self._answer_seconds_max:g} s"
                ) from None
            await self._stream(host, pending, context)

    def _check_host(self, host: str) -> None:
        """Raise NotFound, ServiceUnavailable or FailedPrecondition if the host cannot answer."""
        session = self._sessions.of_host(host)
        if session is None:
            near = difflib.get_close_matches(host[:253], self._sessions.names(), 3, 0.5)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise NotFound(f"no host {host[:253]!r}{hint}")
        if session.is_silent(self._wall_ns()):
            raise ServiceUnavailable(
                f"host {host} is silent: it has sent nothing for at least {SILENT_SECONDS} s"
            )
        if session.token and not session.recording_seconds_max:
            version = session.agent_version or "of an unknown version"
            raise FailedPrecondition(
                f"the agent of {host} ({version}) has no flight recorder. Install a later "
                "version there"
            )

    async def _stream(self, host: str, pending: PendingRecording, context: Any) -> None:
        if pending.error:
            missing = NotFound if pending.request.name else FailedPrecondition
            raise missing(f"{host}: {pending.error}")
        response = recording_pb2.RecordHostResponse
        if pending.request.list:
            stored: Any = pending.stored
            await context.write(response(stored=stored))
            return
        for begin in range(0, len(pending.data), PIECE_BYTES_MAX):
            piece = bytes(pending.data[begin : begin + PIECE_BYTES_MAX])
            await context.write(response(data=piece, total_bytes=pending.total_bytes))
