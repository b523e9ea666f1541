"""The frame codec against the libraries that could replace it: protobuf and Arrow.

Input: one host's `gpu_1s` table of eight GPUs, values of a training job. Output: bytes on the wire
and CPU to encode and decode. All are deflated alike (level 1, raw), so that only the coding
differs.

Streams send the same table each second as differences to the previous second. They are compared
with the samples of Prometheus remote-write, for three inputs: the values above, drawn again each
second (noisier than hardware); a host of the simulated world, with the noise of its physical model;
all tables of that host, as its agent sends them. Streams are also compared with zlib alone: each
frame XOR the last one of the same length, deflated.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bench.measure import Result, percentile
from gangline.agent.frame_builder import FrameBuilder
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
#: Bytes per GPU row of about 45 samples in Prometheus remote-write (snappy-compressed protobuf,
#: labels by series), measured once with the prototype, not in this run.
REMOTE_WRITE_BYTES_A_ROW = 454.0
XOR = "XOR with the frame before, deflated"


def gpu_block(source: random.Random, gpus: int = 8) -> Block:
    """Return readings like those of a training job: close to each other, but different."""
    return next(gpu_blocks(source, gpus))


def gpu_blocks(source: random.Random, gpus: int = 8) -> Iterator[Block]:
    """Yield such readings endlessly: each signal keeps its level and gets new noise."""
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
    """Return a message of packed columns as usually handwritten: repeated double and uint64."""
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
        for index, signal_id in enumerate(block.signal_ids):
            span = slice(index * block.rows, (index + 1) * block.rows)
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
        for index, signal_id in enumerate(block.signal_ids):
            view = block.floats if is_float(signal_id) else block.ints
            kind = pa.float64() if is_float(signal_id) else pa.uint64()
            cells = pa.py_buffer(view[index * block.rows : (index + 1) * block.rows])
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
    """Return the CPU of a call: the median of PASSES, since shared cores change their pace within a
    second.
    """
    passes = []
    for _ in range(PASSES):
        begin = time.process_time_ns()
        for _ in range(ROUNDS):
            call()
        passes.append((time.process_time_ns() - begin) / ROUNDS / 1e3)
    return percentile(passes, 0.5)


def _simulated(seed: int, *tables: str) -> Iterator[list[Block]]:
    live = LiveWorld(World("calm", seed, hosts=1))
    for _ in range(STREAM_SECONDS):
        ((_, blocks, _),) = live.step(1.0)
        yield [block for block in blocks if block.table in tables or not tables]


def _plain(source: random.Random, seconds: Iterable[list[Block]]) -> tuple[list[bytes], int]:
    """Return the frames of successive seconds, with slightly irregular clocks, and their number of
    rows.
    """
    builder, sent, rows = FrameBuilder(STAMP.run_id, STAMP.boot_id), [], 0
    for second, blocks in enumerate(seconds, 1):
        boottime_ns = STAMP.boottime_ns + second * 10**9 + source.randrange(10**5)
        wall_ns = STAMP.wall_ns + second * 10**9 + source.randrange(10**6)
        sent.append(builder.build(second, boottime_ns, wall_ns, blocks))
        rows += sum(block.rows for block in frames.decode(sent[-1]).blocks) if second > 2 else 0
    return sent, rows


def _xor(frame: bytes, other: bytes) -> bytes:
    number = int.from_bytes(frame, "little") ^ int.from_bytes(other, "little")
    return number.to_bytes(len(frame), "little")


def _xor_stream(sent: Sequence[bytes]) -> tuple[list[bytes], float, float]:
    """Return the stream by XOR and zlib, both ends with unlimited memory; CPU to code and to decode
    a frame.
    """
    known: dict[int, bytes] = {}
    coded, restored = list[tuple[int, bytes]](), list[bytes]()
    begin = time.process_time_ns()
    for frame in sent:
        before = known.get(len(frame), b"")
        coded.append((len(frame), zlib.compress(_xor(frame, before), 1, -15)))
        known[len(frame)] = frame
    between = time.process_time_ns()
    known.clear()
    for length, data in coded:
        frame = _xor(zlib.decompress(data, -15), known.get(length, b""))
        known[length] = frame
        restored.append(frame)
    end = time.process_time_ns()
    assert restored == list(sent)
    each = 1e3 * len(sent)
    return [data for _, data in coded], (between - begin) / each, (end - between) / each


def _stream(source: random.Random, what: str, seconds: Iterable[list[Block]]) -> list[Result]:
    """Measure a stream after its first two frames, which name its tables; check that it decodes to
    its input.
    """
    sent, rows = _plain(source, seconds)
    whole = [frames.deflate_frame(frame) for frame in sent]
    encode, decode, differences = [], [], list[bytes]()
    for _ in range(PASSES):
        sender, receiver = Sender(CONTEXT_BYTES_MAX), Receiver()
        for frame in sent[:2]:
            receiver.decode(sender.encode(frame))
        begin = time.process_time_ns()
        differences = [sender.encode(frame) for frame in sent[2:]]
        between = time.process_time_ns()
        restored = [receiver.decode(difference) for difference in differences]
        end = time.process_time_ns()
        assert restored == sent[2:]
        encode.append((between - begin) / len(differences) / 1e3)
        decode.append((end - between) / len(differences) / 1e3)
    a_row = sum(map(len, differences)) / rows
    xor, xor_encode, xor_decode = _xor_stream(sent)
    notes = f"deflated whole: {sum(map(len, whole[2:])) / rows:.1f} B a row"
    encoding, decoding = percentile(encode, 0.5), percentile(decode, 0.5)
    result = [
        Result(f"{what}: bytes a row", a_row, "B", XOR, sum(map(len, xor[2:])) / rows, notes),
        Result(f"{what}: encode differences", encoding, "us CPU", XOR, xor_encode),
        Result(f"{what}: decode differences", decoding, "us CPU", XOR, xor_decode),
    ]
    if len(set(map(len, sent))) == 1:  # one table; all frames have the length of the last
        result += [
            Result(f"{what}: bytes a row", a_row, "B", "Prometheus remote-write",
                   REMOTE_WRITE_BYTES_A_ROW),
            Result(f"{what}: encode differences", encoding, "us CPU", "deflating it",
                   _microseconds(partial(frames.deflate_frame, sent[-1]))),
            Result(f"{what}: decode differences", decoding, "us CPU", "inflating it",
                   _microseconds(partial(frames.inflate_frame, whole[-1]))),
        ]  # fmt: skip
    return result


def run(seed: int) -> list[Result]:
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
    drawn = ([block] for block, _ in zip(gpu_blocks(source), range(STREAM_SECONDS), strict=False))
    results += _stream(source, "random values, a second of 8 GPUs", drawn)
    simulated = _simulated(seed, "gpu_1s")
    results += _stream(source, "simulated host, a second of 8 GPUs", simulated)
    results += _stream(source, "simulated host, a second of all tables", _simulated(seed))
    return results
