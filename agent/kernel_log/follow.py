"""From records to events: what is new, what it tells, what was lost, and how far all that is on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ...fingerprints.wire.telemetry_pb2 import HealthEvent
from ..clock import Clock
from ..hardware.kmsg import KERNEL_FACILITY, Record, parse_record
from ..xid_witness import WITNESS
from .incidents import Incidents, Line
from .notice import Notice
from .position import Keeper, Position
from .stamps import Stamps
from .table import classify

LOST = "host.kernel_log_lost"
#: What was told is noted so long after, so that the disk is the event's first; less than the first step
#: of an incident's pace, so that few revisions come before.
SAVE_SOON_NS = 500_000_000
#: A log that moves without telling anything is noted this often: reading again from there is harmless.
SAVE_NS = 60_000_000_000
#: Of a line that came in pieces, the beginning that is kept.
FRAGMENT_CHARACTERS_MAX = 1024

log = logging.getLogger(__name__)

#: Adds what only a driver's decoder knows to what a line tells: (notice, text) -> notice.
Decode = Callable[[Notice, str], Notice]


def undecoded(notice: Notice, text: str) -> Notice:
    """Leave a notice as it is."""
    return notice


class Follower:
    """Follows one log. All methods belong to one thread; the counts may be read from any.

    Attributes: `read_count` (records taken), `told_count` (events told, without their revisions),
    `lost_count` (records that were overwritten), `not_understood_count`.
    """

    def __init__(
        self,
        boot_id: bytes,
        tell: Callable[[HealthEvent], bool],
        keeper: Keeper,
        clock: Clock,
        stamps: Stamps,
        decode: Decode = undecoded,
    ) -> None:
        """*tell* says whether the event is on disk; *boot_id* is part of every event's id."""
        self.read_count = self.told_count = self.lost_count = self.not_understood_count = 0
        self.incidents = Incidents()
        self._boot = boot_id.hex()
        self._tell, self._keeper, self._clock = tell, keeper, clock
        self._stamps, self._decode = stamps, decode
        self._epoch = 0
        self._sequence = -1  # of the last record taken; -1: none ever was
        self._highest = -1  # seen since the log was opened
        self._catching_up = False  # records that were taken before are passed over
        self._skipped = 0  # records too long, since the last one taken
        self._log_ns = 0  # when the last record was written
        self._before = ""  # the line before, which a fragment may go on
        self._saved_sequence = -1
        self._save_ns = (
            clock.boottime_ns() + SAVE_NS
        )  # when the position is to be kept, if it moved
        self._told_since_save = False
        self._in_memory: HealthEvent | None = None  # something told that is not on disk
        self._unkept = ""  # why the position could not be kept, as it was said last
        self._take_up()

    def _take_up(self) -> None:
        position = self._keeper.load()
        if position is None or position.boot_id != self._boot:
            return
        self._sequence = self._saved_sequence = position.sequence
        self._epoch = position.epoch
        now_ns = self._clock.boottime_ns()
        for key, event in position.incidents:
            self.incidents.restore(key, event, now_ns)
        self._save(now_ns)  # so that no two lives of the agent use one revision

    def opened(self) -> None:
        """The log was opened, and begins with the oldest record that there is."""
        self._catching_up = self._sequence >= 0
        self._highest = -1
        self._skipped = 0
        self._before = ""

    # A record --------------------------------------------------------------------------------

    def take(self, data: bytes, *, live: bool) -> None:
        """Take what one read gave; *live*: it was written the moment before. Never raises."""
        try:
            record = parse_record(data)
        except ValueError:
            self.read_count += 1
            self.not_understood_count += 1
            self._skipped += 1
            return
        self._highest = max(self._highest, record.sequence)
        if self._catching_up and record.sequence <= self._sequence:
            return
        self.read_count += 1
        now_ns = self._clock.boottime_ns()
        if live:
            self._stamps.learn(record.microseconds, now_ns)
        self._log_ns = self._stamps.boottime_ns(record.microseconds, now_ns)
        self._note_sequence(record.sequence, now_ns)
        if record.facility == KERNEL_FACILITY:
            self._classify(record, now_ns)

    def too_long(self) -> None:
        """A record was longer than the buffer; the kernel goes on with the next."""
        self.read_count += 1
        self.not_understood_count += 1
        self._skipped += 1

    def _note_sequence(self, sequence: int, now_ns: int) -> None:
        if sequence <= self._sequence:
            self._begin_anew(f"from {self._sequence} back to {sequence}")
        elif self._sequence >= 0:
            lost = sequence - self._sequence - 1 - self._skipped
            if lost > 0:
                self._lose(lost, sequence, now_ns)
        self._catching_up = False
        self._skipped = 0
        self._sequence = sequence

    def _lose(self, lost: int, sequence: int, now_ns: int) -> None:
        self.lost_count += lost
        words = (
            f"{lost} records of the kernel's log were overwritten before {sequence} could be read"
        )
        self._take_notice(Notice(LOST, occurrences=lost), words, f"lost-{sequence}", now_ns)

    def _begin_anew(self, how: str) -> None:
        """The numbers of one boot's log went back: a sandbox was restored, or another log is shown."""
        log.warning(
            "the kernel's log began anew: its numbers went %s", how, extra={"cause": "kernel_log"}
        )
        self._tell_all(self.incidents.rest(self._clock.boottime_ns()))
        self.incidents.clear()
        self._epoch += 1
        self._sequence = -1

    def _classify(self, record: Record, now_ns: int) -> None:
        text = record.text
        notice = classify(text)
        if record.is_fragment and self._before:
            text = self._before + text
            notice = notice or classify(text)
        if notice is None:
            self._before = text[:FRAGMENT_CHARACTERS_MAX]
            return
        self._before = ""
        if record.device.startswith("+pci:") and "pci_address" not in notice.attributes:
            attributes = {**notice.attributes, "pci_address": record.device[5:]}
            notice = notice._replace(attributes=attributes)
        if not self.incidents.is_open(notice):  # a storm is decoded by its first line
            notice = self._decode(notice, text)
        self._take_notice(notice, text, str(record.sequence), now_ns)

    def _take_notice(self, notice: Notice, text: str, name: str, now_ns: int) -> None:
        wall_ns = self._clock.wall_ns() - (now_ns - self._log_ns)
        if notice.name == "gpu.xid":
            WITNESS.saw(notice.device, notice.code, self._log_ns)
        event_id = f"kmsg-{self._boot}-{self._epoch}-{name}"
        line = Line(notice, text, self._log_ns, max(0, wall_ns), event_id)
        self._tell_all(self.incidents.take(line, now_ns))

    def _tell_all(self, events: Iterable[HealthEvent]) -> None:
        for event in events:
            self.told_count += event.revision == 0
            self._in_memory = None if self._tell(event) else event
            if not self._told_since_save:
                self._told_since_save = True
                self._save_ns = self._clock.boottime_ns() + SAVE_SOON_NS

    # Between records -------------------------------------------------------------------------

    def drained(self) -> bool:
        """All that is in the log was read. False: it is another log, open it again and read all of it."""
        anew = self._catching_up and 0 <= self._highest < self._sequence
        if anew:
            self._begin_anew(f"from {self._sequence} back to {self._highest}")
        else:
            self._log_ns = max(self._log_ns, self._clock.boottime_ns())
        self._catching_up = False
        return not anew

    def settle(self) -> None:
        """Tell what is due and keep the position. After each group of records, and at `next_ns`."""
        now_ns = self._clock.boottime_ns()
        self._tell_all(self.incidents.due(now_ns, self._log_ns))
        if self._is_unsaved and now_ns >= self._save_ns:
            self._save(now_ns)

    @property
    def _is_unsaved(self) -> bool:
        return self._told_since_save or self._sequence != self._saved_sequence

    def _save(self, now_ns: int) -> None:
        """What is only in memory must be read again after a crash: then the old position stands."""
        self._told_since_save = False
        self._save_ns = now_ns + SAVE_NS
        if self._in_memory is not None and self._tell(self._in_memory):
            self._in_memory = None  # the disk takes events again
        if self._in_memory is not None or self._sequence < 0:
            return
        incidents = tuple((each.key, each.refresh()) for each in self.incidents)
        if self._keeper.save(Position(self._boot, self._sequence, self._epoch, incidents)):
            self._saved_sequence = self._sequence
        if self._keeper.last_error not in ("", self._unkept):
            log.warning(
                "how far the kernel's log was read is not kept, and a restart reads all of it again: %s",
                self._keeper.last_error,
                extra={"cause": "kernel_log"},
            )
        self._unkept = self._keeper.last_error

    def next_ns(self) -> int | None:
        """Boot time at which `settle` has something to do though no record came; None: never."""
        times = [self.incidents.next_ns()]
        if self._is_unsaved:
            times.append(self._save_ns)
        return min((time for time in times if time is not None), default=None)

    def finish(self) -> None:
        """Tell the counts that were not told yet, and keep the position: the agent is about to end."""
        now_ns = self._clock.boottime_ns()
        self._tell_all(self.incidents.rest(now_ns))
        self._save(now_ns)
