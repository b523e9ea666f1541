"""Flight recorder of a host: stores recordings around findings, and sends requested recordings.

The daemon's thread decides once a second and never uses the disk. Two other threads compress, write
and read: one for the disk, one for recordings sent from memory. A disk that hangs costs only
recordings.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from ...contract.recording import (
    SECONDS_MAX,
    TEXT_CHARACTERS_MAX,
    GpuRecording,
    RecordingError,
    decode_recording,
    encode_recording,
)
from ...contract.wire.telemetry_pb2 import (
    HealthEvent,
    IngestAck,
    RecordingRequest,
    RegisterNodeResponse,
)
from ..clock import Clock
from ..sampler.pool import SamplerPool
from ..transport.recording_uploads import RecordingUpload, RecordingUploads
from .storage import NoRecordingError, RecordingStorage

SECOND_NS = 1_000_000_000
#: Findings this soon after the start existed before.
SETTLE_NS = 60 * SECOND_NS
#: Findings this old are not new.
FINDING_AGE_NS_MAX = 60 * SECOND_NS
#: Delay after the first reason, so that the recording shows the consequences too.
AFTER_NS = 30 * SECOND_NS
#: Minimum time between stored recordings.
INTERVAL_NS = 60 * SECOND_NS
#: Reasons named per recording; further ones are counted.
REASONS_MAX = 3
REASON_CHARACTERS_MAX = 120
#: Recorded events -> whether code 0 means that the event is corrected or over, and not recorded.
RECORDED_EVENTS = {
    "gpu.xid": False,
    "gpu.lost": False,
    "gpu.driver_event": False,
    "gpu.driver_message": False,
    "gpu.needs_reset": False,
    "gpu.needs_reboot": False,
    "nvswitch.sxid": False,
    "pcie.aer": True,
    "probe.hung": False,
    "probe.driver_hung": False,
}

#: Time for the sampler to record; beyond, it hangs in a driver.
ORDER_NS_MAX = 5 * SECOND_NS
#: Time for the disk; beyond, a request for stored recordings gets an error.
DISK_NS_MAX = 10 * SECOND_NS
#: Requests and reasons that wait for the daemon's thread; further ones are dropped.
REQUESTS_MAX, REASONS_WAITING_MAX = 8, 64
#: Remembered request ids: an aggregator may repeat a request on another connection.
SEEN_MAX = 64
#: Prefixes of findings that follow an event, which is recorded itself.
_OF_EVENTS = ("xid", "sxid")
log = logging.getLogger(__name__)


def event_reason(event: HealthEvent) -> str:
    """Return why an event is recorded, or ""."""
    if event.name not in RECORDED_EVENTS or (RECORDED_EVENTS[event.name] and not event.code):
        return ""
    if event.attributes.get("state") == "back" or event.revision:
        return ""  # over, or already reported
    code = f" {event.code}" if event.name in ("gpu.xid", "nvswitch.sxid") else ""
    return f"{event.name}{code} {event.device}".strip()[:REASON_CHARACTERS_MAX]


class RecordingTriggers:
    """Decides when to record. Pure. Times are boot time."""

    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._more = 0
        self._due_ns = self._began_ns = 0
        self._recorded_ns = -INTERVAL_NS

    def add(self, reason: str, now_ns: int) -> None:
        """Add a reason. All reasons before the recording is due share the recording."""
        if not self._reasons:
            self._began_ns = now_ns
            self._due_ns = max(now_ns + AFTER_NS, self._recorded_ns + INTERVAL_NS)
        if reason in self._reasons:
            return
        if len(self._reasons) < REASONS_MAX:
            self._reasons.append(reason)
        else:
            self._more += 1

    def take(self, now_ns: int) -> tuple[str, int]:
        """Return a due recording's reason, and the time of its first reason; else "" and 0."""
        if not self._reasons or now_ns < self._due_ns:
            return "", 0
        more = f" and {self._more} more" if self._more else ""
        text = ("; ".join(self._reasons) + more)[:TEXT_CHARACTERS_MAX]
        self._reasons, self._more, self._recorded_ns = [], 0, now_ns
        return text, self._began_ns


class ActiveFinding(Protocol):
    """Attributes needed of a finding of this host."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def since_ns(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RecordingOrder:
    """A recording in progress: requested, or to be stored."""

    number: int
    seconds: int
    ordered_ns: int
    request_id: str = ""
    reason: str = ""
    finding_ns: int = 0


class _BackgroundTask:
    """Runs a job at a time, each in a thread of its own that is never joined."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self.began_ns = 0

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None], now_ns: int) -> bool:
        """Start *job*; False if a job runs, or the host cannot start a thread."""
        if self.busy:
            return False
        self._thread = threading.Thread(target=_logged, args=(job,), name=self._name, daemon=True)
        self.began_ns = now_ns
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            return False
        return True


def _logged(job: Callable[[], None]) -> None:
    try:
        job()
    except Exception:
        log.exception("a recording failed", extra={"cause": "recorder"})


class FlightRecorder:
    """Orders recordings. No method raises or blocks.

    `tick` is for the daemon's thread, once a second; `observe` and `on_response` for any thread.
    """

    def __init__(
        self,
        samplers: SamplerPool,
        storage: RecordingStorage,
        uploads: RecordingUploads,
        clock: Clock,
        *,
        host: str,
        boot_id: bytes,
        findings: Callable[[], Iterable[ActiveFinding]] = tuple,
    ) -> None:
        """*findings* returns this host's active findings."""
        self._samplers, self._storage, self._uploads = samplers, storage, uploads
        self._clock, self._host, self._boot_id = clock, host, boot_id.hex()
        self._findings = findings
        self._known_findings: frozenset[tuple[str, str]] = frozenset()
        self._triggers = RecordingTriggers()
        self._settled_ns = clock.boottime_ns() + SETTLE_NS
        self._reasons: deque[str] = deque(maxlen=REASONS_WAITING_MAX)
        self._requests: deque[RecordingRequest] = deque()
        self._seen: deque[str] = deque(maxlen=SEEN_MAX)
        self._order: RecordingOrder | None = None
        self._number = 0
        self._disk, self._sender = _BackgroundTask("recorder-disk"), _BackgroundTask("recorder")
        self.stored_recordings = self.lost_recordings = 0

    def observe(self, event: HealthEvent) -> None:
        """Store the reason if the event must be recorded."""
        if self._storage.is_enabled and (reason := event_reason(event)):
            self._reasons.append(reason)

    def on_response(self, message: RegisterNodeResponse | IngestAck) -> None:
        """Queue the aggregator's new requests."""
        if isinstance(message, IngestAck):
            for request in message.recordings:
                if request.id not in self._seen and len(self._requests) < REQUESTS_MAX:
                    self._seen.append(request.id)
                    self._requests.append(request)

    def tick(self) -> None:
        """Do the due work. Never raises."""
        try:
            self._tick(self._clock.boottime_ns())
        except Exception:
            log.exception("the flight recorder failed", extra={"cause": "recorder.tick"})

    def _tick(self, now_ns: int) -> None:
        while self._reasons:
            self._triggers.add(self._reasons.popleft(), now_ns)
        if self._storage.is_enabled:
            self._observe_findings(now_ns)
        if self._order is not None:
            self._finish_order(self._order, now_ns)
        if self._order is None:
            reason, finding_ns = self._triggers.take(now_ns)
            if reason:
                self._begin_order(SECONDS_MAX, now_ns, reason=reason, finding_ns=finding_ns)
        while self._requests and self._answer(self._requests[0], now_ns):
            self._requests.popleft()

    def _observe_findings(self, now_ns: int) -> None:
        findings = {
            (finding.name, finding.device): finding.since_ns for finding in self._findings()
        }
        for (name, device), since_ns in findings.items():
            is_new = (name, device) not in self._known_findings and now_ns >= self._settled_ns
            is_recent = now_ns - since_ns <= FINDING_AGE_NS_MAX
            if is_new and is_recent and not name.startswith(_OF_EVENTS):
                self._triggers.add(f"finding {name} {device}".strip(), now_ns)
        self._known_findings = frozenset(findings)

    def _answer(self, request: RecordingRequest, now_ns: int) -> bool:
        """Start answering a request; False: try again later."""
        if request.list or request.name:
            return self._answer_from_disk(request, now_ns)
        if not 1 <= request.seconds <= SECONDS_MAX:
            self._reject(request.id, f"{request.seconds} s: expected 1 to {SECONDS_MAX}")
            return True
        if self._order is not None or self._sender.busy:
            return False
        self._begin_order(request.seconds, now_ns, request_id=request.id)
        return True

    def _answer_from_disk(self, request: RecordingRequest, now_ns: int) -> bool:
        if self._disk.start(lambda: self._read(request), now_ns):
            return True
        if now_ns - self._disk.began_ns < DISK_NS_MAX:
            return False
        self._reject(request.id, "the host's disk does not respond")
        return True

    def _begin_order(
        self,
        seconds: int,
        now_ns: int,
        *,
        request_id: str = "",
        reason: str = "",
        finding_ns: int = 0,
    ) -> None:
        self._number += 1
        self._order = RecordingOrder(self._number, seconds, now_ns, request_id, reason, finding_ns)
        if not self._samplers.record(self._number, seconds):
            self._fail(self._order, "no GPU of this host is sampled now")

    def _finish_order(self, order: RecordingOrder, now_ns: int) -> None:
        """Handle the sampler's recording, or fail after ORDER_NS_MAX."""
        recorded = self._samplers.recorded
        if recorded is None or recorded[0] != order.number:
            if now_ns - order.ordered_ns > ORDER_NS_MAX:
                seconds = ORDER_NS_MAX // SECOND_NS
                self._fail(order, f"the sampler of the GPUs did not answer within {seconds} s")
            return
        _, data, message = recorded
        wall_offset_ns = self._clock.wall_ns() - now_ns
        if not data:
            self._fail(order, message)
        elif order.request_id:
            self._order = None
            self._sender.start(lambda: self._send(order, data, wall_offset_ns), now_ns)
        else:
            self._order = None
            if not self._disk.start(lambda: self._store(order, data, wall_offset_ns), now_ns):
                self._lose("the disk does not respond")

    def _fail(self, order: RecordingOrder, message: str) -> None:
        self._order = None
        if order.request_id:
            self._reject(order.request_id, message)
        else:
            self._lose(message)

    def _reject(self, request_id: str, message: str) -> None:
        self._uploads.add(RecordingUpload(request_id, error=message))

    def _lose(self, message: str) -> None:
        self.lost_recordings += 1
        log.warning("no recording was stored: %s", message, extra={"cause": "recorder.lost"})

    def _complete(self, data: bytes, reason: str, wall_offset_ns: int) -> GpuRecording:
        """Return the recording with host, boot, reason and wall time. Raises RecordingError."""
        recording = decode_recording(data)
        return replace(
            recording,
            host=self._host,
            boot_id=self._boot_id,
            reason=reason,
            wall_time_ns=max(0, recording.boottime_ns + wall_offset_ns),
        )

    def _send(self, order: RecordingOrder, data: bytes, wall_offset_ns: int) -> None:
        try:
            recording = self._complete(data, "requested", wall_offset_ns)
            self._uploads.add(RecordingUpload(order.request_id, encode_recording(recording)))
        except RecordingError as error:
            self._reject(order.request_id, f"the samples cannot be recorded: {error}")

    def _store(self, order: RecordingOrder, data: bytes, wall_offset_ns: int) -> None:
        try:
            recording = self._complete(data, order.reason, wall_offset_ns)
            recording = replace(recording, finding_ns=order.finding_ns)
            name = self._storage.store(recording, encode_recording(recording))
        except (OSError, RecordingError) as error:
            self._lose(getattr(error, "strerror", "") or str(error))
            return
        self.stored_recordings += 1
        extra = {"cause": "recorder.stored"}
        log.info("recording %s is stored: %s", name, recording.reason, extra=extra)

    def _read(self, request: RecordingRequest) -> None:
        try:
            if request.list:
                upload = RecordingUpload(request.id, stored=self._storage.recordings())
            else:
                upload = RecordingUpload(request.id, self._storage.read(request.name))
        except NoRecordingError as error:
            upload = RecordingUpload(request.id, error=f"{error.args[0]}")
        except OSError as error:
            upload = RecordingUpload(
                request.id, error=f"recordings cannot be read: {error.strerror or error}"
            )
        self._uploads.add(upload)
