"""Shared by all benchmarks: a result as a ratio, and process accounting from the kernel."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

HEADING = "| what | ours | against | ratio | notes |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Result:
    """One figure against its floor or peer, both taken in this run."""

    name: str
    value: float
    unit: str
    peer: str
    peer_value: float
    notes: str = ""

    @property
    def ratio(self) -> float:
        """Return the figure over the peer's; every figure is a cost, so below 1 is better."""
        return self.value / self.peer_value if self.peer_value else float("nan")

    def row(self) -> str:
        return (
            f"| {self.name} | {self.value:.4g} {self.unit} | {self.peer}: {self.peer_value:.4g} "
            f"{self.unit} | **{self.ratio:.2f}** | {self.notes} |"
        )


@contextmanager
def ended(child: subprocess.Popen[Any]) -> Iterator[None]:
    """Terminate *child* at the end of the block."""
    try:
        yield
    finally:
        child.terminate()
        child.wait(30)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a running process, its threads and its reaped children, by the kernel.

    /proc/PID/schedstat counts nanoseconds on the processor if the kernel has it for every thread;
    /proc/PID/stat counts ticks of 10 ms.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    reaped = (int(fields[13]) + int(fields[14])) / _TICKS_PER_SECOND
    try:
        tasks = [
            int(p.read_text().split()[0]) for p in Path(f"/proc/{pid}/task").glob("*/schedstat")
        ]
    except OSError:
        tasks = []
    if sum(tasks):
        return sum(tasks) / 1e9 + reaped
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND + reaped


def pss_bytes(pids: Iterable[int]) -> int:
    """Return the proportional set size of all processes: shared pages count once."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def family(pid: int) -> list[int]:
    """Return the process and all its running descendants."""
    pids = [pid]
    for at in pids:
        for task in Path(f"/proc/{at}/task").glob("*/children"):
            pids += [int(child) for child in task.read_text().split()]
    return pids


@dataclass(frozen=True)
class ProcessCost:
    """Costs of processes since their start, and their current memory."""

    cpu_seconds: float
    wakes: int  # how often a thread woke from waiting
    write_bytes: int  # passed to write(2) and similar calls
    disk_bytes: int  # part of write_bytes that reaches a disk
    pss_bytes: int
    cpu_by_process: tuple[float, ...]  # in the order of the processes
    names: tuple[str, ...]  # in the same order, as `ps -o comm` shows them
    processes: int
    threads: int

    @classmethod
    def now(cls, pids: Sequence[int]) -> ProcessCost:
        """Return the cost of running processes until now."""
        tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
        io = [_numbers(Path(f"/proc/{pid}/io")) for pid in pids]
        return cls(
            sum(map(cpu_seconds, pids)),
            sum(_numbers(task / "status")["voluntary_ctxt_switches"] for task in tasks),
            sum(counts["wchar"] for counts in io),
            sum(counts["write_bytes"] - counts["cancelled_write_bytes"] for counts in io),
            pss_bytes(pids),
            tuple(map(cpu_seconds, pids)),
            tuple(Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids),
            len(pids),
            len(tasks),
        )

    def since(self, before: ProcessCost) -> ProcessCost:
        """Return the cost since *before*, with the current memory."""
        names = ("cpu_seconds", "wakes", "write_bytes", "disk_bytes")
        summed: dict[str, Any] = {
            name: getattr(self, name) - getattr(before, name) for name in names
        }
        pairs = zip(self.cpu_by_process, before.cpu_by_process, strict=False)
        return replace(self, cpu_by_process=tuple(now - then for now, then in pairs), **summed)


def _numbers(path: Path) -> dict[str, int]:
    """Return the lines of a /proc file that have a name and one number."""
    lines = (line.partition(":") for line in path.read_text().splitlines())
    return {name: int(value) for name, _, value in lines if value.strip().isdecimal()}


class CallTimer:
    """Calls of each function of the stand-in NVML by all processes that play a scenario."""

    def __init__(self, library: Path, scenario: Path) -> None:
        """Create zero counters beside *scenario*. Call this before the first process loads it."""
        name_of = ctypes.CDLL(str(library)).fake_nvml_call_name
        name_of.restype = ctypes.c_char_p
        self.names: list[str] = []
        while (name := name_of(len(self.names))) is not None:
            self.names.append(name.decode())
        self.scenario = scenario
        self._counts = scenario.with_name(scenario.name + ".calls")
        self._counts.write_bytes(bytes(8 * len(self.names)))

    def counts(self) -> list[int]:
        """Return the counts until now, in the order of `names`."""
        return list(struct.unpack(f"{len(self.names)}L", self._counts.read_bytes()))

    def rates(self, seconds: int, gpus: int) -> dict[str, float]:
        """Count for *seconds*; return the calls per GPU and second of each called function."""
        before = self.counts()
        time.sleep(seconds)
        result = zip(self.names, before, self.counts(), strict=True)
        return {name: (end - begin) / seconds / gpus for name, begin, end in result if end > begin}


def percentile(values: list[float], share: float) -> float:
    """Return the value at *share* of the sorted *values* (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
