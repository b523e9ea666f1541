"""Processes on each GPU and MIG instance, with the memory that each holds, every second."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from ...ext.nvml_parts import Parts, Process, ProcessLists
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.roots import Roots
from ..hardware.tasks import read_tasks
from .gpu_held import Holding, Listing, held_of
from .gpu_parts import PartsLane, remade

#: Of a host, in all; those with the higher numbers are left out, which `blind_words` says.
ROWS_MAX = 8192

#: As long as the lists are the same, no process came or went: when each began is looked at anew this often, should a
#: PID have been given to another within a second.
SAME_TURNS_MAX = 9

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class GpuProcesses(PartsLane):
    """Who holds a GPU. PID and start together are one process; a start that is missing belongs to a PID of another
    namespace, or to a process that went between the two looks."""

    def __init__(self, roots: Roots) -> None:
        super().__init__("gpu_process_1s", Pace.SECOND, roots)
        self._block: Block | None = None
        self._held = held_of(roots)  # for `gpu_jobs.py`, whose turn comes after
        self._lists: ProcessLists | None = None
        self._told = Listing((), ())
        self._too_many = ""
        self._turns_as_it_is = 0

    def let_go(self) -> None:
        super().let_go()
        self._lists, self._turns_as_it_is = None, 0

    def _read(self, parts: Parts) -> Sequence[Block]:
        """Look who is there; as long as every GPU says the same, the block stands, but for a look at the PIDs."""
        if self._lists is None:
            self._lists = ProcessLists(parts, self._gpus)
        is_same = self._lists.run()
        self._turns_as_it_is -= 1
        if self._turns_as_it_is < 0 or self._block is None or not is_same:
            self._turns_as_it_is = (
                0  # should this fail, the block is not what was said: it is filled anew
            )
            self._block = self._filled(self._ask(self._lists.of))
            self._turns_as_it_is = SAME_TURNS_MAX
        self._held.put(self._told)
        self.blind_words = self.blind_words or self._too_many
        return (self._block,)

    def _filled(self, answers: Mapping[str, list[Process]]) -> Block:
        rows: dict[str, Process] = {}
        listed = {self._gpus[address]: merged(those) for address, those in answers.items()}
        self._told = Listing(tuple(listed), _holdings(listed))
        for gpu, processes in listed.items():
            rows |= {key_of(gpu, process): process for process in processes}
        too_many = len(rows) > ROWS_MAX
        self._too_many = f"{len(rows)} processes on GPUs, {ROWS_MAX} are told" if too_many else ""
        if too_many:
            rows = dict(sorted(rows.items(), key=lambda item: item[1].pid)[:ROWS_MAX])
        starts = self._starts({process.pid for process in rows.values()})
        block = remade(self._block, "gpu_process_1s_changes", rows)
        for row, process in enumerate(rows.values()):
            block.put_float(0, row, process.memory_bytes)
            block.put_int(1, row, process.kinds)
            block.put_int(2, row, starts.get(process.pid))
            block.put_int(3, row, process.gpu_instance)
            block.put_int(4, row, process.compute_instance)
        return block

    def _starts(self, pids: Iterable[int]) -> dict[int, int]:
        tasks = read_tasks(self._roots.proc, map(str, pids))
        return {task.number: task.start_ticks * _TICK_NS for task in tasks}


def _holdings(listed: Mapping[str, Iterable[Process]]) -> tuple[Holding, ...]:
    holdings = [
        Holding(gpu, p.pid, p.gpu_instance, p.compute_instance, p.memory_bytes)
        for gpu, processes in listed.items()
        for p in processes
    ]
    return tuple(holdings[:ROWS_MAX])


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
