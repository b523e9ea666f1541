"""The flight recorder's file: reading returns what was written; bad files are refused."""

from __future__ import annotations

import random
import zlib
from array import array
from dataclasses import replace
from math import isnan, nan

import pytest

from gangline.contract import recording as format_
from gangline.contract.recording import (
    GpuRecording,
    RecordingError,
    decode_header,
    decode_recording,
    encode_recording,
)

HEADER = (
    b'{"devices": ["a"], "signals": ["b"], "states": [], "samples": %s, "seconds": 1, "boottime_ns": 1,'
    b' "wall_time_ns": 1, "host": "h", "boot_id": "", "reason": "", "simulated": false}'
)


def made(devices: int = 2, samples: int = 30) -> GpuRecording:
    values = array("f", range(devices * 3 * samples))
    values[1] = nan
    return GpuRecording(
        devices=tuple(f"GPU-{i}" for i in range(devices)),
        signals=("power_watts", "sm_active_ratio", "state"),
        states=("compute", "wait"),
        boottime_ns=5_000_000_000,
        offsets_ns=array("q", (i * 100_000_000 for i in range(samples))),
        values=values,
        host="gpu-017",
        boot_id="ab" * 16,
        reason="gpu.xid 79 GPU-0",
        wall_time_ns=1_800_000_000_000_000_000,
        simulated=True,
    )


@pytest.mark.parametrize("level", [0, 6])
def test_what_was_written_is_read(level: int) -> None:
    """Samples, times, names and missing readings are preserved."""
    before = made()
    after = decode_recording(encode_recording(before, level))
    assert isnan(after.values[1])
    after.values[1] = before.values[1] = 0.0
    assert replace(after, header_seconds=0.0) == before
    assert after.header_seconds == before.seconds == pytest.approx(2.9)
    assert list(after.column(1, 2)) == list(before.values[150:180])


def test_the_header_is_read_without_the_samples() -> None:
    """A list of recordings reads a kilobyte of each."""
    data = encode_recording(made())
    result = decode_header(data[:2000])
    assert (result.host, result.reason, result.samples) == ("gpu-017", "gpu.xid 79 GPU-0", 0)
    assert result.header_seconds == pytest.approx(2.9)


def test_every_truncation_is_refused() -> None:
    """A full disk cuts a file anywhere."""
    data = encode_recording(made(1, 3))
    for size in range(len(data)):
        with pytest.raises(RecordingError, match=r"truncated|not a recording"):
            decode_recording(data[:size])
    with pytest.raises(RecordingError, match="longer"):
        decode_recording(data + b"x")


def test_every_changed_byte_is_refused() -> None:
    """A disk that returns other bytes than written must not lead to a wrong power."""
    data, source = encode_recording(made(1, 3)), random.Random(1)
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 << source.randrange(8)
        with pytest.raises(RecordingError):
            decode_recording(bytes(changed))


def forged(header: bytes, body: bytes, version: int = 1) -> bytes:
    """Return a file with any content and a right checksum."""
    prefix = format_._PREFIX.pack(
        format_.MAGIC, version, len(header), len(body), format_._checksum(header, body)
    )
    return prefix + header + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (forged(b"{}", b"", version=2), "version 2, this program reads version 1"),
        (forged(b"{}", b""), "header is wrong"),
        (forged(b"[]", b""), "not a table"),
        (forged(b"{", b""), "not JSON"),
        (forged(b"[" * 60_000, b""), "not JSON"),
        (forged(HEADER % b"7000", b""), "7000 samples, expected 0 to 6000"),
        (forged(HEADER % b'"x"', b""), "samples"),
        (forged(HEADER % b"1", b"none"), "cannot be decompressed"),
        (forged(HEADER % b"1", zlib.compress(bytes(11))), "not the 12 bytes"),
        (forged(HEADER % b"1", zlib.compress(bytes(1 << 24))), "not the 12 bytes"),
        (forged(HEADER % b"2", zlib.compress(b"\1" + bytes(23))), "do not ascend"),
        (b"PAR1" + bytes(40), "it is not a recording"),
        (format_.MAGIC + b"\1\0" + b"\xff" * 12, "more than it may have"),
    ],
)
def test_a_hostile_file_is_refused_with_words(data: bytes, message: str) -> None:
    """An operator reads a host's files; a forged file is an error message and uses no memory."""
    with pytest.raises(RecordingError, match=message):
        decode_recording(data)


def test_what_is_beyond_the_limits_is_not_written() -> None:
    """The writer refuses anything that no reader accepts."""
    samples = format_.SAMPLES_MAX + 1
    with pytest.raises(RecordingError, match="samples, expected"):
        encode_recording(made(1, samples))
    with pytest.raises(RecordingError, match="values"):
        encode_recording(replace(made(), values=array("f")))
