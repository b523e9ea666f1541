import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueryFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUERY_FORMAT_UNSPECIFIED: _ClassVar[QueryFormat]
    ARROW_STREAM: _ClassVar[QueryFormat]
    ARROW_STREAM_ZSTD: _ClassVar[QueryFormat]
QUERY_FORMAT_UNSPECIFIED: QueryFormat
ARROW_STREAM: QueryFormat
ARROW_STREAM_ZSTD: QueryFormat

class QueryRequest(_message.Message):
    __slots__ = ("sql", "row_limit", "timeout", "format")
    SQL_FIELD_NUMBER: _ClassVar[int]
    ROW_LIMIT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    sql: str
    row_limit: int
    timeout: _duration_pb2.Duration
    format: QueryFormat
    def __init__(self, sql: _Optional[str] = ..., row_limit: _Optional[int] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., format: _Optional[_Union[QueryFormat, str]] = ...) -> None: ...

class QueryResponse(_message.Message):
    __slots__ = ("arrow_stream", "summary")
    ARROW_STREAM_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    arrow_stream: bytes
    summary: QuerySummary
    def __init__(self, arrow_stream: _Optional[bytes] = ..., summary: _Optional[_Union[QuerySummary, _Mapping]] = ...) -> None: ...

class QuerySummary(_message.Message):
    __slots__ = ("row_count", "byte_count", "elapsed", "truncated", "truncated_reason", "snapshot_time", "history_missing_reason")
    ROW_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_REASON_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TIME_FIELD_NUMBER: _ClassVar[int]
    HISTORY_MISSING_REASON_FIELD_NUMBER: _ClassVar[int]
    row_count: int
    byte_count: int
    elapsed: _duration_pb2.Duration
    truncated: bool
    truncated_reason: str
    snapshot_time: _timestamp_pb2.Timestamp
    history_missing_reason: str
    def __init__(self, row_count: _Optional[int] = ..., byte_count: _Optional[int] = ..., elapsed: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., truncated: bool = ..., truncated_reason: _Optional[str] = ..., snapshot_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., history_missing_reason: _Optional[str] = ...) -> None: ...
