"""Frames: what an agent sends, and what anybody may send."""

from __future__ import annotations

import random
import struct
import zlib

from gangline.fingerprints import frames
from gangline.fingerprints.block import Block
from gangline.fingerprints.catalogue import TABLES
from gangline.fingerprints.frames import FrameError, Stamp
from tests.fuzzing.damage import ACCEPTED, REFUSED, flipped


def some_frame(source: random.Random) -> bytes:
    """Return a valid frame of random tables and cells."""
    stamp = Stamp(source.randbytes(16), source.randbytes(16), source.getrandbits(64), 1, 2)
    blocks = []
    for _ in range(source.randrange(4)):
        block = Block(source.choice(sorted(TABLES)), [f"d{i}" for i in range(source.randrange(9))])
        for cell in range(len(block.valid)):
            block.valid[cell] = source.random() < 0.8
            block.ints[cell] = source.getrandbits(source.choice((1, 8, 32, 64)))
        blocks.append(block)
    return frames.encode(stamp, blocks)


def resealed(data: bytes) -> bytes:
    """Return *data* with a checksum that is right, as a hostile sender would."""
    return data if len(data) < 8 else data[:4] + struct.pack("<I", zlib.crc32(data[8:])) + data[8:]


def fuzz_frames(source: random.Random) -> str:
    """A damaged frame is refused with FrameError, or (sealed anew) decodes within the limits."""
    data = some_frame(source)
    for _ in range(source.randrange(1, 5)):
        data = flipped(data, source)
    if source.random() < 0.7:
        data = resealed(data)
    try:
        frame = frames.decode(data)
    except FrameError as error:
        assert str(error), "a refusal without words"
        return REFUSED
    frames.encode(frame.stamp, frame.blocks)  # what was let in can be spoken again
    return ACCEPTED


TARGETS = {"frames": fuzz_frames}
