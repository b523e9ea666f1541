import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecisionKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_KIND_UNSPECIFIED: _ClassVar[DecisionKind]
    DECISION_PLACEMENT: _ClassVar[DecisionKind]
    DECISION_EVALUATION: _ClassVar[DecisionKind]
    DECISION_RESIZE: _ClassVar[DecisionKind]
    DECISION_RECOVERY: _ClassVar[DecisionKind]
DECISION_KIND_UNSPECIFIED: DecisionKind
DECISION_PLACEMENT: DecisionKind
DECISION_EVALUATION: DecisionKind
DECISION_RESIZE: DecisionKind
DECISION_RECOVERY: DecisionKind

class GetDecisionRequest(_message.Message):
    __slots__ = ("decision_id", "without_inputs")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_INPUTS_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    without_inputs: bool
    def __init__(self, decision_id: _Optional[str] = ..., without_inputs: bool = ...) -> None: ...

class DecisionInput(_message.Message):
    __slots__ = ("digest", "data")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digest: str
    data: bytes
    def __init__(self, digest: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class DecisionChoice(_message.Message):
    __slots__ = ("option", "reservation", "owner", "time", "expire_time", "nodes")
    OPTION_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    option: int
    reservation: str
    owner: str
    time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    nodes: int
    def __init__(self, option: _Optional[int] = ..., reservation: _Optional[str] = ..., owner: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., nodes: _Optional[int] = ...) -> None: ...

class StoredDecision(_message.Message):
    __slots__ = ("decision_id", "kind", "time", "caller", "score_version", "dictionary_version", "gangline_version", "solve_time", "request", "answer", "inputs", "not_replayable", "choices", "hosts")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    GANGLINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOLVE_TIME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NOT_REPLAYABLE_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    kind: DecisionKind
    time: _timestamp_pb2.Timestamp
    caller: str
    score_version: int
    dictionary_version: int
    gangline_version: str
    solve_time: _duration_pb2.Duration
    request: bytes
    answer: bytes
    inputs: _containers.RepeatedCompositeFieldContainer[DecisionInput]
    not_replayable: str
    choices: _containers.RepeatedCompositeFieldContainer[DecisionChoice]
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, decision_id: _Optional[str] = ..., kind: _Optional[_Union[DecisionKind, str]] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., caller: _Optional[str] = ..., score_version: _Optional[int] = ..., dictionary_version: _Optional[int] = ..., gangline_version: _Optional[str] = ..., solve_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., request: _Optional[bytes] = ..., answer: _Optional[bytes] = ..., inputs: _Optional[_Iterable[_Union[DecisionInput, _Mapping]]] = ..., not_replayable: _Optional[str] = ..., choices: _Optional[_Iterable[_Union[DecisionChoice, _Mapping]]] = ..., hosts: _Optional[_Iterable[str]] = ...) -> None: ...
