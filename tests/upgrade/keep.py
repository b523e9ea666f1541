"""Files that an agent leaves on disk at its end: `python -m tests.upgrade.keep FOLDER`.

Run it with the code of a release before its format changes, commit the written files next to the
others, and `test_upgrade.py` reads them with all later code. A kept folder is never written again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gangline.agent.kernel_log.checkpoint_file import FILE_NAME, LogPosition, format_position
from gangline.agent.spool import spool as run
from gangline.agent.spool.event_queue import EventQueue
from gangline.agent.spool.spool import Spool
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.signals import TABLES
from gangline.contract.wire.telemetry_pb2 import HealthEvent

OWNER = "board 4c4c4544-0000-4a10-8000-000000000001, host upgraded"
RUN_ID = bytes(range(16))
BOOT_ID = b"boot of the kept"
FRAMES = 6
EVENTS = 3
#: The frames that had their receipt when the agent ended are not told apart on disk: all are sent.
BEGAN_NS = 5_000_000_000_000
WALL_NS = 1_790_000_000_000_000_000
GPUS = ("GPU-00000000-1111-2222-3333-444444444444", "GPU-00000001-1111-2222-3333-444444444444")
_ROWS = {"host_1s": ("host",), "gpu_1s": GPUS, "gpu_1s_changes": GPUS, "rdma_1s": ("mlx5_0/1",)}


def blocks(sequence: int) -> list[Block]:
    """Return the readings of frame *sequence*: each cell a number computed from its position; every fifth missing."""
    result = []
    for table, devices in _ROWS.items():
        block = Block(table, devices)
        for column, signal in enumerate(TABLES[table]):
            for row in range(len(devices)):
                number = sequence * 1000 + signal.signal_id % 997 + row
                if (number + row) % 5:
                    gauge = signal.kind == "gauge"
                    (block.put_float if gauge else block.put_int)(column, row, number)
        result.append(block)
    return result


def event(number: int) -> HealthEvent:
    return HealthEvent(
        event_id=f"{number:032x}",
        device_kind="gpu",
        device=GPUS[0],
        name="gpu.xid",
        code=79,
        message=f"kept event {number}",
        boottime_ns=BEGAN_NS + number,
    )


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "spool").mkdir(parents=True)
    run.RunRecord(RUN_ID, BOOT_ID, OWNER).write(folder / "spool")
    # An empty segment marks the start of a run: its name keeps the run id.
    (folder / "spool" / f"{1:020d}.seg").touch()
    (folder / "spool" / "unbroken").touch()
    spool = Spool.open(folder / "spool", bytes_max=1 << 20, boot_id=BOOT_ID, owner=OWNER)
    for sequence in range(1, FRAMES + 1):
        assert spool.next_sequence() == sequence
        stamp = frame.Stamp(
            RUN_ID, BOOT_ID, sequence, BEGAN_NS + sequence * 10**9, WALL_NS + sequence * 10**9
        )
        spool.append(sequence, frame.encode(stamp, blocks(sequence)))
    spool.close()
    queue = EventQueue.open(folder / "events")
    for number in range(1, EVENTS + 1):
        queue.put(event(number))
    queue.close()
    (folder / "state").mkdir()
    position = LogPosition("00000000-1111-2222-3333-444444444444", 1234, incidents=())
    (folder / "state" / FILE_NAME).write_bytes(format_position(position))
    for lock in folder.glob("*/lock"):
        os.unlink(lock)


if __name__ == "__main__":
    main()
