"""Small kernel files and folders: read with limits, missing rather than raising."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path

from ...fingerprints.counters import BLANK_32, BLANK_64

#: What is longer is cut here; the longest file read, /proc/stat of a host with many interrupts, is a tenth.
FILE_BYTES_MAX = 1 << 20
#: Of a folder, no more names than these are looked at.
FOLDER_NAMES_MAX = 65536
#: A device's key is at most this long in UTF-8 (what a frame's row may hold).
KEY_BYTES_MAX = 96

#: How files of the host are opened: what is no file (a FIFO in its place) must not hold us.
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_CHUNK_BYTES = 65536


class KeptFile:
    """A file of /proc that is read again and again through one descriptor."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        #: Whether the last read failed for want of permission.
        self.denied = False

    def read(self) -> bytes:
        """Return the file from its start; empty when it cannot be read. Never raises.

        After an error it is opened afresh next time. A seq_file (diskstats) gives a page at a time,
        hence the loop.
        """
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, READ)
            data = part = os.pread(self._descriptor, _CHUNK_BYTES, 0)
            while part and len(data) < FILE_BYTES_MAX:
                part = os.pread(self._descriptor, _CHUNK_BYTES, len(data))
                data += part
        except OSError as error:
            self.denied = isinstance(error, PermissionError)
            self.close()
            return b""
        self.denied = False
        return data

    def close(self) -> None:
        """Close the descriptor; a later read opens it again."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def read_bytes(path: Path) -> bytes | None:
    """Return the file's content, cut at FILE_BYTES_MAX; None when it cannot be read."""
    try:
        with open(path, "rb", buffering=0, opener=_open) as file:
            return file.read(FILE_BYTES_MAX)
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return None


def _open(path: str, flags: int) -> int:
    return os.open(path, READ)


def read_text(path: Path) -> str | None:
    """Return the file's text without white space around it; None when it cannot be read."""
    data = read_bytes(path)
    return None if data is None else data.decode(errors="replace").strip()


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, in order; none when there is no such folder."""
    try:
        return sorted(os.listdir(folder)[:FOLDER_NAMES_MAX])
    except OSError:
        return []


def folder_identities(folder: Path) -> tuple[tuple[str, int], ...]:
    """Return names and inodes of a folder's entries, links followed: a device that was taken away and
    made again under its name has another inode. 0 for one that is just going."""
    return tuple((name, inode(folder / name)) for name in names_in(folder))


def inode(path: Path) -> int:
    """Return the inode behind *path*, 0 when there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def parse_unsigned(text: str | bytes | None, base: int = 10) -> int | None:
    """Return a whole number of 64 bits; None for anything else (`-1`, `N/A (no PMA)`, empty).

    None too for all ones of 32 or 64 bits: that is -1 of one who has no value, and no count comes there.
    """
    if not text or len(text) > 40:
        return None
    try:
        value = int(text, base)
    except ValueError:
        return None
    # int() also takes 1_000 and digits of other scripts; the kernel writes neither
    odd = (b"_" in text) if isinstance(text, bytes) else ("_" in text or not text.isascii())
    return value if 0 <= value < BLANK_64 and value != BLANK_32 and not odd else None


def read_unsigned(path: Path, base: int = 10) -> int | None:
    """Return the whole number that the file holds; None when it holds none."""
    return parse_unsigned(read_text(path), base)


def device_key(name: str) -> str:
    """Return a kernel's name as a key: valid UTF-8 of at most KEY_BYTES_MAX, the same each time.

    Kernel names are bytes: what is not UTF-8 is replaced, what is too long (a mount point) is cut, and
    either ends in a digest, so that two such names stay apart.
    """
    raw = os.fsencode(name)
    key = raw.decode(errors="replace")
    if len(raw) <= KEY_BYTES_MAX and key.encode() == raw:
        return key
    digest = f"{zlib.crc32(raw):08x}"  # hashlib would load OpenSSL: 3 MB of every host
    cut = key.encode()[: KEY_BYTES_MAX - len(digest) - 1].decode(errors="ignore")
    return f"{cut}~{digest}"
