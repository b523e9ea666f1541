import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from gangline.contract.wire import score_pb2 as _score_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    AVOID: _ClassVar[Action]
    DRAIN_AFTER_JOB: _ClassVar[Action]
    DRAIN_AT_CHECKPOINT: _ClassVar[Action]
    EVICT_NOW: _ClassVar[Action]
    RESET_GPU: _ClassVar[Action]
    REBOOT: _ClassVar[Action]
    RETURN_TO_SERVICE: _ClassVar[Action]
    RUN_DIAGNOSTIC: _ClassVar[Action]
    CAP_POWER: _ClassVar[Action]
    DRAIN_P2P: _ClassVar[Action]
    DRAIN_AND_RESET: _ClassVar[Action]
    RECOVER_IMEX_DOMAIN: _ClassVar[Action]
    INSPECT: _ClassVar[Action]

class Basis(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BASIS_UNSPECIFIED: _ClassVar[Basis]
    STATISTICAL: _ClassVar[Basis]
    DETERMINISTIC: _ClassVar[Basis]
    DEAD_JOB: _ClassVar[Basis]
    VERIFIED: _ClassVar[Basis]
    SHARED_CAUSE: _ClassVar[Basis]

class AdvisoryState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADVISORY_STATE_UNSPECIFIED: _ClassVar[AdvisoryState]
    PROPOSED: _ClassVar[AdvisoryState]
    ACCEPTED: _ClassVar[AdvisoryState]
    DONE: _ClassVar[AdvisoryState]
    FAILED: _ClassVar[AdvisoryState]
    REJECTED: _ClassVar[AdvisoryState]
    DEFERRED: _ClassVar[AdvisoryState]
    EXPIRED: _ClassVar[AdvisoryState]
    WITHDRAWN: _ClassVar[AdvisoryState]
ACTION_UNSPECIFIED: Action
AVOID: Action
DRAIN_AFTER_JOB: Action
DRAIN_AT_CHECKPOINT: Action
EVICT_NOW: Action
RESET_GPU: Action
REBOOT: Action
RETURN_TO_SERVICE: Action
RUN_DIAGNOSTIC: Action
CAP_POWER: Action
DRAIN_P2P: Action
DRAIN_AND_RESET: Action
RECOVER_IMEX_DOMAIN: Action
INSPECT: Action
BASIS_UNSPECIFIED: Basis
STATISTICAL: Basis
DETERMINISTIC: Basis
DEAD_JOB: Basis
VERIFIED: Basis
SHARED_CAUSE: Basis
ADVISORY_STATE_UNSPECIFIED: AdvisoryState
PROPOSED: AdvisoryState
ACCEPTED: AdvisoryState
DONE: AdvisoryState
FAILED: AdvisoryState
REJECTED: AdvisoryState
DEFERRED: AdvisoryState
EXPIRED: AdvisoryState
WITHDRAWN: AdvisoryState

class Advisory(_message.Message):
    __slots__ = ("name", "subject", "nodes", "devices", "action", "then_action", "scope", "basis", "reason", "reason_text", "confidence", "hazard_per_hour", "cost_of_waiting_gpu_hours", "cost_of_acting_gpu_hours", "arithmetic", "act_by_time", "state", "state_text", "propose_time", "expire_time", "update_time", "etag", "owner", "lease_expire_time", "fencing_token", "checkpoint_interval", "workload", "count", "defer_until_time", "store")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    THEN_ACTION_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    HAZARD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    COST_OF_WAITING_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    COST_OF_ACTING_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    ACT_BY_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_TEXT_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DEFER_UNTIL_TIME_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    devices: _containers.RepeatedScalarFieldContainer[str]
    action: Action
    then_action: Action
    scope: str
    basis: Basis
    reason: _score_pb2.ReasonCode
    reason_text: str
    confidence: float
    hazard_per_hour: float
    cost_of_waiting_gpu_hours: float
    cost_of_acting_gpu_hours: float
    arithmetic: str
    act_by_time: _timestamp_pb2.Timestamp
    state: AdvisoryState
    state_text: str
    propose_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    etag: str
    owner: str
    lease_expire_time: _timestamp_pb2.Timestamp
    fencing_token: int
    checkpoint_interval: _duration_pb2.Duration
    workload: str
    count: int
    defer_until_time: _timestamp_pb2.Timestamp
    store: str
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., devices: _Optional[_Iterable[str]] = ..., action: _Optional[_Union[Action, str]] = ..., then_action: _Optional[_Union[Action, str]] = ..., scope: _Optional[str] = ..., basis: _Optional[_Union[Basis, str]] = ..., reason: _Optional[_Union[_score_pb2.ReasonCode, str]] = ..., reason_text: _Optional[str] = ..., confidence: _Optional[float] = ..., hazard_per_hour: _Optional[float] = ..., cost_of_waiting_gpu_hours: _Optional[float] = ..., cost_of_acting_gpu_hours: _Optional[float] = ..., arithmetic: _Optional[str] = ..., act_by_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[AdvisoryState, str]] = ..., state_text: _Optional[str] = ..., propose_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., etag: _Optional[str] = ..., owner: _Optional[str] = ..., lease_expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., fencing_token: _Optional[int] = ..., checkpoint_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., workload: _Optional[str] = ..., count: _Optional[int] = ..., defer_until_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., store: _Optional[str] = ...) -> None: ...

class WatchAdvisoriesRequest(_message.Message):
    __slots__ = ("resume_token",)
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    resume_token: str
    def __init__(self, resume_token: _Optional[str] = ...) -> None: ...

class AdvisoryEvent(_message.Message):
    __slots__ = ("resume_token", "advisory", "bookmark")
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ADVISORY_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    resume_token: str
    advisory: Advisory
    bookmark: _timestamp_pb2.Timestamp
    def __init__(self, resume_token: _Optional[str] = ..., advisory: _Optional[_Union[Advisory, _Mapping]] = ..., bookmark: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListAdvisoriesRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "show_ended", "node")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHOW_ENDED_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    show_ended: bool
    node: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., show_ended: bool = ..., node: _Optional[str] = ...) -> None: ...

class ListAdvisoriesResponse(_message.Message):
    __slots__ = ("advisories", "next_page_token", "withheld_reason", "unavailable_nodes", "unavailable_nodes_count", "held_back", "held_back_count", "out_by_advice", "out_by_advice_count")
    ADVISORIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_REASON_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_NODES_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_NODES_COUNT_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_COUNT_FIELD_NUMBER: _ClassVar[int]
    OUT_BY_ADVICE_FIELD_NUMBER: _ClassVar[int]
    OUT_BY_ADVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    advisories: _containers.RepeatedCompositeFieldContainer[Advisory]
    next_page_token: str
    withheld_reason: str
    unavailable_nodes: _containers.RepeatedCompositeFieldContainer[UnavailableNode]
    unavailable_nodes_count: int
    held_back: _containers.RepeatedCompositeFieldContainer[HeldBack]
    held_back_count: int
    out_by_advice: _containers.RepeatedCompositeFieldContainer[Advisory]
    out_by_advice_count: int
    def __init__(self, advisories: _Optional[_Iterable[_Union[Advisory, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., withheld_reason: _Optional[str] = ..., unavailable_nodes: _Optional[_Iterable[_Union[UnavailableNode, _Mapping]]] = ..., unavailable_nodes_count: _Optional[int] = ..., held_back: _Optional[_Iterable[_Union[HeldBack, _Mapping]]] = ..., held_back_count: _Optional[int] = ..., out_by_advice: _Optional[_Iterable[_Union[Advisory, _Mapping]]] = ..., out_by_advice_count: _Optional[int] = ...) -> None: ...

class HeldBack(_message.Message):
    __slots__ = ("node", "action", "reason_text", "held_back_text", "devices", "cost_of_waiting_gpu_hours", "cost_of_acting_gpu_hours")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_TEXT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    COST_OF_WAITING_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    COST_OF_ACTING_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    node: str
    action: Action
    reason_text: str
    held_back_text: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    cost_of_waiting_gpu_hours: float
    cost_of_acting_gpu_hours: float
    def __init__(self, node: _Optional[str] = ..., action: _Optional[_Union[Action, str]] = ..., reason_text: _Optional[str] = ..., held_back_text: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., cost_of_waiting_gpu_hours: _Optional[float] = ..., cost_of_acting_gpu_hours: _Optional[float] = ...) -> None: ...

class GetAdvisoryRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class EvaluateRuleRequest(_message.Message):
    __slots__ = ("rule", "days")
    RULE_FIELD_NUMBER: _ClassVar[int]
    DAYS_FIELD_NUMBER: _ClassVar[int]
    rule: str
    days: int
    def __init__(self, rule: _Optional[str] = ..., days: _Optional[int] = ...) -> None: ...

class EvaluateRuleResponse(_message.Message):
    __slots__ = ("episodes", "episodes_count", "advised_count", "held_back_count", "nodes_at_once_max", "followed_count", "acting_gpu_hours", "waiting_gpu_hours", "from_time")
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    EPISODES_COUNT_FIELD_NUMBER: _ClassVar[int]
    ADVISED_COUNT_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODES_AT_ONCE_MAX_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACTING_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    WAITING_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    FROM_TIME_FIELD_NUMBER: _ClassVar[int]
    episodes: _containers.RepeatedCompositeFieldContainer[RuleEpisode]
    episodes_count: int
    advised_count: int
    held_back_count: int
    nodes_at_once_max: int
    followed_count: int
    acting_gpu_hours: float
    waiting_gpu_hours: float
    from_time: _timestamp_pb2.Timestamp
    def __init__(self, episodes: _Optional[_Iterable[_Union[RuleEpisode, _Mapping]]] = ..., episodes_count: _Optional[int] = ..., advised_count: _Optional[int] = ..., held_back_count: _Optional[int] = ..., nodes_at_once_max: _Optional[int] = ..., followed_count: _Optional[int] = ..., acting_gpu_hours: _Optional[float] = ..., waiting_gpu_hours: _Optional[float] = ..., from_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class RuleEpisode(_message.Message):
    __slots__ = ("node", "start_time", "end_time", "action", "advised", "followed_by_fault", "message", "held_back_text")
    NODE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ADVISED_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_BY_FAULT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_TEXT_FIELD_NUMBER: _ClassVar[int]
    node: str
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    action: Action
    advised: bool
    followed_by_fault: bool
    message: str
    held_back_text: str
    def __init__(self, node: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., action: _Optional[_Union[Action, str]] = ..., advised: bool = ..., followed_by_fault: bool = ..., message: _Optional[str] = ..., held_back_text: _Optional[str] = ...) -> None: ...

class AckAdvisoryRequest(_message.Message):
    __slots__ = ("name", "etag", "new_state", "actor", "note", "defer_until_time", "request_id", "validate_only", "lease")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    NEW_STATE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    DEFER_UNTIL_TIME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    new_state: AdvisoryState
    actor: str
    note: str
    defer_until_time: _timestamp_pb2.Timestamp
    request_id: str
    validate_only: bool
    lease: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ..., new_state: _Optional[_Union[AdvisoryState, str]] = ..., actor: _Optional[str] = ..., note: _Optional[str] = ..., defer_until_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., request_id: _Optional[str] = ..., validate_only: bool = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Gang(_message.Message):
    __slots__ = ("workload", "nodes", "gpus_count", "checkpoint_interval", "ttl")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GPUS_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    workload: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    gpus_count: int
    checkpoint_interval: _duration_pb2.Duration
    ttl: _duration_pb2.Duration
    def __init__(self, workload: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., gpus_count: _Optional[int] = ..., checkpoint_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ReportGangsRequest(_message.Message):
    __slots__ = ("actor", "gangs", "ended_workloads", "request_id", "validate_only")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    GANGS_FIELD_NUMBER: _ClassVar[int]
    ENDED_WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    actor: str
    gangs: _containers.RepeatedCompositeFieldContainer[Gang]
    ended_workloads: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    validate_only: bool
    def __init__(self, actor: _Optional[str] = ..., gangs: _Optional[_Iterable[_Union[Gang, _Mapping]]] = ..., ended_workloads: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class ReportGangsResponse(_message.Message):
    __slots__ = ("gangs_count", "unknown_nodes")
    GANGS_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_NODES_FIELD_NUMBER: _ClassVar[int]
    gangs_count: int
    unknown_nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gangs_count: _Optional[int] = ..., unknown_nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class UnavailableNode(_message.Message):
    __slots__ = ("node", "reason", "ttl", "actor", "since_time", "expire_time", "new_work_only")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    NEW_WORK_ONLY_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    ttl: _duration_pb2.Duration
    actor: str
    since_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    new_work_only: bool
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., actor: _Optional[str] = ..., since_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., new_work_only: bool = ...) -> None: ...

class ReportUnavailableNodesRequest(_message.Message):
    __slots__ = ("actor", "nodes", "returned_nodes", "request_id", "validate_only")
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RETURNED_NODES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    actor: str
    nodes: _containers.RepeatedCompositeFieldContainer[UnavailableNode]
    returned_nodes: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    validate_only: bool
    def __init__(self, actor: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[UnavailableNode, _Mapping]]] = ..., returned_nodes: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class ReportUnavailableNodesResponse(_message.Message):
    __slots__ = ("nodes_count", "unknown_nodes")
    NODES_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_NODES_FIELD_NUMBER: _ClassVar[int]
    nodes_count: int
    unknown_nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes_count: _Optional[int] = ..., unknown_nodes: _Optional[_Iterable[str]] = ...) -> None: ...
