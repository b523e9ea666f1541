"""One commit: everything that waits, in one transaction, each frame exactly once."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from ..history.views import put_rollup_views_right
from ..refusals import ROOM_SECONDS, TooMuch
from ..verdicts import Finding
from . import records, retention
from .folder import sync_folder
from .header import Header
from .hours import HOUR_NS, Hours, hour_name
from .ledger import RUNS_PER_HOST_MAX, Ledger, Range, Run, ranges_of
from .mark import Marker, forget, lost, size_of
from .pending import Pending
from .records import HostRecord
from .rows import Batch, HostFrame, batch
from .scripts import run_scripts
from .storefile import (
    BEFORE_SWAP,
    StoreError,
    open_store,
    ops_script,
    script,
    sweep,
    wal_of,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

#: The table `received` is rewritten as the fewest rows once it has grown by so many.
RECEIVED_GROWN_MAX = 100_000

#: A checkpoint compresses anew what it finds of each table, so that one after each commit costs twice what the
#: commits do. With a longer WAL they are fewer; to read it again at a start takes about a second of CPU.
CHECKPOINT_WAL = "128MB"
#: While a backup copies the file, its WAL may grow to this (the service ends the backup before).
HELD_WAL_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Held:
    """A file that no checkpoint changes for now: up to `wal_bytes` of its WAL it is as of one moment."""

    path: Path
    header: Header | None
    wal_bytes: int


class Writer:
    """The only holder of the store's file. Its methods but `cursor` are the writer thread's."""

    def __init__(self, path: Path, *, retention_hours: int, history_days: int) -> None:
        """Open the store at *path*. Raises StoreError."""
        self._path = path
        self._retention_ns = retention_hours * HOUR_NS
        self._history_days = history_days
        self._reading = threading.Lock()
        self._doubtful = False
        self._threshold = ""
        #: What the file has lost since the last receipt, in words; "" when nothing is known to be gone.
        self.lost_words = _lost(path)
        self._marker = Marker(path)
        sweep(path.parent)
        self._open()

    def _open(self) -> None:
        self._connection = open_store(self._path)
        try:
            self._prepare()
        except BaseException:
            with suppress(duckdb.Error):
                self._connection.close()
            raise

    def _prepare(self) -> None:
        self._connection.execute(f"SET checkpoint_threshold = '{CHECKPOINT_WAL}'")
        self._hour = ""
        self._hours = Hours(self._connection, self._path.parent)
        with self._transaction():
            self._hours.open()
            put_rollup_views_right(self._connection, self._path.parent)
            scripts = script("live.sql"), ops_script(), script("history.sql")
            run_scripts(self._connection, scripts)
            self._put_signals()
        self._load_ledger()

    def _put_signals(self) -> None:
        self._connection.execute("DELETE FROM signals WHERE known")
        self._insert("signals", records.signals())

    def _load_ledger(self) -> None:
        """Take into memory the runs that hosts have now, and those that take more rows than they need."""
        rows: list[Range] = self._connection.execute(
            "FROM received SEMI JOIN (SELECT host, run_id FROM hosts UNION SELECT host, run_id "
            "FROM received GROUP BY host, run_id HAVING count(*) > 1) USING (host, run_id)"
        ).fetchall()
        self._ledger = Ledger(rows)
        self._received_grown = 0
        if len(rows) > len(self._ledger.rows()):
            with self._transaction():
                self._compact_received()

    def mark(self, now_ns: int) -> None:
        """Note that receipts are given for all that was committed until now. Never raises."""
        self._marker.write(now_ns)

    def hold(self) -> Held:
        """Let no checkpoint change the file until `release`; return where it and its WAL stand."""
        if self._threshold:
            words = "a backup holds the store already; end that one, or wait for it"
            raise TooMuch(words, ROOM_SECONDS)
        ((threshold,),) = self._connection.execute(
            "SELECT current_setting('checkpoint_threshold')"
        ).fetchall()
        self._connection.execute(f"SET checkpoint_threshold = '{HELD_WAL_BYTES}B'")
        self._threshold = str(threshold)
        return Held(self._path, self._marker.header(), size_of(wal_of(self._path)))

    def release(self) -> None:
        """End `hold`; the next commit folds in what came meanwhile."""
        threshold, self._threshold = self._threshold, ""
        if threshold:
            self._connection.execute(f"SET checkpoint_threshold = '{threshold}'")

    def swap(self, new: Path) -> None:
        """Put the closed, whole file *new* in the place of ours. Raises duckdb.Error, OSError or StoreError.

        After a failure, also to open the new one, the old one is there.
        """
        self._doubtful = True
        before = self._path.with_name(BEFORE_SWAP)
        with self._reading:
            self._connection.execute("CHECKPOINT")
            self._connection.close()
            self._marker.close()
            if size_of(wal_of(self._path)):
                raise StoreError(f"{wal_of(self._path)} was not folded in; nothing was exchanged")
            forget(self._path.parent)
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
        self._doubtful = False

    def commit(self, pending: Pending, now_ns: int) -> None:
        """Make all of *pending* durable, or nothing of it.

        Raises duckdb.Error, OSError or StoreError; the next call then begins by reading the file anew.
        """
        if self._doubtful:
            self._reopen()
        self._doubtful = True
        self._commit(pending, now_ns)
        self._doubtful = False

    def transact(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run *work* in a transaction; what it does to the hours is seen from then on.

        Raises what *work* raises, duckdb.Error, OSError or StoreError; then nothing of it stays.
        """
        if self._doubtful:
            self._reopen()
        self._doubtful = True
        with self._transaction():
            result = work(self._connection)
            self._hours.open()
        self._doubtful = False
        return result

    def _commit(self, pending: Pending, now_ns: int) -> None:
        self._take_runs({frame.key[:2] for frame, _ in pending.frames})
        new = self._not_yet_received(pending)
        rows = batch(new.values())
        ranges = ranges_of(new)
        surplus = self._ledger.surplus()
        with self._transaction():
            self._keep_house(now_ns)
            self._put_readings(rows, now_ns)
            self._put_ranges(ranges, surplus)
            self._put_records(pending)
        for row in ranges:
            self._ledger.add(row)
        self._ledger.forget(surplus)
        self._received_grown += len(ranges)

    def _not_yet_received(self, pending: Pending) -> dict[tuple[str, bytes, int], HostFrame]:
        new: dict[tuple[str, bytes, int], HostFrame] = {}
        for frame, _ in pending.frames:
            key = frame.key
            if key not in new and not self._ledger.holds(*key):
                new[key] = frame
        return new

    def _put_readings(self, rows: Batch, now_ns: int) -> None:
        for table, arrow in rows.tables():
            self._insert(self._hours.table_for(table, now_ns), arrow)

    def _put_ranges(self, ranges: list[Range], surplus: list[Run]) -> None:
        """Note *ranges*; of the runs that leave memory the table keeps the fewest rows."""
        if self._received_grown > RECEIVED_GROWN_MAX:
            self._compact_received()
        elif surplus:
            self._rewrite_received(surplus)
        self._insert_ranges(ranges)

    def _compact_received(self) -> None:
        """Write what is in memory as the fewest rows, and let the oldest runs go of a host that had too many."""
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

    def _take_runs(self, runs: set[Run]) -> None:
        """Take the runs into memory that are not there, so that their frames are known."""
        if lacking := self._ledger.lacking(runs):
            with self._registered(records.table("host:str run_id:bytes", lacking)) as name:
                rows: list[Range] = self._connection.execute(
                    f"SELECT received.* FROM received SEMI JOIN {name} USING (host, run_id)"
                ).fetchall()
            self._ledger.take(lacking, rows)

    def _insert_ranges(self, ranges: list[Range]) -> None:
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
        if pending.findings:
            self._put_findings(list(pending.findings.values()))
        if pending.own:
            self._insert("own_health", records.own_health(pending.own))

    def _put_events(self, arrow: Any) -> None:
        """Store each event once: a later revision replaces its row, an earlier one changes nothing."""
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

    def _put_findings(self, findings: list[Finding]) -> None:
        for one in findings:
            self._connection.execute(
                "DELETE FROM findings WHERE host = ? AND name = ? AND subject = ? "
                "AND since = make_timestamp(?)",
                [one.host, one.name, one.subject, one.since_ns // 1000],
            )
        self._insert("findings", records.findings(findings))

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

    def _keep_house(self, now_ns: int) -> None:
        """Once an hour: drop what is past its time."""
        if self._hour == hour_name(now_ns):
            return
        self._hour = hour_name(now_ns)
        if dropped := self._hours.drop_before(now_ns - self._retention_ns):
            hours = self._retention_ns // HOUR_NS
            log.info("dropped %d live tables older than %d hours (retention_hours)", dropped, hours)
        retention.drop_old(self._connection, now_ns, self._history_days)

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
        """Open anew and read what is durable: only then is known whether a failed COMMIT was."""
        with self._reading:
            with suppress(duckdb.Error):
                self._connection.close()
            self._marker.close()
            self._open()

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a cursor for reading from another thread, beside the writer."""
        with self._reading:
            cursor = self._connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()

    def close(self) -> None:
        """Fold the WAL into the file and close it. Never raises; what was committed is durable anyway."""
        with self._reading:
            try:
                self._connection.execute("CHECKPOINT")
                self._connection.close()
            except duckdb.Error as error:
                log.warning("the store was closed without a checkpoint: %s", error)
            self._marker.close()


def _lost(path: Path) -> str:
    try:
        return lost(path)
    except OSError:  # who opens it next says why
        return ""
