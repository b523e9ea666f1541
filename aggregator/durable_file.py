"""Makes changes in a folder durable (fsync)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO


def sync_folder(folder: Path) -> None:
    """Make what was renamed in *folder* durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Put *data* at *path*, durably: after a power cut it is the old content or the new. Raises OSError."""
    new = path.with_suffix(".new")
    with open(new, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


# ----------------------------------------------------------------------
# Copying files whole: with their checksum, durable, and seen while it continues.

CHUNK_BYTES = 4 << 20

#: Called with bytes that were just read.
OnBytesRead = Callable[[int], None]


class CopyError(Exception):
    """A copy cannot be made, or is not what it should be; the words say why and what to do."""


def os_error_message(error: OSError) -> str:
    """Return as text what the machine did not let us do to a file, and what to do."""
    if isinstance(error, PermissionError):
        return "permission denied; run it as the aggregator's user, or as root"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file exists where a folder is expected"
    return error.strerror or str(error)


def copy_with_checksum(
    source: Path, target: Path, on_bytes_read: OnBytesRead, bytes_max: int | None = None
) -> tuple[int, str]:
    """Copy *source*, at most its first *bytes_max* bytes, durably; return (bytes, SHA-256 in hex).

    Raises OSError, and then may leave a part of *target*.
    """
    digest, size = hashlib.sha256(), 0
    with open(source, "rb") as reading, open(target, "xb") as writing:
        for chunk in chunks(reading, on_bytes_read, bytes_max):
            digest.update(chunk)
            writing.write(chunk)
            size += len(chunk)
        writing.flush()
        os.fsync(writing.fileno())
    return size, digest.hexdigest()


def file_checksum(path: Path, on_bytes_read: OnBytesRead) -> tuple[int, str]:
    """Read the file at *path*; return (bytes, SHA-256 in hex). Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as reading:
        for chunk in chunks(reading, on_bytes_read, None):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def write_new_file(target: Path, data: bytes) -> tuple[int, str]:
    """Write *data* to a new file, durably; return (bytes, SHA-256 in hex). Raises OSError."""
    with open(target, "xb") as writing:
        writing.write(data)
        writing.flush()
        os.fsync(writing.fileno())
    return len(data), hashlib.sha256(data).hexdigest()


def chunks(
    reading: IO[bytes], on_bytes_read: OnBytesRead, bytes_max: int | None
) -> Iterator[bytes]:
    """Yield what is read, up to *bytes_max* bytes, telling *on_bytes_read* of each piece."""
    left = bytes_max
    while chunk := reading.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)):
        on_bytes_read(len(chunk))
        yield chunk
        if left is not None:
            left -= len(chunk)


def free_bytes(folder: Path) -> int:
    """Return how much more the disk under *folder* takes."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def format_bytes(size: int) -> str:
    """Return a size as people say it: 1.4 GB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
