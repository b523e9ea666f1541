"""Recordings on their way to the aggregator: whole answers in, pieces out, one after another."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...contract.wire.telemetry_pb2 import StoredRecording, UploadRecordingRequest

#: A piece. A live frame that comes meanwhile waits for no more than this.
PIECE_BYTES = 1 << 15
#: Answers that wait; more are dropped, and their requesters see a deadline pass.
UPLOADS_MAX = 4
#: All that wait together.
UPLOAD_BYTES_MAX = 32 << 20


@dataclass(slots=True)
class RecordingUpload:
    """The answer to a request: a file, a list, or why there is none; and how much of it was accepted."""

    request_id: str
    data: bytes = b""
    error: str = ""
    stored: Sequence[StoredRecording] = ()
    offset: int = 0


class RecordingUploads:
    """For all threads. No method blocks or raises."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[RecordingUpload] = deque()
        #: Wakes who sends.
        self.notify: Callable[[], None] = lambda: None
        self.dropped_uploads = 0
        self.last_refusal = ""

    @property
    def waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._waiting)

    def add(self, upload: RecordingUpload) -> None:
        """Send it when those before it are sent; dropped where too many wait."""
        with self._lock:
            size = len(upload.data) + sum(len(each.data) for each in self._waiting)
            if len(self._waiting) >= UPLOADS_MAX or size > UPLOAD_BYTES_MAX:
                self.dropped_uploads += 1
                return
            self._waiting.append(upload)
        self.notify()

    def next_piece(self) -> UploadRecordingRequest | None:
        """Return what is to be sent next; the same again until it is accepted or refused."""
        with self._lock:
            if not self._waiting:
                return None
            upload = self._waiting[0]
            return UploadRecordingRequest(
                id=upload.request_id,
                offset=upload.offset,
                total_bytes=len(upload.data),
                data=upload.data[upload.offset : upload.offset + PIECE_BYTES],
                error=upload.error,
                stored=upload.stored,
            )

    def accept(self) -> None:
        """The last piece was taken."""
        with self._lock:
            if self._waiting:
                upload = self._waiting[0]
                upload.offset += PIECE_BYTES
                if upload.offset >= len(upload.data):
                    self._waiting.popleft()

    def refuse(self, reason: str) -> None:
        """The aggregator does not want it: drop it."""
        with self._lock:
            self.last_refusal = reason
            if self._waiting:
                self._waiting.popleft()
