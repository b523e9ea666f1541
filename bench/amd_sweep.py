"""CPU of reading eight AMD GPUs, against a C program that reads the same files.

The host is the folder of an MI300X host in SPX. A turn reads eight tables of 3,872 bytes, memory in
use, and a tenth of the RAS counts. CPU time of the thread alone, the median over the turns: back to
back, and cold, once a second. Both programs take alternate batches in the same seconds, and each
goes first equally often.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from gangline.agent.collectors.amdgpu import AmdGpuSecond
from gangline.agent.hardware.amdgpu import amd_gpus
from tests.hosts import unpack

from .measure import Result

HERE = Path(__file__).parent
TURNS, BATCH, COLD_TURNS = 4000, 200, 30
#: Warm-up turns that are not counted: they read the RAS counts of every GPU.
FIRST_TURNS = 12


def run(seed: int) -> list[Result]:
    del seed
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as name:
        folder = Path(name)
        roots = unpack("mi300x-spx", folder / "host").roots
        clock = PassingClock()
        collector = AmdGpuSecond(roots, clock)
        for _ in range(FIRST_TURNS):
            collector.collect()
        program = folder / "amd_floor"
        subprocess.run(["cc", "-O2", str(HERE / "amd_floor.c"), "-o", str(program)], check=True)
        (folder / "files").write_text(_files(roots.sys))
        with subprocess.Popen(
            [str(program), str(folder / "files"), str(TURNS + COLD_TURNS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1,
        ) as floor:  # fmt: skip
            warm = _take_turns(collector, floor, TURNS // BATCH, BATCH)
            cold = _take_turns(collector, floor, COLD_TURNS, 1, 1.0)
    peer = "C, same files and fields"
    return [
        Result("sweep of 8 AMD GPUs, back to back", statistics.median(warm[0]), "us CPU", peer,
               statistics.median(warm[1]), f"<= 1.3; {TURNS} turns"),
        Result("sweep of 8 AMD GPUs, cold, once a second", statistics.median(cold[0]), "us CPU", peer,
               statistics.median(cold[1]), f"{COLD_TURNS} turns; an interpreter's caches are cold too"),
    ]  # fmt: skip


class PassingClock:
    """A clock that advances a second per reading: ten-second readings are due every ten turns."""

    def __init__(self) -> None:
        self.now_ns = 10**18

    def boottime_ns(self) -> int:
        self.now_ns += 10**9
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns


def _take_turns(
    collector: AmdGpuSecond,
    floor: subprocess.Popen[str],
    turns: int,
    batch: int,
    seconds: float = 0.0,
) -> tuple[list[float], list[float]]:
    agent: list[float] = []
    bare: list[float] = []
    assert floor.stdin and floor.stdout

    def turn_of_agent() -> None:
        for _ in range(batch):
            begin = time.thread_time_ns()
            collector.collect()
            agent.append((time.thread_time_ns() - begin) / 1e3)

    def turn_of_floor() -> None:
        floor.stdin.write("\n" * batch)  # type: ignore[union-attr]
        bare.extend(int(floor.stdout.readline()) / 1e3 for _ in range(batch))  # type: ignore[union-attr]

    for turn in range(turns):
        if seconds:
            time.sleep(seconds - time.monotonic() % seconds)
        both = (turn_of_agent, turn_of_floor)
        for each in both if turn % 2 else reversed(both):
            each()
    return agent[2 * batch :], bare[2 * batch :]


def _files(sys: Path) -> str:
    lines: list[str] = []
    for gpu in amd_gpus(sys):
        lines += [f"m {gpu.folder}/gpu_metrics", f"n {gpu.folder}/mem_info_vram_used"]
        lines += [f"r {gpu.folder}/ras/{block}_err_count" for block in gpu.ras_blocks]
    return "\n".join(lines) + "\n"


def _fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
