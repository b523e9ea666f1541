"""Restores a backup to a data folder: verifies all of it first, then replaces atomically."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ....contract.durable_file import (
    CopyError,
    copy_with_checksum,
    file_checksum,
    format_bytes,
    free_bytes,
    sync_folder,
)
from .. import durability_mark
from ..duckdb_file import SPILL_FOLDER
from ..store_folder import (
    BACKUPS_FOLDER,
    LOCK_FILE,
    RESTORE_FOLDER,
    STORE_FILE,
    cause,
    lock_folder,
    note_store_version,
)
from . import backup_files, verify
from .backup import ACCESS_FOLDER, ProgressSink
from .backup_files import Manifest

#: Prefix of the folder, followed by the time, that keeps the previous content.
REPLACED_PREFIX = "replaced"
#: Names that a restore does not move.
_PRESERVED = {LOCK_FILE, RESTORE_FOLDER, SPILL_FOLDER, ACCESS_FOLDER, BACKUPS_FOLDER}


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """A restored backup, and the folder with the previous store."""

    manifest: Manifest
    backup: Path
    replaced: Path | None


def restore(
    source: Path, data: Path, progress: ProgressSink, *, force: bool = False
) -> RestoreResult:
    """Restore the backup *source* (or the newest in it) into *data*, which is created if necessary.

    Raises CopyError for an incomplete backup, a folder with a store without *force*, or a full
    disk; StoreError if an aggregator uses the folder. Then *data* is unchanged.
    """
    folder = backup_files.newest(source)
    manifest = backup_files.read(folder)
    _refuse_store(data, force=force)
    existed = data.exists()
    folder_lock = lock_folder(data)
    try:
        try:
            part = _copy(folder, manifest, data, progress)
            replaced = _exchange(part, data)
            note_store_version(data, manifest.schema_version)
        except OSError as error:
            raise CopyError(f"{error.filename or data}: {cause(error, data)}") from error
        return RestoreResult(manifest, folder, replaced)
    finally:
        folder_lock.discard()
        if not existed and data.is_dir() and not any(data.iterdir()):
            data.rmdir()


def _refuse_store(data: Path, *, force: bool) -> None:
    if force or not data.is_dir():
        return
    existing = sorted(entry.name for entry in data.iterdir() if entry.name not in _PRESERVED)
    if existing:
        raise CopyError(
            f"{data} has a store or other files already ({', '.join(existing[:3])}); nothing was written. Name an "
            "empty folder with --data, or use --force, which keeps the existing files under "
            f"{REPLACED_PREFIX}-TIME"
        )


def _copy(folder: Path, manifest: Manifest, data: Path, progress: ProgressSink) -> Path:
    """Copy the backup into a folder in *data*, verify each checksum, and open the store."""
    part = data / f".{RESTORE_FOLDER}"
    shutil.rmtree(part, ignore_errors=True)  # left by a killed process
    if manifest.size_bytes > free_bytes(data):
        raise CopyError(
            f"{data} has {format_bytes(free_bytes(data))} free, and this backup is of "
            f"{format_bytes(manifest.size_bytes)}: make room there; nothing was written"
        )
    progress.begin("the backup", manifest.size_bytes)
    try:
        for name, file in manifest.files.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                copied = copy_with_checksum(folder / name, part / name, progress.advance)
            except FileNotFoundError:
                raise CopyError(
                    f"{folder / name} is not there: {_damaged_message(folder)}"
                ) from None
            if copied != (file.size_bytes, file.sha256):
                raise CopyError(
                    f"{folder / name} differs from what was backed up: {_damaged_message(folder)}"
                )
            shutil.copymode(folder / name, part / name)
            if file.modified_ns:  # otherwise the next backup would copy the file again
                os.utime(part / name, ns=(file.modified_ns, file.modified_ns))
        if STORE_FILE not in manifest.files:
            raise CopyError(f"{folder} does not contain {STORE_FILE}: {_damaged_message(folder)}")
        with verify.open_database(
            part / STORE_FILE, read_only=True, copy_of=folder / STORE_FILE
        ) as connection:
            verify.schema_version(connection, part / STORE_FILE)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return part


def _damaged_message(folder: Path) -> str:
    return f"this backup is damaged; nothing was written. gangline admin verify {folder} shows everything that is wrong; another backup may be intact"


def _exchange(part: Path, data: Path) -> Path | None:
    """Replace the store with *part*. While `RESTORE_FOLDER` exists no aggregator starts."""
    restoring = data / RESTORE_FOLDER
    replaced = data / f"{REPLACED_PREFIX}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    before = restoring.exists()  # from a killed restore; files that it moved away stay there
    if before:
        for entry in restoring.iterdir():
            _remove(entry)
        restoring.rmdir()
    old = [entry for entry in data.iterdir() if _is_old(entry)]
    part.rename(restoring)
    sync_folder(data)
    if old:
        replaced.mkdir(exist_ok=True)
        for entry in old:
            os.replace(entry, replaced / entry.name)
    durability_mark.remove_mark(data)
    for entry in sorted(restoring.iterdir(), key=lambda path: path.name == STORE_FILE):
        if entry.name == ACCESS_FOLDER:
            shutil.copytree(entry, data / ACCESS_FOLDER, dirs_exist_ok=True)
            shutil.rmtree(entry)
            continue
        os.replace(entry, data / entry.name)
    restoring.rmdir()
    sync_folder(data)
    return replaced if old else None


def _is_old(path: Path) -> bool:
    name = path.name
    return name not in _PRESERVED and not name.startswith(
        (f"{REPLACED_PREFIX}-", f".{RESTORE_FOLDER}")
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def check_files(folder: Path, manifest: Manifest, progress: ProgressSink) -> list[str]:
    """Return a message for each file in *folder* that differs from the manifest."""
    problems: list[str] = []
    progress.begin("checksums", manifest.size_bytes)
    for name, file in manifest.files.items():
        try:
            size, digest = file_checksum(folder / name, progress.advance)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
            continue
        if size != file.size_bytes:
            problems.append(f"{name} has {size} bytes, and had {file.size_bytes}")
        elif digest != file.sha256:
            problems.append(f"{name} differs from what was backed up (SHA-256)")
    return problems
