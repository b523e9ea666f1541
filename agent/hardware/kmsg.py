"""Reads records of /dev/kmsg, one record per read.

Format: Documentation/ABI/testing/dev-kmsg of the Linux kernel.
`prefix,sequence,microseconds,flags;text`, where prefix is 8 x facility + level. Further fields may
come before the `;`. Lines that begin with a blank are the record's dictionary. Bytes that are not
printable ASCII, and the backslash, are written as `\\xNN`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

#: Facility of the kernel's own records; a user who writes to /dev/kmsg gets 1 (LOG_USER), never 0.
KERNEL_FACILITY = 0
#: Buffer of a read. The kernel's limit is 2 KiB per record (8 KiB before 6.4); a longer record is
#: skipped.
RECORD_BYTES_MAX = 1 << 16
#: Maximum that is read of a log in a plain file (a host that is a folder).
FILE_BYTES_MAX = 16 << 20
DEVICE_CHARACTERS_MAX = 128

_HEAD = re.compile(rb"(\d{1,4}),(\d{1,19}),(\d{1,19}),([^,;\n]{0,16})[^;\n]{0,256};")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


class KmsgRecord(NamedTuple):
    """A record. `microseconds` is the kernel's local clock: since boot, without suspended time."""

    facility: int
    level: int
    sequence: int
    microseconds: int
    is_fragment: bool  # part of a line that begins in the record before
    text: str
    device: str = ""  # from the dictionary, as `+pci:0000:9b:00.0`


def parse_record(data: bytes) -> KmsgRecord:
    """Return the record. Raises ValueError for any other data.

    Bytes that are not UTF-8 become U+FFFD. A truncated dictionary is ignored, not the record.
    """
    head = _HEAD.match(data)
    if head is None:
        raise ValueError(f"not a record of the kernel log: {data[:40]!r}")
    prefix = int(head[1])
    end = data.find(b"\n", head.end())
    body = data[head.end() : end if end >= 0 else len(data)]
    flags = head[4]
    return KmsgRecord(
        facility=prefix >> 3,
        level=prefix & 7,
        sequence=int(head[2]),
        microseconds=int(head[3]),
        is_fragment=b"c" in flags or b"+" in flags,
        text=_text(body),
        device=_device(data[end:]) if end >= 0 and len(data) > end + 1 else "",
    )


def _text(body: bytes) -> str:
    if b"\\x" in body:
        body = _ESCAPE.sub(_unescaped, body)
    return body.decode("utf-8", "replace")


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes((int(match[1], 16),))


def _device(dictionary: bytes) -> str:
    for line in dictionary.split(b"\n"):
        if line.startswith(b" DEVICE="):
            return _text(line[8:])[:DEVICE_CHARACTERS_MAX]
    return ""


class KmsgSource(Protocol):
    """A source of records, with the kernel's behavior: see `read`."""

    def fileno(self) -> int:
        """Return the descriptor to poll for POLLIN; -1: nothing to wait for."""
        ...

    def read(self) -> bytes:
        """Return a record; b"" at the end of a file, which the kernel's log does not have.

        Raises BlockingIOError without a new record; BrokenPipeError (EPIPE) if the next record was
        overwritten, after which the oldest record follows; OSError with EINVAL for a record that is
        longer than the buffer and is skipped. Any other OSError is final.
        """
        ...

    def close(self) -> None: ...


class Kmsg:
    """A descriptor with a record per read: /dev/kmsg; a SOCK_SEQPACKET socket or FIFO in tests."""

    def __init__(self, descriptor: int) -> None:
        """Take over *descriptor*: `close` closes it."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> bytes:
        return os.read(self._descriptor, RECORD_BYTES_MAX)

    def close(self) -> None:
        os.close(self._descriptor)


class PlainFile:
    """A log in a file: its records, then the end."""

    def __init__(self, content: bytes) -> None:
        self._records = split_records(content)

    def fileno(self) -> int:
        return -1

    def read(self) -> bytes:
        return next(self._records, b"")

    def close(self) -> None:
        """Do nothing."""


def split_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of *content*, each with its dictionary lines."""
    record: list[bytes] = []
    for line in content.splitlines(keepends=True):
        if record and not line.startswith(b" "):
            yield b"".join(record)
            record = []
        record.append(line)
    if record:
        yield b"".join(record)


def open_log(path: Path) -> KmsgSource:
    """Open the log at *path*. Raises OSError; PermissionError under `kernel.dmesg_restrict`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return Kmsg(descriptor)
    with open(descriptor, "rb") as file:
        return PlainFile(file.read(FILE_BYTES_MAX))


def is_overrun(error: OSError) -> bool:
    """Return whether records were overwritten before they were read."""
    return error.errno == errno.EPIPE


def is_too_long(error: OSError) -> bool:
    """Return whether a record was longer than the buffer, and was skipped."""
    return error.errno == errno.EINVAL


def suspended_ns() -> int:
    """Return the nanoseconds of suspension since boot, during which the log's clock does not advance."""
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return max(0, boot - time.clock_gettime_ns(time.CLOCK_MONOTONIC))
