import datetime

from gangline.contract.wire import score_pb2 as _score_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EstimateSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ESTIMATE_SOURCE_UNSPECIFIED: _ClassVar[EstimateSource]
    ESTIMATE_MEASURED: _ClassVar[EstimateSource]
    ESTIMATE_REPORTED: _ClassVar[EstimateSource]
    ESTIMATE_DECLARED: _ClassVar[EstimateSource]
    ESTIMATE_ASSUMED: _ClassVar[EstimateSource]

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_NVLINK_DOMAIN: _ClassVar[Tier]
    TIER_RACK: _ClassVar[Tier]
    TIER_LEAF: _ClassVar[Tier]
    TIER_SPINE: _ClassVar[Tier]
    TIER_CORE: _ClassVar[Tier]
    TIER_POWER_DOMAIN: _ClassVar[Tier]
    TIER_COOLING_DOMAIN: _ClassVar[Tier]

class PlanChange(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_CHANGE_UNSPECIFIED: _ClassVar[PlanChange]
    PLAN_FIRST: _ClassVar[PlanChange]
    PLAN_BROKEN: _ClassVar[PlanChange]
    PLAN_CHEAPER: _ClassVar[PlanChange]
    PLAN_REPRICED: _ClassVar[PlanChange]
    PLAN_UNCHANGED: _ClassVar[PlanChange]

class ResizeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESIZE_KIND_UNSPECIFIED: _ClassVar[ResizeKind]
    RESIZE_STAY: _ClassVar[ResizeKind]
    RESIZE_GROW: _ClassVar[ResizeKind]
    RESIZE_SHRINK: _ClassVar[ResizeKind]
    RESIZE_MOVE: _ClassVar[ResizeKind]
ESTIMATE_SOURCE_UNSPECIFIED: EstimateSource
ESTIMATE_MEASURED: EstimateSource
ESTIMATE_REPORTED: EstimateSource
ESTIMATE_DECLARED: EstimateSource
ESTIMATE_ASSUMED: EstimateSource
TIER_UNSPECIFIED: Tier
TIER_NVLINK_DOMAIN: Tier
TIER_RACK: Tier
TIER_LEAF: Tier
TIER_SPINE: Tier
TIER_CORE: Tier
TIER_POWER_DOMAIN: Tier
TIER_COOLING_DOMAIN: Tier
PLAN_CHANGE_UNSPECIFIED: PlanChange
PLAN_FIRST: PlanChange
PLAN_BROKEN: PlanChange
PLAN_CHEAPER: PlanChange
PLAN_REPRICED: PlanChange
PLAN_UNCHANGED: PlanChange
RESIZE_KIND_UNSPECIFIED: ResizeKind
RESIZE_STAY: ResizeKind
RESIZE_GROW: ResizeKind
RESIZE_SHRINK: ResizeKind
RESIZE_MOVE: ResizeKind

class Estimate(_message.Message):
    __slots__ = ("value", "lower", "upper", "source", "evidence")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    value: float
    lower: float
    upper: float
    source: EstimateSource
    evidence: str
    def __init__(self, value: _Optional[float] = ..., lower: _Optional[float] = ..., upper: _Optional[float] = ..., source: _Optional[_Union[EstimateSource, str]] = ..., evidence: _Optional[str] = ...) -> None: ...

class PlacementPricePart(_message.Message):
    __slots__ = ("name", "gpu_hours")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    name: str
    gpu_hours: Estimate
    def __init__(self, name: _Optional[str] = ..., gpu_hours: _Optional[_Union[Estimate, _Mapping]] = ...) -> None: ...

class PlacementPrice(_message.Message):
    __slots__ = ("total_gpu_hours", "parts")
    TOTAL_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    total_gpu_hours: Estimate
    parts: _containers.RepeatedCompositeFieldContainer[PlacementPricePart]
    def __init__(self, total_gpu_hours: _Optional[_Union[Estimate, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[PlacementPricePart, _Mapping]]] = ...) -> None: ...

class PlacementInvariants(_message.Message):
    __slots__ = ("within", "segment_nodes", "segment_tier", "same_rails", "spread_over", "spread_nodes_max")
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_NODES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_TIER_FIELD_NUMBER: _ClassVar[int]
    SAME_RAILS_FIELD_NUMBER: _ClassVar[int]
    SPREAD_OVER_FIELD_NUMBER: _ClassVar[int]
    SPREAD_NODES_MAX_FIELD_NUMBER: _ClassVar[int]
    within: Tier
    segment_nodes: int
    segment_tier: Tier
    same_rails: bool
    spread_over: Tier
    spread_nodes_max: int
    def __init__(self, within: _Optional[_Union[Tier, str]] = ..., segment_nodes: _Optional[int] = ..., segment_tier: _Optional[_Union[Tier, str]] = ..., same_rails: bool = ..., spread_over: _Optional[_Union[Tier, str]] = ..., spread_nodes_max: _Optional[int] = ...) -> None: ...

class TierPreference(_message.Message):
    __slots__ = ("tier", "gpu_hours_per_domain")
    TIER_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_PER_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    gpu_hours_per_domain: float
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., gpu_hours_per_domain: _Optional[float] = ...) -> None: ...

class ParallelGroups(_message.Message):
    __slots__ = ("tensor", "pipeline", "data", "tensor_traffic", "pipeline_traffic", "data_traffic")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TENSOR_TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    DATA_TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    pipeline: int
    data: int
    tensor_traffic: float
    pipeline_traffic: float
    data_traffic: float
    def __init__(self, tensor: _Optional[int] = ..., pipeline: _Optional[int] = ..., data: _Optional[int] = ..., tensor_traffic: _Optional[float] = ..., pipeline_traffic: _Optional[float] = ..., data_traffic: _Optional[float] = ...) -> None: ...

class GangRequirements(_message.Message):
    __slots__ = ("nodes", "gpus_per_node", "length", "workload", "groups", "invariants", "preferences", "node_score_min", "survival_min", "communication_share", "detect", "decide", "restart", "checkpoint_interval", "checkpoint_write", "repair", "gpu_hours_per_stranded_gpu_hour", "gpu_hours_per_delay_hour", "gpu_hours_per_currency_unit", "tenant", "priority", "sizes", "throughputs", "workload_name", "memory")
    NODES_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    INVARIANTS_FIELD_NUMBER: _ClassVar[int]
    PREFERENCES_FIELD_NUMBER: _ClassVar[int]
    NODE_SCORE_MIN_FIELD_NUMBER: _ClassVar[int]
    SURVIVAL_MIN_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_SHARE_FIELD_NUMBER: _ClassVar[int]
    DETECT_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_WRITE_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_PER_STRANDED_GPU_HOUR_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_PER_DELAY_HOUR_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_PER_CURRENCY_UNIT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUTS_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    gpus_per_node: int
    length: _duration_pb2.Duration
    workload: _score_pb2.Workload
    groups: ParallelGroups
    invariants: PlacementInvariants
    preferences: _containers.RepeatedCompositeFieldContainer[TierPreference]
    node_score_min: float
    survival_min: float
    communication_share: float
    detect: _duration_pb2.Duration
    decide: _duration_pb2.Duration
    restart: _duration_pb2.Duration
    checkpoint_interval: _duration_pb2.Duration
    checkpoint_write: _duration_pb2.Duration
    repair: _duration_pb2.Duration
    gpu_hours_per_stranded_gpu_hour: float
    gpu_hours_per_delay_hour: float
    gpu_hours_per_currency_unit: float
    tenant: str
    priority: int
    sizes: GangSizes
    throughputs: _containers.RepeatedCompositeFieldContainer[ThroughputPoint]
    workload_name: str
    memory: MemoryNeeds
    def __init__(self, nodes: _Optional[int] = ..., gpus_per_node: _Optional[int] = ..., length: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., workload: _Optional[_Union[_score_pb2.Workload, _Mapping]] = ..., groups: _Optional[_Union[ParallelGroups, _Mapping]] = ..., invariants: _Optional[_Union[PlacementInvariants, _Mapping]] = ..., preferences: _Optional[_Iterable[_Union[TierPreference, _Mapping]]] = ..., node_score_min: _Optional[float] = ..., survival_min: _Optional[float] = ..., communication_share: _Optional[float] = ..., detect: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decide: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., restart: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., checkpoint_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., checkpoint_write: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., repair: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., gpu_hours_per_stranded_gpu_hour: _Optional[float] = ..., gpu_hours_per_delay_hour: _Optional[float] = ..., gpu_hours_per_currency_unit: _Optional[float] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., sizes: _Optional[_Union[GangSizes, _Mapping]] = ..., throughputs: _Optional[_Iterable[_Union[ThroughputPoint, _Mapping]]] = ..., workload_name: _Optional[str] = ..., memory: _Optional[_Union[MemoryNeeds, _Mapping]] = ...) -> None: ...

class MemoryNeeds(_message.Message):
    __slots__ = ("hbm_bytes", "smaller_batch_hbm_bytes", "host_bytes_per_step", "nvme_bytes_per_step", "page_cache_bytes", "step")
    HBM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SMALLER_BATCH_HBM_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    NVME_BYTES_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    PAGE_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    hbm_bytes: float
    smaller_batch_hbm_bytes: float
    host_bytes_per_step: float
    nvme_bytes_per_step: float
    page_cache_bytes: float
    step: _duration_pb2.Duration
    def __init__(self, hbm_bytes: _Optional[float] = ..., smaller_batch_hbm_bytes: _Optional[float] = ..., host_bytes_per_step: _Optional[float] = ..., nvme_bytes_per_step: _Optional[float] = ..., page_cache_bytes: _Optional[float] = ..., step: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GangSizes(_message.Message):
    __slots__ = ("min_nodes", "max_nodes", "multiple_of", "powers_of_two", "allowed_nodes", "free_gpu_value")
    MIN_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MULTIPLE_OF_FIELD_NUMBER: _ClassVar[int]
    POWERS_OF_TWO_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_NODES_FIELD_NUMBER: _ClassVar[int]
    FREE_GPU_VALUE_FIELD_NUMBER: _ClassVar[int]
    min_nodes: int
    max_nodes: int
    multiple_of: int
    powers_of_two: bool
    allowed_nodes: _containers.RepeatedScalarFieldContainer[int]
    free_gpu_value: float
    def __init__(self, min_nodes: _Optional[int] = ..., max_nodes: _Optional[int] = ..., multiple_of: _Optional[int] = ..., powers_of_two: bool = ..., allowed_nodes: _Optional[_Iterable[int]] = ..., free_gpu_value: _Optional[float] = ...) -> None: ...

class ThroughputPoint(_message.Message):
    __slots__ = ("nodes", "throughput")
    NODES_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    throughput: float
    def __init__(self, nodes: _Optional[int] = ..., throughput: _Optional[float] = ...) -> None: ...

class JobPriority(_message.Message):
    __slots__ = ("job", "priority")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    job: str
    priority: int
    def __init__(self, job: _Optional[str] = ..., priority: _Optional[int] = ...) -> None: ...

class PlacementCandidates(_message.Message):
    __slots__ = ("dictionary_version", "node_bitmap", "shared_node_index", "shared_gpu_mask", "allocation_version", "job_priorities", "reservation")
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_BITMAP_FIELD_NUMBER: _ClassVar[int]
    SHARED_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARED_GPU_MASK_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_FIELD_NUMBER: _ClassVar[int]
    dictionary_version: int
    node_bitmap: bytes
    shared_node_index: _containers.RepeatedScalarFieldContainer[int]
    shared_gpu_mask: bytes
    allocation_version: int
    job_priorities: _containers.RepeatedCompositeFieldContainer[JobPriority]
    reservation: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, dictionary_version: _Optional[int] = ..., node_bitmap: _Optional[bytes] = ..., shared_node_index: _Optional[_Iterable[int]] = ..., shared_gpu_mask: _Optional[bytes] = ..., allocation_version: _Optional[int] = ..., job_priorities: _Optional[_Iterable[_Union[JobPriority, _Mapping]]] = ..., reservation: _Optional[_Iterable[str]] = ...) -> None: ...

class PlanPlacementRequest(_message.Message):
    __slots__ = ("gang", "candidates", "options_max", "explain", "request_id")
    GANG_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    gang: GangRequirements
    candidates: PlacementCandidates
    options_max: int
    explain: bool
    request_id: str
    def __init__(self, gang: _Optional[_Union[GangRequirements, _Mapping]] = ..., candidates: _Optional[_Union[PlacementCandidates, _Mapping]] = ..., options_max: _Optional[int] = ..., explain: bool = ..., request_id: _Optional[str] = ...) -> None: ...

class DomainsSpanned(_message.Message):
    __slots__ = ("tier", "domains", "unknown_nodes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_NODES_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    domains: int
    unknown_nodes: int
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., domains: _Optional[int] = ..., unknown_nodes: _Optional[int] = ...) -> None: ...

class LargestGang(_message.Message):
    __slots__ = ("tier", "nodes_before", "nodes_after")
    TIER_FIELD_NUMBER: _ClassVar[int]
    NODES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    NODES_AFTER_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    nodes_before: int
    nodes_after: int
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., nodes_before: _Optional[int] = ..., nodes_after: _Optional[int] = ...) -> None: ...

class GroupsCrossing(_message.Message):
    __slots__ = ("tier", "groups", "unknown_groups")
    TIER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_GROUPS_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    groups: int
    unknown_groups: int
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., groups: _Optional[int] = ..., unknown_groups: _Optional[int] = ...) -> None: ...

class GroupSpan(_message.Message):
    __slots__ = ("kind", "size", "groups", "traffic_share", "crossing")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_SHARE_FIELD_NUMBER: _ClassVar[int]
    CROSSING_FIELD_NUMBER: _ClassVar[int]
    kind: str
    size: int
    groups: int
    traffic_share: Estimate
    crossing: _containers.RepeatedCompositeFieldContainer[GroupsCrossing]
    def __init__(self, kind: _Optional[str] = ..., size: _Optional[int] = ..., groups: _Optional[int] = ..., traffic_share: _Optional[_Union[Estimate, _Mapping]] = ..., crossing: _Optional[_Iterable[_Union[GroupsCrossing, _Mapping]]] = ...) -> None: ...

class PlacementOption(_message.Message):
    __slots__ = ("node_index", "gpu_mask", "spare_node_index", "spares_wanted", "survival", "speed", "topology_factor", "goodput", "price", "spanned", "strands", "gap_gpu_hours_max", "violations", "scaling_efficiency", "work_hours", "groups", "pipeline_stages_together")
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    GPU_MASK_FIELD_NUMBER: _ClassVar[int]
    SPARE_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SPARES_WANTED_FIELD_NUMBER: _ClassVar[int]
    SURVIVAL_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FACTOR_FIELD_NUMBER: _ClassVar[int]
    GOODPUT_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    SPANNED_FIELD_NUMBER: _ClassVar[int]
    STRANDS_FIELD_NUMBER: _ClassVar[int]
    GAP_GPU_HOURS_MAX_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    SCALING_EFFICIENCY_FIELD_NUMBER: _ClassVar[int]
    WORK_HOURS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_STAGES_TOGETHER_FIELD_NUMBER: _ClassVar[int]
    node_index: _containers.RepeatedScalarFieldContainer[int]
    gpu_mask: bytes
    spare_node_index: _containers.RepeatedScalarFieldContainer[int]
    spares_wanted: int
    survival: Estimate
    speed: Estimate
    topology_factor: Estimate
    goodput: Estimate
    price: PlacementPrice
    spanned: _containers.RepeatedCompositeFieldContainer[DomainsSpanned]
    strands: _containers.RepeatedCompositeFieldContainer[LargestGang]
    gap_gpu_hours_max: float
    violations: _containers.RepeatedScalarFieldContainer[str]
    scaling_efficiency: Estimate
    work_hours: Estimate
    groups: _containers.RepeatedCompositeFieldContainer[GroupSpan]
    pipeline_stages_together: int
    def __init__(self, node_index: _Optional[_Iterable[int]] = ..., gpu_mask: _Optional[bytes] = ..., spare_node_index: _Optional[_Iterable[int]] = ..., spares_wanted: _Optional[int] = ..., survival: _Optional[_Union[Estimate, _Mapping]] = ..., speed: _Optional[_Union[Estimate, _Mapping]] = ..., topology_factor: _Optional[_Union[Estimate, _Mapping]] = ..., goodput: _Optional[_Union[Estimate, _Mapping]] = ..., price: _Optional[_Union[PlacementPrice, _Mapping]] = ..., spanned: _Optional[_Iterable[_Union[DomainsSpanned, _Mapping]]] = ..., strands: _Optional[_Iterable[_Union[LargestGang, _Mapping]]] = ..., gap_gpu_hours_max: _Optional[float] = ..., violations: _Optional[_Iterable[str]] = ..., scaling_efficiency: _Optional[_Union[Estimate, _Mapping]] = ..., work_hours: _Optional[_Union[Estimate, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupSpan, _Mapping]]] = ..., pipeline_stages_together: _Optional[int] = ...) -> None: ...

class PlacementSize(_message.Message):
    __slots__ = ("nodes", "scaling_efficiency", "gpu_hours_min", "gpu_hours", "does_not_fit")
    NODES_FIELD_NUMBER: _ClassVar[int]
    SCALING_EFFICIENCY_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_MIN_FIELD_NUMBER: _ClassVar[int]
    GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    DOES_NOT_FIT_FIELD_NUMBER: _ClassVar[int]
    nodes: int
    scaling_efficiency: Estimate
    gpu_hours_min: float
    gpu_hours: float
    does_not_fit: bool
    def __init__(self, nodes: _Optional[int] = ..., scaling_efficiency: _Optional[_Union[Estimate, _Mapping]] = ..., gpu_hours_min: _Optional[float] = ..., gpu_hours: _Optional[float] = ..., does_not_fit: bool = ...) -> None: ...

class Relaxation(_message.Message):
    __slots__ = ("change", "gang", "added_node_index", "price", "survival", "start_p50", "start_p90")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    GANG_FIELD_NUMBER: _ClassVar[int]
    ADDED_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    SURVIVAL_FIELD_NUMBER: _ClassVar[int]
    START_P50_FIELD_NUMBER: _ClassVar[int]
    START_P90_FIELD_NUMBER: _ClassVar[int]
    change: str
    gang: GangRequirements
    added_node_index: _containers.RepeatedScalarFieldContainer[int]
    price: PlacementPrice
    survival: Estimate
    start_p50: _duration_pb2.Duration
    start_p90: _duration_pb2.Duration
    def __init__(self, change: _Optional[str] = ..., gang: _Optional[_Union[GangRequirements, _Mapping]] = ..., added_node_index: _Optional[_Iterable[int]] = ..., price: _Optional[_Union[PlacementPrice, _Mapping]] = ..., survival: _Optional[_Union[Estimate, _Mapping]] = ..., start_p50: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., start_p90: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Blocker(_message.Message):
    __slots__ = ("constraint", "message", "nodes_excluded", "relaxations")
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NODES_EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    RELAXATIONS_FIELD_NUMBER: _ClassVar[int]
    constraint: str
    message: str
    nodes_excluded: int
    relaxations: _containers.RepeatedCompositeFieldContainer[Relaxation]
    def __init__(self, constraint: _Optional[str] = ..., message: _Optional[str] = ..., nodes_excluded: _Optional[int] = ..., relaxations: _Optional[_Iterable[_Union[Relaxation, _Mapping]]] = ...) -> None: ...

class PlanPlacementResponse(_message.Message):
    __slots__ = ("decision_id", "options", "blockers", "score_version", "dictionary_version", "allocation_version", "candidates_source", "solve_time", "degraded", "degraded_reason", "proven", "sizes", "notes")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BLOCKERS_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_VERSION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOLVE_TIME_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    PROVEN_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    options: _containers.RepeatedCompositeFieldContainer[PlacementOption]
    blockers: _containers.RepeatedCompositeFieldContainer[Blocker]
    score_version: int
    dictionary_version: int
    allocation_version: int
    candidates_source: str
    solve_time: _duration_pb2.Duration
    degraded: bool
    degraded_reason: str
    proven: bool
    sizes: _containers.RepeatedCompositeFieldContainer[PlacementSize]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, decision_id: _Optional[str] = ..., options: _Optional[_Iterable[_Union[PlacementOption, _Mapping]]] = ..., blockers: _Optional[_Iterable[_Union[Blocker, _Mapping]]] = ..., score_version: _Optional[int] = ..., dictionary_version: _Optional[int] = ..., allocation_version: _Optional[int] = ..., candidates_source: _Optional[str] = ..., solve_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., degraded: bool = ..., degraded_reason: _Optional[str] = ..., proven: bool = ..., sizes: _Optional[_Iterable[_Union[PlacementSize, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class EvaluatePlacementRequest(_message.Message):
    __slots__ = ("gang", "dictionary_version", "node_index", "explain")
    GANG_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    gang: GangRequirements
    dictionary_version: int
    node_index: _containers.RepeatedScalarFieldContainer[int]
    explain: bool
    def __init__(self, gang: _Optional[_Union[GangRequirements, _Mapping]] = ..., dictionary_version: _Optional[int] = ..., node_index: _Optional[_Iterable[int]] = ..., explain: bool = ...) -> None: ...

class EvaluatePlacementResponse(_message.Message):
    __slots__ = ("option", "score_version", "dictionary_version", "degraded", "degraded_reason", "decision_id", "notes")
    OPTION_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    option: PlacementOption
    score_version: int
    dictionary_version: int
    degraded: bool
    degraded_reason: str
    decision_id: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, option: _Optional[_Union[PlacementOption, _Mapping]] = ..., score_version: _Optional[int] = ..., dictionary_version: _Optional[int] = ..., degraded: bool = ..., degraded_reason: _Optional[str] = ..., decision_id: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchPlanRequest(_message.Message):
    __slots__ = ("plan", "change_gpu_hours_min", "current_node_index")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CHANGE_GPU_HOURS_MIN_FIELD_NUMBER: _ClassVar[int]
    CURRENT_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    plan: PlanPlacementRequest
    change_gpu_hours_min: float
    current_node_index: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, plan: _Optional[_Union[PlanPlacementRequest, _Mapping]] = ..., change_gpu_hours_min: _Optional[float] = ..., current_node_index: _Optional[_Iterable[int]] = ...) -> None: ...

class WatchPlanResponse(_message.Message):
    __slots__ = ("change", "plan", "reasons", "left_node_index", "joined_node_index", "score_version")
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    LEFT_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    JOINED_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    change: PlanChange
    plan: PlanPlacementResponse
    reasons: _containers.RepeatedScalarFieldContainer[str]
    left_node_index: _containers.RepeatedScalarFieldContainer[int]
    joined_node_index: _containers.RepeatedScalarFieldContainer[int]
    score_version: int
    def __init__(self, change: _Optional[_Union[PlanChange, str]] = ..., plan: _Optional[_Union[PlanPlacementResponse, _Mapping]] = ..., reasons: _Optional[_Iterable[str]] = ..., left_node_index: _Optional[_Iterable[int]] = ..., joined_node_index: _Optional[_Iterable[int]] = ..., score_version: _Optional[int] = ...) -> None: ...

class ListTopologyDomainsRequest(_message.Message):
    __slots__ = ("tier", "candidates")
    TIER_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    tier: Tier
    candidates: PlacementCandidates
    def __init__(self, tier: _Optional[_Union[Tier, str]] = ..., candidates: _Optional[_Union[PlacementCandidates, _Mapping]] = ...) -> None: ...

class TopologyDomain(_message.Message):
    __slots__ = ("name", "node_index", "free_nodes", "usable_nodes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FREE_NODES_FIELD_NUMBER: _ClassVar[int]
    USABLE_NODES_FIELD_NUMBER: _ClassVar[int]
    name: str
    node_index: _containers.RepeatedScalarFieldContainer[int]
    free_nodes: int
    usable_nodes: int
    def __init__(self, name: _Optional[str] = ..., node_index: _Optional[_Iterable[int]] = ..., free_nodes: _Optional[int] = ..., usable_nodes: _Optional[int] = ...) -> None: ...

class ListTopologyDomainsResponse(_message.Message):
    __slots__ = ("domains", "unknown_node_index", "free_bitmap", "excluded_bitmap", "candidates_source", "score_version", "dictionary_version")
    DOMAINS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FREE_BITMAP_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_BITMAP_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_SOURCE_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    domains: _containers.RepeatedCompositeFieldContainer[TopologyDomain]
    unknown_node_index: _containers.RepeatedScalarFieldContainer[int]
    free_bitmap: bytes
    excluded_bitmap: bytes
    candidates_source: str
    score_version: int
    dictionary_version: int
    def __init__(self, domains: _Optional[_Iterable[_Union[TopologyDomain, _Mapping]]] = ..., unknown_node_index: _Optional[_Iterable[int]] = ..., free_bitmap: _Optional[bytes] = ..., excluded_bitmap: _Optional[bytes] = ..., candidates_source: _Optional[str] = ..., score_version: _Optional[int] = ..., dictionary_version: _Optional[int] = ...) -> None: ...

class PlanResizeRequest(_message.Message):
    __slots__ = ("gang", "current_node_index", "candidates", "reshard", "checkpoint_age", "checkpoint_on_demand", "gain_gpu_hours_min", "explain")
    GANG_FIELD_NUMBER: _ClassVar[int]
    CURRENT_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    RESHARD_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AGE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ON_DEMAND_FIELD_NUMBER: _ClassVar[int]
    GAIN_GPU_HOURS_MIN_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    gang: GangRequirements
    current_node_index: _containers.RepeatedScalarFieldContainer[int]
    candidates: PlacementCandidates
    reshard: _duration_pb2.Duration
    checkpoint_age: _duration_pb2.Duration
    checkpoint_on_demand: bool
    gain_gpu_hours_min: float
    explain: bool
    def __init__(self, gang: _Optional[_Union[GangRequirements, _Mapping]] = ..., current_node_index: _Optional[_Iterable[int]] = ..., candidates: _Optional[_Union[PlacementCandidates, _Mapping]] = ..., reshard: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., checkpoint_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., checkpoint_on_demand: bool = ..., gain_gpu_hours_min: _Optional[float] = ..., explain: bool = ...) -> None: ...

class ResizeOption(_message.Message):
    __slots__ = ("kind", "placement", "joined_node_index", "left_node_index", "wait", "stop_hours", "gain_gpu_hours", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    JOINED_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEFT_NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    STOP_HOURS_FIELD_NUMBER: _ClassVar[int]
    GAIN_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: ResizeKind
    placement: PlacementOption
    joined_node_index: _containers.RepeatedScalarFieldContainer[int]
    left_node_index: _containers.RepeatedScalarFieldContainer[int]
    wait: _duration_pb2.Duration
    stop_hours: Estimate
    gain_gpu_hours: Estimate
    reason: str
    def __init__(self, kind: _Optional[_Union[ResizeKind, str]] = ..., placement: _Optional[_Union[PlacementOption, _Mapping]] = ..., joined_node_index: _Optional[_Iterable[int]] = ..., left_node_index: _Optional[_Iterable[int]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., stop_hours: _Optional[_Union[Estimate, _Mapping]] = ..., gain_gpu_hours: _Optional[_Union[Estimate, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class PlanResizeResponse(_message.Message):
    __slots__ = ("decision_id", "options", "gain_gpu_hours_min", "score_version", "dictionary_version", "candidates_source", "degraded", "degraded_reason", "notes")
    DECISION_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    GAIN_GPU_HOURS_MIN_FIELD_NUMBER: _ClassVar[int]
    SCORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_SOURCE_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    decision_id: str
    options: _containers.RepeatedCompositeFieldContainer[ResizeOption]
    gain_gpu_hours_min: float
    score_version: int
    dictionary_version: int
    candidates_source: str
    degraded: bool
    degraded_reason: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, decision_id: _Optional[str] = ..., options: _Optional[_Iterable[_Union[ResizeOption, _Mapping]]] = ..., gain_gpu_hours_min: _Optional[float] = ..., score_version: _Optional[int] = ..., dictionary_version: _Optional[int] = ..., candidates_source: _Optional[str] = ..., degraded: bool = ..., degraded_reason: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...
