"""The mirror file on disk: replaced atomically, and read only if no other user could have written it."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..contract.durable_file import sync_folder
from .mirror_format import FILE_BYTES_MAX, Mirror, parse

MODE = 0o644
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class MirrorFileError(Exception):
    """The file cannot be written or trusted; the message says why."""


def check_folder(folder: Path) -> None:
    """Raise MirrorFileError unless *folder* is writable only by its owner, root or this user."""
    try:
        status = os.stat(folder)
    except OSError as error:
        raise MirrorFileError(
            f"{folder}: {error.strerror}; create it: install -d -m 755 -o USER {folder}"
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise MirrorFileError(f"{folder} is not a folder")
    if status.st_mode & OTHERS_WRITE:
        raise MirrorFileError(
            f"users other than its owner may write to {folder} and could replace the file. Run "
            f"chmod go-w {folder}"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise MirrorFileError(f"{folder} belongs to another user. Run this as its owner")


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Hold the writer's lock of *path*. Raises MirrorFileError if another writer has it."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise MirrorFileError(f"{lock}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise MirrorFileError(
                f"another gangline mirror writes {path}. Stop it, or name another file"
            ) from error
        yield
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes) -> None:
    """Replace *path* atomically and durably. Raises MirrorFileError.

    An interrupted write leaves at most a hidden file, which the next write replaces.
    """
    check_folder(path.parent)
    temporary = path.with_name(f".{path.name}.new")
    try:
        with suppress(FileNotFoundError):
            temporary.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, MODE), "wb") as file:
            os.fchmod(file.fileno(), MODE)  # regardless of the umask: readers are other users
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise MirrorFileError(f"{path}: {error.strerror or error}") from error


def read(path: Path) -> Mirror:
    """Return the file's content, even if expired. Raises MirrorFileError, MirrorError.

    The file is trusted if it is a regular file (no link, no pipe) of root, this user or the owner
    of its folder, and if nobody else may write to it or its folder.
    """
    try:
        folder = os.stat(path.parent)
        with open(path, "rb", opener=_open_unfollowed) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise MirrorFileError("not a regular file")
            if (status.st_mode | folder.st_mode) & OTHERS_WRITE:
                raise MirrorFileError("users other than its owner may write to it or its folder")
            if status.st_uid not in (0, os.geteuid(), folder.st_uid):
                raise MirrorFileError("owned by another user")
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise MirrorFileError(error.strerror or str(error)) from error
    return parse(content)


def _open_unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
