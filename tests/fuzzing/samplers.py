"""Messages of a sampler with overwritten memory to the daemon: valid messages, or CodecError."""

from __future__ import annotations

import random

from gangline.agent.collector import CollectOutcome, CollectResult
from gangline.agent.sampler import messages
from gangline.agent.sampler.abandoned import AbandonedProcess, format_abandoned, parse_abandoned
from gangline.contract.block import Block
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.sampler.world import feed
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged, flipped

COLLECTORS = ["gpu_1s", "disk_1s"]

_BOOT = b"b" * 16
_LEFT = format_abandoned(
    _BOOT, [AbandonedProcess(("gpu", "0000:9b:00.0", ""), 77, 5000, 3, "gpu_1s", "nvmlInit")] * 3
)
_TASK = messages.encode_command(
    messages.SamplerTask("gpu", frozenset({"a", "b"}), frozenset({"c"}), "d", "", 5)
)


def _stream() -> bytes:
    """Return rounds with known, new and changed shapes, and between them an event and a request."""
    encoder = messages.SampleBatchEncoder(COLLECTORS)
    block, other = Block("gpu_1s", ["GPU-1", "GPU-2"]), Block("gpu_1s", ["GPU-3"], [1, 2])
    block.put_float(0, 1, 1.5)
    turns = [
        messages.TimedResult(
            5, CollectResult("gpu_1s", [block, other], 0.25, CollectOutcome.BLIND, "one refuses")
        ),
        messages.TimedResult(
            6, CollectResult("disk_1s", (), 0.5, CollectOutcome.ERROR, "OSError: gone")
        ),
    ]
    fewer = [messages.TimedResult(7, CollectResult("gpu_1s", [other], 0.25, CollectOutcome.OK))]
    counts = (1_000_000_000, 0.5, 1 << 20, 0)
    event = messages.encode_event(HealthEvent(event_id="e", name="gpu.lost"))
    return b"".join(
        (
            encoder.encode(*counts, turns, messages.NO_DEVICES),
            event,
            messages.encode_inventory("new"),
            encoder.encode(*counts, turns, frozenset({"GPU-1", "GPU-2"})),
            encoder.encode(*counts, fewer, messages.NO_DEVICES),
            encoder.encode(*counts, turns, messages.NO_DEVICES),
        )
    )


_STREAM = _stream()


def fuzz_rounds(source: random.Random) -> str:
    data = source.choice((damaged, flipped))(_STREAM, source)
    decoder = messages.SampleBatchDecoder(COLLECTORS)
    while data:
        piece = source.randrange(1, len(data) + 1)
        feed(decoder, data[:piece])
        data = data[piece:]
        try:
            while (message := decoder.next()) is not None:
                if isinstance(message, messages.SampleBatch):
                    assert all(timed.result.collector in COLLECTORS for timed in message.results)
                    assert all(type(device) is str for device in message.slow_devices)
                    assert all(
                        len(b.cells) == 8 * len(b.valid)
                        for t in message.results
                        for b in t.result.blocks
                    )
        except messages.CodecError:
            return REFUSED
    return ACCEPTED


def fuzz_orders(source: random.Random) -> str:
    inbox = messages.MessageBuffer()
    inbox.feed(source.choice((damaged, flipped))(_TASK, source))
    try:
        orders = [messages.decode_command(kind, body) for kind, body in inbox]
    except messages.CodecError:
        return REFUSED
    assert all(
        isinstance(order, messages.SamplerTask | messages.WarmUp | messages.End) for order in orders
    )
    return ACCEPTED


def fuzz_left_behind(source: random.Random) -> str:
    """Notes of an earlier agent about hanging processes."""
    try:
        abandoned = parse_abandoned(source.choice((damaged, flipped))(_LEFT, source), _BOOT)
    except ValueError:
        return REFUSED
    assert all(
        entry.pid > 0 and all(type(word) is str for word in entry.unit) for entry in abandoned
    )
    return ACCEPTED


TARGETS = {
    "sampler-rounds": fuzz_rounds,
    "sampler-orders": fuzz_orders,
    "sampler-left-behind": fuzz_left_behind,
}
