from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetPermitRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GrantPermitRequest(_message.Message):
    __slots__ = ("seconds", "reason", "request_id", "validate_only")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    reason: str
    request_id: str
    validate_only: bool
    def __init__(self, seconds: _Optional[int] = ..., reason: _Optional[str] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class RevokePermitRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class FleetPermit(_message.Message):
    __slots__ = ("seconds_left", "reason", "withheld_reason", "granted_wall_time_ns")
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_REASON_FIELD_NUMBER: _ClassVar[int]
    GRANTED_WALL_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    seconds_left: int
    reason: str
    withheld_reason: str
    granted_wall_time_ns: int
    def __init__(self, seconds_left: _Optional[int] = ..., reason: _Optional[str] = ..., withheld_reason: _Optional[str] = ..., granted_wall_time_ns: _Optional[int] = ...) -> None: ...
