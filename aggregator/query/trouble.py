"""How a question can fail, as an exception with words; the service gives each its status, the shell its exit code."""

from __future__ import annotations

import signal
from typing import Any

from . import limits
from .limits import Place, Question


class QueryError(Exception):
    """The question has no answer; the words say why and what to do."""


class QueryRefused(QueryError):
    """Wrong SQL, or SQL that is not let through."""


class QueryCutOff(QueryError):
    """It took too much: `of_time` says whether of time or of memory."""

    def __init__(self, words: str, *, of_time: bool) -> None:
        super().__init__(words)
        self.of_time = of_time


class NoSnapshot(QueryError):
    """There is nothing to ask yet."""


class TooManyQueries(QueryError):
    """As many run as may."""


class QueryFailed(QueryError):
    """A fault that is ours or the machine's."""


def told(kind: str, words: str) -> QueryError:
    """Return what a process said that it ended with."""
    if kind == limits.REFUSED:
        return QueryRefused(words)
    if kind == limits.NO_SNAPSHOT:
        return NoSnapshot(words)
    if kind in (limits.TIME, limits.MEMORY):
        return QueryCutOff(words, of_time=kind == limits.TIME)
    return QueryFailed(words)


def died(obituary: dict[str, Any], place: Place, question: Question) -> QueryError:
    """Return why a process ended that said nothing; *obituary* as `nursery` writes it."""
    status, why = obituary.get("status"), obituary.get("why", "")
    if why == limits.TIME or status == -signal.SIGXCPU:
        return QueryCutOff(limits.too_long(question.seconds), of_time=True)
    if status in (limits.NO_MEMORY_STATUS, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
        return QueryCutOff(limits.too_much(place.memory_bytes_max), of_time=False)
    if status == -signal.SIGKILL and not why:
        words = (
            "was ended by the kernel, most likely for want of memory on this machine (`dmesg` says)"
        )
        return QueryCutOff(words, of_time=False)
    if status is None:
        return QueryFailed("the process that runs queries ended; ask again")
    return QueryFailed(
        f"the query's process ended with status {status}; the aggregator's log says why"
    )
