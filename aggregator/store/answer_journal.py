"""The journal of advice: keeps answers on disk, before they are acknowledged, until the store has
them.

A commit of the store can take ten seconds on a busy disk; an answer waits only for an append and
its fsync. A record is a line `<CRC-32 of the rest, 8 hex digits> <number> <kind> <body>`. The
numbers are those of `advice_events`, so a record that is also in the store is recognized after a
kill. An incomplete last line was never acknowledged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...contract.durable_file import sync_folder
from ..errors import DISK_RETRY_SECONDS, ResourceExhausted, ServiceUnavailable

log = logging.getLogger(__name__)

ANSWERS_FILE = "answers.journal"
#: At the limit answers wait for the store's commit.
ANSWERS_BYTES_MAX = 16 << 20
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class AnswerRecord(NamedTuple):
    """An event of the advisory state machine, as stored in the table `advice_events`."""

    number: int
    kind: str
    body: str


class AnswerJournal:
    """Thread-safe. All methods block on the disk: do not call them on the event loop."""

    def __init__(self, path: Path) -> None:
        """Open or create the file at *path*, and cut off an incomplete record at its end. Raises OSError."""
        self._lock = threading.Lock()
        self._path = path
        self._descriptor = os.open(path, _FLAGS, 0o640)
        sync_folder(path.parent)
        data = b"".join(iter(lambda: os.read(self._descriptor, 1 << 20), b""))
        #: Records that the store may lack.
        self.replayed = list(parse_answers(data))
        self._size = sum(len(encode_answer(record)) for record in self.replayed)
        self._last = self.replayed[-1].number if self.replayed else 0
        if b"\n" in data[self._size :]:
            path.with_name(f"{path.name}.damaged").write_bytes(data)
            log.error(
                "%s is damaged at byte %d; answers after that are lost, it is kept as %s.damaged",
                path, self._size, path.name,
            )  # fmt: skip
        os.ftruncate(self._descriptor, self._size)

    def append(self, records: Sequence[AnswerRecord]) -> None:
        """Write and fsync all *records*, or none. Raises ServiceUnavailable, ResourceExhausted."""
        data = b"".join(map(encode_answer, records))
        with self._lock:
            if self._size + len(data) > ANSWERS_BYTES_MAX:
                message = (
                    f"{self._size} bytes of answers wait for the store, at most {ANSWERS_BYTES_MAX}"
                )
                raise ResourceExhausted(message, DISK_RETRY_SECONDS)
            try:
                written = os.pwrite(self._descriptor, data, self._size)
                if written != len(data):
                    raise OSError(None, f"{written} of {len(data)} bytes were written")
                os.fsync(self._descriptor)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
                raise ServiceUnavailable(
                    f"the answer cannot be written to disk: {error.strerror}"
                ) from error
            self._size += len(data)
            self._last = max(self._last, *(record.number for record in records))

    def mark_stored(self, number: int) -> None:
        """Empty the file if the store has event *number*, the journal's last. Never raises."""
        with self._lock, contextlib.suppress(OSError):
            if self._size and number >= self._last:
                os.ftruncate(self._descriptor, 0)
                self._size = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def encode_answer(record: AnswerRecord) -> bytes:
    text = f"{record.number} {record.kind} {record.body}".encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def parse_answers(data: bytes) -> Iterator[AnswerRecord]:
    """Yield the records of *data* up to the first incomplete or damaged record."""
    for line in data.splitlines(keepends=True):
        checksum, _, text = line.removesuffix(b"\n").partition(b" ")
        if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text):
            return
        number, kind, body = text.decode().split(" ", 2)
        yield AnswerRecord(int(number), kind, body)
