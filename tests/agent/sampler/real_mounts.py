"""A daemon's samplers over the filesystems and ports of a host folder; prints the readings each
second.

Run as `python -m tests.agent.sampler.real_mounts FOLDER`, which contains `proc` and `sys`. Its
mount points are this machine's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gangline.agent.clock import SystemClock
from gangline.agent.collector import CollectOutcome
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.disk import Filesystems
from gangline.agent.hardware.files import Roots
from gangline.agent.main import ProcessSignals
from gangline.agent.sampler.collector_groups import PROCESSES_MAX
from gangline.agent.sampler.forkserver import ForkServer
from gangline.agent.sampler.pool import SamplerPool
from gangline.contract.signal import Pace

SECOND = 1_000_000_000


class EachSecond(Filesystems):
    """The real collector, without its minute between turns."""

    pace = Pace.SECOND


def main(folder: Path) -> None:
    clock, roots = SystemClock(), Roots(proc=folder / "proc", sys=folder / "sys")
    others = [COLLECTORS[name](roots) for name in ("rdma_1s", "net_1s")]
    lanes = {"host": [EachSecond(roots, os.statvfs), *others]}
    samplers = SamplerPool(lanes, ForkServer(lanes, clock, PROCESSES_MAX + 1), clock)
    signals = ProcessSignals(clock)
    with signals.caught():
        samplers.start()
        signals.watch_descriptors(samplers.descriptors)
        while not signals.stop.is_set():
            now_ns = clock.boottime_ns()
            say(samplers, now_ns)
            signals.wait(min(now_ns + SECOND // 4, samplers.next_ns(now_ns) or now_ns + SECOND))
        samplers.close()


def say(samplers: SamplerPool, now_ns: int) -> None:
    """Print the devices with a reading, by table, and the state of the others."""
    read: dict[str, list[str]] = {}
    for timed in samplers.poll(now_ns):
        for block in timed.result.blocks if timed.result.outcome is CollectOutcome.OK else ():
            rows = enumerate(block.devices)
            read[block.table] = [device for row, device in rows if block.valid[row]]
    states = {state.device: [state.state.name, state.call] for state in samplers.states()}
    shown = {"read": read, "states": states, "processes": samplers.processes}
    print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
