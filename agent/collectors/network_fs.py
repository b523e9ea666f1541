"""NFS mounts: traffic, retransmissions and latency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...contract.block import Block
from ..collector import Collector, NoData
from ..hardware.files import OpenFile, Roots, device_key
from ..hardware.nfs import parse_mountstats
from .block_writer import block_of, row_writer
from .counter_files import DEVICES_MAX

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


class NfsMounts(Collector):
    """A row per NFS mount from /proc/self/mountstats. No server and no mount point is contacted."""

    name = "nfs_10s"

    def __init__(self, roots: Roots) -> None:
        self._stats = OpenFile(roots.proc / "self/mountstats")
        self._block = Block("nfs_10s", ())
        self._writer = row_writer(self._block, _COLUMNS)

    def collect(self) -> Sequence[Block]:
        """Return the block, with a row per mount. Raises NoData without an NFS mount."""
        mount_list = parse_mountstats(self._stats.read())[:DEVICES_MAX]
        mounts = {device_key(mount.point): mount for mount in mount_list}
        if not mounts:
            raise NoData("no NFS mount in /proc/self/mountstats")
        block = block_of(self._block, mounts)
        if block is not self._block:
            self._block, self._writer = block, row_writer(block, _COLUMNS)
        for row, mount in enumerate(mounts.values()):
            self._writer.put(row, mount.values)
        return (self._block,)


class TextRows:
    """A block with a row per text; an unchanged text is not parsed again."""

    def __init__(self, table: str, signals: Iterable[str]) -> None:
        self._signals = tuple(signals)
        self._block = Block(table, ())
        self._writer = row_writer(self._block, self._signals)
        self._texts: list[bytes | None] = []

    def fill(
        self,
        devices: Sequence[str],
        texts: Iterable[bytes | None],
        parse: Callable[[bytes], Sequence[float | None]],
    ) -> Sequence[Block]:
        """Return the block. *parse* returns the values of a text in the order of the signals."""
        block = block_of(self._block, devices)
        if block is not self._block:
            self._block, self._writer = block, row_writer(block, self._signals)
            self._texts = [None] * len(devices)
        for row, text in enumerate(text or b"" for text in texts):
            if text != self._texts[row]:
                self._texts[row] = text
                self._writer.put(row, parse(text))
        return (self._block,)
