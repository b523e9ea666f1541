"""Small files of /proc with one number that is wanted (proc(5))."""

from __future__ import annotations

import math

from ...fingerprints.counters import BLANK_32
from .files import parse_unsigned


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
