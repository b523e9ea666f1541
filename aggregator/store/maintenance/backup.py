"""A copy of a store that is whole, as of one moment, made beside ingest.

A backup is a folder named after its moment, which has everything: the file with its WAL folded in, the
event journal, the permit, and the Parquet files; those that the backup before has already are linked from it.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import duckdb

from ...durable_file import (
    CopyError,
    checked,
    copied,
    free_bytes,
    sync_folder,
    why,
    words_of_bytes,
    written,
)
from .. import duckdb_file
from ..duckdb_file import FILE, JOURNAL, StoreError, cause, claim, size_of, wal_of
from . import backup_files, verify
from .backup_files import File, Manifest

if TYPE_CHECKING:
    from ..store import Store
    from ..writer import Writer


# ----------------------------------------------------------------------
# The service's side of a backup: the store's file is held still while others copy it.


@dataclass(frozen=True, slots=True)
class Holding:
    """Where the file stood when the hold began (wall ns), and the journal of that moment."""

    path: Path
    inode: int
    iteration: int
    wal_bytes: int
    wall_time_ns: int
    stood_still_microseconds: int
    journal: bytes

    def grown_bytes(self) -> int:
        """Return how much came into the WAL since."""
        return size_of(wal_of(self.path)) - self.wal_bytes


@contextmanager
def holding(store: Store) -> Iterator[Holding]:
    """Hold the file until the context ends. Blocks for the commit under way. Raises StoreError, TooMuch."""
    held_now = store.between_commits(lambda writer: _hold(store, writer))
    try:
        yield held_now
    finally:
        with suppress(StoreError):  # closing: nobody copies any more
            store.between_commits(lambda writer: writer.release())


def _hold(store: Store, writer: Writer) -> Holding:
    begin = time.monotonic_ns()
    held = writer.hold()
    try:
        journal = store.held_journal()
        inode = os.stat(held.path).st_ino
    except BaseException:
        writer.release()
        raise
    micros = (time.monotonic_ns() - begin) // 1000
    iteration = held.header.iteration if held.header else 0
    return Holding(held.path, inode, iteration, held.wal_bytes, time.time_ns(), micros, journal)


# ----------------------------------------------------------------------
# A store that stands still for a while, so that its files can be copied: a stopped one, or one that
# is held.


class MovedError(CopyError):
    """The file was changed while it was copied: the copy is none, another try may be."""


@dataclass(frozen=True, slots=True)
class Still:
    """A store as of `as_of_ns` (wall): its file, the first `wal_bytes` of its WAL, and the journal.

    `held`: by an aggregator that runs. `stood_still_microseconds`: for so long nothing was stored. `check` raises MovedError or CopyError when
    what was copied until now is not whole.
    """

    data: Path
    held: bool
    wal_bytes: int
    as_of_ns: int
    journal: bytes
    stood_still_microseconds: int
    check: Callable[[], None]

    @property
    def file(self) -> Path:
        """The live file."""
        return self.data / FILE


@contextmanager
def stopped(data: Path) -> Iterator[Still]:
    """Yield the store in *data*, which no aggregator may have, and keep it from starting meanwhile.

    Raises StoreError when one has it, CopyError when there is no store.
    """
    if not (data / FILE).exists():
        raise CopyError(no_store(data))
    claimed = claim(data)
    try:
        journal = b""
        with suppress(FileNotFoundError):
            journal = (data / JOURNAL).read_bytes()
        wal_bytes = size_of(wal_of(data / FILE))
        yield Still(data, False, wal_bytes, time.time_ns(), journal, 0, unmoved(data / FILE))
    except OSError as error:
        raise CopyError(f"{data}: {error.filename or ''}: {error.strerror}") from error
    finally:
        claimed.withdraw()


def unmoved(file: Path) -> Callable[[], None]:
    """Return what raises MovedError once a checkpoint has changed *file* since now, or another is in its place."""

    def seen() -> tuple[int, duckdb_file.Header | None]:
        return file.stat().st_ino, duckdb_file.read(file)

    before = seen()

    def check() -> None:
        if seen() != before:
            raise MovedError(f"{file} was written to while it was copied")

    return check


def no_store(data: Path) -> str:
    """Return what to say of a folder without a store."""
    return (
        f"{data} holds no store (there is no {FILE}): name the aggregator's folder with --data, "
        "as its setting `data` has it"
    )


def in_use(data: Path) -> bool:
    """Say whether an aggregator (or another of these commands) has the folder now."""
    try:
        claim(data).withdraw()
    except StoreError:
        return True
    return False


#: Small files of a store that belong to it, when they are there.
SMALL = ("permit.json",)
#: Certificates and hashed tokens: only when asked for.
ACCESS = "access"
#: How often a copy is begun anew because a checkpoint came in between.
TRIES = 3


class Progress(Protocol):
    """Who shows how far it has come."""

    def begin(self, what: str, total: int) -> None:
        """*total* bytes of *what* follow."""

    def seen(self, size_bytes: int) -> None:
        """So many more are done."""


@dataclass(frozen=True, slots=True)
class Made:
    """A backup that was made, how much of it was copied rather than linked, and for how long nothing was stored."""

    folder: Path
    manifest: Manifest
    copied_bytes: int
    stood_still_microseconds: int


class Backup:
    """Makes one backup in *to* of the store that *still* holds."""

    def __init__(self, to: Path, progress: Progress, *, access: bool = False) -> None:
        self._to, self._progress, self._access = to, progress, access
        self._files: dict[str, File] = {}
        self._copied_bytes = 0

    def make(self, still: Callable[[], AbstractContextManager[Still]]) -> Made:
        """Make it. Raises CopyError with words, or what *still* raises; then nothing of it stays."""
        try:
            self._to.mkdir(parents=True, exist_ok=True)
            self._sweep()
            part = self._to / f".{os.getpid()}.partial"
            for left in reversed(range(TRIES)):
                try:
                    return self._make(still, part)
                except MovedError:
                    if not left:
                        raise
                finally:
                    shutil.rmtree(part, ignore_errors=True)
        except OSError as error:
            raise CopyError(f"{error.filename or self._to}: {_why(error, self._to)}") from error
        raise AssertionError("unreachable")

    def _make(self, still: Callable[[], AbstractContextManager[Still]], part: Path) -> Made:
        self._files, self._copied_bytes = {}, 0
        part.mkdir(mode=0o750)
        before = next(reversed(backup_files.backups(self._to)), None)
        with still() as source:
            names = backup_files.files(source.data)
            known = _files_of(before)
            new = [each for each in names if not _same(source.data / each, known.get(each))]
            self._refuse_full(source, new)
            with backup_files.held(source.data, new) as stage:
                self._copy_store(source, part)
                rows, schema, recorded = self._fold(part, source.data)
                gone = self._copy_parquet(stage, part, names, set(new), before, known)
        if lacking := recorded - self._files.keys():
            raise MovedError(f"{min(lacking)} was taken away before it could be copied")
        made = Manifest(
            source.as_of_ns, socket.gethostname(), _gangline(), duckdb.__version__, schema, rows,
            self._access, self._files, tuple(gone),
        )  # fmt: skip
        made.write(part)
        folder = self._name(source.as_of_ns)
        sync_folder(part)
        part.replace(folder)
        sync_folder(self._to)
        return Made(folder, made, self._copied_bytes, source.stood_still_microseconds)

    def _refuse_full(self, source: Still, new: list[str]) -> None:
        sizes = (size_of(source.data / each) for each in (FILE, *new))
        needed, free = sum(sizes) + source.wal_bytes, free_bytes(self._to)
        if needed > free:
            raise CopyError(
                f"{self._to} has {words_of_bytes(free)} free, and this backup needs "
                f"{words_of_bytes(needed)}: make room there, or name another folder with --to"
            )

    def _copy_store(self, source: Still, part: Path) -> None:
        self._progress.begin("the store", size_of(source.file) + source.wal_bytes)
        size, _ = copied(source.file, part / FILE, self._progress.seen)
        if source.wal_bytes:
            copied(wal_of(source.file), wal_of(part / FILE), self._progress.seen, source.wal_bytes)
        source.check()
        self._copied_bytes += size + source.wal_bytes
        self._add(JOURNAL, written(part / JOURNAL, source.journal))
        for name in SMALL:
            with suppress(FileNotFoundError):
                self._add(name, written(part / name, (source.data / name).read_bytes()))
        if self._access and (source.data / ACCESS).is_dir():
            self._copy_access(source.data, part)

    def _copy_access(self, data: Path, part: Path) -> None:
        for path in sorted(each for each in (data / ACCESS).rglob("*") if each.is_file()):
            name = str(path.relative_to(data))
            (part / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._add(name, copied(path, part / name, self._progress.seen))
            shutil.copymode(path, part / name)

    def _fold(self, part: Path, data: Path) -> tuple[int, int, set[str]]:
        """Fold the WAL into the copy, which thereby is known to open; return rows, schema version, and which Parquet
        files it has on record."""
        file = part / FILE
        with verify.opened(file, read_only=False, copy_of=data / FILE) as connection:
            try:
                schema = verify.schema_version(connection, file)
                connection.execute("CHECKPOINT")
                rows, recorded = verify.count(connection), verify.recorded_paths(connection)
            except duckdb.Error as error:
                raise CopyError(
                    f"the copy of the store is damaged, and so is the store: {cause(error, part)}; "
                    "gangline admin verify says what is readable, a backup from before may be whole"
                ) from error
        if size_of(wal_of(file)):
            raise CopyError(f"{wal_of(file)} could not be folded into the copy")
        self._progress.begin("reading it back", size_of(file))
        self._add(FILE, checked(file, self._progress.seen))
        return rows, schema, recorded

    def _copy_parquet(
        self, stage: Path, part: Path, names: list[str], new: set[str],
        before: Path | None, known: dict[str, File],
    ) -> list[str]:  # fmt: skip
        """Link what the backup *before* has, copy the rest; return the names that were gone."""
        self._progress.begin("segments and rollups", sum(size_of(stage / each) for each in new))
        gone: list[str] = []
        for name in names:
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            if name not in new and before is not None:
                os.link(before / name, part / name)
                self._files[name] = known[name]
                continue
            try:
                modified_ns = (stage / name).stat().st_mtime_ns
                size_digest = copied(stage / name, part / name, self._progress.seen)
            except FileNotFoundError:
                gone.append(name)
                continue
            self._files[name] = File(*size_digest, modified_ns)
            self._copied_bytes += self._files[name].size_bytes
        return gone

    def _add(self, name: str, file: tuple[int, str]) -> None:
        self._files[name] = File(*file)

    def _name(self, as_of_ns: int) -> Path:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(as_of_ns // 1_000_000_000))
        names = [stamp, *(f"{stamp}-{number}" for number in range(2, 1000))]
        return next(self._to / name for name in names if not (self._to / name).exists())

    def _sweep(self) -> None:
        """Remove what backups left that were killed."""
        for each in self._to.glob(".*.partial"):
            if not _lives(each.name.split(".")[1]):
                shutil.rmtree(each, ignore_errors=True)


def _lives(pid: str) -> bool:
    return pid.isdecimal() and Path("/proc", pid).exists()


def forget_all_but(to: Path, keep: int) -> list[Path]:
    """Remove the oldest backups in *to* but *keep*; return which. Raises OSError."""
    old = backup_files.backups(to)[:-keep]
    for folder in old:
        (folder / backup_files.FILE_NAME).unlink()  # first: what is half removed is no backup
        shutil.rmtree(folder)
    return old


def _files_of(before: Path | None) -> dict[str, File]:
    if before is None:
        return {}
    try:
        return {
            name: file
            for name, file in backup_files.read(before).files.items()
            if (before / name).exists()
        }
    except CopyError:  # not usable: everything is copied
        return {}


def _same(path: Path, file: File | None) -> bool:
    """Say whether the backup before has *path*. Files never change, but a name may be given again: once the
    one before was removed, and the clock was set back or an older store was restored."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    return file is not None and (stat.st_size, stat.st_mtime_ns) == (
        file.size_bytes,
        file.modified_ns,
    )


def _gangline() -> str:
    try:
        return version("gangline")
    except PackageNotFoundError:
        return "unknown"


def _why(error: OSError, to: Path) -> str:
    words = cause(error, to) if error.errno == errno.ENOSPC else why(error)
    return f"{words}; nothing of this backup stays, those before are as they were"
