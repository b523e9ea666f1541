"""The frame codec against the well-kept libraries that could stand in its place: protobuf and Arrow.

One host's `gpu_1s` table of eight GPUs, values of a training job; bytes on the wire and CPU for encode
and decode. Everything is deflated alike (level 1, raw), so that what differs is the coding.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from gangline.fingerprints import frames
from gangline.fingerprints.block import Block, is_float
from gangline.fingerprints.catalogue import TABLES
from gangline.fingerprints.frames import Stamp

from .measure import Result, percentile

ROUNDS = 500
PASSES = 15
STAMP = Stamp(b"r" * 16, b"b" * 16, 1, 10**15, 17 * 10**17)


def gpu_block(source: random.Random, gpus: int = 8) -> Block:
    """Return readings that look like a training job's: near each other, and not equal."""
    uuids = [f"GPU-{source.getrandbits(128):032x}" for _ in range(gpus)]
    block = Block("gpu_1s", uuids)
    for column, signal in enumerate(TABLES["gpu_1s"]):
        level = source.choice((0, 1, 700, 10**9, 10**13))
        for row in range(gpus):
            value = level + source.randrange(max(1, level // 50))
            if is_float(signal.signal_id):
                block.put_float(column, row, float(value))
            else:
                block.put_int(column, row, value)
    return block


def _protobuf_class() -> Any:
    """A message of packed columns, as one would write it by hand: repeated double and uint64."""
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")
    column = file.message_type.add(name="Column")
    column.field.add(name="signal", number=1, type=13, label=1)
    column.field.add(name="gauge", number=2, type=1, label=3)
    column.field.add(name="counter", number=3, type=4, label=3)
    table = file.message_type.add(name="Table")
    table.field.add(name="device", number=1, type=9, label=3)
    table.field.add(name="column", number=2, type=11, label=3, type_name=".bench.Column")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Table"))


def _protobuf(block: Block) -> tuple[Callable[[], bytes], Callable[[bytes], object]]:
    kind = _protobuf_class()

    def encode() -> bytes:
        table = kind(device=block.devices)
        for at, signal_id in enumerate(block.signal_ids):
            span = slice(at * block.rows, (at + 1) * block.rows)
            if is_float(signal_id):
                table.column.add(signal=signal_id, gauge=block.floats[span])
            else:
                table.column.add(signal=signal_id, counter=block.ints[span])
        return zlib.compress(table.SerializeToString(), 1, -15)

    def decode(data: bytes) -> object:
        return kind.FromString(zlib.decompress(data, -15))

    return encode, decode


def _arrow(block: Block) -> tuple[Callable[[], bytes], Callable[[bytes], object]]:
    names = ["device", *map(str, block.signal_ids)]

    def encode() -> bytes:
        arrays = [pa.array(block.devices)]
        for at, signal_id in enumerate(block.signal_ids):
            view = block.floats if is_float(signal_id) else block.ints
            kind = pa.float64() if is_float(signal_id) else pa.uint64()
            cells = pa.py_buffer(view[at * block.rows : (at + 1) * block.rows])
            arrays.append(pa.Array.from_buffers(kind, block.rows, [None, cells]))
        sink = pa.BufferOutputStream()
        batch = pa.record_batch(arrays, names)
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return zlib.compress(sink.getvalue(), 1, -15)

    def decode(data: bytes) -> object:
        return pa.ipc.open_stream(zlib.decompress(data, -15)).read_all()

    return encode, decode


def _microseconds(call: Callable[[], object]) -> float:
    """CPU of a call: the median of PASSES, since shared cores change their pace within a second."""
    passes = []
    for _ in range(PASSES):
        begin = time.process_time_ns()
        for _ in range(ROUNDS):
            call()
        passes.append((time.process_time_ns() - begin) / ROUNDS / 1e3)
    return percentile(passes, 0.5)


def run(seed: int) -> list[Result]:
    """Measure bytes a row, and encode and decode CPU a frame."""
    block = gpu_block(random.Random(seed))
    ours = frames.encode(STAMP, [block])
    encode = _microseconds(partial(frames.encode, STAMP, [block]))
    decode = _microseconds(partial(frames.decode, ours))
    results = []
    for name, (other_encode, other_decode) in {
        "protobuf packed columns": _protobuf(block),
        "Arrow IPC": _arrow(block),
    }.items():
        theirs = other_encode()
        results += [
            Result("frame of 8 GPUs: bytes a row", len(ours) / 8, "B", name, len(theirs) / 8),
            Result("frame of 8 GPUs: encode", encode, "us CPU", name, _microseconds(other_encode)),
            Result(
                "frame of 8 GPUs: decode", decode, "us CPU", name,
                _microseconds(partial(other_decode, theirs)),
            ),
        ]  # fmt: skip
    return results
