"""A daemon's samplers as real processes, over collectors that read one file per device; prints
their state each second.

Run as `python -m tests.agent.sampler.real FOLDER`: each folder in FOLDER is a lane, each file in it
a device. A file that contains `die` kills its reader with SIGSEGV.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gangline.agent.clock import SystemClock
from gangline.agent.collector import Collector, CollectOutcome
from gangline.agent.main import ProcessSignals
from gangline.agent.sampler.collector_groups import PROCESSES_MAX
from gangline.agent.sampler.forkserver import ForkServer
from gangline.agent.sampler.pool import SamplerPool
from gangline.contract.block import Block
from gangline.contract.signal import Pace
from gangline.ext import place

SECOND = 1_000_000_000


class Files(Collector):
    """Reads a file of each device, once a second."""

    pace, enters_driver = Pace.SECOND, True

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self._devices = sorted(os.listdir(folder))
        self._spared: frozenset[str] = frozenset()

    def exclude(self, devices: frozenset[str]) -> None:
        self._spared = devices

    def collect(self) -> Sequence[Block]:
        block = Block(self.name, self._devices)
        for row, device in enumerate(self._devices):
            if device not in self._spared:
                place.enter(device.encode(), b"read")
                if (self._folder / device).read_bytes().startswith(b"die"):
                    ctypes.string_at(0)
                place.leave()
                block.put_float(0, row, 1.0)
        return [block]


def main(folder: Path) -> None:
    clock = SystemClock()
    tables = {"gpu": "gpu_1s", "host": "disk_1s"}
    lanes = {each.name: [Files(tables[each.name], each)] for each in sorted(folder.iterdir())}
    samplers = SamplerPool(lanes, ForkServer(lanes, clock, PROCESSES_MAX + 1), clock)
    signals = ProcessSignals(clock)
    with signals.caught():
        samplers.start()
        signals.watch_descriptors(samplers.descriptors)
        while not signals.stop.is_set():
            now_ns = clock.boottime_ns()
            turns = samplers.poll(now_ns)
            say(samplers, turns)
            signals.wait(min(now_ns + SECOND // 4, samplers.next_ns(now_ns) or now_ns + SECOND))
        samplers.close()


def say(samplers: SamplerPool, turns) -> None:  # type: ignore[no-untyped-def]
    read = [
        device
        for timed in turns
        if timed.result.outcome is CollectOutcome.OK
        for block in timed.result.blocks
        for row, device in enumerate(block.devices)
        if block.valid[row]
    ]
    processes = samplers._supervisor.processes.values()
    print(
        json.dumps(
            {
                "at": SystemClock().boottime_ns() / SECOND,
                "read": read,
                "states": {
                    e.device: [e.state.name, e.hung_seconds, e.call] for e in samplers.states()
                },
                "pids": {
                    str(c.pid): p.role.value
                    for p in processes
                    if (c := samplers._workers.get(p.serial))
                },
                "nursery": samplers._fork_server.pid,
                "abandoned": samplers.abandoned_count,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
