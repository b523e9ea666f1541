"""The whole reading of a host, as one JSON document that people can read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace

from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.disk import Filesystems
from gangline.agent.hardware.roots import Roots
from gangline.agent.turn import Collector, Outcome, Turn, take_turn
from gangline.fingerprints.block import Block
from gangline.fingerprints.catalogue import BY_ID
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import Gpu, Scenario, gpus
from tests.hosts import HostFolder

#: PCI class of a 3D controller, which is what a datacentre GPU is.
GPU_CLASS = "0x0302"

#: What every filesystem of a host that is a folder answers: 1 GiB of 4 KiB blocks, a quarter of it free.
STATVFS = os.statvfs_result((4096, 4096, 262144, 70000, 65536, 1000, 900, 900, 0, 255))


class StoppedClock:
    """A clock that stands still."""

    def boottime_ns(self) -> int:
        return 0

    def wall_ns(self) -> int:
        return 0


def collectors_of(roots: Roots, *, with_gpus: bool = False) -> list[Collector]:
    """Return the collectors, filesystems of a fixed size; the GPU's only where a test plays some."""
    made = [make(roots) for name, make in COLLECTORS.items() if with_gpus or "gpu" not in name]
    asked = Filesystems(roots, lambda point: STATVFS)
    return [asked if collector.name == asked.name else collector for collector in made]


def read_host(host: HostFolder) -> dict[str, object]:
    """Return what the collectors say in their second turn, a second after the first.

    A folder cannot show GPUs: where the host has some, the stand-in NVML plays them.
    """
    scenario = Scenario(host.root / "scenario", gpus_of(host))
    os.environ["GANGLINE_FAKE_NVML"] = str(scenario.path)
    roots = (
        replace(host.roots, nvml_library=str(build(host.root / "nvml")))
        if gpus_of(host)
        else host.roots
    )
    try:
        collectors = collectors_of(roots, with_gpus=True)
        for collector in collectors:
            take_turn(collector, StoppedClock())
        host.pass_a_second()
        scenario.step(1)
        return as_document([take_turn(collector, StoppedClock()) for collector in collectors])
    finally:
        del os.environ["GANGLINE_FAKE_NVML"]


def gpus_of(host: HostFolder) -> list[Gpu]:
    """Return a GPU to be played for each PCIe function of the folder that is one."""
    functions = sorted((host.root / "sys" / "bus" / "pci" / "devices").iterdir())
    addresses = [f.name for f in functions if (f / "class").read_text().startswith(GPU_CLASS)]
    return [replace(gpu, address=a) for gpu, a in zip(gpus(len(addresses)), addresses, strict=True)]


def as_document(turns: list[Turn]) -> dict[str, object]:
    """Return the readings by table and device, and the words of those that had none."""
    tables: dict[str, object] = {}
    words: dict[str, str] = {}
    for turn in turns:
        tables |= {block.table: dict(rows_of(block)) for block in turn.blocks}
        if turn.outcome is not Outcome.OK:
            words[turn.collector] = f"{turn.outcome.name.lower().replace('_', '-')}: {turn.words}"
    return {"tables": tables, "without readings": words}


def rows_of(block: Block) -> Iterator[tuple[str, dict[str, float | int | None] | None]]:
    """Yield each device with its values by column; None for one of which nothing is known."""
    for row, device in enumerate(block.devices):
        values = {BY_ID[signal].column: value for signal, value in block.values(row)}
        yield device, None if all(value is None for value in values.values()) else values


def as_text(document: dict[str, object]) -> str:
    """Return the document as JSON, one device a line."""
    tables = document["tables"]
    assert isinstance(tables, dict)
    parts = [
        f'  "{name}": {{\n'
        + ",\n".join(f"   {json.dumps(d)}: {json.dumps(values)}" for d, values in rows.items())
        + "\n  }"
        for name, rows in tables.items()
    ]
    words = json.dumps(document["without readings"], indent=2)
    body = ",\n".join(parts)
    return f'{{\n "tables": {{\n{body}\n }},\n "without readings": {words}\n}}\n'
