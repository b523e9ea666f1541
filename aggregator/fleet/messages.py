"""What the fleet needs of the wire's messages, so that it can be fed without gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class DeviceLike(Protocol):
    """`telemetry_pb2.Device`."""

    @property
    def kind(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...


class EventLike(Protocol):
    """`telemetry_pb2.HealthEvent`."""

    @property
    def device(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def message(self) -> str: ...
    @property
    def wall_time_ns(self) -> int: ...
