"""CPU of the collectors that read files, cold: one turn a second, asleep in between.

They run on the folder host of `agent_cost`. CPU time of the thread alone, the median over the
turns; against one pass of `ext.counterfiles` over the same files, which is C without Python between
two reads.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gangline.ext.counterfiles import CounterFiles

from .folder_host import collectors_of_files, files_of, make_host
from .measure import Result

TURNS = 20
PACES = ("1s", "10s", "60s")


def bare_pass(paths: set[str]) -> Callable[[], object]:
    """Return a pass over files; a file may hold no number."""
    cells, valid = bytearray(8 * len(paths)), bytearray(len(paths))
    files = CounterFiles([(cells, valid)], kept_max=len(paths))
    for index, path in enumerate(sorted(paths)):
        files.add_file(path)
        files.add_cell(index)
    return files.read


def cold_microseconds(turns: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median CPU time per kind of turn; all kinds run at each full second."""
    spent: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(TURNS):
        time.sleep(1 - time.monotonic() % 1)
        for name, turn in turns.items():
            begin = time.thread_time_ns()
            turn()
            spent[name].append((time.thread_time_ns() - begin) / 1e3)
    return {name: statistics.median(seconds[2:]) for name, seconds in spent.items()}


def run(seed: int) -> list[Result]:
    del seed
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))  # as the agent does
    with tempfile.TemporaryDirectory() as name:
        roots = make_host(Path(name))
        files = {pace: files_of(roots, pace) for pace in PACES}
        # Measured separately: in the same second the first would warm the caches of the second.
        result = cold_microseconds({pace: bare_pass(paths) for pace, paths in files.items()})
        result |= cold_microseconds(
            {name: collector.collect for name, collector in collectors_of_files(roots).items()}
        )
    return [_result(pace, result) for pace in PACES]


def _result(pace: str, found: dict[str, float]) -> Result:
    paced = {name: value for name, value in found.items() if name.endswith(f"_{pace}")}
    text = ", ".join(
        f"{name.removesuffix(f'_{pace}')} {value:.0f}"
        for name, value in sorted(paced.items(), key=lambda item: -item[1])
    )
    return Result(
        f"file collectors, one pass of all at {pace}", sum(paced.values()), "us CPU",
        "one C pass, same files kept open", found[pace], text, paced,
    )  # fmt: skip
