"""NFS mounts: what was read and written, how often it had to be sent, how long it took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.files import KeptFile, device_key
from ..hardware.nfs import NfsMount, Operation, parse_mountstats
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import block_of, places_of
from .folders import DEVICES_MAX

_Value = Callable[[NfsMount], int | None]


def _call(kind: str, what: str) -> _Value:
    """Return how to find a column of one kind of call; missing for a mount without such calls."""
    value_of: Callable[[Operation], int | None] = attrgetter(what)

    def find(mount: NfsMount) -> int | None:
        operation = mount.operations.get(kind)
        return value_of(operation) if operation else None

    return find


def _all(what: str) -> _Value:
    value_of: Callable[[Operation], int | None] = attrgetter(what)
    return lambda mount: mount.total(value_of)


def _transport(what: str) -> _Value:
    value_of: _Value = attrgetter(f"transport.{what}")
    return lambda mount: value_of(mount) if mount.transport else None


_VALUES: Mapping[str, _Value] = {
    "nfs.age_seconds": attrgetter("age_seconds"),
    "nfs.read_bytes": attrgetter("read_bytes"),
    "nfs.written_bytes": attrgetter("written_bytes"),
    "nfs.reads_operations": _call("READ", "operations"),
    "nfs.reads_sent_count": _call("READ", "transmissions"),
    "nfs.reads_timed_out_count": _call("READ", "timeouts"),
    "nfs.read_queue_milliseconds": _call("READ", "queue_milliseconds"),
    "nfs.read_response_milliseconds": _call("READ", "response_milliseconds"),
    "nfs.read_milliseconds": _call("READ", "execute_milliseconds"),
    "nfs.read_errors": _call("READ", "errors"),
    "nfs.writes_operations": _call("WRITE", "operations"),
    "nfs.writes_sent_count": _call("WRITE", "transmissions"),
    "nfs.writes_timed_out_count": _call("WRITE", "timeouts"),
    "nfs.write_queue_milliseconds": _call("WRITE", "queue_milliseconds"),
    "nfs.write_response_milliseconds": _call("WRITE", "response_milliseconds"),
    "nfs.write_milliseconds": _call("WRITE", "execute_milliseconds"),
    "nfs.write_errors": _call("WRITE", "errors"),
    "nfs.all_operations": _all("operations"),
    "nfs.all_sent_count": _all("transmissions"),
    "nfs.all_timed_out_count": _all("timeouts"),
    "nfs.all_errors": _all("errors"),
    "nfs.connects_count": _transport("connects"),
    "nfs.messages_sent_count": _transport("sends"),
    "nfs.messages_received_count": _transport("receives"),
    "nfs.bad_replies_count": _transport("bad_replies"),
    "nfs.backlog_count": _transport("backlog"),
    "nfs.idle_seconds": _transport("idle_seconds"),
}


class NfsMounts:
    """Fills a row per NFS mount from /proc/self/mountstats. No server and no mount point is asked."""

    name = "nfs_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._stats = KeptFile(roots.proc / "self/mountstats")
        self._block = Block("nfs_10s", ())

    def collect(self) -> Sequence[Block]:
        """Return the one block; a mount that went has no row. Raises NoData without an NFS mount."""
        found = parse_mountstats(self._stats.read())[:DEVICES_MAX]
        mounts = {device_key(mount.point): mount for mount in found}
        if not mounts:
            raise NoData("no NFS mount in /proc/self/mountstats")
        self._block = block_of(self._block, mounts)
        places = places_of(self._block, _VALUES)
        for row, mount in enumerate(mounts.values()):
            places.put(row, [value_of(mount) for value_of in _VALUES.values()])
        return (self._block,)
