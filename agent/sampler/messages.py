"""Messages between sampler and daemon: lengths, numbers and cells, no pickled objects.

Either side may be killed in the middle of a message, so each message starts with its length, and
each length has a limit. A table's rows and columns are sent only when they change; otherwise only
cells and valid bytes are sent.

Also the supervisor's actions, the groups of collectors and the shared recording area.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ...contract.block import Block
from ...contract.wire import telemetry_pb2
from ...ext import rounds
from ..collector import CollectOutcome, CollectResult

CodecError = rounds.CodecError
#: The usual value of SampleBatch.slow_devices.
NO_DEVICES = rounds.NOBODY
MESSAGE_BYTES_MAX = rounds.MESSAGE_BYTES_MAX
#: Bytes of a device's name.
NAME_BYTES_MAX = 1024
#: Bytes of the reason for a new inventory.
REASON_BYTES_MAX = 4096

_HEAD = struct.Struct("<IB")
_SHAPE = struct.Struct("<BIH")
_TASK = struct.Struct("<QHH")
_LENGTH = struct.Struct("<H")
# Kind 1 is rounds.ROUND_KIND.
_EVENT_KIND, _INVENTORY_KIND, _TASK_KIND, _WARM_KIND, _END_KIND = range(2, 7)
_RECORD_KIND, _RECORDED_KIND = 7, 8
_RECORD = struct.Struct("<QI")

#: Five minutes of 38 GPUs at 10 Hz. More GPUs have less time.
AREA_BYTES = 4 << 20


class TimedResult(NamedTuple):
    """The result of a turn of a collector, and its start."""

    began_ns: int
    result: CollectResult


class SampleBatch(NamedTuple):
    """The turns of a sampler at a grid point, and its process's cost since the start."""

    grid_ns: int
    cpu_seconds: float
    memory_bytes: int  # its share (PSS); 0: unknown
    dropped_messages: int  # messages lost to a full socket since the start
    results: Sequence[TimedResult] = ()
    slow_devices: frozenset[str] = NO_DEVICES  # devices that would delay the others


@dataclass(frozen=True, slots=True)
class InventoryRequest:
    """A collector's request for a new inventory."""

    reason: str


@dataclass(frozen=True, slots=True)
class SamplerTask:
    """A sampler's task. It replaces the previous task."""

    group: str
    #: Devices that must not be called, by the names passed to `ext.place.enter`.
    excluded_devices: frozenset[str] = frozenset()
    #: Collectors that take no turn.
    excluded_collectors: frozenset[str] = frozenset()
    #: Sample only this device, or this collector, completely every `period_ns`.
    only_device: str = ""
    only_collector: str = ""
    period_ns: int = 0


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Prepare for a task without entering a device."""


@dataclass(frozen=True, slots=True)
class End:
    """Release everything and exit."""


@dataclass(frozen=True, slots=True)
class RecordCommand:
    """Copy the most recent seconds of samples into the recording area."""

    number: int  # identifies this command
    seconds: int


@dataclass(frozen=True, slots=True)
class SamplesRecorded:
    """Bytes in the recording area; 0: none, and *message* says why."""

    number: int
    size: int
    message: str = ""


Command = SamplerTask | WarmUp | End | RecordCommand


def encode_command(command: Command) -> bytes:
    if isinstance(command, SamplerTask):
        body = _TASK.pack(
            command.period_ns,
            *(len(names) for names in (command.excluded_devices, command.excluded_collectors)),
        )
        only = (command.only_device, command.only_collector, command.group)
        body += b"".join(
            map(
                _encode_name,
                [*only, *sorted(command.excluded_devices), *sorted(command.excluded_collectors)],
            )
        )
        return _message(_TASK_KIND, body)
    if isinstance(command, RecordCommand):
        return _message(_RECORD_KIND, _RECORD.pack(command.number, command.seconds))
    return _message(_WARM_KIND if isinstance(command, WarmUp) else _END_KIND, b"")


def decode_command(kind: int, body: bytes) -> Command:
    """Return the command in a message. Raises CodecError."""
    if kind == _TASK_KIND:
        return _decode_task(_BodyReader(body))
    if kind == _RECORD_KIND and len(body) == _RECORD.size:
        return RecordCommand(*_RECORD.unpack(body))
    if kind in (_WARM_KIND, _END_KIND) and not body:
        return WarmUp() if kind == _WARM_KIND else End()
    raise CodecError(f"expected an order, got kind {kind} with {len(body)} bytes")


def _decode_task(reader: _BodyReader) -> SamplerTask:
    period_ns, device_count, collector_count = reader.unpack(_TASK)
    only_device, only_collector, group = (reader.name() for _ in range(3))
    task = SamplerTask(
        group,
        frozenset(reader.name() for _ in range(device_count)),
        frozenset(reader.name() for _ in range(collector_count)),
        only_device,
        only_collector,
        period_ns,
    )
    reader.end()
    return task


def encode_event(event: telemetry_pb2.HealthEvent) -> bytes:
    return _message(_EVENT_KIND, event.SerializeToString())


def encode_inventory(reason: str) -> bytes:
    """Return the message of a collector's request for a new inventory."""
    return _message(_INVENTORY_KIND, reason.encode()[:REASON_BYTES_MAX])


def encode_recorded(recorded: SamplesRecorded) -> bytes:
    body = _RECORD.pack(recorded.number, recorded.size)
    return _message(_RECORDED_KIND, body + recorded.message.encode()[:REASON_BYTES_MAX])


def _message(kind: int, body: bytes) -> bytes:
    if len(body) > MESSAGE_BYTES_MAX:
        raise CodecError(f"a message of {len(body)} bytes; at most {MESSAGE_BYTES_MAX}")
    return _HEAD.pack(len(body), kind) + body


def _encode_name(name: str) -> bytes:
    data = name.encode("utf-8", "surrogateescape")[:NAME_BYTES_MAX]
    return _LENGTH.pack(len(data)) + data


class SampleBatchEncoder(rounds.Writer):
    """A sampler's side: remembers the shapes that the daemon knows. A block's shape is constant."""

    def __init__(self, collectors: Sequence[str]) -> None:
        """*collectors*: the same names in the same order as the decoder's."""
        super().__init__(collectors, _shape_bytes, _names_bytes)


def _shape_bytes(block: Block) -> bytes:
    table, columns = block.table.encode(), len(block.signal_ids)
    ids = struct.pack(f"<{columns}H", *block.signal_ids)
    head = _SHAPE.pack(len(table), block.rows, columns)
    return head + table + ids + b"".join(map(_encode_name, block.devices))


def _names_bytes(names: frozenset[str]) -> bytes:
    return b"".join(map(_encode_name, sorted(names)))


class SampleBatchDecoder(rounds.Reader):
    """The daemon's side: bytes in, messages out. Each round refills the same blocks."""

    def __init__(self, collectors: Sequence[str]) -> None:
        super().__init__(
            collectors,
            tuple(CollectOutcome),
            (SampleBatch, TimedResult, CollectResult),
            _decode_block,
            _decode_names,
            _decode_other,
        )


def _decode_other(
    kind: int, body: bytes
) -> InventoryRequest | SamplesRecorded | telemetry_pb2.HealthEvent:
    """Return a message that is not a round. Raises CodecError."""
    try:
        if kind == _INVENTORY_KIND:
            return InventoryRequest(body.decode())
        if kind == _RECORDED_KIND:
            number, size = _RECORD.unpack_from(body)
            return SamplesRecorded(number, size, body[_RECORD.size :].decode(errors="replace"))
        if kind == _EVENT_KIND:
            return telemetry_pb2.HealthEvent.FromString(body)
    except Exception as error:  # protobuf's implementations raise different DecodeErrors
        raise CodecError(f"kind {kind}, {len(body)} bytes: {error}") from error
    raise CodecError(f"expected a round, an event or a wish, got kind {kind}")


def _decode_names(data: bytes) -> frozenset[str]:
    return frozenset(_BodyReader(data).names())


def _decode_block(shape: bytes, cell_bytes: int) -> Block:
    """Return an empty block of *shape*; its cells and valid bytes must fit into *cell_bytes*."""
    reader = _BodyReader(shape)
    name_bytes, rows, columns = reader.unpack(_SHAPE)
    table = reader.utf8(name_bytes)
    ids = reader.unpack(struct.Struct(f"<{columns}H"))
    if not columns or rows * 2 > reader.remaining or rows * columns * 9 > cell_bytes:
        raise CodecError(f"table {table}: {rows} rows of {columns} signals in {cell_bytes} bytes")
    devices = list(reader.names())
    if len(devices) != rows:
        raise CodecError(f"table {table}: {rows} rows, {len(devices)} names")
    return Block(table, devices, ids)


class MessageBuffer:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> tuple[int, bytes] | None:
        """Return (kind, body), or None while the next message is incomplete. Raises CodecError."""
        if len(self._data) < _HEAD.size:
            return None
        length, kind = _HEAD.unpack_from(self._data)
        if length > MESSAGE_BYTES_MAX:
            raise CodecError(f"a message of {length} bytes; at most {MESSAGE_BYTES_MAX}")
        end = _HEAD.size + length
        if len(self._data) < end:
            return None
        body = bytes(self._data[_HEAD.size : end])
        del self._data[:end]
        return kind, body

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        while (message := self.next()) is not None:
            yield message


class _BodyReader:
    """Reads a body from start to end, and never past it."""

    __slots__ = ("at", "body")

    def __init__(self, body: bytes) -> None:
        self.body, self.at = body, 0

    @property
    def remaining(self) -> int:
        return len(self.body) - self.at

    def take(self, count: int) -> bytes:
        begin, end = self.at, self.at + count
        if end > len(self.body):
            raise CodecError(f"{count} bytes expected, {self.remaining} are left")
        self.at = end
        return self.body[begin:end]

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def utf8(self, count: int) -> str:
        return self.take(count).decode("utf-8", "replace")

    def name(self) -> str:
        (length,) = self.unpack(_LENGTH)
        if length > NAME_BYTES_MAX:
            raise CodecError(f"a name of {length} bytes; at most {NAME_BYTES_MAX}")
        return self.take(length).decode("utf-8", "surrogateescape")

    def names(self) -> Iterator[str]:
        while self.remaining:
            yield self.name()

    def end(self) -> None:
        if self.remaining:
            raise CodecError(f"{self.remaining} bytes too many")


ReportKind = Literal["hung", "slow", "answers", "driver_hung", "driver_answers"]


@dataclass(frozen=True, slots=True)
class Fork:
    """Fork a sampler; *serial* identifies it in later actions."""

    serial: int


@dataclass(frozen=True, slots=True)
class WarmSampler:
    """Warm up a standby."""

    serial: int


@dataclass(frozen=True, slots=True)
class AssignTask:
    """Assign a task to a sampler."""

    serial: int
    task: SamplerTask


@dataclass(frozen=True, slots=True)
class EndSampler:
    """End a sampler after its turn."""

    serial: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Send SIGKILL to a sampler; a hang in a driver may outlast it."""

    serial: int


@dataclass(frozen=True, slots=True)
class ReportEvent:
    """Report a state change to the operator."""

    kind: ReportKind
    group: str
    device: str
    collector: str
    call: str
    seconds: float
    message: str


Action = Fork | WarmSampler | AssignTask | EndSampler | Kill | ReportEvent


# The recording area carries a recording (1 MB) from sampler to daemon and keeps the socket free for
# readings. The daemon and all processes forked from it share the memory. It has no pages before it
# is written, and none after it is cleared. An abandoned sampler may write into it late, so
# `contract.recording` has a checksum.


class RecordingArea:
    """Holds one recording at a time. No method blocks."""

    def __init__(self, size: int = AREA_BYTES) -> None:
        self.size = size
        self._memory = mmap.mmap(-1, size)

    def write(self, data: bytes) -> None:
        """Write *data* at the beginning. Raises ValueError if it is longer than the area."""
        if len(data) > self.size:
            raise ValueError(f"{len(data)} bytes of samples, at most {self.size}")
        self._memory[: len(data)] = data

    def read(self, size: int) -> bytes:
        """Return the first *size* bytes, or the whole area if it is smaller."""
        return self._memory[: min(size, self.size)]

    def clear(self) -> None:
        """Free the memory's pages."""
        with suppress(OSError):
            self._memory.madvise(mmap.MADV_REMOVE)


#: The area of this process and its children.
RECORDING_AREA = RecordingArea()
