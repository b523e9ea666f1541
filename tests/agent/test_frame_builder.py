"""The frames of a run: a reader that applies them in order has the host's state."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.frame_builder import KEYFRAME_NS, FrameBuilder, signal_dictionary
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.signals import BY_ID, SIGNALS, TABLES

RUN, BOOT = b"r" * 16, b"b" * 16
SECOND = 1_000_000_000
CHANGES = "gpu_1s_changes"
#: Two of its columns: the others do not matter here.
COUNTERS = [signal.signal_id for signal in TABLES[CHANGES][:2]]
WHOLE = "numa_60s"  # one gauge

Rows = dict[str, tuple[int | None, ...]]


def block_of(rows: Rows, table: str = CHANGES) -> Block:
    block = Block(table, list(rows), COUNTERS if table == CHANGES else ())
    for row, values in enumerate(rows.values()):
        for column, value in enumerate(values):
            block.put_int(column, row, value)
    return block


class Reader:
    """Applies frames like an aggregator: a row replaces the earlier row of its device."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.tables: list[tuple[str, tuple[str, ...]]] = []

    def apply(self, data: bytes) -> None:
        frame = frames.decode(data)
        self.tables = [(block.table, block.devices) for block in frame.blocks]
        for block in frame.blocks:
            for row, device in enumerate(block.devices):
                self.rows[device] = tuple(v for _, v in block.values(row))  # type: ignore[misc]
        self.rows = {d: r for d, r in self.rows.items() if any(v is not None for v in r)}


def known(rows: Rows) -> Rows:
    return {d: r for d, r in rows.items() if any(v is not None for v in r)}


cells = st.one_of(st.none(), st.integers(min_value=0, max_value=3), st.just(2**64 - 1))
states = st.dictionaries(st.sampled_from("abcdef"), st.tuples(cells, cells), max_size=6)
ticks = st.lists(
    st.tuples(st.integers(min_value=0, max_value=40), st.one_of(states, st.none())), max_size=25
)


@settings(max_examples=300, deadline=None)
@given(start=st.integers(min_value=0, max_value=2**62), ticks=ticks)
def test_readers_of_all_frames_agree(start: int, ticks: list[tuple[int, Rows | None]]) -> None:
    """After every frame with a reading the reader has the host's state. None: it failed."""
    framer, reader = FrameBuilder(RUN, BOOT), Reader()
    now = start
    for sequence, (seconds, rows) in enumerate(ticks, 1):
        now += seconds * SECOND
        blocks = [] if rows is None else [block_of(rows)]
        reader.apply(framer.build(sequence, now, 0, blocks))
        if rows is not None:
            assert reader.rows == known(rows)
    assert framer.left_out_count == 0


@settings(deadline=None)
@given(start=st.integers(min_value=0, max_value=2**60), ticks=ticks.filter(len))
def test_a_late_reader_needs_a_keyframe(start: int, ticks: list[tuple[int, Rows | None]]) -> None:
    """The aggregator was restarted without its store: within a minute nothing is missing."""
    framer = FrameBuilder(RUN, BOOT)
    now, rows = start, {}
    for sequence, (seconds, change) in enumerate(ticks, 1):
        now += seconds * SECOND
        rows = change or {}
        framer.build(sequence, now, 0, [block_of(rows)])
    late = Reader()
    late.apply(framer.build(99, now + KEYFRAME_NS, 0, [block_of(rows)]))
    assert late.rows == known(rows)


def test_only_changed_rows_travel_between_keyframes() -> None:
    """RDMA error counters each second are most of a fleet's bytes, and almost never change."""
    framer, reader = FrameBuilder(RUN, BOOT), Reader()
    rows: Rows = {"a": (1, 2), "b": (3, None)}
    sent = []
    for second in range(59, 64):
        if second == 62:
            rows = rows | {"b": (3, 4)}
        reader.apply(framer.build(second, second * SECOND, 0, [block_of(rows)]))
        sent.append([devices for _, devices in reader.tables])
    whole = [("a", "b")]
    assert sent == [whole, whole, [], [("b",)], []]  # first frame, keyframe at 60 s, -, change, -


def test_who_connects_gets_each_table_whole() -> None:
    """A link went down in an agent's first minute: its first reading, which was not reported."""
    framer, late = FrameBuilder(RUN, BOOT), Reader()
    rows: Rows = {"a": (1, 2), "b": (3, None)}
    framer.build(1, 61 * SECOND, 0, [block_of(rows)])
    framer.force_keyframes()
    late.apply(framer.build(2, 62 * SECOND, 0, [block_of(rows)]))
    assert late.rows == known(rows)
    late.apply(framer.build(3, 63 * SECOND, 0, [block_of(rows)]))
    assert late.tables == []


def test_a_device_that_is_gone_is_sent_once_more_with_nothing() -> None:
    """A GPU fell off the bus: its last counters must not look like current readings."""
    framer, reader = FrameBuilder(RUN, BOOT), Reader()
    reader.apply(framer.build(1, SECOND, 0, [block_of({"a": (1, 2), "b": (3, 4)})]))
    reader.apply(framer.build(2, 2 * SECOND, 0, [block_of({"b": (3, 4)})]))
    assert reader.tables == [(CHANGES, ("b", "a"))]
    assert reader.rows == {"b": (3, 4)}
    reader.apply(framer.build(3, 3 * SECOND, 0, [block_of({})]))
    assert reader.tables == [(CHANGES, ("b",))]
    reader.apply(framer.build(4, 4 * SECOND, 0, [block_of({})]))
    assert (reader.tables, reader.rows) == ([], {})


def test_other_tables_travel_whole_each_time_and_empty_ones_not_at_all() -> None:
    framer, reader = FrameBuilder(RUN, BOOT), Reader()
    for second in (1, 2):
        blocks = [block_of({"0": (5,)}, WHOLE), Block("disk_1s", [])]
        reader.apply(framer.build(second, second * SECOND, 0, blocks))
        assert reader.tables == [(WHOLE, ("0",))]


def test_the_frame_carries_its_stamp_and_each_tables_own_time() -> None:
    """A GPU's readings came 0.7 s late; stored under the frame's time their rates would be wrong."""
    block = block_of({"a": (1, 2)})
    block.offset_ns = -700_000_000
    framer = FrameBuilder(RUN, BOOT)
    frame = frames.decode(framer.build(7, 11 * SECOND, 12 * SECOND, [block]))
    assert frame.stamp == frames.Stamp(RUN, BOOT, 7, 11 * SECOND, 12 * SECOND)
    assert frame.blocks[0].offset_ns == -700_000_000
    gone = block_of({"b": (1, 2)})
    gone.offset_ns = -5
    frame = frames.decode(framer.build(8, 12 * SECOND, 12 * SECOND, [gone]))
    assert (frame.blocks[0].devices, frame.blocks[0].offset_ns) == (("b", "a"), -5)


def test_a_table_that_no_frame_carries_is_left_out_and_said() -> None:
    """A host with 5,000 virtual functions: its other readings must still arrive."""
    framer, reader = FrameBuilder(RUN, BOOT), Reader()
    many = Block("net_1s", [f"eth{n}" for n in range(5000)])
    odd = block_of({"\udce9": (1,)}, WHOLE)  # a file name in invalid UTF-8
    long = Block("disk_1s", ["x" * 97])
    good = block_of({"a": (1, 2)})
    reader.apply(framer.build(1, SECOND, 0, [many, odd, good, long]))
    assert reader.tables == [(CHANGES, ("a",))]
    assert [table for table, _ in framer.left_out] == ["net_1s", WHOLE, "disk_1s"]
    assert "5000 rows" in framer.left_out[0][1]
    assert framer.left_out_count == 3
    reader.apply(framer.build(2, 2 * SECOND, 0, [good]))
    assert (framer.left_out, framer.left_out_count) == ((), 3)


def test_an_on_change_table_that_was_left_out_is_sent_whole_once_it_fits() -> None:
    framer, reader = FrameBuilder(RUN, BOOT), Reader()
    rows: Rows = {"a": (1, 2), "b": (3, 4)}
    reader.apply(framer.build(1, SECOND, 0, [block_of(rows)]))
    framer.build(2, 2 * SECOND, 0, [block_of({"a": (9, 9), "x" * 97: (1, 1)})])
    assert framer.left_out_count == 1
    reader.apply(framer.build(3, 3 * SECOND, 0, [block_of({"a": (9, 9)})]))
    assert reader.rows == {"a": (9, 9)}


def test_too_much_together_loses_the_largest_tables_only() -> None:
    """Random cells do not deflate; sixteen tables of 4,096 rows are more than a frame holds."""
    noise = itertools.cycle(bytes((i * i * 31 + i * 7919 >> 3) & 255 for i in range(65_521)))
    blocks = []
    for _ in range(16):
        block = Block("host_1s", [f"{n}" for n in range(4096)])
        block.cells[:] = bytes(itertools.islice(noise, len(block.cells)))
        block.valid[:] = b"\1" * len(block.valid)
        blocks.append(block)
    small = block_of({"a": (1, 2)})
    framer, reader = FrameBuilder(RUN, BOOT), Reader()
    data = framer.build(1, SECOND, 0, [*blocks, small])
    assert len(data) <= frames.FRAME_BYTES_MAX
    reader.apply(data)
    assert (CHANGES, ("a",)) in reader.tables
    assert 0 < framer.left_out_count <= 16
    assert "a frame holds at most" in framer.left_out[0][1]


def test_an_on_change_table_in_two_blocks_is_refused_the_second_time() -> None:
    """Two collectors filling one table would each declare the other's devices gone."""
    framer, reader = FrameBuilder(RUN, BOOT), Reader()
    blocks = [block_of({"a": (1, 2)}), block_of({"b": (1, 2)})]
    reader.apply(framer.build(1, SECOND, 0, blocks))
    assert reader.rows == {"a": (1, 2)}
    assert framer.left_out == ((CHANGES, "an on-change table must be in one block"),)


def test_the_dictionary_names_every_signal_of_the_catalogue() -> None:
    definitions = signal_dictionary()
    assert len(definitions) == len(SIGNALS)
    for definition in definitions:
        signal = BY_ID[definition.signal_id]
        assert (definition.name, definition.kind) == (signal.name, signal.kind.value)
        assert definition.table in TABLES or definition.kind == "event"
