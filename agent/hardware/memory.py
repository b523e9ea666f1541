"""Memory, pressure and load: the small files of /proc (proc(5), Documentation/accounting/psi.rst)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...fingerprints.counters import BLANK_32
from .files import parse_unsigned


def parse_meminfo(data: bytes, *names: bytes) -> list[int | None]:
    """Return lines of /proc/meminfo by name, in bytes (`HugePages_*`: pages); None where there is none."""
    return [_scaled(find_line(data, name + b":")) for name in names]


def _scaled(words: bytes | None) -> int | None:
    number, _, unit = (words or b"").partition(b" ")
    value = parse_unsigned(number)
    if value is None or unit not in (b"", b"kB"):
        return None
    if not unit:
        return value
    return value * 1024 if value < 1 << 54 else None  # 64 bits of bytes


def parse_vmstat(data: bytes, name: bytes) -> int | None:
    """Return one line's number of /proc/vmstat."""
    return parse_unsigned(find_line(data, name + b" "))


def find_line(data: bytes, beginning: bytes) -> bytes | None:
    """Return what follows *beginning* in the first line that has it, without the blanks around it."""
    if data.startswith(beginning):
        start = 0
    else:
        start = data.find(b"\n" + beginning) + 1
        if start == 0:
            return None
    return data[start + len(beginning) :].partition(b"\n")[0].strip()


@dataclass(frozen=True, slots=True)
class Pressure:
    """Shares of the last 10 s, and time since boot; `full` is None where the kernel does not say it."""

    some_ratio: float | None
    full_ratio: float | None
    some_microseconds: int | None = None
    full_microseconds: int | None = None


def parse_pressure(data: bytes) -> Pressure:
    """Parse a file of /proc/pressure: `some avg10=1.84 avg60=0.94 avg300=0.24 total=4498343`."""
    shares: dict[bytes, float | None] = {}
    totals: dict[bytes, int | None] = {}
    for line in data.split(b"\n"):
        words = line.split()
        if len(words) > 1 and words[1].startswith(b"avg10="):
            percent = parse_decimal(words[1][6:])
            shares[words[0]] = None if percent is None or percent > 100 else percent / 100
        if len(words) > 4 and words[4].startswith(b"total="):
            totals[words[0]] = parse_unsigned(words[4][6:])
    return Pressure(
        shares.get(b"some"), shares.get(b"full"), totals.get(b"some"), totals.get(b"full")
    )


def parse_first_decimal(data: bytes) -> float | None:
    """Return the first number of /proc/loadavg (one minute mean) or /proc/uptime (seconds)."""
    words = data.split(None, 1)
    return parse_decimal(words[0]) if words else None


def parse_decimal(text: bytes) -> float | None:
    """Return a decimal of at least 0 and below 2^32 - 1 (136 years of uptime); None for anything else."""
    try:
        value = float(text) if len(text) <= 40 and b"_" not in text else math.nan
    except ValueError:
        return None
    return value if 0 <= value < BLANK_32 else None  # not NaN, which is neither
