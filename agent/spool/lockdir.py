"""A folder locked by a process, and files in it that are replaced atomically."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

LOCK_NAME = "lock"
#: Location of a memory file system on every Linux.
MEMORY_FOLDER = Path("/dev/shm")


class FolderError(RuntimeError):
    """The folder cannot be used; the message names the folder and a remedy."""


def lock_folder(folder: Path) -> int:
    """Create *folder* if needed, lock it, and return the lock's file descriptor.

    The lock ends with the descriptor, and so with the process. Raises FolderError if another
    process holds it, naming folder and process, or if the folder cannot be written.
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
    """Return (descriptor, ""), or (-1, pid of the process that holds the lock). Raises OSError."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 20).decode(errors="replace").strip()
        os.close(lock)
        return -1, holder
    return lock, ""


def _is_dead(holder: str) -> bool:
    """Return whether the process was killed, but a thread or child of it is stuck in a driver.

    Such a process, a zombie in /proc, may keep the lock forever, but never writes again. A process
    that we cannot see (in another container) counts as alive.
    """
    try:
        fields = Path(f"/proc/{int(holder)}/stat").read_text()
    except (OSError, ValueError):
        return False
    return fields.rpartition(")")[2].split()[:1] == ["Z"]


def _write_process_id(lock: int) -> None:
    """Write our process id for a process that finds the folder locked. A full disk is ignored."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    except OSError:
        pass


def replace(path: Path, content: bytes) -> None:
    """Write *content* to *path* durably: after a power cut it is the old or the new content.

    Raises OSError; the old content remains.
    """
    new = path.with_name(path.name + ".new")
    with open(new, "wb", opener=open_regular) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in the folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_regular(path: Path, content: bytes) -> None:
    """Write *content*, unsynced. Raises OSError, also for anything but a regular file."""
    with open(path, "wb", opener=open_regular) as file:
        file.write(content)


def open_regular(path: str, flags: int) -> int:
    """Open a file of the agent, as the *opener* of `open`. Raises OSError for anything but a regular file.

    Opening a FIFO would block the agent's start.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor
