"""Small files of /proc with one number (proc(5)), and the ID of the boot."""

from __future__ import annotations

import math
import os
from pathlib import Path

from ...contract.counters import BLANK_32
from .files import parse_unsigned, read_text

BOOT_ID_BYTES = 16


def parse_vmstat(data: bytes, name: bytes) -> int | None:
    """Return the number of a line of /proc/vmstat."""
    return parse_unsigned(find_line(data, name + b" "))


def find_line(data: bytes, beginning: bytes) -> bytes | None:
    """Return the rest of the first line that starts with *beginning*, without outer blanks."""
    if data.startswith(beginning):
        start = 0
    else:
        start = data.find(b"\n" + beginning) + 1
        if start == 0:
            return None
    return data[start + len(beginning) :].partition(b"\n")[0].strip()


def parse_first_decimal(data: bytes) -> float | None:
    """Return the first number of /proc/loadavg (mean of one minute) or /proc/uptime (seconds)."""
    tokens = data.split(None, 1)
    return parse_decimal(tokens[0]) if tokens else None


def parse_decimal(text: bytes) -> float | None:
    """Return a decimal of at least 0 and below 2^32 - 1 (136 years of uptime); None for anything else."""
    try:
        value = float(text) if len(text) <= 40 and b"_" not in text else math.nan
    except ValueError:
        return None
    return value if 0 <= value < BLANK_32 else None  # false for NaN


def boot_id(proc_root: Path = Path("/proc")) -> bytes:
    """Return the kernel's 16 random bytes of this boot. Never raises.

    If the kernel shows none (some sandboxes) return 16 random bytes: each start then counts as a
    boot, which wastes a few sequence numbers and has no other effect.
    """
    try:
        boot = bytes.fromhex(
            (read_text(proc_root / "sys/kernel/random/boot_id") or "").replace("-", "")
        )
    except ValueError:
        boot = b""
    return boot if len(boot) == BOOT_ID_BYTES else os.urandom(BOOT_ID_BYTES)
