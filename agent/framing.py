"""The blocks of a tick as one frame: on-change tables thinned, limits kept, and what the ids mean."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ..ext import columns
from ..fingerprints import frames
from ..fingerprints.block import Block
from ..fingerprints.catalogue import SIGNALS, TABLES, Kind
from ..fingerprints.wire import telemetry_pb2

#: On-change tables travel whole once in each span of boot time this long, changed or not, so that
#: a reader that missed a frame is wrong no longer than this.
KEYFRAME_NS = 60_000_000_000

_ON_CHANGE = frozenset(name for name, signals in TABLES.items() if signals[0].on_change)


def dictionary() -> list[telemetry_pb2.SignalDefinition]:
    """Return what this agent's signal ids mean, for RegisterNode."""
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


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a reader that applied every frame holds of an on-change table."""

    devices: tuple[str, ...]
    signal_ids: tuple[int, ...]
    cells: bytes
    valid: bytes
    keyframe: int  # the span of boot time of the last whole one


class Framer:
    """Makes the frames of one run.

    A reader that applies the frames in order, each row replacing the one before of its table and
    device, holds the full state of every on-change table after each frame: a device that is gone is
    sent once more with no valid cell. For that an on-change table must be in one block: a second one
    in the same frame is left out.
    """

    def __init__(self, run_id: bytes, boot_id: bytes) -> None:
        """*run_id*, *boot_id*: 16 bytes each, as `Stamp` carries them."""
        self.left_out: tuple[tuple[str, str], ...] = ()  # (table, why) of the last frame
        self.left_out_count = 0  # tables, since the start
        self._run_id = run_id
        self._boot_id = boot_id
        self._sent: dict[str, _Sent] = {}

    def frame(
        self, sequence: int, boottime_ns: int, wall_ns: int, blocks: Sequence[Block]
    ) -> bytes:
        """Return the frame of *blocks*, read and not kept. Never raises for what a block holds:
        a table that a frame cannot carry is left out, named in `left_out` and counted; an on-change
        table left out counts as not sent. The frame is deflated only if it is long: mostly it is sent
        as differences, and has its receipt before it would be written.
        """
        stamp = frames.Stamp(self._run_id, self._boot_id, sequence, boottime_ns, wall_ns)
        keyframe = boottime_ns // KEYFRAME_NS
        once, left_out = _once(blocks)
        parts = [(self._part(block, keyframe), block) for block in once]
        carried = [(part, block) for part, block in parts if part is not None and part.rows]
        data, dropped = _encode_what_fits(stamp, [part for part, _ in carried])
        left_out += [(carried[i][0].table, why) for i, why in sorted(dropped.items())]
        self.left_out = tuple(left_out)
        self.left_out_count += len(left_out)
        for i, (_, block) in enumerate(carried):
            if block.table in _ON_CHANGE and i not in dropped:
                self._sent[block.table] = _Sent(
                    block.devices,
                    block.signal_ids,
                    bytes(block.cells),
                    bytes(block.valid),
                    keyframe,
                )
        return data

    def _part(self, block: Block, keyframe: int) -> Block | None:
        """Return what must travel of *block*: all of it, its changed rows, or None."""
        sent = self._sent.get(block.table)
        if block.table not in _ON_CHANGE or sent is None:
            return block
        if sent.devices != block.devices or sent.signal_ids != block.signal_ids:
            return _with_gone(block, sent.devices)
        if sent.keyframe != keyframe:
            return block
        width = len(block.signal_ids)
        rows = columns.changed_rows(
            block.cells, block.valid, sent.cells, sent.valid, width, block.rows
        )
        return block.select(rows) if rows else None


def _once(blocks: Sequence[Block]) -> tuple[list[Block], list[tuple[str, str]]]:
    """Return the blocks less every second one of an on-change table, and those (table, why)."""
    kept: list[Block] = []
    left_out: list[tuple[str, str]] = []
    seen: set[str] = set()
    for block in blocks:
        if block.table in seen:
            left_out.append((block.table, "an on-change table must be in one block"))
            continue
        kept.append(block)
        if block.table in _ON_CHANGE:
            seen.add(block.table)
    return kept, left_out


def _with_gone(block: Block, before: Sequence[str]) -> Block:
    """Return *block* with a row of missing cells for each device of *before* that it lacks."""
    gone = [device for device in before if device not in block.devices]
    if not gone:
        return block
    whole = Block(block.table, [*block.devices, *gone], block.signal_ids)
    whole.offset_ns = block.offset_ns
    for column in range(len(block.signal_ids)):
        source, target = column * block.rows, column * whole.rows
        whole.ints[target : target + block.rows] = block.ints[source : source + block.rows]
        whole.valid[target : target + block.rows] = block.valid[source : source + block.rows]
    return whole


def _encode_what_fits(stamp: frames.Stamp, parts: Sequence[Block]) -> tuple[bytes, dict[int, str]]:
    """Return a frame, and by index why a part is not in it: those that no frame can carry, then,
    while the rest is too much together, the largest."""
    whole, why = _try(stamp, parts)
    if whole is not None:
        return whole, {}
    dropped = {i: words for i, part in enumerate(parts) if (words := _try(stamp, [part])[1])}
    kept = sorted(set(range(len(parts))) - dropped.keys(), key=lambda i: len(parts[i].cells))
    while (data := _try(stamp, [parts[i] for i in sorted(kept)])[0]) is None:
        dropped[kept.pop()] = why
    return data, dropped


def _try(stamp: frames.Stamp, parts: Sequence[Block]) -> tuple[bytes | None, str]:
    try:
        return frames.encode(stamp, parts, deflate=False), ""
    except (
        ValueError,
        OverflowError,
        struct.error,
    ) as error:  # also a name that is no UTF-8, a count past 16 bits
        return None, str(error)
