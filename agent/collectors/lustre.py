"""Lustre clients: traffic of each mount, and the connection to each target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ...contract.block import Block
from ...contract.signal import Pace
from ..collector import AccessDenied, Collector, ExcludingCollector, NoData, driver_call
from ..hardware import lustre
from ..hardware.files import OpenFile, Roots, read_bytes
from ..hardware.lustre import LustreStat
from ..hardware.storage import parse_network_mounts
from .counter_files import DEVICES_MAX, PeriodicListing
from .network_fs import TextRows

_LIST_SECONDS = 60
#: Signal -> the line of `stats`, and whether the value is its sum or its count of samples.
_STATS: Mapping[str, tuple[str, bool]] = {
    "lustre.reads_operations": ("read_bytes", False),
    "lustre.read_bytes": ("read_bytes", True),
    "lustre.read_microseconds": ("read", True),
    "lustre.writes_operations": ("write_bytes", False),
    "lustre.written_bytes": ("write_bytes", True),
    "lustre.write_microseconds": ("write", True),
    "lustre.opens_operations": ("open", False),
    "lustre.closes_operations": ("close", False),
    "lustre.attributes_operations": ("getattr", False),
}
#: In the order of `lustre.parse_lustre_import`.
_IMPORT = (
    "lustre_target.connection_state",
    "lustre_target.connection_attempts_count",
    "lustre_target.generation_count",
    "lustre_target.inflight_count",
    "lustre_target.timeouts_count",
    "lustre_target.wait_microseconds",
)


class _LustreInstances:
    """The instances of some kinds with their folders, and one file of each."""

    def __init__(
        self,
        roots: Roots,
        kinds: tuple[str, ...],
        file: str,
        is_excluded: Callable[[str], bool] = lambda instance: False,
    ) -> None:
        trees = lustre.lustre_folders(roots.sys, roots.proc)
        self._listing = PeriodicListing(
            lambda: lustre.lustre_instances(trees, kinds), Pace.TEN_SECONDS, seconds=_LIST_SECONDS
        )
        self._file = file
        self._is_excluded = is_excluded

    def skip(self) -> bool:
        """Return True and count a turn if there is no instance and the next listing is not due."""
        return self._listing.skip()

    def read(self) -> dict[str, bytes | None]:
        """Return each instance's file: None if hidden, empty if excluded.

        Raises NoData without an instance.
        """
        self._listing.refresh()
        instances = list(self._listing.value.items())[:DEVICES_MAX]
        if not instances:
            raise NoData("no Lustre client in /proc/fs/lustre, /sys/fs/lustre")
        return {name: self._first(name, folders) for name, folders in instances}

    def _first(self, instance: str, folders: Iterable[Path]) -> bytes | None:
        if self._is_excluded(instance):
            return b""
        with driver_call(instance, f"read {self._file}"):
            texts = (read_bytes(folder / self._file) for folder in folders)
            return next((text for text in texts if text), None)


class LustreMounts(Collector):
    """Operations, bytes and time of each mount. The device is the mount point."""

    name = "lustre_10s"

    def __init__(self, roots: Roots) -> None:
        self._mounts = OpenFile(roots.proc / "self/mountinfo")
        self._instances = _LustreInstances(roots, ("llite",), "stats")
        self._last_listing: tuple[Sequence[str], bytes] = (), b""
        self._points: list[str] = []
        self._rows = TextRows(self.name, _STATS)

    def skip(self) -> bool:
        """Without a mount, run only the turns that list the instances, one in six."""
        return self._instances.skip()

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData without Lustre, AccessDenied if no mount is shown."""
        texts = self._instances.read()
        self.access_error = _access_error("stats", texts)
        listed = list(texts), self._mounts.read()
        if listed != self._last_listing:
            self._last_listing, self._points = listed, list(mount_points(*listed).values())
        return self._rows.fill(
            self._points, texts.values(), lambda text: _values(lustre.parse_lustre_stats(text))
        )


def _values(stats: Mapping[str, LustreStat]) -> list[int | None]:
    """Return the value of each signal; None for an operation that never happened."""
    statistics = [(stats.get(line), is_total) for line, is_total in _STATS.values()]
    return [
        (stat.total if is_total else stat.samples) if stat else None
        for stat, is_total in statistics
    ]


class LustreTargets(ExcludingCollector):
    """State and problems of the connection to each target. The device is the target.

    Reading the file takes the connection's lock, and may wait while the connection is taken down.
    """

    name = "lustre_target_10s"
    enters_driver = True

    def __init__(self, roots: Roots) -> None:
        self._instances = _LustreInstances(roots, ("osc", "mdc"), "import", self.is_excluded)
        self._last_listing: Sequence[str] = ()
        self._targets: list[str] = []
        self._rows = TextRows(self.name, _IMPORT)

    def skip(self) -> bool:
        """Without a target, run only the turns that list the instances, one in six."""
        return self._instances.skip()

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData without Lustre, AccessDenied if no target is shown."""
        texts = self._instances.read()
        self.access_error = _access_error("import", texts)
        listed = list(texts)
        if listed != self._last_listing:
            self._last_listing = listed
            self._targets = list(_unique(listed, lustre.lustre_target_of).values())
        return self._rows.fill(self._targets, texts.values(), lustre.parse_lustre_import)


def mount_points(instances: Iterable[str], mountinfo: bytes) -> dict[str, str]:
    """Return the mount point of each llite instance, by name; its own name if ambiguous."""
    points: dict[str, list[str]] = {}
    for mount in parse_network_mounts(mountinfo):
        if mount.type == "lustre":  # source: `10.0.0.1@o2ib:/scratch`, or a folder below that
            name = mount.source.partition(":/")[2].partition("/")[0]
            points.setdefault(name, []).append(mount.point)

    def point_of(instance: str) -> str:
        mounts = points.get(lustre.lustre_filesystem_of(instance), [])
        return mounts[0] if len(mounts) == 1 else instance

    return _unique(instances, point_of)


def _unique(instances: Iterable[str], short: Callable[[str], str]) -> dict[str, str]:
    """Return the short name of each instance, or its own name if two have the same short name."""
    names = {instance: short(instance) for instance in instances}
    count = Counter(names.values())
    return {own: name if count[name] == 1 else own for own, name in names.items()}


def _access_error(file: str, texts: Mapping[str, bytes | None]) -> str:
    """Return a message on hidden files, with the remedy. Raises AccessDenied if all are hidden."""
    hidden = [name for name, text in texts.items() if text is None]
    if not hidden:
        return ""
    message = (
        f"Lustre's `{file}` of {hidden[0]} is not shown; it is in /sys/kernel/debug: open it with "
        "AmbientCapabilities=CAP_DAC_READ_SEARCH and ProtectKernelTunables=no in the agent's unit"
    )
    if len(hidden) == len(texts):
        raise AccessDenied(message)
    return message
