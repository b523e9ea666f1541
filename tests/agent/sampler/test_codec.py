"""Messages between samplers and daemon decode exactly, cut anywhere, and invalid data is refused."""

from __future__ import annotations

import gc
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import CollectOutcome, CollectResult
from gangline.agent.sampler import messages
from gangline.agent.sampler.messages import (
    CodecError,
    MessageBuffer,
    RecordingArea,
    SampleBatch,
    SampleBatchDecoder,
    SampleBatchEncoder,
    SamplerTask,
    TimedResult,
)
from gangline.contract.block import Block
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.sampler.world import feed

NAMES = ["gpu_1s", "rdma_1s", "disk_1s"]
text = st.text(max_size=20)
names = st.frozensets(text, max_size=5)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    block = Block(
        draw(st.sampled_from(NAMES)),
        draw(st.lists(text, max_size=4)),
        draw(st.lists(st.integers(1, 65535), min_size=1, max_size=4)),
    )
    block.cells[:] = draw(st.binary(min_size=len(block.cells), max_size=len(block.cells)))
    block.valid[:] = bytes(
        draw(st.lists(st.integers(0, 1), min_size=len(block.valid), max_size=len(block.valid)))
    )
    return block


@st.composite
def rounds(draw: st.DrawFn) -> SampleBatch:
    turns = [
        TimedResult(
            draw(st.integers(0, 1 << 62)),
            CollectResult(name, draw(st.lists(blocks(), max_size=3)), draw(st.floats(0, 1e6)),
                 draw(st.sampled_from(CollectOutcome)), draw(st.text(max_size=240))),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    ]  # fmt: skip
    number = st.integers(0, 1 << 31)
    return SampleBatch(
        *(draw(number), draw(st.floats(0, 1e9)), draw(number), draw(number), turns), draw(names)
    )


def plain(told: SampleBatch) -> object:
    return (
        told.grid_ns,
        told.cpu_seconds,
        told.memory_bytes,
        told.dropped_messages,
        told.slow_devices,
        [
            (
                timed.began_ns,
                timed.result.collector,
                timed.result.seconds,
                timed.result.outcome,
                timed.result.message.encode("utf-8", "replace"),
                [
                    (b.table, b.devices, b.signal_ids, bytes(b.cells), bytes(b.valid))
                    for b in timed.result.blocks
                ],
            )
            for timed in told.results
        ],
    )


@given(st.lists(rounds(), max_size=4), st.data())
def test_rounds_survive_any_pieces(sent: list[SampleBatch], data: st.DataObject) -> None:
    """A daemon that reads half a message must not take it for another."""
    encoder, decoder = SampleBatchEncoder(NAMES), SampleBatchDecoder(NAMES)
    again = data.draw(st.lists(st.sampled_from(sent), max_size=6)) if sent else []
    for batch in [*sent, *again]:
        for block in (block for timed in batch.results for block in timed.result.blocks):
            block.cells.reverse()  # the same blocks, refilled
        message = encoder.encode(*batch)
        cut = data.draw(st.integers(0, len(message)))
        feed(decoder, message[:cut])
        if cut < len(message):
            assert decoder.next() is None
        feed(decoder, message[cut:])
        result = decoder.next()
        assert isinstance(result, SampleBatch)
        assert plain(result) == plain(batch)


@given(rounds(), st.integers(0, 1 << 16), st.integers(0, 255), st.integers(0, 1 << 16))
def test_garbage_is_never_read_past(told: SampleBatch, at: int, byte: int, cut: int) -> None:
    """A sampler's memory was overwritten, or it was killed in a message."""
    encoder, decoder = SampleBatchEncoder(NAMES), SampleBatchDecoder(NAMES)
    data = bytearray(encoder.encode(*told) + encoder.encode(*told))
    data[at % len(data)] = byte
    del data[len(data) - cut % len(data) :]
    feed(decoder, bytes(data))
    try:
        while (found := decoder.next()) is not None:
            assert isinstance(found, SampleBatch | messages.InventoryRequest | HealthEvent)
    except CodecError:
        return
    assert not decoder.waiting


def test_turns_of_fewer_blocks_than_before_and_of_all_again() -> None:
    """A collector may return one of its two tables; the other keeps its rows and columns."""
    encoder, decoder = SampleBatchEncoder(NAMES), SampleBatchDecoder(NAMES)
    message, two, other = (Block(name, ["a"]) for name in ("gpu_1s", "disk_1s", "rdma_1s"))
    reported = []
    for blocks in ([message, two], [message], [message, two], [other, two], [], [other, two]):
        turns = [TimedResult(1, CollectResult("gpu_1s", blocks, 0.0, CollectOutcome.OK))]
        feed(decoder, encoder.encode(1, 0.0, 0, 0, turns, frozenset()))
        reported.append([block.table for block in decoder.next().results[0].result.blocks])
    assert reported == [
        ["gpu_1s", "disk_1s"],
        ["gpu_1s"],
        ["gpu_1s", "disk_1s"],
        ["rdma_1s", "disk_1s"],
        [],
        ["rdma_1s", "disk_1s"],
    ]


def test_the_room_is_lent_once_and_takes_no_more_than_it_has() -> None:
    """A buffer moved while a socket writes into it would corrupt other memory."""
    decoder = SampleBatchDecoder(NAMES)
    with memoryview(decoder) as room:
        with pytest.raises(BufferError):
            memoryview(decoder)
        size = len(room)
    with pytest.raises(ValueError, match="there was room for"):
        decoder.came(size + 1)
    assert [decoder.came(0), decoder.came(size)] == [False, True]


def test_blocks_whose_shape_is_known_keep_their_memory() -> None:
    encoder = SampleBatchEncoder(NAMES)
    block = Block("gpu_1s", ["a"])
    encoder.encode(
        1,
        0.0,
        0,
        0,
        [TimedResult(1, CollectResult("gpu_1s", [block], 0.0, CollectOutcome.OK))],
        frozenset(),
    )
    with pytest.raises(BufferError):
        block.valid.clear()
    encoder.forget()
    block.valid.clear()


def test_after_a_message_that_was_refused_no_reading_of_before_is_taken_for_a_new_one() -> None:
    """A new shape was accepted although cells were missing: the next turn showed the old block."""
    encoder, decoder = SampleBatchEncoder(NAMES), SampleBatchDecoder(NAMES)
    both = [Block(name, ["a"], [1]) for name in ("gpu_1s", "disk_1s")]
    turns = [TimedResult(1, CollectResult("gpu_1s", both, 0.0, CollectOutcome.OK))]
    feed(decoder, encoder.encode(1, 0.0, 0, 0, turns, frozenset()))
    assert decoder.next().results[0].result.blocks[0].devices == ("a",)
    known, other = bytes(4) + b"\7" * 8 + b"\1", of_shape(1, 1, b"\1\0", b"\1\0b") + bytes(9)
    feed(decoder, message(1, of_round(1), of_turn(count=2), other))
    with pytest.raises(CodecError, match="4 bytes expected"):
        decoder.next()
    feed(decoder, message(1, of_round(1), of_turn(count=2), known, known))
    block, _ = decoder.next().results[0].result.blocks
    assert (block.devices, block.ints[0]) == (("b",), 0x0707070707070707)


def test_a_dropped_collector_frees_its_memory(capfd: pytest.CaptureFixture[str]) -> None:
    """An ending agent printed a line of SystemError for each table of its samplers."""
    encoder = SampleBatchEncoder(NAMES)
    turns = [
        TimedResult(1, CollectResult("gpu_1s", [Block("gpu_1s", ["a"])], 0.0, CollectOutcome.OK))
    ]
    encoder.encode(1, 0.0, 0, 0, turns, frozenset())
    knot: list[object] = [thing for thing in gc.get_objects() if type(thing).__name__ == "_Known"]
    knot.append(knot)
    del encoder, turns, knot
    gc.collect()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("began_ns", "blocks"), [(-1, 0), (1 << 64, 0), (1, 256)], ids=["negative", "long", "blocks"]
)
def test_a_turn_too_large_is_refused_by_its_maker(began_ns: int, blocks: int) -> None:
    turn = CollectResult("gpu_1s", [Block("gpu_1s", ["a"])] * blocks, 0.0, CollectOutcome.OK)
    with pytest.raises(CodecError):
        SampleBatchEncoder(NAMES).encode(1, 0.0, 0, 0, [TimedResult(began_ns, turn)], frozenset())


def test_after_a_lost_message_everything_is_told_again() -> None:
    encoder, decoder = SampleBatchEncoder(NAMES), SampleBatchDecoder(NAMES)
    sample_batch = SampleBatch(
        1,
        0.0,
        0,
        0,
        [TimedResult(1, CollectResult("gpu_1s", [Block("gpu_1s", ["a"])], 0.0, CollectOutcome.OK))],
    )
    whole = encoder.encode(*sample_batch)
    assert len(encoder.encode(*sample_batch)) < len(whole)
    encoder.forget()
    feed(decoder, encoder.encode(*sample_batch))
    assert isinstance(decoder.next(), SampleBatch)


@given(text, names, names, text, text, st.integers(0, 1 << 62))
def test_orders_come_out_as_they_went_in(lane, spared, left_out, device, collector, period) -> None:  # type: ignore[no-untyped-def]
    inbox = MessageBuffer()
    task = SamplerTask(lane, spared, left_out, device, collector, period)
    for order in (task, messages.WarmUp(), messages.End()):
        inbox.feed(messages.encode_command(order))
    assert [messages.decode_command(kind, body) for kind, body in inbox] == [
        task,
        messages.WarmUp(),
        messages.End(),
    ]


def test_events_and_wishes() -> None:
    decoder = SampleBatchDecoder(NAMES)
    event = HealthEvent(event_id="e", name="gpu.xid", code=79, attributes={"a": "b"})
    feed(decoder, messages.encode_event(event) + messages.encode_inventory("a GPU came"))
    assert decoder.next() == event
    assert decoder.next() == messages.InventoryRequest("a GPU came")
    assert decoder.next() is None


def message(kind: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack("<IB", len(body), kind) + body


def of_round(turns: int = 0, slow_bytes: int = 0, cpu_seconds: float = 0.0) -> bytes:
    return struct.pack("<QdQQII", 1, cpu_seconds, 0, 0, slow_bytes, turns)


def of_turn(
    collector: int = 0, seconds: float = 0.0, message: int = 0, outcome: int = 0, count: int = 0
) -> bytes:
    return struct.pack("<QdHHBB2x", 0, seconds, collector, message, outcome, count)


def of_shape(rows: int, columns: int, *parts: bytes) -> bytes:
    shape = struct.pack("<BIH", 0, rows, columns) + b"".join(parts)
    return struct.pack("<I", len(shape)) + shape


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (struct.pack("<IB", (16 << 20) + 1, 1), "at most"),
        (message(99), "expected a round, an event or a wish"),
        (message(1, b"abc"), "bytes expected"),
        (message(2, b"\xff" * 4), "kind 2, 4 bytes: "),
        (message(3, b"\xff\xff"), "kind 3, 2 bytes: .utf-8"),
        (message(1, of_round(), b"x"), "1 bytes too many"),
        (message(1, of_round(cpu_seconds=float("nan"))), "a process of nan CPU seconds"),
        (message(1, of_round(slow_bytes=4), b"abc"), "4 bytes expected, 3 are left"),
        (message(1, of_round(slow_bytes=3), b"\2\0a"), "2 bytes expected, 1 are left"),
        (message(1, of_round(1 << 31), of_turn()), "24 bytes expected, 0 are left"),
        (message(1, of_round(1), of_turn(collector=9)), "no collector 9"),
        (message(1, of_round(1), of_turn(outcome=5)), "no outcome 5"),
        (message(1, of_round(1), of_turn(seconds=float("nan"))), "a turn of nan seconds"),
        (message(1, of_round(1), of_turn(seconds=float("inf"))), "a turn of inf seconds"),
        (message(1, of_round(1), of_turn(message=3), b"ab"), "3 bytes expected, 2 are left"),
        (message(1, of_round(1), of_turn(count=1), bytes(4)), "without rows and columns"),
        (message(1, of_round(1), of_turn(count=1), b"\1\0\0\0"), "1 bytes expected"),
        (message(1, of_round(1), of_turn(count=1), of_shape(1 << 30, 0)), "rows of 0 signals"),
        (
            message(1, of_round(1), of_turn(count=1), of_shape(1, 2, b"\1\0\2\0", b"\1\0a"), bytes(17)),
            "1 rows of 2 signals in 17 bytes",
        ),
        (
            message(1, of_round(1), of_turn(count=1), of_shape(2, 1, b"\1\0", b"\2\0ab"), bytes(18)),
            "2 rows, 1 names",
        ),
        (
            message(1, of_round(1), of_turn(count=2), of_shape(1, 1, b"\1\0", b"\1\0a"), bytes(9 + 4)),
            "gpu_1s, block 1",
        ),
    ],
)  # fmt: skip
def test_what_is_none_of_ours_is_refused_in_words(data: bytes, expected: str) -> None:
    """A sampler whose memory was overwritten by its driver's library must not end the daemon."""
    decoder = SampleBatchDecoder(NAMES)
    feed(decoder, data)
    with pytest.raises(CodecError, match=expected):
        decoder.next()


def test_a_round_that_no_message_can_hold_is_refused_where_it_is_made() -> None:
    """After a batch near the limit the buffer allowed longer ones: the sampler was killed."""
    encoder, slow = (
        SampleBatchEncoder(NAMES),
        frozenset(f"{number:01024}" for number in range(15_000)),
    )
    block = Block("gpu_1s", ["a"] * 150_000, [1])
    turns = [TimedResult(1, CollectResult("gpu_1s", [block], 0.0, CollectOutcome.OK))]
    assert len(encoder.encode(1, 0.0, 0, 0, [], slow)) < messages.MESSAGE_BYTES_MAX
    with pytest.raises(CodecError, match="a message of"):
        encoder.encode(1, 0.0, 0, 0, turns, slow)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), text)
def test_orders_to_record_survive_the_codec(number: int, size: int, message: str) -> None:
    """The number identifies the finished command; the samples themselves go by shared memory."""
    buffer, decoder = MessageBuffer(), SampleBatchDecoder(NAMES)
    order = messages.RecordCommand(number, size)
    buffer.feed(messages.encode_command(order))
    assert [messages.decode_command(*message) for message in buffer] == [order]
    recorded = messages.SamplesRecorded(number, size, message)
    feed(decoder, messages.encode_recorded(recorded))
    assert decoder.next() == recorded


def test_the_recording_area_holds_one_recording_and_gives_its_memory_back() -> None:
    """An oversized recording is refused entirely; a cleared one is released."""
    area = RecordingArea(1 << 16)
    area.write(b"a" * 1000)
    assert area.read(1000) == b"a" * 1000 and len(area.read(1 << 20)) == area.size
    with pytest.raises(ValueError, match="at most 65536"):
        area.write(bytes(area.size + 1))
    assert area.read(4) == b"aaaa"
    area.clear()
    assert area.read(4) == bytes(4)
