"""Lustre clients: traffic by mount, and the connection to each target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares, entering
from ..hardware import lustre
from ..hardware.block_devices import parse_network_mounts
from ..hardware.files import KeptFile, read_bytes
from ..hardware.lustre import Stat
from ..hardware.roots import Roots
from ..turn import Blind, NoData
from .columns import block_of, places_of
from .folders import DEVICES_MAX
from .listing import Listing

_LIST_SECONDS = 60

#: Signal -> the line of `stats`, and whether its sum is meant or its count.
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


#: In the order of `hardware.lustre.Import`.
_IMPORT = (
    "lustre_target.connection_state",
    "lustre_target.connection_attempts_count",
    "lustre_target.generation_count",
    "lustre_target.inflight_count",
    "lustre_target.timeouts_count",
    "lustre_target.wait_microseconds",
)


class _Instances:
    """The folders of each instance of some kinds, and the file of each that can be read."""

    def __init__(
        self,
        roots: Roots,
        kinds: tuple[str, ...],
        file: str,
        pace: Pace,
        is_spared: Callable[[str], bool] = lambda instance: False,
    ) -> None:
        trees = lustre.trees(roots.sys, roots.proc)
        self._listing = Listing(lambda: lustre.instances(trees, kinds), pace, seconds=_LIST_SECONDS)
        self._file = file
        self._is_spared = is_spared

    def read(self) -> dict[str, bytes | None]:
        """Return the file of each instance; None where no tree shows it, empty where it is not to be asked.

        Raises NoData without an instance.
        """
        self._listing.renew()
        found = list(self._listing.value.items())[:DEVICES_MAX]
        if not found:
            raise NoData("no Lustre client in /proc/fs/lustre, /sys/fs/lustre")
        return {name: self._first(name, folders) for name, folders in found}

    def _first(self, instance: str, folders: Iterable[Path]) -> bytes | None:
        if self._is_spared(instance):
            return b""
        with entering(instance, f"read {self._file}"):
            texts = (read_bytes(folder / self._file) for folder in folders)
            return next((text for text in texts if text), None)


class LustreMounts:
    """Operations, bytes and time of each mount. Device: where it is mounted."""

    name = "lustre_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._mounts = KeptFile(roots.proc / "self/mountinfo")
        self._instances = _Instances(roots, ("llite",), "stats", self.pace)
        self._listed: tuple[Sequence[str], bytes] = (), b""
        self._points: list[str] = []
        self._rows = _Rows(self.name, _STATS)
        self.blind_words = ""

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData without Lustre, Blind when no mount shows anything."""
        texts = self._instances.read()
        self.blind_words = _blind_words("stats", texts)
        listed = list(texts), self._mounts.read()
        if listed != self._listed:
            self._listed, self._points = listed, list(mount_points(*listed).values())
        return self._rows.fill(
            self._points, texts.values(), lambda text: _values(lustre.parse_stats(text))
        )


def _values(stats: Mapping[str, Stat]) -> list[int | None]:
    """Return the value of each signal; what never happened has no line."""
    found = [(stats.get(line), is_total) for line, is_total in _STATS.values()]
    return [
        (stat.total if is_total else stat.samples) if stat else None for stat, is_total in found
    ]


class LustreTargets(Spares):
    """State and troubles of the connection to each target. Device: the target.

    It may wait while a connection is being taken down: the file is made under that lock.
    """

    name = "lustre_target_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = True

    def __init__(self, roots: Roots) -> None:
        self._instances = _Instances(roots, ("osc", "mdc"), "import", self.pace, self.is_spared)
        self._listed: Sequence[str] = ()
        self._targets: list[str] = []
        self._rows = _Rows(self.name, _IMPORT)
        self.blind_words = ""

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData without Lustre, Blind when no target shows anything."""
        texts = self._instances.read()
        self.blind_words = _blind_words("import", texts)
        listed = list(texts)
        if listed != self._listed:
            self._listed = listed
            self._targets = list(_unique(listed, lustre.target_of).values())
        return self._rows.fill(self._targets, texts.values(), lustre.parse_import)


class _Rows:
    """A block with a row for each text; a text that is as it was is not parsed again."""

    def __init__(self, table: str, signals: Iterable[str]) -> None:
        self._signals = tuple(signals)
        self._block = Block(table, ())
        self._places = places_of(self._block, self._signals)
        self._texts: list[bytes | None] = []

    def fill(
        self,
        devices: Sequence[str],
        texts: Iterable[bytes | None],
        parse: Callable[[bytes], Sequence[float | None]],
    ) -> Sequence[Block]:
        """Return the one block, with what *parse* finds in each text in the order of the signals."""
        block = block_of(self._block, devices)
        if block is not self._block:
            self._block, self._places = block, places_of(block, self._signals)
            self._texts = [None] * len(devices)
        for row, text in enumerate(text or b"" for text in texts):
            if text != self._texts[row]:
                self._texts[row] = text
                self._places.put(row, parse(text))
        return (self._block,)


def mount_points(instances: Iterable[str], mountinfo: bytes) -> dict[str, str]:
    """Return where each instance of llite is mounted, by name; its own name where that is not sure."""
    points: dict[str, list[str]] = {}
    for mount in parse_network_mounts(mountinfo):
        if mount.type == "lustre":  # source: `10.0.0.1@o2ib:/scratch`, or a folder below that
            name = mount.source.partition(":/")[2].partition("/")[0]
            points.setdefault(name, []).append(mount.point)

    def point_of(instance: str) -> str:
        found = points.get(lustre.filesystem_of(instance), [])
        return found[0] if len(found) == 1 else instance

    return _unique(instances, point_of)


def _unique(instances: Iterable[str], short: Callable[[str], str]) -> dict[str, str]:
    """Return the short name of each instance, or its own where two would have the same."""
    names = {instance: short(instance) for instance in instances}
    count = Counter(names.values())
    return {own: name if count[name] == 1 else own for own, name in names.items()}


def _blind_words(file: str, texts: Mapping[str, bytes | None]) -> str:
    """Return what would show the files that are not; raises Blind when none is."""
    hidden = [name for name, text in texts.items() if text is None]
    if not hidden:
        return ""
    words = (
        f"Lustre's `{file}` of {hidden[0]} is not shown; it is in /sys/kernel/debug: open it with "
        "AmbientCapabilities=CAP_DAC_READ_SEARCH and ProtectKernelTunables=no in the agent's unit"
    )
    if len(hidden) == len(texts):
        raise Blind(words)
    return words
