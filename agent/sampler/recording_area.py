"""Shared memory through which a sampler hands a recording (1 MB) to the daemon, keeping the socket free for readings.

The daemon and every process forked from it share the memory. It uses no pages until it is written to, and none after it is
cleared. An abandoned sampler may write into it late, so `contract.recording` has a checksum.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

#: Of 38 GPUs five minutes fit, at 10 Hz; of more, less time.
AREA_BYTES = 4 << 20


class RecordingArea:
    """One recording at a time. No method blocks."""

    def __init__(self, size: int = AREA_BYTES) -> None:
        self.size = size
        self._memory = mmap.mmap(-1, size)

    def write(self, data: bytes) -> None:
        """Put *data* at the beginning. Raises ValueError if it is longer than the area."""
        if len(data) > self.size:
            raise ValueError(f"{len(data)} bytes of samples, at most {self.size}")
        self._memory[: len(data)] = data

    def read(self, size: int) -> bytes:
        """Return the first *size* bytes, fewer if there are no more."""
        return self._memory[: min(size, self.size)]

    def clear(self) -> None:
        """Give the memory back to the host."""
        with suppress(OSError):
            self._memory.madvise(mmap.MADV_REMOVE)


#: Of this process and those forked from it.
RECORDING_AREA = RecordingArea()
