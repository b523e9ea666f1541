import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListJobsRequest(_message.Message):
    __slots__ = ("page_size",)
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    def __init__(self, page_size: _Optional[int] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "left_out_count")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    left_out_count: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., left_out_count: _Optional[int] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("job", "run_id", "source", "hosts_count", "gpus_count", "start_time", "end_time", "pace", "pace_reference", "pace_reference_time", "pace_measure", "verdict", "lost_gpu_hours")
    JOB_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    HOSTS_COUNT_FIELD_NUMBER: _ClassVar[int]
    GPUS_COUNT_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    PACE_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    PACE_REFERENCE_TIME_FIELD_NUMBER: _ClassVar[int]
    PACE_MEASURE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    LOST_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    job: str
    run_id: str
    source: str
    hosts_count: int
    gpus_count: int
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    pace: float
    pace_reference: str
    pace_reference_time: _timestamp_pb2.Timestamp
    pace_measure: str
    verdict: JobVerdict
    lost_gpu_hours: float
    def __init__(self, job: _Optional[str] = ..., run_id: _Optional[str] = ..., source: _Optional[str] = ..., hosts_count: _Optional[int] = ..., gpus_count: _Optional[int] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pace: _Optional[float] = ..., pace_reference: _Optional[str] = ..., pace_reference_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., pace_measure: _Optional[str] = ..., verdict: _Optional[_Union[JobVerdict, _Mapping]] = ..., lost_gpu_hours: _Optional[float] = ...) -> None: ...

class JobVerdict(_message.Message):
    __slots__ = ("verdict", "cause", "reason", "shared_cause", "advisory", "nodes", "device", "slowdown", "slowdown_lower", "slowdown_upper", "stops", "start_time", "end_time", "lost_gpu_hours", "message", "evidence_sql", "next_command")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARED_CAUSE_FIELD_NUMBER: _ClassVar[int]
    ADVISORY_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_LOWER_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_UPPER_FIELD_NUMBER: _ClassVar[int]
    STOPS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    LOST_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_SQL_FIELD_NUMBER: _ClassVar[int]
    NEXT_COMMAND_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    cause: str
    reason: str
    shared_cause: str
    advisory: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    device: str
    slowdown: float
    slowdown_lower: float
    slowdown_upper: float
    stops: bool
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    lost_gpu_hours: float
    message: str
    evidence_sql: str
    next_command: str
    def __init__(self, verdict: _Optional[str] = ..., cause: _Optional[str] = ..., reason: _Optional[str] = ..., shared_cause: _Optional[str] = ..., advisory: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., device: _Optional[str] = ..., slowdown: _Optional[float] = ..., slowdown_lower: _Optional[float] = ..., slowdown_upper: _Optional[float] = ..., stops: bool = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., lost_gpu_hours: _Optional[float] = ..., message: _Optional[str] = ..., evidence_sql: _Optional[str] = ..., next_command: _Optional[str] = ...) -> None: ...

class JobWindow(_message.Message):
    __slots__ = ("time", "node_index", "shares", "estimated", "pace", "step_seconds", "change_ratio")
    TIME_FIELD_NUMBER: _ClassVar[int]
    NODE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_RATIO_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    node_index: _containers.RepeatedScalarFieldContainer[int]
    shares: bytes
    estimated: bool
    pace: float
    step_seconds: float
    change_ratio: float
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., node_index: _Optional[_Iterable[int]] = ..., shares: _Optional[bytes] = ..., estimated: bool = ..., pace: _Optional[float] = ..., step_seconds: _Optional[float] = ..., change_ratio: _Optional[float] = ...) -> None: ...

class JobRank(_message.Message):
    __slots__ = ("rank", "node", "step_seconds", "spread_seconds", "since_seconds", "steps_count")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPREAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SINCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_COUNT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node: str
    step_seconds: float
    spread_seconds: float
    since_seconds: float
    steps_count: int
    def __init__(self, rank: _Optional[int] = ..., node: _Optional[str] = ..., step_seconds: _Optional[float] = ..., spread_seconds: _Optional[float] = ..., since_seconds: _Optional[float] = ..., steps_count: _Optional[int] = ...) -> None: ...

class JobRun(_message.Message):
    __slots__ = ("workload_class", "class_confidence", "earlier_runs", "pace_ratio", "pace_ratio_lower", "pace_ratio_upper", "slower_than_before", "verdict", "slow_nodes", "memory_message")
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    CLASS_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    EARLIER_RUNS_FIELD_NUMBER: _ClassVar[int]
    PACE_RATIO_FIELD_NUMBER: _ClassVar[int]
    PACE_RATIO_LOWER_FIELD_NUMBER: _ClassVar[int]
    PACE_RATIO_UPPER_FIELD_NUMBER: _ClassVar[int]
    SLOWER_THAN_BEFORE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SLOW_NODES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    workload_class: str
    class_confidence: float
    earlier_runs: int
    pace_ratio: float
    pace_ratio_lower: float
    pace_ratio_upper: float
    slower_than_before: bool
    verdict: str
    slow_nodes: _containers.RepeatedScalarFieldContainer[str]
    memory_message: str
    def __init__(self, workload_class: _Optional[str] = ..., class_confidence: _Optional[float] = ..., earlier_runs: _Optional[int] = ..., pace_ratio: _Optional[float] = ..., pace_ratio_lower: _Optional[float] = ..., pace_ratio_upper: _Optional[float] = ..., slower_than_before: bool = ..., verdict: _Optional[str] = ..., slow_nodes: _Optional[_Iterable[str]] = ..., memory_message: _Optional[str] = ...) -> None: ...

class JobForecastEvent(_message.Message):
    __slots__ = ("at", "until", "probability", "reason")
    AT_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    at: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    probability: float
    reason: str
    def __init__(self, at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., probability: _Optional[float] = ..., reason: _Optional[str] = ..., **kwargs) -> None: ...

class JobForecast(_message.Message):
    __slots__ = ("horizon_seconds", "reason", "checkpoint", "host_stall", "power_watts", "power_watts_lower", "power_watts_upper")
    HORIZON_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    HOST_STALL_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_LOWER_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_UPPER_FIELD_NUMBER: _ClassVar[int]
    horizon_seconds: float
    reason: str
    checkpoint: JobForecastEvent
    host_stall: JobForecastEvent
    power_watts: float
    power_watts_lower: float
    power_watts_upper: float
    def __init__(self, horizon_seconds: _Optional[float] = ..., reason: _Optional[str] = ..., checkpoint: _Optional[_Union[JobForecastEvent, _Mapping]] = ..., host_stall: _Optional[_Union[JobForecastEvent, _Mapping]] = ..., power_watts: _Optional[float] = ..., power_watts_lower: _Optional[float] = ..., power_watts_upper: _Optional[float] = ...) -> None: ...

class JobAdvice(_message.Message):
    __slots__ = ("advisory", "subject", "state", "action", "message")
    ADVISORY_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    advisory: str
    subject: str
    state: str
    action: str
    message: str
    def __init__(self, advisory: _Optional[str] = ..., subject: _Optional[str] = ..., state: _Optional[str] = ..., action: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class JobStory(_message.Message):
    __slots__ = ("job", "nodes", "windows", "verdicts", "advice", "ranks", "run", "forecast", "step_seconds", "checkpoint_interval_seconds", "step_part_ratios", "step_parts_confidence_ratio", "steps_reported", "now")
    class StepPartRatiosEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_PART_RATIOS_FIELD_NUMBER: _ClassVar[int]
    STEP_PARTS_CONFIDENCE_RATIO_FIELD_NUMBER: _ClassVar[int]
    STEPS_REPORTED_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    job: Job
    nodes: _containers.RepeatedScalarFieldContainer[str]
    windows: _containers.RepeatedCompositeFieldContainer[JobWindow]
    verdicts: _containers.RepeatedCompositeFieldContainer[JobVerdict]
    advice: _containers.RepeatedCompositeFieldContainer[JobAdvice]
    ranks: _containers.RepeatedCompositeFieldContainer[JobRank]
    run: JobRun
    forecast: _containers.RepeatedCompositeFieldContainer[JobForecast]
    step_seconds: float
    checkpoint_interval_seconds: float
    step_part_ratios: _containers.ScalarMap[str, float]
    step_parts_confidence_ratio: float
    steps_reported: bool
    now: _timestamp_pb2.Timestamp
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., nodes: _Optional[_Iterable[str]] = ..., windows: _Optional[_Iterable[_Union[JobWindow, _Mapping]]] = ..., verdicts: _Optional[_Iterable[_Union[JobVerdict, _Mapping]]] = ..., advice: _Optional[_Iterable[_Union[JobAdvice, _Mapping]]] = ..., ranks: _Optional[_Iterable[_Union[JobRank, _Mapping]]] = ..., run: _Optional[_Union[JobRun, _Mapping]] = ..., forecast: _Optional[_Iterable[_Union[JobForecast, _Mapping]]] = ..., step_seconds: _Optional[float] = ..., checkpoint_interval_seconds: _Optional[float] = ..., step_part_ratios: _Optional[_Mapping[str, float]] = ..., step_parts_confidence_ratio: _Optional[float] = ..., steps_reported: bool = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
