"""Frames of an agent, and of any other client."""

from __future__ import annotations

import random
import struct
import zlib

from google.protobuf.message import DecodeError

from gangline.aggregator.errors import StreamDesync, StreamRefused
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import CATALOGUE, FrameStreamReader, check_backlog
from gangline.aggregator.store.frame_rows import HostFrame, batch
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.frame import FrameError, Stamp
from gangline.contract.signals import TABLES
from gangline.contract.stream import CONTEXT_BYTES_MAX, Receiver, Sender, StreamError
from gangline.contract.wire.telemetry_pb2 import TelemetryBatch
from gangline.ext.columns import unpack
from gangline.ext.intake import Reader
from tests.fuzzing.damage import ACCEPTED, REFUSED, flipped


def some_blocks(source: random.Random) -> list[Block]:
    """Return random tables of devices, without a cell."""
    return [
        Block(source.choice(sorted(TABLES)), [f"d{i}" for i in range(source.randrange(9))])
        for _ in range(source.randrange(4))
    ]


def some_frame(source: random.Random, blocks: list[Block]) -> bytes:
    """Return a valid frame of *blocks*, with some cells drawn at random."""
    stamp = Stamp(source.randbytes(16), source.randbytes(16), source.getrandbits(64), 1, 2)
    for block in blocks:
        for cell in range(len(block.valid)):
            if source.random() < 0.5:
                block.valid[cell] = source.random() < 0.8
                block.ints[cell] = source.getrandbits(source.choice((1, 8, 32, 64)))
    return frames.encode(stamp, blocks)


def resealed(data: bytes) -> bytes:
    """Return *data* with a checksum that is right, as a hostile sender would."""
    return data if len(data) < 8 else data[:4] + struct.pack("<I", zlib.crc32(data[8:])) + data[8:]


def fuzz_frames(source: random.Random) -> str:
    """A damaged frame is refused with FrameError, or (with a valid checksum again) decodes within the limits."""
    data = some_frame(source, some_blocks(source))
    for _ in range(source.randrange(1, 5)):
        data = flipped(data, source)
    if source.random() < 0.7:
        data = resealed(data)
    try:
        frame = frames.decode(data)
    except FrameError as error:
        assert str(error), "a refusal without words"
        return REFUSED
    frames.encode(frame.stamp, frame.blocks)  # an accepted frame can be encoded again
    return ACCEPTED


def fuzz_intake(source: random.Random) -> str:
    """A damaged frame, to a reader that knows the previous frame's tables: the result equals that of `frames.decode`."""
    reader = Reader(CATALOGUE, frames.decode)
    data = some_frame(source, some_blocks(source))
    reader.read(data)
    data = frames.inflate_frame(data) if source.random() < 0.5 else data
    for _ in range(source.randrange(1, 5)):
        data = flipped(data, source)
    data = resealed(data)
    try:
        expected = frames.decode(data)
    except FrameError as error:
        try:
            reader.read(data)
        except FrameError as refused:
            assert str(refused) == str(error), "other words"
            return REFUSED
        raise AssertionError("taken by one of two readers") from error
    decoded = reader.read(data)
    tables = [
        (shape.columns.signal_ids, decoded.devices(index))
        for index, shape in enumerate(decoded.shapes)
    ]
    assert tables == [(block.signal_ids, block.devices) for block in expected.blocks]
    for index, block in enumerate(expected.blocks):
        cells, valid = bytearray(len(block.cells)), bytearray(len(block.valid))
        unpack(decoded.packed_cells(index), cells, valid, len(block.signal_ids), block.rows)
        assert (cells, valid) == (block.cells, block.valid)
    host_frame = HostFrame("a", decoded, source.choice((0, 2**70, -(2**70), 10**18)))
    assert sum(table.num_rows for _, table in batch([host_frame]).known) <= decoded.rows
    fleet = Fleet()
    fleet.register("a", simulated=True, boot_id=decoded.boot_id, devices=[])
    fleet.observe("a", decoded, 10**18)
    return ACCEPTED


def fuzz_streams(source: random.Random) -> str:
    """A stream with a damaged frame ends with an error there, or the result has a wrong checksum."""
    sender, receiver = Sender(1 << 14), Receiver(1 << 14)
    blocks, frame = some_blocks(source), b""
    for _ in range(source.randrange(1, 5)):  # a table is remembered from its second coming on
        frame = frames.inflate_frame(some_frame(source, blocks))
        assert receiver.decode(sender.encode(frame)) == frame
    if source.random() < 0.5:
        data = flipped(sender.encode(frame), source)
    else:  # deflated bytes are seldom recognized in damaged data
        data = b"\0" + flipped(sender._encoder.encode(frame), source)
    try:
        decoded = receiver.decode(data)
    except StreamError as error:
        assert str(error), "a refusal without words"
        return REFUSED
    try:
        frames.decode(decoded)
    except FrameError:
        return REFUSED
    assert decoded == frame, "damage that no checksum saw"
    return ACCEPTED


def fuzz_late(source: random.Random) -> str:
    """A damaged message of late frames: each frame is unchanged, refused with an error, or ends the stream."""
    blocks = some_blocks(source)
    inflated = [
        frames.inflate_frame(some_frame(source, blocks)) for _ in range(source.randrange(1, 5))
    ]
    sender, message = Sender(CONTEXT_BYTES_MAX), TelemetryBatch(sequence=1, backlog=True)
    stamps = [frames.read_stamp(frame) for frame in inflated]
    message.late.extend(b"\0" + sender._encoder.encode(frame) for frame in inflated)
    index = source.randrange(len(inflated))
    if source.random() < 0.5:
        message.late[index] = b"\0" + flipped(message.late[index][1:], source)
    else:  # as a whole: a frame more, a field more
        try:
            message = TelemetryBatch.FromString(flipped(message.SerializeToString(), source))
        except DecodeError:
            return REFUSED
    try:
        check_backlog(message)
        incoming = FrameStreamReader()
        for _ in range(len(message.late)):
            decoded = incoming.frame(message)
            stamp = (
                decoded.run_id,
                decoded.boot_id,
                decoded.sequence,
                decoded.boottime_ns,
                decoded.wall_ns,
            )
            assert stamp in stamps and incoming.sequence == decoded.sequence, (
                "damage that was not seen"
            )
    except (StreamRefused, StreamDesync, FrameError) as error:
        assert str(error), "a refusal without words"
        return REFUSED
    return ACCEPTED


TARGETS = {"late": fuzz_late, "frames": fuzz_frames, "intake": fuzz_intake, "streams": fuzz_streams}
