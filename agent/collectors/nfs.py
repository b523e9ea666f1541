"""NFS mounts: what was read and written, how often it had to be sent, how long it took."""

from __future__ import annotations

from collections.abc import Sequence

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.files import KeptFile, device_key
from ..hardware.nfs import parse_mountstats
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import block_of, places_of
from .folders import DEVICES_MAX

#: In the order of `ext.hostfiles.nfs_values`.
_COLUMNS = (
    "nfs.age_seconds",
    "nfs.read_bytes",
    "nfs.written_bytes",
    "nfs.reads_operations",
    "nfs.reads_sent_count",
    "nfs.reads_timed_out_count",
    "nfs.read_queue_milliseconds",
    "nfs.read_response_milliseconds",
    "nfs.read_milliseconds",
    "nfs.read_errors",
    "nfs.writes_operations",
    "nfs.writes_sent_count",
    "nfs.writes_timed_out_count",
    "nfs.write_queue_milliseconds",
    "nfs.write_response_milliseconds",
    "nfs.write_milliseconds",
    "nfs.write_errors",
    "nfs.all_operations",
    "nfs.all_sent_count",
    "nfs.all_timed_out_count",
    "nfs.all_errors",
    "nfs.connects_count",
    "nfs.messages_sent_count",
    "nfs.messages_received_count",
    "nfs.bad_replies_count",
    "nfs.backlog_count",
    "nfs.idle_seconds",
)


class NfsMounts:
    """Fills a row per NFS mount from /proc/self/mountstats. No server and no mount point is asked."""

    name = "nfs_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._stats = KeptFile(roots.proc / "self/mountstats")
        self._block = Block("nfs_10s", ())
        self._places = places_of(self._block, _COLUMNS)

    def collect(self) -> Sequence[Block]:
        """Return the one block; a mount that went has no row. Raises NoData without an NFS mount."""
        found = parse_mountstats(self._stats.read())[:DEVICES_MAX]
        mounts = {device_key(mount.point): mount for mount in found}
        if not mounts:
            raise NoData("no NFS mount in /proc/self/mountstats")
        block = block_of(self._block, mounts)
        if block is not self._block:
            self._block, self._places = block, places_of(block, _COLUMNS)
        for row, mount in enumerate(mounts.values()):
            self._places.put(row, mount.values)
        return (self._block,)
