"""Reloads declarations while the service runs; an invalid file changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from .declared import rows
from .declared.host_placement import PlaceSource
from .declared.loader import ENDINGS, DeclaredFile, files_in, hash_of, parse_files, read_files
from .declared.model import NOTHING, Declared
from .declared.problems import DeclaredError
from .fleet.fleet import Fleet
from .model import AGGREGATOR_HOST, Finding, TransactionalStore

#: After this many polls with changes in a row (a minute), the last two contents are compared.
UNSTABLE_POLLS = 12

log = logging.getLogger(__name__)
#: Interval of checks for changed files and for places that hosts reported.
POLL_SECONDS = 5
#: Minimum interval between writes of places: hosts register by the thousand.
PLACES_SECONDS = 30
#: Finding of the aggregator about invalid declarations.
FINDING = "aggregator.declared"
#: Maximum problems in the finding; `gangline admin declared check` prints all.
PROBLEMS_SHOWN_MAX = 3
#: Maximum versions waiting for the disk; the oldest are dropped.
UNWRITTEN_MAX = 8
_NS = 1_000_000_000


class FileStability:
    """Whether files are stable, so that a half-written copy is not used.

    An exporter may write every few seconds, and a mount may report other times at each poll.
    """

    def __init__(self) -> None:
        self._stamps: object = None
        self._unstable_polls = 0
        self._digests: dict[str, bytes] = {}

    def poll(self, stamps: object) -> bool:
        """Record the files' names, times and sizes; return whether they are unchanged."""
        is_stable, self._stamps = stamps == self._stamps, stamps
        self._unstable_polls = 0 if is_stable else self._unstable_polls % UNSTABLE_POLLS + 1
        return is_stable

    @property
    def needs_compare(self) -> bool:
        """Whether the contents must be read for `compare`, although the files are not stable."""
        return self._unstable_polls >= UNSTABLE_POLLS - 1

    def compare(self, files: Iterable[DeclaredFile]) -> str | None:
        """Return "" if *files* are unchanged since the last poll, else a message.

        None: the contents were only recorded, to be compared at a later poll.
        """
        before = self._digests
        self._digests = {file.name: hashlib.sha256(file.data).digest() for file in files}
        if self._unstable_polls < UNSTABLE_POLLS:
            return None
        names = before.keys() | self._digests.keys()
        changed = [name for name in names if before.get(name) != self._digests.get(name)]
        if not changed:
            return ""
        return f"{min(changed)}: changed continuously for a minute, so it may be incomplete. Write it only when its content changes"


#: Per file: name, and the attributes that change with it.
Stamps = tuple[tuple[str, int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PollResult:
    """Result of a poll. `declared` None: unchanged, or `problems`.

    `stamps` None: the next poll counts the files as changed.
    """

    stamps: Stamps | None
    declared: Declared | None = None
    files: tuple[DeclaredFile, ...] = ()
    problems: tuple[str, ...] = ()


class DeclaredReloader:
    """Keeps `fleet.declared` current. Owned by the event loop; threads read files and the store."""

    def __init__(
        self,
        path: Path | None,
        fleet: Fleet,
        store: TransactionalStore,
        rules: frozenset[str] = frozenset(),
    ) -> None:
        """*path*: a file, or a folder of files; None: nothing is declared."""
        self._path, self._fleet, self._store, self._rules = path, fleet, store, rules
        self._stamps: Stamps | None = None
        self._stability = FileStability()
        self._is_poll_requested = False
        self._polled_ns = self._places_written_ns = 0
        self._places_version = -1
        #: (version, its files, time), while the disk accepts no writes.
        self._unwritten: deque[tuple[Declared, tuple[DeclaredFile, ...], int]] = deque(
            maxlen=UNWRITTEN_MAX
        )
        self._task: asyncio.Task[None] | None = None
        self._problems: tuple[str, ...] = ()
        #: Whether the active version has files. Then no file at all means a missing mount.
        self._had_files = False
        #: The message about invalid files; "" if valid.
        self.error = ""

    def begin(self, now_ns: int) -> None:
        """Load the files; if they are invalid, the version before the restart. Blocks."""
        stored = self._stored_version()
        self._fleet.reported_inventory.restore(self._stored_reported_places())
        self._fleet.declared = replace(NOTHING, number=stored.number if stored else 0)
        self._had_files = bool(stored and stored.files)
        result = self._poll(now_ns, now=True)
        if (
            result.declared is not None
            and stored is not None
            and result.declared.hash == stored.hash
        ):
            result = replace(result, declared=replace(result.declared, number=stored.number))
            now_ns = stored.taken_ns
        elif stored is not None and result.declared is None:
            self._restore(stored)
        self._apply(result, now_ns)
        self._fleet.declared = self._fleet.declared.with_reported(
            self._fleet.reported_inventory.apply_changes()
        )

    def _stored_reported_places(self) -> Mapping[str, tuple[PlaceSource, ...]]:
        """Return places reported before the restart: hosts that are off do not report again."""
        try:
            with self._store.reading() as cursor:
                return rows.reported_places(cursor)
        except duckdb.Error as error:
            log.error("the stored places that hosts reported cannot be read: %s", error)
            return {}

    def _stored_version(self) -> rows.StoredVersion | None:
        try:
            with self._store.reading() as cursor:
                return rows.last_version(cursor)
        except duckdb.Error as error:
            log.error("the stored declarations cannot be read: %s", error)
            return None

    def _restore(self, stored: rows.StoredVersion) -> None:
        try:
            self._fleet.declared = parse_files(
                stored.files, stored.taken_ns, number=stored.number, was_good=True
            )
        except DeclaredError as error:
            log.error("version %d of the declarations is no longer valid: %s", stored.number, error)

    def request_poll(self) -> None:
        """Poll at once, without waiting for stable files (SIGHUP)."""
        self._is_poll_requested = True

    def step(self, now_ns: int) -> None:
        """Start a poll, and the writing of changes, if it is due."""
        if self._task is not None and not self._task.done():
            return
        due = not 0 <= now_ns - self._polled_ns < POLL_SECONDS * _NS
        if not (due or self._is_poll_requested):
            return
        is_requested = self._is_poll_requested
        self._is_poll_requested = False
        self._polled_ns = now_ns
        self._fleet.declared = self._fleet.declared.with_reported(
            self._fleet.reported_inventory.apply_changes()
        )
        self._task = asyncio.create_task(self._poll_and_write(now_ns, is_requested=is_requested))

    async def _poll_and_write(self, now_ns: int, *, is_requested: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(None, lambda: self._poll(now_ns, now=is_requested))
            self._apply(result, now_ns)
        except Exception:
            log.exception("the declarations could not be applied")
            return
        try:
            if self._needs_write(now_ns):
                await loop.run_in_executor(None, self._store.in_transaction, self._write)
                self._on_written(now_ns)
        except Exception as error:  # noqa: BLE001 - the store reports its failure itself
            log.debug("the declarations were not stored: %s", error)

    def _poll(self, now_ns: int, *, now: bool) -> PollResult:
        """Read the files if they changed and are stable; *now*: even if unstable. Never raises."""
        stamps: Stamps | None = None
        try:
            stamps = _stamps(self._path)
            is_new = stamps != self._stamps or (now and bool(self._problems))
            is_stable = self._stability.poll(stamps) or now
            if not (is_new and is_stable) and not self._stability.needs_compare:
                return PollResult(self._stamps, problems=self._problems)
            files = tuple(read_files([] if self._path is None else [self._path]))
            if self._path is not None and self._had_files and not files:
                message = f"{self._path}: no file there ends in {', '.join(ENDINGS)} any more. "
                remedy = "To declare nothing, leave an empty file there, such as none.toml"
                raise DeclaredError([f"{message}Is a mount missing? {remedy}"])
            unstable_message = (
                self._stability.compare(files) if self._stability.needs_compare else None
            )
            if not is_stable or _stamps(self._path) != stamps:  # a write is in progress
                if unstable_message is None:
                    return PollResult(self._stamps, problems=self._problems)
                if unstable_message:
                    return PollResult(None, problems=(unstable_message,))
            before = self._fleet.declared
            if hash_of(files) == before.hash:
                return PollResult(stamps)
            declared = parse_files(files, now_ns, rules=self._rules, number=before.number + 1)
            declared.prepare(tuple(self._fleet.names))  # here, where judging does not wait
            return PollResult(stamps, declared, files)
        except DeclaredError as error:
            return PollResult(stamps, problems=tuple(error.problems))
        except Exception as error:  # an error of our code on an unexpected file
            log.exception("the declarations could not be read")
            return PollResult(stamps, problems=(f"{type(error).__name__}: {error}",))

    def _apply(self, result: PollResult, now_ns: int) -> None:
        """Activate the result of a poll, and report problems."""
        self._stamps = result.stamps
        before = self._fleet.declared
        if result.declared is not None and result.declared.hash != before.hash:
            after = replace(result.declared, places_version=before.places_version + 1)
            self._fleet.declared = after.with_reported(
                self._fleet.reported_inventory.apply_changes()
            )
            self._unwritten.append((self._fleet.declared, result.files, now_ns))
            self._had_files = bool(result.files)
            if after.files or before.files:
                names = ", ".join(after.files) or "no files"
                log.info("declarations: version %d is in force (%s)", after.number, names)
        if result.problems != self._problems:
            self._problems = result.problems
            self._report_problems(now_ns)

    def _report_problems(self, now_ns: int) -> None:
        self._fleet.clear_finding(AGGREGATOR_HOST, FINDING)
        self.error = ""
        if self._problems:
            declared = self._fleet.declared
            stays = "nothing is declared"
            if declared.files:
                stays = f"version {declared.number} stays in force"
            more = len(self._problems) - PROBLEMS_SHOWN_MAX
            rest = (
                f"; and {more} more: gangline admin declared check {self._path}" if more > 0 else ""
            )
            self.error = (
                f"what is declared in {self._path} is not used, {stays}: "
                f"{'; '.join(self._problems[:PROBLEMS_SHOWN_MAX])}{rest}"
            )
            clears = "the files are valid"
            self._fleet.add_finding(
                Finding(AGGREGATOR_HOST, FINDING, "", self.error, now_ns, clears_when=clears)
            )
            log.warning("%s", self.error)
        else:
            log.info("the declarations in %s are valid again", self._path)

    def _needs_write(self, now_ns: int) -> bool:
        changed = self._places_version != self._fleet.declared.places_version
        is_due = not 0 <= now_ns - self._places_written_ns < PLACES_SECONDS * _NS
        return bool(self._unwritten) or (changed and is_due)

    def _write(self, connection: duckdb.DuckDBPyConnection) -> None:
        declared = self._fleet.declared
        for version, files, taken_ns in self._unwritten:
            rows.put_version(connection, version, files, taken_ns)
        rows.put_places(connection, declared)

    def _on_written(self, now_ns: int) -> None:
        self._unwritten.clear()
        self._places_written_ns = now_ns
        self._places_version = self._fleet.declared.places_version


def _stamps(path: Path | None) -> Stamps:
    """Return the attributes of the files that change with them. Raises DeclaredError."""
    stamps: list[tuple[str, int, int, int, int]] = []
    for file in files_in(path) if path is not None else ():
        try:
            stat = file.stat()
        except OSError as error:
            raise DeclaredError([f"{file}: {error.strerror}"]) from error
        stamps.append((file.name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino))
    return tuple(stamps)
