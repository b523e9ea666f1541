"""The frame: many readings of one host in columns; the unit of transport.

Layout, little endian, version 1:

    0   4  magic `GLF1`
    4   4  CRC-32 of the rest
    8   1  version
    9   1  payload: 0 plain, 1 raw deflate
    10  2  number of tables
    12  4  bytes of the inflated payload
    16 16  run id
    32 16  boot id
    48  8  sequence
    56  8  CLOCK_BOOTTIME of the readings, ns
    64  8  the host's wall clock at that time, ns since 1970
    72     payload: the tables, one after another

A table: name (u8 length, ASCII), offset of its readings from the frame's time (i64 ns), rows (u16),
columns (u16), a signal id per column (u16), a device per row (u8 length, UTF-8), then the validity bits
and the cells as `ext.columns` packs them. A frame can be read on its own, except for the meaning of its signal ids,
which RegisterNode's dictionary has. A stream may encode it shorter: `stream.py`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..ext import columns
from .block import Block

MAGIC = b"GLF1"
VERSION = 1

#: A longer frame is refused before any part of it is read.
FRAME_BYTES_MAX = 1 << 20
#: A longer payload is deflated at once, even if deflating could wait.
PLAIN_BYTES_MAX = 1 << 18
#: A frame whose payload would inflate to more is refused.
PAYLOAD_BYTES_MAX = 8 << 20
TABLES_MAX = 128
ROWS_MAX = 4096
COLUMNS_MAX = 512
TABLE_NAME_BYTES_MAX = 64
DEVICE_BYTES_MAX = 96

_HEADER = struct.Struct("<4sIBBHI16s16sQQQ")
_SHAPE = struct.Struct("<qHH")
_CRC_OFFSET = 8
_CODING_OFFSET = 9
_DEFLATED = 1


class FrameError(ValueError):
    """The bytes are not a readable frame; the message states the reason and the expected form."""


class Stamp(NamedTuple):
    """Origin, number and time of a frame. (host, run id, sequence) identifies a frame forever."""

    run_id: bytes
    boot_id: bytes
    sequence: int
    boottime_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame."""

    stamp: Stamp
    blocks: tuple[Block, ...]


class Encoder:
    """Encodes the frames of one host: mostly the same tables, whose names and keys are kept as bytes."""

    def __init__(self) -> None:
        self._tables = columns.Tables(_table_header)

    def encode(self, stamp: Stamp, blocks: Sequence[Block], *, deflate: bool = True) -> bytes:
        """Return the frame's bytes. Raises FrameError if the blocks exceed the limits of a frame.

        Without *deflate* its payload stays plain, unless it is longer than PLAIN_BYTES_MAX.
        """
        length = self._tables.take(blocks)
        if len(blocks) > TABLES_MAX or length > PAYLOAD_BYTES_MAX:
            raise FrameError(
                f"{len(blocks)} tables of {length} bytes: a frame holds at most "
                f"{TABLES_MAX} tables of {PAYLOAD_BYTES_MAX} bytes together"
            )
        header = _HEADER.pack(
            MAGIC, 0, VERSION, 0, len(blocks), length,
            stamp.run_id, stamp.boot_id, stamp.sequence, stamp.boottime_ns, stamp.wall_ns,
        )  # fmt: skip
        frame = self._tables.frame(header)
        if deflate or length > PLAIN_BYTES_MAX:
            frame = deflate_frame(frame)
        if len(frame) > FRAME_BYTES_MAX:
            raise FrameError(f"frame of {len(frame)} bytes: at most {FRAME_BYTES_MAX}")
        return frame


def encode(stamp: Stamp, blocks: Sequence[Block], *, deflate: bool = True) -> bytes:
    return Encoder().encode(stamp, blocks, deflate=deflate)


def _deflate_if_shorter(header: bytes, payload: bytes | bytearray) -> bytes:
    """Return the frame deflated, unless that makes it longer."""
    body = zlib.compress(payload, 1, -15)
    if len(body) >= len(payload):
        return _with_checksum(header, payload)
    return _with_checksum(_with_coding(header, _DEFLATED), body)


def _with_coding(header: bytes, coding: int) -> bytes:
    return header[:_CODING_OFFSET] + bytes((coding,)) + header[_CODING_OFFSET + 1 :]


def _with_checksum(header: bytes, body: bytes | bytearray) -> bytes:
    crc = zlib.crc32(body, zlib.crc32(header[_CRC_OFFSET:]))
    return b"".join((header[:4], crc.to_bytes(4, "little"), header[_CRC_OFFSET:], body))


def is_plain(frame: bytes) -> bool:
    """Return whether *frame* is a Gangline frame with a plain payload."""
    return frame[:4] == MAGIC and frame[8 : _CODING_OFFSET + 1] == bytes((VERSION, 0))


def deflate_frame(frame: bytes) -> bytes:
    """Return a plain frame of `encode` deflated, anything else unchanged. Never raises."""
    if not is_plain(frame):
        return frame
    return _deflate_if_shorter(frame[: _HEADER.size], frame[_HEADER.size :])


def inflate_frame(frame: bytes) -> bytes:
    """Return the plain form of a frame that `encode` made deflated.

    Anything else, and a frame that would be longer than PLAIN_BYTES_MAX, is returned unchanged. Never raises.
    """
    if len(frame) < _HEADER.size or not is_plain(_with_coding(frame[: _HEADER.size], 0)):
        return frame
    length = _HEADER.unpack_from(frame)[5]
    if frame[_CODING_OFFSET] != _DEFLATED or length > PLAIN_BYTES_MAX:
        return frame
    try:
        payload = _inflate(frame[_HEADER.size :], _DEFLATED, length)
    except FrameError:
        return frame
    return _with_checksum(_with_coding(frame[: _HEADER.size], 0), payload)


def _table_header(
    table: str, signal_ids: tuple[int, ...], devices: tuple[str, ...]
) -> tuple[bytes, bytes]:
    """Return the first bytes of a table, and its keys."""
    name, width = table.encode("ascii"), len(signal_ids)
    keys = [device.encode() for device in devices]
    if len(keys) > ROWS_MAX or width > COLUMNS_MAX or len(name) > TABLE_NAME_BYTES_MAX:
        raise FrameError(f"table {table}: {len(keys)} rows of {width} columns is too large")
    if any(len(key) > DEVICE_BYTES_MAX for key in keys):
        raise FrameError(f"table {table}: a device's name exceeds {DEVICE_BYTES_MAX} bytes")
    ids = struct.pack(f"<{width}H", *signal_ids)
    return bytes((len(name),)) + name, ids + b"".join(bytes((len(k),)) + k for k in keys)


def read_stamp(data: bytes) -> Stamp:
    """Check everything but the payload and return the stamp. Raises FrameError."""
    if len(data) < _HEADER.size:
        raise FrameError(f"truncated: {len(data)} bytes, a frame's header alone is {_HEADER.size}")
    if len(data) > FRAME_BYTES_MAX:
        raise FrameError(f"oversized: {len(data)} bytes, a frame has at most {FRAME_BYTES_MAX}")
    magic, crc, version, _, _, _, run, boot, sequence, boottime, wall = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FrameError(f"foreign protocol: begins with {magic!r}, a frame begins with {MAGIC!r}")
    if zlib.crc32(memoryview(data)[_CRC_OFFSET:]) != crc:
        raise FrameError("checksum does not match: the frame was damaged or cut off on its way")
    if version != VERSION:
        raise FrameError(f"frame version {version}: this side reads version {VERSION}")
    return Stamp(run, boot, sequence, boottime, wall)


def decode(data: bytes) -> Frame:
    """Return the frame. For any invalid bytes it raises FrameError, and no other error."""
    stamp = read_stamp(data)
    _, _, _, coding, tables, length, *_ = _HEADER.unpack_from(data)
    if tables > TABLES_MAX or length > PAYLOAD_BYTES_MAX:
        raise FrameError(f"{tables} tables of {length} bytes: more than a frame may hold")
    payload = _inflate(data[_HEADER.size :], coding, length)
    reader = _PayloadReader(payload)
    blocks = tuple(reader.table() for _ in range(tables))
    if reader.offset != len(payload):
        raise FrameError(f"{len(payload) - reader.offset} bytes are left over after the last table")
    return Frame(stamp, blocks)


def _inflate(body: bytes, coding: int, length: int) -> bytes:
    if coding == _DEFLATED:
        inflater = zlib.decompressobj(-15)
        try:
            body = inflater.decompress(body, length + 1)
        except zlib.error as error:
            raise FrameError(f"payload does not inflate: {error}") from error
    elif coding:
        raise FrameError(f"payload coding {coding}: this side reads 0 (none) and 1 (deflate)")
    if len(body) != length:
        raise FrameError(f"payload of {len(body)} bytes, the header says {length}")
    return body


class _PayloadReader:
    """Reads tables from a payload, and checks each length before use."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.offset = 0

    def read(self, count: int) -> bytes:
        piece = self.payload[self.offset : self.offset + count]
        if len(piece) != count:
            raise FrameError(f"table ends early: {count} bytes wanted, {len(piece)} left")
        self.offset += count
        return piece

    def text(self, bytes_max: int) -> str:
        length = self.read(1)[0]
        if length > bytes_max:
            raise FrameError(f"a name of {length} bytes: at most {bytes_max}")
        try:
            return self.read(length).decode()
        except UnicodeDecodeError as error:
            raise FrameError(f"a name is not UTF-8: {error}") from error

    def names(self, count: int) -> tuple[str, ...]:
        try:
            names, self.offset = columns.names(self.payload, self.offset, count, DEVICE_BYTES_MAX)
        except ValueError as error:  # also for invalid UTF-8
            raise FrameError(str(error)) from error
        return names

    def table(self) -> Block:
        name = self.text(TABLE_NAME_BYTES_MAX)
        offset_ns, rows, width = _SHAPE.unpack(self.read(_SHAPE.size))
        if rows > ROWS_MAX or not 0 < width <= COLUMNS_MAX:
            raise FrameError(
                f"table {name!r}: {rows} rows of {width} columns, at most {ROWS_MAX} of {COLUMNS_MAX}"
            )
        signal_ids = struct.unpack(f"<{width}H", self.read(2 * width))
        block = Block(name, self.names(rows), signal_ids)
        block.offset_ns = offset_ns
        packed = self.read(columns.packed_size(width, rows))
        columns.unpack(packed, block.cells, block.valid, width, rows)
        return block
