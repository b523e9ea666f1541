"""Reads records of /dev/kmsg, one record per read.

Format: Documentation/ABI/testing/dev-kmsg of the Linux kernel. `prefix,sequence,microseconds,flags;text`,
where prefix is 8 x facility + level, further fields before the `;` may come, and lines beginning with a
blank are the record's dictionary. Bytes that are not printable ASCII stand as `\\xNN`, the backslash too.
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

#: Facility of what the kernel itself says; a user who writes to /dev/kmsg gets 1 (LOG_USER), never 0.
KERNEL_FACILITY = 0
#: One read. The kernel's own limit is 2 KiB a record (8 KiB before 6.4); a longer one costs itself.
RECORD_BYTES_MAX = 1 << 16
#: A log kept in a plain file (a host that is a folder) is read no further.
FILE_BYTES_MAX = 16 << 20
DEVICE_CHARACTERS_MAX = 128

_HEAD = re.compile(rb"(\d{1,4}),(\d{1,19}),(\d{1,19}),([^,;\n]{0,16})[^;\n]{0,256};")
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


class KmsgRecord(NamedTuple):
    """One record. `microseconds` is the kernel's local clock: since boot, suspended time left out."""

    facility: int
    level: int
    sequence: int
    microseconds: int
    is_fragment: bool  # a part of a line whose beginning is in the record before
    text: str
    device: str = ""  # of the dictionary, as `+pci:0000:9b:00.0`


def parse_record(data: bytes) -> KmsgRecord:
    """Return the record. Raises ValueError for anything else, as text; never anything else.

    Bytes that are no UTF-8 become U+FFFD. A dictionary that is cut off costs the dictionary only.
    """
    head = _HEAD.match(data)
    if head is None:
        raise ValueError(f"not a record of the kernel log: {data[:40]!r}")
    prefix = int(head[1])
    end = data.find(b"\n", head.end())
    body = data[head.end() : end if end >= 0 else len(data)]
    flags = head[4]
    return KmsgRecord(
        prefix >> 3,
        prefix & 7,
        int(head[2]),
        int(head[3]),
        b"c" in flags or b"+" in flags,
        _text(body),
        _device(data[end:]) if end >= 0 and len(data) > end + 1 else "",
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
    """Where records come from. A fake passes what the kernel does: see `read`."""

    def fileno(self) -> int:
        """The descriptor to poll for POLLIN; -1 where there is nothing to wait for."""
        ...

    def read(self) -> bytes:
        """Return one record, b"" at the end, which the kernel's log has not.

        Raises BlockingIOError when none is there now, BrokenPipeError (EPIPE) when the next one was
        overwritten: reading continues with the oldest there is; OSError with EINVAL when a record was
        longer than the buffer and is skipped. Any other OSError is the end.
        """
        ...

    def close(self) -> None: ...


class Kmsg:
    """A descriptor that gives a record a read: /dev/kmsg, or a SOCK_SEQPACKET socket or FIFO in tests."""

    def __init__(self, descriptor: int) -> None:
        """Takes *descriptor* over."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> bytes:
        return os.read(self._descriptor, RECORD_BYTES_MAX)

    def close(self) -> None:
        os.close(self._descriptor)


class PlainFile:
    """A log that was kept in a file: its records, then the end."""

    def __init__(self, content: bytes) -> None:
        self._records = split_records(content)

    def fileno(self) -> int:
        return -1

    def read(self) -> bytes:
        return next(self._records, b"")

    def close(self) -> None:
        """There is nothing to close."""


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
    """Return whether one record was longer than the buffer, and is skipped."""
    return error.errno == errno.EINVAL


def suspended_ns() -> int:
    """Nanoseconds that this machine was suspended since boot: the log's clock stood still then."""
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return max(0, boot - time.clock_gettime_ns(time.CLOCK_MONOTONIC))
