"""The daemon's end of one sampler: its socket, its memory and its unread messages."""

from __future__ import annotations

from typing import Protocol

from ...ext import place
from . import messages

#: Maximum reads from one sampler before the other samplers have their turn.
READS_MAX = 64


class SamplerSocket(Protocol):
    """The methods of a non-blocking socket that the pool needs."""

    def recv_into(self, room: messages.SampleBatchDecoder, /) -> int: ...
    def send(self, data: bytes, /) -> int: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class WorkerHandle:
    """For the daemon's thread; no method blocks or raises."""

    def __init__(
        self,
        serial: int,
        slot: int,
        link: SamplerSocket,
        memory: memoryview,
        decoder: messages.SampleBatchDecoder,
        now_ns: int,
    ) -> None:
        self.serial, self.slot, self.link, self.memory = serial, slot, link, memory
        self.descriptor = link.fileno()
        self.decoder = decoder
        self.fork_requested_ns = now_ns
        self.pid = 0
        self.grid_ns = 0
        self.outbox = b""
        self.closed_ns = 0  # when its socket was found closed; 0: it is open
        self.has_more = False  # the decoder already has another round
        self.cpu_seconds, self.memory_bytes = 0.0, 0

    def read(self, now_ns: int) -> None:
        """Read the sampler's messages into the decoder until the socket would block, at most READS_MAX reads."""
        reads = 0
        while reads < READS_MAX and not self.closed_ns:
            try:
                size = self.link.recv_into(self.decoder)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            if not size:
                self.closed_ns = now_ns
            if not self.decoder.came(size):
                return
            reads += 1

    def send(self) -> None:
        """Send the outbox until the socket would block."""
        try:
            while self.outbox and not self.closed_ns:
                self.outbox = self.outbox[self.link.send(self.outbox) :]
                place.call(self.memory)  # a sampler in a collector does not poll its socket
        except BlockingIOError:
            return
        except OSError:  # the sampler ended; the fork server reports how
            self.outbox = b""
