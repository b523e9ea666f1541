"""Turns kernel log records into events; keeps the read position on disk and counts lost records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from ...contract.wire.telemetry_pb2 import HealthEvent
from ..clock import Clock
from ..hardware.kmsg import KERNEL_FACILITY, KmsgRecord, parse_record
from ..xid_reports import XID_DEDUPLICATOR
from .checkpoint_file import CheckpointFile, LogPosition
from .incidents import IncidentTracker, LogLine
from .record import ParsedLine
from .rules import classify
from .stuck_times import StuckTimes
from .timestamps import TimestampConverter

LOST = "host.kernel_log_lost"
#: Delay of a save after a report, so that the event reaches the disk first; shorter than the first
#: interval of an incident, so that few revisions precede it.
SAVE_SOON_NS = 500_000_000
#: Interval of saves without an event: reading again from the last one is harmless.
SAVE_NS = 60_000_000_000
#: Characters kept of a line that comes in fragments.
FRAGMENT_CHARACTERS_MAX = 1024
#: Longest time between fragments of one line, which a single caller prints in a row.
FRAGMENT_MICROSECONDS_MAX = 1_000_000
_COMPLETE_LINES = ("NVRM", "nvidia")

log = logging.getLogger(__name__)

#: Adds a driver decoder's knowledge to a parsed line and its text.
LineDecoder = Callable[[ParsedLine, str], ParsedLine]
#: Returns whether a parsed line and its text become an event.
LineFilter = Callable[[ParsedLine, str], bool]
#: PID -> its job, as attributes.
JobLookup = Callable[[int], Mapping[str, str]]


def no_decoding(parsed: ParsedLine, text: str) -> ParsedLine:
    return parsed


class LogReader:
    """Follows a log, in one thread; any thread may read the counts.

    Attributes: `read_count` (records read), `reported_count` (events reported, without their
    revisions), `lost_count` (overwritten records), `not_understood_count`.
    """

    def __init__(
        self,
        boot_id: bytes,
        publish: Callable[[HealthEvent], bool],
        checkpoint: CheckpointFile,
        clock: Clock,
        timestamps: TimestampConverter,
        decode: LineDecoder = no_decoding,
        is_wanted: LineFilter = lambda notice, text: True,
        job_of: JobLookup = lambda pid: {},
    ) -> None:
        """*publish* returns whether the event is on disk; *boot_id* is part of every event's id."""
        self.read_count = self.reported_count = self.lost_count = self.not_understood_count = 0
        self.incidents = IncidentTracker()
        self._boot = boot_id.hex()
        self._publish, self._checkpoint, self._clock = publish, checkpoint, clock
        self._timestamps, self._decode, self._is_wanted = timestamps, decode, is_wanted
        self._job_of = job_of
        self._stuck_times = StuckTimes()
        self._epoch = 0
        self._sequence = -1  # sequence of the last record read; -1: none yet
        self._highest_sequence = -1  # seen since the log was opened
        self._catching_up = False  # records that were read before are skipped
        self._skipped = 0  # records too long, since the last one read
        self._log_ns = 0  # time of the last record
        self._partial_line = ""  # the last line, which a fragment may continue
        self._partial_from = (-1, 0)  # its sequence and time
        self._saved_sequence = -1
        self._save_ns = clock.boottime_ns() + SAVE_NS  # when a changed position must be saved
        self._published_since_save = False
        self._unsaved_event: HealthEvent | None = None  # a reported event that is not on disk
        self._last_save_error = ""  # last logged error
        self._restore()
        #: Whether reading continues from where an earlier agent stopped.
        self.resumed = self._sequence >= 0

    def _restore(self) -> None:
        position = self._checkpoint.load()
        if position is None or position.boot_id != self._boot:
            return
        self._sequence = self._saved_sequence = position.sequence
        self._epoch = position.epoch
        now_ns = self._clock.boottime_ns()
        for key, event in position.incidents:
            self.incidents.restore(key, event, now_ns)
        self._save(now_ns)  # so that no revision is used by two runs of the agent

    def on_open(self) -> None:
        """Begin with the oldest record of a log that was just opened."""
        self._catching_up = self._sequence >= 0
        self._highest_sequence = -1
        self._skipped = 0
        self._partial_line = ""

    def feed(self, data: bytes, *, live: bool) -> None:
        """Take the data of a read; *live*: it was written just before. Never raises."""
        try:
            record = parse_record(data)
        except ValueError:
            self.read_count += 1
            self.not_understood_count += 1
            self._skipped += 1
            return
        self._highest_sequence = max(self._highest_sequence, record.sequence)
        if self._catching_up and record.sequence <= self._sequence:
            return
        self.read_count += 1
        now_ns = self._clock.boottime_ns()
        if live:
            self._timestamps.learn(record.microseconds, now_ns)
        self._log_ns = self._timestamps.boottime_ns(record.microseconds, now_ns)
        self._note_sequence(record.sequence, now_ns)
        if record.facility == KERNEL_FACILITY:
            self._classify(record, now_ns)

    def on_too_long(self) -> None:
        """Count a record that was longer than the buffer and was skipped by the kernel."""
        self.read_count += 1
        self.not_understood_count += 1
        self._skipped += 1

    def _note_sequence(self, sequence: int, now_ns: int) -> None:
        if sequence <= self._sequence:
            self._restart(f"from {self._sequence} back to {sequence}")
        elif self._sequence >= 0:
            lost = sequence - self._sequence - 1 - self._skipped
            if lost > 0:
                self._record_lost(lost, sequence, now_ns)
        self._catching_up = False
        self._skipped = 0
        self._sequence = sequence

    def _record_lost(self, lost: int, sequence: int, now_ns: int) -> None:
        self.lost_count += lost
        message = (
            f"{lost} records of the kernel's log were overwritten before {sequence} could be read"
        )
        self._add_line(ParsedLine(LOST, occurrences=lost), message, f"lost-{sequence}", now_ns)

    def _restart(self, reason: str) -> None:
        """Begin another log: the numbers went back, as in a restored sandbox."""
        log.warning(
            "the kernel log restarted: its sequence numbers went %s",
            reason,
            extra={"cause": "kernel_log"},
        )
        self._publish_all(self.incidents.flush(self._clock.boottime_ns()))
        self.incidents.clear()
        self._epoch += 1
        self._sequence = -1

    def _classify(self, record: KmsgRecord, now_ns: int) -> None:
        text = record.text
        parsed = classify(text)
        if parsed is None and self._continues_partial_line(record):
            text = self._partial_line + text
            parsed = classify(text)
        if parsed is None:
            self._partial_line = text[:FRAGMENT_CHARACTERS_MAX]
            self._partial_from = record.sequence, record.microseconds
            return
        self._partial_line = ""
        if not self._is_wanted(parsed, text):
            return
        parsed = self._stuck_times.confirm(parsed, self._log_ns / 1e9)
        if record.device.startswith("+pci:") and "pci_address" not in parsed.attributes:
            attributes = {**parsed.attributes, "pci_address": record.device[5:]}
            parsed = parsed._replace(attributes=attributes)
        if not self.incidents.is_open(parsed):  # only the first line of a storm is decoded
            parsed = self._decode(parsed, text)
        if parsed.process_id and parsed.name == "gpu.xid" and not self.incidents.has_job(parsed):
            job = self._job_of(parsed.process_id)
            parsed = parsed._replace(attributes={**parsed.attributes, **job})
        self._add_line(parsed, text, str(record.sequence), now_ns)

    def _continues_partial_line(self, record: KmsgRecord) -> bool:
        """Return whether *record* is a fragment of the last line.

        The flag is only a hint (Documentation/ABI/testing/dev-kmsg): NVIDIA's driver sets it on complete lines.
        """
        sequence, microseconds = self._partial_from
        return (
            record.is_fragment
            and bool(self._partial_line)
            and not record.text.startswith(_COMPLETE_LINES)
            and record.sequence == sequence + 1
            and record.microseconds - microseconds <= FRAGMENT_MICROSECONDS_MAX
        )

    def _add_line(self, parsed: ParsedLine, text: str, name: str, now_ns: int) -> None:
        wall_ns = self._clock.wall_ns() - (now_ns - self._log_ns)
        if parsed.name in ("gpu.xid", "nvswitch.sxid"):
            XID_DEDUPLICATOR.record(parsed.device, parsed.code, self._log_ns)
        event_id = f"kmsg-{self._boot}-{self._epoch}-{name}"
        line = LogLine(parsed, text, self._log_ns, max(0, wall_ns), event_id)
        self._publish_all(self.incidents.add(line, now_ns))

    def _publish_all(self, events: Iterable[HealthEvent]) -> None:
        for event in events:
            self.reported_count += event.revision == 0
            self._unsaved_event = None if self._publish(event) else event
            if not self._published_since_save:
                self._published_since_save = True
                self._save_ns = self._clock.boottime_ns() + SAVE_SOON_NS

    def on_drained(self) -> bool:
        """Note that the log is read to its end.

        Return False for another log, which must be opened again and read completely.
        """
        is_restarted = self._catching_up and 0 <= self._highest_sequence < self._sequence
        if is_restarted:
            self._restart(f"from {self._sequence} back to {self._highest_sequence}")
        else:
            self._log_ns = max(self._log_ns, self._clock.boottime_ns())
        self._catching_up = False
        return not is_restarted

    def flush_due(self) -> None:
        """Report due events and save the position, after each group of records and at `next_ns`."""
        now_ns = self._clock.boottime_ns()
        self._publish_all(self.incidents.due(now_ns, self._log_ns))
        if self._is_unsaved and now_ns >= self._save_ns:
            self._save(now_ns)

    @property
    def _is_unsaved(self) -> bool:
        return self._published_since_save or self._sequence != self._saved_sequence

    def _save(self, now_ns: int) -> None:
        """Save the position, unless a crash would lose an event that is only in memory."""
        self._published_since_save = False
        self._save_ns = now_ns + SAVE_NS
        if self._unsaved_event is not None and self._publish(self._unsaved_event):
            self._unsaved_event = None  # the disk accepts events again
        if self._unsaved_event is not None or self._sequence < 0:
            return
        incidents = tuple((incident.key, incident.refresh()) for incident in self.incidents)
        if self._checkpoint.save(LogPosition(self._boot, self._sequence, self._epoch, incidents)):
            self._saved_sequence = self._sequence
        if self._checkpoint.last_error not in ("", self._last_save_error):
            log.warning(
                "cannot save the position in the kernel log: %s. A restart reads the whole log "
                "again",
                self._checkpoint.last_error,
                extra={"cause": "kernel_log"},
            )
        self._last_save_error = self._checkpoint.last_error

    def next_ns(self) -> int | None:
        """Return the boot time at which `flush_due` has work without a record; None: never."""
        times = [self.incidents.next_ns()]
        if self._is_unsaved:
            times.append(self._save_ns)
        return min((time for time in times if time is not None), default=None)

    def finish(self) -> None:
        """Report remaining counts and save the position, before the agent exits."""
        now_ns = self._clock.boottime_ns()
        self._publish_all(self.incidents.flush(now_ns))
        self._save(now_ns)
