"""An agent whose every reading is known: frame N says N. Run by the survival tests as a process of its own.

    python -m tests.survival.sender --target 127.0.0.1:7600 --folder DIR --frames 300

Appends until the run holds that many frames (counting those of earlier starts in the same folder), then
waits until each has a receipt or was dropped, and prints what it counted.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

from gangline.agent.framing import dictionary
from gangline.agent.spool.events import EventQueue
from gangline.agent.spool.spool import Spool
from gangline.agent.transport.client import Client
from gangline.fingerprints import frames
from gangline.fingerprints.block import Block
from gangline.fingerprints.catalogue import TABLES, index_of
from gangline.fingerprints.frames import Stamp
from gangline.fingerprints.wire.telemetry_pb2 import RegisterNodeRequest

NODE = "sender"
SIGNAL = "host.context_switches_count"
#: Backlog goes at twice this, so that the tests need not wait out what they skipped.
LIVE_HERTZ = 200.0
BOOT_ID = b"one-and-the-same"


def frame(spool: Spool, sequence: int) -> bytes:
    """A frame whose reading is its sequence; readings are a second apart, whatever the pace here."""
    block = Block("host_1s", ["host"])
    block.put_int(index_of(SIGNAL), 0, sequence)
    for column in range(len(TABLES["host_1s"])):
        if column != index_of(SIGNAL):
            block.put_float(column, 0, random.random())
    boottime_ns = 10**15 + sequence * 10**9
    return frames.encode(
        Stamp(spool.run_id, BOOT_ID, sequence, boottime_ns, time.time_ns()), [block]
    )


def registration(spool: Spool) -> RegisterNodeRequest:
    return RegisterNodeRequest(
        protocol_version=1, node=NODE, run_id=spool.run_id, boot_id=BOOT_ID, agent_version="test",
        signals=dictionary(), boottime_ns=10**15, wall_time_ns=time.time_ns(),
    )  # fmt: skip


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--period-seconds", type=float, default=0.01)
    parser.add_argument("--bytes-max", type=int, default=64 << 20)
    options = parser.parse_args()
    spool = Spool.open(
        options.folder / "spool", bytes_max=options.bytes_max, boot_id=BOOT_ID, owner="sender"
    )
    events = EventQueue.open(options.folder / "events")
    client = Client(
        options.target,
        lambda: registration(spool),
        spool,
        events,
        random_source=random.Random(1),
        live_hertz=LIVE_HERTZ,
    )
    client.start()
    log = os.open(options.folder / "appended", os.O_CREAT | os.O_APPEND | os.O_RDWR)
    appended = len((options.folder / "appended").read_text().split())
    while appended < options.frames:
        sequence = spool.next_sequence()
        spool.append(sequence, frame(spool, sequence))
        os.write(log, f"{sequence}\n".encode())
        client.notify()
        appended += 1
        time.sleep(options.period_seconds)
    print(f"appended {appended}", flush=True)
    while spool.unacknowledged_frames:
        time.sleep(0.05)
    client.close()
    print(
        f"done dropped={spool.dropped_frames} refused={spool.refused_frames} "
        f"write_errors={spool.write_errors}",
        flush=True,
    )


if __name__ == "__main__":
    main()
