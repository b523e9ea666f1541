"""QueryService: operators' SQL, run in a separate process and streamed as Arrow."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ...contract.wire import query_pb2
from ...contract.wire.query_pb2_grpc import QueryServiceServicer
from ..auth.limits import BURST_SECONDS, KeyedTokenBuckets
from ..config import AggregatorConfig
from ..errors import (
    CAPACITY_RETRY_SECONDS,
    DeadlineExceeded,
    InvalidArgument,
    ResourceExhausted,
    ServiceError,
    ServiceUnavailable,
)
from ..principal import Principal, current_principal
from ..query import messages
from ..query.log import QueryLog, QueryLogEntry
from ..query.messages import (
    AnswerSummary,
    QuerySettings,
    Question,
    newest_moment_us,
    staleness_message,
)
from ..query.pool import QueryCost, QueryPool
from ..query.sandbox import without_folder
from ..store.snapshot_refresh import WAIT_SECONDS_MAX, Refresh
from .validation import span_seconds

#: Suggested wait until a slot for a query may be free.
RETRY_SECONDS = 1.0
#: Length of the logged statement of a caller who may not query.
DENIED_CHARACTERS_MAX = 200
#: Interval of these lines per caller: an agent's token could flush the log in a night.
DENIED_SECONDS = BURST_SECONDS


class QueryUser(NamedTuple):
    """The caller's name, role and address. *known*: the login is verified."""

    name: str
    role: str
    peer: str
    known: bool = False


def query_user(context: Any) -> QueryUser:
    """Return the authorized caller."""
    return _query_user(current_principal(context), str(context.peer()))


def _query_user(principal: Principal, peer: str) -> QueryUser:
    return QueryUser(principal.name, principal.role, peer, principal.is_authenticated)


class QueryService(QueryServiceServicer):
    """Coroutine of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(
        self,
        config: AggregatorConfig,
        wall_ns: Callable[[], int] = time.time_ns,
        who: Callable[[Any], QueryUser] = query_user,
        refresh: Refresh | None = None,
    ) -> None:
        """*refresh*: rewrites the operators' file; None: queries use the existing file."""
        settings = QuerySettings(config.data, config.query_memory_bytes_max, config.query_threads)
        self.pool = QueryPool(settings, config.query_running_max)
        self.log = QueryLog(config.data, config.query_log_bytes_max)
        self._config = config
        self._wall_ns = wall_ns
        self._who = who
        self._refresh = refresh
        self._running: Counter[tuple[str, str]] = Counter()  # by role and name
        self._denials = KeyedTokenBuckets(1 / DENIED_SECONDS, time.monotonic)
        self._unlogged: Counter[tuple[str, str]] = Counter()  # since the last line

    async def close(self) -> None:
        """End every running query."""
        await self.pool.close()
        self.log.close()

    async def Query(self, request: query_pb2.QueryRequest, context: Any) -> None:
        """Stream the answer.

        Raises InvalidArgument, ResourceExhausted, DeadlineExceeded, ServiceUnavailable.
        """
        record = _QueryRecord(self._who(context), request.sql, self._wall_ns(), time.monotonic())
        try:
            await self._answer(request, context, record)
        except asyncio.CancelledError:
            if record.outcome != "ok":
                record.outcome = "cancelled"
                record.message = "the caller disconnected, or its login ended"
            raise
        except ServiceError as service_error:
            record.message = str(service_error)
            raise
        finally:
            line = record.entry()
            await asyncio.shield(asyncio.to_thread(self.log.append, line))

    async def log_denied(self, principal: Principal, peer: str, request: Any) -> None:
        """Log a query that the login check refused; repetitions are counted in the next line."""
        key = principal.role, principal.name
        if self._denials.try_take(key):
            self._unlogged[key] += 1
            return
        sql = str(getattr(request, "sql", ""))[:DENIED_CHARACTERS_MAX]
        message = f"a caller of role {principal.role} may not query"
        if more := self._unlogged.pop(key, 0):
            message += f"; it tried {more} more times since its last log line"
        record = _QueryRecord(
            _query_user(principal, peer), sql, self._wall_ns(), time.monotonic(), "denied", message
        )
        await asyncio.to_thread(self.log.append, record.entry())

    async def _answer(
        self, request: query_pb2.QueryRequest, context: Any, record: _QueryRecord
    ) -> None:
        record.outcome = "refused"
        question = self._question(request, context)
        try:
            with self._slot(record.who):
                moment_us = await self._refresh_snapshot(question)
                answer = self.pool.query(question, record.cost)
                async with contextlib.aclosing(answer):
                    async for piece in answer:
                        if isinstance(piece, AnswerSummary):
                            piece = self._with_age(piece, moment_us)
                        await context.write(record.response_of(piece))
        except messages.QueryError as error:
            record.outcome = error.outcome
            raise _service_error(error, self._config.data) from error

    async def _refresh_snapshot(self, question: Question) -> int:
        """Request a file that covers *question*, and wait if that takes a few seconds.

        Return the newest time that the query names, in microseconds since 1970.
        """
        with contextlib.suppress(OSError):  # the query itself reports the error
            self.pool.start()  # load DuckDB while the file is written
        now_ns = self._wall_ns()
        moment_us = newest_moment_us(question.sql, now_ns // 1000)
        if self._refresh is None:
            return moment_us
        period_ns = round(self._config.ops_seconds * 1e9)
        wanted_ns = max(moment_us * 1000, now_ns - period_ns)
        expected = self._refresh.expected_seconds(time.monotonic())
        if self._refresh.taken_ns < wanted_ns:
            refreshed = asyncio.wrap_future(self._refresh.request(wanted_ns))
            if expected <= WAIT_SECONDS_MAX:
                await asyncio.wait([refreshed], timeout=min(WAIT_SECONDS_MAX, question.seconds / 2))
        return moment_us

    def _with_age(self, summary: AnswerSummary, moment_us: int) -> AnswerSummary:
        """Add a note to *summary* if the file is older than the query needs."""
        again = self._refresh.expected_seconds(time.monotonic()) if self._refresh else 0.0
        staleness = staleness_message(moment_us, summary.taken_us, again)
        missing = "; ".join(filter(None, (staleness, summary.history_missing_reason)))
        return replace(summary, history_missing_reason=missing)

    @contextlib.contextmanager
    def _slot(self, who: QueryUser) -> Iterator[None]:
        """Count a query of *who* until its process has ended. Raises TooManyQueries."""
        key, limit = (who.role, who.name), self._config.caller_queries_limit
        if who.known and self._running[key] >= limit:
            raise messages.TooManyQueries(
                f"{limit} queries of {who.role} {who.name!r} run, the limit for one caller "
                "(half of query_running_max), so that others can ask: wait for one of them, or end it"
            )
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def _question(self, request: query_pb2.QueryRequest, context: Any) -> Question:
        if request.format not in query_pb2.QueryFormat.values():
            raise InvalidArgument("format", f"{request.format} is not one of QueryFormat")
        if not request.sql.strip():
            raise InvalidArgument("sql", "is empty; such as: FROM ops.worst(n := 5)")
        rows_max = self._config.query_rows_max
        return Question(
            request.sql,
            seconds=self._seconds(request, context),
            rows_max=min(request.row_limit or rows_max, rows_max),
            bytes_max=self._config.query_bytes_max,
            compressed=request.format == query_pb2.ARROW_STREAM_ZSTD,
        )

    def _seconds(self, request: query_pb2.QueryRequest, context: Any) -> float:
        seconds = maximum = self._config.query_seconds
        if request.HasField("timeout"):
            seconds = span_seconds("timeout", request.timeout)
        if not 0 < seconds <= maximum:
            raise InvalidArgument(
                "timeout", f"{seconds:g} s; up to {maximum:g} s are allowed (setting query_seconds)"
            )
        left = context.time_remaining()
        return seconds if left is None else max(0.01, min(seconds, left))


@dataclass(slots=True)
class _QueryRecord:
    who: QueryUser
    sql: str
    wall_ns: int
    begin: float
    outcome: str = "failed"
    message: str = ""
    rows: int = 0
    size_bytes: int = 0
    cost: QueryCost = field(default_factory=QueryCost)

    def response_of(self, piece: bytes | AnswerSummary) -> query_pb2.QueryResponse:
        """Return *piece* as a response, and count it."""
        if isinstance(piece, bytes):
            self.size_bytes += len(piece)
            return query_pb2.QueryResponse(arrow_stream=piece)
        self.rows, self.outcome = (
            piece.rows,
            "ok",
        )  # the answer is complete, even if the caller disconnects now
        return query_pb2.QueryResponse(summary=_summary(piece))

    def entry(self) -> QueryLogEntry:
        return QueryLogEntry(
            wall_ns=self.wall_ns,
            who=self.who.name,
            role=self.who.role,
            peer=self.who.peer,
            sql=self.sql,
            seconds=round(time.monotonic() - self.begin, 4),
            rows=self.rows,
            size_bytes=self.size_bytes,
            outcome=self.outcome,
            message=self.message,
            cpu_seconds=round(self.cost.cpu_seconds, 4),
            rss_bytes_max=self.cost.rss_bytes_max,
        )


def _summary(answer: AnswerSummary) -> query_pb2.QuerySummary:
    summary = query_pb2.QuerySummary(
        row_count=answer.rows,
        byte_count=answer.size_bytes,
        truncated=bool(answer.truncated_reason),
        truncated_reason=answer.truncated_reason,
        history_missing_reason=answer.history_missing_reason,
    )
    summary.elapsed.FromNanoseconds(math.floor(answer.elapsed_seconds * 1e9))
    summary.snapshot_time.FromMicroseconds(answer.taken_us)
    return summary


def _service_error(error: messages.QueryError, folder: Path) -> ServiceError:
    """Return the error to send, without the path of *folder*."""
    message = without_folder(str(error), folder)
    match error:
        case messages.QueryRefused():
            return InvalidArgument("sql", message)
        case messages.TooManyQueries():
            return ResourceExhausted(message, RETRY_SECONDS)
        case messages.QueryOutOfTime():
            return DeadlineExceeded(message)
        case messages.QueryOutOfMemory():
            return ResourceExhausted(message, CAPACITY_RETRY_SECONDS)
        case _:
            return ServiceUnavailable(message)
