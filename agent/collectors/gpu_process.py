"""Processes on each GPU and MIG instance, with the memory that each holds, every second."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ...ext.nvml_parts import Parts, Process
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.roots import Roots
from ..hardware.tasks import read_tasks
from .gpu_parts import PartsLane, remade

#: Of a host, in all; those with the higher numbers are left out, which `blind_words` says.
ROWS_MAX = 8192

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class GpuProcesses(PartsLane):
    """Who holds a GPU. PID and start together are one process; a start that is missing belongs to a PID of another
    namespace, or to a process that went between the two looks."""

    def __init__(self, roots: Roots) -> None:
        super().__init__("gpu_process_1s", Pace.SECOND, roots)
        self._block: Block | None = None

    def _read(self, parts: Parts) -> Sequence[Block]:
        rows: dict[str, Process] = {}
        for address, processes in self._ask(parts.processes).items():
            rows |= {key_of(self._gpus[address], p): p for p in merged(processes)}
        if len(rows) > ROWS_MAX:
            self.blind_words = (
                self.blind_words or f"{len(rows)} processes on GPUs, {ROWS_MAX} are told"
            )
            rows = dict(sorted(rows.items(), key=lambda item: item[1].pid)[:ROWS_MAX])
        starts = self._starts({process.pid for process in rows.values()})
        self._block = block = remade(self._block, "gpu_process_1s_changes", rows)
        for row, process in enumerate(rows.values()):
            block.put_float(0, row, process.memory_bytes)
            block.put_int(1, row, process.kinds)
            block.put_int(2, row, starts.get(process.pid))
            block.put_int(3, row, process.gpu_instance)
            block.put_int(4, row, process.compute_instance)
        return (block,)

    def _starts(self, pids: Iterable[int]) -> dict[int, int]:
        tasks = read_tasks(self._roots.proc, map(str, pids))
        return {task.number: task.start_ticks * _TICK_NS for task in tasks}


def merged(processes: Iterable[Process]) -> list[Process]:
    """Return one entry for each process and instance: a process may stand in several of a GPU's lists, each with
    all the memory that it holds."""
    found: dict[tuple[int, int | None, int | None], Process] = {}
    for process in processes:
        place = process.pid, process.gpu_instance, process.compute_instance
        other = found.get(place, process)
        known = [m for m in (process.memory_bytes, other.memory_bytes) if m is not None]
        found[place] = process._replace(
            kinds=process.kinds | other.kinds, memory_bytes=max(known, default=None)
        )
    return list(found.values())


def key_of(gpu: str, process: Process) -> str:
    """Return `GPU-uuid/PID`, under MIG `GPU-uuid/gi1/ci0/PID`."""
    if process.gpu_instance is None:
        return f"{gpu}/{process.pid}"
    compute = "" if process.compute_instance is None else f"/ci{process.compute_instance}"
    return f"{gpu}/gi{process.gpu_instance}{compute}/{process.pid}"
