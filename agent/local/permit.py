"""The fleet's permit to enforce, as the aggregator gives it: short, renewed by each message, gone without one."""

from __future__ import annotations

from typing import NamedTuple

from ...fingerprints.wire.telemetry_pb2 import IngestAck, RegisterNodeResponse
from ..clock import Clock
from .verdict import PERMIT_SECONDS_MAX, SECOND_NS, text


class Held(NamedTuple):
    """Until when it is in force (boot time), and why it was granted."""

    until_ns: int
    reason: str


class Permit:
    """What the last message said. `take` is for one thread at a time, `held` for any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: Held | None = None

    def take(self, message: RegisterNodeResponse | IngestAck) -> None:
        """Renew the permit by *message*, or lose it: one that names none takes it back."""
        seconds = (
            min(message.permit.seconds, PERMIT_SECONDS_MAX) if message.HasField("permit") else 0
        )
        if not seconds:
            self._held = None
            return
        until_ns = self._clock.boottime_ns() + seconds * SECOND_NS
        self._held = Held(until_ns, text(message.permit.reason))

    def held(self, now_ns: int) -> Held | None:
        """Return the permit that is in force at *now_ns*."""
        held = self._held
        return held if held is not None and now_ns < held.until_ns else None
