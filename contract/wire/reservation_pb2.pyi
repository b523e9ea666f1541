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

class NodeChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_CHANGE_UNSPECIFIED: _ClassVar[NodeChange]
    NODE_RESERVED: _ClassVar[NodeChange]
    NODE_UNHEALTHY: _ClassVar[NodeChange]
NODE_CHANGE_UNSPECIFIED: NodeChange
NODE_RESERVED: NodeChange
NODE_UNHEALTHY: NodeChange

class Reservation(_message.Message):
    __slots__ = ("name", "owner", "node_index", "dictionary_version", "fencing_token", "expire_time", "workload", "decision_id", "option")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    OPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    node_index: _containers.RepeatedScalarFieldContainer[int]
    dictionary_version: int
    fencing_token: int
    expire_time: _timestamp_pb2.Timestamp
    workload: str
    decision_id: str
    option: int
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., node_index: _Optional[_Iterable[int]] = ..., dictionary_version: _Optional[int] = ..., fencing_token: _Optional[int] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., workload: _Optional[str] = ..., decision_id: _Optional[str] = ..., option: _Optional[int] = ...) -> None: ...

class ChangedNode(_message.Message):
    __slots__ = ("node_index", "change", "message")
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    node_index: int
    change: NodeChange
    message: str
    def __init__(self, node_index: _Optional[int] = ..., change: _Optional[_Union[NodeChange, str]] = ..., message: _Optional[str] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("owner", "node_index", "dictionary_version", "ttl", "workload", "decision_id", "request_id", "validate_only", "option")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    OPTION_FIELD_NUMBER: _ClassVar[int]
    owner: str
    node_index: _containers.RepeatedScalarFieldContainer[int]
    dictionary_version: int
    ttl: _duration_pb2.Duration
    workload: str
    decision_id: str
    request_id: str
    validate_only: bool
    option: int
    def __init__(self, owner: _Optional[str] = ..., node_index: _Optional[_Iterable[int]] = ..., dictionary_version: _Optional[int] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., workload: _Optional[str] = ..., decision_id: _Optional[str] = ..., request_id: _Optional[str] = ..., validate_only: bool = ..., option: _Optional[int] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("reservation", "changes", "changed_count", "score_version")
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CHANGED_COUNT_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    reservation: Reservation
    changes: _containers.RepeatedCompositeFieldContainer[ChangedNode]
    changed_count: int
    score_version: int
    def __init__(self, reservation: _Optional[_Union[Reservation, _Mapping]] = ..., changes: _Optional[_Iterable[_Union[ChangedNode, _Mapping]]] = ..., changed_count: _Optional[int] = ..., score_version: _Optional[int] = ...) -> None: ...

class RenewReservationRequest(_message.Message):
    __slots__ = ("name", "owner", "fencing_token", "ttl")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    fencing_token: int
    ttl: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., fencing_token: _Optional[int] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReleaseReservationRequest(_message.Message):
    __slots__ = ("name", "owner", "fencing_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: str
    fencing_token: int
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[str] = ..., fencing_token: _Optional[int] = ...) -> None: ...

class ReleaseReservationResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class ListReservationsRequest(_message.Message):
    __slots__ = ("owner",)
    OWNER_FIELD_NUMBER: _ClassVar[int]
    owner: str
    def __init__(self, owner: _Optional[str] = ...) -> None: ...

class ListReservationsResponse(_message.Message):
    __slots__ = ("reservations",)
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    reservations: _containers.RepeatedCompositeFieldContainer[Reservation]
    def __init__(self, reservations: _Optional[_Iterable[_Union[Reservation, _Mapping]]] = ...) -> None: ...
