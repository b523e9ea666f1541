"""Whole hosts under fire: files of a host that is a folder, damaged and mended again."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from gangline.agent.collector import CollectOutcome, CollectResult, run_collector
from gangline.agent.hardware import power_sensors
from gangline.agent.hardware.files import KEY_BYTES_MAX, Roots
from gangline.agent.inventory import parse as parse_inventory
from gangline.agent.inventory.__main__ import SECTIONS, run_sections
from gangline.agent.inventory.host import labels
from gangline.agent.registration import Registration
from gangline.aggregator.ingest.sessions import check_request
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.counters import BLANK_32, BLANK_64
from gangline.contract.frame import Stamp
from gangline.contract.signal import Kind, Signal
from gangline.contract.signals import TABLES
from tests import hosts
from tests.hosts.reading import StoppedClock, collectors_of

#: The address of a cell: table, device, column.
Cell = tuple[str, str, str]

#: Gauges that may be negative: a heat, a voltage, an offset, a frequency's error, a margin.
_SIGNED = re.compile(
    r"_(celsius|volts)$|^clock\.(offset_seconds|frequency_offset_ratio|tai_offset_seconds)$"
)
#: Ratios that may exceed 1, by their description: load per core, wear of a drive.
_ABOVE_ONE = {"host.load_1m_ratio", "nvme.used_ratio"}
#: Collector errors with their own message: the log exists and cannot be read.
_ERRORS_IN_WORDS = {"kernel_log_10s": re.compile(r"RuntimeError: .*/dev/kmsg: ")}

_SIGNALS = {(table, s.column): s for table, signals in TABLES.items() for s in signals}
#: Folders that are one device each, below /sys.
VICTIMS = (
    "class/infiniband/*", "class/net/*", "bus/pci/devices/*", "class/nvme/*", "block/*", "class/hwmon/*",
    "class/powercap/*", "devices/system/node/node*", "devices/system/cpu/cpu[0-9]*",
    "devices/system/edac/mc/mc*", "devices/system/edac/mc/mc*/dimm*",
)  # fmt: skip


@dataclass
class Reading:
    """The output of all collectors in a turn, and the inventory."""

    cells: dict[Cell, float | int | None] = field(default_factory=dict[Cell, float | int | None])
    #: Collector, outcome, words, of both turns.
    outcomes: list[tuple[str, CollectOutcome, str]] = field(
        default_factory=list[tuple[str, CollectOutcome, str]]
    )
    devices: dict[tuple[str, str], dict[str, str]] = field(
        default_factory=dict[tuple[str, str], dict[str, str]]
    )
    problems: list[str] = field(default_factory=list[str])


class Host:
    """A host in a folder, at its first moment; `first` and `later` are what its files hold at two moments."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        unpacked = hosts.unpack(name, root)
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev/kmsg").write_bytes(
            b"6,1,1,-;Linux version 6.8\n4,2,2,-;NVRM: Xid (PCI:0000:18:00): 94, x\n"
        )
        self.root, self.roots = unpacked.root, unpacked.roots
        first = {path: path.read_bytes() for path in files_below(root)}
        unpacked.pass_a_second()
        self._later = {p: d for p in files_below(root) if (d := p.read_bytes()) != first.get(p)}
        self._first = {path: first[path] for path in self._later if path in first}
        self.begin()
        self.files = sorted(first)

    def begin(self) -> None:
        for path in self._later.keys() - self._first.keys():
            path.unlink(missing_ok=True)
        self._show(self._first)

    def read(
        self,
        before: AbstractContextManager[object] | None = None,
        between: AbstractContextManager[object] | None = None,
        spared: Collection[Path] = (),
    ) -> Reading:
        """Take two turns of all collectors, the harm *before* the first and *between* done and undone; return
        the second. The files *spared* do not show the second moment: they are damaged."""
        collectors = collectors_of(self.roots)
        try:
            with before or nullcontext():
                turns = [run_collector(collector, StoppedClock()) for collector in collectors]
                self._show({p: d for p, d in self._later.items() if p not in spared})
                with between or nullcontext():
                    second = [run_collector(collector, StoppedClock()) for collector in collectors]
                    reading = reading_of(turns, second)
                    look_around(self.roots, reading)
        finally:
            for collector in collectors:
                getattr(collector, "close", lambda: None)()
            self.begin()
        return reading

    @staticmethod
    def _show(contents: dict[Path, bytes]) -> None:
        for path, data in contents.items():
            if path.parent.is_dir():
                path.write_bytes(data)


def reading_of(first: Sequence[CollectResult], second: Sequence[CollectResult]) -> Reading:
    """Return the cells of the *second* turns, and how both ended."""
    reading = Reading(cells_of([block for turn in second for block in turn.blocks]))
    reading.outcomes = [(t.collector, t.outcome, t.message) for t in (*first, *second)]
    return reading


def cells_of(blocks: Sequence[Block]) -> dict[Cell, float | int | None]:
    """Return every cell of the blocks, which a frame must take as they are."""
    cells: dict[Cell, float | int | None] = {}
    for block in blocks:
        decoded = frame.decode(frame.encode(Stamp(b"r" * 16, b"b" * 16, 1, 1, 1), [block]))
        assert [block.devices for block in decoded.blocks] == [block.devices]
        columns = [signal.column for signal in TABLES[block.table]]
        for row, device in enumerate(block.devices):
            values = zip(columns, block.values(row), strict=True)
            cells |= {(block.table, device, column): value for column, (_, value) in values}
    return cells


def look_around(roots: Roots, reading: Reading) -> None:
    """Take the inventory by the child's line, as the daemon does. The aggregator must accept it."""
    sections = {name: section for name, section in SECTIONS.items() if name != "GPUs"}
    devices, reading.problems = run_sections(sections, roots, 20.0)
    documents = [{"kind": d.kind, "key": d.key, "attributes": dict(d.attributes)} for d in devices]
    answer = {"devices": documents, "labels": labels(roots)}
    inventory = parse_inventory(json.dumps(answer, sort_keys=True).encode())
    assert inventory.reason == ""
    registration = Registration("host-1", b"r" * 16, b"b" * 16, StoppedClock())
    registration.update(inventory)
    check_request(registration.request())
    reading.devices = {(d.kind, d.key): dict(d.attributes) for d in inventory.devices}


def assert_sane(reading: Reading) -> None:
    """Raise AssertionError for an error, or a value that no such signal can have."""
    for collector, outcome, message in reading.outcomes:
        in_words = _ERRORS_IN_WORDS.get(collector)
        assert outcome is not CollectOutcome.ERROR or (in_words and in_words.match(message)), (
            collector,
            message,
        )
        assert bool(message) == (outcome is not CollectOutcome.OK), (collector, message)
    assert not reading.problems, reading.problems
    for (table, device, column), value in reading.cells.items():
        assert len(device.encode()) <= KEY_BYTES_MAX
        if value is not None:
            _assert_value(_SIGNALS[table, column], value)


def _assert_value(signal: Signal, value: float) -> None:
    if signal.kind is not Kind.GAUGE:
        assert 0 <= value <= BLANK_64, (signal.name, value)
        assert signal.kind is Kind.COUNTER or value not in (BLANK_32, BLANK_64), (
            signal.name,
            value,
        )
        return
    assert math.isfinite(value), (signal.name, value)
    assert value >= 0 or _SIGNED.search(signal.name), (signal.name, value)
    assert signal.unit != "ratio" or signal.name in _ABOVE_ONE or value <= 1, (signal.name, value)
    raw = [value / scale for scale in (1, 1e3, 1e6, 1e-3, 1e-6, 1024, 1 / 60, 125_000)]
    assert not any(abs(value / blank - 1) < 1e-12 for value in raw for blank in (BLANK_32, BLANK_64)), (
        signal.name, value,
    )  # fmt: skip


def files_below(folder: Path) -> list[Path]:
    """Return the plain files below a folder, no link followed."""
    return [
        Path(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if not os.path.islink(os.path.join(place, name))
    ]


def victims(host: Host) -> list[Path]:
    """Return the folder of each device of the host, real and once."""
    changed = {
        path.resolve()
        for victim in VICTIMS
        for path in host.roots.sys.glob(victim)
        if path.is_dir()
    }
    return sorted(path for path in changed if files_below(path))


def names_of(host: Host, folder: Path) -> set[str]:
    """Return every name of *folder*, of its parents and of its contents."""
    names = set(folder.relative_to(host.root.resolve()).parts)
    for place in host.roots.sys.rglob("*"):
        if place.is_symlink() and (place.resolve() == folder or folder in place.resolve().parents):
            names.add(place.name)
    names |= {path.name for path in folder.rglob("*") if path.is_dir()}
    for slaves in host.roots.sys.glob("class/net/*/bonding/slaves"):
        if not names.isdisjoint(slaves.read_text().split()):
            names.add(slaves.parts[-3])
    # A GPU of AMD's goes by its unique id.
    names |= {f"GPU-{path.read_text().strip()}" for path in folder.rglob("unique_id")}
    if "cpu" in folder.parts:
        names.add("host")  # the heat brakes of all cores are one sum
    for chip, place in power_sensors.chips(host.roots.sys).items():
        real = (place / "device").resolve()
        if (
            place.resolve() == folder
            or folder in place.resolve().parents
            or folder in (real, *real.parents)
        ):
            names.add(chip)
    return names


def differences(whole: Reading, hurt: Reading, names: Collection[str]) -> list[object]:
    """Return the cells of *whole* that differ in *hurt*, except those of devices with a name in *names*.

    A GPU's inventory of nearby NICs belongs to those NICs, and a bond to its slaves.
    """
    cells = [
        (cell, value, hurt.cells.get(cell, "absent"))
        for cell, value in whole.cells.items()
        if hurt.cells.get(cell, "absent") != value and not is_of(cell[1], names)
    ]
    return [*cells, *(
        (device, attributes, hurt.devices.get(device))
        for device, attributes in whole.devices.items()
        if _own(hurt.devices.get(device, {})) != _own(attributes) and not is_of(device[1], names)
    )]  # fmt: skip


def _own(attributes: dict[str, str]) -> dict[str, str]:
    others = ("near", "slaves", "interfaces")  # these name other devices
    return {name: word for name, word in attributes.items() if not name.startswith(others)}


def is_of(device: str, names: Collection[str]) -> bool:
    return device.partition("/")[0] in names or any(
        part in names for part in re.split(r"[/@#]", device)
    )
