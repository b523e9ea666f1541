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

# ----------------------------------------------------------------------
# From a record's stamp to boot time.
#
# A record bears the kernel's local clock in microseconds (`local_clock`, kernel/printk/printk.c):
# time since boot, without the time suspended, and never corrected by NTP. Against CLOCK_BOOTTIME it
# is therefore off by the time suspended and by a drift of some tens of parts in a million, seconds
# after a few days up.
#
# A record that was read the moment it was written shows the drift, to within what poll and read
# took (about a millisecond, and never to the other side: a record is written before it is read).
# Until such a one came, the drift is taken to be none: at 50 ppm that is wrong by 4 s a day. A
# record of before a suspension is put too late by that suspension: hosts with GPUs are seldom
# suspended.

MICROSECOND_NS = 1_000
#: The least drift of this many records just written is taken: each is too large by what reading took.
DRIFTS_MAX = 16
#: Of those only what was learned within this time before the last: at 50 ppm, 30 ms of drift.
DRIFTS_NS = 600_000_000_000


def never_suspended() -> int:
    """Return 0: no time is missing from the log's clock."""
    return 0


class TimestampConverter:
    """Turns stamps into boot time. Learns from records that are read as they are written."""

    def __init__(self, suspended_ns: Callable[[], int] = never_suspended) -> None:
        """*suspended_ns*: how long the machine has been suspended since boot, as of now."""
        self._suspended_ns = suspended_ns
        self._drifts: deque[tuple[int, int]] = deque(maxlen=DRIFTS_MAX)  # (learned at, drift)

    def learn(self, microseconds: int, boottime_ns: int) -> None:
        """A record that was written just now was read at *boottime_ns*."""
        drift_ns = boottime_ns - microseconds * MICROSECOND_NS - self._suspended_ns()
        while self._drifts and boottime_ns - self._drifts[0][0] > DRIFTS_NS:
            self._drifts.popleft()
        self._drifts.append((boottime_ns, drift_ns))

    def boottime_ns(self, microseconds: int, now_ns: int) -> int:
        """Return when the record was written; never later than *now_ns*, when it was read."""
        drift_ns = min((drift_ns for _, drift_ns in self._drifts), default=0)
        written_ns = microseconds * MICROSECOND_NS + drift_ns + self._suspended_ns()
        return max(0, min(written_ns, now_ns))


# ----------------------------------------------------------------------
# How far the log was read, and which incidents were open then: one small file, replaced whole.
#
# It is written after the events that it covers are on disk. Events after it are reported again
# after a crash, with the same event ids, and the aggregator keeps one of each.
#
# It is for another process of the same boot, and without meaning after a power cut: so it is never
# synced to the disk, and no record waits in the log because the position of the one before is being
# kept.

FILE_NAME = "position.json"
#: A larger file is not ours.
FILE_BYTES_MAX = 16 << 20
#: 2 raised to this is no sequence number of the kernel's (u64).
_SEQUENCE_BITS = 64


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Sequences up to `sequence`, of this boot and of its *epoch*-th log, were read."""

    boot_id: str
    sequence: int
    #: Raised when the numbers started over within one boot, as in a sandbox that was restored.
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
    """Return what `format_position` wrote. Raises ValueError for anything else."""
    try:
        fields = json.loads(content)
        boot_id, sequence, epoch = fields["boot_id"], fields["sequence"], fields["epoch"]
        incidents = tuple(_incident(each) for each in fields["incidents"][:ALL_OPEN_MAX])
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
    """The file, or nothing where no folder is given. Never raises; `last_error` says what failed."""

    def __init__(self, folder: Path | None) -> None:
        self.last_error = ""
        self._folder = folder

    def load(self) -> LogPosition | None:
        """Return what was kept, None if nothing was or it cannot be read: then all is read again."""
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
        """Keep *position*: anyone who reads finds this or the one before, whole. Return whether it was kept."""
        if self._folder is None:
            return True
        new = self._folder / f"{FILE_NAME}.new"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_bytes(format_position(position))
            new.replace(self._folder / FILE_NAME)
        except OSError as error:
            self.last_error = f"{self._folder / FILE_NAME}: {error.strerror}"
            with suppress(OSError):  # half a file would take from a full disk what events need
                new.unlink()
            return False
        self.last_error = ""
        return True


LOST = "host.kernel_log_lost"
#: Reported events are noted this long after, so that the event reaches the disk first; less than the first step
#: of an incident's pace, so that few revisions come before.
SAVE_SOON_NS = 500_000_000
#: A log that moves without telling anything is noted this often: reading again from there is harmless.
SAVE_NS = 60_000_000_000
#: Of a line that came in pieces, the beginning that is kept.
FRAGMENT_CHARACTERS_MAX = 1024
#: Pieces of one line are printed by one caller, one after the other.
FRAGMENT_MICROSECONDS_MAX = 1_000_000
_COMPLETE_LINES = ("NVRM", "nvidia")

log = logging.getLogger(__name__)

#: Adds what only a driver's decoder knows to what a line tells: (notice, text) -> notice.
LineDecoder = Callable[[ParsedLine, str], ParsedLine]
#: Says whether a line is worth an event: (notice, text) -> bool.
LineFilter = Callable[[ParsedLine, str], bool]
#: PID -> the job that it belongs to, as attributes.
JobLookup = Callable[[int], Mapping[str, str]]


def no_decoding(parsed: ParsedLine, text: str) -> ParsedLine:
    """Leave a notice as it is."""
    return parsed


class LogReader:
    """Follows one log. All methods belong to one thread; the counts may be read from any.

    Attributes: `read_count` (records taken), `reported_count` (events reported, without their revisions),
    `lost_count` (records that were overwritten), `not_understood_count`.
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
        """*publish* says whether the event is on disk; *boot_id* is part of every event's id."""
        self.read_count = self.reported_count = self.lost_count = self.not_understood_count = 0
        self.incidents = IncidentTracker()
        self._boot = boot_id.hex()
        self._publish, self._checkpoint, self._clock = publish, checkpoint, clock
        self._timestamps, self._decode, self._is_wanted = timestamps, decode, is_wanted
        self._job_of = job_of
        self._stuck_times = StuckTimes()
        self._epoch = 0
        self._sequence = -1  # of the last record taken; -1: none ever was
        self._highest_sequence = -1  # seen since the log was opened
        self._catching_up = False  # records that were taken before are passed over
        self._skipped = 0  # records too long, since the last one taken
        self._log_ns = 0  # when the last record was written
        self._partial_line = ""  # the line before, which a fragment may continue
        self._partial_from = (-1, 0)  # its sequence and when it was written
        self._saved_sequence = -1
        self._save_ns = clock.boottime_ns() + SAVE_NS  # when the position must be kept, if it moved
        self._published_since_save = False
        self._unsaved_event: HealthEvent | None = None  # a reported event that is not on disk
        self._last_save_error = ""  # why the position could not be kept, as it was said last
        self._restore()
        #: Whether the log is read on from where an agent before this one ended.
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
        self._save(now_ns)  # so that no two lives of the agent use one revision

    def on_open(self) -> None:
        """The log was opened, and begins with the oldest record that there is."""
        self._catching_up = self._sequence >= 0
        self._highest_sequence = -1
        self._skipped = 0
        self._partial_line = ""

    # A record --------------------------------------------------------------------------------

    def feed(self, data: bytes, *, live: bool) -> None:
        """Take what one read gave; *live*: it was written the moment before. Never raises."""
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
        """A record was longer than the buffer; the kernel continues with the next."""
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
        """The numbers of one boot's log went back: a sandbox was restored, or another log is shown."""
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
        if not self.incidents.is_open(parsed):  # a storm is decoded by its first line
            parsed = self._decode(parsed, text)
        if parsed.process_id and parsed.name == "gpu.xid" and not self.incidents.has_job(parsed):
            job = self._job_of(parsed.process_id)
            parsed = parsed._replace(attributes={**parsed.attributes, **job})
        self._add_line(parsed, text, str(record.sequence), now_ns)

    def _continues_partial_line(self, record: KmsgRecord) -> bool:
        """Return whether *record* is a part of the line before.

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

    # Between records -------------------------------------------------------------------------

    def on_drained(self) -> bool:
        """All that is in the log was read. False: it is another log, open it again and read all of it."""
        is_restarted = self._catching_up and 0 <= self._highest_sequence < self._sequence
        if is_restarted:
            self._restart(f"from {self._sequence} back to {self._highest_sequence}")
        else:
            self._log_ns = max(self._log_ns, self._clock.boottime_ns())
        self._catching_up = False
        return not is_restarted

    def flush_due(self) -> None:
        """Tell what is due and keep the position. After each group of records, and at `next_ns`."""
        now_ns = self._clock.boottime_ns()
        self._publish_all(self.incidents.due(now_ns, self._log_ns))
        if self._is_unsaved and now_ns >= self._save_ns:
            self._save(now_ns)

    @property
    def _is_unsaved(self) -> bool:
        return self._published_since_save or self._sequence != self._saved_sequence

    def _save(self, now_ns: int) -> None:
        """What is only in memory must be read again after a crash, from the old position."""
        self._published_since_save = False
        self._save_ns = now_ns + SAVE_NS
        if self._unsaved_event is not None and self._publish(self._unsaved_event):
            self._unsaved_event = None  # the disk takes events again
        if self._unsaved_event is not None or self._sequence < 0:
            return
        incidents = tuple((each.key, each.refresh()) for each in self.incidents)
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
        """Boot time at which `flush_due` has something to do though no record came; None: never."""
        times = [self.incidents.next_ns()]
        if self._is_unsaved:
            times.append(self._save_ns)
        return min((time for time in times if time is not None), default=None)

    def finish(self) -> None:
        """Report the remaining counts and keep the position: the agent is about to end."""
        now_ns = self._clock.boottime_ns()
        self._publish_all(self.incidents.flush(now_ns))
        self._save(now_ns)
