"""The whole reading of a host, as one JSON document that people can read."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gangline.agent.collector import Collector, CollectOutcome, CollectResult, run_collector
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.clock import ClockTenSeconds
from gangline.agent.collectors.disk import Filesystems
from gangline.agent.collectors.gpu_fast import PERIOD_NS, GpuFast
from gangline.agent.collectors.kernel_log import KernelLog
from gangline.agent.collectors.nvme import NvmeSmart
from gangline.agent.collectors.nvml_session import NvmlSession
from gangline.agent.hardware.files import Roots
from gangline.contract.block import Block
from gangline.contract.signals import BY_ID
from gangline.ext import nvml
from tests.fake_nvml.build import build
from tests.fake_nvml.parts_scenario import (
    BLACKWELL,
    host_lines,
    process,
    with_c2c,
    with_fabric,
    with_gpm,
    with_links,
    with_mig,
)
from tests.fake_nvml.scenario import Gpu, Scenario, gpus
from tests.hosts import HostFolder

#: PCI class of a 3D controller, which is what a datacentre GPU is.
GPU_CLASS = "0x0302"

#: The answer of every filesystem of a folder host: 1 GiB of 4 KiB blocks, a quarter of it free.
STATVFS = os.statvfs_result((4096, 4096, 262144, 70000, 65536, 1000, 900, 900, 0, 255))

#: The answer of the clock of every folder host: kept by chrony, 25 us wrong at most 1.5 ms, 12.5
#: ppm.
TIMEX = (0, 0x2001, -1250, 819200, 1500, 25, 37)

#: The SMART log of every NVMe of such a host: 41 degrees, 97 % spare, 12 % used, two errors of the medium.
SMART_PAGE = struct.pack(
    "<BHBBB26x" + "QQ" * 10 + "II16x" + "II288x",
    *(0, 314, 97, 10, 12),
    *(81234567, 0, 61234567, 0, 9123456789, 0, 5123456789, 0, 41234, 0),
    *(14, 0, 8766, 0, 3, 0, 2, 0, 5, 0),
    *(0, 0, 1, 0),
)
#: The earlier samples of each GPU for the phase tracker: steps of 1 s, 0.7 of it busy, and a
#: checkpoint of 6 s after each 24 of them.
HISTORY_SECONDS = 150


class StoppedClock:
    def boottime_ns(self) -> int:
        return 0

    def wall_ns(self) -> int:
        return 0


class LongAfterBootClock(StoppedClock):
    """A clock stopped thirty years after boot.

    The kernel log of a folder host has its own time stamps. Read by this machine's clock, its
    incidents were still open on a machine that had booted a quarter of an hour before.
    """

    def boottime_ns(self) -> int:
        return 10**18


def collectors_of(roots: Roots, *, with_gpus: bool = False) -> list[Collector]:
    """Return the collectors; those that need more than files are faked. GPU collectors only with *with_gpus*."""
    collectors = [
        make(roots) for name, make in COLLECTORS.items() if with_gpus or "gpu" not in name
    ]
    faked: dict[str, Collector] = {
        "filesystem_60s": Filesystems(roots, lambda point: STATVFS),
        "clock_10s": ClockTenSeconds(roots, lambda: TIMEX),
        "nvme_60s": NvmeSmart(roots, lambda device: SMART_PAGE),
        "gpu_fast_1s": FastByHand(roots),
        "kernel_log_10s": KernelLog(roots, clock=LongAfterBootClock()),
    }
    return [faked.get(collector.name, collector) for collector in collectors]


def read_host(host: HostFolder) -> dict[str, object]:
    """Return the collectors' readings of their second turn, a second after the first.

    A folder cannot show GPUs: if the host has some, the fake NVML plays them.
    """
    played = gpus_of(host)
    scenario = Scenario(host.root / "scenario", played, host=host_lines(played))
    os.environ["GANGLINE_FAKE_NVML"] = str(scenario.path)
    nvml.forget_accounts()  # of the previous host
    roots = (
        replace(host.roots, nvml_library=str(build(host.root / "nvml"))) if played else host.roots
    )
    collectors = collectors_of(roots, with_gpus=True)
    try:
        for collector in collectors:
            run_collector(collector, StoppedClock())
        host.pass_a_second()
        scenario.step(1)
        document = as_document(
            [run_collector(collector, StoppedClock()) for collector in collectors]
        )
        # Messages contain the current paths; the golden files have the paths of the real host.
        return json.loads(json.dumps(document).replace(str(host.root), ""))  # type: ignore[no-any-return]
    finally:
        let_go(collectors)
        del os.environ["GANGLINE_FAKE_NVML"]


def let_go(collectors: Iterable[Collector]) -> None:
    """Close NVML if it is open: a library stays loaded while any object of the process uses it."""
    for session in {getattr(collector, "_session", None) for collector in collectors}:
        if isinstance(session, NvmlSession):
            session.close()


def gpus_of(host: HostFolder) -> list[Gpu]:
    """Return a fake GPU for each PCIe function of the folder that is a GPU."""
    functions = sorted((host.root / "sys" / "bus" / "pci" / "devices").iterdir())
    addresses = [f.name for f in functions if (f / "class").read_text().startswith(GPU_CLASS)]
    held_gpus = [
        replace(gpu, address=a) for gpu, a in zip(gpus(len(addresses)), addresses, strict=True)
    ]
    return [PARTS[host.name](gpu, number) for number, gpu in enumerate(held_gpus)]


def _held_by(gpu: Gpu, pid: int) -> Gpu:
    gpu.lines.append(process(pid))
    return gpu


def _h100(gpu: Gpu, number: int) -> Gpu:
    gpu = _held_by(gpu, 4242) if number == 0 else gpu
    return with_gpm(with_links(gpu, 18))


def _h200(gpu: Gpu, number: int) -> Gpu:
    """The last one is split into MIG instances."""
    gpu.name = "NVIDIA H200"
    gpu = _held_by(gpu, 20_000 + 100 * number)
    return with_mig(with_gpm(gpu)) if number == 7 else with_links(with_gpm(gpu), 18)


def _gb200(gpu: Gpu, number: int) -> Gpu:
    """The fabric says that the third one's bandwidth is degraded (health mask, nvml.h: bits 0-1 are 1)."""
    gpu.name = "NVIDIA GB200"
    gpu = _held_by(gpu, 5000 if number < 2 else 5100)
    health = 0xA9 if number == 2 else 0xAA
    return with_fabric(with_c2c(with_links(with_gpm(gpu), 18, BLACKWELL), 5), health=health)


def _h100_pcie(gpu: Gpu, number: int) -> Gpu:
    gpu.name = "NVIDIA H100 PCIe"
    return with_gpm(_held_by(gpu, 8000) if number == 0 else gpu)


#: Extra properties of the GPUs of each host.
PARTS: dict[str, Callable[[Gpu, int], Gpu]] = {
    "h100-ib": _h100,
    "h200-roce": _h200,
    "gb200-nvl72": _gb200,
    "mixed-vendors": _h100_pcie,
}


class FastByHand(GpuFast):
    """The fast lane without a sampler's rest: a turn takes the samples of a second, and then sums them up."""

    _sampled_ns = 0

    def collect(self) -> Sequence[Block]:
        """Return the summary. Raises NoData where there is no NVML."""
        if self.samples is None:
            super().collect()
            self._remember()
        for _ in range(10):
            self._sampled_ns += PERIOD_NS
            if self.samples is not None:
                self.samples.ring.sample(self._sampled_ns)
        return super().collect()

    def _remember(self) -> None:
        """Give each GPU the samples of a job."""
        if self.samples is None:
            return
        for number in range(HISTORY_SECONDS * 10):
            self._sampled_ns += PERIOD_NS
            computes = number % 300 < 240 and number % 10 < 7
            self.samples.history.begin(self._sampled_ns)
            for row in range(self.samples.tracker.rows):
                self.samples.history.put(row, 0, 588.0 if computes else 160.0)
                self.samples.tracker.push(
                    row,
                    self._sampled_ns,
                    power=588.0 if computes else 160.0,
                    utilization=1.0,
                    sm_active=0.97 if computes else 0.15,
                )
            if number % 300 == 230:
                for _ in range(self.samples.tracker.rows):
                    self.samples.steps.estimate_next()
        for row in range(self.samples.tracker.rows):
            self.samples.tracker.take_second(row)


def as_document(turns: list[CollectResult]) -> dict[str, object]:
    """Return the readings by table and device, and the error messages of collectors without readings."""
    tables: dict[str, dict[str, object]] = {}
    messages: dict[str, str] = {}
    for turn in turns:
        for block in turn.blocks:  # two vendors' collectors fill one table
            tables.setdefault(block.table, {}).update(_known(block))
        if turn.outcome is not CollectOutcome.OK:
            messages[turn.collector] = (
                f"{turn.outcome.name.lower().replace('_', '-')}: {turn.message}"
            )
    return {"tables": tables, "without readings": messages}


def _known(block: Block) -> dict[str, dict[str, float | int] | None]:
    """Return the known values of each device. An estimated step is rounded: its last digits depend on the compiler."""
    known: dict[str, dict[str, float | int] | None] = {}
    for device, row in rows_of(block):
        if row is None:
            known[device] = None
        else:
            known[device] = {
                name: round(value, 6) if name.startswith("step_") else value
                for name, value in row.items()
                if value is not None
            }
    return known


def rows_of(block: Block) -> Iterator[tuple[str, dict[str, float | int | None] | None]]:
    """Yield each device with its values by column; None for a device without known values."""
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
    text = json.dumps(document["without readings"], indent=2)
    body = ",\n".join(parts)
    return f'{{\n "tables": {{\n{body}\n }},\n "without readings": {text}\n}}\n'
