"""What is declared, kept in force while we run: files are looked at every few seconds, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import duckdb

from ..fleet.fleet import Fleet
from ..model import OURSELVES, Finding
from . import rows
from .fields import DeclaredError
from .loader import ENDINGS, File, files_in, hash_of, parse, read
from .model import NOTHING, Declared, Said

# ----------------------------------------------------------------------
# Whether files rest, so that half a copy is not taken, and what becomes of those that never do.

#: Each so many looks without rest, a minute of them, what files hold is compared at the last two.
RESTLESS_LOOKS = 12


class Resting:
    """What the looks before saw: an exporter may write every few seconds, and a mount tell other times at each look."""

    def __init__(self) -> None:
        self._stamps: object = None
        self._looks = 0
        self._held: dict[str, bytes] = {}

    def look(self, stamps: object) -> bool:
        """Take what a look saw of the files (names, times, sizes); say whether they rest: it is as at the one before."""
        rests, self._stamps = stamps == self._stamps, stamps
        self._looks = 0 if rests else self._looks % RESTLESS_LOOKS + 1
        return rests

    @property
    def is_to_compare(self) -> bool:
        """What the files hold is to be read and handed to `compare`, though they do not rest."""
        return self._looks >= RESTLESS_LOOKS - 1

    def compare(self, files: Iterable[File]) -> str | None:
        """Return "" if *files* hold what they held at the look before, else words on one that does not; None: ask at the next."""
        before, self._held = (
            self._held,
            {one.name: hashlib.sha256(one.data).digest() for one in files},
        )
        if self._looks < RESTLESS_LOOKS:
            return None
        names = before.keys() | self._held.keys()
        changed = [name for name in names if before.get(name) != self._held.get(name)]
        if not changed:
            return ""
        return (
            f"{min(changed)}: was written again and again for a minute, and says something else each time: it may be half "
            "written. Write it only when there is news"
        )


log = logging.getLogger(__name__)

#: The files are looked at this often, and what hosts say of their places is taken over.
LOOK_SECONDS = 5
#: Where hosts stand is written down at most this often: they register by the thousand.
PLACES_SECONDS = 30
#: What is wrong with the files, as a finding of the aggregator itself.
FINDING = "aggregator.declared"
#: Problems that are told of in it; `gangline declared check` tells all.
TOLD_MAX = 3
#: Versions that wait for the disk; the oldest go first.
UNWRITTEN_MAX = 8

#: Of each file: its name, and what changes when it does.
Stamps = tuple[tuple[str, int, int, int, int], ...]
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the files found. `declared` None: nothing new, or `problems`. `stamps` None: look again, whatever comes."""

    stamps: Stamps | None
    declared: Declared | None = None
    files: tuple[File, ...] = ()
    problems: tuple[str, ...] = ()


class Store(Protocol):
    """What is needed of the store."""

    def in_transaction(self, work: Callable[[duckdb.DuckDBPyConnection], None]) -> None: ...
    def reading(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]: ...


class Live:
    """Keeps `fleet.declared`. Owned by the loop's thread; files and the store are for threads that may wait."""

    def __init__(
        self, path: Path | None, fleet: Fleet, store: Store, rules: frozenset[str] = frozenset()
    ) -> None:
        """*path*: a file, or a folder of them; None: nothing is declared."""
        self._path, self._fleet, self._store, self._rules = path, fleet, store, rules
        self._seen: Stamps | None = None
        self._resting = Resting()
        self._asked = False
        self._looked_ns = self._wrote_places_ns = 0
        self._places_version = -1
        #: (version, its files, when it was taken), while the disk does not take them.
        self._unwritten: deque[tuple[Declared, tuple[File, ...], int]] = deque(maxlen=UNWRITTEN_MAX)
        self._task: asyncio.Task[None] | None = None
        self._problems: tuple[str, ...] = ()
        #: The version in force is of files: none at all any more is a mount that is away, not somebody's word.
        self._had_files = False
        #: What is wrong with the files, in words; "" when nothing is.
        self.trouble = ""

    def begin(self, now_ns: int) -> None:
        """Take the files, or, when they are not right, what was in force before our restart. Blocks for the disk."""
        kept = self._kept()
        self._fleet.told.restore(self._told_before())
        self._fleet.declared = replace(NOTHING, number=kept.number if kept else 0)
        self._had_files = bool(kept and kept.files)
        look = self._look(now_ns, now=True)
        if look.declared is not None and kept is not None and look.declared.hash == kept.hash:
            look = replace(look, declared=replace(look.declared, number=kept.number))
            now_ns = kept.taken_ns
        elif kept is not None and look.declared is None:
            self._restore(kept)
        self._take(look, now_ns)
        self._fleet.declared = self._fleet.declared.with_told(self._fleet.told.settle())

    def _told_before(self) -> Mapping[str, tuple[Said, ...]]:
        """Return what hosts said of their places before our restart: those that are switched off do not say it again."""
        try:
            with self._store.reading() as cursor:
                return rows.told_places(cursor)
        except duckdb.Error as error:
            log.error("what hosts said of their places before cannot be read: %s", error)
            return {}

    def _kept(self) -> rows.Kept | None:
        try:
            with self._store.reading() as cursor:
                return rows.last(cursor)
        except duckdb.Error as error:
            log.error("what was declared before cannot be read: %s", error)
            return None

    def _restore(self, kept: rows.Kept) -> None:
        try:
            self._fleet.declared = parse(
                kept.files, kept.taken_ns, number=kept.number, was_good=True
            )
        except DeclaredError as error:
            log.error(
                "version %d of what was declared is not good any more: %s", kept.number, error
            )

    def ask(self) -> None:
        """Look at once, and do not wait until the files rest: SIGHUP."""
        self._asked = True

    def step(self, now_ns: int) -> None:
        """Begin to look, and to write down what changed, if it is time."""
        if self._task is not None and not self._task.done():
            return
        due = not 0 <= now_ns - self._looked_ns < LOOK_SECONDS * _NS
        if not (due or self._asked):
            return
        asked, self._asked, self._looked_ns = self._asked, False, now_ns
        self._fleet.declared = self._fleet.declared.with_told(self._fleet.told.settle())
        self._task = asyncio.create_task(self._turn(now_ns, asked=asked))

    async def _turn(self, now_ns: int, *, asked: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            look = await loop.run_in_executor(None, lambda: self._look(now_ns, now=asked))
            self._take(look, now_ns)
        except Exception:
            log.exception("what is declared could not be taken")
            return
        try:
            if self._is_to_write(now_ns):
                await loop.run_in_executor(None, self._store.in_transaction, self._write)
                self._wrote(now_ns)
        except Exception as error:  # noqa: BLE001 - the store tells of its trouble itself
            log.debug("what is declared was not written: %s", error)

    def _look(self, now_ns: int, *, now: bool) -> Look:
        """Read the files if they changed and rest. *now*: without waiting for that. Never raises."""
        stamps: Stamps | None = None
        try:
            stamps = _stamps(self._path)
            is_new = stamps != self._seen or (now and bool(self._problems))
            rests = self._resting.look(stamps) or now
            if not (is_new and rests) and not self._resting.is_to_compare:
                return Look(self._seen, problems=self._problems)
            files = tuple(read([] if self._path is None else [self._path]))
            if self._path is not None and self._had_files and not files:
                raise DeclaredError([_gone(self._path)])
            moving = self._resting.compare(files) if self._resting.is_to_compare else None
            if not rests or _stamps(self._path) != stamps:  # somebody writes while we read
                if moving is None:
                    return Look(self._seen, problems=self._problems)
                if moving:
                    return Look(None, problems=(moving,))
            before = self._fleet.declared
            if hash_of(files) == before.hash:
                return Look(stamps)
            declared = parse(files, now_ns, rules=self._rules, number=before.number + 1)
            declared.prepare(tuple(self._fleet.names))  # here, where nobody is judged meanwhile
            return Look(stamps, declared, files)
        except DeclaredError as error:
            return Look(stamps, problems=tuple(error.problems))
        except Exception as error:  # whatever a file makes of our code
            log.exception("what is declared could not be read")
            return Look(stamps, problems=(f"{type(error).__name__}: {error}",))

    def _take(self, look: Look, now_ns: int) -> None:
        """Put in force what a look found, and tell what is wrong."""
        self._seen = look.stamps
        before = self._fleet.declared
        if look.declared is not None and look.declared.hash != before.hash:
            after = replace(look.declared, places_version=before.places_version + 1)
            self._fleet.declared = after.with_told(self._fleet.told.settle())
            self._unwritten.append((self._fleet.declared, look.files, now_ns))
            self._had_files = bool(look.files)
            if after.files or before.files:
                names = ", ".join(after.files) or "no files"
                log.info("declared: version %d is in force (%s)", after.number, names)
        if look.problems != self._problems:
            self._problems = look.problems
            self._tell(now_ns)

    def _tell(self, now_ns: int) -> None:
        self._fleet.clear(OURSELVES, FINDING)
        self.trouble = ""
        if self._problems:
            declared = self._fleet.declared
            stays = (
                f"version {declared.number} stays in force"
                if declared.files
                else "nothing is declared"
            )
            more = len(self._problems) - TOLD_MAX
            rest = f"; and {more} more: gangline declared check {self._path}" if more > 0 else ""
            self.trouble = (
                f"what is declared in {self._path} is not taken, {stays}: "
                f"{'; '.join(self._problems[:TOLD_MAX])}{rest}"
            )
            clears = "the files are right"
            self._fleet.find(
                Finding(OURSELVES, FINDING, "", self.trouble, now_ns, clears_when=clears)
            )
            log.warning("%s", self.trouble)
        else:
            log.info("what is declared in %s is right again", self._path)

    def _is_to_write(self, now_ns: int) -> bool:
        changed = self._places_version != self._fleet.declared.places_version
        rested = not 0 <= now_ns - self._wrote_places_ns < PLACES_SECONDS * _NS
        return bool(self._unwritten) or (changed and rested)

    def _write(self, connection: duckdb.DuckDBPyConnection) -> None:
        declared = self._fleet.declared
        for version, files, taken_ns in self._unwritten:
            rows.put_version(connection, version, files, taken_ns)
        rows.put_places(connection, declared)

    def _wrote(self, now_ns: int) -> None:
        self._unwritten.clear()
        self._wrote_places_ns = now_ns
        self._places_version = self._fleet.declared.places_version


def _gone(path: Path) -> str:
    return (
        f"{path}: no file there ends in {', '.join(ENDINGS)} any more: a mount that is away? "
        "To declare nothing, leave an empty file there, as none.toml"
    )


def _stamps(path: Path | None) -> Stamps:
    """Return what changes when the files do. Raises DeclaredError."""
    found: list[tuple[str, int, int, int, int]] = []
    for one in files_in(path) if path is not None else ():
        try:
            stat = one.stat()
        except OSError as error:
            raise DeclaredError([f"{one}: {error.strerror}"]) from error
        found.append((one.name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino))
    return tuple(found)
