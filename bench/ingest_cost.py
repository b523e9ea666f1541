"""CPU per row from the wire to durable in DuckDB, against a raw Arrow insert of the same rows.

This process sends prepared messages on enough gRPC streams to fill a commit within their credit,
until the last receipt. Judging and history are postponed; limits on reconnects and late frames are
off. Peers: the same rows from Arrow, 8,000 or a row group (122,880) a commit, by as many threads.
Shapes: a second in a frame; ten seconds in a frame, whose rows are as numerous as in a host's frame
of all tables; and backlogs.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import duckdb
import grpc
import numpy as np
import pyarrow as pa

from bench.load.aggregator import Running, aggregator
from bench.measure import Result
from gangline.agent.spool.spool import Spool
from gangline.agent.transport.grpc_http2 import (
    REGISTER,
    STREAM,
    CallEnd,
    CallResponse,
    ClientSession,
)
from gangline.agent.transport.protocol import QueuedEvents, TelemetryProtocol
from gangline.aggregator.ingest.backlog import BACKLOG_FRAMES
from gangline.contract import frame as frames
from gangline.contract.block import Block, is_float
from gangline.contract.frame import Stamp
from gangline.contract.signal import Kind
from gangline.contract.signals import TABLES
from gangline.contract.stream import CONTEXT_BYTES_MAX, LATE_FRAMES_MAX, Sender
from gangline.contract.wire import telemetry_pb2 as wire

GPUS = 8
#: With a credit of 64 frames of eight rows each, these streams have a row group in flight.
STREAMS = 256
#: Hosts with different readings; streams use them in rotation.
TEMPLATES = 8
BATCHES_ROWS = (8_000, 122_880)
THREADS = 1
#: A larger step would cause a clock finding, because frames arrive faster than their stamps say.
STEP_NS = 5_000_000
BOOTED_NS = 1_700_000_000 * 10**9
CREDIT_FRAMES = 64
SERVICE = "/gangline.v1.TelemetryService/"
SETTINGS = (
    "ops_seconds=3600", "judge_seconds=60", "history_on=false", "backlog_frames_per_second=10000",
)  # fmt: skip


class FrameShape(NamedTuple):
    """The shape of frames and messages."""

    name: str
    moments: int  # seconds in a frame
    frames: int  # per stream
    late_frames: int | None = None  # frames per message of an agent; None: live frames
    streams: int = STREAMS
    step_ns: int = STEP_NS  # between the stamps of two frames


LIVE_SECOND = FrameShape("1 s of 8 GPUs a frame", 1, 240)
SHAPES = (
    FrameShape("10 s of 8 GPUs a frame", 10, 40),
    LIVE_SECOND,
    FrameShape("backlog: 1 s of 8 GPUs a frame, as the agent sends it", 1, 240, LATE_FRAMES_MAX),
    FrameShape("backlog: 1 s of 8 GPUs a frame, as older agents send it", 1, 240, 0),
)


def readings(source: random.Random, name: str, count: int) -> list[Block]:
    """Return *count* seconds of a training host's GPUs: gauges jitter, counters grow, states stay.

    A gauge is a decimal with few places, as from drivers; one in four counters does not change.
    """
    generator = np.random.default_rng(source.getrandbits(64))
    devices = [f"GPU-{name}-{source.getrandbits(64):016x}-{index}" for index in range(GPUS)]
    signals = TABLES["gpu_1s"]
    cells = np.zeros((count, len(signals), GPUS), np.uint64)
    for column, signal in enumerate(signals):
        level = source.choice((1.0, 60.0, 700.0, 1.98e9))
        if signal.kind is Kind.GAUGE:
            noise = np.round(level * (1 + generator.normal(0, 0.02, (count, GPUS))), 2)
            cells[:, column] = np.where(generator.random((count, GPUS)) < 0.7, noise, level).view(np.uint64)  # fmt: skip
        elif signal.kind is Kind.COUNTER and column % 4:
            cells[:, column] = np.cumsum(generator.integers(0, 10**6, (count, GPUS)), 0) + 10**12
    result = []
    for index in range(count):
        block = Block("gpu_1s", devices)
        block.cells[:] = cells[index].tobytes()
        block.valid[:] = b"\1" * len(block.valid)
        result.append(block)
    return result


@dataclass
class IngestHost:
    """One host's stream: sends while there is credit, ends with the last receipt."""

    name: str
    run_id: bytes
    boot_id: bytes
    messages: list[tuple[int, bytes]]  # (frame count, message)
    durable: int = 0

    @property
    def frames(self) -> int:
        """Return the number of frames to send."""
        return sum(count for count, _ in self.messages)

    async def run(self, channel: grpc.aio.Channel) -> None:
        """Register and send everything; return when everything is durable."""
        register = channel.unary_unary(
            SERVICE + "RegisterNode",
            request_serializer=wire.RegisterNodeRequest.SerializeToString,
            response_deserializer=wire.RegisterNodeResponse.FromString,
        )
        answer = await register(
            wire.RegisterNodeRequest(
                protocol_version=1, node=self.name, run_id=self.run_id, boot_id=self.boot_id,
                agent_version="bench", simulated=True, boottime_ns=time.time_ns() - BOOTED_NS,
                wall_time_ns=time.time_ns(),
            )
        )  # fmt: skip
        assert answer.stream_context_bytes == CONTEXT_BYTES_MAX
        assert (answer.credit_frames, answer.late_frames_max) == (CREDIT_FRAMES, LATE_FRAMES_MAX)
        self.room = asyncio.Semaphore(answer.credit_frames)
        self.done = asyncio.Event()
        call: Any = channel.stream_stream(
            SERVICE + "StreamTelemetry", response_deserializer=wire.IngestAck.FromString
        )
        stream = call(self._messages(), metadata=(("gangline-session", answer.session),))
        async for ack in stream:
            self._receipt(ack)

    def _receipt(self, ack: wire.IngestAck) -> None:
        assert not ack.refused, ack.refused[0].reason
        for span in ack.durable:
            self.durable += span.last - span.first + 1
            for _ in range(span.first, span.last + 1):
                self.room.release()
        if self.durable == self.frames:
            self.done.set()

    async def _messages(self) -> AsyncIterator[bytes]:
        for count, message in self.messages:
            for _ in range(count):
                await self.room.acquire()
            yield message
        await self.done.wait()


def hosts_of(seed: int, shape: FrameShape, begin_ns: int | None = None) -> list[IngestHost]:
    """Return the hosts with their messages, stamped from *begin_ns* of the wall clock (None: now)."""
    source = random.Random(seed)
    wall = begin_ns or time.time_ns()
    templates = [
        readings(source, f"{index}", shape.moments * shape.frames) for index in range(TEMPLATES)
    ]
    hosts = []
    with tempfile.TemporaryDirectory() as folder:
        for index in range(shape.streams):
            agent = Agent(Path(folder), shape.late_frames or 0)
            stamps = (
                Stamp(agent.spool.run_id, bytes(16), sequence, wall - BOOTED_NS + sequence * shape.step_ns,
                      wall + sequence * shape.step_ns + source.randrange(10**6))
                for sequence in range(1, shape.frames + 1)
            )  # fmt: skip
            frames_made = _frames(stamps, templates[index % TEMPLATES], shape.moments)
            messages = (
                _live(frames_made) if shape.late_frames is None else agent.backlog(frames_made)
            )
            hosts.append(IngestHost(f"bench-{index}", agent.spool.run_id, bytes(16), messages))
            agent.close()
    return hosts


def _frames(stamps: Iterator[Stamp], blocks: list[Block], moments: int) -> Iterator[bytes]:
    encoder = frames.Encoder()
    for index, stamp in enumerate(stamps):
        host_blocks = blocks[index * moments : (index + 1) * moments]
        for moment, block in enumerate(host_blocks, 1):
            block.offset_ns = (moment - len(host_blocks)) * 10**9
        yield encoder.encode(stamp, host_blocks, deflate=False)


def _live(made: Iterator[bytes]) -> list[tuple[int, bytes]]:
    sender = Sender(CONTEXT_BYTES_MAX)
    batches = (
        wire.TelemetryBatch(sequence=sequence, differences=sender.encode(frame))
        for sequence, frame in enumerate(made, 1)
    )
    return [(1, batch.SerializeToString()) for batch in batches]


class Agent:
    """The agent's spool and protocol, on a connection that records the messages."""

    unsent_bytes = 0
    waiting = False  # events

    def __init__(self, folder: Path, late_frames_max: int) -> None:
        self._folder = folder / "spool"
        self.spool = Spool.open(self._folder, bytes_max=1 << 30, boot_id=bytes(16), owner="bench")
        self._late_frames_max = late_frames_max
        self._sent: list[wire.TelemetryBatch] = []
        self._received: list[CallResponse | CallEnd] = []

    def backlog(self, made: Iterator[bytes]) -> list[tuple[int, bytes]]:
        """Return the messages of an agent that finds these frames in its spool when it connects."""
        for frame in made:
            self.spool.append(self.spool.next_sequence(), frame)
        conversation = TelemetryProtocol(
            cast(ClientSession, self), wire.RegisterNodeRequest, self.spool, cast(QueuedEvents, self),
            live_hertz=1.0,
        )  # fmt: skip
        conversation.step(0.0)
        registered = wire.RegisterNodeResponse(
            session="bench", credit_frames=CREDIT_FRAMES, backlog_frames=BACKLOG_FRAMES,
            stream_context_bytes=CONTEXT_BYTES_MAX, late_frames_max=self._late_frames_max,
        )  # fmt: skip
        self._received.append(CallResponse(1, REGISTER, registered))
        second = 0.0
        while self.spool.unacknowledged_frames:
            conversation.receive(b"", second)
            second += 1.0
            conversation.step(second)
            durable = [wire.SequenceRange(first=1, last=self.spool.next_sequence())]
            ack = wire.IngestAck(durable=durable, backlog_frames=BACKLOG_FRAMES)
            self._received.append(CallResponse(3, STREAM, ack))
        return [(len(batch.late) or 1, batch.SerializeToString()) for batch in self._sent]

    def close(self) -> None:
        self.spool.close()
        shutil.rmtree(self._folder)

    def call(self, *_: Any) -> int:
        return 1

    def open_stream(self, _: str) -> int:
        return 3

    def send(self, _: int, message: wire.TelemetryBatch) -> None:
        self._sent.append(message)

    def data_to_send(self) -> bytes:
        return b""

    def receive(self, _: bytes) -> list[CallResponse | CallEnd]:
        received, self._received = self._received, []
        return received


def _ingest_seconds(hosts: list[IngestHost]) -> tuple[float, float]:
    """Return CPU seconds (aggregator, this process)."""
    with aggregator(None, *SETTINGS) as running:
        _rest(running)  # after its first judgement, and the operators' file of an empty store
        (begin, _), own_cpu_seconds = running.cpu(), time.process_time()
        asyncio.run(_send(running.address, hosts))
        return running.cpu()[0] - begin, time.process_time() - own_cpu_seconds


def _rest(running: Running) -> None:
    """Wait until the aggregator is idle, at most ten seconds."""
    before = -1.0
    for _ in range(20):
        time.sleep(0.5)
        now, _ = running.cpu()
        if now - before < 0.01:
            return
        before = now


@asynccontextmanager
async def connections(address: str, count: int) -> AsyncIterator[list[grpc.aio.Channel]]:
    """Yield separate channels, as from *count* machines: use a new id for each request connection."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    channels = [grpc.aio.insecure_channel(address, options) for _ in range(count)]
    yield channels
    await asyncio.gather(*(channel.close() for channel in channels))


async def _send(address: str, hosts: list[IngestHost]) -> None:
    async with connections(address, len(hosts)) as channels:
        await asyncio.gather(
            *(host.run(channel) for host, channel in zip(hosts, channels, strict=True))
        )
    for host in hosts:
        assert host.durable == host.frames, f"{host.name}: {host.durable} durable"


def _table(seed: int, rows: int) -> Any:
    """Return the rows of the hosts and seconds in the order of the store: second by second."""
    source = random.Random(seed)
    seconds = -(-rows // (STREAMS * GPUS))
    templates = [readings(source, f"{index}", seconds) for index in range(TEMPLATES)]
    order = [(second, host) for second in range(seconds) for host in range(STREAMS)]
    blocks = [templates[host % TEMPLATES][second] for second, host in order]
    shape = len(order), len(TABLES["gpu_1s"]), GPUS
    cells = np.frombuffer(b"".join(block.cells for block in blocks), np.uint64).reshape(shape)
    times = np.repeat([second * 10**6 + host for second, host in order], GPUS)
    hosts = np.repeat([host for _, host in order], GPUS)
    columns = {
        "host": pa.array([f"bench-{host}" for host in hosts]).dictionary_encode(),
        "device": pa.array([name for block in blocks for name in block.devices]),
        "time": pa.array(times + time.time_ns() // 1000, pa.timestamp("us")),
        "boottime_ns": pa.array(times.astype(np.uint64) * 1000),
    }
    for index, signal in enumerate(TABLES["gpu_1s"]):
        column = np.ascontiguousarray(cells[:, index]).reshape(-1)
        gauge = is_float(signal.signal_id)
        columns[signal.column] = pa.array(column.view(np.float64) if gauge else column)
    return pa.table(columns).slice(0, rows)


def _raw(table: Any, batch_rows: int) -> float:
    """Return CPU us a row of the insert alone, durable by DuckDB's own commit."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "raw.duckdb")
        with duckdb.connect(path, config={"threads": THREADS}) as base:
            base.register("empty", table.slice(0, 0))
            base.execute("CREATE TABLE raw AS FROM empty")
            begin = time.process_time()
            for index in range(0, table.num_rows, batch_rows):
                base.register("batch", table.slice(index, batch_rows))
                base.execute("INSERT INTO raw SELECT * FROM batch")
            return (time.process_time() - begin) / int(table.num_rows) * 1e6


def raw_costs(seed: int) -> dict[int, float]:
    """Return rows a commit -> CPU us a row of a raw Arrow insert."""
    table = _table(seed, 4 * BATCHES_ROWS[1])
    return {rows: _raw(table, rows) for rows in BATCHES_ROWS}


def cost(seed: int, shape: FrameShape) -> tuple[float, str]:
    """Return the aggregator's CPU us a row from the wire to durable, and notes on the input."""
    hosts = hosts_of(seed, shape)
    rows = STREAMS * shape.frames * shape.moments * GPUS
    sent_bytes = sum(len(message) for host in hosts for _, message in host.messages)
    ingest, generator = (seconds / rows * 1e6 for seconds in _ingest_seconds(hosts))
    return ingest, (
        f"{rows} rows, {STREAMS} streams, {sent_bytes / rows:.1f} B a row on the wire; "
        f"the sender's own {generator:.2f} us a row not counted"
    )


def run(seed: int) -> list[Result]:
    """Measure each shape, and raw inserts of the same rows."""
    raw = raw_costs(seed)
    results = []
    for shape in SHAPES:
        ingest, notes = cost(seed, shape)
        for batch_rows, peer in raw.items():
            results.append(
                Result(f"aggregator, wire to durable, {shape.name}", ingest, "us CPU a row",
                       f"raw Arrow insert, {batch_rows} rows a commit", peer, notes)
            )  # fmt: skip
    return results
