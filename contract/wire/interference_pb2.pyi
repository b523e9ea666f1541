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
SHARING_UNSPECIFIED: Sharing
SHARING_HOST: Sharing
SHARING_TIME_SLICING: Sharing
SHARING_MPS: Sharing
SHARING_MIG: Sharing

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
