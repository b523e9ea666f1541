"""`make fuzz`: bytes that no test thought of, against everything that reads bytes from outside.

    python -m tests.fuzz --seconds 60 --seed 1
    python -m tests.fuzz --case kernel-lines 1-4711

A target takes a random source and runs one case; it raises if the code under test did anything but
answer or refuse. The failing case's seed is printed, and runs alone with `--case`. The targets are in
`tests/fuzzing/`, one file per kind of input, each with its own part of the table.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from tests.fuzzing import (
    access,
    advice,
    answers,
    decisions,
    declared,
    extender,
    fleet,
    frames,
    hazard,
    jobs,
    kernel_log,
    local_socket,
    mirror,
    netlink,
    placement,
    proc,
    questions,
    recordings,
    samplers,
    scrapes,
    stores,
    sysfs,
    wire,
    worlds,
)

BAR_CHARACTERS = 40
REPORT_SECONDS = 1.0

TARGETS: dict[str, Callable[[random.Random], str]] = {
    **frames.TARGETS,
    **fleet.TARGETS,
    **wire.TARGETS,
    **kernel_log.TARGETS,
    **proc.TARGETS,
    **sysfs.TARGETS,
    **netlink.TARGETS,
    **jobs.TARGETS,
    **local_socket.TARGETS,
    **mirror.TARGETS,
    **extender.TARGETS,
    **scrapes.TARGETS,
    **samplers.TARGETS,
    **answers.TARGETS,
    **access.TARGETS,
    **advice.TARGETS,
    **questions.TARGETS,
    **stores.TARGETS,
    **declared.TARGETS,
    **hazard.TARGETS,
    **worlds.TARGETS,
    **recordings.TARGETS,
    **placement.TARGETS,
    **decisions.TARGETS,
}


def run_case(target: str, seed: str) -> str:
    """Run one case again, by its seed."""
    logging.disable()  # messages of the code under test to an operator, a thousand times
    try:
        return TARGETS[target](random.Random(seed))
    finally:
        logging.disable(logging.NOTSET)


def run(seconds: float, seed: int, report: Callable[[str], None]) -> Counter[str]:
    """Run all targets in turn for *seconds*; raises on the first failure, naming its case."""
    seen: Counter[str] = Counter()
    begin = now = reported = time.monotonic()
    case = 0
    while now - begin < seconds:
        for target in TARGETS:
            name = f"{seed}-{case}"
            try:
                seen[f"{target} {run_case(target, name)}"] += 1
            except Exception as error:
                raise AssertionError(f"{target}: case {name}: {error!r:.2000}") from error
        case += 1
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS:
            reported = now
            report(bar((now - begin) / seconds, seen))
    return seen


def bar(share: float, seen: Counter[str]) -> str:
    filled = min(BAR_CHARACTERS, int(share * BAR_CHARACTERS))
    accepted = sum(count for what, count in seen.items() if what.endswith(" accepted"))
    return (
        f"[{'#' * filled}{'.' * (BAR_CHARACTERS - filled)}] {seen.total()} cases of {len(TARGETS)} targets: "
        f"{accepted} accepted, {seen.total() - accepted} refused"
    )


def table(seen: Counter[str]) -> str:
    return "\n".join(
        f"{target:18} accepted {seen[f'{target} accepted']:>8} refused {seen[f'{target} refused']:>8}"
        for target in TARGETS
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", nargs=2, metavar=("TARGET", "CASE"))
    options = parser.parse_args()
    if options.case:
        print(run_case(*options.case))
        return 0
    end = "\r" if sys.stderr.isatty() else "\n"
    last = run(options.seconds, options.seed, lambda line: print(line, end=end, file=sys.stderr))
    print(f"\n{table(last)}\nno failure: {bar(1.0, last)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
