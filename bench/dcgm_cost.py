"""CPU of reading DCGM: two agents on one host over the same seconds, one with a host engine.

The engine is a stand-in within the agent's process; a real client waits for a socket.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from tests import fake_dcgm
from tests.fake_nvml.scenario import gpus

from .agent_cost import (
    GPUS,
    MEASURED_SECONDS,
    WARM_UP_SECONDS,
    Ground,
    running_agent,
    running_aggregator,
)
from .measure import ProcessCost, Result, family

#: On a loaded machine the agent is slow to fork its samplers.
LANES_SECONDS_MAX = 120
#: Limits of CPU and memory, relative to the agent without DCGM (issue 25).
CPU_RATIO_MAX = 1.1


def _engine(folder: Path, capability: int) -> fake_dcgm.HostEngine:
    """Return an engine that watches all profiling fields at 1 Hz, XIDs and all health systems."""
    engine = fake_dcgm.HostEngine(folder / "engine")
    for number, gpu in enumerate(gpus(GPUS)):
        engine.gpu(number, gpu.uuid, gpu.address, capability)
        engine.set(number, 230, "i", 1, 0)
        for field in (1001, 1002, 1003, 1004, 1005):
            engine.set(number, field, "d", 0, 0.5)
        for field in (1009, 1010, 1011, 1012):
            engine.set(number, field, "i", 0, 10**9)
    engine.lines += ["group 0 0x1fff"]
    engine.write()
    return engine


def _wait_for_lanes(pid: int, *, with_dcgm: bool) -> None:
    """Wait until an agent has forked its samplers. Raises RuntimeError after LANES_SECONDS_MAX."""
    wanted = {"gangline-gpu", "gangline-host"} | ({"gangline-dcgm"} if with_dcgm else set())
    for _ in range(LANES_SECONDS_MAX):
        time.sleep(1)
        if wanted <= set(ProcessCost.now(family(pid)).names):
            return
    raise RuntimeError(f"the agent has not started {', '.join(sorted(wanted))}")


def run(seed: int) -> list[Result]:
    """Measure Hopper GPUs, and older GPUs, whose profiling metrics are read each second."""
    del seed
    return [*_measure("Hopper", 9), *_measure("before Hopper", 8)]


def _measure(kind: str, capability: int) -> list[Result]:
    with Ground.temporary() as ground, ExitStack() as stack:
        engine = _engine(ground.folder, capability)
        library = fake_dcgm.build(ground.folder, 4)
        stack.enter_context(running_aggregator(ground))
        pids = {}
        for name, option in (("without", "dcgm=off"), ("with", f"dcgm_library={library}")):
            calls = ground.gpus(f"{name}.gpus")
            agent = running_agent(ground, name, calls, option, GANGLINE_FAKE_DCGM=str(engine.path))
            pids[name] = stack.enter_context(agent)
        for each, pid in pids.items():
            _wait_for_lanes(pid, with_dcgm=each == "with")
        time.sleep(WARM_UP_SECONDS)
        # fixed sets of processes: the inventory's child starts and exits
        families = {name: family(pid) for name, pid in pids.items()}
        before = {name: ProcessCost.now(families[name]) for name in pids}
        asked = len(engine.calls)
        time.sleep(MEASURED_SECONDS)
        costs = {name: ProcessCost.now(families[name]).since(before[name]) for name in pids}
        asked = len(engine.calls) - asked
    if asked < MEASURED_SECONDS // 10:
        raise RuntimeError(f"the agent made {asked} calls of DCGM in {MEASURED_SECONDS} s")
    second = MEASURED_SECONDS
    ours, peer = costs["with"], costs["without"]
    shares = " + ".join(
        f"{process} {seconds * 1e6 / second:.0f}"
        for process, seconds in zip(ours.names, ours.cpu_by_process, strict=True)
    )
    notes = f"{asked} calls in {second} s, {GPUS} GPUs, 13 health systems; by process {shares}"
    return [
        Result(f"agent CPU with `dcgm = \"listen\"`, {kind}", ours.cpu_seconds * 1e6 / second, "us/s",
               "the same agent, `off`", peer.cpu_seconds * 1e6 / second, notes),
        Result("its memory (PSS)", ours.pss_bytes / 1e6, "MB", "the same agent, `off`", peer.pss_bytes / 1e6,
               f"{ours.processes} processes, {peer.processes} without"),
        Result("its wake-ups", ours.wakes / second, "1/s", "the same agent, `off`", peer.wakes / second),
    ]  # fmt: skip
