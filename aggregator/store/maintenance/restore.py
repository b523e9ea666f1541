"""A backup put in a data folder: looked at whole before anything is written, in place all at once."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from ...durable_file import CopyError, checked, copied, free_bytes, sync_folder, words_of_bytes
from .. import duckdb_file
from ..duckdb_file import FILE, LOCK, RESTORING, SPILL, cause, claim
from . import backup_files, verify
from .backup import ACCESS, Progress
from .backup_files import Manifest

#: What stood in the folder before is kept under this and the time.
REPLACED = "replaced"
#: Stays in the folder whoever restores.
_STAYS = {LOCK, RESTORING, SPILL, ACCESS}


@dataclass(frozen=True, slots=True)
class Restored:
    """What was put back, and where the store that stood there is now."""

    manifest: Manifest
    backup: Path
    replaced: Path | None


def restore(source: Path, data: Path, progress: Progress, *, force: bool = False) -> Restored:
    """Put the backup *source* (or the newest in it) into *data*, made if need be.

    Raises CopyError (a backup that is not whole; a folder that has a store, without *force*; a full disk),
    StoreError when an aggregator has the folder. Then *data* is as it was.
    """
    folder = backup_files.newest(source)
    made = backup_files.read(folder)
    _refuse_store(data, force=force)
    there = data.exists()
    claimed = claim(data)
    try:
        try:
            part = _copy(folder, made, data, progress)
            replaced = _exchange(part, data)
        except OSError as error:
            raise CopyError(f"{error.filename or data}: {cause(error, data)}") from error
        return Restored(made, folder, replaced)
    finally:
        claimed.withdraw()
        if not there and data.is_dir() and not any(data.iterdir()):
            data.rmdir()


def _refuse_store(data: Path, *, force: bool) -> None:
    if force or not data.is_dir():
        return
    found = sorted(each.name for each in data.iterdir() if each.name not in _STAYS)
    if found:
        raise CopyError(
            f"{data} has a store or other files already ({', '.join(found[:3])}); nothing was written. Name an "
            f"empty folder with --data, or say --force: what is there is then kept under {REPLACED}-TIME"
        )


def _copy(folder: Path, made: Manifest, data: Path, progress: Progress) -> Path:
    """Copy the backup beside the store, each file as its checksum says, and open it."""
    part = data / f".{RESTORING}"
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    if made.size_bytes > free_bytes(data):
        raise CopyError(
            f"{data} has {words_of_bytes(free_bytes(data))} free, and this backup is of "
            f"{words_of_bytes(made.size_bytes)}: make room there; nothing was written"
        )
    progress.begin("the backup", made.size_bytes)
    try:
        for name, file in made.files.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                got = copied(folder / name, part / name, progress.seen)
            except FileNotFoundError:
                raise CopyError(f"{folder / name} is not there: {_not_whole(folder)}") from None
            if got != (file.size_bytes, file.sha256):
                raise CopyError(f"{folder / name} is not what was backed up: {_not_whole(folder)}")
            shutil.copymode(folder / name, part / name)
            if file.modified_ns:  # or the next backup would take it for another file
                os.utime(part / name, ns=(file.modified_ns, file.modified_ns))
        if FILE not in made.files:
            raise CopyError(f"{folder} holds no {FILE}: {_not_whole(folder)}")
        with verify.opened(part / FILE, read_only=True, copy_of=folder / FILE) as connection:
            verify.schema_version(connection, part / FILE)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return part


def _not_whole(folder: Path) -> str:
    return (
        f"this backup is damaged; nothing was written. gangline admin verify {folder} says all that is "
        "wrong; another backup may be whole"
    )


def _exchange(part: Path, data: Path) -> Path | None:
    """Put what is in *part* in the place of the store. While `RESTORING` is there no aggregator starts."""
    restoring = data / RESTORING
    replaced = data / f"{REPLACED}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
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
    duckdb_file.forget(data)
    for each in sorted(restoring.iterdir(), key=lambda one: one.name == FILE):
        if each.name == ACCESS:
            shutil.copytree(each, data / ACCESS, dirs_exist_ok=True)
            shutil.rmtree(each)
            continue
        os.replace(each, data / each.name)
    restoring.rmdir()
    sync_folder(data)
    return replaced if old else None


def _is_old(path: Path) -> bool:
    name = path.name
    return name not in _STAYS and not name.startswith((f"{REPLACED}-", f".{RESTORING}"))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def check_files(folder: Path, made: Manifest, progress: Progress) -> list[str]:
    """Return in words which files of the backup in *folder* are not what its manifest says."""
    wrong: list[str] = []
    progress.begin("checksums", made.size_bytes)
    for name, file in made.files.items():
        try:
            size, digest = checked(folder / name, progress.seen)
        except OSError as error:
            wrong.append(f"{name} cannot be read: {error.strerror}")
            continue
        if size != file.size_bytes:
            wrong.append(f"{name} has {size} bytes, and had {file.size_bytes}")
        elif digest != file.sha256:
            wrong.append(f"{name} has another content than was backed up (SHA-256 differs)")
    return wrong
