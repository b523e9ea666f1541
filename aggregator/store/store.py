"""The store: a bounded queue before one writer thread that owns one DuckDB file.

What is submitted is durable once its callback has been called, never before. A commit that fails
is tried again for as long as it takes; meanwhile nothing is receipted and, once the queue is full,
`submit_frame` says no, so that a full disk costs neither readings nor memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import duckdb

from ...ext.intake import Received
from ..config import AggregatorConfig
from ..health.histogram import Histogram
from ..history.history import History
from ..history.shelf import Doors
from ..verdicts import Finding, HostScore, Snapshot
from . import known, records
from .journal import EventJournal, StoredEvent
from .opsfile import OpsFile, pause_seconds
from .pending import OnDurable, Pending
from .records import HostRecord, OwnReading
from .rows import NONE_FOREIGN, Foreign, HostFrame
from .storefile import FILE, JOURNAL, THREADS, StoreError, cause, claim, damaged_words, disk_words
from .trouble import Trouble
from .writer import Writer

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A failed commit is tried again after this long.
RETRY_SECONDS = 1.0
#: Judgements that wait while the disk is full; older ones go first, and are counted.
SCORES_WAITING_MAX = 100_000
#: Findings that wait, come and gone; the oldest go first, and are counted.
FINDINGS_WAITING_MAX = 20_000
#: Events that wait while the disk is full; then ReportEvents is refused.
EVENTS_WAITING_MAX = 100_000
#: The aggregator's readings of itself that wait while the disk is full; the oldest go first.
OWN_WAITING_MAX = 10_000
#: Buckets of commit latency, each a quarter longer than the one before: from 10 ms to what a stalled disk does.
COMMIT_SECONDS_BOUNDS = tuple(
    round(step * decade, 3)
    for decade in (0.01, 0.1, 1.0, 10.0)
    for step in (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)
)

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


def _with_remedy(words: str, folder: Path) -> str:
    """Return *words* on a store that opened and then could not be used, with what to do."""
    if "no space left" in words:
        return f"{words}; make room there: what was receipted is safe"
    if any(sign in words for sign in ("fsync", "write", "nput/output", "Read-only", "FATAL")):
        return f"{words}{disk_words(folder)}"
    return f"{words}. It is left as it is: {damaged_words(folder / FILE)}"


class Store:
    """Thread-safe. `open` starts its threads, `close` ends them."""

    def __init__(
        self, folder: Path, config: AggregatorConfig, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        """Use `open`. Raises StoreError."""
        self._config = config
        self._wall_ns = wall_ns
        self._folder = folder
        self._claim = claim(folder)
        try:
            self._open(folder)
        except duckdb.Error as error:
            self._claim.withdraw()
            raise StoreError(
                f"{folder}: the store cannot be opened: {_with_remedy(cause(error, folder), folder)}"
            ) from error
        except BaseException:
            self._claim.withdraw()
            raise

    def _open(self, folder: Path) -> None:
        self._writer = Writer(
            folder / FILE,
            retention_hours=self._config.retention_hours,
            history_days=self._config.history_days,
        )
        try:
            self._journal = EventJournal(folder / JOURNAL)
        except OSError as error:
            self._writer.close()
            raise StoreError(f"{folder / JOURNAL}: cannot be used: {error.strerror}") from error
        self._ops = OpsFile(folder, self._writer.cursor, self._config.ops_rows_max)
        self._change = threading.Condition()
        self._pending = Pending()
        self._committing = Pending()
        self._works: deque[Callable[[], None]] = deque()
        self._closing = self._hurried = False
        self._give_up_at = float("inf")
        self._trouble = Trouble(folder)
        self._ops_failing, self._ops_writing = "", threading.Lock()
        #: Judgements left out because too many waited.
        self.dropped_scores = 0
        #: Findings left out because too many waited.
        self.dropped_findings = 0
        #: Frames that could not be stored for what is in them.
        self.set_aside_frames = 0
        #: How long each commit took that succeeded.
        self.commit_seconds = Histogram(COMMIT_SECONDS_BOUNDS)
        #: Frames and rows that are on disk, since the start.
        self.stored_frames = self.stored_rows = 0
        #: What the last writing of the operators' file took.
        self.ops_write_seconds = 0.0
        #: What leaves the live file for Parquet, and what is kept (`history_on`).
        self.history = History(
            folder, self._config, Doors(self.in_transaction, self.reading), self.submit_findings
        )
        self._threads = [
            threading.Thread(target=self._write, name=THREADS + "writer", daemon=True),
            threading.Thread(target=self._write_ops, name=THREADS + "ops", daemon=True),
        ]
        try:
            self._replay()
        except BaseException:
            self._journal.close()
            self._writer.close()
            raise

    def _replay(self) -> None:
        if self._journal.torn_bytes:
            log.warning(
                "event journal: %d bytes at its end were no record", self._journal.torn_bytes
            )
        #: What was receipted and is gone, in words: the file lost it while nobody ran. "" when nothing is known.
        self.lost_words = "; ".join(
            filter(None, (self._writer.lost_words, self._journal.lost_words))
        )
        if self.lost_words:
            log.error(
                "stored readings are gone: %s. A backup may have them: gangline admin restore",
                self.lost_words,
            )
        self._pending.events += self._journal.replayed
        self._pending.journal_position = self._journal.position
        with self._writer.cursor() as cursor:
            #: What the store knew when it was opened.
            self.known_hosts = known.hosts(cursor)
            self.known_gpus = known.gpus(cursor)
            self.last_scores = known.last_scores(cursor)
            self.cleared_findings = known.cleared_findings(cursor)
            self.open_findings = known.open_findings(cursor)
            self.recent_events = known.recent_events(cursor, self._wall_ns())
        self.recent_events += self._journal.replayed
        self._journal.replayed.clear()

    def forget_before(self) -> None:
        """Let go of what the store knew when it was opened: of a large fleet it is 0.2 GB, and its users have theirs."""
        self.known_hosts, self.known_gpus = [], []
        self.last_scores, self.open_findings, self.cleared_findings = [], [], {}
        self.recent_events = []

    @classmethod
    def open(
        cls,
        folder: Path,
        config: AggregatorConfig | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> Store:
        """Open or make the store in *folder* and start its threads. Raises StoreError with words."""
        store = cls(folder, config or AggregatorConfig(), wall_ns)
        for thread in store._threads:
            thread.start()
        if store._config.history_on:
            store.history.start(wall_ns)
        return store

    # -- submitting: never blocks but for a moment --------------------------------------------

    def submit_frame(
        self,
        host: str,
        frame: Received,
        time_offset_ns: int,
        on_durable: OnDurable,
        foreign: Mapping[int, Foreign] = NONE_FOREIGN,
    ) -> bool:
        """Queue a frame. False: the queue is full, nothing was taken, try again later.

        Readings are stored as made at their boot time plus *time_offset_ns*. *foreign* names the
        signals that this version does not know. *on_durable* is called with the frame's sequence
        from the writer thread once its rows are on disk, also when they already were.
        """
        one = HostFrame(host, frame, time_offset_ns, foreign)
        size, rows = frame.size_bytes, frame.rows
        with self._change:
            pending, due = self._pending, self._config.commit_rows
            waiting = pending.size_bytes + self._committing.size_bytes
            if waiting and waiting + size > self._config.queue_bytes_max:
                return False
            # The writer waits for the first frame, then for a commit's worth: to wake it for each
            # in between costs more than to take the frame.
            first, full = False, pending.rows < due <= pending.rows + rows
            if not pending.frames:
                first = pending.empty
                pending.first_seconds = time.monotonic()
            pending.frames.append((one, on_durable))
            pending.size_bytes += size
            pending.rows += rows
            if first or full:
                self._change.notify_all()
        return True

    @property
    def room(self) -> float:
        """The free share of the queue, 0 to 1."""
        used = self._pending.size_bytes + self._committing.size_bytes
        return max(0.0, 1 - used / self._config.queue_bytes_max)

    @property
    def queue_bytes(self) -> int:
        """Readings that wait for a commit, those of the one that runs among them."""
        return self._pending.size_bytes + self._committing.size_bytes

    @property
    def lag_seconds(self) -> float:
        """How long the oldest frame without a receipt has waited; 0 when none does."""
        waiting = [one.first_seconds for one in (self._committing, self._pending) if one.frames]
        return max(0.0, time.monotonic() - min(waiting)) if waiting else 0.0

    @property
    def events_waiting(self) -> int:
        """Events in the journal that the store has not taken yet."""
        return len(self._pending.events) + len(self._committing.events)

    @property
    def journal_bytes(self) -> int:
        """Length of the event journal."""
        return self._journal.position

    @property
    def failing_seconds(self) -> float:
        """For how long commits have failed; 0 while they succeed."""
        if not self._trouble.words:
            return 0.0
        return max(0.0, (self._wall_ns() - self._trouble.since_ns) / 1e9)

    @property
    def failed_commits(self) -> int:
        """Commits that failed, since the start; each is tried again."""
        return self._trouble.failed_count

    @property
    def failing(self) -> str:
        """Why commits fail, empty while they succeed."""
        return self._trouble.words

    @property
    def trouble(self) -> str:
        """What an operator should know of commits that fail: since when and why. "" when none do."""
        return self._trouble.told((self._committing, self._pending))

    def append_events(self, events: Sequence[StoredEvent]) -> None:
        """Write events to the journal, fsync, and queue them: they are durable on return.

        Blocks for the disk: call it from a thread that may. Raises TooMuch or NotReady; then none
        of *events* was taken.
        """
        position = self._journal.append(events)
        with self._change:
            self._pending.events += events
            self._pending.journal_position = position
            self._change.notify_all()

    @property
    def events_full(self) -> bool:
        """Whether so many events wait that no more should be taken."""
        return len(self._pending.events) >= EVENTS_WAITING_MAX

    def submit_host(self, record: HostRecord, foreign: Mapping[int, Foreign]) -> None:
        """Queue a host as it registered, and the signals that only it knows."""
        with self._change:
            self._pending.hosts[record.host] = record
            self._pending.foreign.update(foreign)
            self._change.notify_all()

    def submit_scores(self, snapshot: Snapshot, changed: Sequence[HostScore]) -> None:
        """Queue judgements with their evidence."""
        with self._change:
            scores = self._pending.scores
            scores += records.of_snapshot(snapshot, changed)
            over = len(scores) - SCORES_WAITING_MAX
            if over > 0:
                del scores[:over]
                self.dropped_scores += over
            self._change.notify_all()

    def submit_findings(self, findings: Sequence[Finding]) -> None:
        """Queue findings, new or cleared."""
        with self._change:
            for one in findings:
                self._pending.findings[one.host, one.name, one.subject, one.since_ns] = one
            while len(self._pending.findings) > FINDINGS_WAITING_MAX:
                self._pending.findings.pop(next(iter(self._pending.findings)))
                self.dropped_findings += 1
            self._change.notify_all()

    def submit_own(self, readings: Sequence[OwnReading]) -> None:
        """Queue the aggregator's readings of itself."""
        with self._change:
            own = self._pending.own
            own += readings
            del own[: max(0, len(own) - OWN_WAITING_MAX)]
            self._change.notify_all()

    def in_transaction(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run *work* on the writer's connection, between two commits, in a transaction of its own.

        Blocks until it is durable; also while commits fail, so that what makes room can run. Raises
        what *work* raises, and then nothing of it stays; StoreError when the store closes first.
        """
        return self.between_commits(lambda writer: writer.transact(work))

    def between_commits(self, work: Callable[[Writer], T]) -> T:
        """Run *work* with the writer, between two commits: nothing is stored until it returns.

        Blocks. Raises what *work* raises; StoreError when the store closes first.
        """
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work(self._writer))
            except BaseException as error:  # noqa: BLE001 - told to the one who waits
                done.set_exception(error)

        with self._change:
            if self._closing:
                raise StoreError("the store is closing")
            self._works.append(run)
            self._change.notify_all()
        return done.result()

    def reading(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """Return a context with a cursor for reading, beside the writer; for one thread."""
        return self._writer.cursor()

    def held_journal(self) -> bytes:
        """Return the journal's records. Within `between_commits`: those and the file are as of one moment."""
        return self._journal.records()

    @property
    def folder(self) -> Path:
        """Where the store is."""
        return self._folder

    def hurry(self) -> None:
        """Commit what waits now, not after `commit_seconds`."""
        with self._change:
            self._hurried = True
            self._change.notify_all()

    # -- the writer thread ------------------------------------------------------------------

    def _write(self) -> None:
        going = True
        while going:
            pending = self._take()
            going = pending is not None and self._commit_at_last(pending)
            self._run_works()
            if going:
                self._committing = Pending()

    def _run_works(self) -> None:
        while self._works:
            self._works.popleft()()

    def _take(self) -> Pending | None:
        """Wait until a commit is due and take all that waits; None when closing and nothing does.

        Work for `in_transaction` ends the waiting too.
        """
        with self._change:
            self._change.wait_for(lambda: self._closing or self._works or not self._pending.empty)
            self._change.wait_for(
                lambda: (
                    self._closing
                    or self._hurried
                    or self._works
                    or self._pending.rows >= self._config.commit_rows
                ),
                timeout=self._config.commit_seconds,
            )
            self._hurried = False
            if self._pending.empty and not self._works:
                return None
            pending, self._pending = self._pending, Pending()
            self._committing = pending
            return pending

    def _commit_at_last(self, pending: Pending) -> bool:
        """Commit, however often it takes. False when closing ended the attempts."""
        while not pending.empty and not self._commit(pending):
            self._run_works()
            with self._change:
                self._change.wait_for(lambda: self._closing or self._works, timeout=RETRY_SECONDS)
            if time.monotonic() > self._give_up_at:
                return False
        return True

    def _commit(self, pending: Pending) -> bool:
        """Commit, and say so to all who wait. False: not now, for want of disk or memory."""
        begin = time.monotonic()
        try:
            self._writer.commit(pending, self._wall_ns())
        except OF_THE_MACHINE as error:
            self._trouble.failed(error, self._wall_ns())
            return False
        except Exception:
            log.exception("a commit failed for what is in it")
            return self._commit_apart(pending)
        self._trouble.succeeded(self._wall_ns())
        self.commit_seconds.observe(time.monotonic() - begin)
        self.stored_frames += len(pending.frames)
        self.stored_rows += pending.rows
        self._writer.mark(self._wall_ns())
        if pending.journal_position:
            self._journal.stored(pending.journal_position)
        for frame, on_durable in pending.frames:
            on_durable(frame.frame.sequence)
        return True

    def _commit_apart(self, pending: Pending) -> bool:
        """Commit host by host, so that what cannot be stored costs no other host anything.

        What fails alone is set aside: counted, logged, never receipted.
        """
        parts = pending.parts()
        if len(parts) > 1:
            return all(self._commit_at_last(part) for part in parts)
        self.set_aside_frames += len(pending.frames)
        log.error("set aside, for what is in it: %s", pending.words)
        return True

    # -- the operators' file -------------------------------------------------------------------

    def _write_ops(self) -> None:
        closing = False
        while not closing:
            begin = time.monotonic()
            self.write_ops()
            rest = pause_seconds(self._config.ops_seconds, time.monotonic() - begin)
            with self._change:
                closing = self._change.wait_for(lambda: self._closing, timeout=rest)

    def write_ops(self) -> None:
        """Write the operators' file now. Never raises; a failure is logged and the file before stays."""
        try:
            begin = time.monotonic()
            with self._ops_writing:
                self._ops.write(self._wall_ns(), self.lag_seconds)
            self.ops_write_seconds = time.monotonic() - begin
        except Exception as error:  # noqa: BLE001 - the store goes on without it
            words = cause(error, self._folder)
            if words != self._ops_failing:
                log.warning("the operators' file is not written: %s", words)
            self._ops_failing = words
        else:
            if self._ops_failing:
                log.warning("the operators' file is written again")
            self._ops_failing = ""

    def close(self, seconds_max: float = 5.0) -> str:
        """Commit what waits, write the operators' file, and close, within about *seconds_max*.

        Returns words on what could not be stored, "" when all was.
        """
        end = time.monotonic() + seconds_max
        self.history.stop(seconds_max / 2)
        with self._change:
            self._closing = True
            self._give_up_at = end - 1
            self._change.notify_all()
        for thread in self._threads:
            thread.join(max(0.1, end - time.monotonic()))
        if time.monotonic() < end - 1 and not self.failing:
            self.write_ops()
        self._writer.close()
        self._journal.close()
        self._claim.release()
        return self._trouble.left((self._committing, self._pending))
