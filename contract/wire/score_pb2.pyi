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

class HealthState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTH_STATE_UNSPECIFIED: _ClassVar[HealthState]
    HEALTHY: _ClassVar[HealthState]
    WATCH: _ClassVar[HealthState]
    DEGRADED: _ClassVar[HealthState]
    SUSPECT: _ClassVar[HealthState]
    UNHEALTHY: _ClassVar[HealthState]
    PROBATION: _ClassVar[HealthState]
    MAINTENANCE: _ClassVar[HealthState]
    STALE: _ClassVar[HealthState]
    UNKNOWN: _ClassVar[HealthState]

class ReasonCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_CODE_UNSPECIFIED: _ClassVar[ReasonCode]
    REASON_XID_FATAL: _ClassVar[ReasonCode]
    REASON_ECC_TREND: _ClassVar[ReasonCode]
    REASON_NVLINK_ERRORS: _ClassVar[ReasonCode]
    REASON_RAIL_DOWN: _ClassVar[ReasonCode]
    REASON_THERMAL_THROTTLE: _ClassVar[ReasonCode]
    REASON_POWER_CAP: _ClassVar[ReasonCode]
    REASON_STRAGGLER: _ClassVar[ReasonCode]
    REASON_STORAGE: _ClassVar[ReasonCode]
    REASON_LEMON: _ClassVar[ReasonCode]
    REASON_STALE_TELEMETRY: _ClassVar[ReasonCode]
    REASON_POLICY: _ClassVar[ReasonCode]
    REASON_PCIE: _ClassVar[ReasonCode]
    REASON_HBM_REMAP: _ClassVar[ReasonCode]
    REASON_DRIVER_HUNG: _ClassVar[ReasonCode]
    REASON_FABRIC: _ClassVar[ReasonCode]
    REASON_HOST_CPU: _ClassVar[ReasonCode]
    REASON_BLIND: _ClassVar[ReasonCode]
    REASON_IDENTITY: _ClassVar[ReasonCode]
    REASON_CLOCK: _ClassVar[ReasonCode]
    REASON_DATA_LOST: _ClassVar[ReasonCode]
    REASON_GPU_UNUSABLE: _ClassVar[ReasonCode]
    REASON_NEIGHBOR: _ClassVar[ReasonCode]

class View(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VIEW_UNSPECIFIED: _ClassVar[View]
    BASIC: _ClassVar[View]
    FULL: _ClassVar[View]
HEALTH_STATE_UNSPECIFIED: HealthState
HEALTHY: HealthState
WATCH: HealthState
DEGRADED: HealthState
SUSPECT: HealthState
UNHEALTHY: HealthState
PROBATION: HealthState
MAINTENANCE: HealthState
STALE: HealthState
UNKNOWN: HealthState
REASON_CODE_UNSPECIFIED: ReasonCode
REASON_XID_FATAL: ReasonCode
REASON_ECC_TREND: ReasonCode
REASON_NVLINK_ERRORS: ReasonCode
REASON_RAIL_DOWN: ReasonCode
REASON_THERMAL_THROTTLE: ReasonCode
REASON_POWER_CAP: ReasonCode
REASON_STRAGGLER: ReasonCode
REASON_STORAGE: ReasonCode
REASON_LEMON: ReasonCode
REASON_STALE_TELEMETRY: ReasonCode
REASON_POLICY: ReasonCode
REASON_PCIE: ReasonCode
REASON_HBM_REMAP: ReasonCode
REASON_DRIVER_HUNG: ReasonCode
REASON_FABRIC: ReasonCode
REASON_HOST_CPU: ReasonCode
REASON_BLIND: ReasonCode
REASON_IDENTITY: ReasonCode
REASON_CLOCK: ReasonCode
REASON_DATA_LOST: ReasonCode
REASON_GPU_UNUSABLE: ReasonCode
REASON_NEIGHBOR: ReasonCode
VIEW_UNSPECIFIED: View
BASIC: View
FULL: View

class Contribution(_message.Message):
    __slots__ = ("signal", "device", "value", "unit", "normal", "log_hazard_delta", "relative_speed_factor", "score_delta", "reason", "message", "observe_time", "evidence_sql", "hazard_delta", "shared_count")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    NORMAL_FIELD_NUMBER: _ClassVar[int]
    LOG_HAZARD_DELTA_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_FACTOR_FIELD_NUMBER: _ClassVar[int]
    SCORE_DELTA_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OBSERVE_TIME_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_SQL_FIELD_NUMBER: _ClassVar[int]
    HAZARD_DELTA_FIELD_NUMBER: _ClassVar[int]
    SHARED_COUNT_FIELD_NUMBER: _ClassVar[int]
    signal: str
    device: str
    value: float
    unit: str
    normal: str
    log_hazard_delta: float
    relative_speed_factor: float
    score_delta: float
    reason: ReasonCode
    message: str
    observe_time: _timestamp_pb2.Timestamp
    evidence_sql: str
    hazard_delta: float
    shared_count: int
    def __init__(self, signal: _Optional[str] = ..., device: _Optional[str] = ..., value: _Optional[float] = ..., unit: _Optional[str] = ..., normal: _Optional[str] = ..., log_hazard_delta: _Optional[float] = ..., relative_speed_factor: _Optional[float] = ..., score_delta: _Optional[float] = ..., reason: _Optional[_Union[ReasonCode, str]] = ..., message: _Optional[str] = ..., observe_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., evidence_sql: _Optional[str] = ..., hazard_delta: _Optional[float] = ..., shared_count: _Optional[int] = ...) -> None: ...

class NodeScore(_message.Message):
    __slots__ = ("node", "score", "horizon", "score_lower", "score_upper", "state", "hazard_per_hour", "relative_speed", "reason", "reason_message", "clears_when", "simulated", "data_age", "compute_time", "version", "contributions", "sources", "hazard_lower", "hazard_upper", "relative_speed_lower", "relative_speed_upper", "hazard_model", "gpus", "job", "waits_for", "waits_for_job", "shared_cause", "shared_cause_nodes", "shared_cause_advisory")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    SCORE_LOWER_FIELD_NUMBER: _ClassVar[int]
    SCORE_UPPER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HAZARD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLEARS_WHEN_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    DATA_AGE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    HAZARD_LOWER_FIELD_NUMBER: _ClassVar[int]
    HAZARD_UPPER_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_LOWER_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_UPPER_FIELD_NUMBER: _ClassVar[int]
    HAZARD_MODEL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_JOB_FIELD_NUMBER: _ClassVar[int]
    SHARED_CAUSE_FIELD_NUMBER: _ClassVar[int]
    SHARED_CAUSE_NODES_FIELD_NUMBER: _ClassVar[int]
    SHARED_CAUSE_ADVISORY_FIELD_NUMBER: _ClassVar[int]
    node: str
    score: float
    horizon: _duration_pb2.Duration
    score_lower: float
    score_upper: float
    state: HealthState
    hazard_per_hour: float
    relative_speed: float
    reason: ReasonCode
    reason_message: str
    clears_when: str
    simulated: bool
    data_age: _duration_pb2.Duration
    compute_time: _timestamp_pb2.Timestamp
    version: int
    contributions: _containers.RepeatedCompositeFieldContainer[Contribution]
    sources: _containers.RepeatedCompositeFieldContainer[SourceOutcome]
    hazard_lower: float
    hazard_upper: float
    relative_speed_lower: float
    relative_speed_upper: float
    hazard_model: str
    gpus: _containers.RepeatedCompositeFieldContainer[GpuScore]
    job: str
    waits_for: str
    waits_for_job: str
    shared_cause: str
    shared_cause_nodes: int
    shared_cause_advisory: str
    def __init__(self, node: _Optional[str] = ..., score: _Optional[float] = ..., horizon: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., score_lower: _Optional[float] = ..., score_upper: _Optional[float] = ..., state: _Optional[_Union[HealthState, str]] = ..., hazard_per_hour: _Optional[float] = ..., relative_speed: _Optional[float] = ..., reason: _Optional[_Union[ReasonCode, str]] = ..., reason_message: _Optional[str] = ..., clears_when: _Optional[str] = ..., simulated: bool = ..., data_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., compute_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., version: _Optional[int] = ..., contributions: _Optional[_Iterable[_Union[Contribution, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[SourceOutcome, _Mapping]]] = ..., hazard_lower: _Optional[float] = ..., hazard_upper: _Optional[float] = ..., relative_speed_lower: _Optional[float] = ..., relative_speed_upper: _Optional[float] = ..., hazard_model: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[GpuScore, _Mapping]]] = ..., job: _Optional[str] = ..., waits_for: _Optional[str] = ..., waits_for_job: _Optional[str] = ..., shared_cause: _Optional[str] = ..., shared_cause_nodes: _Optional[int] = ..., shared_cause_advisory: _Optional[str] = ...) -> None: ...

class GpuScore(_message.Message):
    __slots__ = ("gpu", "state", "reason", "hazard_per_hour", "hazard_lower", "hazard_upper", "relative_speed", "relative_speed_lower", "relative_speed_upper")
    GPU_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HAZARD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    HAZARD_LOWER_FIELD_NUMBER: _ClassVar[int]
    HAZARD_UPPER_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_LOWER_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_UPPER_FIELD_NUMBER: _ClassVar[int]
    gpu: str
    state: HealthState
    reason: ReasonCode
    hazard_per_hour: float
    hazard_lower: float
    hazard_upper: float
    relative_speed: float
    relative_speed_lower: float
    relative_speed_upper: float
    def __init__(self, gpu: _Optional[str] = ..., state: _Optional[_Union[HealthState, str]] = ..., reason: _Optional[_Union[ReasonCode, str]] = ..., hazard_per_hour: _Optional[float] = ..., hazard_lower: _Optional[float] = ..., hazard_upper: _Optional[float] = ..., relative_speed: _Optional[float] = ..., relative_speed_lower: _Optional[float] = ..., relative_speed_upper: _Optional[float] = ...) -> None: ...

class SourceOutcome(_message.Message):
    __slots__ = ("source", "outcome", "message")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    source: str
    outcome: str
    message: str
    def __init__(self, source: _Optional[str] = ..., outcome: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GetNodeScoreRequest(_message.Message):
    __slots__ = ("name", "view", "horizon")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    name: str
    view: View
    horizon: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., view: _Optional[_Union[View, str]] = ..., horizon: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListNodeScoresRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "view", "horizon")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    view: View
    horizon: _duration_pb2.Duration
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., view: _Optional[_Union[View, str]] = ..., horizon: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListNodeScoresResponse(_message.Message):
    __slots__ = ("node_scores", "next_page_token", "version", "degraded", "degraded_reason", "alarms")
    NODE_SCORES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    node_scores: _containers.RepeatedCompositeFieldContainer[NodeScore]
    next_page_token: str
    version: int
    degraded: bool
    degraded_reason: str
    alarms: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_scores: _Optional[_Iterable[_Union[NodeScore, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., version: _Optional[int] = ..., degraded: bool = ..., degraded_reason: _Optional[str] = ..., alarms: _Optional[_Iterable[str]] = ...) -> None: ...

class Workload(_message.Message):
    __slots__ = ("job", "shares")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    job: str
    shares: ComponentShares
    def __init__(self, job: _Optional[str] = ..., shares: _Optional[_Union[ComponentShares, _Mapping]] = ...) -> None: ...

class ComponentShares(_message.Message):
    __slots__ = ("compute", "memory", "pcie", "nvlink", "network", "host_cpu", "storage")
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    PCIE_FIELD_NUMBER: _ClassVar[int]
    NVLINK_FIELD_NUMBER: _ClassVar[int]
    NETWORK_FIELD_NUMBER: _ClassVar[int]
    HOST_CPU_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    compute: float
    memory: float
    pcie: float
    nvlink: float
    network: float
    host_cpu: float
    storage: float
    def __init__(self, compute: _Optional[float] = ..., memory: _Optional[float] = ..., pcie: _Optional[float] = ..., nvlink: _Optional[float] = ..., network: _Optional[float] = ..., host_cpu: _Optional[float] = ..., storage: _Optional[float] = ...) -> None: ...

class ScoreNodesRequest(_message.Message):
    __slots__ = ("dictionary_version", "node_bitmap", "score_floor", "gpus", "horizon", "workload")
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_BITMAP_FIELD_NUMBER: _ClassVar[int]
    SCORE_FLOOR_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    dictionary_version: int
    node_bitmap: bytes
    score_floor: float
    gpus: bool
    horizon: _duration_pb2.Duration
    workload: Workload
    def __init__(self, dictionary_version: _Optional[int] = ..., node_bitmap: _Optional[bytes] = ..., score_floor: _Optional[float] = ..., gpus: bool = ..., horizon: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., workload: _Optional[_Union[Workload, _Mapping]] = ...) -> None: ...

class ScoreNodesResponse(_message.Message):
    __slots__ = ("dictionary_version", "score_version", "node_index", "score", "hazard_per_hour", "relative_speed", "state", "bucket", "reason", "allowed_bitmap", "valid_until", "degraded", "degraded_reason", "gpu_index", "gpu_node_index", "gpu_hazard_per_hour", "gpu_hazard_spread", "gpu_relative_speed", "gpu_relative_speed_lower", "gpu_relative_speed_upper", "gpu_state", "gpu_reason", "horizon", "expected_slowdown", "workload_source", "workload_shares", "neighbors")
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    HAZARD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_BITMAP_FIELD_NUMBER: _ClassVar[int]
    VALID_UNTIL_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    GPU_INDEX_FIELD_NUMBER: _ClassVar[int]
    GPU_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    GPU_HAZARD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    GPU_HAZARD_SPREAD_FIELD_NUMBER: _ClassVar[int]
    GPU_RELATIVE_SPEED_FIELD_NUMBER: _ClassVar[int]
    GPU_RELATIVE_SPEED_LOWER_FIELD_NUMBER: _ClassVar[int]
    GPU_RELATIVE_SPEED_UPPER_FIELD_NUMBER: _ClassVar[int]
    GPU_STATE_FIELD_NUMBER: _ClassVar[int]
    GPU_REASON_FIELD_NUMBER: _ClassVar[int]
    HORIZON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_SOURCE_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_SHARES_FIELD_NUMBER: _ClassVar[int]
    NEIGHBORS_FIELD_NUMBER: _ClassVar[int]
    dictionary_version: int
    score_version: int
    node_index: _containers.RepeatedScalarFieldContainer[int]
    score: _containers.RepeatedScalarFieldContainer[float]
    hazard_per_hour: _containers.RepeatedScalarFieldContainer[float]
    relative_speed: _containers.RepeatedScalarFieldContainer[float]
    state: bytes
    bucket: bytes
    reason: bytes
    allowed_bitmap: bytes
    valid_until: _timestamp_pb2.Timestamp
    degraded: bool
    degraded_reason: str
    gpu_index: _containers.RepeatedScalarFieldContainer[int]
    gpu_node_index: _containers.RepeatedScalarFieldContainer[int]
    gpu_hazard_per_hour: _containers.RepeatedScalarFieldContainer[float]
    gpu_hazard_spread: _containers.RepeatedScalarFieldContainer[float]
    gpu_relative_speed: _containers.RepeatedScalarFieldContainer[float]
    gpu_relative_speed_lower: _containers.RepeatedScalarFieldContainer[float]
    gpu_relative_speed_upper: _containers.RepeatedScalarFieldContainer[float]
    gpu_state: bytes
    gpu_reason: bytes
    horizon: _duration_pb2.Duration
    expected_slowdown: _containers.RepeatedScalarFieldContainer[float]
    workload_source: str
    workload_shares: ComponentShares
    neighbors: _containers.RepeatedCompositeFieldContainer[NodeNeighbors]
    def __init__(self, dictionary_version: _Optional[int] = ..., score_version: _Optional[int] = ..., node_index: _Optional[_Iterable[int]] = ..., score: _Optional[_Iterable[float]] = ..., hazard_per_hour: _Optional[_Iterable[float]] = ..., relative_speed: _Optional[_Iterable[float]] = ..., state: _Optional[bytes] = ..., bucket: _Optional[bytes] = ..., reason: _Optional[bytes] = ..., allowed_bitmap: _Optional[bytes] = ..., valid_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., degraded: bool = ..., degraded_reason: _Optional[str] = ..., gpu_index: _Optional[_Iterable[int]] = ..., gpu_node_index: _Optional[_Iterable[int]] = ..., gpu_hazard_per_hour: _Optional[_Iterable[float]] = ..., gpu_hazard_spread: _Optional[_Iterable[float]] = ..., gpu_relative_speed: _Optional[_Iterable[float]] = ..., gpu_relative_speed_lower: _Optional[_Iterable[float]] = ..., gpu_relative_speed_upper: _Optional[_Iterable[float]] = ..., gpu_state: _Optional[bytes] = ..., gpu_reason: _Optional[bytes] = ..., horizon: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., expected_slowdown: _Optional[_Iterable[float]] = ..., workload_source: _Optional[str] = ..., workload_shares: _Optional[_Union[ComponentShares, _Mapping]] = ..., neighbors: _Optional[_Iterable[_Union[NodeNeighbors, _Mapping]]] = ...) -> None: ...

class NodeNeighbors(_message.Message):
    __slots__ = ("node_index", "jobs", "slowdown", "slowdown_lower", "slowdown_upper", "measured", "message")
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_LOWER_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_UPPER_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    node_index: int
    jobs: _containers.RepeatedScalarFieldContainer[str]
    slowdown: float
    slowdown_lower: float
    slowdown_upper: float
    measured: bool
    message: str
    def __init__(self, node_index: _Optional[int] = ..., jobs: _Optional[_Iterable[str]] = ..., slowdown: _Optional[float] = ..., slowdown_lower: _Optional[float] = ..., slowdown_upper: _Optional[float] = ..., measured: bool = ..., message: _Optional[str] = ...) -> None: ...

class GetNodeDictionaryRequest(_message.Message):
    __slots__ = ("known_version", "gpus")
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    known_version: int
    gpus: bool
    def __init__(self, known_version: _Optional[int] = ..., gpus: bool = ...) -> None: ...

class NodeDictionary(_message.Message):
    __slots__ = ("version", "names", "gpus", "scores_port")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SCORES_PORT_FIELD_NUMBER: _ClassVar[int]
    version: int
    names: _containers.RepeatedScalarFieldContainer[str]
    gpus: _containers.RepeatedScalarFieldContainer[str]
    scores_port: int
    def __init__(self, version: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., gpus: _Optional[_Iterable[str]] = ..., scores_port: _Optional[int] = ...) -> None: ...

class WatchNodeScoresRequest(_message.Message):
    __slots__ = ("bookmark",)
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    bookmark: str
    def __init__(self, bookmark: _Optional[str] = ...) -> None: ...

class NodeScoresUpdate(_message.Message):
    __slots__ = ("snapshot", "bookmark", "dictionary_version", "score_version", "compute_time", "node_index", "score", "hazard_per_hour", "relative_speed", "state", "bucket", "reason", "ended", "degraded", "degraded_reason")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_TIME_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    HAZARD_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_SPEED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    snapshot: bool
    bookmark: str
    dictionary_version: int
    score_version: int
    compute_time: _timestamp_pb2.Timestamp
    node_index: _containers.RepeatedScalarFieldContainer[int]
    score: _containers.RepeatedScalarFieldContainer[float]
    hazard_per_hour: _containers.RepeatedScalarFieldContainer[float]
    relative_speed: _containers.RepeatedScalarFieldContainer[float]
    state: bytes
    bucket: bytes
    reason: bytes
    ended: bytes
    degraded: bool
    degraded_reason: str
    def __init__(self, snapshot: bool = ..., bookmark: _Optional[str] = ..., dictionary_version: _Optional[int] = ..., score_version: _Optional[int] = ..., compute_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., node_index: _Optional[_Iterable[int]] = ..., score: _Optional[_Iterable[float]] = ..., hazard_per_hour: _Optional[_Iterable[float]] = ..., relative_speed: _Optional[_Iterable[float]] = ..., state: _Optional[bytes] = ..., bucket: _Optional[bytes] = ..., reason: _Optional[bytes] = ..., ended: _Optional[bytes] = ..., degraded: bool = ..., degraded_reason: _Optional[str] = ...) -> None: ...
