"""The two doors of `gangline sql`: a process over the snapshot file here, or the aggregator's Query call."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol, Self

import grpc

from ...fingerprints.wire import query_pb2
from ...fingerprints.wire.query_pb2_grpc import QueryServiceStub
from ..query import trouble
from ..query.limits import PIECE_BYTES_MAX, Answered, Place, Question
from ..query.processes import Cost, QueryProcesses
from .client import translated
from .way import Way, dialled_aio, login

#: What one question may take of this machine, DuckDB and Python together.
MEMORY_BYTES_MAX, THREADS = 2 << 30, 2


class Door(Protocol):
    """Where a question goes. `name` is for people."""

    name: str

    def ask(self, question: Question) -> AsyncIterator[bytes | Answered]:
        """Yield pieces of an Arrow IPC stream, then the end. Raises QueryError, CommandError."""
        ...

    async def close(self) -> None:
        """End what still runs."""
        ...


class FileDoor:
    """The snapshot in a data folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._processes = QueryProcesses(Place(folder, MEMORY_BYTES_MAX, THREADS), 1)

    async def warm(self) -> None:
        """Have a process ready before the question is."""
        with contextlib.suppress(OSError):  # the question says it, in words
            self._processes.start()

    def ask(self, question: Question) -> AsyncIterator[bytes | Answered]:
        """See `Door`."""
        return self._processes.ask(question, Cost())

    async def close(self) -> None:
        """See `Door`."""
        await self._processes.close()


class ServerDoor:
    """An aggregator's Query call."""

    def __init__(self, way: Way) -> None:
        self.name = way.aggregator
        self._way = way
        self._login = login(way)
        self._channel: grpc.aio.Channel | None = None

    async def ask(self, question: Question) -> AsyncIterator[bytes | Answered]:
        """See `Door`."""
        if self._channel is None:
            options = [("grpc.max_receive_message_length", PIECE_BYTES_MAX + (1 << 20))]
            self._channel = dialled_aio(self._way, options)
        request = query_pb2.QueryRequest(sql=question.sql, row_limit=question.rows_max)
        if question.seconds:
            request.timeout.FromMilliseconds(round(question.seconds * 1000))
        call = QueryServiceStub(self._channel).Query(  # type: ignore[no-untyped-call]
            request, metadata=self._login
        )
        try:
            async for response in call:
                if response.HasField("summary"):
                    yield _answered(response.summary)
                else:
                    yield response.arrow_stream
        except grpc.RpcError as error:
            raise _trouble(error, self._way) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """See `Door`."""
        if self._channel is not None:
            await self._channel.close()


def _answered(summary: query_pb2.QuerySummary) -> Answered:
    return Answered(
        summary.row_count,
        summary.byte_count,
        summary.elapsed.ToNanoseconds() / 1e9,
        summary.truncated_reason,
        summary.snapshot_time.ToMicroseconds(),
        summary.history_missing_reason,
    )


def _trouble(error: Any, way: Way) -> Exception:
    code, words = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return trouble.QueryRefused(words.removeprefix("sql: "))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return trouble.QueryCutOff(words, of_time=False)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and words.startswith("ran longer"):
        return trouble.QueryCutOff(words, of_time=True)
    return translated(error, way, "name another with --server ADDRESS:PORT")


class Answer(io.RawIOBase):
    """An answer as a file of an Arrow IPC stream, whose bytes come as they are read; then `end` is set."""

    def __init__(self, runner: asyncio.Runner, door: Door, question: Question) -> None:
        super().__init__()
        self.end: Answered | None = None
        self._runner = runner
        self._pieces: Any = door.ask(question)
        self._left = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes. Raises what the door raises, KeyboardInterrupt when it is cancelled."""
        while not self._left and self.end is None:
            piece = self._runner.run(anext(self._pieces, None))
            if piece is None:
                return 0
            if isinstance(piece, Answered):
                self.end = piece
                self._runner.run(
                    anext(self._pieces, None)
                )  # its end: to cancel it would be a failed call
            else:
                self._left = piece
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def finish(self) -> Answered:
        """Read on to the end. Raises what `readinto` raises."""
        while self.end is None and self.read(1 << 16):
            pass
        if self.end is None:
            raise trouble.QueryFailed("the answer ended in the middle; ask again")
        return self.end

    def give_up(self) -> None:
        """Cancel what is not read."""
        if self.end is None:
            self._runner.run(self._pieces.aclose())


@contextlib.contextmanager
def answering(runner: asyncio.Runner, door: Door, question: Question) -> Iterator[Answer]:
    """The answer to *question*; leaving it cancels what was not read."""
    answer = Answer(runner, door, question)
    try:
        yield answer
    finally:
        answer.give_up()


class Opened:
    """A door, and the loop on which it works."""

    def __init__(self, door: FileDoor | ServerDoor) -> None:
        self.door: Door = door
        self.runner = asyncio.Runner()
        if isinstance(door, FileDoor):
            self.runner.run(door.warm())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.door.close())
        self.runner.close()

    def answer(self, question: Question) -> contextlib.AbstractContextManager[Answer]:
        """Ask; the answer is cancelled when it is left before its end."""
        return answering(self.runner, self.door, question)
