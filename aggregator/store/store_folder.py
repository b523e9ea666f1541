"""The store's folder: its file names, lock, identity and version."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ...contract.durable_file import replace_file

STORE_FILE = "gangline.duckdb"
#: The store's version as text: a shell script that cannot open the store refuses to unpack an older
#: package (packaging/scripts/functions.sh).
STORE_VERSION_FILE = "store_version"
#: A random identity. Backups omit this file, so a restored store has another identity.
IDENTITY_FILE = "store_identity"
LOCK_FILE = "lock"
JOURNAL_FILE = "events.journal"
#: Not `ops.duckdb`: DuckDB would name its catalog `ops`, and `ops.worst` would be ambiguous.
OPS_FILE = "operators.duckdb"
#: Folder of the chart's backup from before a migration; a restore does not move it.
BACKUPS_FOLDER = "backups"
#: Name of the old file while a compacted file replaces it.
BEFORE_SWAP = "gangline-before.duckdb"
#: A compacted file before it replaces the old one.
COMPACTED_FILE = "compacted-new.duckdb"
#: Folders with the copy that `gangline admin verify` reads.
VERIFY_SCRATCH_PREFIX = "gangline-verify-"
#: Hard links to Parquet files during a copy, a folder per copying process.
BACKUP_HOLDS_FOLDER = "backup-holds"
#: Files of `gangline admin restore` that are not in their final place yet.
RESTORE_FOLDER = "restoring"


class StoreError(Exception):
    """The store cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A folder that this process has locked until `release`."""

    folder: Path
    file: IO[str]
    is_new: bool

    def release(self) -> None:
        """Unlock the folder."""
        self.file.close()

    def discard(self) -> None:
        """Release the folder, and remove the lock file if this process created it."""
        if self.is_new:
            with suppress(OSError):
                (self.folder / LOCK_FILE).unlink()
        self.file.close()


def lock_folder(folder: Path) -> FolderLock:
    """Create *folder* if it is missing, and lock it for this process. Raises StoreError."""
    try:
        # A reader of the store sees hosts, jobs and users, even if the service requires a login.
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = not (folder / LOCK_FILE).exists()
        lock = open(folder / LOCK_FILE, "a+", encoding="ascii")  # noqa: SIM115 - kept open
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder}: the data folder cannot be used: {error.strerror}"
            f"{_folder_remedy(error, folder)}"
        ) from error
    folder_lock = FolderLock(folder, lock, new)
    try:
        _lock(folder, lock)
    except StoreError:
        folder_lock.release()
        raise
    try:
        _write_pid(folder, lock)
    except StoreError:
        folder_lock.discard()
        raise
    return folder_lock


def _folder_remedy(error: OSError, folder: Path) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"; it must belong to the user that the aggregator runs as (user id {os.geteuid()})"
    if error.errno == errno.EROFS:
        return "; remount it writable, or name another folder with --data"
    if error.errno == errno.ENOSPC:
        return "; free some space there: nothing was written"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"; {LOCK_FILE} must be a file of Gangline's in existing folders: move away what is there"
    return ""


def _lock(folder: Path, lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read(64).strip() or "unknown"
        raise StoreError(
            f"{folder} is in use by another aggregator (process {owner}). Stop it, or name "
            "another folder with --data"
        ) from error
    if not _is_at(folder / LOCK_FILE, lock):
        raise StoreError(
            f"{folder}: another aggregator just tried to open it. Start this one again"
        )


def _is_at(path: Path, lock: IO[str]) -> bool:
    # A process that was refused the lock removes the lock file that it had created.
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write_pid(folder: Path, lock: IO[str]) -> None:
    try:
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), f"{os.getpid()}\n".encode())
    except OSError as error:
        raise StoreError(
            f"{folder}: {cause(error, folder)}{_folder_remedy(error, folder)}"
        ) from error


def cause(error: Exception, folder: Path) -> str:
    """Return in one line why writing under *folder* failed."""
    text = str(error)
    if "No space left on device" in text:
        return f"no space left on {folder}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def note_store_version(folder: Path, version: int) -> None:
    """Write the store's version as text into *folder*. Raises StoreError."""
    file = folder / STORE_VERSION_FILE
    text = f"{version}\n"
    try:
        if not file.exists() or file.read_text(errors="replace") != text:
            new = file.with_name(f"{STORE_VERSION_FILE}.new")
            new.write_text(text)
            new.replace(file)
    except OSError as error:
        raise StoreError(
            f"{file}: {cause(error, folder)}{_folder_remedy(error, folder)}"
        ) from error


def folder_identity(folder: Path) -> str:
    """Return the identity in *folder*; a missing or damaged one is created. Raises StoreError."""
    file = folder / IDENTITY_FILE
    try:
        identity = (
            file.read_bytes()[:64].decode("ascii", "replace").strip() if file.exists() else ""
        )
        if not re.fullmatch(r"[0-9a-f]{16}", identity):
            identity = uuid.uuid4().hex[:16]
            replace_file(file, f"{identity}\n".encode())
    except OSError as error:
        raise StoreError(
            f"{file}: {cause(error, folder)}{_folder_remedy(error, folder)}"
        ) from error
    return identity


def wal_of(path: Path) -> Path:
    """Return the path of the write-ahead log (WAL) of the file at *path*."""
    return path.with_name(path.name + ".wal")


def remove_leftovers(folder: Path) -> None:
    """Remove the files of a killed compaction or copy from *folder*. Never raises."""
    for name in (BEFORE_SWAP, COMPACTED_FILE, f"{COMPACTED_FILE}.wal"):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    for scratch in (folder / BACKUP_HOLDS_FOLDER, *folder.glob(f"{VERIFY_SCRATCH_PREFIX}*")):
        shutil.rmtree(scratch, ignore_errors=True)
