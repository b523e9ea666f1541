"""`make soak`: random faults against a real aggregator, round by round; what was acknowledged is there once.

    python -m tests.soak --rounds 200 --seed 1 [--only "kill -9,WAL damaged"]

The seed chooses the faults and their moments; the machine's own pace makes each run another. A round that fails
ends the run with its words, and keeps the folder.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.survival.rounds import DESTROYED, KEPT, ROUNDS_OF_A_FOLDER, Counted, World, round_of

BAR_CHARACTERS = 30
#: A disk that can be filled in a moment.
DISK = "size=192m"


@contextmanager
def world(place: Path, seed: int, agents: int = 4) -> Iterator[World]:
    """Yield a world on a small disk of its own if it can be mounted (root), else on a simulated one."""
    (place / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", DISK, "gangline-soak", str(place / "disk")]
    small = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    created = World(place, seed, agents, small_disk=small)
    try:
        yield created
    except AssertionError:
        created.aggregator.kill()
        shutil.copytree(place / "disk", place / "kept")
        raise
    finally:
        created.close()
        if small:
            subprocess.run(["umount", str(place / "disk")], check=False)


def soak(place: Path, rounds: int, seed: int, names: list[str], *, quiet: bool = False) -> Counted:
    """Run *rounds* rounds of these faults. Raises FailedCollector with the findings."""
    chooser, begin = random.Random(seed), time.monotonic()
    order: list[str] = []
    while len(order) < rounds:  # all equally often
        order += chooser.sample(names, len(names))
    with world(place, seed) as running:
        for number, name in enumerate(order[:rounds]):
            if number and number % ROUNDS_OF_A_FOLDER == 0:
                running.anew()
            if not quiet:
                _bar(number, rounds, name, time.monotonic() - begin)
            try:
                round_of(running, name)
            except BaseException as error:
                error.add_note(f"round {number} of seed {seed}: {name}")
                raise
        return running.counted


def _bar(at: int, rounds: int, name: str, seconds: float) -> None:
    filled = int(BAR_CHARACTERS * at / rounds)
    bar = f"[{'#' * filled}{'.' * (BAR_CHARACTERS - filled)}]"
    progress = f"{bar} {at} of {rounds} rounds, {seconds:.0f} s: {name}"
    if sys.stderr.isatty():
        print(f"\r{progress:<78}", end="", file=sys.stderr, flush=True)
    elif at % 10 == 0:
        print(progress, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make soak", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="faults, with commas between; by default all")
    options = parser.parse_args()
    names = [*KEPT, *DESTROYED]
    chosen = [name.strip() for name in options.only.split(",") if name.strip()] or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no fault {', '.join(unknown)}; there are: {', '.join(names)}")
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # or its aggregator and its disk stay behind
    place = Path(tempfile.mkdtemp(prefix="gangline-soak-"))
    try:
        counted = soak(place, options.rounds, options.seed, chosen)
    except AssertionError as error:
        notes = "; ".join(getattr(error, "__notes__", []))
        print(
            f"\nNOT GOOD: {notes}: {error}\nits log and its data: {place / 'log'}, {place / 'kept'}"
        )
        return 1
    shutil.rmtree(place)
    print(f"\n{options.rounds} rounds of seed {options.seed}: what was acknowledged was there once")
    print(
        f"{'fault':<20}{'rounds':>8}{'seconds':>9}{'refused, restored':>19}{'loss said':>11}{'written off':>13}"
    )
    for name in chosen:
        print(
            f"{name:<20}{counted.rounds[name]:>8}{counted.seconds[name]:>9.0f}{counted.refused[name]:>19}"
            f"{counted.said_lost[name]:>11}{counted.written_off[name]:>13}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
