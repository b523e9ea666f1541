"""Frames to Arrow: one table per catalogue table, column by column, without touching single cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Kind
from ...fingerprints.frames import Frame
from .layout import BY_NAME, LAYOUTS, Layout

#: Stored times are held within 1970 to 2200: a host's clock may say anything.
TIME_NS_MAX = 7_258_118_400 * 1_000_000_000

Cells = npt.NDArray[np.uint64]
Valid = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A signal that only the agent knows, from its dictionary."""

    name: str
    is_float: bool


@dataclass(frozen=True, slots=True)
class HostFrame:
    """A frame with what the aggregator knows of it. Stored time is boot time plus the offset."""

    host: str
    frame: Frame
    time_offset_ns: int
    foreign: Mapping[int, Foreign] = field(default_factory=dict[int, Foreign])

    @property
    def key(self) -> tuple[str, bytes, int]:
        """What names the frame for ever: (host, run id, sequence)."""
        return self.host, self.frame.stamp.run_id, self.frame.stamp.sequence

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return 512 + sum(9 * len(b.valid) + 120 * b.rows for b in self.frame.blocks)


@dataclass(slots=True)
class Rows:
    """The rows of one catalogue table: cell (signal, row), and the keys by row."""

    layout: Layout
    hosts: list[str]
    devices: list[str]
    times_ns: npt.NDArray[np.int64]
    boottimes_ns: Cells
    cells: Cells
    valid: Valid

    def arrow(self) -> Any:
        """Return them as a `pyarrow.Table`, cells uncopied."""
        count = len(self.devices)
        bits = np.packbits(self.valid, axis=1, bitorder="little")
        arrays = [
            pa.array(self.hosts, pa.string()).dictionary_encode(),
            pa.array(self.devices, pa.string()),
            pa.array(self.times_ns // 1000, pa.timestamp("us")),
            pa.array(self.boottimes_ns),
        ]
        for at, signal in enumerate(self.layout.signals):
            kind = pa.float64() if signal.kind is Kind.GAUGE else pa.uint64()
            buffers = [pa.py_buffer(bits[at]), pa.py_buffer(self.cells[at])]
            arrays.append(pa.Array.from_buffers(kind, count, buffers))
        return pa.table(arrays, names=[name for name, _ in self.layout.columns])


@dataclass(slots=True)
class Batch:
    """What a commit inserts."""

    known: list[Rows]
    by_name: Any | None  # pyarrow.Table

    def tables(self) -> Iterable[tuple[str, Any]]:
        """Yield (table name, pyarrow.Table)."""
        for rows in self.known:
            yield rows.layout.table, rows.arrow()
        if self.by_name is not None:
            yield BY_NAME, self.by_name


Piece = tuple[HostFrame, Block]


def batch(frames: Iterable[HostFrame]) -> Batch:
    """Return the rows of *frames*. Odd content (unknown tables, signals) goes to `by_name`."""
    pieces: dict[str, list[Piece]] = {}
    strangers: list[Piece] = []
    for host_frame in frames:
        for block in host_frame.frame.blocks:
            layout = LAYOUTS.get(block.table)
            if layout is not None and block.rows:
                pieces.setdefault(block.table, []).append((host_frame, block))
            if layout is None or not layout.index.keys() >= set(block.signal_ids):
                strangers.append((host_frame, block))
    return Batch(
        [_rows(LAYOUTS[table], of_table) for table, of_table in pieces.items()],
        _by_name(strangers) if strangers else None,
    )


def _rows(layout: Layout, pieces: Sequence[Piece]) -> Rows:
    counts = np.array([block.rows for _, block in pieces])
    width, count = len(layout.signals), int(counts.sum())
    cells = np.zeros((width, count), np.uint64)
    valid = np.zeros((width, count), np.uint8)
    hosts: list[str] = []
    devices: list[str] = []
    at = 0
    for host_frame, block in pieces:
        here = slice(at, at + block.rows)
        _place(layout, block, cells[:, here], valid[:, here])
        hosts += [host_frame.host] * block.rows
        devices += block.devices
        at += block.rows
    times = np.array([time_ns(host_frame, block) for host_frame, block in pieces], np.int64)
    boottimes = np.array([_boottime_ns(*piece) for piece in pieces], np.uint64)
    return Rows(
        layout, hosts, devices, np.repeat(times, counts), np.repeat(boottimes, counts), cells, valid
    )


def _place(layout: Layout, block: Block, cells: Cells, valid: Valid) -> None:
    source, present = _matrix(block)
    if block.signal_ids == tuple(layout.index):
        cells[:], valid[:] = source, present
        return
    for column, signal_id in enumerate(block.signal_ids):
        target = layout.index.get(signal_id)
        if target is not None:
            cells[target], valid[target] = source[column], present[column]


def _matrix(block: Block) -> tuple[Cells, Valid]:
    shape = (len(block.signal_ids), block.rows)
    cells = np.frombuffer(block.cells, np.uint64).reshape(shape)
    return cells, np.frombuffer(block.valid, np.uint8).reshape(shape)


def time_ns(host_frame: HostFrame, block: Block) -> int:
    """Return when the block's readings are stored as having been made."""
    boottime = host_frame.frame.stamp.boottime_ns
    return max(0, min(boottime + block.offset_ns + host_frame.time_offset_ns, TIME_NS_MAX))


def _boottime_ns(host_frame: HostFrame, block: Block) -> int:
    return max(0, min(host_frame.frame.stamp.boottime_ns + block.offset_ns, (1 << 64) - 1))


def _by_name(strangers: Sequence[Piece]) -> Any | None:
    parts = [part for piece in strangers for part in _unknown_columns(*piece)]
    return pa.concat_tables(parts) if parts else None


def _unknown_columns(host_frame: HostFrame, block: Block) -> Iterable[Any]:
    layout = LAYOUTS.get(block.table)
    cells, valid = _matrix(block)
    for column, signal_id in enumerate(block.signal_ids):
        if layout is None or signal_id not in layout.index:
            rows = np.flatnonzero(valid[column])
            foreign = host_frame.foreign.get(signal_id) or Foreign(f"signal.{signal_id}", False)
            yield _one_signal(host_frame, block, foreign, rows, cells[column][rows])


def _one_signal(
    host_frame: HostFrame, block: Block, foreign: Foreign, rows: npt.NDArray[np.intp], raw: Cells
) -> Any:
    count = len(rows)
    values = pa.array(raw.view(np.float64)) if foreign.is_float else pa.nulls(count, pa.float64())
    time_us = time_ns(host_frame, block) // 1000
    return pa.table(
        {
            "host": pa.array([host_frame.host] * count, pa.string()),
            "device": pa.array([block.devices[row] for row in rows], pa.string()),
            "time": pa.array([time_us] * count, pa.timestamp("us")),
            "signal": pa.array([foreign.name] * count, pa.string()),
            "value": values,
            "raw": pa.nulls(count, pa.uint64()) if foreign.is_float else pa.array(raw),
        }
    )
