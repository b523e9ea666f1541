"""Durable file operations (fsync), copies with checksums, and formatted sizes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

CHUNK_BYTES = 4 << 20


def sync_folder(folder: Path) -> None:
    """Make renames in *folder* durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write *path* durably: after a power cut it has the old or the new content. Raises OSError."""
    new = path.with_suffix(".new")
    with open(new, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


#: Called with the size of each chunk that was read.
OnBytesRead = Callable[[int], None]


class CopyError(Exception):
    """A copy failed or is damaged; the message says why, and the remedy."""


def os_error_message(error: OSError) -> str:
    """Return a message for a failed file operation, with the remedy."""
    if isinstance(error, PermissionError):
        return "permission denied; run it as the aggregator's user, or as root"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file exists where a folder is expected"
    return error.strerror or str(error)


def copy_with_checksum(
    source: Path, target: Path, on_bytes_read: OnBytesRead, bytes_max: int | None = None
) -> tuple[int, str]:
    """Copy *source* durably, at most *bytes_max* bytes; return (bytes, SHA-256 in hex).

    Raises OSError, and may then leave a part of *target*.
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
    """Yield chunks of up to *bytes_max* bytes in all, after calling *on_bytes_read* for each."""
    left = bytes_max
    while chunk := reading.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left)):
        on_bytes_read(len(chunk))
        yield chunk
        if left is not None:
            left -= len(chunk)


def free_bytes(folder: Path) -> int:
    """Return the bytes available on the disk of *folder*."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def format_bytes(size: int) -> str:
    """Return a size with a decimal unit, such as 1.4 GB."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
