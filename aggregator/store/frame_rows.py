"""Converts frames of readings to Arrow tables, one per table of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...contract.block import Block
from ...contract.signal import Kind
from ...ext.columns import unpack
from ...ext.intake import TIME_NS_MAX, Received, build
from ...ext.intake import Rows as Built
from .layout import BY_NAME, LAYOUTS, Layout

Cells = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

#: Bytes of a row's host, device and times.
_ROW_BYTES = 24
#: A cell without a column becomes a row of `by_name`.
FOREIGN_CELL_BYTES = 64
_NUMBERS = {table: number for number, table in enumerate(LAYOUTS)}
_WIDTHS = [len(layout.signals) for layout in LAYOUTS.values()]


@dataclass(frozen=True, slots=True)
class ForeignSignal:
    """A signal that only the agent knows, from its dictionary."""

    name: str
    is_float: bool


#: For an agent whose signals are all in the catalogue.
NO_FOREIGN_SIGNALS: Mapping[int, ForeignSignal] = MappingProxyType({})


class HostFrame(NamedTuple):
    """A frame and its host. Its readings are stored at boot time plus *time_offset_ns*."""

    host: str
    frame: Received
    time_offset_ns: int
    foreign: Mapping[int, ForeignSignal] = NO_FOREIGN_SIGNALS

    @property
    def key(self) -> tuple[str, bytes, int]:
        """Unique and permanent key of the frame: (host, run id, sequence)."""
        return self.host, self.frame.run_id, self.frame.sequence


@dataclass(slots=True)
class CommitBatch:
    """The tables that a commit inserts."""

    known: list[tuple[str, Any]]  # (table, pyarrow.Table)
    by_name: Any | None  # pyarrow.Table

    def tables(self) -> Iterable[tuple[str, Any]]:
        """Yield (table name, pyarrow.Table)."""
        yield from self.known
        if self.by_name is not None:
            yield BY_NAME, self.by_name


def plan(
    name: str, signal_ids: tuple[int, ...], fleet_table: int, fleet_columns: Sequence[int]
) -> tuple[Any, ...]:
    """Return the arguments of `intake.Columns`: for each column of an agent's table its column in
    the store and in the fleet (*fleet_table*, *fleet_columns*).
    """
    layout = LAYOUTS.get(name)
    stored = [layout.index.get(signal_id, -1) if layout else -1 for signal_id in signal_ids]
    number = _NUMBERS[name] if layout else -1
    row_bytes = _ROW_BYTES + 8 * len(layout.signals) if layout else 0
    row_bytes += FOREIGN_CELL_BYTES * stored.count(-1)
    return name, signal_ids, number, stored, fleet_table, fleet_columns, -1 in stored, row_bytes


def batch(frames: Iterable[HostFrame]) -> CommitBatch:
    """Return the rows of *frames*. Readings of unknown tables or signals go to `by_name`."""
    hosts: dict[str, int] = {}
    host_frames = list(frames)
    pieces = [
        (host_frame.frame, hosts.setdefault(host_frame.host, len(hosts)), host_frame.time_offset_ns)
        for host_frame in host_frames
    ]
    names = pa.array(list(hosts), pa.string())
    built = zip(LAYOUTS.values(), build(pieces, _WIDTHS), strict=True)
    known = [(layout.table, _arrow(layout, rows, names)) for layout, rows in built if rows]
    foreign_blocks = (
        piece
        for host_frame in host_frames
        if host_frame.frame.strange
        for piece in _foreign_blocks(host_frame)
    )
    return CommitBatch(known, _by_name_table(foreign_blocks))


def _arrow(layout: Layout, rows: Built, hosts: Any) -> Any:
    """Return the rows as a `pyarrow.Table` without copying cells."""
    count, step = rows.count, rows.bytes_a_column
    offsets, text = rows.devices_arrow()
    devices = pa.StringArray.from_buffers(
        len(offsets) // 4 - 1, pa.py_buffer(offsets), pa.py_buffer(text)
    )
    arrays = [
        pa.DictionaryArray.from_arrays(_column(pa.int32(), count, rows.hosts), hosts),
        pa.DictionaryArray.from_arrays(_column(pa.int32(), count, rows.devices), devices),
        _column(pa.timestamp("us"), count, rows.times_us),
        _column(pa.uint64(), count, rows.boottimes),
    ]
    cells, valid = pa.py_buffer(rows.cells), pa.py_buffer(rows.valid)
    for index, signal in enumerate(layout.signals):
        kind = pa.float64() if signal.kind is Kind.GAUGE else pa.uint64()
        buffers = [valid.slice(index * step, step), cells.slice(8 * index * count, 8 * count)]
        arrays.append(pa.Array.from_buffers(kind, count, buffers))
    return pa.table(arrays, names=[name for name, _ in layout.columns])


def _column(kind: Any, count: int, values: bytearray) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])


class ForeignBlock(NamedTuple):
    """A table of a frame, unpacked."""

    host_frame: HostFrame
    block: Block


def _foreign_blocks(host_frame: HostFrame) -> Iterable[ForeignBlock]:
    """Yield the tables with signals that have no column."""
    frame = host_frame.frame
    for index, shape in enumerate(frame.shapes):
        if shape.columns.strange:
            block = Block(shape.columns.table, frame.devices(index), shape.columns.signal_ids)
            block.offset_ns = frame.offset_ns(index)
            width = len(block.signal_ids)
            unpack(frame.packed_cells(index), block.cells, block.valid, width, block.rows)
            yield ForeignBlock(host_frame, block)


class ForeignCells(NamedTuple):
    """Cells without a column from one table of a frame; *time_us* is common to all."""

    host: int
    devices: npt.NDArray[np.intp]  # index from *first_device*
    first_device: int
    time_us: int
    signals: Codes
    raw: Cells
    is_float: Flags


def _time_ns(host_frame: HostFrame, block: Block) -> int:
    """Return the time at which the block's readings are stored."""
    boottime = host_frame.frame.boottime_ns
    return max(0, min(boottime + block.offset_ns + host_frame.time_offset_ns, TIME_NS_MAX))


def _by_name_table(foreign_blocks: Iterable[ForeignBlock]) -> Any | None:
    """Return the rows of all blocks as one table, as an agent may have any number of signals."""
    name_codes: dict[str, int] = {}
    devices: list[str] = []
    parts: list[ForeignCells] = []
    for host_frame, block in foreign_blocks:
        parts.append(_foreign_cells(host_frame, block, name_codes, len(devices)))
        devices += block.devices
    counts = [len(part.raw) for part in parts]
    if not sum(counts):
        return None
    names = pa.array(list(name_codes), pa.string())
    is_float = np.concatenate([part.is_float for part in parts])
    raw = np.concatenate([part.raw for part in parts])
    times = np.repeat(np.array([part.time_us for part in parts], np.int64), counts)
    device = np.concatenate([part.first_device + part.devices for part in parts])
    return pa.table(
        {
            "host": _dictionary_array(np.repeat([part.host for part in parts], counts), names),
            "device": _dictionary_array(device, pa.array(devices, pa.string())),
            "time": pa.array(times, pa.timestamp("us")),
            "signal": _dictionary_array(np.concatenate([part.signals for part in parts]), names),
            "value": pa.array(raw.view(np.float64), mask=~is_float),
            "raw": pa.array(raw, mask=is_float),
        }
    )


def _dictionary_array(codes: npt.NDArray[Any], names: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), names)


def _foreign_cells(
    host_frame: HostFrame, block: Block, name_codes: dict[str, int], first_device: int
) -> ForeignCells:
    known = layout.index if (layout := LAYOUTS.get(block.table)) else {}
    unknown = [index for index, signal_id in enumerate(block.signal_ids) if signal_id not in known]
    foreign = [_foreign_signal(host_frame, block.signal_ids[index]) for index in unknown]
    shape = (len(block.signal_ids), block.rows)
    valid = np.frombuffer(block.valid, np.uint8).reshape(shape)[unknown]
    columns, rows = np.nonzero(valid)
    cells = np.frombuffer(block.cells, np.uint64).reshape(shape)[unknown]
    signals = np.array([name_codes.setdefault(s.name, len(name_codes)) for s in foreign], np.int32)
    is_float = np.array([signal.is_float for signal in foreign], np.bool_)
    return ForeignCells(
        name_codes.setdefault(host_frame.host, len(name_codes)),
        rows,
        first_device,
        _time_ns(host_frame, block) // 1000,
        signals[columns],
        cells[columns, rows],
        is_float[columns],
    )


def _foreign_signal(host_frame: HostFrame, signal_id: int) -> ForeignSignal:
    return host_frame.foreign.get(signal_id) or ForeignSignal(f"signal.{signal_id}", False)
