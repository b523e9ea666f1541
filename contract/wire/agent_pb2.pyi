from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReleaseRequest(_message.Message):
    __slots__ = ("gpus", "seconds", "why")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedScalarFieldContainer[str]
    seconds: float
    why: str
    def __init__(self, gpus: _Optional[_Iterable[str]] = ..., seconds: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("released", "holders")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    released: _containers.RepeatedCompositeFieldContainer[ReleasedGpu]
    holders: _containers.RepeatedCompositeFieldContainer[Holder]
    def __init__(self, released: _Optional[_Iterable[_Union[ReleasedGpu, _Mapping]]] = ..., holders: _Optional[_Iterable[_Union[Holder, _Mapping]]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("gpus",)
    GPUS_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gpus: _Optional[_Iterable[str]] = ...) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("resumed",)
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    resumed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, resumed: _Optional[_Iterable[str]] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "process_id", "released", "devices", "driver_updating", "driver_message", "abandoned_count")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DRIVER_UPDATING_FIELD_NUMBER: _ClassVar[int]
    DRIVER_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_COUNT_FIELD_NUMBER: _ClassVar[int]
    version: str
    process_id: int
    released: _containers.RepeatedCompositeFieldContainer[ReleasedGpu]
    devices: _containers.RepeatedCompositeFieldContainer[DeviceTrouble]
    driver_updating: bool
    driver_message: str
    abandoned_count: int
    def __init__(self, version: _Optional[str] = ..., process_id: _Optional[int] = ..., released: _Optional[_Iterable[_Union[ReleasedGpu, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[DeviceTrouble, _Mapping]]] = ..., driver_updating: bool = ..., driver_message: _Optional[str] = ..., abandoned_count: _Optional[int] = ...) -> None: ...

class ReleasedGpu(_message.Message):
    __slots__ = ("pci_address", "seconds_left", "why")
    PCI_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    pci_address: str
    seconds_left: float
    why: str
    def __init__(self, pci_address: _Optional[str] = ..., seconds_left: _Optional[float] = ..., why: _Optional[str] = ...) -> None: ...

class Holder(_message.Message):
    __slots__ = ("pci_address", "process_id", "message")
    PCI_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    pci_address: str
    process_id: int
    message: str
    def __init__(self, pci_address: _Optional[str] = ..., process_id: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class DeviceTrouble(_message.Message):
    __slots__ = ("device", "lane", "state", "call", "hung_seconds", "abandoned_count", "next_try_seconds")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    HUNG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_TRY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    device: str
    lane: str
    state: str
    call: str
    hung_seconds: float
    abandoned_count: int
    next_try_seconds: float
    def __init__(self, device: _Optional[str] = ..., lane: _Optional[str] = ..., state: _Optional[str] = ..., call: _Optional[str] = ..., hung_seconds: _Optional[float] = ..., abandoned_count: _Optional[int] = ..., next_try_seconds: _Optional[float] = ...) -> None: ...

class ReportDiagnosticRequest(_message.Message):
    __slots__ = ("gpu", "serial", "report_id", "outcome", "message", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GPU_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    REPORT_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    gpu: str
    serial: str
    report_id: str
    outcome: int
    message: str
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, gpu: _Optional[str] = ..., serial: _Optional[str] = ..., report_id: _Optional[str] = ..., outcome: _Optional[int] = ..., message: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReportDiagnosticResponse(_message.Message):
    __slots__ = ("gpu",)
    GPU_FIELD_NUMBER: _ClassVar[int]
    gpu: str
    def __init__(self, gpu: _Optional[str] = ...) -> None: ...
