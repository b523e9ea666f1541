"""What every bench shares: a result that is a ratio, and the kernel's own accounting of processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Result:
    """One figure against its floor or peer, both taken in this run."""

    name: str
    value: float
    unit: str
    peer: str
    peer_value: float
    notes: str = ""
    detail: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Ours over theirs; below 1 we are better, for everything we measure is a cost."""
        return self.value / self.peer_value if self.peer_value else float("nan")

    def row(self) -> str:
        """Return the result as a row of a Markdown table."""
        return (
            f"| {self.name} | {self.value:.4g} {self.unit} | {self.peer}: {self.peer_value:.4g} "
            f"{self.unit} | **{self.ratio:.2f}** | {self.notes} |"
        )


HEADING = "| what | ours | against | ratio | notes |\n|---|---|---|---|---|"


def cpu_seconds(pid: int) -> float:
    """User and system time of a living process, its threads and its reaped children, by the kernel.

    /proc/PID/schedstat counts nanoseconds on the processor where the kernel keeps it for every
    thread; /proc/PID/stat counts ticks of 10 ms.
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
    """Proportional set size of the processes together: shared pages counted once."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def family(pid: int) -> list[int]:
    """The process and all its living descendants."""
    pids = [pid]
    for at in pids:
        for task in Path(f"/proc/{at}/task").glob("*/children"):
            pids += [int(child) for child in task.read_text().split()]
    return pids


def percentile(values: list[float], share: float) -> float:
    """The value below which *share* of *values* lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
