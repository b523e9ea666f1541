"""Turns kernel log records into events; keeps the read position on disk and counts lost records."""

from __future__ import annotations

import binascii
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ...contract.wire.telemetry_pb2 import HealthEvent
from ..clock import Clock
from ..events import XID_DEDUPLICATOR
from ..hardware.kmsg import KERNEL_FACILITY, KmsgRecord, parse_record
from .incidents import ALL_OPEN_MAX, IncidentTracker, Key, LogLine
from .record import ParsedLine
from .rules import classify
from .stuck_times import StuckTimes

MICROSECOND_NS = 1_000
#: The smallest drift of this many live records is used: each is too large by the time to read it.
DRIFTS_MAX = 16
#: Only drifts learned within this time before the last one: at 50 ppm they differ by 30 ms.
DRIFTS_NS = 600_000_000_000


def never_suspended() -> int:
    """Return 0: the machine was never suspended."""
    return 0


class TimestampConverter:
    """Converts records' timestamps to boot time.

    A record has the kernel's local clock in microseconds (local_clock, kernel/printk/printk.c):
    time since boot without suspended time, never corrected by NTP. It differs from CLOCK_BOOTTIME
    by the suspended time and a drift of some tens of ppm, seconds after a few days.

    A record that is read as it is written shows the drift, plus the time to read it (about a
    millisecond). Before the first such record the drift is taken as zero: at 50 ppm that is wrong
    by 4 s per day. A record from before a suspension is dated too late by that suspension; hosts
    with GPUs are rarely suspended.
    """

    def __init__(self, suspended_ns: Callable[[], int] = never_suspended) -> None:
        """*suspended_ns*: returns the time of suspension since boot."""
        self._suspended_ns = suspended_ns
        self._drifts: deque[tuple[int, int]] = deque(maxlen=DRIFTS_MAX)  # (time, drift)

    def learn(self, microseconds: int, boottime_ns: int) -> None:
        """Learn the drift from a record that was written just now and read at *boottime_ns*."""
        drift_ns = boottime_ns - microseconds * MICROSECOND_NS - self._suspended_ns()
        while self._drifts and boottime_ns - self._drifts[0][0] > DRIFTS_NS:
            self._drifts.popleft()
        self._drifts.append((boottime_ns, drift_ns))

    def boottime_ns(self, microseconds: int, now_ns: int) -> int:
        """Return when the record was written, at most *now_ns*, when it was read."""
        drift_ns = min((drift_ns for _, drift_ns in self._drifts), default=0)
        written_ns = microseconds * MICROSECOND_NS + drift_ns + self._suspended_ns()
        return max(0, min(written_ns, now_ns))


FILE_NAME = "position.json"
#: A larger file was not written by the agent.
FILE_BYTES_MAX = 16 << 20
#: Bits of a sequence number of the kernel (u64).
_SEQUENCE_BITS = 64


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The read position and the open incidents, in a boot and its *epoch*-th log."""

    boot_id: str
    sequence: int
    #: Rises when the numbers restart within a boot, as in a restored sandbox.
    epoch: int = 0
    incidents: tuple[tuple[Key, HealthEvent], ...] = ()


def format_position(position: LogPosition) -> bytes:
    """Return the file's content."""
    incidents = [
        [list(key), binascii.b2a_base64(event.SerializeToString(), newline=False).decode()]
        for key, event in position.incidents
    ]
    return json.dumps(
        {
            "boot_id": position.boot_id,
            "epoch": position.epoch,
            "sequence": position.sequence,
            "incidents": incidents,
        }
    ).encode()


def parse_position(content: bytes) -> LogPosition:
    """Return the position from `format_position`. Raises ValueError for any other content."""
    try:
        fields = json.loads(content)
        boot_id, sequence, epoch = fields["boot_id"], fields["sequence"], fields["epoch"]
        incidents = tuple(_incident(item) for item in fields["incidents"][:ALL_OPEN_MAX])
    except (ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        raise ValueError(f"does not contain a position in the kernel log: {error}") from error
    if not isinstance(boot_id, str) or not _is_count(sequence) or not _is_count(epoch):
        raise ValueError("does not contain a position in the kernel log")
    return LogPosition(boot_id, sequence, epoch, incidents)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << _SEQUENCE_BITS


def _incident(fields: Any) -> tuple[Key, HealthEvent]:
    (name, device, code, scope), text = fields
    if not isinstance(code, int) or not all(isinstance(t, str) for t in (name, device, scope)):
        raise ValueError("an incident has no key")
    return (name, device, code, scope), HealthEvent.FromString(binascii.a2b_base64(text))


class CheckpointFile:
    """The file with the position, replaced as a whole; no file without a folder. Never raises.

    It is written after the events before it are on disk. After a crash the events after it are
    reported again with the same ids, and the aggregator keeps one of each. It serves another
    process of the same boot, so it is not synced to the disk. `last_error` has the message of a
    failure.
    """

    def __init__(self, folder: Path | None) -> None:
        self.last_error = ""
        self._folder = folder

    def load(self) -> LogPosition | None:
        """Return the position.

        Return None without a readable position: then the whole log is read again.
        """
        if self._folder is None:
            return None
        path = self._folder / FILE_NAME
        try:
            with open(path, "rb") as file:
                return parse_position(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.last_error = f"{path}: {error.strerror}"
        except ValueError as error:
            self.last_error = f"{path}: {error}"
        return None

    def save(self, position: LogPosition) -> bool:
        """Replace the position atomically; return whether it was saved."""
        if self._folder is None:
            return True
        new = self._folder / f"{FILE_NAME}.new"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_bytes(format_position(position))
            new.replace(self._folder / FILE_NAME)
        except OSError as error:
            self.last_error = f"{self._folder / FILE_NAME}: {error.strerror}"
            with suppress(OSError):  # half a file would take space that events need
                new.unlink()
            return False
        self.last_error = ""
        return True


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
    """Return *parsed* unchanged."""
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
