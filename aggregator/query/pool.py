"""Who asks a question of a process: starts the fork server, hands questions to it, reads answers, frees the place."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from ..workers import environment
from . import messages
from .messages import AnswerSummary, QuerySettings, Question

#: A module that loads DuckDB and Arrow: who only asks loads neither.
FORK_SERVER_MODULE = f"{__package__}.forkserver"
#: A fork server that does not end when its socket closes is killed after so long.
END_SECONDS = 2.0


@dataclass(slots=True)
class QueryCost:
    """What a question took, known when its process has ended."""

    cpu_seconds: float = 0.0
    rss_bytes_max: int = 0


class QueryPool:
    """Runs at most *running_max* questions at once, each in a process of its own. Of one event loop."""

    def __init__(self, settings: QuerySettings, running_max: int) -> None:
        self.settings = settings
        #: Questions answered or refused so far, and those whose process died or was killed.
        self.requested_count = 0
        self.died_count = 0
        self._running_max = running_max
        self._numbers = itertools.count(1)
        self._exits: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._listening: set[asyncio.Task[None]] = set()

    @property
    def running_count(self) -> int:
        """How many questions have a process now."""
        return len(self._exits)

    @property
    def fork_server_pid(self) -> int:
        """The fork server's process, 0 before the first start."""
        return self._fork_server.pid if self._fork_server else 0

    def start(self) -> None:
        """Start the fork server unless it runs, so that the first question finds it warm. Raises OSError."""
        if self._control is not None:
            return
        parent_socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_socket:
            self._fork_server = subprocess.Popen(
                [sys.executable, "-m", FORK_SERVER_MODULE, self.settings.to_text()],
                stdin=child_socket.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment(),
                # Ctrl-C on a terminal is for whoever asked; and a session's share of the processors can be made small
                # (`confine.let_session_go_last`), where queries in ours would use up our own.
                start_new_session=True,
            )
        parent_socket.setblocking(False)
        self._control = parent_socket
        listening = asyncio.get_running_loop().create_task(
            self._listen(parent_socket, self._fork_server)
        )
        self._listening.add(listening)
        listening.add_done_callback(self._listening.discard)

    async def _listen(self, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        """Take obituaries until the fork server is gone; then whoever waits hears that, and it is buried."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(control, messages.PACKET_BYTES_MAX):
                exit_report = json.loads(data)
                self._on_query_exit(exit_report["id"], exit_report)
        self._on_fork_server_exit(control)
        await loop.run_in_executor(None, _reap, process)

    def _on_fork_server_exit(self, control: socket.socket) -> None:
        if self._control is control:
            self._control = None
        control.close()
        for number in list(self._exits):
            self._on_query_exit(number, {})

    def _on_query_exit(self, number: int, exit_report: dict[str, Any]) -> None:
        end = self._exits.pop(number, None)
        if end is not None and not end.done():
            end.set_result(exit_report)

    async def query(
        self, question: Question, cost: QueryCost
    ) -> AsyncGenerator[bytes | AnswerSummary, None]:
        """Yield the pieces of an Arrow IPC stream, then what there is to say of the answer.

        Closing the generator kills the process. *cost* is filled when it has ended. Raises QueryError.
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
                    raise messages.query_error(**json.loads(payload))
                yield AnswerSummary(**json.loads(payload))
            is_abandoned = False
        finally:
            if is_abandoned:
                self._kill(number)
            exit_report = await self._wait_exit(end, cost)
        if not is_complete:
            self.died_count += 1
            raise messages.exit_error(exit_report, self.settings, question)

    def _hand_over(
        self, question: Question
    ) -> tuple[int, socket.socket, asyncio.Future[dict[str, Any]]]:
        number = next(self._numbers)
        parent_socket, child_socket = socket.socketpair()
        packet = json.dumps({"id": number, "seconds": question.seconds}).encode()
        try:
            with child_socket:
                self.start()
                assert self._control is not None
                socket.send_fds(self._control, [packet], [child_socket.fileno()])
        except OSError as error:
            parent_socket.close()
            raise messages.QueryFailed(f"no process can be had for the query: {error}") from error
        end = asyncio.get_running_loop().create_future()
        self._exits[number] = end
        return number, parent_socket, end

    def _kill(self, number: int) -> None:
        """End a process that nobody listens to any more, unless it is dead already."""
        if self._control is not None and number in self._exits:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"id": number, "kill": "cancelled"}).encode())

    async def _wait_exit(
        self, end: asyncio.Future[dict[str, Any]], cost: QueryCost
    ) -> dict[str, Any]:
        """Wait until the process is gone: then, and not before, there is room for another."""
        exit_report = await asyncio.shield(end)
        cost.cpu_seconds = exit_report.get("cpu_seconds", 0.0)
        cost.rss_bytes_max = exit_report.get("rss_bytes_max", 0)
        return exit_report

    async def close(self) -> None:
        """End all: the fork server at once, its processes with it."""
        if self._control is not None:
            self._control.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(*self._listening)


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


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
                return  # not a message of ours: the process is not what it was
            yield kind, await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
