"""The caller's end of query processes: starts the fork server, sends queries, reads results, frees slots."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from ...contract.workers import PACKET_BYTES_MAX, ChildEvent, ChildReport, kill_child, request_child
from ..process_limits import KILL_AFTER_SECONDS
from ..workers import WorkerProcess, receive_packets
from . import messages
from .messages import AnswerSummary, QuerySettings, Question

#: A separate module, so that this process does not load DuckDB and Arrow.
FORK_SERVER_MODULE = f"{__package__}.forkserver"


@dataclass(slots=True)
class QueryCost:
    """Resources that a query used, known after its process ended."""

    cpu_seconds: float = 0.0
    rss_bytes_max: int = 0


class QueryPool:
    """Runs at most *running_max* queries at once, each in a process. Bound to one event loop."""

    def __init__(self, settings: QuerySettings, running_max: int) -> None:
        self.settings = settings
        #: Queries started, and those whose process died or was killed.
        self.requested_count = 0
        self.died_count = 0
        self._running_max = running_max
        self._numbers = itertools.count(1)
        self._exits: dict[int, asyncio.Future[ChildReport | None]] = {}
        self._fork_server: WorkerProcess | None = None
        self._listening: set[asyncio.Task[None]] = set()

    @property
    def running_count(self) -> int:
        """Return the number of running queries."""
        return len(self._exits)

    @property
    def fork_server_pid(self) -> int:
        """Return the fork server's process id, 0 without a process."""
        return self._fork_server.pid if self._fork_server else 0

    def start(self) -> None:
        """Start the fork server unless it runs, so that the first query is fast. Raises OSError."""
        if self._fork_server is not None:
            return
        # A separate session: Ctrl-C in a terminal must not reach queries, and its CPU share can be
        # lowered (`lower_session_priority`).
        worker = WorkerProcess(FORK_SERVER_MODULE, self.settings.to_text(), own_session=True)
        worker.control.setblocking(False)
        self._fork_server = worker
        listening = asyncio.get_running_loop().create_task(self._listen(worker))
        self._listening.add(listening)
        listening.add_done_callback(self._listening.discard)

    async def _listen(self, worker: WorkerProcess) -> None:
        # Take exit reports until the fork server ends; then complete all waiting queries.

        async def take(packet: bytes, _: list[int]) -> None:
            report = ChildReport.from_bytes(packet)
            if report.event is not ChildEvent.STARTED:
                self._on_query_exit(report.number, report)

        with contextlib.suppress(OSError):
            await receive_packets(worker.control, PACKET_BYTES_MAX, 0, take)
        self._fork_server = None
        for number in list(self._exits):
            self._on_query_exit(number, None)
        await asyncio.to_thread(worker.end)

    def _on_query_exit(self, number: int, report: ChildReport | None) -> None:
        end = self._exits.pop(number, None)
        if end is not None and not end.done():
            end.set_result(report)

    async def query(
        self, question: Question, cost: QueryCost
    ) -> AsyncGenerator[bytes | AnswerSummary, None]:
        """Yield the pieces of an Arrow IPC stream, then the summary.

        Closing the generator kills the process. *cost* is set when the process has ended. Raises
        QueryError.
        """
        if len(self._exits) >= self._running_max:
            raise messages.TooManyQueries(
                f"too many queries running (limit {self._running_max}); try again in a second"
            )
        self.requested_count += 1
        number, parent_socket, end = self._hand_over(question)
        is_complete, is_abandoned = False, True
        try:
            async for kind, payload in _messages(parent_socket, question):
                if kind == messages.ARROW:
                    yield payload
                    continue
                is_complete = True
                if kind == messages.ERROR:
                    error = json.loads(payload)
                    raise messages.REPORTED_ERRORS[error["kind"]](error["message"])
                yield AnswerSummary(**json.loads(payload))
            is_abandoned = False
        finally:
            if is_abandoned:
                self._kill(number)
            report = await self._wait_exit(end, cost)
        if not is_complete:
            self.died_count += 1
            raise messages.exit_error(report, self.settings, question)

    def _hand_over(
        self, question: Question
    ) -> tuple[int, socket.socket, asyncio.Future[ChildReport | None]]:
        number = next(self._numbers)
        seconds = question.seconds + KILL_AFTER_SECONDS if question.seconds else math.inf
        try:
            self.start()
            assert self._fork_server is not None
            parent_socket = request_child(self._fork_server.control, number, seconds=seconds)
        except OSError as error:
            raise messages.QueryFailed(f"cannot start a process for the query: {error}") from error
        end = asyncio.get_running_loop().create_future()
        self._exits[number] = end
        return number, parent_socket, end

    def _kill(self, number: int) -> None:
        """Kill a process whose result is not needed, unless it has ended."""
        if self._fork_server is not None and number in self._exits:
            kill_child(self._fork_server.control, number)

    async def _wait_exit(
        self, end: asyncio.Future[ChildReport | None], cost: QueryCost
    ) -> ChildReport | None:
        """Wait until the process has ended, which frees its slot."""
        report = await asyncio.shield(end)
        if report is not None:
            cost.cpu_seconds, cost.rss_bytes_max = report.cpu_seconds, report.rss_bytes_max
        return report

    async def close(self) -> None:
        """End the fork server and all its processes."""
        if self._fork_server is not None:
            self._fork_server.control.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(*self._listening)


async def _messages(
    parent_socket: socket.socket, question: Question
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Send the question; yield (kind, payload) until the process ends or closes its side."""
    reader, writer = await asyncio.open_connection(
        sock=parent_socket, limit=messages.PIECE_BYTES_MAX
    )
    try:
        writer.write(messages.json_message(messages.QUESTION, question))
        await writer.drain()
        while True:
            kind, size = messages.HEADER.unpack(await reader.readexactly(messages.HEADER.size))
            if size > messages.PIECE_BYTES_MAX:
                return  # not a valid message: the process is corrupted
            yield kind, await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
