"""A sampler as the daemon knows it: the way to it, what has come from it, and what it last said of itself."""

from __future__ import annotations

from typing import Protocol

from ...ext import place
from . import codec

#: Read from one sampler; one that has still more to say is heard on when the others have been.
PIECES_MAX = 64


class Link(Protocol):
    """The way to a sampler: what is needed of a socket that does not block."""

    def recv_into(self, room: codec.Decoder, /) -> int: ...
    def send(self, data: bytes, /) -> int: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Child:
    """For the daemon's thread; no method blocks or raises."""

    def __init__(
        self,
        serial: int,
        slot: int,
        link: Link,
        memory: memoryview,
        decoder: codec.Decoder,
        now_ns: int,
    ) -> None:
        self.serial, self.slot, self.link, self.memory = serial, slot, link, memory
        self.descriptor = link.fileno()
        self.decoder = decoder
        self.asked_ns = now_ns
        self.pid = 0
        self.grid_ns = 0
        self.outbox = b""
        self.closed_ns = 0  # when its socket was found closed; 0: it is open
        self.more = False  # another round has come already
        self.cpu_seconds, self.memory_bytes, self.dropped = 0.0, 0, 0

    def read(self, now_ns: int) -> None:
        """Take what it has said into the decoder, as far as it can be had now."""
        pieces = 0
        while pieces < PIECES_MAX and not self.closed_ns:
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
            pieces += 1

    def send(self) -> None:
        """Send what is in the outbox, as far as it takes it now."""
        try:
            while self.outbox and not self.closed_ns:
                self.outbox = self.outbox[self.link.send(self.outbox) :]
                place.call(self.memory)  # it may be resting in a collector, away from its socket
        except BlockingIOError:
            return
        except OSError:  # it has ended; the nursery says how
            self.outbox = b""
