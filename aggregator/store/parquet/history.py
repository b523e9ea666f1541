"""The history thread: moves closed readings out of the live file, and maintains what it moved.

It works in short turns of a few steps of one job each: exports first, then disk space, merging, retention, parts, and a check of
written files.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from ...config import AggregatorConfig
from ...model import Finding
from ..duckdb_file import THREAD_NAME_PREFIX
from ..retention_clock import RetentionClock
from ..store_folder import StoreError, cause
from .export import DamagedSegmentError, TableChangedError, export
from .maintenance import HistoryMaintenance, StoreFindings, is_closed, parts_of
from .segment_store import SegmentStore, StoreAccess
from .views import span_us
from .worker_client import PackerError, PackerHandle, PackerProcess, PackerStarvedError

log = logging.getLogger(__name__)

#: A turn starts no further step after this time.
TURN_SECONDS = 0.25
#: Pause between turns with work left. Long work is in the packer, a process of the lowest priority.
#: A thread of that priority would block all others while it waits for the CPU with Python's lock
#: held.
PAUSE_SECONDS = 0.01
#: If the oldest closed part is older than this, the packer gets normal priority.
BEHIND_SECONDS = 120
#: Delay before a failed job is tried again.
RETRY_SECONDS = 60
#: Period of maintenance.
ROUND_SECONDS = 30
#: Minimum reported deviation of the wall clock between turns, and the finding's duration.
JUMP_SECONDS, JUMP_REPORTED_SECONDS = 3600, 86_400
_FAILURES = (
    OSError, duckdb.Error, pa.ArrowException, StoreError, PackerError, MemoryError, TableChangedError, ValueError,
)  # fmt: skip

_SCANNING = "looking through the folder"
_EXPORTING = "exporting "
_MAKING_ROOM = "making room on the disk"

Job = Iterator[str]


class Failure(NamedTuple):
    """Reason of a failure, and time of the next attempt."""

    reason: str
    retry_us: int


class History:
    """`turn` does a part of the due work; `start` runs turns in a thread, `stop` ends it."""

    def __init__(
        self,
        folder: Path,
        config: AggregatorConfig,
        access: StoreAccess,
        submit_findings: Callable[[Sequence[Finding]], None],
        clock: RetentionClock,
        *,
        free_bytes: Callable[[], tuple[int, int]] | None = None,
        step: Callable[[str], None] = lambda _: None,
        packer: PackerHandle | None = None,
    ) -> None:
        """*free_bytes*: returns (total, free) of the disk. *step* is called with the name of each
        step.

        *packer*: sorts and writes; a process by default.
        """
        self._folder = folder
        self._config = config
        self._clock = clock
        self._free_bytes = free_bytes or (lambda: _disk(folder))
        rows_max = config.history_rows_max
        self._packer = packer or PackerProcess(folder, rows_max, config.history_memory_bytes_max)
        self._segment_store = SegmentStore(
            folder, access, self._packer, rows_max=rows_max, step=step
        )
        self._findings = StoreFindings(submit_findings)
        self._maintenance = HistoryMaintenance(
            folder, config, self._segment_store, self._findings, clock
        )
        self._is_scanned = self._round_over = self._is_starved = False
        self._failures: dict[str, Failure] = {}  # by job, the longest-lasting first
        self._jobs: dict[str, Job] = {}
        self._due: list[tuple[str, str]] = []
        self._current_job = self._export_name = ""
        self._clocks: tuple[int, int] | None = None
        self._jump_reported_until_ns = 0
        self._now_ns = self._room_made_ns = self._round_us = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        #: Closed tables (five minutes each) that are still in the live file.
        self.waiting_parts = 0
        #: Seconds since the oldest of these was closed.
        self.lag_seconds = 0.0
        #: Number and bytes of valid files, by grain.
        self.files_count: dict[str, int] = {}
        self.files_bytes: dict[str, int] = {}
        #: Readings exported since the start, and the time taken.
        self.exported_rows = 0
        self.busy_seconds = 0.0
        #: When the last turn ended or the thread started: ns since 1970; 0 without a thread.
        self.last_turn_ns = 0

    @property
    def failing(self) -> str:
        """Return why history fails, the longest-lasting reason first; "" if nothing fails."""
        reasons = [failure.reason for failure in list(self._failures.values())]
        others = f" (and {len(reasons) - 1} others)" if len(reasons) > 1 else ""
        return f"{reasons[0]}{others}" if reasons else ""

    @property
    def removed_for_room_count(self) -> int:
        """Return the number of files removed because the disk was full."""
        return self._maintenance.removed_for_room_count

    def start(self, wall_ns: Callable[[], int]) -> None:
        """Run turns in a thread until `stop`."""
        self.last_turn_ns = wall_ns()
        self._thread = threading.Thread(
            target=self._run, args=(wall_ns,), name=THREAD_NAME_PREFIX + "history", daemon=True
        )
        self._thread.start()

    def _run(self, wall_ns: Callable[[], int]) -> None:
        pause = self._config.history_seconds
        while not self._stopping.wait(pause):
            for message in self.turn(wall_ns()):
                log.debug("history: %s", message)
            pause = self._config.history_seconds
            if self._jobs:
                pause = min(pause, PAUSE_SECONDS)

    def stop(self, seconds_max: float = 3.0) -> None:
        """End the thread and remove unfinished files. Call this while the store still commits."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(seconds_max / 2)
            if self._thread.is_alive():
                self._packer.kill()
                self._thread.join(seconds_max / 2)
            if self._thread.is_alive():  # the next start removes its files
                return
        self._packer.release()  # first: a packer that hangs must not be asked to discard files
        self._drop_jobs()

    def _drop_jobs(self) -> None:
        for job in self._jobs.values():
            if isinstance(job, Generator):
                job.close()
        self._jobs.clear()

    def turn(self, now_ns: int, seconds_max: float = TURN_SECONDS) -> list[str]:
        """Do a part of the work due at *now_ns*, for about *seconds_max* but at least one step.

        Return messages. Never raises: a failure is logged, reported by `failing`, and retried after
        RETRY_SECONDS.
        """
        begin = time.monotonic()
        self._now_ns = now_ns
        self._segment_store.now_us, self._findings.now_ns = now_ns // 1000, now_ns
        done: list[str] = []
        going = self._run_guarded(self._begin_turn, done)
        while going and not self._stopping.is_set():
            going = self._run_guarded(self._advance, done)
            if time.monotonic() - begin >= seconds_max:
                break
        if not going:
            self._packer.release()
        self.busy_seconds += time.monotonic() - begin
        self.last_turn_ns = now_ns
        return done

    def _run_guarded(self, act: Callable[[list[str]], bool], done: list[str]) -> bool:
        try:
            return act(done)
        except DamagedSegmentError as error:
            self._maintenance.damaged.append((error.segment, error.reason))
            self._drop_jobs()
        except PackerStarvedError:  # retried in the next turn
            self._is_starved = True
            self._drop_jobs()
        except _FAILURES as error:
            if not self._stopping.is_set():
                self._record_failure(error)
        except Exception:
            log.exception("history: internal error; it continues later")
            self._record_failure(RuntimeError("internal error, see the log"))
        return False

    def _record_failure(self, error: Exception) -> None:
        reason = f"{self._current_job}: {cause(error, self._folder)}"
        before = self._failures.get(self._current_job)
        if before is None or before.reason != reason:
            log.warning("history: %s; retrying in %d s", reason, RETRY_SECONDS)
        retry_us = self._segment_store.now_us + RETRY_SECONDS * 1_000_000
        self._failures[self._current_job] = Failure(reason, retry_us)
        self._drop_jobs()
        self._is_scanned = False  # search for leftover files before the next job

    def _begin_turn(self, done: list[str]) -> bool:
        """Determine the due work. False: nothing, or not now."""
        del done
        self._current_job = "looking at what is due"
        self._check_clock()
        if any(self._is_backing_off(name) for name in (self._current_job, _SCANNING)):
            return False
        self._due = self._closed_parts()
        self._failures.pop(self._current_job, None)
        self._clear_dropped_exports()
        self._round_over = (
            abs(self._segment_store.now_us - self._round_us) < ROUND_SECONDS * 1_000_000
        )
        return True

    def _advance(self, done: list[str]) -> bool:
        """Run a step of the first job. False: no work is left."""
        for name, make in (
            (_SCANNING, self._start_scan),
            (_MAKING_ROOM, self._make_room),
            ("exporting", self._next_export),
            ("keeping house", self._start_round),
        ):
            if name not in self._jobs:
                job = make()
                if job is None:
                    continue
                self._jobs[name] = job
            self._current_job = name if name != "exporting" else self._export_name
            message = next(self._jobs[name], None)
            if message is None:
                del self._jobs[name]
                self._failures.pop(self._current_job, None)
            elif message:
                done.append(message)
            return True
        self._is_starved = False
        return False

    def _is_backing_off(self, name: str) -> bool:
        failure = self._failures.get(name)
        if failure is None:
            return False
        wait_us = failure.retry_us - self._segment_store.now_us
        return 0 < wait_us <= RETRY_SECONDS * 1_000_000  # limited, as the clock may be set back

    def _check_clock(self) -> None:
        """Report a jump of the wall clock. Retention does not depend on it."""
        self._clock.observe(self._now_ns)
        now = self._now_ns, self._clock.run_ns
        wall_ns, run_ns = self._clocks or now
        self._clocks = now
        jump_ns = (now[0] - wall_ns) - (now[1] - run_ns)
        if abs(jump_ns) > JUMP_SECONDS * 1_000_000_000:
            self._jump_reported_until_ns = now[1] + JUMP_REPORTED_SECONDS * 1_000_000_000
            self._findings.raise_finding(
                "store.clock_jumped",
                f"the aggregator's clock jumped by {jump_ns / 3.6e12:+.1f} h; nothing is deleted too soon, because "
                "the age of data is the time that the aggregator has run since: check the clock",
                "a day has passed",
            )
        elif now[1] >= self._jump_reported_until_ns:
            self._findings.clear("store.clock_jumped")

    def _start_scan(self) -> Job | None:
        if self._is_scanned and not self._maintenance.damaged:
            return None
        return self._scan()

    def _scan(self) -> Job:
        yield from self._maintenance.scan_folder()
        self._is_scanned = True

    def _make_room(self) -> Job | None:
        chosen = self._maintenance.segments_to_remove(*self._free_bytes())
        if not chosen:
            self._failures.pop(_MAKING_ROOM, None)
        if not chosen or self._room_made_ns == self._now_ns:
            return None
        self._room_made_ns = self._now_ns
        return self._maintenance.make_room(chosen)

    def _closed_parts(self) -> list[tuple[str, str]]:
        """Return the closed (table, part) of the live file, oldest first."""
        with self._segment_store.cursor() as cursor:
            live = parts_of(cursor)
        now_us = self._segment_store.now_us
        closed = sorted((part, table) for table, part in live if is_closed(part, now_us))
        self.waiting_parts = len(closed)
        oldest_us = min((span_us(part)[1] for part, _ in closed), default=now_us)
        self.lag_seconds = max(0.0, (now_us - oldest_us) / 1e6)
        self._packer.is_behind = self._is_starved or self.lag_seconds > BEHIND_SECONDS
        self._maintenance.live = live
        return [(table, part) for part, table in closed]

    def _clear_dropped_exports(self) -> None:
        # A table that was dropped from the live file needs no export.
        waiting = {_export_name(*part) for part in self._due}
        for name in [name for name in self._failures if name.startswith(_EXPORTING)]:
            if name not in waiting:
                del self._failures[name]

    def _next_export(self) -> Job | None:
        while self._due:
            table, part = self._due.pop(0)
            # The list may contain a part whose export took several turns. If a part failed, later
            # parts of the table wait: counters are compared with the previous part, and a late part
            # counts nothing.
            is_live = (table, part) in self._maintenance.live
            if is_live and not self._are_exports_backing_off(table):
                if self._packer.is_low_priority and self._packer.is_behind:
                    self._packer.release()
                    self._drop_jobs()  # includes no export; a merge starts again
                self._export_name = _export_name(table, part)
                return self._exporting(table, part)
        return None

    def _are_exports_backing_off(self, table: str) -> bool:
        names = [name for name in self._failures if name.startswith(_export_name(table, ""))]
        return any(self._is_backing_off(name) for name in names)

    def _exporting(self, table: str, part: str) -> Job:
        yield from export(self._segment_store, table, part)
        self._maintenance.live.discard((table, part))
        self._maintenance.views_due.add(table)
        self.exported_rows = self._segment_store.exported_rows
        self.files_count, self.files_bytes = self._segment_store.totals()
        self.waiting_parts = max(0, self.waiting_parts - 1)

    def _start_round(self) -> Job | None:
        if self._round_over or self._is_backing_off("keeping house"):
            return None
        return self._maintain()

    def _maintain(self) -> Job:
        yield from self._maintenance.run_round(self.failing)
        self.files_count, self.files_bytes = self._segment_store.totals()
        self._round_over, self._round_us = True, self._segment_store.now_us


def _export_name(table: str, part: str) -> str:
    return f"{_EXPORTING}{table} {part}"


def _disk(folder: Path) -> tuple[int, int]:
    usage = shutil.disk_usage(folder)
    return usage.total, usage.free
