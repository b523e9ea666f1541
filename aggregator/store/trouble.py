"""Whether the store can store: what stands in the way, since when, in words for log and screen."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import duckdb

from .pending import Pending
from .storefile import FILE, StoreError, cause, damaged_words, disk_words

log = logging.getLogger(__name__)

#: Failures of a commit that pass when the machine does better. Others are of what is in it.
OF_THE_MACHINE = (
    StoreError,
    duckdb.ConnectionException,
    duckdb.IOException,
    duckdb.TransactionException,
    duckdb.OutOfMemoryException,
    duckdb.FatalException,
    duckdb.InternalException,
    OSError,
    MemoryError,
)


def with_remedy(words: str, folder: Path) -> str:
    """Return *words* on a store that opened and then could not be used, with what to do."""
    if "no space left" in words:
        return f"{words}; make room there: what was receipted is safe"
    if any(sign in words for sign in ("fsync", "write", "nput/output", "Read-only", "FATAL")):
        return f"{words}{disk_words(folder)}"
    return f"{words}. It is left as it is: {damaged_words(folder / FILE)}"


class Trouble:
    """Written by the writer thread, read by any. `words` is empty while commits succeed."""

    def __init__(self, folder: Path) -> None:
        self.words = ""
        self._folder = folder
        #: Since when, while `words` is not empty.
        self.since_ns = 0
        #: Commits that failed, since the start.
        self.failed_count = 0

    def failed(self, error: Exception, now_ns: int) -> None:
        """A commit failed, and will be tried again. The first is logged."""
        words = cause(error, self._folder)
        self.failed_count += 1
        if not self.words:
            self.since_ns = now_ns
            log.error("not storing, nothing is receipted, trying again each second: %s", words)
        self.words = words

    def succeeded(self, now_ns: int) -> None:
        """A commit succeeded."""
        if self.words:
            seconds = (now_ns - self.since_ns) / 1e9
            log.warning("storing again, after %.0f s: %s", seconds, self.words)
        self.words = ""

    def told(self, waiting: Sequence[Pending]) -> str:
        """Return what an operator should know while commits fail, with what waits; else ""."""
        if not self.words:
            return ""
        since = time.strftime("%H:%M:%S", time.gmtime(self.since_ns // 1_000_000_000))
        rows = sum(one.rows for one in waiting)
        return f"not storing since {since} UTC: {self.words}; {rows} readings wait"

    def left(self, waiting: Sequence[Pending]) -> str:
        """Return what a closed store lacks, "" when *waiting* holds nothing."""
        if all(one.empty for one in waiting):
            return ""
        frames = sum(len(one.frames) for one in waiting)
        scores = sum(len(one.scores) for one in waiting)
        return (
            f"closed without storing {frames} frames and {scores} scores: "
            f"{self.words or 'there was no time'}. The agents keep those frames and send them again"
        )
