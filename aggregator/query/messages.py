"""Limits of a query, and the messages between its process and the caller."""

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

#: A longer statement is refused: nobody types it, and a parser's stack is finite.
SQL_BYTES_MAX = 256 << 10
#: One message of an answer is no longer: with gRPC's own bytes it fits its default limit of 4 MiB.
PIECE_BYTES_MAX = (4 << 20) - (16 << 10)
#: Record batches are cut to about this many bytes, so that a reader shows the first rows early.
BATCH_BYTES = 1 << 20

#: A message: its kind, then its length in bytes.
HEADER = struct.Struct("<cI")
#: Kinds: the question; bytes of an Arrow IPC stream; the end of a good answer; the end of a bad one.
QUESTION, ARROW, SUMMARY, ERROR = b"q", b"a", b"s", b"e"
#: What an answer ends with when it is no good: kind of trouble -> see `messages.py`.
REFUSED, MEMORY, TIME, NO_SNAPSHOT, FAILED = "refused", "memory", "time", "no snapshot", "failed"
#: What a process ends with that has no memory left to say so.
NO_MEMORY_STATUS = 77


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Whose questions a fork server serves: the data folder, and what each process may take."""

    folder: Path
    memory_bytes_max: int
    threads: int

    def to_text(self) -> str:
        """Return what `from_text` reads."""
        return json.dumps({**asdict(self), "folder": str(self.folder)})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what `to_text` wrote."""
        values = json.loads(text)
        return cls(**{**values, "folder": Path(values["folder"])})


@dataclass(frozen=True, slots=True)
class Question:
    """One statement and its limits; 0: without that limit."""

    sql: str
    seconds: float
    rows_max: int = 0
    bytes_max: int = 0
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """The end of a good answer. `taken_us`: as of when the snapshot is, microseconds since 1970."""

    rows: int
    size_bytes: int
    elapsed_seconds: float
    truncated_reason: str
    taken_us: int
    history_missing_reason: str


def message(kind: bytes, payload: bytes | memoryview) -> bytes:
    """Return one message."""
    return HEADER.pack(kind, len(payload)) + payload


def json_message(kind: bytes, value: Any) -> bytes:
    """Return a message of a dataclass or a dict."""
    plain = value if isinstance(value, dict) else asdict(value)
    return message(kind, json.dumps(plain).encode())


def no_snapshot_message(file: Path) -> str:
    """Return why there may be no operators' file, and what to do."""
    return (
        f"{file} does not exist: no aggregator has written to this folder yet, or it runs with ops_seconds = 0, "
        "which turns the file off (to turn it on, set ops_seconds = 15 and restart the aggregator)"
    )


def timeout_message(seconds: float) -> str:
    """Return what to do about a question that took too long."""
    return (
        f"ran longer than {seconds:g} s and was stopped: query less (a host, a shorter time, a "
        "LIMIT), "
        "or for a rollup rather than raw readings"
    )


def memory_message(memory_bytes_max: int) -> str:
    """Return what to do about a question that took too much."""
    size = memory_bytes_max / (1 << 30)
    limit = f"{size:.3g} GB" if size >= 1 else f"{memory_bytes_max >> 20} MB"
    return f"used more than {limit} of memory, the limit: request less (WHERE, fewer columns), or avoid what must hold all rows at once (ORDER BY without LIMIT, GROUP BY)"


# ----------------------------------------------------------------------
# How a question can fail, as an exception with words; the service gives each its status, the shell
# its exit code.


class QueryError(Exception):
    """The question has no answer; the words say why and what to do."""


class QueryRefused(QueryError):
    """Wrong SQL, or SQL that is not let through."""


class QueryCutOff(QueryError):
    """It took too much: `of_time` says whether of time or of memory."""

    def __init__(self, reason: str, *, of_time: bool) -> None:
        super().__init__(reason)
        self.of_time = of_time


class NoSnapshot(QueryError):
    """There is nothing to ask yet."""


class TooManyQueries(QueryError):
    """As many run as may."""


class QueryFailed(QueryError):
    """A fault that is ours or the machine's."""


def query_error(kind: str, words: str) -> QueryError:
    """Return what a process said that it ended with."""
    if kind == REFUSED:
        return QueryRefused(words)
    if kind == NO_SNAPSHOT:
        return NoSnapshot(words)
    if kind in (TIME, MEMORY):
        return QueryCutOff(words, of_time=kind == TIME)
    return QueryFailed(words)


def exit_error(
    report: ChildReport | None, settings: QuerySettings, question: Question
) -> QueryError:
    """Return why a process ended that said nothing; None: its fork server is gone, too."""
    if report is None or report.event is ChildEvent.FAILED:
        return QueryFailed("the process that runs queries ended. Run the query again")
    status = os.waitstatus_to_exitcode(report.value)
    if report.kill_reason is KillReason.OVERDUE or status == -signal.SIGXCPU:
        return QueryCutOff(timeout_message(question.seconds), of_time=True)
    if status in (NO_MEMORY_STATUS, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
        return QueryCutOff(memory_message(settings.memory_bytes_max), of_time=False)
    if status == -signal.SIGKILL and not report.kill_reason:
        reason = "was killed by the kernel, probably because this machine ran out of memory (see `dmesg`)"
        return QueryCutOff(reason, of_time=False)
    return QueryFailed(
        f"the query's process ended with status {status}; the aggregator's log says why"
    )


# ----------------------------------------------------------------------
# The moments that a statement names: the snapshot must be of then or later, or it has no rows of
# them.

#: A date with a time, quoted: TIMESTAMP '2026-11-23 00:39:41.361623'.
_LITERAL = re.compile(r"'(\d{4}-\d\d-\d\d[ T]\d\d:\d\d[\d:.]{0,13})'")
#: This many are looked at: evidence has a handful.
LITERALS_MAX = 1000
#: A moment further ahead is not of now: no snapshot to come is waited for.
AHEAD_US = 60_000_000
US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def newest_moment_us(sql: str, now_us: int) -> int:
    """Return the newest moment that *sql* names up to now, in microseconds since 1970; 0: none.

    Evidence reaches a few seconds past its moment: what is a little ahead counts as now.
    """
    newest = 0
    for number, found in enumerate(_LITERAL.finditer(sql)):
        if number == LITERALS_MAX:
            break
        try:
            at = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
        except ValueError:
            continue
        moment_us = (at - _EPOCH) // timedelta(microseconds=1)
        if moment_us <= now_us + AHEAD_US:
            newest = max(newest, moment_us)
    return min(newest, now_us)


def staleness_message(moment_us: int, taken_us: int, again_seconds: float) -> str:
    """Return what to say of a snapshot as of *taken_us* when *moment_us* was asked for; "" when it covers that."""
    if not taken_us or moment_us <= taken_us:
        return ""
    moment, taken = (datetime.fromtimestamp(us // US, UTC) for us in (moment_us, taken_us))
    return (
        f"{moment:%H:%M:%S} UTC is newer than the file (as of {taken:%H:%M:%S} UTC): try again in "
        f"{max(1, round(again_seconds))} s"
    )
