"""A training step of 1 ms with reporting against one without, in alternating rounds of one process.

A fake optimizer calls the hook like torch. A second row has the hook alone, against an empty call.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.measure import Result

ROUNDS, STEPS, CALLS = 21, 120, 100_000
WORK_NS = 1_000_000


def run(seed: int) -> list[Result]:
    """Return two rows: a step, and the hook alone."""
    del seed
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        os.environ["GANGLINE_STEPS"] = folder
        from gangline import steps

        optimizer = object()
        steps._stepped(optimizer, (), {})
        assert os.listdir(folder), "no slot could be had: nothing would be measured"
        hooks: dict[str, list[Callable[..., None]]] = {"with": [steps._stepped], "without": []}
        loops = _calibrated()
        seconds = {name: list[float]() for name in hooks}
        for index in range(ROUNDS * STEPS):
            for name in sorted(hooks, reverse=index % 2 == 1):
                seconds[name].append(_step(optimizer, hooks[name], loops))
        hook = median(_call_ns(steps._stepped, optimizer) for _ in range(ROUNDS))
        bare = median(_call_ns(_nothing, optimizer) for _ in range(ROUNDS))
    rounds = [slice(index, index + STEPS) for index in range(0, ROUNDS * STEPS, STEPS)]
    ratios = [median(seconds["with"][one]) / median(seconds["without"][one]) for one in rounds]
    with_hook, without = median(seconds["with"]), median(seconds["without"])
    notes = f"medians of {ROUNDS * STEPS} steps each, in turns: {with_hook / without:.5f}, of {ROUNDS} rounds {median(ratios):.5f}; wanted at most 1.001"
    return [
        Result("a step of 1 ms, reported", with_hook * 1e6, "µs", "not reported", without * 1e6, notes),
        Result("the hook alone", hook, "ns", "a call of nothing", bare,
               f"{(hook - bare) / WORK_NS:.5f} of a step of 1 ms"),
    ]  # fmt: skip


def _nothing(optimizer: object, arguments: object, options: object) -> None:
    """The cheapest possible hook."""


def _calibrated() -> int:
    """Return how often to loop for 1 ms of CPU time."""
    minimum = math.inf
    for _ in range(20):
        began = time.thread_time_ns()
        _work(50_000)
        minimum = min(minimum, time.thread_time_ns() - began)
    return max(1, round(50_000 * WORK_NS / minimum))


def _work(loops: int) -> None:
    for _ in range(loops):
        pass


def _step(optimizer: object, hooks: list[Callable[..., None]], loops: int) -> float:
    """Return the CPU seconds of a step, without the CPU of other processes."""
    began = time.thread_time()
    _work(loops)
    for hook in hooks:
        hook(optimizer, (), {})
    return time.thread_time() - began


def _call_ns(call: Callable[..., None], optimizer: object) -> float:
    began = time.thread_time_ns()
    for _ in range(CALLS):
        call(optimizer, (), {})
    called = time.thread_time_ns() - began
    began = time.thread_time_ns()
    for _ in range(CALLS):
        pass
    return (called - (time.thread_time_ns() - began)) / CALLS


if __name__ == "__main__":
    for result in run(24):
        print(result.row(), file=sys.stdout)
