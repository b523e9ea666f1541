"""CPU of judging 10,000 hosts of 8 GPUs every second, against one numpy pass over the same arrays.

A process of its own fills the arrays of a fleet directly. Between two judgements it updates them
like a second of frames: all one-second tables, a tenth of the ten-second tables, and the keyframes
(a sixtieth) of tables sent on change. The figure includes counter increases, rules, scores,
columns, and the choice of scores to write. The floor reads every stored cell once.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any

import numpy as np

from bench.measure import Result

HOSTS, SECONDS = 10_000, 30
GPUS, PORTS, LINKS = 8, 9, 144
#: Limit of all memory of an aggregator with a fleet of this size, at any moment.
LIMIT_BYTES = 1.5e9
#: Devices of a host, by kind.
DEVICES = {
    "gpu": GPUS, "gpu_fast": GPUS, "gpu_fabric": GPUS, "rdma": PORTS, "net": PORTS, "link": PORTS, "nic": PORTS,
    "nvlink": LINKS, "pcie": 4 * (GPUS + PORTS), "disk": 4, "nvme": 4, "filesystem": 4, "host": 1, "agent": 1,
    "collector": 24, "clock": 1, "numa": 2, "edac": 2,
}  # fmt: skip
SECOND_NS = 1_000_000_000
#: Early judgements between two seconds, measured separately.
EARLY_JUDGEMENTS = 10
#: Limits: share of one core, and multiple of one pass over the same arrays.
CORES_MAX, PASSES_MAX = 0.25, 10.0
#: Limit for storing the memory of judging, as a share of a core.
CORES_REMEMBER_MAX = 0.02
START_NS = 1_700_000_000 * SECOND_NS
UPTIME_NS = 100_000 * SECOND_NS
#: One host per this many hosts has a slow and hot GPU, as every fleet has.
SLOW_EVERY_HOSTS = 1000
GAUGES = {
    "sm_clock_hertz": 1.7e9, "power_watts": 550.0, "power_limit_watts": 700.0, "utilization_ratio": 0.98,
    "temperature_celsius": 62.0, "temperature_slowdown_celsius": 89.0, "memory_temperature_celsius": 80.0,
    "temperature_margin_celsius": 25.0, "sm_clock_max_hertz": 1.98e9, "size_bytes": 5e11, "available_bytes": 2e11,
    "pcie_width_lanes": 16.0, "pcie_width_max_lanes": 16.0, "link_width_lanes": 16.0, "link_width_max_lanes": 16.0,
}  # fmt: skip
ERRORS = ("_errors", "_events", "_frames")
STATES = {"port_state": 4, "physical_state": 5, "carrier_state": 1, "link_state": 1,
          "registration_state": 3, "synchronised_state": 1}  # fmt: skip


def _names(host: int) -> dict[str, list[str]]:
    source = random.Random(host)
    gpus = [f"GPU-{source.getrandbits(128):032x}-{index:04x}" for index in range(GPUS)]
    links = [f"{gpu}/link{index}" for gpu in gpus for index in range(LINKS // GPUS)]
    ports = [f"mlx5_{index}/1" for index in range(PORTS)]
    functions = [f"0000:{index:02x}:00.0" for index in range(DEVICES["pcie"])]
    named = dict.fromkeys(("gpu", "gpu_fast", "gpu_fabric"), gpus)
    named |= {"nvlink": links, "pcie": functions, "rdma": ports, "link": ports}
    return {
        kind: named.get(kind, [f"{kind}{index}" for index in range(count)])
        for kind, count in DEVICES.items()
    }


def fill(hosts: int) -> Any:
    """Return a fleet of *hosts* hosts, each with one received frame."""
    from gangline.aggregator.fleet.fleet import Fleet

    fleet = Fleet()
    kinds = [kind for kind in DEVICES if kind in fleet.devices]
    first = {table.devices.kind: table for table in fleet.tables.values() if table.is_tracked}
    for host in range(hosts):
        named = _names(host)
        fleet.register(
            f"host-{host:05d}", simulated=False, boot_id=bytes(16), devices=_inventory(named)
        )
        for kind in kinds:
            if kind in first:
                first[kind].ensure_rows(host, tuple(named[kind]))
    fleet._boottime_ns[:hosts] = UPTIME_NS
    fleet._booted_ns[:hosts] = START_NS - UPTIME_NS
    fleet._first_received_ns[:hosts] = fleet._last_received_ns[:hosts] = START_NS
    for table in fleet.tables.values():
        if table.is_tracked and table.name != "gpu_1s_probe":
            _furnish(table, fleet)
    return fleet


def _inventory(named: dict[str, list[str]]) -> list[Any]:
    from gangline.contract.wire.telemetry_pb2 import Device

    result = []
    for index, key in enumerate(named["gpu"]):
        address, *parents = named["pcie"][4 * index : 4 * index + 4]
        result.append(
            Device(kind="gpu", key=key, attributes={"name": "H100", "pci_address": address})
        )
        result.append(Device(kind="pcie", key=address, attributes={"parents": " ".join(parents)}))
    return result


def _furnish(table: Any, fleet: Any) -> None:
    table._fit()
    count = table.devices.count
    noise = np.random.default_rng(1).normal(1.0, 0.01, count)
    for column, index in table.column.items():
        if table.is_gauge(column):
            table._bits[index, :count] = (GAUGES.get(column, 0.0) * noise).view(np.uint64)
        else:
            table._bits[index, :count] = STATES.get(column, 0)
        table._valid[index, :count] = True
    if table.name == "gpu_1s":
        slow = np.arange(0, count, SLOW_EVERY_HOSTS * GPUS)
        clock, heat = table.column["sm_clock_hertz"], table.column["temperature_celsius"]
        table._bits[clock].view(np.float64)[slow] = 1.1e9
        table._bits[heat].view(np.float64)[slow] = 88.0
        table._bits[table.column["clock_event_reasons_flags"], slow] = 0x20
    table._boot[:count] = 1
    table._boottime_ns[:count] = UPTIME_NS
    table._touched[:count] = True


def move(fleet: Any, second: int) -> int:
    """Update the fleet as by a second of frames; return the time."""
    hosts, now_ns = len(fleet), START_NS + second * SECOND_NS
    fleet._boottime_ns[:hosts] = UPTIME_NS + second * SECOND_NS
    fleet._last_received_ns[:hosts] = now_ns
    for table in fleet.tables.values():
        if not table.is_tracked or not table.devices.count or table.name == "gpu_1s_probe":
            continue
        host = table.devices.host
        share = 60 if table.on_change else round(table.period_seconds)
        rows = np.flatnonzero(host % share == second % share)
        if not table.on_change:  # gauges, which change all the time
            for column in (c for c in table.counter if not c.endswith(ERRORS)):
                table._bits[table.column[column], rows] += np.uint64(table.period_seconds)
        table._boottime_ns[rows] = UPTIME_NS + second * SECOND_NS
        if table.counter_columns.size:
            table._elapsed_seconds[rows] += share
        if table.on_change:
            table._gap_seconds[rows] = 1.0
        table._touched[rows] = True
    return now_ns


def one_pass(fleet: Any) -> float:
    """Return the seconds of one numpy pass over all stored cells."""
    begin = time.thread_time()
    for table in fleet.tables.values():
        count = table.devices.count
        if table.is_tracked and count:
            for bits, valid in zip(table._bits, table._valid, strict=True):
                np.where(valid[:count], bits[:count], 0).max()
    return time.thread_time() - begin


def _child(hosts: int, seconds: int) -> dict[str, float]:
    import resource

    from gangline.aggregator.scoring.evaluate import evaluate
    from gangline.aggregator.scoring.score_rows import ScoreLog

    fleet, written = fill(hosts), ScoreLog()
    judgement: Any = None
    spent: list[float] = []
    walls: list[float] = []
    passes: list[float] = []
    for second in range(1, seconds + 12):
        now_ns = move(fleet, second)
        passes.append(one_pass(fleet))
        begin, wall = time.process_time(), time.perf_counter()
        for _ in fleet.advance_ahead():
            pass
        judgement = evaluate(fleet, now_ns, judgement)
        written.take_changed(judgement)
        spent.append(time.process_time() - begin)
        walls.append(time.perf_counter() - wall)
    remember, remembered_bytes = _remember(fleet, judgement)
    early = _early_judgements(fleet, judgement, seconds + 12)
    return {
        "remember": remember, "remembered_bytes": remembered_bytes,
        "early": float(np.mean(early)), "early_longest": max(early),
        "judge": float(np.mean(spent[11:])), "longest": max(walls[11:]), "pass": float(np.mean(passes[11:])),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0, "first": spent[0],
        "slow": float(sum(judgement.columns.state == 3)), "hosts": float(len(fleet)),
    }  # fmt: skip


def _remember(fleet: Any, judgement: Any) -> tuple[float, float]:
    """Return (CPU seconds, bytes) to store a minute of judging's memory, if each host has symptoms."""
    from dataclasses import replace

    from gangline.aggregator.scoring.checkpoint import MemoryLog

    symptoms = next(iter(judgement.tracked_symptoms.values()))
    every = replace(
        judgement, tracked_symptoms=dict.fromkeys(range(len(fleet)), symptoms), settling={}
    )
    begin = time.process_time()
    rows = MemoryLog(every).take_due(every, fleet, ())
    size = sum(len(row.body()) for row in rows if row.body is not None)
    return time.process_time() - begin, float(size)


def _early_judgements(fleet: Any, judgement: Any, second: int) -> list[float]:
    """Return the CPU seconds of judgements a third of a second after a regular one, for an XID 79."""
    from gangline.aggregator.scoring.evaluate import evaluate
    from gangline.contract.wire.telemetry_pb2 import HealthEvent

    spent: list[float] = []
    for index in range(EARLY_JUDGEMENTS):
        now_ns = move(fleet, second + index)
        judgement = evaluate(fleet, now_ns, judgement)
        event = HealthEvent(
            event_id=f"e{index}", name="gpu.xid", code=79, device=fleet.devices["gpu"].names[8 * index], count=1,
            boottime_ns=UPTIME_NS + (second + index) * SECOND_NS,
        )  # fmt: skip
        if not fleet.observe_event(fleet.names[index], event, now_ns):
            raise RuntimeError("the event asks for no early judgement")
        begin = time.process_time()
        judgement = evaluate(fleet, now_ns + SECOND_NS // 3, judgement)
        spent.append(time.process_time() - begin)
    return spent


def run(seed: int) -> list[Result]:
    """Measure in a process of its own; *seed* is ignored."""
    del seed
    command = [sys.executable, "-m", f"{__package__}.judging", str(HOSTS), str(SECONDS)]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    result = json.loads(output)
    notes = (
        f"{HOSTS} hosts of {GPUS} GPUs and {LINKS} links, {SECONDS} judgements; the longest "
        f"{result['longest']:.2f} s, the first {result['first']:.2f} s; {result['slow']:.0f} hosts DEGRADED"
    )
    return [
        Result("judging each second", result["judge"], "cores", "limit", CORES_MAX, notes),
        Result("the same", result["judge"], "s", f"{PASSES_MAX:.0f} passes over the arrays",
               PASSES_MAX * result["pass"], "one numpy pass reads each kept cell once"),
        Result("an early judgement, for a fatal event", result["early"], "s CPU", "one of each second", result["judge"],
               f"{EARLY_JUDGEMENTS} of them; the longest {result['early_longest']:.2f} s; a storm of events has a tenth of the loop"),
        Result("what judging remembers, rows of a minute", result["remember"], "s CPU", f"{CORES_REMEMBER_MAX:.0%} of a core", 60 * CORES_REMEMBER_MAX,
               f"if each host has symptoms, as one has here: {result['remembered_bytes'] / 1e6:.1f} MB"),
        Result("the process at its peak", result["peak"] / 1e6, "MB", "limit of a whole aggregator",
               LIMIT_BYTES / 1e6, "VmHWM"),
    ]  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_child(int(sys.argv[1]), int(sys.argv[2]))))
