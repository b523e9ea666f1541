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
from unittest import mock

from gangline.agent.frame_builder import signal_dictionary
from gangline.agent.spool.event_queue import EventQueue
from gangline.agent.spool.spool import Spool
from gangline.agent.transport import frame_batches
from gangline.agent.transport.client import Client
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.frame import Stamp
from gangline.contract.signal import Kind
from gangline.contract.signals import TABLES, index_of
from gangline.contract.stream import Sender
from gangline.contract.wire.telemetry_pb2 import RegisterNodeRequest

NODE = "sender"
SIGNAL = "host.context_switches_count"
#: Backlog goes at twice this, so that the tests need not wait out what they skipped.
LIVE_HERTZ = 200.0
BOOT_ID = b"one-and-the-same"


def frame(spool: Spool, sequence: int) -> bytes:
    """A frame whose reading is its sequence; readings are a second apart, whatever the pace here."""
    block = Block("host_1s", ["host"])
    block.put_int(index_of(SIGNAL), 0, sequence)
    for column, value in values(sequence).items():
        block.put_float(index_of(f"host.{column}"), 0, value)
    boottime_ns = 10**15 + sequence * 10**9
    return frames.encode(
        Stamp(spool.run_id, BOOT_ID, sequence, boottime_ns, time.time_ns()),
        [block],
        deflate=False,
    )


def values(sequence: int) -> dict[str, float]:
    """Return the gauges of frame *sequence*, by column: random bits to decimals, some missing."""
    source = random.Random(sequence)
    named = [s.column for s in TABLES["host_1s"] if s.kind is Kind.GAUGE]
    whole = {
        name: source.choice((source.random(), source.randrange(10**6) / 1000)) for name in named
    }
    return {name: value for name, value in whole.items() if source.random() < 0.9}


class Confused(Sender):
    """The sending end of a stream that takes its n-th frame in twice, so that the other end cannot follow."""

    left = 0

    def encode(self, frame: bytes) -> bytes:
        Confused.left -= 1
        if Confused.left == 0:
            super().encode(frame)
        return super().encode(frame)


def registration(spool: Spool) -> RegisterNodeRequest:
    return RegisterNodeRequest(
        protocol_version=1, node=NODE, run_id=spool.run_id, boot_id=BOOT_ID, agent_version="test",
        signals=signal_dictionary(), boottime_ns=10**15, wall_time_ns=time.time_ns(),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--period-seconds", type=float, default=0.01)
    parser.add_argument("--bytes-max", type=int, default=64 << 20)
    parser.add_argument("--register-every", type=int, default=1 << 30)
    parser.add_argument("--confuse-at", type=int, default=0)
    options = parser.parse_args()
    Confused.left = options.confuse_at
    mock.patch.object(frame_batches, "Sender", Confused).start()
    (options.folder / "memory").mkdir(exist_ok=True)
    spool = Spool.open(
        options.folder / "spool",
        bytes_max=options.bytes_max,
        boot_id=BOOT_ID,
        owner="sender",
        memory_folder=options.folder / "memory",
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
    while options.confuse_at and not client.connected:  # its first frames must be live
        time.sleep(0.01)
    appended = len((options.folder / "appended").read_text().split())
    while appended < options.frames:
        sequence = spool.next_sequence()
        spool.append(sequence, frame(spool, sequence))
        os.write(log, f"{sequence}\n".encode())
        client.notify()
        appended += 1
        if appended % options.register_every == 0:
            # A registration resets the dictionaries; it must not hide a wrong dictionary.
            while Confused.left > 0 and spool.unacknowledged_frames:
                time.sleep(0.01)
            client.reregister()
        time.sleep(options.period_seconds)
    print(f"appended {appended}", flush=True)
    last_state = ""
    while waiting := spool.unacknowledged_frames:
        state = "connected" if client.connected else f"not connected: {client.last_error}"
        if state != last_state:
            print(f"{waiting} frames wait for receipts; {state}", flush=True)
            last_state = state
        time.sleep(0.05)
    client.close()
    print(
        f"done dropped={spool.dropped_frames} refused={spool.refused_frames} "
        f"write_errors={spool.write_errors} reconnects={client.reconnects}",
        flush=True,
    )


if __name__ == "__main__":
    main()
