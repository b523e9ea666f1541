"""Recordings of the flight recorder, as a hostile host would send them."""

from __future__ import annotations

import random
import zlib
from array import array

from gangline.contract import recording
from gangline.contract.recording import GpuRecording, RecordingError
from tests.fuzzing.damage import REFUSED, damaged, flipped, outcome

WHOLE = recording.encode_recording(
    GpuRecording(
        devices=("GPU-0", "GPU-1"),
        signals=("power_watts", "state"),
        states=("compute", "wait"),
        boottime_ns=1_000_000_000,
        offsets_ns=array("q", (i * 100_000_000 for i in range(4))),
        values=array("f", range(16)),
        host="gpu-017",
        reason="gpu.xid 79",
    )
)


def fuzz_recording(source: random.Random) -> str:
    """A recording of a bounded size, or RecordingError; half of the cases have a right checksum."""
    data = source.choice((damaged, flipped))(WHOLE, source)
    if source.random() < 0.5 and len(data) > 22 and data.startswith(recording.MAGIC):
        data = data[:18] + zlib.crc32(data[22:]).to_bytes(4, "little") + data[22:]
    try:
        decoded = recording.decode_recording(data)
    except RecordingError:
        return REFUSED
    assert len(decoded.values) == len(decoded.devices) * len(decoded.signals) * decoded.samples
    return outcome(True)


TARGETS = {"recording": fuzz_recording}
