"""CPU a row from the wire to durable in DuckDB, against a raw Arrow insert of as many like rows.

Ours: a real aggregator process; frames made beforehand, sent on gRPC streams by another process, until
the last receipt. Peer: the same table, inserted from Arrow in batches of 8,000 rows, a commit each.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import grpc
import numpy as np
import pyarrow as pa

from gangline.fingerprints import frames
from gangline.fingerprints.catalogue import TABLES, Kind
from gangline.fingerprints.frames import Stamp
from gangline.fingerprints.streaming import Sender as Differences
from gangline.fingerprints.wire import telemetry_pb2
from gangline.fingerprints.wire.telemetry_pb2_grpc import TelemetryServiceStub

from .codec import gpu_block
from .measure import Result, cpu_seconds

STREAMS = 8
GPUS = 8
BATCH_ROWS = 8_000
#: Bench name -> (moments in a frame, frames a stream).
SHAPES = {"10 s of 8 GPUs a frame": (10, 500), "1 s of 8 GPUs a frame": (1, 2000)}


@dataclass
class Sender:
    """One host's stream: sends while there is credit, ends with the last receipt."""

    stub: Any
    name: str
    batches: list[bytes]
    run_id: bytes
    durable: int = 0
    credit: int = 0

    def run(self) -> None:
        """Register, send everything, return when everything is durable."""
        wall = time.time_ns()
        answer = self.stub.RegisterNode(
            telemetry_pb2.RegisterNodeRequest(
                protocol_version=1, node=self.name, run_id=self.run_id, boot_id=bytes(16),
                agent_version="bench", simulated=True, boottime_ns=10**15, wall_time_ns=wall,
            )
        )  # fmt: skip
        self.credit = answer.credit_frames
        self.differences = Differences(answer.stream_context_bytes)
        self.room = threading.Semaphore(self.credit)
        self.done = threading.Event()
        metadata = (("gangline-session", answer.session),)
        for ack in self.stub.StreamTelemetry(self._batches(), metadata=metadata):
            assert not ack.refused, ack.refused[0].reason
            count = sum(r.last - r.first + 1 for r in ack.durable)
            self.durable += count
            self.room.release(count) if count else None
            if self.durable == len(self.batches):
                self.done.set()
        assert self.durable == len(self.batches)

    def _batches(self) -> Iterator[telemetry_pb2.TelemetryBatch]:
        for sequence, frame in enumerate(self.batches, 1):
            self.room.acquire()
            differences = self.differences.encode(frame)
            yield telemetry_pb2.TelemetryBatch(sequence=sequence, differences=differences)
        self.done.wait(120)


def _frames(source: random.Random, run_id: bytes, moments: int, count: int) -> list[bytes]:
    blocks = [gpu_block(source, GPUS) for _ in range(moments)]
    for at, block in enumerate(blocks):
        block.devices = blocks[0].devices
        block.offset_ns = (at - moments) * 10**9
    wall = time.time_ns()
    return [
        frames.encode(
            Stamp(run_id, bytes(16), sequence, 10**15 + sequence * moments * 10**6,
                  wall + sequence * moments * 10**6),
            blocks,
            deflate=False,
        )
        for sequence in range(1, count + 1)
    ]  # fmt: skip


def _ours(seed: int, moments: int, count: int) -> tuple[float, float]:
    """Return (aggregator's CPU us a row, sender's CPU us a row)."""
    source = random.Random(seed)
    senders = []
    for at in range(STREAMS):
        run_id = source.randbytes(16)
        batches = _frames(source, run_id, moments, count)
        senders.append(Sender(None, f"bench-{at}", batches, run_id))
    rows = STREAMS * count * moments * GPUS
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, "-m", "gangline.cli", "aggregator", "--data", folder, "--listen",
             "127.0.0.1:0", "--set", "ops_seconds=3600"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert child.stdout
        try:
            port = child.stdout.readline().split("listening on ")[1].split(",")[0]
            with grpc.insecure_channel(port) as channel:
                spent = _send(TelemetryServiceStub(channel), senders, child.pid)  # type: ignore[no-untyped-call]
        finally:
            child.terminate()
            child.wait(30)
            child.stdout.close()
    return spent[0] / rows * 1e6, spent[1] / rows * 1e6


def _send(stub: Any, senders: list[Sender], pid: int) -> tuple[float, float]:
    begin, own = cpu_seconds(pid), time.process_time()
    threads = [threading.Thread(target=sender.run) for sender in senders]
    for sender, thread in zip(senders, threads, strict=True):
        sender.stub = stub
        thread.start()
    for sender, thread in zip(senders, threads, strict=True):
        thread.join()
        assert sender.durable == len(sender.batches), f"{sender.name}: {sender.durable} durable"
    return cpu_seconds(pid) - begin, time.process_time() - own


def _table(source: random.Random) -> Any:
    """One batch of rows as the store holds them."""
    block = gpu_block(source, BATCH_ROWS)
    cells = np.frombuffer(block.cells, np.uint64).reshape(-1, BATCH_ROWS)
    hosts = pa.array([f"bench-{i % STREAMS}" for i in range(BATCH_ROWS)]).dictionary_encode()
    times = np.arange(BATCH_ROWS) * 1000 + time.time_ns() // 1000
    columns = {
        "host": hosts,
        "device": pa.array(block.devices),
        "time": pa.array(times, pa.timestamp("us")),
        "boottime_ns": pa.array(times.astype(np.uint64)),
    }
    for at, signal in enumerate(TABLES["gpu_1s"]):
        gauge = signal.kind is Kind.GAUGE
        columns[signal.column] = pa.array(cells[at].view(np.float64) if gauge else cells[at])
    return pa.table(columns)


def _raw(seed: int, rows: int) -> float:
    """Return CPU us a row of the insert alone, durable by DuckDB's own commit."""
    batch = _table(random.Random(seed))
    with tempfile.TemporaryDirectory() as folder:
        base = duckdb.connect(str(Path(folder) / "raw.duckdb"))
        base.register("batch", batch)
        base.execute("CREATE TABLE raw AS FROM batch LIMIT 0")
        begin = time.process_time()
        for _ in range(rows // BATCH_ROWS):
            base.execute("INSERT INTO raw SELECT * FROM batch")
        base.execute("CHECKPOINT")
        spent = time.process_time() - begin
        base.close()
    return spent / (rows // BATCH_ROWS * BATCH_ROWS) * 1e6


def run(seed: int) -> list[Result]:
    """Measure both shapes of frame, and the raw insert beside each."""
    results = []
    for shape, (moments, count) in SHAPES.items():
        rows = STREAMS * count * moments * GPUS
        raw = _raw(seed, rows)
        ours, sender = _ours(seed, moments, count)
        notes = (
            f"{rows} rows, {STREAMS} streams; the sender's own {sender:.2f} us a row not counted"
        )
        results.append(
            Result(f"aggregator, wire to durable, {shape}", ours, "us CPU a row",
                   f"raw Arrow insert, {BATCH_ROWS} rows a commit", raw, notes)
        )  # fmt: skip
    return results
