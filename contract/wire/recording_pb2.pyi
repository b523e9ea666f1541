from gangline.contract.wire import telemetry_pb2 as _telemetry_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordHostRequest(_message.Message):
    __slots__ = ("host", "seconds", "name", "list")
    HOST_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    host: str
    seconds: int
    name: str
    list: bool
    def __init__(self, host: _Optional[str] = ..., seconds: _Optional[int] = ..., name: _Optional[str] = ..., list: bool = ...) -> None: ...

class RecordHostResponse(_message.Message):
    __slots__ = ("data", "total_bytes", "stored")
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    total_bytes: int
    stored: _containers.RepeatedCompositeFieldContainer[_telemetry_pb2.StoredRecording]
    def __init__(self, data: _Optional[bytes] = ..., total_bytes: _Optional[int] = ..., stored: _Optional[_Iterable[_Union[_telemetry_pb2.StoredRecording, _Mapping]]] = ...) -> None: ...
