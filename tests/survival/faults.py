"""Faults of disk and clock on command: `faulty.c`, compiled, in the aggregator; damage to files while it is away."""

from __future__ import annotations

import mmap
import os
import random
import shlex
import struct
import subprocess
from pathlib import Path

WELL, FULL, READ_ONLY, FSYNC_FAILS = range(4)
_CONTROL = struct.Struct("<IIq")


class Faults:
    """The switch: its settings take effect at once in every process that was started with `environment`."""

    def __init__(self, place: Path, under: Path) -> None:
        """Compile the library into *place*; only files below *under* fail. Raises CalledProcessError."""
        library, control = place / "faulty.so", place / "faults"
        source = Path(__file__).with_name("faulty.c")
        compiler = shlex.split(os.environ.get("CC", "cc"))
        command = [*compiler, "-O1", "-fPIC", "-shared", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        #: The wall clock is always so far ahead.
        self.ahead_seconds = 0.0
        control.write_bytes(bytes(32))
        with open(control, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 32)
        self.environment = {
            "LD_PRELOAD": str(library),
            "GANGLINE_FAULTS": str(control),
            "GANGLINE_FAULTS_UNDER": str(under),
        }

    def set(
        self, mode: int = WELL, *, fsync_milliseconds: int = 0, clock_seconds: float = 0.0
    ) -> None:
        """Set the disk's fault and delay, and the offset of the wall clock."""
        clock_ns = int((self.ahead_seconds + clock_seconds) * 1e9)
        packed = _CONTROL.pack(mode, fsync_milliseconds, clock_ns)
        self._map[: _CONTROL.size] = packed


def cut(path: Path, source: random.Random) -> str:
    """Truncate the file at a random byte; return a description."""
    size = path.stat().st_size
    keep = source.randrange(size) if size else 0
    os.truncate(path, keep)
    return f"{path.name} cut from {size} to {keep} bytes"


def spoil(path: Path, source: random.Random) -> str:
    """Flip the bits of a random range; return a description."""
    size = path.stat().st_size
    offset, length = source.randrange(max(1, size)), source.choice((1, 16, 4096))
    with open(path, "r+b") as file:
        file.seek(offset)
        data = file.read(length)
        file.seek(offset)
        file.write(bytes(byte ^ 0xFF for byte in data))
    return f"{path.name}: {len(data)} bytes turned over at {offset} of {size}"


def remove(path: Path, source: random.Random) -> str:
    path.unlink()
    return f"{path.name} is gone"
