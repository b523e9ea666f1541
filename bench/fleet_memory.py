"""Memory of the fleet state with 80,000 GPUs, their ports and links, against the raw cells.

A process of its own reads generated frames of 10,000 hosts through the code of the service: 8 GPUs,
9 ports and 144 links each, in every table, twice, so that counters have an increase. Every cell has
a value; one host in a hundred has every error count, other hosts have no errors. The floor is 9
bytes (a cell and its validity) for each cell that judgement reads. Not included: gRPC connections,
the memory of streams for differences (at most 32 KiB), DuckDB (at most its memory_limit), and
pending frames.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from bench.measure import Result
from gangline.contract.block import Block
from gangline.contract.signal import Kind
from gangline.contract.signals import TABLES

HOSTS, GPUS, PORTS, LINKS = 10_000, 8, 9, 144
#: Limit of all memory of an aggregator with a fleet of this size, at any moment.
LIMIT_BYTES = 1.5e9
#: Devices of a host, by kind.
DEVICES = {
    "gpu": GPUS, "gpu_fast": GPUS, "gpu_fabric": GPUS, "rdma": PORTS, "net": PORTS, "link": PORTS, "nic": PORTS,
    "nvlink": LINKS, "pcie": 4 * (GPUS + PORTS), "disk": 4, "nvme": 4, "filesystem": 4, "host": 1, "agent": 1,
    "probe": GPUS, "collector": 24, "clock": 1, "numa": 2, "edac": 2,
}  # fmt: skip
SECOND_NS = 1_000_000_000
#: Suffixes of gauges that are zero on a healthy host.
COUNTED = ("_bytes", "_count", "_ratio", "_seconds")
#: One host per this many hosts has counted errors, on each of its devices.
ERRORS_EVERY_HOSTS = 100


def _names(host: int) -> dict[str, list[str]]:
    source = random.Random(host)
    gpus = [f"GPU-{source.getrandbits(128):032x}-{index:04x}" for index in range(GPUS)]
    links = [f"{gpu}/link{index}" for gpu in gpus for index in range(LINKS // GPUS)]
    ports = [f"mlx5_{index}/1" for index in range(PORTS)]
    functions = [f"0000:{index:02x}:00.0" for index in range(DEVICES["pcie"])]
    named = {
        "gpu": gpus,
        "gpu_fast": gpus,
        "gpu_fabric": gpus,
        "probe": gpus,
        "nvlink": links,
        "pcie": functions,
    }
    named |= {"rdma": ports, "link": ports}
    return {
        kind: named.get(kind, [f"{kind}{index}" for index in range(count)])
        for kind, count in DEVICES.items()
    }


def _block(table: str, rows: int, second: int, *, errors: bool) -> Block:
    """Return readings of a healthy device: states and current counts are zero, and without *errors*
    also error counters.
    """
    block = Block(table, [""] * rows)
    block.valid[:] = b"\1" * len(block.valid)
    for column, signal in enumerate(TABLES[table]):
        counts = signal.kind is Kind.COUNTER and (errors or not signal.on_change)
        for row in range(rows):
            if signal.kind is Kind.GAUGE and not signal.name.endswith(COUNTED):
                block.put_float(column, row, 40.0)
            elif counts:
                block.put_int(column, row, second)
    return block


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _child(hosts: int) -> dict[str, float]:
    """Return the bytes of the state in this process, and the seconds of a judgement."""
    from gangline.aggregator.fleet.fleet import Fleet
    from gangline.aggregator.fleet.tables import TRACKED_SIGNALS
    from gangline.aggregator.ingest.frame_reader import CATALOGUE
    from gangline.aggregator.scoring.evaluate import evaluate
    from gangline.aggregator.server import Aggregator  # noqa: F401 - as the service has it
    from gangline.contract import frame as frames
    from gangline.contract.frame import Stamp, decode
    from gangline.contract.wire.telemetry_pb2 import Device
    from gangline.ext.intake import Reader

    before, fleet, readers = _resident_bytes(), Fleet(), []
    tables = [(table, signals[0].device_kind) for table, signals in TABLES.items()]
    tables = [(table, kind) for table, kind in tables if kind in DEVICES]
    sources = {
        (table, errors): [_block(table, DEVICES[kind], second, errors=errors) for second in (1, 2)]
        for table, kind in tables
        for errors in (False, True)
    }
    for host in range(hosts):
        named, reader = _names(host), Reader(CATALOGUE, decode)
        readers.append(reader)
        devices = [
            Device(kind=kind, key=key, attributes={"name": "x"})
            for kind in ("gpu", "rdma")
            for key in named[kind]
        ]
        fleet.register(f"host-{host:05d}", simulated=True, boot_id=bytes(16), devices=devices)
        for second in (1, 2):
            blocks = []
            for table, kind in tables:
                block = Block(table, named[kind])
                source = sources[table, host % ERRORS_EVERY_HOSTS == 0][second - 1]
                block.cells, block.valid = source.cells, source.valid
                blocks.append(block)
            stamp = Stamp(bytes(16), bytes(16), second, second * 60 * SECOND_NS, 0)
            frame = reader.read(frames.encode(stamp, blocks))
            fleet.observe(f"host-{host:05d}", frame, 1000 * SECOND_NS + second)
            if host % 1000 == 999:
                fleet.advance(1000 * SECOND_NS)
    begin = time.perf_counter()
    judgement = evaluate(fleet, 1001 * SECOND_NS, None)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    judgement = evaluate(fleet, 1002 * SECOND_NS, judgement)
    seconds = time.perf_counter() - begin
    cells = sum(
        DEVICES[kind] * sum(signal.name in TRACKED_SIGNALS for signal in TABLES[table])
        for table, kind in tables
    )
    arrays = sum(
        a.nbytes for t in fleet.tables.values() for a in vars(t).values() if hasattr(a, "nbytes")
    )
    return {
        "taken": _resident_bytes() - before, "all": _resident_bytes(), "floor": 9.0 * cells * hosts,
        "arrays": arrays, "judge_first": first, "judge": seconds, "readers": len(readers),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


def run(seed: int) -> list[Result]:
    """Measure in a process of its own; the readings are the same for every seed."""
    del seed
    output = subprocess.run(
        [sys.executable, "-m", f"{__package__}.fleet_memory", str(HOSTS)],
        stdout=subprocess.PIPE, check=True,
    ).stdout  # fmt: skip
    result = json.loads(output)
    notes = (
        f"{HOSTS} hosts of {GPUS} GPUs, {PORTS} ports, {LINKS} links; arrays {result['arrays'] / 1e6:.0f} MB, not all written; "
        f"the process {result['all'] / 1e6:.0f} MB; a judgement "
        f"{result['judge']:.2f} s, the first {result['judge_first']:.2f}"
    )
    return [
        Result("state of a fleet of 80,000 GPUs", result["taken"] / 1e6, "MB", "the cells that are read, 9 B each",
               result["floor"] / 1e6, notes),
        Result("the same process at its peak", result["peak"] / 1e6, "MB",
               "limit of a whole aggregator", LIMIT_BYTES / 1e6, "VmHWM, two judgements among it"),
    ]  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_child(int(sys.argv[1]))))
