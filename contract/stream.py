"""Encodes a frame as the difference to earlier frames of its stream: about an eighth of a deflated frame.

A frame in the spool needs nothing else to be read. A stream keeps its order, so that both of its ends may
remember of each table what passed last, and only what has changed since needs to travel. What comes out at
the other end is the frame itself, byte for byte, with the checksum that it was made with: whatever goes
wrong on the way, or between the two memories, shows there, and ends the stream. The next one begins with
nothing remembered. Frames that wait in the spool travel between the others, and change no memory: whole, or
several a message, each as differences to those before it there. A message remembers nothing of the one before.

`gangline.ext.deltas` has the coder. Little endian; numbers marked * in bytes of seven bits, lowest first,
signed ones zigzag:

    1   0: as it is, 1: what follows is deflated (raw)
    4   the frame's checksum
    1   0: ids as before, 1: run id and boot id follow, 16 bytes each
    *   sequence, and boot time: steps from those before
    *   wall clock less boot time: step from that before
    *   number of tables, which follow

A table:

    1   its number on this stream; 126: defined here and not remembered
    1   1: defined here, all zero and missing; 2: not all of its rows; 4: other cells are valid than before
    *   offset of its readings: step from that before
        if defined: name, rows, columns, signal ids, devices, as in the frame
        if not all rows: a bit for each row of its definition
        if others are valid: a bit a cell, as in the frame
        a bit for each batch of eight rows of one column: whether it changed
        a byte for each that did: bits of a step, and of what number (`ext/deltas_cells.pxd`)
        the steps, zigzag, one after another without gaps

What a receiver holds of one stream is bounded by CONTEXT_BYTES_MAX, which it says in RegisterNode's answer;
a sender remembers no more, and sends the tables that do not fit defined again each time. It remembers a table
from its second coming on: a stream begins with all tables, and those of each second are to find room before
those of each minute. Frames with tables that are not remembered are mostly names: that is what they are
deflated for.
"""

from __future__ import annotations

import zlib

from ..ext.deltas import Decoder, Encoder
from .frame import FRAME_BYTES_MAX

#: Of one stream, at one end: 9 bytes a cell, the names, and 512 bytes a table. A host with eight GPUs of 18
#: NVLinks and twelve ports has 16 kB of tables of each second, and 170 kB of all; ten thousand hosts take at
#: most 0.33 GB.
CONTEXT_BYTES_MAX = 1 << 15
#: Late frames that one message carries: a message costs an aggregator 40 us of CPU, a frame in it 2 us.
#: Of a host with eight GPUs they are 5 kB.
LATE_FRAMES_MAX = 16
#: What is shorter is not deflated: differences are noise, and there is little else in it.
DEFLATED_BYTES_MIN = 2048


class StreamError(ValueError):
    """The two ends of a stream no longer remember the same; the words say what showed it."""


class Sender:
    """The sending end of one stream. Of no more use after a StreamError."""

    def __init__(self, bytes_max: int) -> None:
        self._encoder = Encoder(bytes_max)

    def encode(self, frame: bytes) -> bytes:
        """Return what goes in place of *frame*, which must be plain (`frames.is_plain`)."""
        try:
            body = self._encoder.encode(frame)
        except ValueError as error:
            raise StreamError(str(error)) from error
        if len(body) >= DEFLATED_BYTES_MIN:
            return b"\1" + zlib.compress(body, 1, -15)
        return b"\0" + body


class Receiver:
    """The receiving end of one stream. Of no more use after a StreamError."""

    def __init__(self, bytes_max: int = CONTEXT_BYTES_MAX) -> None:
        self._decoder = Decoder(bytes_max)

    def decode(self, data: bytes) -> bytes:
        """Return the frame. Its checksum is still to be looked at: `frames.decode` does."""
        try:
            body = data[1:] if data[:1] == b"\0" else _inflate(data)
            return self._decoder.decode(body)
        except (ValueError, zlib.error) as error:
            raise StreamError(str(error)) from error


def _inflate(data: bytes) -> bytes:
    if data[:1] != b"\1":
        raise ValueError(f"it begins with {data[:1]!r}: 0 (as it is) or 1 (deflated)")
    inflater = zlib.decompressobj(-15)
    body = inflater.decompress(data[1:], FRAME_BYTES_MAX)
    if not inflater.eof or inflater.unused_data:
        raise ValueError(f"it does not inflate to a whole of at most {FRAME_BYTES_MAX} bytes")
    return body
