from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HoldStoreRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeldStore(_message.Message):
    __slots__ = ("journal", "file", "answers")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    journal: bytes
    file: HeldFile
    answers: bytes
    def __init__(self, journal: _Optional[bytes] = ..., file: _Optional[_Union[HeldFile, _Mapping]] = ..., answers: _Optional[bytes] = ...) -> None: ...

class HeldFile(_message.Message):
    __slots__ = ("path", "inode", "iteration", "wal_bytes", "wall_time_ns", "stood_still_microseconds")
    PATH_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    WAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    STOOD_STILL_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    path: str
    inode: int
    iteration: int
    wal_bytes: int
    wall_time_ns: int
    stood_still_microseconds: int
    def __init__(self, path: _Optional[str] = ..., inode: _Optional[int] = ..., iteration: _Optional[int] = ..., wal_bytes: _Optional[int] = ..., wall_time_ns: _Optional[int] = ..., stood_still_microseconds: _Optional[int] = ...) -> None: ...

class CompactStoreRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompactedStore(_message.Message):
    __slots__ = ("rows", "rows_total", "done", "bytes_before", "bytes_after", "stood_still_microseconds")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    STOOD_STILL_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    rows_total: int
    done: bool
    bytes_before: int
    bytes_after: int
    stood_still_microseconds: int
    def __init__(self, rows: _Optional[int] = ..., rows_total: _Optional[int] = ..., done: bool = ..., bytes_before: _Optional[int] = ..., bytes_after: _Optional[int] = ..., stood_still_microseconds: _Optional[int] = ...) -> None: ...

class TrainHazardRequest(_message.Message):
    __slots__ = ("simulated",)
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    simulated: bool
    def __init__(self, simulated: bool = ...) -> None: ...

class TrainedHazard(_message.Message):
    __slots__ = ("accepted", "message", "model")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    model: str
    def __init__(self, accepted: bool = ..., message: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class TrainInterferenceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrainedInterference(_message.Message):
    __slots__ = ("accepted", "message", "pairs", "workloads", "error_ratio", "physics_error_ratio")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    ERROR_RATIO_FIELD_NUMBER: _ClassVar[int]
    PHYSICS_ERROR_RATIO_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    message: str
    pairs: int
    workloads: int
    error_ratio: float
    physics_error_ratio: float
    def __init__(self, accepted: bool = ..., message: _Optional[str] = ..., pairs: _Optional[int] = ..., workloads: _Optional[int] = ..., error_ratio: _Optional[float] = ..., physics_error_ratio: _Optional[float] = ...) -> None: ...
