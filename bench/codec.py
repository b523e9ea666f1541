"""The frame codec against the well-kept libraries that could stand in its place: protobuf and Arrow.

One host's `gpu_1s` table of eight GPUs, values of a training job; bytes on the wire and CPU for encode
and decode. Everything is deflated alike (level 1, raw), so that what differs is the coding.

And the same table each second of a stream, as differences to the second before, against the samples of
Prometheus remote-write: of the values above, drawn anew each second, which is more noise than hardware
has; and of a host of the simulated world, whose noise is its physical model's.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bench.measure import Result, percentile
from gangline.contract import frame as frames
from gangline.contract.block import Block, is_float
from gangline.contract.frame import Stamp
from gangline.contract.signals import TABLES
from gangline.contract.stream import CONTEXT_BYTES_MAX, Receiver, Sender
from gangline.simulator.runner import LiveWorld
from gangline.simulator.world import World

ROUNDS = 500
PASSES = 15
STAMP = Stamp(b"r" * 16, b"b" * 16, 1, 10**15, 17 * 10**17)
STREAM_SECONDS = 300
#: Bytes a GPU row of about 45 samples in Prometheus remote-write (snappy-compressed protobuf, labels
#: by series), measured once with the prototype; not of this run.
REMOTE_WRITE_BYTES_A_ROW = 454.0


def gpu_block(source: random.Random, gpus: int = 8) -> Block:
    """Return readings that look like a training job's: near each other, and not equal."""
    return next(gpu_blocks(source, gpus))


def gpu_blocks(source: random.Random, gpus: int = 8) -> Iterator[Block]:
    """Yield such readings for ever: each signal keeps its level, its noise is drawn anew."""
    uuids = [f"GPU-{source.getrandbits(128):032x}" for _ in range(gpus)]
    signals = TABLES["gpu_1s"]
    levels: list[int] = []
    while True:
        block = Block("gpu_1s", uuids)
        for column, signal in enumerate(signals):
            if len(levels) < len(signals):
                levels.append(source.choice((0, 1, 700, 10**9, 10**13)))
            level = levels[column]
            for row in range(gpus):
                value = level + source.randrange(max(1, level // 50))
                if is_float(signal.signal_id):
                    block.put_float(column, row, float(value))
                else:
                    block.put_int(column, row, value)
        yield block


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


def _simulated(seed: int) -> list[Block]:
    """`gpu_1s` of one host of a simulated world, each second."""
    live, found = LiveWorld(World("calm", seed, hosts=1)), []
    for _ in range(STREAM_SECONDS):
        ((_, blocks, _),) = live.step(1.0)
        for block in blocks:
            if block.table == "gpu_1s":
                copy = Block(block.table, block.devices, block.signal_ids)
                copy.cells[:], copy.valid[:] = block.cells, block.valid
                found.append(copy)
    return found


def _plain(source: random.Random, blocks: Sequence[Block]) -> list[bytes]:
    """The frames of successive seconds, with clocks that are never quite on time."""
    return [
        frames.encode(
            Stamp(
                STAMP.run_id,
                STAMP.boot_id,
                second,
                STAMP.boottime_ns + second * 10**9 + source.randrange(10**5),
                STAMP.wall_ns + second * 10**9 + source.randrange(10**6),
            ),
            [block],
            deflate=False,
        )
        for second, block in enumerate(blocks, 1)
    ]


def _stream(source: random.Random, name: str, blocks: Sequence[Block]) -> list[Result]:
    """Measure a stream past its first two frames, which name its tables; what comes out is what went in."""
    sent = _plain(source, blocks)
    whole = [frames.deflate_frame(frame) for frame in sent]
    encode, decode, differences = [], [], list[bytes]()
    for _ in range(PASSES):
        sender, receiver = Sender(CONTEXT_BYTES_MAX), Receiver()
        for frame in sent[:2]:
            receiver.decode(sender.encode(frame))
        begin = time.process_time_ns()
        differences = [sender.encode(frame) for frame in sent[2:]]
        between = time.process_time_ns()
        restored = [receiver.decode(each) for each in differences]
        end = time.process_time_ns()
        assert restored == sent[2:]
        encode.append((between - begin) / len(differences) / 1e3)
        decode.append((end - between) / len(differences) / 1e3)
    a_row = sum(map(len, differences)) / len(differences) / blocks[0].rows
    deflate = _microseconds(partial(frames.deflate_frame, sent[-1]))
    inflate = _microseconds(partial(frames.inflate_frame, whole[-1]))
    what = f"{name}, a second of 8 GPUs"
    notes = f"deflated whole: {len(whole[-1]) / blocks[0].rows:.1f} B a row"
    return [
        Result(f"{what}: bytes a row", a_row, "B", "Prometheus remote-write",
               REMOTE_WRITE_BYTES_A_ROW, notes),
        Result(f"{what}: to differences", percentile(encode, 0.5), "us CPU", "deflating it", deflate),
        Result(f"{what}: and back", percentile(decode, 0.5), "us CPU", "inflating it", inflate),
    ]  # fmt: skip


def run(seed: int) -> list[Result]:
    """Measure bytes a row, and encode and decode CPU a frame."""
    block = gpu_block(random.Random(seed))
    encoded = frames.encode(STAMP, [block])
    encode = _microseconds(partial(frames.encode, STAMP, [block]))
    decode = _microseconds(partial(frames.decode, encoded))
    results = []
    for name, (other_encode, other_decode) in {
        "protobuf packed columns": _protobuf(block),
        "Arrow IPC": _arrow(block),
    }.items():
        other_encoded = other_encode()
        results += [
            Result("frame of 8 GPUs: bytes a row", len(encoded) / 8, "B", name, len(other_encoded) / 8),
            Result("frame of 8 GPUs: encode", encode, "us CPU", name, _microseconds(other_encode)),
            Result(
                "frame of 8 GPUs: decode", decode, "us CPU", name,
                _microseconds(partial(other_decode, other_encoded)),
            ),
        ]  # fmt: skip
    source = random.Random(seed)
    blocks = [block for block, _ in zip(gpu_blocks(source), range(STREAM_SECONDS), strict=False)]
    results += _stream(source, "values drawn anew", blocks)
    results += _stream(source, "simulated host", _simulated(seed))
    return results
