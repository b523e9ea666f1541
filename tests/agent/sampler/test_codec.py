"""Samplers and daemon understand each other, whatever the pieces in which their words come, and refuse the rest."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.sampler import codec
from gangline.agent.sampler.codec import (
    CodecError,
    Decoder,
    Inbox,
    Round,
    RoundEncoder,
    Task,
    Timed,
)
from gangline.agent.turn import Outcome, Turn
from gangline.fingerprints.block import Block
from gangline.fingerprints.wire.telemetry_pb2 import HealthEvent

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
def rounds(draw: st.DrawFn) -> Round:
    turns = [
        Timed(
            draw(st.integers(0, 1 << 62)),
            Turn(name, draw(st.lists(blocks(), max_size=3)), draw(st.floats(0, 1e6)),
                 draw(st.sampled_from(Outcome)), draw(st.text(max_size=240))),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    ]  # fmt: skip
    number = st.integers(0, 1 << 31)
    return Round(
        *(draw(number), draw(st.floats(0, 1e9)), draw(number), draw(number), turns), draw(names)
    )


def plain(told: Round) -> object:
    """What must come out as it went in."""
    return (
        told.grid_ns,
        told.cpu_seconds,
        told.memory_bytes,
        told.dropped,
        told.slow,
        [
            (
                timed.began_ns,
                timed.turn.collector,
                timed.turn.seconds,
                timed.turn.outcome,
                timed.turn.words.encode("utf-8", "replace"),
                [
                    (b.table, b.devices, b.signal_ids, bytes(b.cells), bytes(b.valid))
                    for b in timed.turn.blocks
                ],
            )
            for timed in told.turns
        ],
    )


@given(st.lists(rounds(), max_size=4), st.data())
def test_rounds_come_out_as_they_went_in_whatever_the_pieces(
    sent: list[Round], data: st.DataObject
) -> None:
    """Rows and columns are told once; a daemon that reads half a message must not take it for another."""
    encoder, decoder = RoundEncoder(NAMES), Decoder(NAMES)
    again = data.draw(st.lists(st.sampled_from(sent), max_size=6)) if sent else []
    for told in [*sent, *again]:
        for block in (block for timed in told.turns for block in timed.turn.blocks):
            block.cells.reverse()  # the same blocks, refilled
        message = encoder.encode(told)
        cut = data.draw(st.integers(0, len(message)))
        decoder.feed(message[:cut])
        if cut < len(message):
            assert decoder.next() is None
        decoder.feed(message[cut:])
        found = decoder.next()
        assert isinstance(found, Round)
        assert plain(found) == plain(told)


def test_after_a_lost_message_everything_is_told_again() -> None:
    encoder, decoder = RoundEncoder(NAMES), Decoder(NAMES)
    told = Round(
        1, 0.0, 0, 0, [Timed(1, Turn("gpu_1s", [Block("gpu_1s", ["a"])], 0.0, Outcome.OK))]
    )
    whole = encoder.encode(told)
    assert len(encoder.encode(told)) < len(whole)
    encoder.forget()
    decoder.feed(encoder.encode(told))
    assert isinstance(decoder.next(), Round)


@given(text, names, names, text, text, st.integers(0, 1 << 62))
def test_orders_come_out_as_they_went_in(lane, spared, left_out, device, collector, period) -> None:  # type: ignore[no-untyped-def]
    inbox = Inbox()
    task = Task(lane, spared, left_out, device, collector, period)
    for order in (task, codec.Warm(), codec.End()):
        inbox.feed(codec.encode_order(order))
    assert [codec.decode_order(kind, body) for kind, body in inbox] == [
        task,
        codec.Warm(),
        codec.End(),
    ]


def test_events_and_wishes() -> None:
    decoder = Decoder(NAMES)
    event = HealthEvent(event_id="e", name="gpu.xid", code=79, attributes={"a": "b"})
    decoder.feed(codec.encode_event(event) + codec.encode_inventory("a GPU came"))
    assert decoder.next() == event
    assert decoder.next() == codec.Inventory("a GPU came")
    assert decoder.next() is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack("<IB", (16 << 20) + 1, 1), "at most"),
        (struct.pack("<IB", 0, 99), "expected a round, an event or a wish"),
        (struct.pack("<IB", 3, 1) + b"abc", "bytes expected"),
        (struct.pack("<IB", 4, 2) + b"\xff\xff\xff\xff", "an event of 4 bytes"),
        (struct.pack("<IB", 2, 3) + b"\xff\xff", "kind 3"),
        (struct.pack("<IBQdQIHH", 33, 1, 1, 0.0, 0, 0, 0, 0) + b"x", "too many"),
        (
            struct.pack("<IBQdQIHHHBBHQd", 54, 1, 1, 0.0, 0, 0, 1, 0, 9, 0, 0, 0, 0, 0.0),
            "no collector 9",
        ),
        (
            struct.pack("<IBQdQIHHHBBHQd", 54, 1, 1, 0.0, 0, 0, 1, 0, 0, 0, 0, 0, 0, float("nan")),
            "a turn of nan seconds",
        ),
        (
            struct.pack("<IBQdQIHHHBBHQd", 55, 1, 1, 0.0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0.0) + b"\0",
            "without rows and columns",
        ),
        (
            struct.pack("<IBQdQIHHHBBHQd", 62, 1, 1, 0.0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0.0)
            + b"\1"
            + struct.pack("<BIH", 0, 1 << 30, 0)
            + b"",
            "rows of 0 signals",
        ),
    ],
)  # fmt: skip
def test_what_is_none_of_ours_is_refused_in_words(data: bytes, words: str) -> None:
    """A sampler whose memory was trodden on by its driver's library must not take the daemon along."""
    decoder = Decoder(NAMES)
    decoder.feed(data)
    with pytest.raises(CodecError, match=words):
        decoder.next()


def test_a_round_that_no_message_can_hold_is_refused_where_it_is_made() -> None:
    block = Block("gpu_1s", ["a"] * 200_000)
    turns = [Timed(1, Turn("gpu_1s", [block], 0.0, Outcome.OK))]
    with pytest.raises(CodecError, match="a message of"):
        RoundEncoder(NAMES).encode(Round(1, 0.0, 0, 0, turns))
