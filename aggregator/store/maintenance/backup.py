"""Makes a consistent copy of a store as of one moment, while ingest continues.

A backup is a folder named after its time with everything in it: the file with its WAL merged, the event journal, the journal of
answers to advice, the permit, and the Parquet files. Files that the previous backup already has are hard-linked from it.
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
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import duckdb

from ...durable_file import (
    CopyError,
    copy_with_checksum,
    file_checksum,
    format_bytes,
    free_bytes,
    os_error_message,
    sync_folder,
    write_new_file,
)
from ...model import gangline_version
from .. import duckdb_file, duckdb_header
from ..answer_journal import ANSWERS_FILE
from ..durability_mark import size_of
from ..store_folder import (
    JOURNAL_FILE,
    STORE_FILE,
    STORE_VERSION_FILE,
    StoreError,
    cause,
    lock_folder,
    wal_of,
)
from . import backup_files, verify
from .backup_files import BackupFile, Manifest

if TYPE_CHECKING:
    from ..store import Store
    from ..writer import Writer


@dataclass(frozen=True, slots=True)
class CheckpointHold:
    """State of the file when the hold began (wall ns), and both journals of that moment."""

    path: Path
    inode: int
    iteration: int
    wal_bytes: int
    wall_time_ns: int
    paused_microseconds: int
    journal: bytes
    answers: bytes

    def grown_bytes(self) -> int:
        """Return by how much the WAL has grown since then."""
        return size_of(wal_of(self.path)) - self.wal_bytes


@contextmanager
def hold_checkpoints(store: Store) -> Iterator[CheckpointHold]:
    """Prevent changes of the file until the context ends. Blocks for the running commit.

    Raises StoreError, ResourceExhausted.
    """
    checkpoint_hold = store.run_on_writer_thread(lambda writer: _hold(store, writer))
    try:
        yield checkpoint_hold
    finally:
        with suppress(StoreError):  # closing: the copy has ended
            store.run_on_writer_thread(lambda writer: writer.resume_checkpoints())


def _hold(store: Store, writer: Writer) -> CheckpointHold:
    begin = time.monotonic_ns()
    pinned = writer.hold_checkpoints()
    try:
        journal = store.journal_records()
        # No commit runs meanwhile, so each answer is in the file, in its WAL or in this journal.
        answers = _read_answers(pinned.path.parent)
        inode = os.stat(pinned.path).st_ino
    except BaseException:
        writer.resume_checkpoints()
        raise
    micros = (time.monotonic_ns() - begin) // 1000
    iteration = pinned.header.iteration if pinned.header else 0
    return CheckpointHold(
        pinned.path, inode, iteration, pinned.wal_bytes, time.time_ns(), micros, journal, answers
    )


def _read_answers(folder: Path) -> bytes:
    try:
        return (folder / ANSWERS_FILE).read_bytes()
    except FileNotFoundError:
        return b""


class FileChangedError(CopyError):
    """The file was changed while it was copied: the copy is useless, but a retry may succeed."""


@dataclass(frozen=True, slots=True)
class ConsistentView:
    """A store as of `as_of_ns` (wall): its file, the first `wal_bytes` of its WAL, and both
    journals.

    `is_running`: an aggregator uses it. `paused_microseconds`: time during which nothing was
    stored. `check` raises FileChangedError or CopyError if the copy made until now is inconsistent.
    """

    data: Path
    is_running: bool
    wal_bytes: int
    as_of_ns: int
    journal: bytes
    answers: bytes
    paused_microseconds: int
    check: Callable[[], None]

    @property
    def file(self) -> Path:
        """Return the path of the live file."""
        return self.data / STORE_FILE


@contextmanager
def open_stopped_store(data: Path) -> Iterator[ConsistentView]:
    """Yield the store in *data*, and keep any aggregator from starting on it.

    Raises StoreError if an aggregator uses it, CopyError if there is no store.
    """
    if not (data / STORE_FILE).exists():
        raise CopyError(no_store_message(data))
    folder_lock = lock_folder(data)
    try:
        journal = b""
        with suppress(FileNotFoundError):
            journal = (data / JOURNAL_FILE).read_bytes()
        wal_bytes = size_of(wal_of(data / STORE_FILE))
        yield ConsistentView(
            data, False, wal_bytes, time.time_ns(), journal, _read_answers(data), 0,
            change_check(data / STORE_FILE),
        )  # fmt: skip
    except OSError as error:
        raise CopyError(f"{data}: {error.filename or ''}: {error.strerror}") from error
    finally:
        folder_lock.discard()


def change_check(file: Path) -> Callable[[], None]:
    """Return a check that raises FileChangedError once *file* had a checkpoint or was replaced."""

    def seen() -> tuple[int, duckdb_header.Header | None]:
        return file.stat().st_ino, duckdb_header.read_header(file)

    before = seen()

    def check() -> None:
        if seen() != before:
            raise FileChangedError(f"{file} was written to while it was copied")

    return check


def no_store_message(data: Path) -> str:
    """Return the message for a folder without a store."""
    return (
        f"{data} holds no store (there is no {STORE_FILE}): name the aggregator's folder with --data, "
        "as its setting `data` has it"
    )


def why_no_migration(data: Path) -> str:
    """Return why this version would not migrate the store in *data*; "" if it would, or might.

    Reads `store_version`, because opening the store would migrate it. Raises CopyError.
    """
    if not (data / STORE_FILE).exists():
        return f"{data}: no store yet, nothing to back up"
    newest = duckdb_file.migrations()[-1][0]
    try:
        version = (data / STORE_VERSION_FILE).read_text(errors="replace")[:16].strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise CopyError(f"{data / STORE_VERSION_FILE}: {error.strerror}") from error
    if version.isdecimal() and int(version) >= newest:
        return f"{data}: the store has version {version}, which this version does not migrate: no backup made"
    return ""


def in_use(data: Path) -> bool:
    """Return whether an aggregator, or another of these commands, has locked the folder."""
    try:
        lock_folder(data).discard()
    except StoreError:
        return True
    return False


#: Optional small files of a store.
SMALL_FILES = ("permit.json",)
#: Certificates and hashed tokens: copied only on request.
ACCESS_FOLDER = "access"
#: Attempts of a copy that a checkpoint interrupts.
TRIES = 3


class ProgressSink(Protocol):
    """Display of progress."""

    def begin(self, what: str, total: int) -> None:
        """Begin a step of *total* bytes with the name *what*."""

    def advance(self, size_bytes: int) -> None:
        """Add *size_bytes* to the progress."""


@dataclass(frozen=True, slots=True)
class BackupResult:
    """A finished backup, its copied (not linked) bytes, and the time during which nothing was
    stored.
    """

    folder: Path
    manifest: Manifest
    copied_bytes: int
    paused_microseconds: int


class Backup:
    """Makes one backup in the folder *to*."""

    def __init__(self, to: Path, progress: ProgressSink, *, access: bool = False) -> None:
        self._to, self._progress, self._access = to, progress, access
        self._files: dict[str, BackupFile] = {}
        self._copied_bytes = 0

    def make(self, open_view: Callable[[], AbstractContextManager[ConsistentView]]) -> BackupResult:
        """Make the backup; leave no files if it raises CopyError or an error of *open_view*."""
        try:
            self._to.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            part = self._to / f".{os.getpid()}.partial"
            for tries_left in reversed(range(TRIES)):
                try:
                    return self._make(open_view, part)
                except FileChangedError:
                    if not tries_left:
                        raise
                finally:
                    shutil.rmtree(part, ignore_errors=True)
        except OSError as error:
            raise CopyError(f"{error.filename or self._to}: {_reason(error, self._to)}") from error
        raise AssertionError("unreachable")

    def _make(
        self, open_view: Callable[[], AbstractContextManager[ConsistentView]], part: Path
    ) -> BackupResult:
        self._files, self._copied_bytes = {}, 0
        part.mkdir(mode=0o750)
        previous = next(reversed(backup_files.backups(self._to)), None)
        with open_view() as source:
            names = backup_files.files(source.data)
            known = _files_of(previous)
            new = [name for name in names if not _is_unchanged(source.data / name, known.get(name))]
            self._refuse_full(source, new)
            with backup_files.hold_files(source.data, new) as stage:
                self._copy_store(source, part)
                rows, schema, recorded = self._fold_wal(part, source.data)
                gone = self._copy_parquet(stage, part, names, set(new), previous, known)
        if missing := recorded - self._files.keys():
            raise FileChangedError(f"{min(missing)} was removed before it could be copied")
        manifest = Manifest(
            source.as_of_ns, socket.gethostname(), gangline_version(), duckdb.__version__, schema, rows,
            self._access, self._files, tuple(gone),
        )  # fmt: skip
        manifest.write(part)
        folder = self._name(source.as_of_ns)
        sync_folder(part)
        part.replace(folder)
        sync_folder(self._to)
        return BackupResult(folder, manifest, self._copied_bytes, source.paused_microseconds)

    def _refuse_full(self, source: ConsistentView, new: list[str]) -> None:
        sizes = (size_of(source.data / name) for name in (STORE_FILE, *new))
        needed, free = sum(sizes) + source.wal_bytes, free_bytes(self._to)
        if needed > free:
            raise CopyError(
                f"{self._to} has {format_bytes(free)} free, and this backup needs "
                f"{format_bytes(needed)}: make room there, or name another folder with --to"
            )

    def _copy_store(self, source: ConsistentView, part: Path) -> None:
        self._progress.begin("the store", size_of(source.file) + source.wal_bytes)
        size, _ = copy_with_checksum(source.file, part / STORE_FILE, self._progress.advance)
        if source.wal_bytes:
            copy_with_checksum(
                wal_of(source.file),
                wal_of(part / STORE_FILE),
                self._progress.advance,
                source.wal_bytes,
            )
        source.check()
        self._copied_bytes += size + source.wal_bytes
        self._add(JOURNAL_FILE, write_new_file(part / JOURNAL_FILE, source.journal))
        if source.answers:
            self._add(ANSWERS_FILE, write_new_file(part / ANSWERS_FILE, source.answers))
        for name in SMALL_FILES:
            with suppress(FileNotFoundError):
                self._add(name, write_new_file(part / name, (source.data / name).read_bytes()))
        if self._access and (source.data / ACCESS_FOLDER).is_dir():
            self._copy_access(source.data, part)

    def _copy_access(self, data: Path, part: Path) -> None:
        for path in sorted(entry for entry in (data / ACCESS_FOLDER).rglob("*") if entry.is_file()):
            name = str(path.relative_to(data))
            (part / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._add(name, copy_with_checksum(path, part / name, self._progress.advance))
            shutil.copymode(path, part / name)

    def _fold_wal(self, part: Path, data: Path) -> tuple[int, int, set[str]]:
        """Merge the WAL into the copy, which proves that it opens.

        Return rows, schema version, and recorded Parquet files.
        """
        file = part / STORE_FILE
        with verify.open_database(file, read_only=False, copy_of=data / STORE_FILE) as connection:
            try:
                schema = verify.schema_version(connection, file)
                connection.execute("CHECKPOINT")
                rows, recorded = verify.count_rows(connection), verify.recorded_paths(connection)
            except duckdb.Error as error:
                raise CopyError(
                    f"the copy of the store is damaged, and so is the store: {cause(error, part)}; "
                    "gangline admin verify shows what is readable; an earlier backup may be intact"
                ) from error
        if size_of(wal_of(file)):
            raise CopyError(f"{wal_of(file)} could not be merged into the copy")
        self._progress.begin("reading it back", size_of(file))
        self._add(STORE_FILE, file_checksum(file, self._progress.advance))
        return rows, schema, recorded

    def _copy_parquet(
        self, stage: Path, part: Path, names: list[str], new: set[str],
        previous: Path | None, known: dict[str, BackupFile],
    ) -> list[str]:  # fmt: skip
        """Link files of the backup *previous*, copy the rest; return the names that no longer
        exist.
        """
        self._progress.begin("segments and rollups", sum(size_of(stage / name) for name in new))
        gone: list[str] = []
        for name in names:
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            if name not in new and previous is not None:
                os.link(previous / name, part / name)
                self._files[name] = known[name]
                continue
            try:
                modified_ns = (stage / name).stat().st_mtime_ns
                size_digest = copy_with_checksum(stage / name, part / name, self._progress.advance)
            except FileNotFoundError:
                gone.append(name)
                continue
            self._files[name] = BackupFile(*size_digest, modified_ns)
            self._copied_bytes += self._files[name].size_bytes
        return gone

    def _add(self, name: str, file: tuple[int, str]) -> None:
        self._files[name] = BackupFile(*file)

    def _name(self, as_of_ns: int) -> Path:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(as_of_ns // 1_000_000_000))
        names = [stamp, *(f"{stamp}-{number}" for number in range(2, 1000))]
        return next(self._to / name for name in names if not (self._to / name).exists())

    def _remove_leftovers(self) -> None:
        # Files of killed backups.
        for folder in self._to.glob(".*.partial"):
            if not _is_alive(folder.name.split(".")[1]):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: str) -> bool:
    return pid.isdecimal() and Path("/proc", pid).exists()


def remove_all_but(to: Path, keep: int) -> list[Path]:
    """Remove the oldest backups in *to* except *keep*; return them. Raises OSError."""
    old = backup_files.backups(to)[:-keep]
    for folder in old:
        # First, because a partially deleted backup must not look complete.
        (folder / backup_files.MANIFEST_FILE).unlink()
        shutil.rmtree(folder)
    return old


def _files_of(previous: Path | None) -> dict[str, BackupFile]:
    if previous is None:
        return {}
    try:
        return {
            name: file
            for name, file in backup_files.read(previous).files.items()
            if (previous / name).exists()
        }
    except CopyError:  # not usable: everything is copied
        return {}


def _is_unchanged(path: Path, file: BackupFile | None) -> bool:
    """Return whether the previous backup has *path* unchanged.

    Files never change, but a name is reused if the file was deleted and then the clock set back, or
    an older store restored.
    """
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    return file is not None and (stat.st_size, stat.st_mtime_ns) == (
        file.size_bytes,
        file.modified_ns,
    )


def _reason(error: OSError, to: Path) -> str:
    reason = cause(error, to) if error.errno == errno.ENOSPC else os_error_message(error)
    return f"{reason}; this backup is removed, earlier backups are unchanged"
