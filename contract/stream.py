"""Encodes a frame as the difference to earlier frames of its stream: about an eighth of a deflated frame.

A frame in the spool can be read on its own. A stream keeps the order of its frames, so both ends can remember the last
frame of each table, and only the changes need to travel. The receiver restores the frame byte for byte, with its
original checksum: an error in transit, or a difference between the two memories, fails that check and ends the stream.
The next stream begins with empty memories. Late frames, which waited in the spool, travel between the others and change
neither memory: a message has a whole late frame, or several, each as differences to the earlier frames of that message.
No message of late frames depends on an earlier message.

`gangline.ext.deltas` has the coder. Numbers are little endian. Numbers marked * are written in groups of seven bits,
lowest first; signed numbers are zigzag-encoded:

    1   0: the rest is plain, 1: the rest is deflated (raw)
    4   the frame's checksum
    1   0: same ids as before, 1: run id and boot id follow, 16 bytes each
    *   sequence, and boot time: differences to the previous frame
    *   wall clock minus boot time: difference to the previous frame
    *   number of tables, which follow

A table:

    1   its number on this stream; 126: defined here and not remembered
    1   flags. 1: defined here, all cells zero and missing; 2: only some of its rows; 4: the validity of cells changed
    *   offset of its readings: difference to the previous offset
        if defined: name, rows, columns, signal ids, devices, as in the frame
        if some rows: a bit for each row of its definition
        if validity changed: a bit per cell, as in the frame
        a bit for each batch of eight rows of one column: whether it changed
        a byte for each changed batch: bits per difference, and the number of decimals (`ext/deltas_cells.pxd`)
        the differences, zigzag-encoded, without gaps

CONTEXT_BYTES_MAX bounds the memory of a receiver for one stream; RegisterNode's answer has the limit. A sender
remembers no more than that, and defines tables beyond it again in each frame. It remembers a table when the table comes
for the second time: a stream begins with all tables, and the tables of each second must find space before the tables of
each minute. Frames with tables that are not remembered consist mostly of names, and are therefore deflated.
"""

from __future__ import annotations

import zlib

from ..ext.deltas import Decoder, Encoder
from .frame import FRAME_BYTES_MAX

#: Memory for one stream at one end: 9 bytes a cell, the names, and 512 bytes a table. A host with eight GPUs of 18
#: NVLinks and twelve ports has 16 kB of tables of each second, and 170 kB of all tables; 10,000 hosts take at most
#: 0.33 GB.
CONTEXT_BYTES_MAX = 1 << 15
#: Late frames per message: a message costs an aggregator 40 us of CPU, a frame in it 2 us. LATE_FRAMES_MAX late frames
#: of a host with eight GPUs are 5 kB.
LATE_FRAMES_MAX = 16
#: Shorter bodies are not deflated: they are mostly differences, which are noise and do not compress.
DEFLATED_BYTES_MIN = 2048


class StreamError(ValueError):
    """The memories of the two ends of a stream differ; the message names the evidence."""


class Sender:
    """The sending end of one stream. Unusable after a StreamError."""

    def __init__(self, bytes_max: int) -> None:
        self._encoder = Encoder(bytes_max)

    def encode(self, frame: bytes) -> bytes:
        """Return the message body that replaces *frame*, which must be plain (`frame.is_plain`)."""
        try:
            body = self._encoder.encode(frame)
        except ValueError as error:
            raise StreamError(str(error)) from error
        if len(body) >= DEFLATED_BYTES_MIN:
            return b"\1" + zlib.compress(body, 1, -15)
        return b"\0" + body


class Receiver:
    """The receiving end of one stream. Unusable after a StreamError."""

    def __init__(self, bytes_max: int = CONTEXT_BYTES_MAX) -> None:
        self._decoder = Decoder(bytes_max)

    def decode(self, data: bytes) -> bytes:
        """Return the frame. The caller must check its checksum, as `frame.decode` does."""
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
