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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import duckdb
from duckdb import DuckDBPyConnection as Connection

from ...contract.server.metric_families import Histogram
from ..config import AggregatorConfig
from . import restored_state
from .decision_records import DecisionLimits
from .disk_status import TRANSIENT_ERRORS, DiskStatus, with_remedy
from .duckdb_file import THREAD_NAME_PREFIX
from .journal import EventJournal, StoredEvent
from .parquet.history import History
from .parquet.segment_store import StoreAccess
from .queue import Pending, Queue
from .snapshot_file import OpsFile
from .snapshot_refresh import Refresh, RefreshCost, RequestFile
from .store_folder import JOURNAL_FILE, STORE_FILE, StoreError, cause, lock_folder
from .writer import Writer

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Delay before a failed commit is tried again.
RETRY_SECONDS = 1.0
#: Additional time for a disk that does not respond at shutdown; then the process ends without it.
HANGING_SECONDS_MAX = 20.0
#: Buckets of commit latency, each a quarter longer than the previous one: from 10 ms to 80 s.
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
        """Do not call this; use `open`. Raises StoreError."""
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
        #: Determines which data exceeds a limit of age.
        self.retention_clock = self._writer.retention_clock
        try:
            self._journal = EventJournal(folder / JOURNAL_FILE)
        except OSError as error:
            self._writer.close()
            raise StoreError(
                f"{folder / JOURNAL_FILE}: cannot be used: {error.strerror}"
            ) from error
        self._ops = OpsFile(folder, self._writer.cursor, self._config.ops_rows_max)
        #: Schedule and age of the operators' file.
        period_seconds = self._config.ops_seconds
        self.refresh = Refresh(
            RefreshCost(period_seconds), RequestFile(folder, enabled=period_seconds > 0)
        )
        self._give_up_at = float("inf")
        self._disk_status = DiskStatus(folder)
        self._ops_failure, self._ops_lock = "", threading.Lock()
        #: Frames and acknowledged events that could not be stored because of their content.
        self.set_aside_frames = self.set_aside_events = 0
        #: Duration of each successful commit.
        self.commit_seconds = Histogram(COMMIT_SECONDS_BOUNDS)
        #: Frames and rows stored since the start.
        self.stored_frames = self.stored_rows = 0
        #: Duration of the last writing of the operators' file.
        self.ops_write_seconds = 0.0
        #: Export of the live file to Parquet, and retention there (`history_on`).
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
            name = THREAD_NAME_PREFIX + "ops"
            self._threads.append(threading.Thread(target=self._write_ops, name=name, daemon=True))
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
        #: Message about acknowledged data lost while no aggregator ran; "" if none is known.
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
            #: State that the store had when it was opened.
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
        """Release the state read at start: 0.2 GB for a large fleet, and copied by its users."""
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
        """Open or create the store in *folder* and start its threads. Raises StoreError."""
        store = cls(folder, config or AggregatorConfig(), wall_ns, steady_ns)
        for thread in store._threads:
            thread.start()
        if store._config.history_on:
            store.history.start(wall_ns)
        return store

    @property
    def journal_bytes(self) -> int:
        """Return the size of the event journal's file."""
        return self._journal.size_bytes

    @property
    def failing_seconds(self) -> float:
        """Return for how long commits have failed; 0 while they succeed."""
        if not self._disk_status.message:
            return 0.0
        return max(0.0, (self._wall_ns() - self._disk_status.since_ns) / 1e9)

    @property
    def failed_commits(self) -> int:
        """Return the number of failed commits since the start; each is retried."""
        return self._disk_status.failed_count

    @property
    def failing(self) -> str:
        """Return why commits fail, "" while they succeed."""
        return self._disk_status.message

    @property
    def failure_summary(self) -> str:
        """Return a message about failing commits: since when and why; "" while they succeed."""
        return self._disk_status.summary((self._committing, self._pending))

    def append_events(self, events: Sequence[StoredEvent]) -> None:
        """Write events to the journal, fsync, and queue them: they are durable on return.

        Blocks on the disk. Raises ResourceExhausted or ServiceUnavailable; then none of *events* is
        stored.
        """
        self._submit_events(events, self._journal.append(events))

    def in_transaction(self, work: Callable[[Connection], T], *, ahead: bool = False) -> T:
        """Run *work* on the writer's connection, between two commits, in a transaction of its own.

        *ahead*: before the pending commit, which takes a tenth of a second or more, instead of
        after it. Blocks until the transaction is durable; also runs while commits fail, so that
        work that frees space can run. Raises the exception of *work* and rolls back; StoreError if
        the store closes first.
        """
        return self.run_on_writer_thread(lambda writer: writer.transact(work), ahead=ahead)

    def run_on_writer_thread(self, work: Callable[[Writer], T], *, ahead: bool = False) -> T:
        """Run *work* with the writer, between two commits: nothing is stored until it returns.

        Blocks. Raises the exception of *work*; StoreError if the store closes first, or cannot be used while
        commits fail.
        """
        done: Future[T] = Future()

        def run() -> None:
            try:
                with self._usable():
                    result = work(self._writer)
                done.set_result(result)
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                done.set_exception(error)

        self._submit_work(run, ahead=ahead)
        return done.result()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a cursor for reading, for use by one thread.

        Raises StoreError if the store cannot be used while commits fail.
        """
        with self._usable(), self._writer.cursor() as cursor:
            yield cursor

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Raise StoreError with the reason of failing commits in place of DuckDB's consequences.

        After a failed commit the file is opened again at each retry; until that succeeds it is closed.
        """
        try:
            yield
        except (duckdb.ConnectionException, duckdb.FatalException) as error:
            if not self.failing:
                raise
            raise StoreError(with_remedy(self.failing, self._folder)) from error

    def journal_records(self) -> bytes:
        """Return the journal's records; in `run_on_writer_thread` they match the file."""
        return self._journal.records()

    @property
    def folder(self) -> Path:
        """Return the store's folder."""
        return self._folder

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
        """Commit, with retries. False: the store is closing and the retries ended."""
        while not pending.empty and not self._commit(pending):
            self._run_work_items()
            self._pause(RETRY_SECONDS)
            if time.monotonic() > self._give_up_at:
                return False
        return True

    def _commit(self, pending: Pending) -> bool:
        """Commit, and give the receipts. False: a transient failure of disk or memory."""
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
        """Commit in parts, so that an item that cannot be stored does not affect the others.

        A part has one host, then one kind, then half the items. A single item that fails is set
        aside: it is counted and logged, and a frame gets no receipt. False: the store is closing.
        """
        parts = pending.parts()
        if not parts:
            self.set_aside_frames += len(pending.frames)
            self.set_aside_events += len(pending.events)
            log.error("set aside because of its content: %s", pending.description)
        elif not all(self._commit_with_retries(part) for part in parts):
            return False  # the rest stays in the journal
        if pending.journal_position:
            self._journal.mark_stored(pending.journal_position)
        return True

    def _write_ops(self) -> None:
        while self.refresh.wait(lambda: self._closing, time.monotonic):
            with suppress(StoreError):  # closing: `_close` writes the last file
                # Wait for a commit, so that the file includes everything received before.
                self.run_on_writer_thread(lambda _: None)
            self.write_ops()

    def write_ops(self) -> None:
        """Write the operators' file now. Never raises: a failure is logged, the old file stays."""
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
        """Commit pending data, write the operators' file, and close, within about *seconds_max*.

        If the disk does not respond for HANGING_SECONDS_MAX more, files and folder stay locked
        until the process ends, which it should at once. Return a message about data that could not
        be stored, "" if there is none.
        """
        done: Future[None] = Future()

        def run() -> None:
            try:
                self._close(time.monotonic() + seconds_max)
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 - raised below
                done.set_exception(error)

        # A thread that waits for a disk cannot be interrupted, only abandoned.
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
