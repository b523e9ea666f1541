"""NFS mounts and their statistics in /proc/self/mountstats.

Sources: fs/nfs/super.c (nfs_show_stats), net/sunrpc/stats.c (rpc_clnt_show_stats), net/sunrpc/xprtsock.c and
net/sunrpc/xprtrdma/transport.c (print_stats). The text is made from the client's memory: no server is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .block_devices import unescape
from .files import parse_unsigned

_TYPES = (b"nfs", b"nfs4")
_BEGIN = re.compile(rb"^(?=device )", re.MULTILINE)
_HEAD = re.compile(rb"device (\S+) mounted on (\S+) with fstype (\S+)")
_LINE = re.compile(rb"^[ \t]+([A-Za-z0-9_]+):[ \t]+(\S.*)$", re.MULTILINE)
#: Columns of a line of operations; a ninth, errors, is there since Linux 5.3.
_COLUMNS = 8
#: Where an xprt line has sends, receives, bad xids, backlog, connects, idle seconds, behind its kind.
_OF_TRANSPORT = {
    b"tcp": (5, 6, 7, 9, 2, 4),
    b"rdma": (5, 6, 7, 9, 2, 4),
    b"udp": (2, 3, 4, 6, None, None),
}


@dataclass(frozen=True, slots=True)
class Operation:
    """What a mount's calls of one kind came to since it was mounted; None: no number, or not shown.

    The milliseconds are those of all calls added up: until sent, from sending to the answer, in all.
    """

    operations: int | None
    transmissions: int | None
    timeouts: int | None  # major ones: all repetitions had their time
    queue_milliseconds: int | None
    response_milliseconds: int | None
    execute_milliseconds: int | None
    errors: int | None  # since Linux 5.3


@dataclass(frozen=True, slots=True)
class Transport:
    """A mount's connections (`nconnect`), added up."""

    sends: int | None
    receives: int | None
    bad_replies: int | None
    backlog: int | None  # requests that waited for a slot, added up at each sending
    connects: int | None
    idle_seconds: int | None  # of the one used last


@dataclass(frozen=True, slots=True)
class NfsMount:
    """An NFS mount and its statistics; None where the text has none."""

    point: str
    source: str
    type: str
    age_seconds: int | None
    read_bytes: int | None  # from the server, not from the page cache
    written_bytes: int | None
    transport: Transport | None
    operations: Mapping[str, Operation]

    def total(self, what: Callable[[Operation], int | None]) -> int | None:
        """Return *what* of all kinds of calls together; None if one of them is missing, lest the sum
        seem to fall."""
        total = 0
        for operation in self.operations.values():
            part = what(operation)
            if part is None:
                return None
            total += part
        return total if self.operations else None


def parse_mountstats(data: bytes) -> list[NfsMount]:
    """Return the NFS mounts, each once: where it was mounted first.

    The bind mounts of a source show the same text. A last line that is cut off is not read; a column that
    is no number costs itself only.
    """
    mounts: dict[tuple[bytes, bytes], NfsMount] = {}
    for part in _BEGIN.split(data[: data.rfind(b"\n") + 1]):
        head, _, body = part.partition(b"\n")
        match = _HEAD.match(head)
        if match and match[3] in _TYPES and (match[1], body) not in mounts:
            mounts[match[1], body] = _parse_mount(match, body)
    return list(mounts.values())


def _parse_mount(head: re.Match[bytes], body: bytes) -> NfsMount:
    lines = [(name, rest.split()) for name, rest in _LINE.findall(body)]
    words = dict(lines)
    moved = words.get(b"bytes", [])
    source, point, kind = (unescape(head[i]) for i in (1, 2, 3))
    return NfsMount(
        point, source, kind, _at(words.get(b"age", []), 0), _at(moved, 4), _at(moved, 5),
        _parse_transports([columns for name, columns in lines if name == b"xprt"]),
        {name.decode(): _parse_operation(columns) for name, columns in lines if name.isupper()},
    )  # fmt: skip


def _at(words: Sequence[bytes], column: int | None) -> int | None:
    """Return the number in a column; none of these sums is ever as large as a negative one would seem."""
    if column is None or column >= len(words):
        return None
    value = parse_unsigned(words[column])
    return value if value is not None and value < 1 << 63 else None


def _parse_operation(words: Sequence[bytes]) -> Operation:
    """Columns: calls, transmissions, major timeouts, bytes sent, bytes received, three times, errors."""
    found = [_at(words, column) for column in (0, 1, 2, 5, 6, 7, 8)]
    return Operation(*found) if len(words) >= _COLUMNS else Operation(*[None] * 7)


def _parse_transports(lines: Sequence[Sequence[bytes]]) -> Transport | None:
    """Add up the connections. None without one, or when one is of a kind or form not known here."""
    each: list[list[int | None]] = []
    for words in lines:
        columns = _OF_TRANSPORT.get(words[0], ())
        found = [_at(words[1:], column) for column in columns]
        if len(found) != 6 or None in found[:4]:
            return None
        each.append(found)
    if not each:
        return None
    sends, receives, bad, backlog, connects = (
        _sum(column) for column in list(zip(*each, strict=True))[:5]
    )
    idle = [found[5] for found in each if found[5] is not None]
    return Transport(sends, receives, bad, backlog, connects, min(idle, default=None))


def _sum(column: Sequence[int | None]) -> int | None:
    known = [n for n in column if n is not None]
    return sum(known) if len(known) == len(column) else None
