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
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb

from ....contract.durable_file import (
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
from ..answer_journal import ANSWERS_FILE
from ..durability_mark import size_of
from ..store_folder import JOURNAL_FILE, STORE_FILE, cause, wal_of
from . import backup_files, verify
from .backup_files import BackupFile, Manifest
from .consistent_view import ConsistentView, FileChangedError

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
    """A finished backup: bytes copied (not linked), and how long nothing was stored."""

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
                f"{format_bytes(needed)}: make room there, or name another folder with -o"
            )

    def _copy_store(self, source: ConsistentView, part: Path) -> None:
        self._progress.begin("the store", size_of(source.file) + source.wal_bytes)
        size, _ = copy_with_checksum(source.file, part / STORE_FILE, self._progress.advance)
        if source.wal_bytes:
            wal, target = wal_of(source.file), wal_of(part / STORE_FILE)
            copy_with_checksum(wal, target, self._progress.advance, source.wal_bytes)
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
        """Merge the WAL into the copy, which proves that the copy opens.

        Return rows, schema version, recorded Parquet files.
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
        """Link files of the backup *previous*, copy the rest; return the names of missing files."""
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
