"""Frames of a stream as differences: decoding returns each byte, or an error message."""

from __future__ import annotations

import random
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.frame import FRAME_BYTES_MAX, FrameError, Stamp
from gangline.contract.signals import TABLES
from gangline.contract.stream import CONTEXT_BYTES_MAX, Receiver, Sender, StreamError

NAMES = ("gpu_1s", "rdma_1s", "gpu_1s_changes", "disk_1s", "hwmon_1s")
#: Doubles of good and of faulty hardware.
FLOATS = st.one_of(
    st.integers(0, 10**6).map(lambda n: n / 1000),
    st.integers(0, 100).map(lambda n: n / 100),
    st.integers(-(2**60), 2**60).map(float),
    st.floats(width=64),
)


def bits(value: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Draw a block of a few devices out of twenty, in order; cells of every size, some missing."""
    table = draw(st.sampled_from(NAMES))
    devices = draw(st.lists(st.integers(0, 19), max_size=20, unique=True).map(sorted))
    block = Block(table, [f"device-{n:02}" for n in devices])
    source = random.Random(draw(st.integers(0, 1 << 32)))
    palette = draw(st.lists(st.one_of(FLOATS.map(bits), st.integers(0, 2**64 - 1)), min_size=1))
    present = draw(st.sampled_from([0.0, 0.5, 1.0, 1.0]))
    for cell in range(len(block.valid)):
        if source.random() < present:
            block.ints[cell] = source.choice(palette)
            block.valid[cell] = 1
    block.offset_ns = draw(st.integers(-(2**63), 2**63 - 1))
    return block


@st.composite
def plain_frames(draw: st.DrawFn) -> bytes:
    stamp = Stamp(
        draw(st.sampled_from([b"r" * 16, b"s" * 16])),
        draw(st.sampled_from([b"b" * 16, b"c" * 16])),
        *(draw(st.integers(0, 2**64 - 1)) for _ in range(3)),
    )
    return frames.encode(stamp, draw(st.lists(blocks(), max_size=4)), deflate=False)


@settings(deadline=None)
@given(st.lists(plain_frames(), max_size=6), st.sampled_from([0, 2000, 6000, CONTEXT_BYTES_MAX]))
def test_what_goes_in_comes_out(sent: list[bytes], bytes_max: int) -> None:
    """Byte for byte, after any earlier stream, and with any memory limit."""
    sender, receiver = Sender(bytes_max), Receiver(bytes_max)
    for frame in sent:
        assert receiver.decode(sender.encode(frame)) == frame
    assert receiver._decoder.kept_bytes == sender._encoder.kept_bytes <= bytes_max


def gpu_frame(sequence: int, source: random.Random, devices: int = 8) -> bytes:
    """Return a frame of similar readings, like those of a second."""
    block = Block("gpu_1s", [f"GPU-{n:032x}" for n in range(devices)])
    for cell in range(len(block.valid)):
        block.put_float(cell // devices, cell % devices, (400_000 + source.randrange(5000)) / 1000)
    return frames.encode(
        Stamp(b"r" * 16, b"b" * 16, sequence, sequence * 10**9, sequence * 10**9),
        [block],
        deflate=False,
    )


def test_differences_are_short_and_nothing_new_is_nothing() -> None:
    """A second of eight GPUs was 120 bytes a row, most of it names and noise in the last bits."""
    sender, source = Sender(CONTEXT_BYTES_MAX), random.Random(1)
    sent = [gpu_frame(n, source) for n in range(1, 5)]
    sizes = [len(sender.encode(frame)) for frame in sent]
    cells = 8 * len(TABLES["gpu_1s"])
    assert max(sizes[2:]) < 2 * cells, "two bytes a cell: twelve bits of noise, a sign and a code"
    again = frames.encode(
        Stamp(b"r" * 16, b"b" * 16, 5, 5 * 10**9, 5 * 10**9), frames.decode(sent[-1]).blocks,
        deflate=False,
    )  # fmt: skip
    assert len(sender.encode(again)) < 32


def test_a_device_that_changed_alone_does_not_name_the_others() -> None:
    """On-change tables send a row or two: their devices' names would be most of it."""
    whole = Block("rdma_1s_changes", [f"mlx5_{n}/1" for n in range(12)])
    sender, receiver = Sender(CONTEXT_BYTES_MAX), Receiver()
    sizes = []
    for sequence, rows in enumerate([range(12), range(12), [5], [0, 11], range(12)], 1):
        part = whole.select(rows)
        for row in range(part.rows):
            part.put_int(0, row, sequence)
        frame = frames.encode(Stamp(b"r" * 16, b"b" * 16, sequence, 1, 1), [part], deflate=False)
        data = sender.encode(frame)
        assert receiver.decode(data) == frame
        sizes.append(len(data))
    assert max(sizes[2:]) < 32 < sizes[1]


def test_tables_of_each_second_find_room_before_those_of_each_minute() -> None:
    """The first frame has every table: rare, large ones had used the whole memory."""
    often = Block("gpu_1s", [f"GPU-{n}" for n in range(8)])
    rarely = Block("nvlink_10s", [f"GPU-{n // 18}/{n % 18}" for n in range(100)])
    sender, receiver = Sender(CONTEXT_BYTES_MAX), Receiver()
    sizes = []
    for sequence in range(1, 23):
        blocks = [rarely, often] if sequence % 10 == 1 else [often]
        often.put_int(0, 0, sequence)
        frame = frames.encode(Stamp(b"r" * 16, b"b" * 16, sequence, 1, 1), blocks, deflate=False)
        data = sender.encode(frame)
        assert receiver.decode(data) == frame
        sizes.append(len(data))
    assert max(sizes[2:10]) < 32
    assert sizes[20] < sizes[0] / 4, "what room is left is theirs"


def test_a_frame_that_was_lost_between_is_noticed() -> None:
    """The receiver never saw the third frame: its result for the fourth fails the checksum."""
    sender, receiver, source = Sender(CONTEXT_BYTES_MAX), Receiver(), random.Random(2)
    first, second, _, fourth = (sender.encode(gpu_frame(n, source)) for n in range(1, 5))
    for data in (first, second):
        frames.decode(receiver.decode(data))
    with pytest.raises(FrameError, match="checksum"):
        frames.decode(receiver.decode(fourth))


def test_after_an_error_neither_end_goes_on() -> None:
    """The remembered state then belongs to no real frame."""
    sender, receiver = Sender(CONTEXT_BYTES_MAX), Receiver()
    good = sender.encode(gpu_frame(1, random.Random(3)))
    with pytest.raises(StreamError, match="early"):
        receiver.decode(good[:-1] if good[0] == 0 else b"\0")
    with pytest.raises(StreamError, match="earlier frame"):
        receiver.decode(good)
    with pytest.raises(StreamError, match="not deflated"):
        sender.encode(frames.deflate_frame(gpu_frame(2, random.Random(3))))
    with pytest.raises(StreamError, match="earlier frame"):
        sender.encode(gpu_frame(2, random.Random(3)))


def seen(body: bytes) -> bytes:
    """Return bytes that begin a frame, and continue with *body*."""
    return b"\0" + b"crc." + b"\1" + bytes(32) + b"\2\2\0" + body


#: One table with a name of one letter: number, flags, offset; name, rows, columns, the columns'
#: ids.
def table(number: int, rows: int, columns: int, flags: int = 1) -> bytes:
    keys = struct.pack("<HH", rows, columns) + bytes(2 * columns) + b"\1d" * rows
    return bytes((number, flags, 0)) + b"\1t" + keys


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begins with"),
        (b"\7", "begins with"),
        (b"\0abc", "ends early"),
        (b"\0crc.\2", "ids 2"),
        (seen(b""), "ends early"),
        (seen(b"\xff" * 12), "longer than 64 bits"),
        (seen(b"\xff\1"), "255 tables"),
        (seen(b"\1\0\0\0"), "table 0 was never defined"),
        (seen(b"\1\0\x08\0"), "flags 8"),
        (seen(b"\1\0\3\0"), "flags 3"),
        (seen(b"\1" + table(1, 1, 1)), "not the next"),
        (seen(b"\1" + table(127, 1, 1)), "not the next"),
        (seen(b"\1" + table(0, 4097, 1)), "too large"),
        (seen(b"\1" + table(0, 1, 513)), "too large"),
        (seen(b"\1" + table(0, 1, 0)), "too large"),
        (seen(b"\1" + table(0, 4096, 100)), "exceed the 32768 bytes"),
        (seen(b"\2" + table(126, 4096, 200) + bytes(12_800) + table(126, 4096, 100)), "more than"),
        (seen(b"\1" + table(0, 1, 1)), "ends early"),
        (seen(b"\1" + table(0, 1, 1) + b"\1\xff"), "ends early"),
        (seen(b"\1" + table(0, 1, 1) + b"\1\x40"), "ends early"),
        (seen(b"\1" + table(0, 1, 1) + b"\0\0"), "left over"),
        (b"\1" + zlib.compress(bytes(FRAME_BYTES_MAX + 1), 9, -15), "does not inflate"),
        (b"\1" + zlib.compress(b"abc", 9, -15)[:-1], "does not inflate"),
        (b"\1garbage", "invalid"),
    ],
)
def test_what_is_none_is_refused_in_words(data: bytes, message: str) -> None:
    """For a hostile sender every length is checked before use."""
    with pytest.raises(StreamError, match=message):
        Receiver().decode(data)


def test_little_makes_no_more_than_a_payload_may_be() -> None:
    """A known table of 4096 rows is two bytes: 128 of them would be a gigabyte."""
    big = table(0, 4096, 60)
    unchanged = bytes((4096 // 8 * 60 + 7) // 8)
    receiver = Receiver(8 << 20)
    many = b"\x0a" + big + unchanged + (b"\0\0\0" + unchanged) * 9
    with pytest.raises(StreamError, match="more than 8388608 bytes"):
        receiver.decode(seen(many))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_damage_is_refused_or_makes_another_frame(data: st.DataObject) -> None:
    """For any bytes: an error, or a frame within the limits that its checksum refuses."""
    sender, receiver, source = Sender(CONTEXT_BYTES_MAX), Receiver(), random.Random(4)
    sent = [gpu_frame(n, source) for n in range(1, 4)]
    for frame in sent[:2]:
        receiver.decode(sender.encode(frame))
    damaged = bytearray(sender.encode(sent[2]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] ^= data.draw(st.integers(1, 255))
    try:
        output = receiver.decode(bytes(damaged))
    except StreamError as error:
        assert str(error)
        return
    if output != sent[2]:
        with pytest.raises(FrameError, match="checksum"):
            frames.decode(output)
