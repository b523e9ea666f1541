"""The writer of the store: commits queued data, each frame once, and deletes expired data."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import duckdb
from duckdb import DuckDBPyConnection as Connection

from ...contract.durable_file import sync_folder
from ..errors import CAPACITY_RETRY_SECONDS, ResourceExhausted
from ..model import Finding
from . import rows as records
from .decision_records import DecisionLimits
from .decisions import drop_old_decisions, put_decisions
from .duckdb_file import open_store, ops_script, script
from .duckdb_header import Header
from .durability_mark import MarkWriter, loss_message, remove_mark, size_of
from .frame_rows import CommitBatch, HostFrame, batch
from .host_days import DAY_US
from .live_tables import HOUR_NS, LiveTables
from .parquet.views import repair_rollup_views
from .queue import Pending
from .received_ledger import Ledger, Run, SequenceRange, ranges_of
from .retention_clock import Anchor, RetentionClock
from .retention_rules import drop_old
from .rows import HostMemory, HostRecord
from .store_folder import BEFORE_SWAP, StoreError, remove_leftovers, wal_of
from .view_scripts import run_scripts

#: Runs per host in the table `received`. A host's spool contains one run; older runs are resent
#: only if an old disk is put back. The oldest are deleted, so that no host can fill the table.
RUNS_PER_HOST_MAX = 1000
#: Period of storing the run time. A kill loses at most one period of run time, and data stays for
#: one period longer.
RUN_TIME_STORED_NS = 60_000_000_000

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The table `received` is compacted after this many additional rows.
RECEIVED_GROWN_MAX = 100_000

#: A checkpoint recompresses changed data of each table; one after each commit would cost twice as
#: much as the commits. A longer WAL needs fewer; reading it at a start takes about 1 s of CPU.
CHECKPOINT_WAL = "128MB"
#: For small commits: in a small fleet the data that waits for a checkpoint is most of the memory.
SMALL_COMMIT_ROWS, SMALL_CHECKPOINT_WAL = 32_768, "64MB"
#: WAL limit while a backup copies the file (the service ends the backup earlier).
PINNED_WAL_BYTES_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file that no checkpoint changes now; it is consistent up to `wal_bytes` of the WAL."""

    path: Path
    header: Header | None
    wal_bytes: int


class Writer:
    """The only owner of the store's file. Call all methods except `cursor` in the writer thread."""

    def __init__(
        self,
        path: Path,
        *,
        retention_hours: int,
        history_days: int,
        decision_limits: DecisionLimits = DecisionLimits(),  # noqa: B008 - frozen
        steady_ns: Callable[[], int] = time.monotonic_ns,
        on_missing_inputs: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> None:
        """Open the store at *path*. Raises StoreError.

        *on_missing_inputs*: called with the digests of decisions' inputs that the store lacks.
        """
        self._path = path
        self._retention_ns = retention_hours * HOUR_NS
        self._history_days = history_days
        self._decision_limits, self._on_missing_inputs = decision_limits, on_missing_inputs
        self._cursor_lock = threading.Lock()
        self._needs_reopen = False
        self._saved_threshold = ""
        #: Message about data lost since the last receipt; "" if no loss is known.
        self.loss_message = _loss_message(path)
        self._mark_writer = MarkWriter(path)
        self._retention_run_hour, self._run_time_stored_ns = -1, -RUN_TIME_STORED_NS
        remove_leftovers(path.parent)
        self._open()
        self.retention_clock = RetentionClock(steady_ns, self._stored_anchors())

    def _open(self) -> None:
        self._connection = open_store(self._path)
        try:
            self._prepare()
        except BaseException:
            with suppress(duckdb.Error):
                self._connection.close()
            raise

    def _prepare(self) -> None:
        self._checkpoint_wal = ""
        self._checkpoint_at(CHECKPOINT_WAL)
        self._live_tables = LiveTables(self._connection, self._path.parent)
        with self._transaction():
            self._live_tables.reload()
            repair_rollup_views(self._connection, self._path.parent)
            scripts = script("live.sql"), ops_script(), script("history.sql")
            run_scripts(self._connection, scripts)
            self._put_signals()
        self._load_ledger()

    def _checkpoint_at(self, wal: str) -> None:
        # Not during a backup.
        if not self._saved_threshold and wal != self._checkpoint_wal:
            self._connection.execute(f"SET checkpoint_threshold = '{wal}'")
            self._checkpoint_wal = wal

    def _put_signals(self) -> None:
        self._connection.execute("DELETE FROM signals WHERE known")
        self._insert("signals", records.signals())

    def _load_ledger(self) -> None:
        """Load the current runs of hosts, and runs that need fewer rows than they have."""
        rows: list[SequenceRange] = self._connection.execute(
            "FROM received SEMI JOIN (SELECT host, run_id FROM hosts UNION SELECT host, run_id "
            "FROM received GROUP BY host, run_id HAVING count(*) > 1) USING (host, run_id)"
        ).fetchall()
        self._ledger = Ledger(rows)
        self._received_grown = 0
        if len(rows) > len(self._ledger.rows()):
            with self._transaction():
                self._compact_received()

    def write_mark(self, now_ns: int) -> None:
        """Record that everything committed until now is acknowledged. Never raises."""
        self._mark_writer.write(now_ns)

    def hold_checkpoints(self) -> PinnedFile:
        """Prevent checkpoints until `resume_checkpoints`; return the file's and WAL's state."""
        if self._saved_threshold:
            message = "another backup is running; cancel it, or wait for it"
            raise ResourceExhausted(message, CAPACITY_RETRY_SECONDS)
        ((threshold,),) = self._connection.execute(
            "SELECT current_setting('checkpoint_threshold')"
        ).fetchall()
        self._connection.execute(f"SET checkpoint_threshold = '{PINNED_WAL_BYTES_MAX}B'")
        self._saved_threshold = str(threshold)
        return PinnedFile(self._path, self._mark_writer.header(), size_of(wal_of(self._path)))

    def resume_checkpoints(self) -> None:
        """End `hold_checkpoints`; the next commit can checkpoint."""
        threshold, self._saved_threshold = self._saved_threshold, ""
        if threshold:
            self._connection.execute(f"SET checkpoint_threshold = '{threshold}'")

    def swap(self, new: Path) -> None:
        """Replace the store with the closed, complete file *new*. Raises duckdb.Error, OSError or
        StoreError.

        After a failure, also of opening the new file, the old one is in place.
        """
        self._needs_reopen = True
        before = self._path.with_name(BEFORE_SWAP)
        with self._cursor_lock:
            self._connection.execute("CHECKPOINT")
            self._connection.close()
            self._mark_writer.close()
            if size_of(wal_of(self._path)):
                raise StoreError(f"{wal_of(self._path)} was not merged; the file was not replaced")
            remove_mark(self._path.parent)
            before.unlink(missing_ok=True)
            os.link(self._path, before)
            os.replace(new, self._path)
            sync_folder(self._path.parent)
            try:
                self._open()
            except BaseException:
                wal_of(self._path).unlink(missing_ok=True)
                os.replace(before, self._path)
                raise
            before.unlink()
        self._needs_reopen = False

    def commit(self, pending: Pending, now_ns: int) -> None:
        """Store *pending* in one transaction. Raises duckdb.Error, OSError, StoreError."""
        if self._needs_reopen:
            self._reopen()
        self._needs_reopen = True
        self._commit(pending, now_ns)
        self._needs_reopen = False

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run *work* in a transaction, and reload the live tables afterwards.

        Rolls back and raises the exception of *work*, duckdb.Error, OSError or StoreError.
        """
        if self._needs_reopen:
            self._reopen()
        self._needs_reopen = True
        with self._transaction():
            result = work(self._connection)
            self._live_tables.reload()
        self._needs_reopen = False
        return result

    def _commit(self, pending: Pending, now_ns: int) -> None:
        self._load_runs({frame.key[:2] for frame, _ in pending.frames})
        new = self._not_yet_received(pending)
        rows = batch(new.values())
        ranges = ranges_of(new)
        surplus = self._ledger.surplus()
        is_small = pending.rows < SMALL_COMMIT_ROWS
        self._checkpoint_at(SMALL_CHECKPOINT_WAL if is_small else CHECKPOINT_WAL)
        self.retention_clock.observe(now_ns)
        run_ns = self.retention_clock.run_ns
        is_run_time_due = run_ns - self._run_time_stored_ns >= RUN_TIME_STORED_NS
        with self._transaction():
            self._apply_retention(run_ns, now_ns)
            if is_run_time_due:
                self._put_run_time()
            self._put_readings(rows, now_ns)
            self._put_ranges(ranges, surplus)
            self._put_records(pending)
        self._retention_run_hour = run_ns // HOUR_NS
        if is_run_time_due:
            self._run_time_stored_ns = run_ns
        for row in ranges:
            self._ledger.add(row)
        self._ledger.forget(surplus)
        self._received_grown += len(ranges)

    def _not_yet_received(self, pending: Pending) -> dict[tuple[str, bytes, int], HostFrame]:
        new: dict[tuple[str, bytes, int], HostFrame] = {}
        for frame, _ in pending.frames:
            key = frame.key
            if key not in new and not self._ledger.contains(*key):
                new[key] = frame
        return new

    def _put_readings(self, rows: CommitBatch, now_ns: int) -> None:
        for table, arrow in rows.tables():
            self._insert(self._live_tables.table_for(table, now_ns), arrow)

    def _put_ranges(self, ranges: list[SequenceRange], surplus: list[Run]) -> None:
        if self._received_grown > RECEIVED_GROWN_MAX:
            self._compact_received()
        elif surplus:
            self._rewrite_received(surplus)
        self._insert_ranges(ranges)

    def _compact_received(self) -> None:
        """Compact all ranges in memory, and delete the oldest runs of hosts with too many."""
        self._rewrite_received(self._ledger.runs())
        self._received_grown = 0
        self._connection.execute(
            "DELETE FROM received WHERE (host, run_id) IN (SELECT (host, run_id) FROM ("
            "SELECT host, run_id, max(rowid) AS last FROM received GROUP BY host, run_id) QUALIFY "
            f"row_number() OVER (PARTITION BY host ORDER BY last DESC) > {RUNS_PER_HOST_MAX})"
        )

    def _rewrite_received(self, runs: list[Run]) -> None:
        with self._registered(records.table("host:str run_id:bytes", runs)) as name:
            self._connection.execute(
                f"DELETE FROM received USING {name} AS run WHERE received.host = run.host "
                "AND received.run_id = run.run_id"
            )
        self._insert_ranges(self._ledger.rows(runs))

    def _load_runs(self, runs: set[Run]) -> None:
        if missing := self._ledger.missing(runs):
            with self._registered(records.table("host:str run_id:bytes", missing)) as name:
                rows: list[SequenceRange] = self._connection.execute(
                    f"SELECT received.* FROM received SEMI JOIN {name} USING (host, run_id)"
                ).fetchall()
            self._ledger.load(missing, rows)

    def _insert_ranges(self, ranges: list[SequenceRange]) -> None:
        columns = "host:str run_id:bytes first_sequence:int last_sequence:int"
        self._insert("received", records.table(columns, ranges))

    def _put_records(self, pending: Pending) -> None:
        if pending.hosts:
            self._put_hosts(list(pending.hosts.values()))
        if pending.foreign:
            self._insert_new("signals", records.foreign_signals(pending.foreign), ("name",))
        if pending.events:
            self._put_events(records.events(pending.events))
        if pending.scores:
            self._insert("scores", records.scores(pending.scores))
            self._insert("evidence", records.evidence(pending.scores))
        if pending.memories:
            self._put_memories(list(pending.memories.values()))
        if pending.findings:
            self._put_findings(list(pending.findings.values()))
        if pending.own_health:
            self._insert("own_health", records.own_health(pending.own_health))
        if pending.decisions:
            self._on_missing_inputs(
                put_decisions(self._connection, pending.decisions, self._decision_limits)
            )

    def _put_events(self, arrow: Any) -> None:
        # A later revision replaces its row, an earlier one changes nothing.
        with self._registered(arrow) as name:
            self._connection.execute(
                f"DELETE FROM events USING {name} AS new WHERE events.host = new.host "
                "AND events.event_id = new.event_id AND events.revision < new.revision"
            )
        self._insert_new("events", arrow, ("host", "event_id"))

    def _put_hosts(self, hosts: list[HostRecord]) -> None:
        names = [record.host for record in hosts]
        for table in ("hosts", "devices"):
            self._connection.execute(
                f"DELETE FROM {table} WHERE host IN (SELECT unnest(?))", [names]
            )
        self._insert("hosts", records.hosts(hosts))
        self._insert("devices", records.devices(hosts))

    def _put_memories(self, memories: list[HostMemory]) -> None:
        names = [memory.host for memory in memories]
        self._connection.execute(
            "DELETE FROM judge_memory WHERE host IN (SELECT unnest(?))", [names]
        )
        self._insert("judge_memory", records.memories(memories))

    def _put_findings(self, findings: list[Finding]) -> None:
        arrow = records.findings(findings)
        with self._registered(arrow) as name:
            self._connection.execute(
                f"DELETE FROM findings USING {name} AS new WHERE findings.host = new.host "
                "AND findings.name = new.name AND findings.subject = new.subject "
                "AND findings.since = new.since"
            )
        self._insert("findings", arrow)

    def _insert(self, table: str, arrow: Any) -> None:
        if arrow.num_rows:
            with self._registered(arrow) as name:
                self._connection.execute(f"INSERT INTO {table} BY NAME FROM {name}")

    def _insert_new(self, table: str, arrow: Any, key: tuple[str, ...]) -> None:
        """Insert the rows whose *key* is not in *table* yet, each once."""
        same = " AND ".join(f"there.{column} = new.{column}" for column in key)
        with self._registered(arrow) as name:
            self._connection.execute(
                f"INSERT INTO {table} BY NAME SELECT * FROM {name} AS new WHERE NOT EXISTS "
                f"(FROM {table} AS there WHERE {same}) "
                f"QUALIFY row_number() OVER (PARTITION BY {', '.join(key)}) = 1"
            )

    @contextmanager
    def _registered(self, arrow: Any) -> Iterator[str]:
        self._connection.register("new_rows", arrow)
        try:
            yield "new_rows"
        finally:
            self._connection.unregister("new_rows")

    def _apply_retention(self, run_ns: int, now_ns: int) -> None:
        """Delete expired data, once per hour of run time."""
        if self._retention_run_hour == run_ns // HOUR_NS:
            return
        clock = self.retention_clock
        if dropped := self._live_tables.drop_before(clock.cutoff_ns(self._retention_ns)):
            hours = self._retention_ns // HOUR_NS
            log.info("dropped %d live tables older than %d hours (retention_hours)", dropped, hours)
        drop_old(self._connection, clock, now_ns, self._history_days)
        decisions_ns = self._decision_limits.days * DAY_US * 1000
        drop_old_decisions(self._connection, clock.cutoff_ns(decisions_ns))

    def _stored_anchors(self) -> list[Anchor]:
        rows: list[tuple[int, int]] = self._connection.execute(
            "SELECT run_us * 1000, epoch_ns(wall) FROM run_time ORDER BY run_us, wall"
        ).fetchall()
        return [Anchor(*row) for row in rows]

    def _put_run_time(self) -> None:
        self._connection.execute("DELETE FROM run_time")
        rows = [(run // 1000, wall // 1000) for run, wall in self.retention_clock.anchors()]
        self._insert("run_time", records.table("run_us:int wall:time", rows))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
            raise

    def _reopen(self) -> None:
        """Reopen the file and read the durable state, as a failed COMMIT may have succeeded."""
        with self._cursor_lock:
            with suppress(duckdb.Error):
                self._connection.close()
            self._mark_writer.close()
            self._open()

    @contextmanager
    def cursor(self) -> Iterator[Connection]:
        """Yield a cursor for reading in another thread."""
        with self._cursor_lock:
            cursor = self._connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()

    def close(self) -> None:
        """Checkpoint and close the file. Never raises; committed data is durable anyway."""
        with self._cursor_lock:
            try:
                with self._transaction():
                    self._put_run_time()
                self._connection.execute("CHECKPOINT")
                self._connection.close()
            except duckdb.Error as error:
                log.warning("the store was closed without a checkpoint: %s", error)
            self._mark_writer.close()


def _loss_message(path: Path) -> str:
    try:
        return loss_message(path)
    except OSError:  # opening the store reports it
        return ""
