"""Maintenance of the history folder: leftovers, disk space, merging, retention, parts, findings.

Each job is a generator that yields between its steps, with a message when it did something; `history.py` runs the steps.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import duckdb

from ...config import AggregatorConfig
from ...model import AGGREGATOR_HOST, Finding
from ..retention_clock import RetentionClock
from . import export, segment_files, views
from .export import DamagedSegmentError
from .folder_cleanup import compare_folder
from .retention import (
    ROOM_RATIO,
    DiskFullness,
    RetentionLimit,
    choose_for_room,
    expired,
    free_bytes_target,
)
from .segment_files import GRACE_SECONDS, HOUR, MINUTE, RAW, ParquetSegment
from .segment_store import SegmentStore
from .views import span_us

log = logging.getLogger(__name__)
#: A part is closed this long after its end: a commit that began before has ended by then.
CLOSED_SECONDS = 5
#: A part that begins later than this from now comes from a wrong clock: it is closed.
AHEAD_SECONDS = 3600
#: Bytes of files that each round rereads and verifies.
REREAD_BYTES = 16 << 20
#: Files marked as gone, and hosts examined, per transaction.
FILES_AT_ONCE, HOSTS_AT_ONCE = 200, 200
_LIVE_NAME = re.compile(r"(\w+?)__(\d{12}|\d{10})")


class StoreFindings:
    """The store's findings, reported when they begin and end. The owner sets `now_ns`."""

    def __init__(self, submit: Callable[[Sequence[Finding]], None]) -> None:
        self.now_ns = 0
        self._submit = submit
        self._open: dict[tuple[str, str], Finding] = {}

    def raise_finding(self, name: str, message: str, clears_when: str, subject: str = "") -> None:
        """Report a finding unless it is open; *message* stays that of the first report."""
        if (name, subject) not in self._open:
            finding = Finding(
                AGGREGATOR_HOST, name, subject, message, self.now_ns, clears_when=clears_when
            )
            self._open[name, subject] = finding
            self._submit([finding])

    def clear(self, name: str, subject: str = "") -> None:
        """Report the end of a finding, if it is open."""
        finding = self._open.pop((name, subject), None)
        if finding is not None:
            self._submit([replace(finding, cleared_ns=self.now_ns)])


def gigabytes(count: int) -> str:
    """Return bytes as a text in GB."""
    return f"{count / 1e9:.3g} GB"


Job = Iterator[str]


class HistoryMaintenance:
    """Jobs of the history thread. Use it in one thread."""

    def __init__(
        self,
        folder: Path,
        config: AggregatorConfig,
        segment_store: SegmentStore,
        findings: StoreFindings,
        clock: RetentionClock,
    ) -> None:
        self._folder = folder
        self._config = config
        self.segment_store = segment_store
        self.findings = findings
        self._clock = clock
        self._limits = {
            RAW: RetentionLimit(config.segments_hours * 3600, config.segments_bytes_max),
            MINUTE: RetentionLimit(config.rollups_1m_days * 86_400, config.rollups_1m_bytes_max),
            HOUR: RetentionLimit(config.rollups_1h_days * 86_400, config.rollups_1h_bytes_max),
        }
        self._fullness = DiskFullness()
        self._known_registrations: dict[str, int] = {}
        self._unread: list[str] = []
        self._has_scanned = False
        #: Damaged files with a reason; the next scan sets them aside.
        self.damaged: list[tuple[ParquetSegment, str]] = []
        #: Tables whose rollup views must be recreated.
        self.views_due: set[str] = set()
        #: (table, part) in the live file.
        self.live: set[tuple[str, str]] = set()
        self._unmerged: set[tuple[str, str, str]] = set()  # incomplete merges, tried last
        #: Files removed because the disk was full.
        self.removed_for_room_count = 0

    def scan_folder(self) -> Job:
        """Load the recorded files, and repair the folder after a crash."""
        reads = segment_files.recorded_segments, segment_files.gone_segments, parts_of
        recorded, gone, live = self.segment_store.transact(lambda c: [read(c) for read in reads])
        self.segment_store.recorded = {segment.path: segment for segment in recorded}
        yield ""
        cleanup = compare_folder(self._folder, recorded, gone, live)
        for path in cleanup.unlink:
            segment_files.unlink(self._folder, path)
        if cleanup.unlink:
            yield f"removed {len(cleanup.unlink)} files that were not finished or are elsewhere whole"
        for path in cleanup.aside:
            yield self._move_unrecorded(path)
        yield from self._set_aside_damaged(() if self._has_scanned else recorded)
        for table in sorted({segment.table for segment in self.segment_store.recorded.values()}):
            self.segment_store.publish(table)
            self.views_due.add(table)
        self._has_scanned = True

    def _set_aside_damaged(self, found: Sequence[ParquetSegment]) -> Job:
        """Set aside the damaged files, and those of *found* that cannot be opened."""
        for segment in found:
            if reason := segment_files.fault(self._folder, segment):
                self.damaged.append((segment, reason))
            yield ""
        while self.damaged:
            segment, reason = self.damaged.pop()
            if segment.path in self.segment_store.recorded:
                yield self._set_aside(segment, reason)

    def _move_unrecorded(self, path: str) -> str:
        new_path = self.segment_store.move_aside(path)
        message = f"{path} is in the data folder but not in the store's list; it is now {new_path}"
        self.findings.raise_finding(
            "store.file_unrecorded", message, "somebody has checked it; reported once", path
        )
        log.warning("history: %s", message)
        return message

    def _set_aside(self, segment: ParquetSegment, reason: str) -> str:
        new_path = self.segment_store.set_aside(segment)
        self.views_due.add(segment.table)
        where = f"it is now {new_path}, and " if new_path else ""
        message = (
            f"{segment.path} {reason}: {where}{segment.rows} rows of {segment.table} received "
            f"{segment.bucket} are missing from queries; the rest is unaffected"
        )
        self.findings.raise_finding(
            "store.segment_damaged", message, "the file is restored; reported once", segment.path
        )
        log.error("history: %s", message)
        return message

    def segments_to_remove(self, total_bytes: int, free_bytes: int) -> list[ParquetSegment]:
        """Return files to remove because the disk is almost full; raise or clear the finding."""
        target_bytes = free_bytes_target(
            total_bytes, self._config.disk_free_bytes_min, self._config.disk_free_share_min
        )
        bytes_wanted = self._fullness.bytes_to_free(free_bytes, target_bytes)
        if not self._fullness.is_low:
            self.findings.clear("store.disk_almost_full")
            return []
        self.findings.raise_finding(
            "store.disk_almost_full",
            f"the disk of {self._folder} has {gigabytes(free_bytes)} free, "
            f"{gigabytes(target_bytes)} must stay free: the oldest readings in Parquet are being "
            "removed; add space, or lower segments_hours",
            f"{gigabytes(int(target_bytes * ROOM_RATIO))} are free",
        )
        recorded = list(self.segment_store.recorded.values())
        return choose_for_room(recorded, bytes_wanted, free_bytes / max(1, target_bytes))

    def make_room(self, chosen: list[ParquetSegment]) -> Job:
        """Remove files at once: their readers get an error."""
        for batch in _batches(chosen):
            self._retire(batch)
            self.segment_store.drop([segment.path for segment in batch])
            self.removed_for_room_count += len(batch)
            message = (
                f"removed {len(batch)} files because the disk is almost full, {batch[0].path} first"
            )
            log.warning("history: %s", message)
            yield message

    def run_round(self, failing: str) -> Job:
        """Run all maintenance once; a failed merge does not prevent the rest.

        Raises OSError, duckdb.Error, PackerError, DamagedSegmentError.
        """
        merge_error: Exception | None = None
        try:
            yield from self._merge_due()
        except DamagedSegmentError:
            raise
        except Exception as error:  # noqa: BLE001 - raised after the rest
            merge_error = error
        yield from self._expire()
        yield from self._drop_live(failing)
        yield from self._unlink_gone()
        yield from self._remake_views()
        yield from self._track_parts()
        yield from self._reread_files()
        if merge_error is not None:
            raise merge_error

    def _merge_due(self) -> Job:
        due = {
            (merge.table, merge.grain, merge.bucket): merge
            for merge in export.due_merges(
                self.segment_store.recorded.values(), self.live, self.segment_store.now_us
            )
        }
        self._unmerged &= due.keys()
        for key in sorted(due, key=lambda key: key in self._unmerged):  # otherwise in their order
            self._unmerged.add(key)
            yield from export.merge(self.segment_store, due[key])
            self._unmerged.discard(key)
            self.views_due.add(due[key].table)

    def _expire(self) -> Job:
        for grain, limit in self._limits.items():
            before_us = self._clock.cutoff_ns(limit.seconds * 1_000_000_000) // 1000
            for batch in _batches(
                expired(self.segment_store.of_grain(grain), before_us, limit.bytes)
            ):
                self._retire(batch)
                yield f"let {len(batch)} files of {grain} go, {batch[0].path} first"

    def _retire(self, old: list[ParquetSegment]) -> None:
        """Mark files as gone, and publish that."""
        now_us = self.segment_store.now_us
        self.segment_store.transact(
            lambda connection: segment_files.mark_gone(connection, old, now_us)
        )
        for segment in old:
            self.segment_store.recorded.pop(segment.path, None)
        self.segment_store.step("retired")
        for table in sorted({segment.table for segment in old}):
            self.segment_store.publish(table)
            self.views_due.add(table)

    def _drop_live(self, failing: str) -> Job:
        """Drop the oldest closed part if the live file is too large because exports fail."""
        used = self.segment_store.rows(
            "SELECT used_blocks * block_size FROM pragma_database_size()"
        )[0][0]
        closed = sorted(part for _, part in self.live if is_closed(part, self.segment_store.now_us))
        if used <= self._config.live_bytes_max or not closed:
            self.findings.clear("store.live_full")
            return
        names = [f'hours."{t}__{p}"' for t, p in self.live if p == closed[0]]
        self.findings.raise_finding(
            "store.live_full",
            f"the live file uses {gigabytes(used)}, at most {gigabytes(self._config.live_bytes_max)}: "
            f"readings of {closed[0]} and after are dropped, because they could not be exported "
            f"({failing or 'history does not keep up'})",
            "it uses less",
        )
        self.segment_store.transact(lambda c: [c.execute(f"DROP TABLE {name}") for name in names])
        yield f"dropped {len(names)} live tables of {closed[0]}"

    def _unlink_gone(self) -> Job:
        before_us = self.segment_store.now_us - GRACE_SECONDS * 1_000_000
        with self.segment_store.cursor() as cursor:
            gone = [s for s in segment_files.gone_segments(cursor) if (s.gone_us or 0) <= before_us]
        for batch in _batches(gone):
            self.segment_store.drop([segment.path for segment in batch])
            yield f"unlinked {len(batch)} files"

    def _remake_views(self) -> Job:
        for table in sorted(self.views_due):
            self.views_due.discard(table)
            self.segment_store.make_rollup_views(table)
            yield ""

    def _track_parts(self) -> Job:
        with self.segment_store.cursor() as cursor:
            now = views.registrations(cursor)
        hosts = views.newly_registered(self._known_registrations, now)
        for start in range(0, len(hosts), HOSTS_AT_ONCE):
            batch = hosts[start : start + HOSTS_AT_ONCE]
            self.segment_store.transact(partial(views.track_parts, hosts=batch))
            self._known_registrations |= {host: now[host] for host in batch}
            yield f"recorded where the parts of {len(batch)} hosts are"

    def _reread_files(self) -> Job:
        """Reread some files entirely, the longest unread first, to detect a failing disk early."""
        if not self._unread:
            self._unread = sorted(self.segment_store.recorded)
        size = 0
        while self._unread and size < REREAD_BYTES:
            segment = self.segment_store.recorded.get(self._unread.pop(0))
            if segment is not None and segment.recorded_us:
                if reason := segment_files.damage(self._folder, segment):
                    raise DamagedSegmentError(segment, reason)
                size += segment.bytes
            yield ""


def parts_of(connection: duckdb.DuckDBPyConnection) -> set[tuple[str, str]]:
    """Return (table, part) of all tables of the live file."""
    rows: list[tuple[str]] = connection.execute(
        "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'hours'"
    ).fetchall()
    matches = (_LIVE_NAME.fullmatch(name) for (name,) in rows)
    return {(match[1], match[2]) for match in matches if match}


def is_closed(part: str, now_us: int) -> bool:
    """Return whether a part gets no more rows."""
    begin, end = span_us(part)
    return end + CLOSED_SECONDS * 1_000_000 <= now_us or begin > now_us + AHEAD_SECONDS * 1_000_000


def _batches(found: Sequence[ParquetSegment]) -> Iterator[list[ParquetSegment]]:
    """Yield batches, so that each transaction is short."""
    for start in range(0, len(found), FILES_AT_ONCE):
        yield list(found[start : start + FILES_AT_ONCE])
