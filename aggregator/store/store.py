"""The store: a bounded queue and one writer thread that owns one DuckDB file.

Submitted data is durable once its callback is called, never before. A failed commit is retried until it succeeds. Meanwhile
nothing is acknowledged and, once the queue is full, `submit_frame` rejects frames. So a full disk loses no readings and uses no
more memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeVar

import duckdb

from ..config import AggregatorConfig
from ..metrics import Histogram
from . import restored_state
from .decision_records import DecisionLimits
from .duckdb_file import (
    JOURNAL_FILE,
    STORE_FILE,
    THREAD_NAME_PREFIX,
    StoreError,
    cause,
    damaged_store_advice,
    disk_failure_advice,
    lock_folder,
)
from .journal import EventJournal, StoredEvent
from .parquet.history import History
from .parquet.segment_store import StoreAccess
from .queue import Pending, Queue
from .snapshot_file import OpsFile
from .snapshot_refresh import Refresh, RefreshCost, RequestFile
from .writer import Writer

# ----------------------------------------------------------------------
# Whether the store can store: what prevents it, since when, as text for log and screen.

log = logging.getLogger(__name__)

#: Failures of a commit that pass when the machine does better. Others are of what is in it.
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
    """Return *message* on a store that opened and then could not be used, with what to do."""
    if "no space left" in message:
        return f"{message}; free some space there: acknowledged data is safe"
    if any(sign in message for sign in ("fsync", "write", "nput/output", "Read-only", "FATAL")):
        return f"{message}{disk_failure_advice(folder)}"
    return f"{message}. It is unchanged: {damaged_store_advice(folder / STORE_FILE)}"


class DiskStatus:
    """Written by the writer thread, read by any. `words` is empty while commits succeed."""

    def __init__(self, folder: Path) -> None:
        self.message = ""
        self._folder = folder
        #: Since when, while `words` is not empty.
        self.since_ns = 0
        #: Commits that failed, since the start.
        self.failed_count = 0

    def record_failure(self, error: Exception, now_ns: int) -> None:
        """A commit failed, and will be tried again. The first is logged."""
        message = cause(error, self._folder)
        self.failed_count += 1
        if not self.message:
            self.since_ns = now_ns
            log.error("cannot store and acknowledges nothing, retrying each second: %s", message)
        self.message = message

    def record_success(self, now_ns: int) -> None:
        """A commit succeeded."""
        if self.message:
            seconds = (now_ns - self.since_ns) / 1e9
            log.warning("storing again, after %.0f s: %s", seconds, self.message)
        self.message = ""

    def summary(self, waiting: Sequence[Pending]) -> str:
        """Return what an operator should know while commits fail, with what waits; else ""."""
        if not self.message:
            return ""
        since = time.strftime("%H:%M:%S", time.gmtime(self.since_ns // 1_000_000_000))
        rows = sum(one.rows for one in waiting)
        return f"not storing since {since} UTC: {self.message}; {rows} readings wait"

    def unstored_summary(self, waiting: Sequence[Pending]) -> str:
        """Return what a closed store lacks, "" when *waiting* holds nothing."""
        if all(one.empty for one in waiting):
            return ""
        frames = sum(len(one.frames) for one in waiting)
        scores = sum(len(one.scores) for one in waiting)
        return (
            f"closed without storing {frames} frames and {scores} scores: "
            f"{self.message or 'there was no time'}. The agents keep those frames and send them again"
        )


T = TypeVar("T")

#: A failed commit is tried again after this long.
RETRY_SECONDS = 1.0
#: At the end a disk that does not respond is waited for so much longer; then the process ends without it.
HANGING_SECONDS_MAX = 20.0
#: Buckets of commit latency, each a quarter longer than the one before: from 10 ms to what a stalled disk does.
COMMIT_SECONDS_BOUNDS = tuple(
    round(step * decade, 3)
    for decade in (0.01, 0.1, 1.0, 10.0)
    for step in (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)
)


class Store(Queue):
    """Thread-safe. `open` starts its threads, `close` ends them."""

    def __init__(
        self,
        folder: Path,
        config: AggregatorConfig,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Use `open`. Raises StoreError."""
        super().__init__(config)
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._folder = folder
        self._claim = lock_folder(folder)
        try:
            self._open(folder)
        except duckdb.Error as error:
            self._claim.discard()
            raise StoreError(
                f"{folder}: the store cannot be opened: {with_remedy(cause(error, folder), folder)}"
            ) from error
        except BaseException:
            self._claim.discard()
            raise

    def _open(self, folder: Path) -> None:
        self._writer = Writer(
            folder / STORE_FILE,
            retention_hours=self._config.retention_hours,
            history_days=self._config.history_days,
            decision_limits=DecisionLimits(
                self._config.decisions_days,
                self._config.decisions_bytes_max,
                self._config.decision_inputs_bytes_max,
            ),
            steady_ns=self._steady_ns,
            on_missing_inputs=self.missing_inputs.extend,
        )
        #: Which data is older than a limit of age.
        self.retention_clock = self._writer.retention_clock
        try:
            self._journal = EventJournal(folder / JOURNAL_FILE)
        except OSError as error:
            self._writer.close()
            raise StoreError(
                f"{folder / JOURNAL_FILE}: cannot be used: {error.strerror}"
            ) from error
        self._ops = OpsFile(folder, self._writer.cursor, self._config.ops_rows_max)
        #: When the operators' file is written, and as of when it is.
        period_seconds = self._config.ops_seconds
        self.refresh = Refresh(
            RefreshCost(period_seconds), RequestFile(folder, enabled=period_seconds > 0)
        )
        self._give_up_at = float("inf")
        self._disk_status = DiskStatus(folder)
        self._ops_failure, self._ops_lock = "", threading.Lock()
        #: Frames, and receipted events, that could not be stored for what is in them.
        self.set_aside_frames = self.set_aside_events = 0
        #: How long each commit took that succeeded.
        self.commit_seconds = Histogram(COMMIT_SECONDS_BOUNDS)
        #: Frames and rows that are on disk, since the start.
        self.stored_frames = self.stored_rows = 0
        #: What the last writing of the operators' file took.
        self.ops_write_seconds = 0.0
        #: What leaves the live file for Parquet, and what is kept (`history_on`).
        self.history = History(
            folder,
            self._config,
            StoreAccess(self.in_transaction, self.reading),
            self.submit_findings,
            self.retention_clock,
        )
        self._threads = [
            threading.Thread(target=self._write, name=THREAD_NAME_PREFIX + "writer", daemon=True)
        ]
        if period_seconds:
            self._threads.append(
                threading.Thread(
                    target=self._write_ops, name=THREAD_NAME_PREFIX + "ops", daemon=True
                )
            )
        else:
            self._ops.remove()
        try:
            self._replay()
        except BaseException:
            self.refresh.requests.close()
            self._journal.close()
            self._writer.close()
            raise

    def _replay(self) -> None:
        if self._journal.torn_bytes:
            log.warning(
                "event journal: %d bytes at its end are not a complete record",
                self._journal.torn_bytes,
            )
        #: What was receipted and is gone, as text: the file lost it while nobody ran. "" when nothing is known.
        self.loss_message = "; ".join(
            filter(None, (self._writer.loss_message, self._journal.loss_message))
        )
        if self.loss_message:
            log.error(
                "stored readings are gone: %s. A backup may have them: gangline admin restore",
                self.loss_message,
            )
        self._pending.events += self._journal.replayed
        self._pending.journal_position = self._journal.position
        with self._writer.cursor() as cursor:
            #: What the store knew when it was opened.
            self.known_hosts = restored_state.hosts(cursor)
            self.known_gpus = restored_state.gpus(cursor)
            self.gpu_sets = restored_state.gpu_sets(cursor)
            self.last_scores = restored_state.last_scores(cursor)
            self.cleared_findings = restored_state.cleared_findings(cursor)
            self.open_findings = restored_state.open_findings(cursor)
            self.recent_events = restored_state.recent_events(cursor, self._wall_ns())
        self.recent_events += self._journal.replayed
        self._journal.replayed.clear()

    def release_restored_state(self) -> None:
        """Release what the store knew when it was opened: of a large fleet it is 0.2 GB, and its users have theirs."""
        self.known_hosts, self.known_gpus, self.gpu_sets = [], [], {}
        self.last_scores, self.open_findings, self.cleared_findings = [], [], {}
        self.recent_events = []

    @classmethod
    def open(
        cls,
        folder: Path,
        config: AggregatorConfig | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> Store:
        """Open or make the store in *folder* and start its threads. *steady_ns*: see `RetentionClock`. Raises StoreError."""
        store = cls(folder, config or AggregatorConfig(), wall_ns, steady_ns)
        for thread in store._threads:
            thread.start()
        if store._config.history_on:
            store.history.start(wall_ns)
        return store

    # -- what is reported of it, and what waits on the caller's thread ----------------------------------

    @property
    def journal_bytes(self) -> int:
        """Size of the event journal's file."""
        return self._journal.size_bytes

    @property
    def failing_seconds(self) -> float:
        """For how long commits have failed; 0 while they succeed."""
        if not self._disk_status.message:
            return 0.0
        return max(0.0, (self._wall_ns() - self._disk_status.since_ns) / 1e9)

    @property
    def failed_commits(self) -> int:
        """Commits that failed, since the start; each is tried again."""
        return self._disk_status.failed_count

    @property
    def failing(self) -> str:
        """Why commits fail, empty while they succeed."""
        return self._disk_status.message

    @property
    def failure_summary(self) -> str:
        """What an operator should know of commits that fail: since when and why. "" when none do."""
        return self._disk_status.summary((self._committing, self._pending))

    def append_events(self, events: Sequence[StoredEvent]) -> None:
        """Write events to the journal, fsync, and queue them: they are durable on return.

        Blocks for the disk: call it from a thread that may. Raises ResourceExhausted or ServiceUnavailable; then none
        of *events* was taken.
        """
        self._submit_events(events, self._journal.append(events))

    def in_transaction(
        self, work: Callable[[duckdb.DuckDBPyConnection], T], *, ahead: bool = False
    ) -> T:
        """Run *work* on the writer's connection, between two commits, in a transaction of its own.

        *ahead*: before what was received is committed, which takes a tenth of a second and more; else behind it.

        Blocks until it is durable; also while commits fail, so that what makes room can run. Raises
        what *work* raises, and then nothing of it stays; StoreError when the store closes first.
        """
        return self.run_on_writer_thread(lambda writer: writer.transact(work), ahead=ahead)

    def run_on_writer_thread(self, work: Callable[[Writer], T], *, ahead: bool = False) -> T:
        """Run *work* with the writer, between two commits: nothing is stored until it returns.

        Blocks. Raises what *work* raises; StoreError when the store closes first.
        """
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work(self._writer))
            except BaseException as error:  # noqa: BLE001 - told to the one who waits
                done.set_exception(error)

        self._submit_work(run, ahead=ahead)
        return done.result()

    def reading(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """Return a context with a cursor for reading, beside the writer; for one thread."""
        return self._writer.cursor()

    def journal_records(self) -> bytes:
        """Return the journal's records. Within `run_on_writer_thread`: those and the file are as of one moment."""
        return self._journal.records()

    @property
    def folder(self) -> Path:
        """Where the store is."""
        return self._folder

    # -- the writer thread ------------------------------------------------------------------

    def _write(self) -> None:
        going = True
        while going:
            pending = self._take_pending()
            self._run_items(self._ahead_items)
            going = pending is not None and self._commit_with_retries(pending)
            self._run_items(self._ahead_items)
            self._run_items(self._due_items)
            if going:
                self._committing = Pending()
            else:
                self._run_work_items()

    def _run_work_items(self) -> None:
        self._run_items(self._ahead_items)
        self._run_items(self._due_items)
        self._run_items(self._work_items)

    def _run_items(self, items: deque[Callable[[], None]]) -> None:
        while items:
            items.popleft()()

    def _commit_with_retries(self, pending: Pending) -> bool:
        """Commit, however often it takes. False when closing ended the attempts."""
        while not pending.empty and not self._commit(pending):
            self._run_work_items()
            self._pause(RETRY_SECONDS)
            if time.monotonic() > self._give_up_at:
                return False
        return True

    def _commit(self, pending: Pending) -> bool:
        """Commit, and say so to all who wait. False: not now, for lack of disk or memory."""
        begin = time.monotonic()
        try:
            self._writer.commit(pending, self._wall_ns())
        except TRANSIENT_ERRORS as error:
            self._disk_status.record_failure(error, self._wall_ns())
            return False
        except Exception:
            log.exception("a commit failed because of its content")
            return self._commit_in_parts(pending)
        self._disk_status.record_success(self._wall_ns())
        self.commit_seconds.observe(time.monotonic() - begin)
        self.stored_frames += len(pending.frames)
        self.stored_rows += pending.rows
        self._writer.write_mark(self._wall_ns())
        if pending.journal_position:
            self._journal.mark_stored(pending.journal_position)
        for frame, on_durable in pending.frames:
            on_durable(frame.frame.sequence)
        return True

    def _commit_in_parts(self, pending: Pending) -> bool:
        """Commit part by part, so that what cannot be stored costs nothing else anything.

        A part is of one host, then of one kind, then half as much. What fails alone is set aside: counted,
        logged, a frame never receipted. False when closing ended the attempts.
        """
        parts = pending.parts()
        if not parts:
            self.set_aside_frames += len(pending.frames)
            self.set_aside_events += len(pending.events)
            log.error("set aside because of its content: %s", pending.description)
        elif not all(self._commit_with_retries(part) for part in parts):
            return False  # what is left stays in the journal
        if pending.journal_position:
            self._journal.mark_stored(pending.journal_position)
        return True

    # -- the operators' file -------------------------------------------------------------------

    def _write_ops(self) -> None:
        while self.refresh.wait(lambda: self._closing, time.monotonic):
            with suppress(StoreError):  # it closes: `_close` writes the last file
                # What was received is in the file, also where it waits for a commit.
                self.run_on_writer_thread(lambda _: None)
            self.write_ops()

    def write_ops(self) -> None:
        """Write the operators' file now. Never raises; a failure is logged and the file before stays."""
        try:
            begin, cpu_begin = time.monotonic(), time.thread_time()
            with self._ops_lock:
                self.refresh.started()
                now_ns = self._wall_ns()
                self._ops.write(now_ns, self.lag_seconds)
            end = time.monotonic()
            self.ops_write_seconds = end - begin
            cost = RefreshCost(
                self._config.ops_seconds, end - begin, time.thread_time() - cpu_begin
            )
            self.refresh.written(now_ns, cost, end)
        except Exception as error:  # noqa: BLE001 - the store continues without it
            self.refresh.failed(time.monotonic())
            reason = cause(error, self._folder)
            if reason != self._ops_failure:
                log.warning("the operators' file is not written: %s", reason)
            self._ops_failure = reason
        else:
            if self._ops_failure:
                log.warning("the operators' file is written again")
            self._ops_failure = ""

    def close(self, seconds_max: float = 5.0) -> str:
        """Commit what waits, write the operators' file, and close, within about *seconds_max*.

        A disk that does not respond is given HANGING_SECONDS_MAX more; then files and folder stay ours until the process
        ends, which it should at once. Returns words on what could not be stored or closed, "" when all was.
        """
        done: Future[None] = Future()

        def run() -> None:
            try:
                self._close(time.monotonic() + seconds_max)
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 - told to the one who waits
                done.set_exception(error)

        # Anyone who waits for a disk cannot be interrupted: a thread of its own is what can be left behind.
        threading.Thread(target=run, name=THREAD_NAME_PREFIX + "close", daemon=True).start()
        hangs = not wait([done], seconds_max + HANGING_SECONDS_MAX).done
        if not hangs:
            done.result()
        message = self._disk_status.unstored_summary((self._committing, self._pending))
        if hangs:
            message = f"{self._folder}: its disk did not answer for {HANGING_SECONDS_MAX:.0f} s, the store is unchanged: acknowledged data is safe; check the disk (dmesg, iostat -x 1){'; ' * bool(message)}{message}"
            log.error("not closed: %s", message)
        return message

    def _close(self, end: float) -> None:
        self.history.stop((end - time.monotonic()) / 2)
        self._give_up_at = end - 1
        self._submit_end()
        self.refresh.wake()
        for thread in self._threads:
            thread.join(max(0.1, end - time.monotonic()))
        has_time = time.monotonic() + self.refresh.cost.write_seconds < end - 1
        if self._config.ops_seconds and has_time and not self.failing:
            self.write_ops()
        self.refresh.requests.close()
        self._writer.close()
        self._journal.close()
        self._claim.release()
