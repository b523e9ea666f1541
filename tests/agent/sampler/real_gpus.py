"""A daemon's samplers over the collectors of a played host's GPUs, as real processes; prints the
readings each second.

Run as `python -m tests.agent.sampler.real_gpus LIBRARY PROC SLOW_SECONDS`: SLOW_SECONDS is the
period of a slow GPU. If PROC has a sibling folder `sys`, its RDMA ports are sampled too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gangline.agent.clock import SystemClock
from gangline.agent.collectors import COLLECTORS
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.nvidia import driver_gpus
from gangline.agent.main import ProcessSignals
from gangline.agent.sampler import reconciler
from gangline.agent.sampler.abandoned import AbandonedProcessFile
from gangline.agent.sampler.collector_groups import PROCESSES_MAX
from gangline.agent.sampler.forkserver import ForkServer
from gangline.agent.sampler.messages import TimedResult
from gangline.agent.sampler.pool import SamplerPool
from gangline.contract.signals import BY_ID

SECOND = 1_000_000_000
NAMES = ("gpu_1s", "gpu_10s", "gpu_process_1s", "gpu_fast_1s")


def main(library: str, proc: Path, slow_seconds: int) -> None:
    reconciler.SLOW_PERIOD_NS = slow_seconds * SECOND
    clock = SystemClock()
    roots = Roots(proc=proc, sys=proc.parent / "sys", nvml_library=library)
    lanes = {"gpu": [COLLECTORS[name](roots) for name in NAMES]}
    if roots.sys.exists():
        lanes["host"] = [COLLECTORS["rdma_1s"](roots)]
    nursery, file = (
        ForkServer(lanes, clock, PROCESSES_MAX + 1),
        AbandonedProcessFile(proc.parent, b"boot"),
    )
    gpus = driver_gpus(proc)
    samplers = SamplerPool(lanes, nursery, clock, devices_of=lambda: gpus, abandoned_file=file)
    signals = ProcessSignals(clock)
    with signals.caught():
        samplers.start()
        signals.watch_descriptors(samplers.descriptors)
        while not signals.stop.is_set():
            now_ns = clock.boottime_ns()
            readings = read(samplers.poll(now_ns))
            if readings:
                print(json.dumps(told(samplers, readings)), flush=True)
            signals.wait(min(now_ns + SECOND // 4, samplers.next_ns(now_ns) or now_ns + SECOND))
        samplers.close()


def told(samplers: SamplerPool, said: dict[str, bool]) -> dict[str, object]:
    roles = [process.role.value for process in samplers._supervisor.processes.values()]
    return {
        "whole": said,
        "states": {state.device: state.state.name for state in samplers.states()},
        "calls": {state.device: state.call for state in samplers.states()},
        "roles": sorted(roles),
        "takeovers": samplers.takeovers_count,
    }


def read(turns: Sequence[TimedResult]) -> dict[str, bool]:
    """Return per GPU whether its row is complete (temperature is last); per port its traffic."""
    return {
        device: block.valid[column * block.rows + row] == 1
        for timed in turns
        for block in timed.result.blocks
        for column, signal_id in enumerate(block.signal_ids)
        if BY_ID[signal_id].name in ("gpu.temperature_celsius", "rdma.received_bytes")
        for row, device in enumerate(block.devices)
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
