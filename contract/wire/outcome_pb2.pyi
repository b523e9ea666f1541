import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Outcome(_message.Message):
    __slots__ = ("outcome_id", "advisory", "workload", "nodes", "start_time", "end_time", "interrupted", "blamed_node", "end_reason", "advice_followed", "lost_gpu_hours", "decision_id", "option", "throughput", "queue_time")
    OUTCOME_ID_FIELD_NUMBER: _ClassVar[int]
    ADVISORY_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTED_FIELD_NUMBER: _ClassVar[int]
    BLAMED_NODE_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FOLLOWED_FIELD_NUMBER: _ClassVar[int]
    LOST_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    OPTION_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIME_FIELD_NUMBER: _ClassVar[int]
    outcome_id: str
    advisory: str
    workload: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    interrupted: bool
    blamed_node: str
    end_reason: str
    advice_followed: bool
    lost_gpu_hours: float
    decision_id: str
    option: int
    throughput: float
    queue_time: _duration_pb2.Duration
    def __init__(self, outcome_id: _Optional[str] = ..., advisory: _Optional[str] = ..., workload: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., interrupted: bool = ..., blamed_node: _Optional[str] = ..., end_reason: _Optional[str] = ..., advice_followed: bool = ..., lost_gpu_hours: _Optional[float] = ..., decision_id: _Optional[str] = ..., option: _Optional[int] = ..., throughput: _Optional[float] = ..., queue_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReportOutcomesRequest(_message.Message):
    __slots__ = ("outcomes", "request_id", "validate_only")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    request_id: str
    validate_only: bool
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class ReportOutcomesResponse(_message.Message):
    __slots__ = ("accepted_count", "known_count")
    ACCEPTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_COUNT_FIELD_NUMBER: _ClassVar[int]
    accepted_count: int
    known_count: int
    def __init__(self, accepted_count: _Optional[int] = ..., known_count: _Optional[int] = ...) -> None: ...
