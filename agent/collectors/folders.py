"""Collectors whose devices are folders of counter files: one class, and a table of sources for each."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...ext.counterfiles import NUMBER, CounterFiles
from ...fingerprints.block import Block, is_float
from ...fingerprints.catalogue import BY_NAME, PERIOD_SECONDS, Pace, index_of
from ..hardware.files import device_key
from ..turn import NoData
from .listing import Listing

#: More devices of one kind than this are left out, in the order of their names.
DEVICES_MAX = 1024
#: Each RDMA port has 20 files to be read each second; one reopened costs as much as ten kept open.
DESCRIPTORS_MAX = 8192
U64_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Source:
    """Where under a device's path a signal stands, and how it is written (see `ext.counterfiles`)."""

    file: str  # put after the device's path as it is
    shape: int = NUMBER
    key: bytes = b""
    scale: float = 1
    most: int = U64_MAX  # above this the number is no reading; before scaling


@dataclass(frozen=True, slots=True)
class Device:
    """A device, how the paths of its files begin, and what stands there."""

    name: str
    path: str
    sources: Mapping[str, Source]  # by signal
    constants: Mapping[str, float | None] = field(default_factory=dict[str, float | None])


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
    #: A device that answers with errors is left alone for at most this long; 0: never left alone.
    wait_seconds_max: int = 0

    @property
    def kept_max(self) -> int:
        """Descriptors kept: a share of what this process may have, so that all collectors together
        stay below it."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)
        return most // 4 if self.pace is Pace.SECOND else most // 16


class FolderCollector:
    """Fills one block per table by one pass over the devices' files.

    The devices are listed again every `list_seconds`; when they are others, so are the blocks.
    """

    def __init__(self, plan: Plan) -> None:
        self.name = plan.name
        self.pace = plan.pace
        self.enters_driver = plan.enters_driver
        self._plan = plan
        self._listing = Listing(plan.devices, plan.pace, seconds=plan.list_seconds)
        self._blocks: tuple[Block, ...] = ()
        self._files: CounterFiles | None = None

    def collect(self) -> Sequence[Block]:
        """Return the blocks, refilled. Raises NoData when there is no device."""
        if self._listing.renew():
            self._rebuild(self._listing.value[:DEVICES_MAX])
        if self._files is None:
            raise NoData(self._plan.absent)
        self._files.read()
        return self._blocks

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
        self._listing = Listing(self._plan.devices, self.pace, seconds=self._plan.list_seconds)

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
        self._files = files

    def _add(self, files: CounterFiles, row: int, device: Device) -> None:
        """Add a device's files. Those of one folder (`counters/`) answer, or refuse, together."""
        for path, cells in _by_file(device, self._plan.tables):
            files.add_file(device.path + path, group=(row, os.path.dirname(path)))
            for name, source in cells:
                target, index = self._cell(name, row)
                files.add_cell(
                    index,
                    target=target,
                    shape=source.shape,
                    key=source.key,
                    scale=source.scale,
                    gauge=is_float(BY_NAME[name].signal_id),
                    most=source.most,
                )
        for name, value in device.constants.items():
            if BY_NAME[name].table in self._plan.tables:
                self._put(name, row, value)

    def _cell(self, name: str, row: int) -> tuple[int, int]:
        target = self._plan.tables.index(BY_NAME[name].table)
        return target, index_of(name) * self._blocks[target].rows + row

    def _put(self, name: str, row: int, value: float | None) -> None:
        block = self._blocks[self._plan.tables.index(BY_NAME[name].table)]
        if value is None or is_float(BY_NAME[name].signal_id):
            block.put_float(index_of(name), row, value)
        else:
            block.put_int(index_of(name), row, int(value))


def _by_file(
    device: Device, tables: Sequence[str]
) -> Iterable[tuple[str, list[tuple[str, Source]]]]:
    """Return each file with the cells of these tables that it fills; folders stay together."""
    files: dict[str, list[tuple[str, Source]]] = {}
    for name, source in device.sources.items():
        if BY_NAME[name].table in tables:
            files.setdefault(source.file, []).append((name, source))
    return sorted(files.items(), key=lambda item: os.path.dirname(item[0]))
