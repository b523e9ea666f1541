"""What a sampler says to the daemon after its memory was trodden on: messages, or CodecError."""

from __future__ import annotations

import random

from gangline.agent.sampler import codec
from gangline.agent.sampler.left_behind import (
    LeftBehind,
    format_left_behind,
    parse_left_behind,
)
from gangline.agent.turn import Outcome, Turn
from gangline.fingerprints.block import Block
from gangline.fingerprints.wire.telemetry_pb2 import HealthEvent
from tests.agent.sampler.world import feed
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged, flipped

COLLECTORS = ["gpu_1s", "disk_1s"]


def _stream() -> bytes:
    """Rounds whose shapes are known, new and others again, between them an event and a wish."""
    encoder = codec.RoundEncoder(COLLECTORS)
    block, other = Block("gpu_1s", ["GPU-1", "GPU-2"]), Block("gpu_1s", ["GPU-3"], [1, 2])
    block.put_float(0, 1, 1.5)
    turns = [
        codec.Timed(5, Turn("gpu_1s", [block, other], 0.25, Outcome.BLIND, "one refuses")),
        codec.Timed(6, Turn("disk_1s", (), 0.5, Outcome.ERROR, "OSError: gone")),
    ]
    fewer = [codec.Timed(7, Turn("gpu_1s", [other], 0.25, Outcome.OK))]
    counts = (1_000_000_000, 0.5, 1 << 20, 0)
    event = codec.encode_event(HealthEvent(event_id="e", name="gpu.lost"))
    return b"".join(
        (
            encoder.encode(*counts, turns, codec.NOBODY),
            event,
            codec.encode_inventory("new"),
            encoder.encode(*counts, turns, frozenset({"GPU-1", "GPU-2"})),
            encoder.encode(*counts, fewer, codec.NOBODY),
            encoder.encode(*counts, turns, codec.NOBODY),
        )
    )


_STREAM = _stream()
_BOOT = b"b" * 16
_LEFT = format_left_behind(
    _BOOT, [LeftBehind(("gpu", "0000:9b:00.0", ""), 77, 5000, 3, "gpu_1s", "nvmlInit")] * 3
)
_TASK = codec.encode_order(codec.Task("gpu", frozenset({"a", "b"}), frozenset({"c"}), "d", "", 5))


def fuzz_rounds(source: random.Random) -> str:
    """A sampler's stream, damaged and in pieces."""
    data = source.choice((damaged, flipped))(_STREAM, source)
    decoder = codec.Decoder(COLLECTORS)
    while data:
        piece = source.randrange(1, len(data) + 1)
        feed(decoder, data[:piece])
        data = data[piece:]
        try:
            while (said := decoder.next()) is not None:
                if isinstance(said, codec.Round):
                    assert all(timed.turn.collector in COLLECTORS for timed in said.turns)
                    assert all(type(device) is str for device in said.slow)
                    assert all(
                        len(b.cells) == 8 * len(b.valid) for t in said.turns for b in t.turn.blocks
                    )
        except codec.CodecError:
            return REFUSED
    return ACCEPTED


def fuzz_orders(source: random.Random) -> str:
    """The daemon's orders, damaged."""
    inbox = codec.Inbox()
    inbox.feed(source.choice((damaged, flipped))(_TASK, source))
    try:
        orders = [codec.decode_order(kind, body) for kind, body in inbox]
    except codec.CodecError:
        return REFUSED
    assert all(isinstance(each, codec.Task | codec.Warm | codec.End) for each in orders)
    return ACCEPTED


def fuzz_left_behind(source: random.Random) -> str:
    """What an agent before this one noted of who hangs."""
    try:
        found = parse_left_behind(source.choice((damaged, flipped))(_LEFT, source), _BOOT)
    except ValueError:
        return REFUSED
    assert all(each.pid > 0 and all(type(word) is str for word in each.unit) for each in found)
    return ACCEPTED


TARGETS = {
    "sampler-rounds": fuzz_rounds,
    "sampler-orders": fuzz_orders,
    "sampler-left-behind": fuzz_left_behind,
}
