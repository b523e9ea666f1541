"""Builds one frame from the blocks of a tick: thins on-change tables, applies limits, adds id dictionaries."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..contract import frame as frames
from ..contract.block import Block
from ..contract.signal import Kind
from ..contract.signals import SIGNALS, TABLES
from ..contract.wire import telemetry_pb2
from ..ext import columns

#: Each on-change table is sent in full once per span of boot time of this length, so that a reader
#: that missed a frame recovers within it.
KEYFRAME_NS = 60_000_000_000

#: Exceptions of the encoder: FrameError, a name that is not UTF-8, a count over 16 bits.
ENCODE_ERRORS = (ValueError, OverflowError, struct.error)

_ON_CHANGE = frozenset(name for name, signals in TABLES.items() if signals[0].on_change)


class SharedTables:
    """Joins the blocks of a frame by table, if two collectors fill one: GPUs of two vendors.

    For a single thread. An on-change table is joined with the last block of its other collector, so
    that its rows do not count as removed if both collectors take turns in different seconds.
    """

    def __init__(self) -> None:
        self._collectors: dict[str, str] = {}  # table -> first collector that filled it
        self._shared: set[str] = set()
        self._last: dict[str, dict[str, Block]] = {}  # on-change table -> collector -> last block
        self._joined: dict[str, Block] = {}

    def join(self, filled: Sequence[tuple[str, Block]]) -> list[Block]:
        for collector, block in filled:
            if self._collectors.setdefault(block.table, collector) != collector:
                self._shared.add(block.table)
            if block.table in _ON_CHANGE:
                self._last.setdefault(block.table, {})[collector] = block
        if not self._shared:
            return [block for _, block in filled]
        joined = [block for _, block in filled if block.table not in self._shared]
        for table in sorted({block.table for _, block in filled} & self._shared):
            new = {collector: block for collector, block in filled if block.table == table}
            parts = self._last[table] | new if table in _ON_CHANGE else new
            offset_ns = max(block.offset_ns for block in new.values())
            joined += self._join(table, [parts[name] for name in sorted(parts)], offset_ns)
        return joined

    def _join(self, table: str, parts: Sequence[Block], offset_ns: int) -> Sequence[Block]:
        if len(parts) == 1 or any(part.signal_ids != parts[0].signal_ids for part in parts):
            return parts
        devices = tuple(device for part in parts for device in part.devices)
        whole = self._joined.get(table)
        if whole is None or whole.devices != devices:
            whole = self._joined[table] = Block(table, devices, parts[0].signal_ids)
        whole.offset_ns = offset_ns
        for column in range(len(whole.signal_ids)):
            target = column * whole.rows
            for part in parts:
                source = column * part.rows
                whole.ints[target : target + part.rows] = part.ints[source : source + part.rows]
                whole.valid[target : target + part.rows] = part.valid[source : source + part.rows]
                target += part.rows
        return [whole]


def signal_dictionary() -> list[telemetry_pb2.SignalDefinition]:
    """Return the definitions of this agent's signal ids, for RegisterNode."""
    return [
        telemetry_pb2.SignalDefinition(
            signal_id=signal.signal_id,
            name=signal.name,
            kind=signal.kind.value,
            width_bits=signal.width_bits,
            table="" if signal.kind is Kind.EVENT else signal.table,
        )
        for signal in SIGNALS
    ]


class _SentTable:
    """State of an on-change table at a reader that applied every frame."""

    __slots__ = ("cells", "devices", "keyframe", "signal_ids", "valid")

    def __init__(self, block: Block, keyframe: int) -> None:
        """*keyframe*: the span of boot time of the last full table."""
        self.devices, self.signal_ids = block.devices, block.signal_ids
        self.cells, self.valid = bytes(block.cells), bytes(block.valid)
        self.keyframe = keyframe

    def same_keys(self, block: Block) -> bool:
        """Return whether rows and columns are unchanged; usually they are the same objects."""
        same = self.devices is block.devices and self.signal_ids is block.signal_ids
        return same or (self.devices, self.signal_ids) == (block.devices, block.signal_ids)


class FrameBuilder:
    """Builds the frames of a run.

    A reader applies the frames in order; each row replaces the previous row of its table and
    device. So the reader has the full state of each on-change table after each frame. A removed
    device is sent once more with no valid cell. An on-change table must be in a single block: a
    second block in the same frame is left out.
    """

    def __init__(self, run_id: bytes, boot_id: bytes) -> None:
        """*run_id*, *boot_id*: 16 bytes each, as in `Stamp`."""
        self.left_out: tuple[tuple[str, str], ...] = ()  # (table, reason) in the last frame
        self.left_out_count = 0  # tables left out since the start
        self._run_id = run_id
        self._boot_id = boot_id
        self._sent: dict[str, _SentTable] = {}
        self._encoder = frames.Encoder()

    def build(
        self, sequence: int, boottime_ns: int, wall_ns: int, blocks: Sequence[Block]
    ) -> bytes:
        """Return the frame of *blocks*, which are not kept. Never raises for any content.

        A table that a frame cannot carry is left out, named in `left_out` and counted; an on-change
        table then counts as not sent. The frame is deflated only if it is long: usually it is sent
        as differences, and acknowledged before it would be written to disk.
        """
        stamp = frames.Stamp(self._run_id, self._boot_id, sequence, boottime_ns, wall_ns)
        keyframe = boottime_ns // KEYFRAME_NS
        parts, on_change, left_out = self._parts(blocks, keyframe)
        dropped: dict[int, str] = {}
        try:
            data = self._encoder.encode(stamp, parts, deflate=False)
        except ENCODE_ERRORS as error:
            data, dropped = self._encode_fitting(stamp, parts, str(error))
            left_out += [(parts[i].table, reason) for i, reason in sorted(dropped.items())]
        self.left_out = tuple(left_out)
        self.left_out_count += len(left_out)
        for i, block in on_change.items():
            if i not in dropped:
                self._sent[block.table] = _SentTable(block, keyframe)
        return data

    def force_keyframes(self) -> None:
        """Send each on-change table in full next time.

        A new reader would otherwise know no devices, and take an error's first count for the
        counter's start.
        """
        for sent in self._sent.values():
            sent.keyframe = -1

    def _parts(
        self, blocks: Sequence[Block], keyframe: int
    ) -> tuple[list[Block], dict[int, Block], list[tuple[str, str]]]:
        """Return the blocks to send, on-change blocks by index, and (table, reason) left out."""
        parts: list[Block] = []
        on_change: dict[int, Block] = {}
        left_out: list[tuple[str, str]] = []
        seen: list[str] = []
        for block in blocks:
            table = block.table
            if table not in _ON_CHANGE:
                if block.rows:
                    parts.append(block)
            elif table in seen:
                left_out.append((table, "an on-change table must be in one block"))
            else:
                seen.append(table)
                part = self._part(block, keyframe)
                if part is not None and part.rows:
                    on_change[len(parts)] = block
                    parts.append(part)
        return parts, on_change, left_out

    def _part(self, block: Block, keyframe: int) -> Block | None:
        """Return the part of an on-change table to send: all, its changed rows, or None."""
        sent = self._sent.get(block.table)
        if sent is None:
            return block
        if not sent.same_keys(block):
            return _with_removed_rows(block, sent.devices)
        if sent.keyframe != keyframe:
            return block
        if sent.cells == block.cells and sent.valid == block.valid:
            return None
        width = len(block.signal_ids)
        rows = columns.changed_rows(
            block.cells, block.valid, sent.cells, sent.valid, width, block.rows
        )
        return block.select(rows) if rows else None

    def _encode_fitting(
        self, stamp: frames.Stamp, parts: Sequence[Block], reason: str
    ) -> tuple[bytes, dict[int, str]]:
        """Return a frame of the blocks that fit, and index -> reason of the others.

        It leaves out blocks that no frame can carry, then the largest until the rest fits.
        """
        dropped = {
            i: error
            for i, part in enumerate(parts)
            if (error := self._try_encode(stamp, [part])[1])
        }
        remaining = sorted(
            set(range(len(parts))) - dropped.keys(), key=lambda i: len(parts[i].cells)
        )
        while (data := self._try_encode(stamp, [parts[i] for i in sorted(remaining)])[0]) is None:
            dropped[remaining.pop()] = reason
        return data, dropped

    def _try_encode(self, stamp: frames.Stamp, parts: Sequence[Block]) -> tuple[bytes | None, str]:
        try:
            return self._encoder.encode(stamp, parts, deflate=False), ""
        except ENCODE_ERRORS as error:
            return None, str(error)


def _with_removed_rows(block: Block, before: Sequence[str]) -> Block:
    """Return *block* with a row of missing cells for each removed device of *before*."""
    removed = [device for device in before if device not in block.devices]
    if not removed:
        return block
    extended = Block(block.table, [*block.devices, *removed], block.signal_ids)
    extended.offset_ns = block.offset_ns
    for column in range(len(block.signal_ids)):
        source, target = column * block.rows, column * extended.rows
        extended.ints[target : target + block.rows] = block.ints[source : source + block.rows]
        extended.valid[target : target + block.rows] = block.valid[source : source + block.rows]
    return extended
