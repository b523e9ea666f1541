"""Backends of `gangline sql`: a process over the local snapshot, or the aggregator's Query call."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import grpc

from ...contract.client.connection import (
    ConnectionOptions,
    command_error,
    login_metadata,
    open_aio_channel,
)
from ...contract.wire import query_pb2
from ...contract.wire.query_pb2_grpc import QueryServiceStub
from ..query import messages
from ..query.messages import (
    PIECE_BYTES_MAX,
    AnswerSummary,
    QuerySettings,
    Question,
    newest_moment_us,
    staleness_message,
)
from ..query.pool import QueryCost, QueryPool
from ..store import snapshot_refresh

OPS_FILE = "operators.duckdb"
#: Limits of a query on this machine, DuckDB and Python together.
MEMORY_BYTES_MAX, THREADS = 2 << 30, 2
#: After this time another Ctrl-C stops waiting for a cancelled query.
CANCEL_SECONDS = 2.0


#: Hint how to select other data.
ANOTHER = "name another with --server ADDRESS:PORT, or query the data folder of a stopped one with --data DIR"


class QueryBackend(Protocol):
    """Executes queries. `name` is for messages."""

    name: str

    def has_aggregator(self) -> bool:
        """Return whether an aggregator runs there."""
        ...

    def query(self, question: Question) -> AsyncIterator[bytes | AnswerSummary]:
        """Yield pieces of an Arrow IPC stream, then the end. Raises QueryError, CommandError."""
        ...

    async def close(self) -> None:
        """End everything that still runs."""
        ...


class SnapshotBackend:
    """The snapshot in a local data folder."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        self._processes = QueryPool(QuerySettings(folder, MEMORY_BYTES_MAX, THREADS), 1)

    def has_aggregator(self) -> bool:
        """Return whether an aggregator runs in the folder."""
        return snapshot_refresh.read_cost(self._folder) is not None

    async def warm(self) -> None:
        """Start a process ahead of the query."""
        with contextlib.suppress(OSError):  # the query itself reports the error
            self._processes.start()

    async def query(self, question: Question) -> AsyncIterator[bytes | AnswerSummary]:
        """See `QueryBackend`."""
        moment_us = newest_moment_us(question.sql, time.time_ns() // 1000)
        retry_seconds = await _refresh_snapshot(self._processes.settings.folder, moment_us)
        async with contextlib.aclosing(self._processes.query(question, QueryCost())) as answer:
            async for piece in answer:
                if isinstance(piece, AnswerSummary) and not piece.history_missing_reason:
                    staleness = staleness_message(moment_us, piece.taken_us, retry_seconds)
                    piece = replace(piece, history_missing_reason=staleness)
                yield piece

    async def close(self) -> None:
        """See `QueryBackend`."""
        await self._processes.close()


class RemoteBackend:
    """Queries through an aggregator's Query call."""

    def __init__(self, connection_options: ConnectionOptions) -> None:
        self.name = connection_options.aggregator
        self._connection_options = connection_options
        self._login = login_metadata(connection_options)
        self._channel: grpc.aio.Channel | None = None

    def has_aggregator(self) -> bool:
        """Return True: the aggregator has just answered."""
        return True

    async def query(self, question: Question) -> AsyncIterator[bytes | AnswerSummary]:
        """See `QueryBackend`."""
        if self._channel is None:
            options = [("grpc.max_receive_message_length", PIECE_BYTES_MAX + (1 << 20))]
            self._channel = open_aio_channel(self._connection_options, options)
        request = query_pb2.QueryRequest(sql=question.sql, row_limit=question.rows_max)
        if question.seconds:
            request.timeout.FromMilliseconds(round(question.seconds * 1000))
        call = QueryServiceStub(self._channel).Query(  # type: ignore[no-untyped-call]
            request, metadata=self._login
        )
        try:
            async for response in call:
                if response.HasField("summary"):
                    summary = response.summary
                    yield AnswerSummary(
                        summary.row_count,
                        summary.byte_count,
                        summary.elapsed.ToNanoseconds() / 1e9,
                        summary.truncated_reason,
                        summary.snapshot_time.ToMicroseconds(),
                        summary.history_missing_reason,
                    )
                else:
                    yield response.arrow_stream
        except grpc.RpcError as error:
            raise _query_error(error, self._connection_options) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """See `QueryBackend`."""
        if self._channel is not None:
            await self._channel.close()


async def _refresh_snapshot(folder: Path, moment_us: int) -> float:
    """Request a new snapshot from a running aggregator if the file is too old, and wait for it.

    A file older than *moment_us* or its period is too old. Return the seconds until the next
    snapshot.
    """
    cost, file = snapshot_refresh.read_cost(folder), folder / OPS_FILE
    if cost is None:
        return snapshot_refresh.WAIT_SECONDS_MAX
    expected = cost.pause_seconds(requested=True) + cost.write_seconds

    def taken_ns() -> int:
        try:
            return file.stat().st_mtime_ns - round(cost.write_seconds * 1e9)
        except OSError:
            return 0

    wanted_ns = max(moment_us * 1000, time.time_ns() - round(cost.period_seconds * 1e9))
    if (
        taken_ns() < wanted_ns
        and snapshot_refresh.request(folder)
        and expected <= snapshot_refresh.WAIT_SECONDS_MAX
    ):
        end = time.monotonic() + snapshot_refresh.WAIT_SECONDS_MAX
        while taken_ns() < wanted_ns and time.monotonic() < end:
            await asyncio.sleep(0.05)
    return expected


def _query_error(error: Any, connection_options: ConnectionOptions) -> Exception:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return messages.QueryRefused(details.removeprefix("sql: "))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return messages.QueryOutOfMemory(details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and details.startswith("ran longer"):
        return messages.QueryOutOfTime(details)
    return command_error(error, connection_options, ANOTHER)


class InterruptibleRunner:
    """An event loop in which Ctrl-C cancels the current work and nothing else.

    `asyncio.Runner` raises KeyboardInterrupt at the second Ctrl-C wherever the loop is: inside the
    task that reaps processes, or before a process is asked to end. Its slot would never be free
    again.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, work: Awaitable[Any], *, cancel_after: float = 0.0) -> Any:
        """Return the result of *work*.

        Raises its errors, and KeyboardInterrupt if Ctrl-C cancelled it. Ctrl-C is ignored in the
        first *cancel_after* seconds, and for CANCEL_SECONDS after it took effect.
        """
        loop = self._runner.get_loop()
        cancellable_from, interrupted = loop.time() + cancel_after, False
        task: asyncio.Future[Any] | None = None

        def interrupt() -> None:
            nonlocal cancellable_from, interrupted
            if task is not None and loop.time() >= cancellable_from:
                cancellable_from, interrupted = loop.time() + CANCEL_SECONDS, True
                task.cancel()

        with _interrupts(loop, interrupt):
            task = asyncio.ensure_future(work, loop=loop)
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError:
                if interrupted:
                    raise KeyboardInterrupt from None
                raise

    def close(self) -> None:
        """Close the loop."""
        self._runner.close()


@contextlib.contextmanager
def _interrupts(loop: asyncio.AbstractEventLoop, call: Any) -> Iterator[None]:
    """Call *call* in the loop on Ctrl-C, unless SIGINT is handled or this is another thread."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    try:
        loop.add_signal_handler(signal.SIGINT, call)
    except (RuntimeError, ValueError):  # not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class ArrowAnswer(io.RawIOBase):
    """An answer as a file of an Arrow IPC stream, received as it is read, then `end` is set."""

    def __init__(
        self, runner: InterruptibleRunner, backend: QueryBackend, question: Question
    ) -> None:
        super().__init__()
        self.end: AnswerSummary | None = None
        self._runner = runner
        self._pieces: Any = backend.query(question)
        self._left = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes. Raises the backend's errors, and KeyboardInterrupt on Ctrl-C."""
        while not self._left and self.end is None:
            piece = self._runner.run(anext(self._pieces, None))
            if piece is None:
                return 0
            if isinstance(piece, AnswerSummary):
                self.end = piece
                self._runner.run(
                    anext(self._pieces, None)
                )  # run the generator to its end: cancelling it would fail the call
            else:
                self._left = piece
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def finish(self) -> AnswerSummary:
        """Read to the end and return the summary. Raises the errors of `readinto`."""
        while self.end is None and self.read(1 << 16):
            pass
        if self.end is None:
            raise messages.QueryFailed("the answer is incomplete; try again")
        return self.end

    def give_up(self) -> None:
        """Cancel the rest of the answer."""
        if self.end is None:
            self._runner.run(self._pieces.aclose(), cancel_after=CANCEL_SECONDS)


class QuerySession:
    """A backend with the loop on which it works."""

    def __init__(self, backend: SnapshotBackend | RemoteBackend) -> None:
        self.backend: QueryBackend = backend
        self.runner = InterruptibleRunner()
        self._previous: ArrowAnswer | None = None
        if isinstance(backend, SnapshotBackend):
            self.runner.run(backend.warm())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.backend.close())
        self.runner.close()

    @contextlib.contextmanager
    def answer(self, question: Question) -> Iterator[ArrowAnswer]:
        """Yield the answer to a query; leaving the context early cancels it."""
        if (
            self._previous is not None
        ):  # Ctrl-C came between the end of the last answer and its cancellation
            self._previous.give_up()
        self._previous = answer = ArrowAnswer(self.runner, self.backend, question)
        try:
            yield answer
        finally:
            answer.give_up()
            self._previous = None
