"""Status of failing commits: the message, its remedy, and how long they have failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import duckdb

from .duckdb_file import damaged_store_advice, disk_failure_advice
from .queue import Pending
from .store_folder import STORE_FILE, StoreError, cause

log = logging.getLogger(__name__)

#: Failures of a commit that can pass without a change of its content. Others are caused by it.
TRANSIENT_ERRORS = (
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


def with_remedy(message: str, folder: Path) -> str:
    """Return *message* about a store that opened but could not be used, with advice."""
    if "no space left" in message:
        return f"{message}; free some space there: acknowledged data is safe"
    if any(sign in message for sign in ("fsync", "write", "nput/output", "Read-only", "FATAL")):
        return f"{message}{disk_failure_advice(folder)}"
    return f"{message}. It is unchanged: {damaged_store_advice(folder / STORE_FILE)}"


class DiskStatus:
    """Written by the writer thread, read by any. `message` is empty while commits succeed."""

    def __init__(self, folder: Path) -> None:
        self.message = ""
        self._folder = folder
        #: Beginning of the failures while `message` is not empty.
        self.since_ns = 0
        #: Commits that failed since the start.
        self.failed_count = 0

    def record_failure(self, error: Exception, now_ns: int) -> None:
        """Record a failed commit, which will be retried. The first of a series is logged."""
        message = cause(error, self._folder)
        self.failed_count += 1
        if not self.message:
            self.since_ns = now_ns
            log.error("cannot store and acknowledges nothing, retrying each second: %s", message)
        self.message = message

    def record_success(self, now_ns: int) -> None:
        """Record a commit."""
        if self.message:
            seconds = (now_ns - self.since_ns) / 1e9
            log.warning("storing again, after %.0f s: %s", seconds, self.message)
        self.message = ""

    def summary(self, waiting: Sequence[Pending]) -> str:
        """Return a message for operators while commits fail, with the number of rows; else ""."""
        if not self.message:
            return ""
        since = time.strftime("%H:%M:%S", time.gmtime(self.since_ns // 1_000_000_000))
        rows = sum(batch.rows for batch in waiting)
        return f"not storing since {since} UTC: {self.message}; {rows} readings wait"

    def unstored_summary(self, waiting: Sequence[Pending]) -> str:
        """Return a message about data that a closed store lacks; "" if *waiting* is empty."""
        if all(batch.empty for batch in waiting):
            return ""
        frames = sum(len(batch.frames) for batch in waiting)
        scores = sum(len(batch.scores) for batch in waiting)
        return (
            f"closed without storing {frames} frames and {scores} scores: "
            f"{self.message or 'there was no time'}. The agents keep those frames and send them again"
        )
