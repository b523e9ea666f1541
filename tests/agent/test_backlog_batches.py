"""Late frames in messages: the aggregator decodes the sent frames, within its limits."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.transport.frame_batches import BACKLOG_BATCH_BYTES, FrameBatchEncoder
from gangline.agent.transport.send_window import OutgoingFrame
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.frame import PLAIN_BYTES_MAX, Stamp
from gangline.contract.stream import CONTEXT_BYTES_MAX, LATE_FRAMES_MAX, Receiver
from gangline.contract.wire.telemetry_pb2 import TelemetryBatch
from tests.contract.test_streaming import plain_frames


def late(frame: bytes, sequence: int) -> OutgoingFrame:
    return OutgoingFrame(sequence, frame, backlog=True)


def restored(message: TelemetryBatch, context_bytes: int) -> list[bytes]:
    if not message.late:
        return [frames.inflate_frame(message.frame)]
    receiver = Receiver(context_bytes)
    return [receiver.decode(frame) for frame in message.late]


def plain(sequence: int, devices: int = 8) -> bytes:
    source = random.Random(sequence)
    block = Block("gpu_1s", [f"GPU-{n}" for n in range(devices)])
    for cell in range(len(block.valid)):
        block.ints[cell], block.valid[cell] = source.getrandbits(64), 1
    return frames.encode(Stamp(b"r" * 16, b"b" * 16, sequence, 1, 2), [block], deflate=False)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            plain_frames(),
            plain_frames().map(frames.deflate_frame),
            st.binary(max_size=90),
            st.binary(max_size=90).map(lambda b: b"GLF1" + bytes(4) + b"\1\0" + b),
        ),
        max_size=40,
    ),
    st.sampled_from([0, 2000, CONTEXT_BYTES_MAX]),
    st.sampled_from([0, 1, 3, LATE_FRAMES_MAX, 10**6]),
)
def test_late_frames_in_order(sent: list[bytes], context_bytes: int, late_frames_max: int) -> None:
    """A spool may hold anything: invalid frames are sent alone, and do not affect others."""
    messages = FrameBatchEncoder(context_bytes, late_frames_max)
    created = list(
        messages.encode_backlog(late(frame, index) for index, frame in enumerate(sent, 1))
    )
    result = [frame for message in created for frame in restored(message, context_bytes)]
    assert result == [frames.inflate_frame(frames.deflate_frame(frame)) for frame in sent]
    first = 1
    for message in created:
        assert message.backlog and message.sequence == first and not message.differences
        assert (
            len(message.late) <= messages.frames_per_batch <= min(late_frames_max, LATE_FRAMES_MAX)
        )
        assert bool(message.late) != bool(message.frame) or not sent[first - 1]
        first += len(message.late) or 1


def test_a_message_is_no_longer_than_a_live_frame_may_wait_for() -> None:
    """Sixteen frames of a host with a thousand ports would be a megabyte in front of live frames."""
    created = list(
        FrameBatchEncoder(1 << 15, 16).encode_backlog(
            late(plain(n, devices=24), n) for n in range(1, 33)
        )
    )
    sizes = [message.ByteSize() for message in created]
    assert sum(len(message.late) for message in created) == 32 and max(
        sizes
    ) < BACKLOG_BATCH_BYTES + (1 << 14)
    assert len(created) > 3


def test_a_frame_too_large_to_be_inflated_goes_as_it_is() -> None:
    """The agent limits inflation: only a hostile disk can hold such a frame."""
    blocks = [Block("gpu_1s", [f"G{n}" for n in range(2048)])]
    large = frames.encode(Stamp(b"r" * 16, b"b" * 16, 2, 1, 2), blocks, deflate=True)
    assert frames.inflate_frame(large) == large and len(blocks[0].cells) > PLAIN_BYTES_MAX
    sent = [late(plain(1), 1), late(large, 2), late(plain(3), 3)]
    one, two, three = FrameBatchEncoder(1 << 15, 16).encode_backlog(sent)
    assert (len(one.late), two.frame, len(three.late)) == (1, large, 1)
