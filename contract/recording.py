"""File format of the flight recorder: the last minutes of every GPU at full rate.

Layout, all numbers little-endian: MAGIC, version (u16), bytes of the header and of the body (u32 each), CRC-32 of both
(u32); the header as JSON; the body, compressed by zlib: the offset of each sample from the first (int64, ns), then per
device and signal the samples (float32, NaN where missing).
"""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAGIC = b"GLRECORD"
VERSION = 1
#: Length of the sampler's history.
SECONDS_MAX = 300
DEVICES_MAX, SIGNALS_MAX, SAMPLES_MAX = 256, 64, 6000
HEADER_BYTES_MAX = 1 << 17
#: Limit of the samples before compression.
SAMPLE_BYTES_MAX = 64 << 20
#: Limit of a whole recording, on disk and on the wire.
RECORDING_BYTES_MAX = 32 << 20
#: Limit of the recordings that a host stores and shows.
STORED_MAX = 16
TEXT_CHARACTERS_MAX = 512
_PREFIX = struct.Struct("<8sHIII")
_TIME_BYTES, _VALUE_BYTES = 8, 4


class RecordingError(ValueError):
    """The bytes are not a recording that this version reads; the message states the reason."""


@dataclass(frozen=True, slots=True)
class GpuRecording:
    """Samples of some devices. `offsets_ns` counts from the first sample, at `boottime_ns` and `wall_time_ns`.

    `values`: per device, per signal, per sample a float32. `states`: meanings of the numbers of the signal `state`.
    """

    devices: tuple[str, ...]
    signals: tuple[str, ...]
    states: tuple[str, ...]
    boottime_ns: int
    offsets_ns: array[int]
    values: array[float]
    host: str = ""
    boot_id: str = ""
    reason: str = ""
    wall_time_ns: int = 0
    simulated: bool = False
    #: Boot time at which the first finding of `reason` began; 0: no finding, or recorded by an earlier agent.
    finding_ns: int = 0
    #: Duration in the header, for a file whose samples were not read.
    header_seconds: float = 0.0

    @property
    def samples(self) -> int:
        """Number of samples per signal."""
        return len(self.offsets_ns)

    @property
    def seconds(self) -> float:
        """Time from the first sample to the last."""
        return (self.offsets_ns[-1] - self.offsets_ns[0]) / 1e9 if self.offsets_ns else 0.0

    def column(self, device: int, signal: int) -> array[float]:
        """Return the samples of a signal of a device, both by index."""
        at = (device * len(self.signals) + signal) * self.samples
        return self.values[at : at + self.samples]


def encode_recording(recording: GpuRecording, level: int = 6) -> bytes:
    """Return *recording* as a file. *level*: of zlib; 0: uncompressed. Raises RecordingError beyond the limits."""
    header = json.dumps(
        {
            "host": recording.host[:TEXT_CHARACTERS_MAX],
            "boot_id": recording.boot_id[:TEXT_CHARACTERS_MAX],
            "reason": recording.reason[:TEXT_CHARACTERS_MAX],
            "simulated": recording.simulated,
            "finding_ns": recording.finding_ns,
            "boottime_ns": recording.boottime_ns,
            "wall_time_ns": recording.wall_time_ns,
            "samples": recording.samples,
            "seconds": recording.seconds,
            "devices": recording.devices,
            "signals": recording.signals,
            "states": recording.states,
        }
    ).encode()
    if len(header) > HEADER_BYTES_MAX:
        raise RecordingError(f"a header of {len(header)} bytes, at most {HEADER_BYTES_MAX}")
    _check_shape(
        len(recording.devices), len(recording.signals), recording.samples, len(recording.values)
    )
    body = zlib.compress(recording.offsets_ns.tobytes() + recording.values.tobytes(), level)
    data = _PREFIX.pack(MAGIC, VERSION, len(header), len(body), _checksum(header, body))
    if len(data) + len(header) + len(body) > RECORDING_BYTES_MAX:
        raise RecordingError(f"more than {RECORDING_BYTES_MAX} bytes")
    return data + header + body


def decode_recording(data: bytes) -> GpuRecording:
    """Return the recording of a file. For any invalid bytes it raises RecordingError, and no other error."""
    fields, body = _split(data)
    try:
        found = _recording(fields)
        count = len(found.devices) * len(found.signals) * fields["samples"]
        _check_shape(len(found.devices), len(found.signals), fields["samples"], count)
        samples = _inflate(body, _TIME_BYTES * fields["samples"] + _VALUE_BYTES * count)
        cut = _TIME_BYTES * fields["samples"]
        found.offsets_ns.frombytes(samples[:cut])
        found.values.frombytes(samples[cut:])
    except RecordingError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RecordingError(f"the header is wrong: {str(error)[:100]}") from error
    offsets = found.offsets_ns
    if any(b < a for a, b in itertools.pairwise(offsets)):
        raise RecordingError("the times of its samples do not ascend")
    return found


def decode_header(data: bytes) -> GpuRecording:
    """Return the header's fields of a file, without samples: *data* is its beginning. Raises RecordingError."""
    header = _header_bytes(data, *_prefix(data)[:1])
    try:
        return _recording(_json(header))
    except RecordingError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RecordingError(f"the header is wrong: {str(error)[:100]}") from error


def _prefix(data: bytes) -> tuple[int, int, int]:
    """Return the sizes of header and body in bytes, and their checksum."""
    if not data.startswith(MAGIC):
        raise RecordingError(f"it is not a recording: it does not begin with {MAGIC.decode()}")
    if len(data) < _PREFIX.size:
        raise RecordingError(f"it is truncated: {len(data)} bytes")
    _, version, header_bytes, body_bytes, checksum = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise RecordingError(
            f"it has format version {version}, this program reads version {VERSION}: use the gangline of the host's agent"
        )
    if header_bytes > HEADER_BYTES_MAX or body_bytes > RECORDING_BYTES_MAX:
        raise RecordingError(f"it names {header_bytes + body_bytes} bytes, more than it may have")
    return header_bytes, body_bytes, checksum


def _header_bytes(data: bytes, size: int) -> bytes:
    header = data[_PREFIX.size : _PREFIX.size + size]
    if len(header) < size:
        raise RecordingError(f"it is truncated: {len(data)} bytes, its header alone has {size}")
    return header


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    header_bytes, body_bytes, checksum = _prefix(data)
    expected = _PREFIX.size + header_bytes + body_bytes
    if len(data) != expected:
        fault = "truncated" if len(data) < expected else "longer than it should be"
        raise RecordingError(f"it is {fault}: {len(data)} bytes of {expected}")
    header = _header_bytes(data, header_bytes)
    body = data[_PREFIX.size + header_bytes :]
    if _checksum(header, body) != checksum:
        raise RecordingError("its checksum is wrong: some bytes were changed")
    return _json(header), body


def _json(header: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"the header is not JSON: {str(error)[:100]}") from error
    if not isinstance(fields, dict):
        raise RecordingError("the header is not a table of fields")
    return fields


def _recording(fields: dict[str, Any]) -> GpuRecording:
    """Return the header's fields, without samples. Raises KeyError, TypeError, ValueError."""
    return GpuRecording(
        devices=_names(fields["devices"], DEVICES_MAX),
        signals=_names(fields["signals"], SIGNALS_MAX),
        states=_names(fields["states"], SIGNALS_MAX),
        boottime_ns=_count(fields["boottime_ns"]),
        offsets_ns=array("q"),
        values=array("f"),
        host=_text(fields["host"]),
        boot_id=_text(fields["boot_id"]),
        reason=_text(fields["reason"]),
        wall_time_ns=_count(fields["wall_time_ns"]),
        simulated=fields["simulated"] is True,
        header_seconds=float(fields["seconds"]),
        finding_ns=_count(fields.get("finding_ns", 0)),
    )


def _names(names: Any, count_max: int) -> tuple[str, ...]:
    if (
        not isinstance(names, list)
        or len(names) > count_max
        or len({*map(str, names)}) < len(names)
    ):
        raise RecordingError(
            f"a list of names is invalid, names one twice, or has more than {count_max}"
        )
    return tuple(map(_text, names))


def _text(text: Any) -> str:
    if not isinstance(text, str) or len(text) > TEXT_CHARACTERS_MAX:
        raise RecordingError(
            f"a text is invalid, or has more than {TEXT_CHARACTERS_MAX} characters"
        )
    return text


def _count(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise RecordingError(f"{str(number)[:40]} is not a time in ns")
    return number


def _check_shape(devices: int, signals: int, samples: Any, values: int) -> None:
    if type(samples) is not int or not 0 <= samples <= SAMPLES_MAX:
        raise RecordingError(f"{str(samples)[:20]} samples, expected 0 to {SAMPLES_MAX}")
    if devices > DEVICES_MAX or signals > SIGNALS_MAX or values != devices * signals * samples:
        raise RecordingError(
            f"{devices} devices, {signals} signals, {samples} samples, {values} values"
        )
    if _TIME_BYTES * samples + _VALUE_BYTES * values > SAMPLE_BYTES_MAX:
        raise RecordingError(f"more than {SAMPLE_BYTES_MAX} bytes of samples")


def _inflate(body: bytes, size: int) -> bytes:
    """Return exactly *size* bytes; a larger body does not use more memory."""
    inflater = zlib.decompressobj()
    try:
        samples = inflater.decompress(body, size + 1)
    except zlib.error as error:
        raise RecordingError(f"its samples cannot be decompressed: {error}") from error
    if len(samples) != size or not inflater.eof:
        raise RecordingError(f"its samples are not the {size} bytes that its header names")
    return samples


def _checksum(header: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(header))


def first_since(times_ns: Sequence[int], since_ns: float) -> int:
    """Return the index of the first of *times_ns*, ascending, at or after *since_ns*."""
    return bisect_left(times_ns, since_ns)
