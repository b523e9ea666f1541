"""Collectors that read folders of counter files: a class, and a table of sources for each."""

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
from ..collector import ExcludingCollector, NoData, call_slot_name
from ..hardware.files import device_key
from .block_writer import put

T = TypeVar("T")

#: Maximum of devices per kind, in the order of their names; the others are left out.
DEVICES_MAX = 1024
#: Each RDMA port has 20 files to read per second; reopening a file costs ten times a read.
DESCRIPTORS_MAX = 12288
U64_MAX = (1 << 64) - 1


class PeriodicListing(Generic[T]):
    """A list that is read again every few turns, because devices come and go."""

    def __init__(
        self,
        read: Callable[[], T],
        pace: Pace,
        *,
        seconds: int = 10,
        change_key: Callable[[], object] | None = None,
    ) -> None:
        """*read* lists; it runs in the first turn and then about every *seconds*.

        *change_key* is a cheap check in every turn; when its result changes *read* runs at once.
        """
        self._read, self._change_key = read, change_key
        self._last_change_key: object = None
        #: Whether *change_key* changed in this turn.
        self.may_have_changed = False
        self._turns = max(1, seconds // PERIOD_SECONDS[pace])
        self._turns_left = 0
        self._current: list[T] = []

    @property
    def value(self) -> T:
        """The last list. IndexError before the first `refresh`."""
        return self._current[0]

    def skip(self) -> bool:
        """Return True and count a turn if the last list is empty and the next is not due.

        Not for a listing with *change_key*.
        """
        if self._turns_left < 2 or self.value:
            return False
        self._turns_left -= 1
        return True

    def refresh(self) -> bool:
        """Count a turn and list again when due; return whether the list has changed."""
        self._turns_left -= 1
        if self._change_key is not None:
            before, self._last_change_key = self._last_change_key, self._change_key()
            self.may_have_changed = before != self._last_change_key
            self._turns_left = 0 if self.may_have_changed else self._turns_left
        if self._turns_left > 0:
            return False
        self._turns_left = self._turns
        listed, self._current = self._current, [self._read()]
        return listed != self._current


@dataclass(frozen=True, slots=True)
class FileField:
    """A file below a device's path that holds a signal, and its format (see `ext.counterfiles`)."""

    file: str  # appended to the device's path unchanged
    shape: int = NUMBER
    key: bytes = b""
    scale: float = 1
    raw_max: int = U64_MAX  # larger raw numbers (before scaling) are not readings
    #: A counter restarts after this number; the value is the accumulated count.
    wraps_at: int | None = None


@dataclass(frozen=True, slots=True)
class CounterDevice:
    """A device, the prefix of its files' paths, and its fields."""

    name: str
    path: str
    fields: Mapping[str, FileField]  # by signal
    constants: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    #: The responding device if it has several rows (the chip of a sensor); empty: the device by its
    #: name.
    responder: str = ""

    @property
    def call_device(self) -> str:
        """The name in the call slot and in `exclude`."""
        return call_slot_name(self.responder or self.name)


@dataclass(frozen=True, slots=True)
class CollectorSpec:
    """The parameters of a collector."""

    name: str
    devices: Callable[[], list[CounterDevice]]
    no_data_reason: str  # message of NoData
    tables: Sequence[str] = ()  # empty: the one with the collector's name
    enters_driver: bool = False
    list_seconds: int = 10
    #: A cheap check in every turn; when its result changes, the devices are listed again at once.
    change_key: Callable[[], object] | None = None
    #: Returns the message with the remedy, or "", for (path, errno) of refused files.
    access_error: Callable[[Sequence[tuple[str, int]]], str] | None = None
    #: A device that answers with errors is skipped for at most this long; 0: never skipped.
    wait_seconds_max: int = 0


def descriptors_max(share: int) -> int:
    """Return the descriptors of one of *share* equal parts of the process's limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)
    return descriptors // share


def open_files_max(pace: Pace) -> int:
    """Return a collector's part: 1/10 for each of five 1 s collectors, 1/32 for nine others."""
    return descriptors_max(10 if pace is Pace.SECOND else 32)


class CounterFileCollector(ExcludingCollector):
    """One block per table, filled in one pass over the devices' files.

    The devices are listed every `list_seconds`; a changed list makes new blocks. With
    `enters_driver` each read is recorded in the call slot.
    """

    def __init__(self, spec: CollectorSpec) -> None:
        self.name = spec.name
        self._tables = spec.tables or (spec.name,)
        self.enters_driver = spec.enters_driver
        self._spec = spec
        self._listing = self._new_listing()
        self._blocks: tuple[Block, ...] = ()
        self._files: CounterFiles | None = None

    def collect(self) -> Sequence[Block]:
        """Return the refilled blocks. Raises NoData without a device."""
        if self._listing.refresh():
            self._rebuild(self._listing.value[:DEVICES_MAX])
        elif self._files is not None and self._listing.may_have_changed:
            self._files.reopen()  # two devices may have swapped names
        if self._files is None:
            raise NoData(self._spec.no_data_reason)
        self._files.read()
        self.access_error = self._refusals_text()
        return self._blocks

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip the files of these devices from the next turn; their rows remain."""
        super().exclude(devices)
        if self._files is not None:
            self._files.spare(devices)

    @property
    def paths(self) -> list[str]:
        """The files that a turn reads, for the devices listed last."""
        devices = self._listing.value[:DEVICES_MAX]
        return [d.path + file for d in devices for file, _ in _by_file(d, self._tables)]

    def close(self) -> None:
        """Close the descriptors; the next turn lists and opens again."""
        if self._files is not None:
            self._files.close()
        self._files = None
        self._listing = self._new_listing()

    def _refusals_text(self) -> str:
        """Return a message about devices that refuse all reads, with the remedy; else ""."""
        access_error_of = self._spec.access_error
        refusals = self._files.refusals if access_error_of and self._files else ()
        return access_error_of(refusals) if access_error_of and refusals else ""

    def _new_listing(self) -> PeriodicListing[list[CounterDevice]]:
        spec = self._spec
        return PeriodicListing(
            spec.devices, self.pace, seconds=spec.list_seconds, change_key=spec.change_key
        )

    def _rebuild(self, devices: Sequence[CounterDevice]) -> None:
        if self._files is not None:
            self._files.close()
        self._files = None
        if not devices:
            return
        keys = [device_key(device.name) for device in devices]
        self._blocks = tuple(Block(table, keys) for table in self._tables)
        files = CounterFiles(
            [(block.cells, block.valid) for block in self._blocks],
            kept_max=open_files_max(self.pace),
            wait_passes_max=self._spec.wait_seconds_max // PERIOD_SECONDS[self.pace],
        )
        for row, device in enumerate(devices):
            self._add(files, row, device)
        files.spare(self._excluded)
        self._files = files

    def _add(self, files: CounterFiles, row: int, device: CounterDevice) -> None:
        """Add a device's files. Files of one folder (`counters/`) succeed or fail together."""
        call_device = device.call_device if self.enters_driver else ""
        for path, cells in _by_file(device, self._tables):
            files.add_file(
                device.path + path, group=(row, os.path.dirname(path)), device=call_device
            )
            for name, file_field in cells:
                target, index = self._cell(name, row)
                files.add_cell(
                    index,
                    target=target,
                    shape=file_field.shape,
                    key=file_field.key,
                    scale=file_field.scale,
                    gauge=is_float(BY_NAME[name].signal_id),
                    # A state is a small code or index: 32 one-bits or more mean "no value".
                    most=min(file_field.raw_max, BLANK_32 - 1)
                    if BY_NAME[name].kind is Kind.STATE
                    else file_field.raw_max,
                    span=file_field.wraps_at,
                )
        for name, value in device.constants.items():
            if BY_NAME[name].table in self._tables:
                put(self._blocks[self._tables.index(BY_NAME[name].table)], name, row, value)

    def _cell(self, name: str, row: int) -> tuple[int, int]:
        target = self._tables.index(BY_NAME[name].table)
        return target, index_of(name) * self._blocks[target].rows + row


def _by_file(
    device: CounterDevice, tables: Sequence[str]
) -> Iterable[tuple[str, list[tuple[str, FileField]]]]:
    """Return each file with its cells in *tables*; files of a folder are adjacent."""
    files: dict[str, list[tuple[str, FileField]]] = {}
    for name, file_field in device.fields.items():
        if BY_NAME[name].table in tables:
            files.setdefault(file_field.file, []).append((name, file_field))
    return sorted(files.items(), key=lambda item: os.path.dirname(item[0]))
