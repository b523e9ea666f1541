"""NFS mounts and their statistics in /proc/self/mountstats.

NFS: /proc/self/mountstats. Sources: fs/nfs/super.c (nfs_show_stats), net/sunrpc/stats.c
(rpc_clnt_show_stats), net/sunrpc/xprtsock.c and net/sunrpc/xprtrdma/transport.c (print_stats). The
text comes from the client's memory: no server is contacted.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ...ext.hostfiles import nfs_values
from .storage import unescape

_TYPES = (b"nfs", b"nfs4")
_BEGIN = re.compile(rb"^(?=device )", re.MULTILINE)
_HEAD = re.compile(rb"device (\S+) mounted on (\S+) with fstype (\S+)")


class NfsMount(NamedTuple):
    """An NFS mount; `values` are those of `ext.hostfiles.nfs_values`, None where missing."""

    point: str
    source: str
    type: str
    values: list[int | None]

    @property
    def age_seconds(self) -> int | None:
        return self.values[0]

    @property
    def reads(self) -> list[int | None]:
        """Calls, transmissions, major timeouts, milliseconds (queue, response, total), errors."""
        return self.values[3:10]

    @property
    def writes(self) -> list[int | None]:
        """The columns of `reads`."""
        return self.values[10:17]

    @property
    def transport(self) -> list[int | None]:
        """Sums of connects, sends, receives, bad replies, backlog, idle seconds."""
        return self.values[21:]


def parse_mountstats(data: bytes) -> list[NfsMount]:
    """Return the NFS mounts, each at its first mount point.

    Bind mounts of a source show the same text. A truncated last line is ignored; a column that is
    not a number is None.
    """
    mounts: dict[tuple[bytes, bytes], NfsMount] = {}
    for part in _BEGIN.split(data[: data.rfind(b"\n") + 1]):
        head, _, body = part.partition(b"\n")
        match = _HEAD.match(head)
        if match and match[3] in _TYPES and (match[1], body) not in mounts:
            source, point, kind = (unescape(match[i]) for i in (1, 2, 3))
            mounts[match[1], body] = NfsMount(point, source, kind, nfs_values(body))
    return list(mounts.values())
