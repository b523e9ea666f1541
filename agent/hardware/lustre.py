"""Lustre clients: what each mount did, and how its servers' targets answer.

Sources: lustre/obdclass/lprocfs_status.c (stats, import) and lustre/ptlrpc/import.c (states) of the Lustre
release. The files are in /proc/fs/lustre in older releases; most moved to debugfs, which is root's, while
/sys/fs/lustre shows to everybody that the mount is there. All are made from the client's memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...ext.hostfiles import line_numbers
from .files import names_in, parse_unsigned

#: Codes of `lustre_target.connection_state`, by enum lustre_imp_state; an IDLE one has nothing to do.
STATES = {
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
#: In the order of `Import`, behind its state.
_NUMBERS = (
    b"connection_attempts:",
    b"generation:",
    b"inflight:",
    b"timeouts:",
    b"avg_waittime:",
)
#: A client's instance ends in the address of its superblock, which is another one after each mount.
_ADDRESS = re.compile(r"-[0-9a-f]{8,16}$")
_TARGET = re.compile(r"-(osc|mdc)-[0-9a-f]{8,16}$")


@dataclass(frozen=True, slots=True)
class Stat:
    """One line of `stats`: how often, and the sum (bytes, microseconds) where there is one."""

    samples: int
    total: int | None


class Import(NamedTuple):
    """A client's connection to a target; None: not shown, or no number."""

    state: int | None
    connection_attempts: int | None
    generation: int | None  # rises when the target evicted this client, or it gave the target up
    inflight: int | None
    timeouts: int | None
    wait_microseconds: int | None  # mean of a request


def trees(sys: Path, proc: Path) -> list[Path]:
    """Return where Lustre's files may be, the first that has one wins."""
    return [proc / "fs/lustre", sys / "kernel/debug/lustre", sys / "fs/lustre"]


def instances(roots: list[Path], kinds: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return the folders of each instance of these kinds (`llite`, `osc`, `mdc`), by its name."""
    found: dict[str, list[Path]] = {}
    for kind in kinds:
        for root in roots:
            for name in names_in(root / kind):
                if _ADDRESS.search(name):
                    found.setdefault(name, []).append(root / kind / name)
    return found


def filesystem_of(instance: str) -> str:
    """Return the file system's name of `scratch-ffff8881.../`, an instance of llite."""
    return _ADDRESS.sub("", instance)


def target_of(instance: str) -> str:
    """Return the target's name of `scratch-OST0000-osc-ffff8881...`."""
    return _TARGET.sub("", instance)


def parse_stats(data: bytes) -> dict[str, Stat]:
    """Return the lines of a `stats` file by name. What is no such line is left out."""
    found: dict[str, Stat] = {}
    for name, samples, total in _STAT.findall(data):
        count, amount = parse_unsigned(samples), parse_unsigned(total)
        if count is not None:
            found[name.decode()] = Stat(count, amount)
    return found


def parse_import(data: bytes) -> Import:
    """Return what an `import` file says. Some releases leave zero bytes in it (LU-5567)."""
    data = data.replace(b"\0", b"")
    state = _STATE.search(data)
    return Import(
        STATES.get(state[1].decode(errors="replace")) if state else None,
        *line_numbers(data, _NUMBERS, indented=True),
    )
