"""`make fuzz`: bytes that no test thought of, against everything that reads bytes from outside.

    python -m tests.fuzz --seconds 60 --seed 1

A target takes a random source and runs one case; it raises if the code under test did anything but
answer or refuse. The failing case's seed is printed, and runs alone with `--case`.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable

from gangline.fingerprints import frames
from gangline.fingerprints.block import Block
from gangline.fingerprints.catalogue import TABLES
from gangline.fingerprints.frames import FrameError, Stamp

BAR_CHARACTERS = 40
REPORT_SECONDS = 1.0


def some_frame(source: random.Random) -> bytes:
    """Return a valid frame of random tables and cells."""
    stamp = Stamp(source.randbytes(16), source.randbytes(16), source.getrandbits(64), 1, 2)
    blocks = []
    for _ in range(source.randrange(4)):
        block = Block(source.choice(sorted(TABLES)), [f"d{i}" for i in range(source.randrange(9))])
        for cell in range(len(block.valid)):
            block.valid[cell] = source.random() < 0.8
            block.ints[cell] = source.getrandbits(source.choice((1, 8, 32, 64)))
        blocks.append(block)
    return frames.encode(stamp, blocks)


def mutated(data: bytes, source: random.Random) -> bytes:
    """Return *data* damaged in one to four ways."""
    work = bytearray(data)
    for _ in range(source.randrange(1, 5)):
        at = source.randrange(len(work) + 1)
        match source.randrange(5):
            case 0 if work:
                work[at % len(work)] ^= 1 << source.randrange(8)
            case 1:
                del work[at : at + source.randrange(1, 64)]
            case 2:
                work[at:at] = source.randbytes(source.randrange(1, 64))
            case 3:
                work[at : at + 4] = struct.pack("<I", source.choice((0, 1, 255, 65535, 2**32 - 1)))
            case _:
                work[at:at] = work[: source.randrange(64)]
    return bytes(work)


def resealed(data: bytes) -> bytes:
    """Return *data* with a checksum that is right, as a hostile sender would."""
    return data if len(data) < 8 else data[:4] + struct.pack("<I", zlib.crc32(data[8:])) + data[8:]


def fuzz_frames(source: random.Random) -> str:
    """A damaged frame is refused with FrameError, or (sealed anew) decodes within the limits."""
    data = mutated(some_frame(source), source)
    if source.random() < 0.7:
        data = resealed(data)
    try:
        frame = frames.decode(data)
    except FrameError as error:
        assert str(error), "a refusal without words"
        return "refused"
    frames.encode(frame.stamp, frame.blocks)  # what was let in can be spoken again
    return "accepted"


TARGETS: dict[str, Callable[[random.Random], str]] = {"frames": fuzz_frames}


def run_case(target: str, seed: str) -> str:
    """Run one case again, by its seed."""
    return TARGETS[target](random.Random(seed))


def run(seconds: float, seed: int, report: Callable[[str], None]) -> Counter[str]:
    """Run all targets in turn for *seconds*; raises on the first failure, naming its case."""
    seen: Counter[str] = Counter()
    begin = now = told = time.monotonic()
    case = 0
    while now - begin < seconds:
        for target in TARGETS:
            name = f"{seed}-{case}"
            try:
                seen[f"{target} {run_case(target, name)}"] += 1
            except Exception as error:
                raise AssertionError(f"{target}: case {name}: {error!r}") from error
        case += 1
        now = time.monotonic()
        if now - told >= REPORT_SECONDS:
            told = now
            report(bar((now - begin) / seconds, seen))
    return seen


def bar(share: float, seen: Counter[str]) -> str:
    """Return a progress bar with the counts so far."""
    filled = min(BAR_CHARACTERS, int(share * BAR_CHARACTERS))
    counts = ", ".join(f"{what} {count}" for what, count in sorted(seen.items()))
    return f"[{'#' * filled}{'.' * (BAR_CHARACTERS - filled)}] {counts}"


def main() -> int:
    """Entry point of `make fuzz`."""
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
    print(f"\nno failure: {bar(1.0, last)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
