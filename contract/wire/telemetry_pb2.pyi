from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterNodeRequest(_message.Message):
    __slots__ = ("protocol_version", "node", "run_id", "boot_id", "agent_version", "signals", "devices", "labels", "simulated", "boottime_ns", "wall_time_ns", "recording_seconds_max")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    RECORDING_SECONDS_MAX_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    node: str
    run_id: bytes
    boot_id: bytes
    agent_version: str
    signals: _containers.RepeatedCompositeFieldContainer[SignalDefinition]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    labels: _containers.ScalarMap[str, str]
    simulated: bool
    boottime_ns: int
    wall_time_ns: int
    recording_seconds_max: int
    def __init__(self, protocol_version: _Optional[int] = ..., node: _Optional[str] = ..., run_id: _Optional[bytes] = ..., boot_id: _Optional[bytes] = ..., agent_version: _Optional[str] = ..., signals: _Optional[_Iterable[_Union[SignalDefinition, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., simulated: bool = ..., boottime_ns: _Optional[int] = ..., wall_time_ns: _Optional[int] = ..., recording_seconds_max: _Optional[int] = ...) -> None: ...

class SignalDefinition(_message.Message):
    __slots__ = ("signal_id", "name", "kind", "width_bits", "table")
    SIGNAL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WIDTH_BITS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    signal_id: int
    name: str
    kind: str
    width_bits: int
    table: str
    def __init__(self, signal_id: _Optional[int] = ..., name: _Optional[str] = ..., kind: _Optional[str] = ..., width_bits: _Optional[int] = ..., table: _Optional[str] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind", "key", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RegisterNodeResponse(_message.Message):
    __slots__ = ("node", "node_index", "session", "credit_frames", "permit", "reconnect_seconds", "backlog_frames", "late_frames_max", "stream_context_bytes")
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FRAMES_FIELD_NUMBER: _ClassVar[int]
    PERMIT_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FRAMES_FIELD_NUMBER: _ClassVar[int]
    LATE_FRAMES_MAX_FIELD_NUMBER: _ClassVar[int]
    STREAM_CONTEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    node: str
    node_index: int
    session: str
    credit_frames: int
    permit: Permit
    reconnect_seconds: int
    backlog_frames: int
    late_frames_max: int
    stream_context_bytes: int
    def __init__(self, node: _Optional[str] = ..., node_index: _Optional[int] = ..., session: _Optional[str] = ..., credit_frames: _Optional[int] = ..., permit: _Optional[_Union[Permit, _Mapping]] = ..., reconnect_seconds: _Optional[int] = ..., backlog_frames: _Optional[int] = ..., late_frames_max: _Optional[int] = ..., stream_context_bytes: _Optional[int] = ...) -> None: ...

class Permit(_message.Message):
    __slots__ = ("seconds", "reason")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    reason: str
    def __init__(self, seconds: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class TelemetryBatch(_message.Message):
    __slots__ = ("sequence", "frame", "backlog", "differences", "late")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    frame: bytes
    backlog: bool
    differences: bytes
    late: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, sequence: _Optional[int] = ..., frame: _Optional[bytes] = ..., backlog: bool = ..., differences: _Optional[bytes] = ..., late: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SequenceRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class RefusedFrame(_message.Message):
    __slots__ = ("sequence", "reason")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    reason: str
    def __init__(self, sequence: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class IngestAck(_message.Message):
    __slots__ = ("durable", "refused", "credit_frames", "permit", "reconnect_seconds", "backlog_frames", "verdict", "recordings")
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FRAMES_FIELD_NUMBER: _ClassVar[int]
    PERMIT_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FRAMES_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    RECORDINGS_FIELD_NUMBER: _ClassVar[int]
    durable: _containers.RepeatedCompositeFieldContainer[SequenceRange]
    refused: _containers.RepeatedCompositeFieldContainer[RefusedFrame]
    credit_frames: int
    permit: Permit
    reconnect_seconds: int
    backlog_frames: int
    verdict: HostVerdict
    recordings: _containers.RepeatedCompositeFieldContainer[RecordingRequest]
    def __init__(self, durable: _Optional[_Iterable[_Union[SequenceRange, _Mapping]]] = ..., refused: _Optional[_Iterable[_Union[RefusedFrame, _Mapping]]] = ..., credit_frames: _Optional[int] = ..., permit: _Optional[_Union[Permit, _Mapping]] = ..., reconnect_seconds: _Optional[int] = ..., backlog_frames: _Optional[int] = ..., verdict: _Optional[_Union[HostVerdict, _Mapping]] = ..., recordings: _Optional[_Iterable[_Union[RecordingRequest, _Mapping]]] = ...) -> None: ...

class RecordingRequest(_message.Message):
    __slots__ = ("id", "seconds", "name", "list")
    ID_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    id: str
    seconds: int
    name: str
    list: bool
    def __init__(self, id: _Optional[str] = ..., seconds: _Optional[int] = ..., name: _Optional[str] = ..., list: bool = ...) -> None: ...

class StoredRecording(_message.Message):
    __slots__ = ("name", "wall_time_ns", "seconds", "devices", "bytes", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    wall_time_ns: int
    seconds: float
    devices: int
    bytes: int
    reason: str
    def __init__(self, name: _Optional[str] = ..., wall_time_ns: _Optional[int] = ..., seconds: _Optional[float] = ..., devices: _Optional[int] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class UploadRecordingRequest(_message.Message):
    __slots__ = ("id", "offset", "total_bytes", "data", "error", "stored")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    id: str
    offset: int
    total_bytes: int
    data: bytes
    error: str
    stored: _containers.RepeatedCompositeFieldContainer[StoredRecording]
    def __init__(self, id: _Optional[str] = ..., offset: _Optional[int] = ..., total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ..., error: _Optional[str] = ..., stored: _Optional[_Iterable[_Union[StoredRecording, _Mapping]]] = ...) -> None: ...

class UploadRecordingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HostVerdict(_message.Message):
    __slots__ = ("state", "reason")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class HealthEvent(_message.Message):
    __slots__ = ("event_id", "device_kind", "device", "name", "code", "message", "boottime_ns", "wall_time_ns", "revision", "count", "last_boottime_ns", "forms", "forms_count", "process_id", "process_name", "attributes", "boot_id")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BOOTTIME_NS_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_BOOTTIME_NS_FIELD_NUMBER: _ClassVar[int]
    FORMS_FIELD_NUMBER: _ClassVar[int]
    FORMS_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_NAME_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    event_id: str
    device_kind: str
    device: str
    name: str
    code: int
    message: str
    boottime_ns: int
    wall_time_ns: int
    revision: int
    count: int
    last_boottime_ns: int
    forms: _containers.RepeatedScalarFieldContainer[str]
    forms_count: int
    process_id: int
    process_name: str
    attributes: _containers.ScalarMap[str, str]
    boot_id: bytes
    def __init__(self, event_id: _Optional[str] = ..., device_kind: _Optional[str] = ..., device: _Optional[str] = ..., name: _Optional[str] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., boottime_ns: _Optional[int] = ..., wall_time_ns: _Optional[int] = ..., revision: _Optional[int] = ..., count: _Optional[int] = ..., last_boottime_ns: _Optional[int] = ..., forms: _Optional[_Iterable[str]] = ..., forms_count: _Optional[int] = ..., process_id: _Optional[int] = ..., process_name: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., boot_id: _Optional[bytes] = ...) -> None: ...

class ReportEventsRequest(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[HealthEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[HealthEvent, _Mapping]]] = ...) -> None: ...

class ReportEventsResponse(_message.Message):
    __slots__ = ("accepted", "duplicate_event_ids")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_EVENT_IDS_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    duplicate_event_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, accepted: _Optional[int] = ..., duplicate_event_ids: _Optional[_Iterable[str]] = ...) -> None: ...
