"""Frames to Arrow: one table per catalogue table, column by column, without touching single cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...ext.columns import unpack
from ...ext.intake import TIME_NS_MAX, Received, build
from ...ext.intake import Rows as Built
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Kind
from .layout import BY_NAME, LAYOUTS, Layout

Cells = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A signal that only the agent knows, from its dictionary."""

    name: str
    is_float: bool


#: Of an agent that knows nothing that we do not.
NONE_FOREIGN: Mapping[int, Foreign] = MappingProxyType({})


class HostFrame(NamedTuple):
    """A frame with what the aggregator knows of it. Stored time is boot time plus the offset."""

    host: str
    frame: Received
    time_offset_ns: int
    foreign: Mapping[int, Foreign] = NONE_FOREIGN

    @property
    def key(self) -> tuple[str, bytes, int]:
        """What names the frame for ever: (host, run id, sequence)."""
        return self.host, self.frame.run_id, self.frame.sequence


@dataclass(slots=True)
class Batch:
    """What a commit inserts."""

    known: list[tuple[str, Any]]  # (table, pyarrow.Table)
    by_name: Any | None  # pyarrow.Table

    def tables(self) -> Iterable[tuple[str, Any]]:
        """Yield (table name, pyarrow.Table)."""
        yield from self.known
        if self.by_name is not None:
            yield BY_NAME, self.by_name


def plan(
    name: str, signal_ids: tuple[int, ...], kept_in: int, kept: Sequence[int]
) -> tuple[Any, ...]:
    """Return the arguments of `intake.Columns`: where the columns of an agent's table are stored.

    *kept_in*, *kept*: the same for the fleet.
    """
    layout = LAYOUTS.get(name)
    stored = [layout.index.get(each, -1) if layout else -1 for each in signal_ids]
    number = _NUMBERS[name] if layout else -1
    row_bytes = _ROW_BYTES + 8 * len(layout.signals) if layout else 0
    row_bytes += STRANGE_CELL_BYTES * stored.count(-1)
    return name, signal_ids, number, stored, kept_in, kept, -1 in stored, row_bytes


#: A row's host, device and times.
_ROW_BYTES = 24
#: A cell without a column is a row of `by_name`.
STRANGE_CELL_BYTES = 64

_NUMBERS = {table: number for number, table in enumerate(LAYOUTS)}
_WIDTHS = [len(layout.signals) for layout in LAYOUTS.values()]


def batch(frames: Iterable[HostFrame]) -> Batch:
    """Return the rows of *frames*. Odd content (unknown tables, signals) goes to `by_name`."""
    hosts: dict[str, int] = {}
    several = list(frames)
    pieces = [
        (one.frame, hosts.setdefault(one.host, len(hosts)), one.time_offset_ns) for one in several
    ]
    names = pa.array(list(hosts), pa.string())
    built = zip(LAYOUTS.values(), build(pieces, _WIDTHS), strict=True)
    known = [(layout.table, _arrow(layout, rows, names)) for layout, rows in built if rows]
    strangers = (piece for one in several if one.frame.strange for piece in _strangers(one))
    return Batch(known, _by_name(strangers))


def _arrow(layout: Layout, rows: Built, hosts: Any) -> Any:
    """Return the rows as a `pyarrow.Table`, cells uncopied."""
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
    for at, signal in enumerate(layout.signals):
        kind = pa.float64() if signal.kind is Kind.GAUGE else pa.uint64()
        buffers = [valid.slice(at * step, step), cells.slice(8 * at * count, 8 * count)]
        arrays.append(pa.Array.from_buffers(kind, count, buffers))
    return pa.table(arrays, names=[name for name, _ in layout.columns])


def _column(kind: Any, count: int, values: bytearray) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])


class Piece(NamedTuple):
    """A table of a frame, unpacked."""

    host_frame: HostFrame
    block: Block


def _strangers(host_frame: HostFrame) -> Iterable[Piece]:
    """Yield the tables with signals that have no column."""
    frame = host_frame.frame
    for at, shape in enumerate(frame.shapes):
        if shape.columns.strange:
            block = Block(shape.columns.table, frame.devices(at), shape.columns.signal_ids)
            block.offset_ns = frame.offset_ns(at)
            width = len(block.signal_ids)
            unpack(frame.packed_cells(at), block.cells, block.valid, width, block.rows)
            yield Piece(host_frame, block)


class Part(NamedTuple):
    """Cells without a column, of one table of a frame: a value each, but for `time_us`, which is of all."""

    host: int
    devices: npt.NDArray[np.intp]  # counted from `first_device`
    first_device: int
    time_us: int
    signals: Codes
    raw: Cells
    is_float: Flags


def _time_ns(host_frame: HostFrame, block: Block) -> int:
    """Return when the block's readings are stored as having been made."""
    boottime = host_frame.frame.boottime_ns
    return max(0, min(boottime + block.offset_ns + host_frame.time_offset_ns, TIME_NS_MAX))


def _by_name(strangers: Iterable[Piece]) -> Any | None:
    """Return the rows of all: made at once, for an agent may have as many signals as it likes."""
    words: dict[str, int] = {}
    devices: list[str] = []
    parts: list[Part] = []
    for host_frame, block in strangers:
        parts.append(_unknown_cells(host_frame, block, words, len(devices)))
        devices += block.devices
    counts = [len(part.raw) for part in parts]
    if not sum(counts):
        return None
    names = pa.array(list(words), pa.string())
    is_float = np.concatenate([part.is_float for part in parts])
    raw = np.concatenate([part.raw for part in parts])
    times = np.repeat(np.array([part.time_us for part in parts], np.int64), counts)
    device = np.concatenate([part.first_device + part.devices for part in parts])
    return pa.table(
        {
            "host": _named(np.repeat([part.host for part in parts], counts), names),
            "device": _named(device, pa.array(devices, pa.string())),
            "time": pa.array(times, pa.timestamp("us")),
            "signal": _named(np.concatenate([part.signals for part in parts]), names),
            "value": pa.array(raw.view(np.float64), mask=~is_float),
            "raw": pa.array(raw, mask=is_float),
        }
    )


def _named(places: npt.NDArray[Any], names: Any) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), names)


def _unknown_cells(
    host_frame: HostFrame, block: Block, words: dict[str, int], first_device: int
) -> Part:
    known = layout.index if (layout := LAYOUTS.get(block.table)) else {}
    unknown = [at for at, each in enumerate(block.signal_ids) if each not in known]
    foreign = [_foreign(host_frame, block.signal_ids[at]) for at in unknown]
    shape = (len(block.signal_ids), block.rows)
    valid = np.frombuffer(block.valid, np.uint8).reshape(shape)[unknown]
    columns, rows = np.nonzero(valid)
    cells = np.frombuffer(block.cells, np.uint64).reshape(shape)[unknown]
    signals = np.array([words.setdefault(one.name, len(words)) for one in foreign], np.int32)
    is_float = np.array([one.is_float for one in foreign], np.bool_)
    return Part(
        words.setdefault(host_frame.host, len(words)),
        rows,
        first_device,
        _time_ns(host_frame, block) // 1000,
        signals[columns],
        cells[columns, rows],
        is_float[columns],
    )


def _foreign(host_frame: HostFrame, signal_id: int) -> Foreign:
    return host_frame.foreign.get(signal_id) or Foreign(f"signal.{signal_id}", False)
