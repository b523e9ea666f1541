"""Restores a backup to a data folder: verifies all of it first, then replaces atomically."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ...durable_file import (
    CopyError,
    copy_with_checksum,
    file_checksum,
    format_bytes,
    free_bytes,
    sync_folder,
)
from .. import duckdb_file
from ..duckdb_file import (
    BACKUPS_FOLDER,
    LOCK_FILE,
    RESTORE_FOLDER,
    SPILL_FOLDER,
    STORE_FILE,
    cause,
    lock_folder,
    note_store_version,
)
from . import backup_files, verify
from .backup import ACCESS_FOLDER, ProgressSink
from .backup_files import Manifest

#: What stood in the folder before is kept under this and the time.
REPLACED_PREFIX = "replaced"
#: Stays in the folder anyone who restores.
_PRESERVED = {LOCK_FILE, RESTORE_FOLDER, SPILL_FOLDER, ACCESS_FOLDER, BACKUPS_FOLDER}


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was put back, and where the store that stood there is now."""

    manifest: Manifest
    backup: Path
    replaced: Path | None


def restore(
    source: Path, data: Path, progress: ProgressSink, *, force: bool = False
) -> RestoreResult:
    """Put the backup *source* (or the newest in it) into *data*, made if need be.

    Raises CopyError (a backup that is not whole; a folder that has a store, without *force*; a full disk),
    StoreError when an aggregator has the folder. Then *data* is as it was.
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
    found = sorted(each.name for each in data.iterdir() if each.name not in _PRESERVED)
    if found:
        raise CopyError(
            f"{data} has a store or other files already ({', '.join(found[:3])}); nothing was written. Name an "
            "empty folder with --data, or use --force, which keeps the existing files under "
            f"{REPLACED_PREFIX}-TIME"
        )


def _copy(folder: Path, manifest: Manifest, data: Path, progress: ProgressSink) -> Path:
    """Copy the backup beside the store, each file as its checksum says, and open it."""
    part = data / f".{RESTORE_FOLDER}"
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
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
                got = copy_with_checksum(folder / name, part / name, progress.advance)
            except FileNotFoundError:
                raise CopyError(
                    f"{folder / name} is not there: {_damaged_message(folder)}"
                ) from None
            if got != (file.size_bytes, file.sha256):
                raise CopyError(
                    f"{folder / name} differs from what was backed up: {_damaged_message(folder)}"
                )
            shutil.copymode(folder / name, part / name)
            if file.modified_ns:  # or the next backup would take it for another file
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
    """Put what is in *part* in the place of the store. While `RESTORE_FOLDER` is there no aggregator starts."""
    restoring = data / RESTORE_FOLDER
    replaced = data / f"{REPLACED_PREFIX}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    before = restoring.exists()  # one that was killed here: what it moved away already stays there
    if before:
        for each in restoring.iterdir():
            _remove(each)
        restoring.rmdir()
    old = [each for each in data.iterdir() if _is_old(each)]
    part.rename(restoring)
    sync_folder(data)
    if old:
        replaced.mkdir(exist_ok=True)
        for each in old:
            os.replace(each, replaced / each.name)
    duckdb_file.remove_mark(data)
    for each in sorted(restoring.iterdir(), key=lambda one: one.name == STORE_FILE):
        if each.name == ACCESS_FOLDER:
            shutil.copytree(each, data / ACCESS_FOLDER, dirs_exist_ok=True)
            shutil.rmtree(each)
            continue
        os.replace(each, data / each.name)
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
    """Return as text which files of the backup in *folder* are not what its manifest says."""
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
