"""Frames: decoding returns the encoded content, and invalid data is refused."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.frame import FrameError, Stamp
from gangline.contract.signals import TABLES
from gangline.ext import columns

STAMP = Stamp(b"r" * 16, b"b" * 16, 7, 123_000_000_000, 1_700_000_000_000_000_000)

u64 = st.integers(0, 2**64 - 1)
devices = st.lists(st.text(min_size=1, max_size=20), min_size=0, max_size=9)
stamps = st.builds(
    Stamp, st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16), u64, u64, u64
)


@st.composite
def blocks(draw: st.DrawFn, tables: Collection[str] = TABLES) -> Block:
    """Draw a block of any table, with any cells, some missing."""
    block = Block(draw(st.sampled_from(sorted(tables))), draw(devices))
    block.offset_ns = draw(st.integers(-(2**63), 2**63 - 1))
    for cell in range(len(block.valid)):
        value = draw(st.one_of(st.none(), u64, st.integers(0, 300)))
        if value is not None:
            block.ints[cell], block.valid[cell] = value, 1
    return block


def content(block: Block) -> tuple[object, ...]:
    """Return a block's content: the bits of missing cells do not count."""
    rows = [list(block.values(row)) for row in range(block.rows)]
    bits = [block.ints[i] if block.valid[i] else None for i in range(len(block.valid))]
    return block.table, block.offset_ns, block.signal_ids, block.devices, bits, len(rows)


def an_example() -> bytes:
    block = Block("gpu_1s", [f"GPU-{i}" for i in range(8)])
    for column in range(len(block.signal_ids)):
        for row in range(8):
            block.put_int(column, row, column * 1000 + row)
    return frames.encode(STAMP, [block])


EXAMPLE = an_example()


@given(stamps, st.lists(blocks(), max_size=4))
def test_what_goes_in_comes_out(stamp: Stamp, given_blocks: list[Block]) -> None:
    """Any readings, any number of missing cells, any names."""
    frame = frames.decode(frames.encode(stamp, given_blocks))
    assert frame.stamp == stamp
    assert [content(b) for b in frame.blocks] == [content(b) for b in given_blocks]


def test_an_unknown_signal_passes_through() -> None:
    """An agent one version ahead sends an id missing in this side's catalogue."""
    block = Block("gpu_1s", ["GPU-0"], [1000, 65000])
    block.put_int(1, 0, 42)
    got = frames.decode(frames.encode(STAMP, [block])).blocks[0]
    assert got.signal_ids == (1000, 65000)
    assert list(got.values(0)) == [(1000, None), (65000, 42)]


@given(st.integers(0, len(EXAMPLE) - 1))
def test_truncated_is_refused(length: int) -> None:
    """A connection that broke in the middle of a frame."""
    with pytest.raises(FrameError, match=r"truncated|checksum"):
        frames.decode(EXAMPLE[:length])


@given(st.integers(0, len(EXAMPLE) * 8 - 1))
def test_one_flipped_bit_is_refused(bit: int) -> None:
    """A faulty memory or disk: always a refusal, never a wrong value."""
    damaged = bytearray(EXAMPLE)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        frames.decode(bytes(damaged))


@given(st.binary(max_size=400))
def test_noise_is_refused(data: bytes) -> None:
    """Any data on an open port: FrameError, never another exception."""
    with pytest.raises(FrameError):
        frames.decode(data)


def sealed(header: bytes, body: bytes) -> bytes:
    """Return a frame with a right checksum, so that its content is read."""
    crc = zlib.crc32(body, zlib.crc32(header[8:]))
    return header[:4] + struct.pack("<I", crc) + header[8:] + body


@given(st.integers(0, 300), st.integers(0, 2), st.binary(max_size=200), st.integers(0, 300))
def test_a_right_checksum_is_not_enough(tables: int, coding: int, body: bytes, length: int) -> None:
    """A hostile agent can compute checksums: every length is checked before use."""
    header = bytearray(EXAMPLE[:72])
    header[9] = coding
    header[10:12] = struct.pack("<H", tables)
    header[12:16] = struct.pack("<I", length)
    try:
        frame = frames.decode(sealed(bytes(header), body))
    except FrameError:
        return
    assert len(frame.blocks) == tables  # only the empty frame is right by chance
    assert not body or coding == 1


def test_foreign_protocol_is_named() -> None:
    """An HTTP client on the aggregator's port."""
    with pytest.raises(FrameError, match=r"foreign protocol: begins with b'GET '"):
        frames.decode(b"GET / HTTP/1.1\r\nHost: aggregator\r\n\r\n" + b"x" * 100)


def test_a_future_version_is_named() -> None:
    """An agent of a version that changed the layout."""
    later = bytearray(EXAMPLE[:72])
    later[8] = 9
    with pytest.raises(FrameError, match="frame version 9"):
        frames.decode(sealed(bytes(later), EXAMPLE[72:]))


def test_oversized_is_refused_unread() -> None:
    """A length that would cost a gigabyte to read."""
    with pytest.raises(FrameError, match="oversized"):
        frames.decode(EXAMPLE + bytes(frames.FRAME_BYTES_MAX))


def test_a_bomb_is_not_inflated() -> None:
    """1 MB of deflate that would become 1 GB."""
    body = zlib.compress(bytes(64 << 20), 9, -15)
    header = bytearray(EXAMPLE[:72])
    header[12:16] = struct.pack("<I", 1000)
    with pytest.raises(FrameError, match="payload of 1001 bytes, the header says 1000"):
        frames.decode(sealed(bytes(header), body))


def test_too_large_to_send_is_said_to_the_sender() -> None:
    """A host with more devices than a frame may hold gets the error locally."""
    with pytest.raises(FrameError, match="too large"):
        frames.encode(STAMP, [Block("gpu_1s", ["d"] * (frames.ROWS_MAX + 1))])
    with pytest.raises(FrameError, match="name exceeds"):
        frames.encode(STAMP, [Block("gpu_1s", ["d" * 97])])


@given(st.data())
def test_changed_rows_are_those_that_differ(data: st.DataObject) -> None:
    """A changed but unsent error counter would be an invisible fault."""
    before = data.draw(blocks())
    after = before.select(range(before.rows))
    touched = set()
    for row in range(after.rows):
        if data.draw(st.booleans()):
            column = data.draw(st.integers(0, len(after.signal_ids) - 1))
            cell = column * after.rows + row
            after.valid[cell] ^= 1
            touched.add(row)
    width = len(after.signal_ids)
    changed = columns.changed_rows(
        after.cells, after.valid, before.cells, before.valid, width, after.rows
    )
    assert changed == sorted(touched)


def test_sizes_that_disagree_are_refused() -> None:
    """The compiled code checks its buffers before it drops the GIL."""
    with pytest.raises(ValueError, match="cells need"):
        block = Block("gpu_1s", ["GPU-0"])
        block.cells = bytearray(8)
        frames.encode(STAMP, [block])
    with pytest.raises(ValueError, match="packed cells"):
        columns.unpack(bytearray(3), bytearray(8), bytearray(1), 1, 1)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.lists(blocks(("disk_1s", "numa_60s")), max_size=3), max_size=4))
def test_an_encoder_remembers_no_more_than_names(courses: list[list[Block]]) -> None:
    """A disk was pulled: its table had the old keys, and all cells were in wrong rows."""
    encoder = frames.Encoder()
    for given_blocks in courses:
        assert encoder.encode(STAMP, given_blocks) == frames.encode(STAMP, given_blocks)


@given(stamps, st.lists(blocks(), max_size=3))
def test_plain_and_deflated_are_one_frame(stamp: Stamp, given_blocks: list[Block]) -> None:
    """The spool holds plain frames in memory and deflated ones on the disk; either may be sent."""
    plain, short = (frames.encode(stamp, given_blocks, deflate=d) for d in (False, True))
    assert frames.is_plain(plain)
    assert (frames.deflate_frame(plain), frames.inflate_frame(short)) == (short, plain)
    assert (frames.inflate_frame(plain), frames.deflate_frame(short)) == (plain, short)
    assert [content(b) for b in frames.decode(plain).blocks] == [content(b) for b in given_blocks]


@given(st.one_of(st.binary(max_size=100), st.integers(0, 8 * len(EXAMPLE) - 1)))
def test_what_is_no_frame_is_left_as_it_is(data: bytes | int) -> None:
    """A damaged frame in the spool is sent unchanged, for the aggregator to refuse."""
    if isinstance(data, int):
        damaged = bytearray(EXAMPLE)
        damaged[data // 8] ^= 1 << data % 8
        data = bytes(damaged)
    deflated, inflated = frames.deflate_frame(data), frames.inflate_frame(data)
    assert frames.is_plain(data) or deflated == data
    assert not frames.is_plain(data) or inflated == data


def test_a_long_payload_is_deflated_at_once() -> None:
    """Plain frames wait in memory: a host with thousands of devices must not fill it with zeros."""
    many = Block("gpu_1s", [f"GPU-{i}" for i in range(3000)])
    frame = frames.encode(STAMP, [many], deflate=False)
    assert len(frame) < frames.PLAIN_BYTES_MAX and frames.inflate_frame(frame) == frame


@pytest.mark.parametrize("at", [-1, -5, -(2**62)])
def test_names_before_the_beginning_are_refused(at: int) -> None:
    """Memory before the data must not be read."""
    with pytest.raises(ValueError, match=f"from byte {at} on"):
        columns.names(b"\x01a\x01b", at, 1, 255)
    assert columns.names(b"\x01a\x01b", 2, 1, 255) == (("b",), 4)
