"""Hangs: the latest report of a call into a driver that does not return, per host and device."""

from __future__ import annotations

from typing import NamedTuple

from ...contract.wire.telemetry_pb2 import HealthEvent

#: Devices per host whose messages are kept.
DEVICES_PER_HOST_MAX = 64
HANG_MESSAGE_CHARACTERS_MAX = 240
CALL_CHARACTERS_MAX = 80
SECOND_NS = 1_000_000_000
#: If an agent reports a longer call, its beginning is unknown.
SECONDS_MAX = 86_400
EVENTS = ("probe.hung", "probe.driver_hung")


class Hang(NamedTuple):
    """The call in which a device hangs, as its agent reported; `probe_1s` has only numbers."""

    collector: str
    message: str
    call: str
    since_ns: int  # beginning of the call, aggregator's clock; 0: unknown


NO_HANG = Hang("", "", "", 0)


class Hangs:
    """The latest message for each row of `probe_1s`."""

    def __init__(self) -> None:
        self._hosts: dict[int, dict[str, Hang]] = {}

    def update(self, host: int, event: HealthEvent, time_ns: int) -> None:
        """Store one of `EVENTS`, reported at *time_ns* of the aggregator's clock."""
        group, device = event.attributes.get("lane", ""), event.attributes.get("device", "")
        collector = event.attributes.get("collector", "")
        is_whole_driver = event.name == "probe.driver_hung" and group == "gpu"
        row = group if is_whole_driver else f"{group} {device or collector}"
        hangs = self._hosts.setdefault(host, {})
        hangs.pop(row, None)
        while len(hangs) >= DEVICES_PER_HOST_MAX:
            del hangs[next(iter(hangs))]  # the oldest
        message = event.message[:HANG_MESSAGE_CHARACTERS_MAX]
        call = event.attributes.get("call", "")
        began_ns = max(0, time_ns - event.code * SECOND_NS) if event.code <= SECONDS_MAX else 0
        hangs[row] = Hang(collector, message, call[:CALL_CHARACTERS_MAX], began_ns)

    def of(self, host: int, row: str) -> Hang:
        """Return the hang of a row, NO_HANG if there is none."""
        return self._hosts.get(host, {}).get(row, NO_HANG)
