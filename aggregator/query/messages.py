"""Limits of a query, messages between its process and the caller, errors, and the times that SQL names."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from ...contract.workers import ChildEvent, ChildReport, KillReason

#: Longer statements are refused: nobody types them, and a parser's stack is limited.
SQL_BYTES_MAX = 256 << 10
#: Limit of a message; with gRPC's overhead it fits the default limit of 4 MiB.
PIECE_BYTES_MAX = (4 << 20) - (16 << 10)
#: Approximate size of record batches, so that a reader can show the first rows early.
BATCH_BYTES = 1 << 20

#: Header of a message: its kind and its length in bytes.
HEADER = struct.Struct("<cI")
#: Kinds: question; bytes of an Arrow IPC stream; end of a successful answer; end of a failed one.
QUESTION, ARROW, SUMMARY, ERROR = b"q", b"a", b"s", b"e"
#: Exit status of a process without memory for an error message.
NO_MEMORY_STATUS = 77

#: A quoted date with time, as in TIMESTAMP '2026-11-23 00:39:41.361623'.
_LITERAL = re.compile(r"'(\d{4}-\d\d-\d\d[ T]\d\d:\d\d[\d:.]{0,13})'")
#: Limit of the examined literals; SQL in evidence has a few.
LITERALS_MAX = 1000
#: Later times are ignored: no snapshot will cover them soon.
AHEAD_US = 60_000_000
US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Settings of a fork server: the data folder, and the limits of each process."""

    folder: Path
    memory_bytes_max: int
    threads: int

    def to_text(self) -> str:
        return json.dumps({**asdict(self), "folder": str(self.folder)})

    @classmethod
    def from_text(cls, text: str) -> Self:
        values = json.loads(text)
        return cls(**{**values, "folder": Path(values["folder"])})


@dataclass(frozen=True, slots=True)
class Question:
    """A statement and its limits; 0: unlimited."""

    sql: str
    seconds: float
    rows_max: int = 0
    bytes_max: int = 0
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """End of a successful answer. `taken_us`: time of the snapshot, microseconds since 1970."""

    rows: int
    size_bytes: int
    elapsed_seconds: float
    truncated_reason: str
    taken_us: int
    history_missing_reason: str


def message(kind: bytes, payload: bytes | memoryview) -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


def json_message(kind: bytes, value: Any) -> bytes:
    """Return a message with the JSON of a dataclass or dict."""
    plain = value if isinstance(value, dict) else asdict(value)
    return message(kind, json.dumps(plain).encode())


def no_snapshot_message(file: Path) -> str:
    """Return why the operators' file may be missing, and advice."""
    return (
        f"{file} does not exist: no aggregator has written to this folder yet, or it runs with ops_seconds = 0, "
        "which turns the file off (to turn it on, set ops_seconds = 15 and restart the aggregator)"
    )


def timeout_message(seconds: float) -> str:
    """Return advice for a query that exceeded its time."""
    return (
        f"ran longer than {seconds:g} s and was stopped: query less (a host, a shorter time, a "
        "LIMIT), "
        "or for a rollup rather than raw readings"
    )


def memory_message(memory_bytes_max: int) -> str:
    """Return advice for a query that exceeded its memory."""
    size = memory_bytes_max / (1 << 30)
    limit = f"{size:.3g} GB" if size >= 1 else f"{memory_bytes_max >> 20} MB"
    return f"used more than {limit} of memory, the limit: request less (WHERE, fewer columns), or avoid what must hold all rows at once (ORDER BY without LIMIT, GROUP BY)"


class QueryError(Exception):
    """The query failed; the message says why, with advice."""

    #: Outcome in the query log.
    outcome = "failed"


class QueryRefused(QueryError):
    """The SQL is invalid or not allowed; the message names the place and the correct form."""

    outcome = "refused"


class QueryOutOfTime(QueryError):
    """The query exceeded its time."""

    outcome = "time"


class QueryOutOfMemory(QueryError):
    """The query exceeded its memory."""

    outcome = "memory"


class NoSnapshot(QueryError):
    """No snapshot exists yet."""


class TooManyQueries(QueryError):
    """The limit of concurrent queries is reached."""

    outcome = "busy"


class QueryFailed(QueryError):
    """An error of Gangline or of the machine."""


#: Errors that the query's process reports, by their name in its message.
REPORTED_ERRORS: dict[str, type[QueryError]] = {
    error.__name__: error
    for error in (QueryRefused, QueryOutOfTime, QueryOutOfMemory, NoSnapshot, QueryFailed)
}


def exit_error(
    report: ChildReport | None, settings: QuerySettings, question: Question
) -> QueryError:
    """Return the error of a process that ended silently. *report* None: its fork server ended."""
    if report is None or report.event is ChildEvent.FAILED:
        return QueryFailed("the process that runs queries ended. Run the query again")
    status = os.waitstatus_to_exitcode(report.value)
    if report.kill_reason is KillReason.OVERDUE or status == -signal.SIGXCPU:
        return QueryOutOfTime(timeout_message(question.seconds))
    if status in (NO_MEMORY_STATUS, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
        return QueryOutOfMemory(memory_message(settings.memory_bytes_max))
    if status == -signal.SIGKILL and not report.kill_reason:
        reason = "was killed by the kernel, probably because this machine ran out of memory (see `dmesg`)"
        return QueryOutOfMemory(reason)
    return QueryFailed(
        f"the query's process ended with status {status}; the aggregator's log says why"
    )


def newest_moment_us(sql: str, now_us: int) -> int:
    """Return the newest time in *sql*, at most *now_us*, in microseconds since 1970; 0: none.

    The snapshot must cover it. SQL in evidence names times a few seconds ahead, which count as now.
    """
    newest = 0
    for number, match in enumerate(_LITERAL.finditer(sql)):
        if number == LITERALS_MAX:
            break
        try:
            time = datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
        except ValueError:
            continue
        moment_us = (time - _EPOCH) // timedelta(microseconds=1)
        if moment_us <= now_us + AHEAD_US:
            newest = max(newest, moment_us)
    return min(newest, now_us)


def staleness_message(moment_us: int, taken_us: int, again_seconds: float) -> str:
    """Return a message if the snapshot of *taken_us* does not cover *moment_us*; "" if it does."""
    if not taken_us or moment_us <= taken_us:
        return ""
    moment, taken = (datetime.fromtimestamp(us // US, UTC) for us in (moment_us, taken_us))
    return (
        f"{moment:%H:%M:%S} UTC is newer than the file (as of {taken:%H:%M:%S} UTC): try again in "
        f"{max(1, round(again_seconds))} s"
    )
