"""Files that an aggregator leaves on disk: `python -m tests.upgrade.keep_store FOLDER [--killed]`.

Run it with the code of a release before its schema changes, pack the written files (`tar -cJf
kept_stores/NAME.tar.xz -C FOLDER .`), and `test_stores.py` opens them with all later code. Kept
files are never written again.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import Finding
from gangline.aggregator.store.journal import StoredEvent
from gangline.aggregator.store.store import Store
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.processes import GUARD_SECONDS

NOW_NS = 1_795_168_800 * 1_000_000_000  # 2026-11-20 10:00 UTC
RUN_ID = bytes(range(16))
HOSTS = ("kept-1", "kept-2")
FRAMES, EVENTS = 20, 3
GPUS = ("GPU-00000000-1111-2222-3333-444444444444", "GPU-00000001-1111-2222-3333-444444444444")


def frame(sequence: int) -> Any:
    """Return frame *sequence*, with columns computed from it."""
    host, gpus = Block("host_1s", ["host"]), Block("gpu_1s", list(GPUS))
    host.put_float(0, 0, sequence / 4)
    for row in range(len(GPUS)):
        gpus.put_float(0, row, sequence * 10.0 + row)
    stamp = frames.Stamp(RUN_ID, b"boot of the kept", sequence, sequence * 10**9, NOW_NS)
    return read_frame(frames.encode(stamp, [host, gpus]))


def event(host: str, number: int) -> HealthEvent:
    return HealthEvent(
        event_id=f"{host}/{number}", device_kind="gpu", device=GPUS[0], name="gpu.xid", code=79,
        message=f"kept event {number}", boottime_ns=number, wall_time_ns=NOW_NS,
    )  # fmt: skip


def fill(store: Store) -> None:
    """Store the kept data, and wait until it is durable."""
    done = threading.Semaphore(0)
    for host in HOSTS:
        events = [StoredEvent(host, NOW_NS, NOW_NS, event(host, n)) for n in range(EVENTS)]
        store.append_events(events)
        for sequence in range(1, FRAMES + 1):
            assert store.submit_frame(host, frame(sequence), NOW_NS, lambda _: done.release())
    finding = Finding(HOSTS[0], "gpu.xid", GPUS[0], "kept finding", NOW_NS)
    store.submit_findings([finding])
    for _ in range(FRAMES * len(HOSTS)):
        assert done.acquire(timeout=GUARD_SECONDS)


def main() -> None:
    folder = Path(sys.argv[1])
    config = AggregatorConfig(data=folder, commit_seconds=0.01, ops_seconds=3600.0)
    store = Store.open(folder, config, lambda: NOW_NS)
    fill(store)
    if "--killed" not in sys.argv:
        store.close()
    for name in ("lock", "operators.duckdb", "operators-base.duckdb", "operators-new.duckdb"):
        (folder / name).unlink(missing_ok=True)  # created by each start
    os._exit(9 if "--killed" in sys.argv else 0)  # the WAL stays


if __name__ == "__main__":
    main()
