"""One commit: writes everything queued in one transaction, each frame exactly once."""

from __future__ import annotations

import logging
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb

from ..durable_file import sync_folder
from ..errors import CAPACITY_RETRY_SECONDS, ResourceExhausted
from ..hazard.features import OBSERVED_NAMES
from ..model import Finding
from . import rows as records
from .decision_records import DecisionLimits
from .decisions import drop_old_decisions, put_decisions
from .duckdb_file import (
    BEFORE_SWAP,
    Header,
    MarkWriter,
    StoreError,
    loss_message,
    open_store,
    ops_script,
    remove_leftovers,
    remove_mark,
    run_scripts,
    script,
    size_of,
    wal_of,
)
from .live_tables import HOUR_NS, LiveTables
from .parquet.views import repair_rollup_views
from .queue import Pending
from .retention_clock import Anchor, RetentionClock
from .rows import CommitBatch, HostFrame, HostMemory, HostRecord, batch
from .snapshot_file import ADVICE_DAYS, OUTCOMES_DAYS

# ----------------------------------------------------------------------
# Which frames are durable: (host, run id) -> sequences, as ranges. A resend must never double.

#: Ranges remembered per run. Beyond, the narrowest gap is closed, so that a host that skips on
#: purpose costs no memory; a frame that would have come into that gap counts as received.
RANGES_MAX = 4096

#: Runs of a host in memory: it sends one, and for a moment those before. A new spool, as of a host that
#: boots from the network, is a new run; so is each registration of a host that means harm.
RUNS_IN_MEMORY = 2
#: Runs of a host on the ledger. Its spool is of one run: the others resend nothing, but for a disk that is put
#: back. Of more the oldest are forgotten, so that no host, whatever it says, fills the ledger.
RUNS_PER_HOST_MAX = 1000
#: How often the run time is stored. A kill loses at most one period of run time, and data stays for one period longer.
RUN_TIME_STORED_NS = 60_000_000_000

#: Host and run id.
Run = tuple[str, bytes]
#: (host, run id, first sequence, last sequence), inclusive: a row of the table `received`.
SequenceRange = tuple[str, bytes, int, int]


class RangeSet:
    """A set of whole numbers as sorted, disjoint, non-touching ranges."""

    __slots__ = ("firsts", "lasts")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.firsts, number) - 1
        return at >= 0 and number <= self.lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.firsts, self.lasts, strict=True))

    def add(self, first: int, last: int) -> None:
        """Add first..last, inclusive. Raises ValueError when last < first."""
        if last < first:
            raise ValueError(f"range {first}..{last} ends before it begins")
        low = bisect_left(self.lasts, first - 1)
        high = bisect_right(self.firsts, last + 1)
        if low < high:
            first = min(first, self.firsts[low])
            last = max(last, self.lasts[high - 1])
        self.firsts[low:high] = [first]
        self.lasts[low:high] = [last]
        if len(self.firsts) > RANGES_MAX:
            self._close_narrowest()

    def _close_narrowest(self) -> None:
        gaps = [after - before for before, after in zip(self.lasts, self.firsts[1:], strict=False)]
        at = gaps.index(min(gaps))
        del self.lasts[at], self.firsts[at + 1]


class Ledger:
    """What has been received of the runs that send, in memory; the table `received` holds it of all.

    Owned by the writer thread. `add` only after the commit that holds both the rows and the ranges.
    A run that is not in memory is taken from the table before its frames are asked for (`missing`, `load`).
    """

    def __init__(self, rows: Iterable[SequenceRange] = ()) -> None:
        self._runs: dict[str, dict[bytes, RangeSet]] = {}  # of each host the run last taken last
        self._hosts_to_trim: set[str] = set()  # hosts that may have too many runs in memory
        for row in rows:
            self.add(row)
        self._hosts_to_trim.update(self._runs)

    def add(self, row: SequenceRange) -> None:
        """Take a range as received."""
        host, run_id, first, last = row
        self._runs.setdefault(host, {}).setdefault(run_id, RangeSet()).add(first, last)

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Return those of *runs* that are not in memory."""
        return [(host, run) for host, run in runs if run not in self._runs.get(host, ())]

    def load(self, runs: Iterable[Run], rows: Iterable[SequenceRange]) -> None:
        """Take *runs* into memory, with all *rows* that the table has of them."""
        for host, run_id in runs:
            self._runs.setdefault(host, {})[run_id] = RangeSet()
            self._hosts_to_trim.add(host)
        for row in rows:
            self.add(row)

    def surplus(self) -> list[Run]:
        """Return the runs that need no longer be in memory: of each host those before its last few."""
        return [
            (host, run)
            for host in self._hosts_to_trim
            for run in list(self._runs[host])[:-RUNS_IN_MEMORY]
        ]

    def forget(self, runs: Iterable[Run]) -> None:
        """Leave *runs*, which `surplus` named, to the table."""
        for host, run in runs:
            self._runs[host].pop(run, None)
        self._hosts_to_trim.clear()

    def contains(self, host: str, run_id: bytes, sequence: int) -> bool:
        """Return whether the frame is durable; its run must be in memory."""
        run = self._runs.get(host, {}).get(run_id)
        return run is not None and sequence in run

    def runs(self) -> list[Run]:
        """Return the runs in memory."""
        return [(host, run) for host, runs in self._runs.items() for run in runs]

    def rows(self, chosen: Iterable[Run] | None = None) -> list[SequenceRange]:
        """Return all of *chosen* runs, or of all in memory, as the fewest rows."""
        return [
            (host, run, first, last)
            for host, run in (self.runs() if chosen is None else chosen)
            for first, last in self._runs[host][run]
        ]


def ranges_of(keys: Iterable[tuple[str, bytes, int]]) -> list[SequenceRange]:
    """Return frames (host, run id, sequence) as the fewest ranges."""
    runs: dict[tuple[str, bytes], list[int]] = {}
    for host, run_id, sequence in keys:
        runs.setdefault((host, run_id), []).append(sequence)
    found = ((host, run, range_set(sequences)) for (host, run), sequences in runs.items())
    return [(host, run, first, last) for host, run, spans in found for first, last in spans]


def range_set(sequences: Iterable[int]) -> RangeSet:
    """Return sequences, in any order, as ranges."""
    ordered = sorted(sequences)
    spans, begin = RangeSet(), 0
    for at, sequence in enumerate(ordered):
        if at + 1 == len(ordered) or ordered[at + 1] > sequence + 1:
            spans.add(ordered[begin], sequence)
            begin = at + 1
    return spans


# ----------------------------------------------------------------------
# What was measured of each host at the beginning of each day, kept when the scores that bear it are
# let go.

DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
#: Rows are kept, and looked for among scores, for this long.
HOST_DAYS_RETAINED = 400
#: Fingerprints of runs: a year, and some.
RUNS_RETAINED_DAYS = 400

#: Days of scores from the newest day that has rows: scores that waited for a full disk may be of that one. A day of a wall
#: clock that was ahead does not count.
_DAYS_OF_SCORES = f"""
SELECT DISTINCT epoch_us(time) // {DAY_US} AS day FROM scores
WHERE time >= (
    SELECT greatest(coalesce(max(day)::TIMESTAMP, make_timestamp(0)), make_timestamp($end - {HOST_DAYS_RETAINED * DAY_US}))
    FROM host_days WHERE day < make_timestamp($end)::DATE
) AND time < make_timestamp($end)
ORDER BY day
"""
#: One day's, each host's first of the day. Who has its row is left out before any score's features are read.
_FILL_HOST_DAYS = f"""
INSERT INTO host_days BY NAME
WITH lacking AS (
    SELECT host, min(time) AS time FROM scores
    WHERE time >= make_timestamp($begin) AND time < make_timestamp($end) AND hazard_model IS NOT NULL
        AND host NOT IN (SELECT host FROM host_days WHERE day = make_timestamp($begin)::DATE)
    GROUP BY host
)
SELECT
    host, time::DATE AS day, time,
    {", ".join(f"any_value(features['{name}']) AS {name}" for name in OBSERVED_NAMES)}
FROM scores JOIN lacking USING (host, time)
WHERE time >= make_timestamp($begin) AND time < make_timestamp($end)
GROUP BY host, time
"""


def fill_host_days(connection: Any, now_us: int) -> None:
    """Add the rows of `host_days` that scores have and it lacks, of days whose first hour is over. Again, it adds nothing.

    Raises duckdb.Error.
    """
    end_us = ((now_us - HOUR_US) // DAY_US + 1) * DAY_US
    for (day,) in connection.execute(_DAYS_OF_SCORES, {"end": end_us}).fetchall():
        span = {"begin": day * DAY_US, "end": day * DAY_US + HOUR_US}
        connection.execute(_FILL_HOST_DAYS, span)


# ----------------------------------------------------------------------
# Which events an open finding is about: a restart reads them whatever their age, and history keeps
# them.

#: A finding begins when its event is judged, this long after it came at the most: a code waits for its companions.
_JUDGED_WITHIN = "INTERVAL 1 MINUTE"

#: Selects their `rowid`. By host, signal and device (`scoring/evaluate.py` puts a finding's subject together; the kernel
#: names a GPU by its PCI address), and since the finding began: what came before that is over. All codes of the device: one
#: may excuse another.
OPEN_FINDING_EVENTS = f"""
WITH open_findings AS (
    SELECT host, split_part(subject, ' ', 1) AS device, split_part(subject, ' ', 2) AS name, min(since) AS since
    FROM findings WHERE cleared IS NULL GROUP BY ALL
),
spelled AS (
    FROM open_findings
    UNION
    SELECT f.host, d.attributes['pci_address'], f.name, f.since
    FROM open_findings AS f JOIN devices AS d ON d.host = f.host AND d.device = f.device AND d.kind = 'gpu'
)
SELECT e.rowid
FROM events AS e
SEMI JOIN spelled AS s
    ON s.host = e.host AND s.name = e.name AND lower(s.device) = lower(coalesce(nullif(e.device, ''), 'host'))
    AND s.since <= e.received + {_JUDGED_WITHIN}
"""


# ----------------------------------------------------------------------
# What is kept for days rather than hours: of which tables, for how long, and what of them for
# longer.


class _RetentionRule(NamedTuple):
    """A table, by which column what it has is known to be old, and for how many days that is kept."""

    table: str
    column: str
    days: int = 0  # 0: `history_days`
    days_min: int = 0  # where `history_days` is fewer


_RETENTION_RULES: Iterable[_RetentionRule] = (
    _RetentionRule("scores", "time"),
    _RetentionRule("evidence", "time"),
    _RetentionRule("events", "received"),
    _RetentionRule("findings", "cleared"),
    _RetentionRule("past_findings", "cleared", days=400),
    _RetentionRule("host_days", "time", days=HOST_DAYS_RETAINED),
    _RetentionRule("judge_memory", "time", days=1),
    _RetentionRule("own_health", "time"),
    _RetentionRule("advice_decisions", "time", days_min=ADVICE_DAYS),
    _RetentionRule("advisories", "time", days_min=OUTCOMES_DAYS),
    _RetentionRule("runs", "time", days=RUNS_RETAINED_DAYS),
    _RetentionRule("job_verdicts", "time", days=RUNS_RETAINED_DAYS),
    _RetentionRule("outcomes", "time", days=OUTCOMES_DAYS),
    _RetentionRule("recoveries", "time", days=OUTCOMES_DAYS),
)
#: And the rows that are kept for longer, by `rowid`: after a restart, an active fault is known by its event.
_RETAINED_LONGER = {"events": OPEN_FINDING_EVENTS}
#: What findings leave behind.
_COPY_PAST_FINDINGS = (
    "INSERT INTO past_findings SELECT host, name, since, cleared FROM findings "
    "WHERE cleared < make_timestamp(?)"
)


def drop_old(connection: Any, clock: RetentionClock, now_ns: int, history_days: int) -> None:
    """Delete expired rows, and keep those used for training: times of findings, and each day's measurements."""

    def cutoff_us(days: int) -> int:
        return clock.cutoff_ns(days * DAY_US * 1000) // 1000

    # A kill between the two leaves a finding in both; who reads them takes what overlaps as one.
    connection.execute(_COPY_PAST_FINDINGS, [cutoff_us(history_days)])
    fill_host_days(connection, now_ns // 1000)
    for one in _RETENTION_RULES:
        days = one.days or max(one.days_min, history_days)
        exception = (
            f" AND rowid NOT IN ({_RETAINED_LONGER[one.table]})"
            if one.table in _RETAINED_LONGER
            else ""
        )
        connection.execute(
            f"DELETE FROM {one.table} WHERE {one.column} < make_timestamp(?){exception}",
            [cutoff_us(days)],
        )


log = logging.getLogger(__name__)

T = TypeVar("T")

#: The table `received` is rewritten as the fewest rows once it has grown by this many.
RECEIVED_GROWN_MAX = 100_000

#: A checkpoint compresses again what it finds of each table, so that one after each commit costs twice what the
#: commits do. With a longer WAL they are fewer; to read it again at a start takes about a second of CPU.
CHECKPOINT_WAL = "128MB"
#: Of a small fleet, whose commits have fewer rows than this: what waits for a checkpoint is the largest part of its memory.
SMALL_COMMIT_ROWS, SMALL_CHECKPOINT_WAL = 32_768, "64MB"
#: While a backup copies the file, its WAL may grow to this (the service ends the backup before).
PINNED_WAL_BYTES_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file that no checkpoint changes for now: up to `wal_bytes` of its WAL it is as of one moment."""

    path: Path
    header: Header | None
    wal_bytes: int


class Writer:
    """The only holder of the store's file. Its methods but `cursor` are the writer thread's."""

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
        """Open the store at *path*. *on_missing_inputs*: is called with the inputs of decisions that the store lacks. Raises StoreError."""
        self._path = path
        self._retention_ns = retention_hours * HOUR_NS
        self._history_days = history_days
        self._decision_limits, self._on_missing_inputs = decision_limits, on_missing_inputs
        self._cursor_lock = threading.Lock()
        self._needs_reopen = False
        self._saved_threshold = ""
        #: What the file has lost since the last receipt, as text; "" when nothing is known to be gone.
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
        """Let DuckDB checkpoint the WAL once it reaches the size *wal*; not while the store is held."""
        if not self._saved_threshold and wal != self._checkpoint_wal:
            self._connection.execute(f"SET checkpoint_threshold = '{wal}'")
            self._checkpoint_wal = wal

    def _put_signals(self) -> None:
        self._connection.execute("DELETE FROM signals WHERE known")
        self._insert("signals", records.signals())

    def _load_ledger(self) -> None:
        """Take into memory the runs that hosts have now, and those that take more rows than they need."""
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
        """Note that receipts are given for all that was committed until now. Never raises."""
        self._mark_writer.write(now_ns)

    def hold_checkpoints(self) -> PinnedFile:
        """Let no checkpoint change the file until `resume_checkpoints`; return where it and its WAL stand."""
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
        """End `hold_checkpoints`; the next commit folds in what came meanwhile."""
        threshold, self._saved_threshold = self._saved_threshold, ""
        if threshold:
            self._connection.execute(f"SET checkpoint_threshold = '{threshold}'")

    def swap(self, new: Path) -> None:
        """Put the closed, whole file *new* in the place of ours. Raises duckdb.Error, OSError or StoreError.

        After a failure, also to open the new one, the old one is there.
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
        """Make all of *pending* durable, or nothing of it.

        Raises duckdb.Error, OSError or StoreError; the next call then begins by reading the file again.
        """
        if self._needs_reopen:
            self._reopen()
        self._needs_reopen = True
        self._commit(pending, now_ns)
        self._needs_reopen = False

    def transact(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run *work* in a transaction; what it does to the hours is seen from then on.

        Raises what *work* raises, duckdb.Error, OSError or StoreError; then nothing of it stays.
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

    def _load_runs(self, runs: set[Run]) -> None:
        """Take the runs into memory that are not there, so that their frames are known."""
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

    def _put_memories(self, memories: list[HostMemory]) -> None:
        names = [one.host for one in memories]
        self._connection.execute(
            "DELETE FROM judge_memory WHERE host IN (SELECT unnest(?))", [names]
        )
        self._insert("judge_memory", records.memories(memories))

    def _put_findings(self, findings: list[Finding]) -> None:
        """Store each finding once: it replaces its row of earlier."""
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
        """Drop expired data, once per hour of run time."""
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
        """Open again and read what is durable: only then is known whether a failed COMMIT was."""
        with self._cursor_lock:
            with suppress(duckdb.Error):
                self._connection.close()
            self._mark_writer.close()
            self._open()

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a cursor for reading from another thread, beside the writer."""
        with self._cursor_lock:
            cursor = self._connection.cursor()
            try:
                yield cursor
            finally:
                cursor.close()

    def close(self) -> None:
        """Fold the WAL into the file and close it. Never raises; what was committed is durable anyway."""
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
    except OSError:  # who opens it next says why
        return ""
