"""Bytes and CPU of a stream of `gpu_1s` frames, against Prometheus remote-write and deflating.

A stream sends each second as differences to the second before. Its two inputs are values that are
drawn again each second (noisier than hardware), and a host of the simulated world.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from bench.measure import Result, percentile
from gangline.agent.frame_builder import FrameBuilder
from gangline.contract import frame as frames
from gangline.contract.block import Block, is_float
from gangline.contract.frame import Stamp
from gangline.contract.signals import TABLES
from gangline.contract.stream import CONTEXT_BYTES_MAX, Receiver, Sender
from gangline.simulator.runner import LiveWorld
from gangline.simulator.world import World

GPUS = 8
ROUNDS = 500
PASSES = 15
STAMP = Stamp(b"r" * 16, b"b" * 16, 1, 10**15, 17 * 10**17)
STREAM_SECONDS = 300
#: Bytes per GPU row of about 45 samples in remote-write, measured once with the prototype.
REMOTE_WRITE_BYTES_A_ROW = 454.0


def gpu_blocks(source: random.Random) -> Iterator[Block]:
    """Yield seconds of a training job endlessly: each signal keeps its level and gets new noise."""
    uuids = [f"GPU-{source.getrandbits(128):032x}" for _ in range(GPUS)]
    signals = TABLES["gpu_1s"]
    levels: list[int] = []
    while True:
        block = Block("gpu_1s", uuids)
        for column, signal in enumerate(signals):
            if len(levels) < len(signals):
                levels.append(source.choice((0, 1, 700, 10**9, 10**13)))
            level = levels[column]
            for row in range(GPUS):
                value = level + source.randrange(max(1, level // 50))
                if is_float(signal.signal_id):
                    block.put_float(column, row, float(value))
                else:
                    block.put_int(column, row, value)
        yield block


def _microseconds(call: Callable[[], object]) -> float:
    """Return the CPU of a call: the median of PASSES, because shared cores change their pace."""
    passes = []
    for _ in range(PASSES):
        begin = time.process_time_ns()
        for _ in range(ROUNDS):
            call()
        passes.append((time.process_time_ns() - begin) / ROUNDS / 1e3)
    return percentile(passes, 0.5)


def _simulated(seed: int) -> Iterator[list[Block]]:
    live = LiveWorld(World("calm", seed, hosts=1))
    for _ in range(STREAM_SECONDS):
        ((_, blocks, _),) = live.step(1.0)
        yield [block for block in blocks if block.table == "gpu_1s"]


def _plain(source: random.Random, seconds: Iterable[list[Block]]) -> tuple[list[bytes], int]:
    """Return the frames of successive seconds and their number of rows; clocks are irregular."""
    builder, sent, rows = FrameBuilder(STAMP.run_id, STAMP.boot_id), [], 0
    for second, blocks in enumerate(seconds, 1):
        boottime_ns = STAMP.boottime_ns + second * 10**9 + source.randrange(10**5)
        wall_ns = STAMP.wall_ns + second * 10**9 + source.randrange(10**6)
        sent.append(builder.build(second, boottime_ns, wall_ns, blocks))
        rows += sum(block.rows for block in frames.decode(sent[-1]).blocks) if second > 2 else 0
    return sent, rows


def _stream(source: random.Random, what: str, seconds: Iterable[list[Block]]) -> list[Result]:
    """Measure a stream after its first two frames, which name its tables.

    Raises AssertionError if the stream does not decode to its input.
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
    notes = f"deflated whole: {sum(map(len, whole[2:])) / rows:.1f} B a row"
    encoding, decoding = percentile(encode, 0.5), percentile(decode, 0.5)
    return [
        Result(f"{what}: bytes a row", sum(map(len, differences)) / rows, "B",
               "Prometheus remote-write", REMOTE_WRITE_BYTES_A_ROW, notes),
        Result(f"{what}: encode differences", encoding, "us CPU", "deflating it",
               _microseconds(partial(frames.deflate_frame, sent[-1]))),
        Result(f"{what}: decode differences", decoding, "us CPU", "inflating it",
               _microseconds(partial(frames.inflate_frame, whole[-1]))),
    ]  # fmt: skip


def run(seed: int) -> list[Result]:
    source = random.Random(seed)
    drawn = ([block] for block, _ in zip(gpu_blocks(source), range(STREAM_SECONDS), strict=False))
    return [
        *_stream(source, "random values, a second of 8 GPUs", drawn),
        *_stream(source, "simulated host, a second of 8 GPUs", _simulated(seed)),
    ]
