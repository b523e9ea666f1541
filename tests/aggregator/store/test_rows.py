"""Frames to Arrow, against cells read one by one."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.store.frame_rows import ForeignSignal, HostFrame, batch
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.signals import BY_ID, TABLES

KNOWN = [s.signal_id for s in TABLES["gpu_1s"]]
UNKNOWN = [60_001, 60_002]
FOREIGN = {60_001: ForeignSignal("gpu.new_ratio", True)}  # 60_002 is in no dictionary


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """A block of some signals of gpu_1s in any order, with unknown ones, some cells missing."""
    ids = draw(st.lists(st.sampled_from(KNOWN + UNKNOWN), min_size=1, max_size=6, unique=True))
    devices = draw(st.lists(st.sampled_from(["G0", "G1", "G2"]), max_size=3, unique=True))
    table = draw(st.sampled_from(["gpu_1s", "gpu_1s", "never_heard_of"]))
    block = Block(table, devices, ids)
    for column in range(len(ids)):
        for row in range(len(devices)):
            block.put_int(column, row, draw(st.none() | st.integers(0, 2**64 - 1)))
    return block


def frame_of(block: Block, sequence: int, host: str = "a", boottime_ns: int = 5_000) -> HostFrame:
    stamp = frames.Stamp(b"r" * 16, b"b" * 16, sequence, boottime_ns, 0)
    return HostFrame(host, read_frame(frames.encode(stamp, (block,))), 1_000_000, FOREIGN)


def cell(block: Block, column: int, row: int, *, as_float: bool) -> Any:
    index = column * block.rows + row
    if not block.valid[index]:
        return None
    return block.floats[index] if as_float else block.ints[index]


def same(one: Any, other: Any) -> bool:
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


@settings(deadline=None)
@given(st.lists(blocks(), min_size=1, max_size=4))
def test_every_cell_comes_out_once(several: list[Block]) -> None:
    """Known signals have their column, others their name, missing values are NULL."""
    tables = dict(batch(frame_of(b, n) for n, b in enumerate(several)).tables())
    known = tables["gpu_1s"].to_pylist() if "gpu_1s" in tables else []
    named = tables["by_name"].to_pylist() if "by_name" in tables else []
    expected_named = []
    for block in several:
        ours = block.table == "gpu_1s"
        rows = [known.pop(0) for _ in range(block.rows)] if ours else []
        for column, signal_id in enumerate(block.signal_ids):
            for row in range(block.rows):
                signal = BY_ID.get(signal_id)
                if ours and signal is not None and signal_id in KNOWN:
                    value = cell(block, column, row, as_float=signal.kind == "gauge")
                    assert same(rows[row][signal.column], value)
                elif block.valid[column * block.rows + row]:
                    expected_named.append((block.devices[row], signal_id))
    assert known == []
    assert len(named) == len(expected_named)
    assert sorted(record["device"] for record in named) == sorted(
        device for device, _ in expected_named
    )


def test_a_frame_of_unknown_signals_is_one_piece() -> None:
    """An Arrow table for each of 128 tables of unknown signals, 19 kB in all, took 6 s to write."""
    blocks = [Block("gpu_1s", ["G"], tuple(range(20_000, 20_512))) for _ in range(128)]
    for block in blocks:
        block.put_int(7, 0, 1)
    frame = read_frame(frames.encode(frames.Stamp(b"r" * 16, bytes(16), 1, 5, 0), blocks))
    by_name = batch([HostFrame("h", frame, 0)]).by_name
    assert by_name is not None
    assert (by_name.num_rows, by_name.column("raw").num_chunks) == (128, 1)
    assert by_name.column("signal").unique().to_pylist() == ["signal.20007"]
