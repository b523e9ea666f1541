"""Collectors whose devices are folders of counter files: one class, and a table of sources for each."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ...contract.block import Block, is_float
from ...contract.counters import BLANK_32
from ...contract.signal import PERIOD_SECONDS, Kind, Pace
from ...contract.signals import BY_NAME, index_of
from ...ext.counterfiles import NUMBER, CounterFiles
from ..collector import NoData, Spares, place_name
from ..hardware.files import device_key
from .block_writer import put

# ----------------------------------------------------------------------
# What a host has, listed now and then: devices come and go while the agent runs.

T = TypeVar("T")


class Listing(Generic[T]):
    """The last list, and whether it is another one than before. Time is counted in turns."""

    def __init__(
        self,
        read: Callable[[], T],
        pace: Pace,
        *,
        seconds: int = 10,
        glance: Callable[[], object] | None = None,
    ) -> None:
        """*read* lists; it is called in the first turn and then about every *seconds*.

        *glance* is a cheap look, each turn: when it shows other than the turn before, *read* is called
        at once.
        """
        self._read, self._glance = read, glance
        self._glanced: object = None
        #: Whether the last glance showed another thing than the one before.
        self.is_shaken = False
        self._turns = max(1, seconds // PERIOD_SECONDS[pace])
        self._turns_left = 0
        self._current: list[T] = []

    @property
    def value(self) -> T:
        """The last list. IndexError before the first `renew`."""
        return self._current[0]

    def renew(self) -> bool:
        """Count a turn and list again when it is time; return whether the list has changed."""
        self._turns_left -= 1
        if self._glance is not None:
            before, self._glanced = self._glanced, self._glance()
            self.is_shaken = before != self._glanced
            self._turns_left = 0 if self.is_shaken else self._turns_left
        if self._turns_left > 0:
            return False
        self._turns_left = self._turns
        listed, self._current = self._current, [self._read()]
        return listed != self._current


#: More devices of one kind than this are left out, in the order of their names.
DEVICES_MAX = 1024
#: Each RDMA port has 20 files to be read each second; one reopened costs as much as ten kept open.
DESCRIPTORS_MAX = 12288
U64_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Source:
    """Where under a device's path a signal stands, and how it is written (see `ext.counterfiles`)."""

    file: str  # put after the device's path as it is
    shape: int = NUMBER
    key: bytes = b""
    scale: float = 1
    most: int = U64_MAX  # above this the number is no reading; before scaling
    span: int | None = (
        None  # it counts, and begins again after this; the value is what it has counted
    )


@dataclass(frozen=True, slots=True)
class Device:
    """A device, how the paths of its files begin, and what stands there."""

    name: str
    path: str
    sources: Mapping[str, Source]  # by signal
    constants: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    #: What answers, where several rows are of one: the chip of a sensor; empty: the device by its name.
    answers: str = ""

    @property
    def place(self) -> str:
        """By which name it is told to the place, and spared."""
        return place_name(self.answers or self.name)


@dataclass(frozen=True, slots=True)
class Plan:
    """What makes one collector differ from another."""

    name: str
    pace: Pace
    tables: Sequence[str]
    devices: Callable[[], list[Device]]
    absent: str  # the words of NoData
    enters_driver: bool = False
    list_seconds: int = 10
    #: A cheap look, each turn: when it shows another thing than before, the devices are listed at once.
    glance: Callable[[], object] | None = None
    #: Given (path, errno) of what is refused: the words that name it and say what opens it, or none.
    blind_words: Callable[[Sequence[tuple[str, int]]], str] | None = None
    #: A device that answers with errors is left alone for at most this long; 0: never left alone.
    wait_seconds_max: int = 0

    @property
    def kept_max(self) -> int:
        """Descriptors kept: of four collectors of a second each an eighth, of nine others a thirty-second."""
        return descriptors_max(8 if self.pace is Pace.SECOND else 32)


def descriptors_max(share: int) -> int:
    """Return how many descriptors one of *share* equal parts of this process may keep, so that all stay below its limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)
    return most // share


class FolderCollector(Spares):
    """Fills one block per table by one pass over the devices' files.

    The devices are listed again every `list_seconds`; when they are others, so are the blocks. Of one that
    enters a driver each read is told to the place.
    """

    def __init__(self, plan: Plan) -> None:
        self.name = plan.name
        self.pace = plan.pace
        self.enters_driver = plan.enters_driver
        self._plan = plan
        self._listing = self._new_listing()
        self._blocks: tuple[Block, ...] = ()
        self._files: CounterFiles | None = None

    def collect(self) -> Sequence[Block]:
        """Return the blocks, refilled. Raises NoData when there is no device."""
        if self._listing.renew():
            self._rebuild(self._listing.value[:DEVICES_MAX])
        elif self._files is not None and self._listing.is_shaken:
            self._files.reopen()  # two devices may have changed their names
        if self._files is None:
            raise NoData(self._plan.absent)
        self._files.read()
        return self._blocks

    def spare(self, devices: frozenset[str]) -> None:
        """Read no file of these devices from the next turn on; their rows remain."""
        super().spare(devices)
        if self._files is not None:
            self._files.spare(devices)

    @property
    def paths(self) -> list[str]:
        """The files that a turn reads, of the devices listed last."""
        devices, tables = self._listing.value[:DEVICES_MAX], self._plan.tables
        return [device.path + file for device in devices for file, _ in _by_file(device, tables)]

    def close(self) -> None:
        """Close the descriptors; the next turn lists and opens again."""
        if self._files is not None:
            self._files.close()
        self._files = None
        self._listing = self._new_listing()

    @property
    def blind_words(self) -> str:
        """The devices that refuse all they are asked, and what would open them; empty: none does."""
        words_of = self._plan.blind_words
        refusals = self._files.refusals if words_of and self._files else ()
        return words_of(refusals) if words_of and refusals else ""

    def _new_listing(self) -> Listing[list[Device]]:
        plan = self._plan
        return Listing(plan.devices, plan.pace, seconds=plan.list_seconds, glance=plan.glance)

    def _rebuild(self, devices: Sequence[Device]) -> None:
        if self._files is not None:
            self._files.close()
        self._files = None
        if not devices:
            return
        keys = [device_key(device.name) for device in devices]
        self._blocks = tuple(Block(table, keys) for table in self._plan.tables)
        files = CounterFiles(
            [(block.cells, block.valid) for block in self._blocks],
            kept_max=self._plan.kept_max,
            wait_passes_max=self._plan.wait_seconds_max // PERIOD_SECONDS[self.pace],
        )
        for row, device in enumerate(devices):
            self._add(files, row, device)
        files.spare(self._spared)
        self._files = files

    def _add(self, files: CounterFiles, row: int, device: Device) -> None:
        """Add a device's files. Those of one folder (`counters/`) answer, or refuse, together."""
        place = device.place if self.enters_driver else ""
        for path, cells in _by_file(device, self._plan.tables):
            files.add_file(device.path + path, group=(row, os.path.dirname(path)), device=place)
            for name, source in cells:
                target, index = self._cell(name, row)
                files.add_cell(
                    index,
                    target=target,
                    shape=source.shape,
                    key=source.key,
                    scale=source.scale,
                    gauge=is_float(BY_NAME[name].signal_id),
                    most=source.most if BY_NAME[name].kind is not Kind.STATE else _most(source),
                    span=source.span,
                )
        for name, value in device.constants.items():
            if BY_NAME[name].table in self._plan.tables:
                put(self._blocks[self._plan.tables.index(BY_NAME[name].table)], name, row, value)

    def _cell(self, name: str, row: int) -> tuple[int, int]:
        target = self._plan.tables.index(BY_NAME[name].table)
        return target, index_of(name) * self._blocks[target].rows + row


def _most(source: Source) -> int:
    """A state is a small code or an index: all ones of 32 bits, or more, is one who has none."""
    return min(source.most, BLANK_32 - 1)


def _by_file(
    device: Device, tables: Sequence[str]
) -> Iterable[tuple[str, list[tuple[str, Source]]]]:
    """Return each file with the cells of these tables that it fills; folders stay together."""
    files: dict[str, list[tuple[str, Source]]] = {}
    for name, source in device.sources.items():
        if BY_NAME[name].table in tables:
            files.setdefault(source.file, []).append((name, source))
    return sorted(files.items(), key=lambda item: os.path.dirname(item[0]))
