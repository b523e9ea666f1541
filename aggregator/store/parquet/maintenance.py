"""Keeping house: what lies in the folder, room on the disk, merging, retention, parts, reading again.

Each is a generator that yields between its steps, words when it did something; `history.py` takes the steps.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import duckdb

from ...config import AggregatorConfig
from ...model import OURSELVES, Finding
from . import export, segment_files, views
from .export import Damaged
from .segment_files import GRACE_SECONDS, HOUR, MINUTE, PLACE, RAW, TAIL, UNFINISHED, Segment
from .segment_store import Shelf
from .views import span_us

# ----------------------------------------------------------------------
# Retention: what goes, by age and by bytes, and what goes first when the disk is almost full.
# Decides only.

#: What goes for want of room, in this order: what was kept is then still there by the minute, or the hour. Each only
#: with less free than this share of what is to stay free: a neighbour's log must not cost a year of hours, which are small.
ORDER = ((RAW, 1.0), (MINUTE, 0.5), (HOUR, 0.25))
#: Room that is made goes so far beyond what was wanting, so that it is not made again with each segment.
ROOM_RATIO = 1.25


@dataclass(frozen=True, slots=True)
class Limit:
    """How long files of a grain are kept, and how many bytes of them."""

    seconds: int
    bytes: int


def expired(found: Sequence[Segment], limit: Limit, now_us: int) -> list[Segment]:
    """Return what is past its age, then the oldest of what is past its bytes. *found*: oldest first."""
    before_us = now_us - limit.seconds * 1_000_000
    old = [one for one in found if span_us(one.bucket)[1] < before_us]
    kept = [one for one in found if span_us(one.bucket)[1] >= before_us]
    over = sum(one.bytes for one in kept) - limit.bytes
    return old + _oldest(kept, over)


def _oldest(found: Sequence[Segment], bytes_wanted: int) -> list[Segment]:
    """Return as many of the oldest as hold *bytes_wanted*."""
    chosen: list[Segment] = []
    for one in found:
        if bytes_wanted <= 0:
            break
        chosen.append(one)
        bytes_wanted -= one.bytes
    return chosen


def for_room(found: Sequence[Segment], bytes_wanted: int, free_share: float) -> list[Segment]:
    """Return what goes so that *bytes_wanted* come free: the oldest raw, then minutes, then hours.

    *free_share*: what is free now, of what is to stay free.
    """
    chosen: list[Segment] = []
    for grain, below in ORDER:
        if grain == RAW or free_share < below:
            of_grain = sorted(
                (o for o in found if o.grain == grain), key=lambda o: (o.bucket, o.path)
            )
            chosen += _oldest(of_grain, bytes_wanted - sum(one.bytes for one in chosen))
    return chosen


def free_wanted(total_bytes: int, free_bytes_min: int, free_share_min: float) -> int:
    """Return how many bytes of the disk stay free: the lesser of both limits, so that a small disk has room."""
    return min(free_bytes_min, int(total_bytes * free_share_min))


class Fullness:
    """Whether the disk is almost full: from less than `wanted` free on, until a quarter more is free."""

    def __init__(self) -> None:
        self.is_low = False

    def wanting(self, free_bytes: int, wanted_bytes: int) -> int:
        """Take a look; return how many bytes should come free now, 0 when none need to."""
        if free_bytes < wanted_bytes:
            self.is_low = True
        elif free_bytes >= wanted_bytes * ROOM_RATIO:
            self.is_low = False
        return max(0, int(wanted_bytes * ROOM_RATIO) - free_bytes) if self.is_low else 0


# ----------------------------------------------------------------------
# Leftovers: what a crash between two steps left in the data folder, found at the start and told in
# words.
#
# An unfinished file goes. A file that nobody recorded goes where its rows are elsewhere for sure
# (the live table is still there, or the files that it was made of are), and is moved aside where
# they are not: nothing is unlinked that might be the only one.

_HOUR_DIGITS = 10


class Found(NamedTuple):
    """What is to be done about the folder."""

    unlink: list[str]  # unfinished, gone, or doubled
    aside: list[str]  # not recorded, and the only one for all we know


def look(
    folder: Path, recorded: Iterable[Segment], gone: Iterable[Segment], live: set[tuple[str, str]]
) -> Found:
    """Compare the folder with what is recorded. *live*: (table, part) that the live file has."""
    counted = {one.path: one for one in recorded}
    known = counted.keys() | {one.path for one in gone}
    unlink: list[str] = []
    aside: list[str] = []
    for path in _files(folder):
        if path.endswith(UNFINISHED):
            unlink.append(path)
        elif path not in known:
            (unlink if _is_elsewhere(folder, path, counted, live) else aside).append(path)
    return Found(unlink, aside)


def _files(folder: Path) -> list[str]:
    found = [path for top in ("segments", "rollups") for path in (folder / top).rglob("*.parquet*")]
    return sorted(str(path.relative_to(folder)) for path in found if path.is_file())


def _is_elsewhere(
    folder: Path, path: str, counted: dict[str, Segment], live: set[tuple[str, str]]
) -> bool:
    place = PLACE.fullmatch(path)
    if place is None:
        return False
    table, grain, bucket = place["raw"] or place["table"], place["grain"] or RAW, place["bucket"]
    if grain == TAIL or (table, bucket) in live:
        return True
    source = MINUTE if grain != RAW and len(bucket) == _HOUR_DIGITS else grain
    made_of = [
        one
        for one in counted.values()
        if (one.table, one.grain) == (table, source)
        and one.bucket.startswith(bucket)
        and len(one.bucket) > len(bucket)
    ]
    if grain == RAW:
        return _rows(folder / path) == sum(one.rows for one in made_of) > 0
    return bool(made_of) and not any(segment_files.fault(folder, one) for one in made_of)


def _rows(path: Path) -> int:
    try:
        return segment_files.rows_by_footer(path)
    except (FileNotFoundError, segment_files.UnreadableError):
        return -1


# ----------------------------------------------------------------------
# Findings of the store itself: each told once when it begins, and once when it ends.


class Standing:
    """`now_ns` is set by who owns it."""

    def __init__(self, submit: Callable[[Sequence[Finding]], None]) -> None:
        self.now_ns = 0
        self._submit = submit
        self._standing: dict[tuple[str, str], Finding] = {}

    def find(self, name: str, words: str, clears_when: str, subject: str = "") -> None:
        """Say that something is so, in the words of the first time."""
        if (name, subject) not in self._standing:
            one = Finding(OURSELVES, name, subject, words, self.now_ns, clears_when=clears_when)
            self._standing[name, subject] = one
            self._submit([one])

    def clear(self, name: str, subject: str = "") -> None:
        """Say that it is no longer so. Nothing happens when it was not."""
        one = self._standing.pop((name, subject), None)
        if one is not None:
            self._submit([replace(one, cleared_ns=self.now_ns)])


def gigabytes(count: int) -> str:
    """Return bytes as a person reads them."""
    return f"{count / 1e9:.3g} GB"


log = logging.getLogger(__name__)

#: A part is closed so long after its end: a commit that began within it has come to its end by then.
CLOSED_SECONDS = 5
#: A part that begins later than this from now was made under a clock that was wrong: it is closed.
AHEAD_SECONDS = 3600
#: Bytes of files that are read again per round, whether they are what was written.
READ_BYTES = 16 << 20
#: Files retired, and hosts looked at, in one transaction.
FILES_AT_ONCE, HOSTS_AT_ONCE = 200, 200
_FOREVER_SECONDS = 1 << 40
_LIVE_NAME = re.compile(r"(\w+?)__(\d{12}|\d{10})")

Job = Iterator[str]


class House:
    """Used by one thread."""

    def __init__(
        self, folder: Path, config: AggregatorConfig, shelf: Shelf, standing: Standing
    ) -> None:
        self._folder = folder
        self._config = config
        self.shelf = shelf
        self.standing = standing
        self._limits = {
            RAW: Limit(config.segments_hours * 3600, config.segments_bytes_max),
            MINUTE: Limit(config.rollups_1m_days * 86_400, config.rollups_1m_bytes_max),
            HOUR: Limit(config.rollups_1h_days * 86_400, config.rollups_1h_bytes_max),
        }
        self._fullness = Fullness()
        self._seen: dict[str, int] = {}
        self._unread: list[str] = []
        self._looked_ever = False
        #: Files found to be damaged, with what is wrong; they are set aside by the next look.
        self.damaged: list[tuple[Segment, str]] = []
        #: Tables whose views of rollups are to be made anew.
        self.views_due: set[str] = set()
        #: (table, part) that the live file has.
        self.live: set[tuple[str, str]] = set()
        self._unmerged: set[tuple[str, str, str]] = set()  # what did not come to its end goes last
        #: Files that went for want of room on the disk.
        self.removed_for_room_count = 0

    def look_through(self) -> Job:
        """Load what counts, and put right what a crash left. The views are the writer's own by then."""
        recorded, gone, live = self.shelf.transact(
            lambda c: (segment_files.recorded(c), segment_files.gone(c), parts_of(c))
        )
        self.shelf.there = {one.path: one for one in recorded}
        yield ""
        found = look(self._folder, recorded, gone, live)
        for path in found.unlink:
            segment_files.unlink(self._folder, path)
        if found.unlink:
            yield f"removed {len(found.unlink)} files that were not finished or are elsewhere whole"
        for path in found.aside:
            yield self._unrecorded(path)
        yield from self._setting_aside(() if self._looked_ever else recorded)
        for table in sorted({one.table for one in self.shelf.there.values()}):
            self.shelf.publish(table)
            self.views_due.add(table)
        self._looked_ever = True

    def _setting_aside(self, found: Sequence[Segment]) -> Job:
        """Set aside what is known to be damaged, and what of *found* cannot be opened."""
        for one in found:
            if words := segment_files.fault(self._folder, one):
                self.damaged.append((one, words))
            yield ""
        while self.damaged:
            one, words = self.damaged.pop()
            if one.path in self.shelf.there:
                yield self._set_aside(one, words)

    def _unrecorded(self, path: str) -> str:
        place = self.shelf.move_aside(path)
        words = f"{path} is in the data folder but the store knows nothing of it; it is now {place}"
        self.standing.find(
            "store.file_unrecorded", words, "somebody has looked at it; told once", path
        )
        log.warning("history: %s", words)
        return words

    def _set_aside(self, one: Segment, what: str) -> str:
        place = self.shelf.set_aside(one)
        self.views_due.add(one.table)
        where = f"it is now {place}, and " if place else ""
        words = (
            f"{one.path} {what}: {where}{one.rows} rows of {one.table} received "
            f"{one.bucket} are missing from what is shown; the rest is not touched"
        )
        self.standing.find(
            "store.segment_damaged", words, "the file is put back; told once", one.path
        )
        log.error("history: %s", words)
        return words

    def room_wanting(self, total_bytes: int, free_bytes: int) -> list[Segment]:
        """Return what goes because the disk is almost full; none while it is not. Says so in a finding."""
        wanted = free_wanted(
            total_bytes, self._config.disk_free_bytes_min, self._config.disk_free_share_min
        )
        wanting = self._fullness.wanting(free_bytes, wanted)
        if not self._fullness.is_low:
            self.standing.clear("store.disk_almost_full")
            return []
        self.standing.find(
            "store.disk_almost_full",
            f"the disk of {self._folder} has {gigabytes(free_bytes)} free, {gigabytes(wanted)} are to stay "
            "free: the oldest readings in Parquet are being removed; give it room, or lower segments_hours",
            f"{gigabytes(int(wanted * ROOM_RATIO))} are free",
        )
        there = list(self.shelf.there.values())
        return for_room(there, wanting, free_bytes / max(1, wanted))

    def make_room(self, chosen: list[Segment]) -> Job:
        """Remove files at once: who reads them is told that they are gone."""
        for batch in _batches(chosen):
            self._retire(batch)
            self.shelf.drop([one.path for one in batch])
            self.removed_for_room_count += len(batch)
            words = f"removed {len(batch)} files for want of room, {batch[0].path} first"
            log.warning("history: %s", words)
            yield words

    def keep(self, failing: str, *, by_age: bool) -> Job:
        """Do all that is due once; what cannot be merged keeps nothing else from being done.

        Raises OSError, duckdb.Error, PackerError, Damaged.
        """
        wrong: Exception | None = None
        try:
            yield from self._merging()
        except Damaged:
            raise
        except Exception as error:  # noqa: BLE001 - raised when all else is done
            wrong = error
        yield from self._expiring(by_age)
        yield from self._dropping_live(failing)
        yield from self._unlinking()
        yield from self._viewing()
        yield from self._following_parts()
        yield from self._reading_again()
        if wrong is not None:
            raise wrong

    def _merging(self) -> Job:
        due = {
            (one.table, one.grain, one.bucket): one
            for one in export.due(self.shelf.there.values(), self.live, self.shelf.now_us)
        }
        self._unmerged &= due.keys()
        for key in sorted(due, key=lambda key: key in self._unmerged):  # else in their order
            self._unmerged.add(key)
            yield from export.merge(self.shelf, due[key])
            self._unmerged.discard(key)
            self.views_due.add(due[key].table)

    def _expiring(self, by_age: bool) -> Job:
        for grain, limit in self._limits.items():
            kept = limit if by_age else Limit(_FOREVER_SECONDS, limit.bytes)
            for batch in _batches(expired(self.shelf.of(grain), kept, self.shelf.now_us)):
                self._retire(batch)
                yield f"let {len(batch)} files of {grain} go, {batch[0].path} first"

    def _retire(self, old: list[Segment]) -> None:
        """Let files count no more."""
        now_us = self.shelf.now_us
        self.shelf.transact(lambda connection: segment_files.mark_gone(connection, old, now_us))
        for one in old:
            self.shelf.there.pop(one.path, None)
        self.shelf.step("retired")
        for table in sorted({one.table for one in old}):
            self.shelf.publish(table)
            self.views_due.add(table)

    def _dropping_live(self, failing: str) -> Job:
        """Drop the oldest closed part when the live file is too large: nothing of it could leave."""
        used = self.shelf.rows("SELECT used_blocks * block_size FROM pragma_database_size()")[0][0]
        closed = sorted(part for _, part in self.live if is_closed(part, self.shelf.now_us))
        if used <= self._config.live_bytes_max or not closed:
            self.standing.clear("store.live_full")
            return
        names = [f'hours."{t}__{p}"' for t, p in self.live if p == closed[0]]
        self.standing.find(
            "store.live_full",
            f"the live file uses {gigabytes(used)}, at most {gigabytes(self._config.live_bytes_max)}: "
            f"readings of {closed[0]} and after are dropped, for they could not be exported "
            f"({failing or 'history does not keep up'})",
            "it uses less",
        )
        self.shelf.transact(lambda c: [c.execute(f"DROP TABLE {name}") for name in names])
        yield f"dropped {len(names)} live tables of {closed[0]}"

    def _unlinking(self) -> Job:
        before_us = self.shelf.now_us - GRACE_SECONDS * 1_000_000
        with self.shelf.cursor() as cursor:
            gone = [one for one in segment_files.gone(cursor) if (one.gone_us or 0) <= before_us]
        for batch in _batches(gone):
            self.shelf.drop([one.path for one in batch])
            yield f"unlinked {len(batch)} files"

    def _viewing(self) -> Job:
        for table in sorted(self.views_due):
            self.views_due.discard(table)
            self.shelf.make_rollup_views(table)
            yield ""

    def _following_parts(self) -> Job:
        with self.shelf.cursor() as cursor:
            now = views.registered(cursor)
        hosts = views.news(self._seen, now)
        for at in range(0, len(hosts), HOSTS_AT_ONCE):
            some = hosts[at : at + HOSTS_AT_ONCE]
            self.shelf.transact(partial(views.see, hosts=some))
            self._seen |= {host: now[host] for host in some}
            yield f"took down where the parts of {len(some)} hosts are"

    def _reading_again(self) -> Job:
        """Read some files whole, the longest unread first: a disk that rots is found before it is asked."""
        if not self._unread:
            self._unread = sorted(self.shelf.there)
        size = 0
        while self._unread and size < READ_BYTES:
            one = self.shelf.there.get(self._unread.pop(0))
            if one is not None and one.recorded_us:
                if words := segment_files.damage(self._folder, one):
                    raise Damaged(one, words)
                size += one.bytes
            yield ""


def parts_of(connection: duckdb.DuckDBPyConnection) -> set[tuple[str, str]]:
    """Return (table, part) of all tables of the live file."""
    rows: list[tuple[str]] = connection.execute(
        "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'hours'"
    ).fetchall()
    found = (_LIVE_NAME.fullmatch(name) for (name,) in rows)
    return {(match[1], match[2]) for match in found if match}


def is_closed(part: str, now_us: int) -> bool:
    """Say whether a part gets no more rows."""
    begin, end = span_us(part)
    return end + CLOSED_SECONDS * 1_000_000 <= now_us or begin > now_us + AHEAD_SECONDS * 1_000_000


def _batches(found: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Yield them some at a time, so that no transaction is long."""
    for at in range(0, len(found), FILES_AT_ONCE):
        yield list(found[at : at + FILES_AT_ONCE])
