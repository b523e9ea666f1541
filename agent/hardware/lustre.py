"""Lustre clients: statistics of each mount, and the state of its servers' targets.

Lustre. Sources: lustre/obdclass/lprocfs_status.c (stats, import) and lustre/ptlrpc/import.c
(states) of the Lustre release. Older releases have the files in /proc/fs/lustre; newer ones have
most in debugfs, readable by root, while everybody sees the mount in /sys/fs/lustre. All come from
the client's memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...ext.hostfiles import line_numbers
from .files import names_in, parse_unsigned

#: Codes of `lustre_target.connection_state`, by enum lustre_imp_state; an IDLE connection is
#: unused.
LUSTRE_STATES = {
    "CLOSED": 1,
    "NEW": 2,
    "DISCONN": 3,
    "CONNECTING": 4,
    "REPLAY": 5,
    "REPLAY_LOCKS": 6,
    "REPLAY_WAIT": 7,
    "RECOVER": 8,
    "FULL": 9,
    "EVICTED": 10,
    "IDLE": 11,
}
_STAT = re.compile(
    rb"^(\w+) +(\d{1,20}) samples \[\w+\](?: +\d{1,20} +\d{1,20} +(\d{1,20})(?=[ \n]))?",
    re.MULTILINE,
)
_STATE = re.compile(rb"^[ \t]+state: *(\S+)", re.MULTILINE)
#: In the order of `LustreImport`, after its state.
_NUMBERS = (b"connection_attempts:", b"generation:", b"inflight:", b"timeouts:", b"avg_waittime:")
#: A client's instance ends in the address of its superblock, which changes with each mount.
_ADDRESS = re.compile(r"-[0-9a-f]{8,16}$")
_TARGET = re.compile(r"-(osc|mdc)-[0-9a-f]{8,16}$")


@dataclass(frozen=True, slots=True)
class LustreStat:
    """A line of `stats`: number of samples, and optionally their sum (bytes, microseconds)."""

    samples: int
    total: int | None


class LustreImport(NamedTuple):
    """A client's connection to a target; None: not shown, or not a number."""

    state: int | None
    connection_attempts: int | None
    generation: int | None  # rises when the target evicts this client, or the client gives it up
    inflight: int | None
    timeouts: int | None
    wait_microseconds: int | None  # mean per request


def lustre_folders(sys: Path, proc: Path) -> list[Path]:
    """Return the possible roots of Lustre's files, in order of preference."""
    return [proc / "fs/lustre", sys / "kernel/debug/lustre", sys / "fs/lustre"]


def lustre_instances(roots: list[Path], kinds: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return the folders of each instance of these kinds (`llite`, `osc`, `mdc`), by its name."""
    folders: dict[str, list[Path]] = {}
    for kind in kinds:
        for root in roots:
            for name in names_in(root / kind):
                if _ADDRESS.search(name):
                    folders.setdefault(name, []).append(root / kind / name)
    return folders


def lustre_filesystem_of(instance: str) -> str:
    """Return the filesystem's name of a llite instance: `scratch` for `scratch-ffff8881...`."""
    return _ADDRESS.sub("", instance)


def lustre_target_of(instance: str) -> str:
    """Return the target's name of `scratch-OST0000-osc-ffff8881...`."""
    return _TARGET.sub("", instance)


def parse_lustre_stats(data: bytes) -> dict[str, LustreStat]:
    """Return the lines of a `stats` file by name; other lines are ignored."""
    statistics: dict[str, LustreStat] = {}
    for name, samples, total in _STAT.findall(data):
        count, amount = parse_unsigned(samples), parse_unsigned(total)
        if count is not None:
            statistics[name.decode()] = LustreStat(count, amount)
    return statistics


def parse_lustre_import(data: bytes) -> LustreImport:
    """Return the connection of an `import` file. Some releases leave zero bytes in it (LU-5567)."""
    data = data.replace(b"\0", b"")
    state = _STATE.search(data)
    return LustreImport(
        LUSTRE_STATES.get(state[1].decode(errors="replace")) if state else None,
        *line_numbers(data, _NUMBERS, indented=True),
    )
