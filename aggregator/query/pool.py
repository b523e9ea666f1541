"""Who asks a question of a process: starts the nursery, hands questions to it, reads answers, frees the place."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from . import messages
from .messages import Answered, Place, Question

#: A module that loads DuckDB and Arrow: who only asks loads neither.
NURSERY = f"{__package__}.forkserver"
#: What libraries would start threads for, which a nursery must not have; and malloc gives memory back.
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "4",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
#: What of ours a nursery needs to find Python, its libraries and its language. Nothing else goes with it: a token
#: (GANGLINE_TOKEN), a cloud's keys or a proxy's password would stand in the environment of a stranger's query.
_KEPT = frozenset(("PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SYSTEMROOT"))
_KEPT_BEGINNINGS = ("PYTHON", "LC_", "LD_", "COV_", "COVERAGE")
#: A nursery that does not end when its socket closes is killed after so long.
END_SECONDS = 2.0


@dataclass(slots=True)
class Cost:
    """What a question took, known when its process has ended."""

    cpu_seconds: float = 0.0
    rss_bytes_max: int = 0


class QueryProcesses:
    """Runs at most *running_max* questions at once, each in a process of its own. Of one event loop."""

    def __init__(self, place: Place, running_max: int) -> None:
        self.place = place
        #: Questions answered or refused so far, and those whose process died or was killed.
        self.asked_count = 0
        self.died_count = 0
        self._running_max = running_max
        self._numbers = itertools.count(1)
        self._ends: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._nursery: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._listening: set[asyncio.Task[None]] = set()

    @property
    def running_count(self) -> int:
        """How many questions have a process now."""
        return len(self._ends)

    @property
    def nursery_pid(self) -> int:
        """The nursery's process, 0 before the first start."""
        return self._nursery.pid if self._nursery else 0

    def start(self) -> None:
        """Start the nursery unless it runs, so that the first question finds it warm. Raises OSError."""
        if self._control is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", NURSERY, self.place.to_text()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment(),
                # Ctrl-C on a terminal is for whoever asked; and a session's share of the processors can be made small
                # (`confine.let_session_go_last`), where queries in ours would use up our own.
                start_new_session=True,
            )
        ours.setblocking(False)
        self._control = ours
        listening = asyncio.get_running_loop().create_task(self._listen(ours, self._nursery))
        self._listening.add(listening)
        listening.add_done_callback(self._listening.discard)

    async def _listen(self, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        """Take obituaries until the nursery is gone; then whoever waits hears that, and it is buried."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(control, messages.PACKET_BYTES_MAX):
                obituary = json.loads(data)
                self._ended(obituary["id"], obituary)
        self._gone(control)
        await loop.run_in_executor(None, _end, process)

    def _gone(self, control: socket.socket) -> None:
        if self._control is control:
            self._control = None
        control.close()
        for number in list(self._ends):
            self._ended(number, {})

    def _ended(self, number: int, obituary: dict[str, Any]) -> None:
        end = self._ends.pop(number, None)
        if end is not None and not end.done():
            end.set_result(obituary)

    async def ask(self, question: Question, cost: Cost) -> AsyncGenerator[bytes | Answered, None]:
        """Yield the pieces of an Arrow IPC stream, then what there is to say of the answer.

        Closing the generator kills the process. *cost* is filled when it has ended. Raises QueryError.
        """
        if len(self._ends) >= self._running_max:
            raise messages.TooManyQueries(
                f"too many queries running (limit {self._running_max}); try again in a second"
            )
        self.asked_count += 1
        number, ours, end = self._hand_over(question)
        said_all, left = False, True
        try:
            async for kind, payload in _messages(ours, question):
                if kind == messages.ARROW:
                    yield payload
                    continue
                said_all = True
                if kind == messages.ERROR:
                    raise messages.query_error(**json.loads(payload))
                yield Answered(**json.loads(payload))
            left = False
        finally:
            if left:
                self._kill(number)
            obituary = await self._burial(end, cost)
        if not said_all:
            self.died_count += 1
            raise messages.died(obituary, self.place, question)

    def _hand_over(
        self, question: Question
    ) -> tuple[int, socket.socket, asyncio.Future[dict[str, Any]]]:
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        packet = json.dumps({"id": number, "seconds": question.seconds}).encode()
        try:
            with theirs:
                self.start()
                assert self._control is not None
                socket.send_fds(self._control, [packet], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise messages.QueryFailed(f"no process can be had for the query: {error}") from error
        end = asyncio.get_running_loop().create_future()
        self._ends[number] = end
        return number, ours, end

    def _kill(self, number: int) -> None:
        """End a process that nobody listens to any more, unless it is dead already."""
        if self._control is not None and number in self._ends:
            with contextlib.suppress(OSError):
                self._control.send(json.dumps({"id": number, "kill": "cancelled"}).encode())

    async def _burial(self, end: asyncio.Future[dict[str, Any]], cost: Cost) -> dict[str, Any]:
        """Wait until the process is gone: then, and not before, there is room for another."""
        obituary = await asyncio.shield(end)
        cost.cpu_seconds = obituary.get("cpu_seconds", 0.0)
        cost.rss_bytes_max = obituary.get("rss_bytes_max", 0)
        return obituary

    async def close(self) -> None:
        """End all: the nursery at once, its processes with it."""
        if self._control is not None:
            self._control.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(*self._listening)


def environment() -> dict[str, str]:
    """Return what a process of ours that holds DuckDB and Arrow is started with."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)
    }
    return {**kept, **_ENVIRONMENT}


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _messages(ours: socket.socket, question: Question) -> AsyncIterator[tuple[bytes, bytes]]:
    """Send the question; yield (kind, payload) until the process ends or closes its side."""
    reader, writer = await asyncio.open_connection(sock=ours, limit=messages.PIECE_BYTES_MAX)
    try:
        writer.write(messages.json_message(messages.ASK, question))
        await writer.drain()
        while True:
            kind, size = messages.HEAD.unpack(await reader.readexactly(messages.HEAD.size))
            if size > messages.PIECE_BYTES_MAX:
                return  # not a message of ours: the process is not what it was
            yield kind, await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
