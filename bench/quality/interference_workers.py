"""Workloads of the local co-runs: each uses one resource of a host, and counts the work that it has done.

`python -m bench.quality.interference_workers KIND FOLDER COUNTER [CGROUP ...]`: works until it is killed. The counter file
holds two doubles: units of work done, and bytes moved through memory.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

#: Cores that all workloads share.
CPUS = 2
COUNTER = struct.Struct("dd")
#: Larger than the last-level cache, so that each pass goes to memory.
STREAM_BYTES, FILE_BYTES, BLOCK_BYTES = 64 << 20, 128 << 20, 1 << 20
#: CPU time between two readings of the clock.
PERIOD_SECONDS = 0.01
#: Work that a step yields: units, and bytes through memory.
Step = Iterator[tuple[float, float]]


class Kind(NamedTuple):
    """A kind of workload. `uses`: the resource that bounds it alone; `cores`: how many it keeps busy."""

    step: Callable[[Path], Step]
    uses: str
    cores: float
    processes: int = 1


def spin(_folder: Path, pause_seconds: float = 0.0) -> Step:
    """Compute in the first-level cache for PERIOD_SECONDS of CPU time, then pause."""
    values = np.arange(512, dtype=np.float64)
    while True:
        begin, rounds = time.thread_time(), 0
        while time.thread_time() - begin < PERIOD_SECONDS:
            for _ in range(50):
                np.sqrt(values, out=values)
            rounds += 1
        yield rounds, 0.0
        if pause_seconds:
            time.sleep(pause_seconds)


def stream(_folder: Path) -> Step:
    """Copy between two arrays that exceed the caches: a read, a write, and a read for ownership."""
    source, target = np.ones(STREAM_BYTES // 8), np.zeros(STREAM_BYTES // 8)
    while True:
        np.copyto(target, source)
        yield 1.0, 2.0 * STREAM_BYTES


def mapped_reads(folder: Path) -> Step:
    """Sum pages of a memory-mapped file in the page cache, in random order."""
    path = folder / f"mapped_{os.getpid()}"
    path.write_bytes(os.urandom(BLOCK_BYTES) * (FILE_BYTES // BLOCK_BYTES))
    random = np.random.default_rng(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        path.unlink()
        pages = np.frombuffer(mapped, dtype=np.uint64).reshape(-1, 4096 // 8)
        while True:
            chosen = random.integers(0, len(pages), 4096)
            pages[chosen].sum()
            yield 1.0, 3.0 * 4096 * 4096


def loopback(_folder: Path) -> Step:
    """Send over loopback TCP to a child that reads and forgets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if os.fork() == 0:
            reader = socket.create_connection(server.getsockname())
            buffer = bytearray(256 << 10)
            while reader.recv_into(buffer):
                pass
            os._exit(0)
        connection, _ = server.accept()
        block = bytes(256 << 10)
        while True:
            for _ in range(16):
                connection.sendall(block)
            yield 1.0, 16.0 * 3 * len(block)


def direct_writer(folder: Path) -> Step:
    """Write around the page cache, as fio does with direct=1."""
    path = folder / f"direct_{os.getpid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    path.unlink()
    block = mmap.mmap(-1, BLOCK_BYTES)
    while True:
        for at in range(0, FILE_BYTES, BLOCK_BYTES):
            os.pwrite(descriptor, block, at)
            yield 1.0, 0.0


def synced_writer(folder: Path) -> Step:
    """Write through the page cache and sync each 4 MB, as fio does with fsync."""
    path = folder / f"synced_{os.getpid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    path.unlink()
    block = bytes(4 * BLOCK_BYTES)
    while True:
        for at in range(0, FILE_BYTES, len(block)):
            os.pwrite(descriptor, block, at)
            os.fdatasync(descriptor)
            yield 1.0, 0.0


def half_busy(folder: Path) -> Step:
    """Compute for half of the time."""
    return spin(folder, PERIOD_SECONDS)


KINDS = {
    "spin on one core": Kind(spin, "cores", 1.0),
    "spin on two cores": Kind(spin, "cores", 2.0, 2),
    "spin half of the time": Kind(half_busy, "cores", 0.5),
    "copy memory": Kind(stream, "memory_bandwidth", 1.0),
    "copy memory on two cores": Kind(stream, "memory_bandwidth", 2.0, 2),
    "mapped reads": Kind(mapped_reads, "memory_bandwidth", 1.0),
    "loopback TCP": Kind(loopback, "cores", 2.0),
    "direct writes": Kind(direct_writer, "disk", 0.1),
    "synced writes": Kind(synced_writer, "disk", 0.2),
}


def main() -> int:
    """Work until killed."""
    name, folder, counter, *groups = sys.argv[1:]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    for group in groups:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    with Path(counter).open("r+b") as file, mmap.mmap(file.fileno(), COUNTER.size) as shared:
        units = moved = 0.0
        for more_units, more_bytes in KINDS[name].step(Path(folder)):
            units, moved = units + more_units, moved + more_bytes
            COUNTER.pack_into(shared, 0, units, moved)
    return 0


if __name__ == "__main__":
    sys.exit(main())
