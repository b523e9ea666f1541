"""Recordings to be uploaded: complete answers in, pieces out, in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...contract.wire.telemetry_pb2 import StoredRecording, UploadRecordingRequest

#: Bytes of a piece, which bounds the delay of a live frame.
PIECE_BYTES = 1 << 15
#: Answers that wait. Further answers are dropped, and their requests time out.
UPLOADS_MAX = 4
#: Bytes of all waiting answers together.
UPLOAD_BYTES_MAX = 32 << 20


@dataclass(slots=True)
class RecordingUpload:
    """The answer to a request: a file, a list, or an error. `offset`: bytes accepted."""

    request_id: str
    data: bytes = b""
    error: str = ""
    stored: Sequence[StoredRecording] = ()
    offset: int = 0


class RecordingUploads:
    """Queue of uploads. For all threads; no method blocks or raises."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[RecordingUpload] = deque()
        #: Wakes the client's thread.
        self.notify: Callable[[], None] = lambda: None
        self.dropped_uploads = 0
        self.last_refusal = ""

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, upload: RecordingUpload) -> None:
        """Queue *upload*, or drop it if too much waits."""
        with self._lock:
            size = len(upload.data) + sum(len(waiting.data) for waiting in self._waiting)
            if len(self._waiting) >= UPLOADS_MAX or size > UPLOAD_BYTES_MAX:
                self.dropped_uploads += 1
                return
            self._waiting.append(upload)
        self.notify()

    def next_piece(self) -> UploadRecordingRequest | None:
        """Return the next piece; the same again until `accept` or `refuse`."""
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
        """Continue after the aggregator accepted the last piece."""
        with self._lock:
            if self._waiting:
                upload = self._waiting[0]
                upload.offset += PIECE_BYTES
                if upload.offset >= len(upload.data):
                    self._waiting.popleft()

    def refuse(self, reason: str) -> None:
        with self._lock:
            self.last_refusal = reason
            if self._waiting:
                self._waiting.popleft()
