from gangline.contract.wire import placement_pb2 as _placement_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Sharing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHARING_UNSPECIFIED: _ClassVar[Sharing]
    SHARING_HOST: _ClassVar[Sharing]
    SHARING_TIME_SLICING: _ClassVar[Sharing]
    SHARING_MPS: _ClassVar[Sharing]
    SHARING_MIG: _ClassVar[Sharing]

class BoundaryStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BOUNDARY_STATUS_UNSPECIFIED: _ClassVar[BoundaryStatus]
    BOUNDARY_STATUS_VERIFIED: _ClassVar[BoundaryStatus]
    BOUNDARY_STATUS_VIOLATED: _ClassVar[BoundaryStatus]
    BOUNDARY_STATUS_NOT_VERIFIED: _ClassVar[BoundaryStatus]
SHARING_UNSPECIFIED: Sharing
SHARING_HOST: Sharing
SHARING_TIME_SLICING: Sharing
SHARING_MPS: Sharing
SHARING_MIG: Sharing
BOUNDARY_STATUS_UNSPECIFIED: BoundaryStatus
BOUNDARY_STATUS_VERIFIED: BoundaryStatus
BOUNDARY_STATUS_VIOLATED: BoundaryStatus
BOUNDARY_STATUS_NOT_VERIFIED: BoundaryStatus

class ResourceDemand(_message.Message):
    __slots__ = ("resource", "p50", "p95", "p99")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P95_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    resource: str
    p50: float
    p95: float
    p99: float
    def __init__(self, resource: _Optional[str] = ..., p50: _Optional[float] = ..., p95: _Optional[float] = ..., p99: _Optional[float] = ...) -> None: ...

class ColocatedWorkload(_message.Message):
    __slots__ = ("run", "workload_class", "demands")
    RUN_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_CLASS_FIELD_NUMBER: _ClassVar[int]
    DEMANDS_FIELD_NUMBER: _ClassVar[int]
    run: str
    workload_class: str
    demands: _containers.RepeatedCompositeFieldContainer[ResourceDemand]
    def __init__(self, run: _Optional[str] = ..., workload_class: _Optional[str] = ..., demands: _Optional[_Iterable[_Union[ResourceDemand, _Mapping]]] = ...) -> None: ...

class Colocation(_message.Message):
    __slots__ = ("workloads", "sharing", "node", "gpu_model")
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    workloads: _containers.RepeatedCompositeFieldContainer[ColocatedWorkload]
    sharing: Sharing
    node: str
    gpu_model: str
    def __init__(self, workloads: _Optional[_Iterable[_Union[ColocatedWorkload, _Mapping]]] = ..., sharing: _Optional[_Union[Sharing, str]] = ..., node: _Optional[str] = ..., gpu_model: _Optional[str] = ...) -> None: ...

class PredictInterferenceRequest(_message.Message):
    __slots__ = ("colocations",)
    COLOCATIONS_FIELD_NUMBER: _ClassVar[int]
    colocations: _containers.RepeatedCompositeFieldContainer[Colocation]
    def __init__(self, colocations: _Optional[_Iterable[_Union[Colocation, _Mapping]]] = ...) -> None: ...

class WorkloadSlowdown(_message.Message):
    __slots__ = ("slowdown", "binding_resource", "abstained")
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    BINDING_RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ABSTAINED_FIELD_NUMBER: _ClassVar[int]
    slowdown: _placement_pb2.Estimate
    binding_resource: str
    abstained: str
    def __init__(self, slowdown: _Optional[_Union[_placement_pb2.Estimate, _Mapping]] = ..., binding_resource: _Optional[str] = ..., abstained: _Optional[str] = ...) -> None: ...

class ColocationPrediction(_message.Message):
    __slots__ = ("slowdowns", "blocker")
    SLOWDOWNS_FIELD_NUMBER: _ClassVar[int]
    BLOCKER_FIELD_NUMBER: _ClassVar[int]
    slowdowns: _containers.RepeatedCompositeFieldContainer[WorkloadSlowdown]
    blocker: str
    def __init__(self, slowdowns: _Optional[_Iterable[_Union[WorkloadSlowdown, _Mapping]]] = ..., blocker: _Optional[str] = ...) -> None: ...

class PredictInterferenceResponse(_message.Message):
    __slots__ = ("predictions", "version")
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    predictions: _containers.RepeatedCompositeFieldContainer[ColocationPrediction]
    version: int
    def __init__(self, predictions: _Optional[_Iterable[_Union[ColocationPrediction, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class PlannedLayout(_message.Message):
    __slots__ = ("gpus", "cpus", "memory_nodes")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_NODES_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedScalarFieldContainer[str]
    cpus: str
    memory_nodes: str
    def __init__(self, gpus: _Optional[_Iterable[str]] = ..., cpus: _Optional[str] = ..., memory_nodes: _Optional[str] = ...) -> None: ...

class VerifyIsolationRequest(_message.Message):
    __slots__ = ("node", "training", "inference", "planned_training", "accept_not_verified", "accept_violated")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_FIELD_NUMBER: _ClassVar[int]
    PLANNED_TRAINING_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_NOT_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_VIOLATED_FIELD_NUMBER: _ClassVar[int]
    node: str
    training: str
    inference: str
    planned_training: PlannedLayout
    accept_not_verified: _containers.RepeatedScalarFieldContainer[str]
    accept_violated: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., training: _Optional[str] = ..., inference: _Optional[str] = ..., planned_training: _Optional[_Union[PlannedLayout, _Mapping]] = ..., accept_not_verified: _Optional[_Iterable[str]] = ..., accept_violated: _Optional[_Iterable[str]] = ...) -> None: ...

class BoundaryCheck(_message.Message):
    __slots__ = ("boundary", "status", "evidence", "accepted")
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    boundary: str
    status: BoundaryStatus
    evidence: str
    accepted: bool
    def __init__(self, boundary: _Optional[str] = ..., status: _Optional[_Union[BoundaryStatus, str]] = ..., evidence: _Optional[str] = ..., accepted: bool = ...) -> None: ...

class ProposedLayout(_message.Message):
    __slots__ = ("job", "gpus", "gpu_slices", "cpus", "memory_nodes", "nics")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_SLICES_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_NODES_FIELD_NUMBER: _ClassVar[int]
    NICS_FIELD_NUMBER: _ClassVar[int]
    job: str
    gpus: _containers.RepeatedScalarFieldContainer[str]
    gpu_slices: str
    cpus: str
    memory_nodes: str
    nics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., gpus: _Optional[_Iterable[str]] = ..., gpu_slices: _Optional[str] = ..., cpus: _Optional[str] = ..., memory_nodes: _Optional[str] = ..., nics: _Optional[_Iterable[str]] = ...) -> None: ...

class VerifyIsolationResponse(_message.Message):
    __slots__ = ("passed", "boundaries", "cost", "cost_unknown", "layouts", "advice", "version")
    PASSED_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    COST_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    passed: bool
    boundaries: _containers.RepeatedCompositeFieldContainer[BoundaryCheck]
    cost: ColocationPrediction
    cost_unknown: str
    layouts: _containers.RepeatedCompositeFieldContainer[ProposedLayout]
    advice: _containers.RepeatedScalarFieldContainer[str]
    version: int
    def __init__(self, passed: bool = ..., boundaries: _Optional[_Iterable[_Union[BoundaryCheck, _Mapping]]] = ..., cost: _Optional[_Union[ColocationPrediction, _Mapping]] = ..., cost_unknown: _Optional[str] = ..., layouts: _Optional[_Iterable[_Union[ProposedLayout, _Mapping]]] = ..., advice: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ...) -> None: ...
