"""A folder that one process holds, and files in it that are replaced whole."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_NAME = "lock"
#: Where a file system in memory is on every Linux.
MEMORY_FOLDER = Path("/dev/shm")


class FolderError(RuntimeError):
    """The folder cannot be used; the words name it and say what would help."""


def lock_folder(folder: Path) -> int:
    """Make *folder* if need be, take its lock, and return the lock's file descriptor.

    The lock ends with the descriptor, so also with the process however it dies. Raises FolderError
    when another holds it, naming folder and process, or when the folder cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock, holder = _try_lock(folder / LOCK_NAME)
        if lock < 0 and _is_dead(holder):
            (folder / LOCK_NAME).unlink(missing_ok=True)
            lock, holder = _try_lock(folder / LOCK_NAME)
    except OSError as error:
        raise FolderError(f"{folder} cannot be used: {error.strerror}") from error
    if lock < 0:
        raise FolderError(
            f"{folder} is in use by process {holder or 'unknown'}. Stop that agent, or name "
            "another folder"
        )
    _write_process_id(lock)
    return lock


def _try_lock(path: Path) -> tuple[int, str]:
    """Return (descriptor, ""), or (-1, the process that holds the lock). Raises OSError."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 20).decode(errors="replace").strip()
        os.close(lock)
        return -1, holder
    return lock, ""


def _is_dead(holder: str) -> bool:
    """Tell whether the process was killed, but a thread or child of its is stuck in a driver.

    Such a one keeps the lock until the driver lets it go, which may be never, and will not write
    again: a zombie in /proc. A process we cannot see (another container's) counts as alive.
    """
    try:
        stat = Path(f"/proc/{int(holder)}/stat").read_text()
    except (OSError, ValueError):
        return False
    return stat.rpartition(")")[2].split()[:1] == ["Z"]


def _write_process_id(lock: int) -> None:
    """Write our process id for anyone who finds the folder held; a full disk must not matter."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    except OSError:
        pass


def replace(path: Path, content: bytes) -> None:
    """Put *content* at *path*, durably: after a power cut it is the old content or the new.

    Raises OSError, and the old content stays.
    """
    new = path.with_name(path.name + ".new")
    with open(new, "wb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's names durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
