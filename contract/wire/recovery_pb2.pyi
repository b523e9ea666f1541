import datetime

from gangline.contract.wire import placement_pb2 as _placement_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecoveryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECOVERY_KIND_UNSPECIFIED: _ClassVar[RecoveryKind]
    RECOVERY_IN_PROCESS: _ClassVar[RecoveryKind]
    RECOVERY_HOT_SPARE: _ClassVar[RecoveryKind]
    RECOVERY_FREE_NODE: _ClassVar[RecoveryKind]
    RECOVERY_BORROW: _ClassVar[RecoveryKind]
    RECOVERY_SHRINK: _ClassVar[RecoveryKind]
    RECOVERY_WAIT_FOR_REPAIR: _ClassVar[RecoveryKind]
    RECOVERY_RESTART_ELSEWHERE: _ClassVar[RecoveryKind]
RECOVERY_KIND_UNSPECIFIED: RecoveryKind
RECOVERY_IN_PROCESS: RecoveryKind
RECOVERY_HOT_SPARE: RecoveryKind
RECOVERY_FREE_NODE: RecoveryKind
RECOVERY_BORROW: RecoveryKind
RECOVERY_SHRINK: RecoveryKind
RECOVERY_WAIT_FOR_REPAIR: RecoveryKind
RECOVERY_RESTART_ELSEWHERE: RecoveryKind

class CheckpointState(_message.Message):
    __slots__ = ("age", "remote_restore", "local_restore", "replica_node_index")
    AGE_FIELD_NUMBER: _ClassVar[int]
    REMOTE_RESTORE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RESTORE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    age: _duration_pb2.Duration
    remote_restore: _duration_pb2.Duration
    local_restore: _duration_pb2.Duration
    replica_node_index: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., remote_restore: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., local_restore: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., replica_node_index: _Optional[_Iterable[int]] = ...) -> None: ...

class LenderWorkload(_message.Message):
    __slots__ = ("workload", "node_index", "length_left", "priority")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    LENGTH_LEFT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    workload: str
    node_index: _containers.RepeatedScalarFieldContainer[int]
    length_left: _duration_pb2.Duration
    priority: int
    def __init__(self, workload: _Optional[str] = ..., node_index: _Optional[_Iterable[int]] = ..., length_left: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., priority: _Optional[int] = ...) -> None: ...

class PlanRecoveryRequest(_message.Message):
    __slots__ = ("gang", "dictionary_version", "current_node_index", "failed_node_index", "suspect_node_index", "hot_spare_node_index", "candidates", "lenders", "checkpoint", "goes_on_in_process", "nodes_min", "failures_at_step", "application_error", "incident", "explain")
    GANG_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FAILED_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SUSPECT_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    HOT_SPARE_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    LENDERS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    GOES_ON_IN_PROCESS_FIELD_NUMBER: _ClassVar[int]
    NODES_MIN_FIELD_NUMBER: _ClassVar[int]
    FAILURES_AT_STEP_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_ERROR_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    gang: _placement_pb2.GangRequirements
    dictionary_version: int
    current_node_index: _containers.RepeatedScalarFieldContainer[int]
    failed_node_index: _containers.RepeatedScalarFieldContainer[int]
    suspect_node_index: _containers.RepeatedScalarFieldContainer[int]
    hot_spare_node_index: _containers.RepeatedScalarFieldContainer[int]
    candidates: _placement_pb2.PlacementCandidates
    lenders: _containers.RepeatedCompositeFieldContainer[LenderWorkload]
    checkpoint: CheckpointState
    goes_on_in_process: bool
    nodes_min: int
    failures_at_step: int
    application_error: str
    incident: str
    explain: bool
    def __init__(self, gang: _Optional[_Union[_placement_pb2.GangRequirements, _Mapping]] = ..., dictionary_version: _Optional[int] = ..., current_node_index: _Optional[_Iterable[int]] = ..., failed_node_index: _Optional[_Iterable[int]] = ..., suspect_node_index: _Optional[_Iterable[int]] = ..., hot_spare_node_index: _Optional[_Iterable[int]] = ..., candidates: _Optional[_Union[_placement_pb2.PlacementCandidates, _Mapping]] = ..., lenders: _Optional[_Iterable[_Union[LenderWorkload, _Mapping]]] = ..., checkpoint: _Optional[_Union[CheckpointState, _Mapping]] = ..., goes_on_in_process: bool = ..., nodes_min: _Optional[int] = ..., failures_at_step: _Optional[int] = ..., application_error: _Optional[str] = ..., incident: _Optional[str] = ..., explain: bool = ...) -> None: ...

class Replacement(_message.Message):
    __slots__ = ("rank", "failed_node_index", "by_node_index", "keeps_segment", "keeps_rails")
    RANK_FIELD_NUMBER: _ClassVar[int]
    FAILED_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    BY_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    KEEPS_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    KEEPS_RAILS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    failed_node_index: int
    by_node_index: int
    keeps_segment: bool
    keeps_rails: bool
    def __init__(self, rank: _Optional[int] = ..., failed_node_index: _Optional[int] = ..., by_node_index: _Optional[int] = ..., keeps_segment: bool = ..., keeps_rails: bool = ...) -> None: ...

class RecoveryOption(_message.Message):
    __slots__ = ("kind", "node_index", "replacements", "stopped_node_index", "lender", "detect_hours", "decide_hours", "act_hours", "resume_hours", "lost_work_hours", "price", "p50_gpu_hours", "p90_gpu_hours", "second_failure_probability", "speed", "steps")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    REPLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    LENDER_FIELD_NUMBER: _ClassVar[int]
    DETECT_HOURS_FIELD_NUMBER: _ClassVar[int]
    DECIDE_HOURS_FIELD_NUMBER: _ClassVar[int]
    ACT_HOURS_FIELD_NUMBER: _ClassVar[int]
    RESUME_HOURS_FIELD_NUMBER: _ClassVar[int]
    LOST_WORK_HOURS_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    P50_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    P90_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    SECOND_FAILURE_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    kind: RecoveryKind
    node_index: _containers.RepeatedScalarFieldContainer[int]
    replacements: _containers.RepeatedCompositeFieldContainer[Replacement]
    stopped_node_index: _containers.RepeatedScalarFieldContainer[int]
    lender: str
    detect_hours: _placement_pb2.Estimate
    decide_hours: _placement_pb2.Estimate
    act_hours: _placement_pb2.Estimate
    resume_hours: _placement_pb2.Estimate
    lost_work_hours: _placement_pb2.Estimate
    price: _placement_pb2.PlacementPrice
    p50_gpu_hours: float
    p90_gpu_hours: float
    second_failure_probability: _placement_pb2.Estimate
    speed: _placement_pb2.Estimate
    steps: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, kind: _Optional[_Union[RecoveryKind, str]] = ..., node_index: _Optional[_Iterable[int]] = ..., replacements: _Optional[_Iterable[_Union[Replacement, _Mapping]]] = ..., stopped_node_index: _Optional[_Iterable[int]] = ..., lender: _Optional[str] = ..., detect_hours: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ..., decide_hours: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ..., act_hours: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ..., resume_hours: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ..., lost_work_hours: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ..., price: _Optional[_Union[_placement_pb2.PlacementPrice, _Mapping]] = ..., p50_gpu_hours: _Optional[float] = ..., p90_gpu_hours: _Optional[float] = ..., second_failure_probability: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ..., speed: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ..., steps: _Optional[_Iterable[str]] = ...) -> None: ...

class SuspectedDomain(_message.Message):
    __slots__ = ("tier", "name", "failed_nodes", "member_nodes", "chance")
    TIER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAILED_NODES_FIELD_NUMBER: _ClassVar[int]
    MEMBER_NODES_FIELD_NUMBER: _ClassVar[int]
    CHANCE_FIELD_NUMBER: _ClassVar[int]
    tier: _placement_pb2.Tier
    name: str
    failed_nodes: int
    member_nodes: int
    chance: float
    def __init__(self, tier: _Optional[_Union[_placement_pb2.Tier, str]] = ..., name: _Optional[str] = ..., failed_nodes: _Optional[int] = ..., member_nodes: _Optional[int] = ..., chance: _Optional[float] = ...) -> None: ...

class UndisturbedGang(_message.Message):
    __slots__ = ("price", "p50_gpu_hours", "p90_gpu_hours", "interruption_probability", "speed")
    PRICE_FIELD_NUMBER: _ClassVar[int]
    P50_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    P90_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTION_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    price: _placement_pb2.PlacementPrice
    p50_gpu_hours: float
    p90_gpu_hours: float
    interruption_probability: _placement_pb2.Estimate
    speed: _placement_pb2.Estimate
    def __init__(self, price: _Optional[_Union[_placement_pb2.PlacementPrice, _Mapping]] = ..., p50_gpu_hours: _Optional[float] = ..., p90_gpu_hours: _Optional[float] = ..., interruption_probability: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ..., speed: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ...) -> None: ...

class PlanRecoveryResponse(_message.Message):
    __slots__ = ("decision_id", "options", "failed_node_index", "domains", "restart_is_futile", "futile_reason", "culprit_node_index", "culprit_probability", "score_version", "dictionary_version", "candidates_source", "degraded", "degraded_reason", "undisturbed", "notes")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILED_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    RESTART_IS_FUTILE_FIELD_NUMBER: _ClassVar[int]
    FUTILE_REASON_FIELD_NUMBER: _ClassVar[int]
    CULPRIT_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    CULPRIT_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_SOURCE_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    UNDISTURBED_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    options: _containers.RepeatedCompositeFieldContainer[RecoveryOption]
    failed_node_index: _containers.RepeatedScalarFieldContainer[int]
    domains: _containers.RepeatedCompositeFieldContainer[SuspectedDomain]
    restart_is_futile: bool
    futile_reason: str
    culprit_node_index: int
    culprit_probability: float
    score_version: int
    dictionary_version: int
    candidates_source: str
    degraded: bool
    degraded_reason: str
    undisturbed: UndisturbedGang
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, decision_id: _Optional[str] = ..., options: _Optional[_Iterable[_Union[RecoveryOption, _Mapping]]] = ..., failed_node_index: _Optional[_Iterable[int]] = ..., domains: _Optional[_Iterable[_Union[SuspectedDomain, _Mapping]]] = ..., restart_is_futile: bool = ..., futile_reason: _Optional[str] = ..., culprit_node_index: _Optional[int] = ..., culprit_probability: _Optional[float] = ..., score_version: _Optional[int] = ..., dictionary_version: _Optional[int] = ..., candidates_source: _Optional[str] = ..., degraded: bool = ..., degraded_reason: _Optional[str] = ..., undisturbed: _Optional[_Union[UndisturbedGang, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class ReportRecoveryRequest(_message.Message):
    __slots__ = ("incident", "decision_id", "kind", "fault_time", "detect_time", "decide_time", "act_time", "resume_time", "success", "lost_gpu_hours", "restarted_processes", "restored_from_peer", "workload", "note", "validate_only")
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FAULT_TIME_FIELD_NUMBER: _ClassVar[int]
    DETECT_TIME_FIELD_NUMBER: _ClassVar[int]
    DECIDE_TIME_FIELD_NUMBER: _ClassVar[int]
    ACT_TIME_FIELD_NUMBER: _ClassVar[int]
    RESUME_TIME_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    LOST_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FROM_PEER_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    incident: str
    decision_id: str
    kind: RecoveryKind
    fault_time: _timestamp_pb2.Timestamp
    detect_time: _timestamp_pb2.Timestamp
    decide_time: _timestamp_pb2.Timestamp
    act_time: _timestamp_pb2.Timestamp
    resume_time: _timestamp_pb2.Timestamp
    success: bool
    lost_gpu_hours: float
    restarted_processes: bool
    restored_from_peer: bool
    workload: str
    note: str
    validate_only: bool
    def __init__(self, incident: _Optional[str] = ..., decision_id: _Optional[str] = ..., kind: _Optional[_Union[RecoveryKind, str]] = ..., fault_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., detect_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., decide_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., act_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., resume_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., success: bool = ..., lost_gpu_hours: _Optional[float] = ..., restarted_processes: bool = ..., restored_from_peer: bool = ..., workload: _Optional[str] = ..., note: _Optional[str] = ..., validate_only: bool = ...) -> None: ...

class ReportRecoveryResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...
