"""When a recording is stored without anybody who requests it: decisions without clock or I/O of their own."""

from __future__ import annotations

from ...contract.recording import TEXT_CHARACTERS_MAX
from ...contract.wire.telemetry_pb2 import HealthEvent

SECOND_NS = 1_000_000_000
#: After what began, so that a recording shows what came of it too.
AFTER_NS = 30 * SECOND_NS
#: At most one recording is stored in this time: of a storm the first, and then one a minute.
INTERVAL_NS = 60 * SECOND_NS
#: Reasons of one recording that are named; more are counted.
REASONS_MAX = 3
REASON_CHARACTERS_MAX = 120
#: Events that GPUs' samples explain, and whether their code tells weight from noise (0 is corrected, or over).
RECORDED_EVENTS = {
    "gpu.xid": False,
    "gpu.lost": False,
    "gpu.driver_event": False,
    "gpu.driver_message": False,
    "nvswitch.sxid": False,
    "pcie.aer": True,
    "probe.hung": False,
    "probe.driver_hung": False,
}


def event_reason(event: HealthEvent) -> str:
    """Return why an event is recorded; "" for one that is not."""
    if event.name not in RECORDED_EVENTS or (RECORDED_EVENTS[event.name] and not event.code):
        return ""
    if event.attributes.get("state") == "back" or event.revision:
        return ""  # it is over, or told before
    code = f" {event.code}" if event.name in ("gpu.xid", "nvswitch.sxid") else ""
    return f"{event.name}{code} {event.device}".strip()[:REASON_CHARACTERS_MAX]


class RecordingTriggers:
    """Reasons in, and the moment for a recording out. Times are boot time."""

    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._more = 0
        self._due_ns = 0
        self._recorded_ns = -INTERVAL_NS

    def add(self, reason: str, now_ns: int) -> None:
        """Something began. What begins before the recording is due goes with it."""
        if not self._reasons:
            self._due_ns = max(now_ns + AFTER_NS, self._recorded_ns + INTERVAL_NS)
        if reason in self._reasons:
            return
        if len(self._reasons) < REASONS_MAX:
            self._reasons.append(reason)
        else:
            self._more += 1

    def take(self, now_ns: int) -> str:
        """Return why a recording is due now, once; "" while none is."""
        if not self._reasons or now_ns < self._due_ns:
            return ""
        more = f" and {self._more} more" if self._more else ""
        text = ("; ".join(self._reasons) + more)[:TEXT_CHARACTERS_MAX]
        self._reasons, self._more, self._recorded_ns = [], 0, now_ns
        return text
