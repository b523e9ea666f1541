"""Feeds recordings to the judge: each kind of file through the parser that a host would use."""

from __future__ import annotations

import csv
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from bench.quality.bed import Bed, block_of, outcomes_of
from gangline.agent.collector import run_collector
from gangline.agent.collectors import COLLECTORS
from gangline.agent.hardware.files import Roots
from gangline.agent.kernel_log.checkpoint_file import CheckpointFile
from gangline.agent.kernel_log.gpu_rules import XidDecoder
from gangline.agent.kernel_log.reader import LogReader
from gangline.agent.kernel_log.timestamps import TimestampConverter
from gangline.contract.wire import telemetry_pb2
from tests.agent.recorded import unpack_ttar

#: A static recorded host is judged for this long: longer than any rule's window of a minute.
STILL_SECONDS = 90
#: Collectors that read this machine's driver or kernel instead of the recorded files.
NOT_FILES = ("gpu", "filesystem_60s", "clock_10s", "nvme_60s", "kernel_log")

#: The entries of 11,495 that no collector reads.
_UNREAD = re.compile(
    r"/dev/cpuset/|/cache/|/power/|/cpuidle/|/node/node\d+/(cpu|memory)\d|/msi_irqs/|/usb\d/"
)
GPUS = tuple(f"GPU-{number}-recorded" for number in range(8))
#: Table -> column -> (field of nvidia-smi, factor).
SMI: dict[str, dict[str, tuple[str, float]]] = {
    "gpu_1s": {
        "sm_clock_hertz": ("clocks.current.sm", 1e6),
        "memory_clock_hertz": ("clocks.current.memory", 1e6),
        "clock_event_reasons_flags": ("clocks_event_reasons.active", 1),
        "violation_power_nanoseconds": ("clocks_event_reasons_counters.sw_power_cap", 1e3),
        "violation_sync_boost_nanoseconds": ("clocks_event_reasons_counters.sync_boost", 1e3),
        "power_watts": ("power.draw.instant", 1),
        "temperature_celsius": ("temperature.gpu", 1),
        "temperature_margin_celsius": ("temperature.gpu.tlimit", 1),
        "memory_temperature_celsius": ("temperature.memory", 1),
        "utilization_ratio": ("utilization.gpu", 0.01),
        "memory_utilization_ratio": ("utilization.memory", 0.01),
        "memory_used_bytes": ("memory.used", 1 << 20),
        "memory_free_bytes": ("memory.free", 1 << 20),
    },
    "gpu_10s": {
        "sm_clock_max_hertz": ("clocks.max.sm", 1e6),
        "power_limit_watts": ("enforced.power.limit", 1),
        "memory_total_bytes": ("memory.total", 1 << 20),
        "pcie_generation_number": ("pcie.link.gen.gpucurrent", 1),
        "pcie_generation_max_number": ("pcie.link.gen.gpumax", 1),
        "pcie_width_lanes": ("pcie.link.width.current", 1),
        "pcie_width_max_lanes": ("pcie.link.width.max", 1),
    },
    "gpu_1s_changes": {
        "ecc_corrected_volatile_errors": ("ecc.errors.corrected.volatile.total", 1),
        "ecc_uncorrected_volatile_errors": ("ecc.errors.uncorrected.volatile.total", 1),
        "violation_sw_thermal_nanoseconds": ("clocks_event_reasons_counters.sw_thermal_slowdown", 1e3),
        "violation_hw_thermal_nanoseconds": ("clocks_event_reasons_counters.hw_thermal_slowdown", 1e3),
        "violation_hw_power_brake_nanoseconds": (
            "clocks_event_reasons_counters.hw_power_brake_slowdown", 1e3,
        ),
    },
    "gpu_10s_changes": {
        "ecc_corrected_lifetime_errors": ("ecc.errors.corrected.aggregate.total", 1),
        "ecc_uncorrected_lifetime_errors": ("ecc.errors.uncorrected.aggregate.total", 1),
        "remapped_correctable_rows": ("remapped_rows.correctable", 1),
        "remapped_uncorrectable_rows": ("remapped_rows.uncorrectable", 1),
        "remap_pending_state": ("remapped_rows.pending", 1),
        "remap_failed_state": ("remapped_rows.failure", 1),
        "remap_banks_none_count": ("remapped_rows.histogram.none", 1),
    },
}  # fmt: skip


class Stopped:
    """The clock of a static host."""

    def boottime_ns(self) -> int:
        return 0

    def wall_ns(self) -> int:
        return 0


def kernel_log(path: Path, bed: Bed) -> tuple[int, str]:
    """Feed a log, from /dev/kmsg or `dmesg -T`, to the reader of the kernel log."""
    lines = path.read_bytes().splitlines()
    received: list[telemetry_pb2.HealthEvent] = []

    def publish(event: telemetry_pb2.HealthEvent) -> bool:
        received.append(event)
        return True

    decode = XidDecoder(lambda: "").decode
    converter, checkpoint = TimestampConverter(), CheckpointFile(None)
    follower = LogReader(b"B" * 16, publish, checkpoint, Stopped(), converter, decode)
    follower.on_open()
    for line in _records(lines):
        follower.feed(line, live=False)
        bed.second([])
        for event in received:
            bed.event(event)
        received.clear()
    follower.finish()
    bed.still(STILL_SECONDS)
    if follower.not_understood_count:
        raise ValueError(f"{path}: {follower.not_understood_count} records not understood")
    return len(lines), "lines"


def _records(lines: list[bytes]) -> Iterator[bytes]:
    """Yield records of /dev/kmsg; lines of `dmesg -T` get a level, a number and a time."""
    for number, line in enumerate(lines):
        printed = re.match(rb"\[[^]]*\] ?(.*)", line)
        yield b"4,%d,%d,-;%s" % (number, 1_000_000 + number, printed[1]) if printed else line


def infiniband(path: Path, bed: Bed) -> tuple[int, str]:
    """Feed the ports of a host."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sys/class").mkdir(parents=True)
        (Path(folder) / "sys/class/infiniband").symlink_to(path.resolve())
        _host(Path(folder), bed)
    return _files(path), "files"


def ttar(path: Path, bed: Bed) -> tuple[int, str]:
    """Feed a /proc and /sys packed in a text archive."""
    with tempfile.TemporaryDirectory() as folder:
        unpack_ttar(path, Path(folder))
        _host(Path(folder) / "fixtures", bed)
        return _files(Path(folder)), "files"


def tar(path: Path, bed: Bed) -> tuple[int, str]:
    """Feed a /sys packed by tar."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(path) as archive:
            members = [member for member in archive if not _UNREAD.search(member.name)]
            archive.extractall(folder, members, filter="tar")
        _host(next(Path(folder).iterdir()), bed)
    return len(members), "files"


def _host(root: Path, bed: Bed) -> None:
    """Read a host folder by every collector that reads files, and judge it for STILL_SECONDS."""
    roots = Roots(root / "sys", root / "proc", "no-nvml", dev=root / "dev", run=root / "run")
    collectors = [
        make(roots) for name, make in COLLECTORS.items() if not name.startswith(NOT_FILES)
    ]
    first = [run_collector(collector, Stopped()) for collector in collectors]
    turns = [run_collector(collector, Stopped()) for collector in collectors]
    # A collector that is blind to a part still sends its readings, like the agent.
    blocks = [block for turn in turns for block in turn.blocks]
    outcomes = outcomes_of(
        (turn.collector, max(before.outcome, turn.outcome))
        for before, turn in zip(first, turns, strict=True)
    )
    bed.still(STILL_SECONDS, [*blocks, outcomes])
    for collector in collectors:
        getattr(collector, "close", lambda: None)()


def _files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def power(path: Path, bed: Bed) -> tuple[int, str]:
    """Feed eight GPUs that train: power, utilization and memory; the last reading of each second."""
    with path.open(newline="") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file)][1:]
    by_second: dict[str, dict[str, Mapping[str, float | None]]] = {}
    for index, (time, watts, busy, used) in enumerate(rows):
        second = by_second.setdefault(time.partition(".")[0], {})
        second[GPUS[index % len(GPUS)]] = {
            "power_watts": _number(watts),
            "utilization_ratio": _number(busy, 0.01),
            "memory_used_bytes": _number(used, 1 << 20),
        }
    for second in by_second.values():
        bed.second([block_of("gpu_1s", second)])
    return len(rows), "rows"


def smi(path: Path, bed: Bed) -> tuple[int, str]:
    """Feed the output of `nvidia-smi --query-gpu` for a GPU that is first idle and then loaded."""
    lines = path.read_text().splitlines()
    heads = [
        index for index, line in enumerate(lines) if line.startswith("timestamp, driver_version, ")
    ]
    for head in heads:
        names = [re.sub(r" \[.*\]$", "", member) for member in lines[head].split(", ")]
        row = dict(zip(names, lines[head + 1].split(", "), strict=True))
        blocks = [
            block_of(table, {GPUS[0]: {c: _number(row[f], by) for c, (f, by) in columns.items()}})
            for table, columns in SMI.items()
        ]
        bed.still(STILL_SECONDS, blocks)
    return len(lines), "lines"


def _number(text: str, factor: float = 1.0) -> float | None:
    """Return the number at the start of *text*; None for other texts ("[N/A]").

    *factor* converts it to the unit of a column; Yes, No and 0x... have no unit.
    """
    if text in ("No", "Yes"):
        return float(text == "Yes")
    if text.startswith("0x"):
        return float(int(text, 16))
    with suppress(ValueError, IndexError):
        return float(text.split()[0]) * factor
    return None
