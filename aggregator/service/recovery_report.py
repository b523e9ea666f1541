"""ReportRecovery: stores each recovery's result once, for later plans.

It is separate because the score process has no store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...contract.wire import recovery_pb2
from ..advisories.advisory_limits import HOUR_NS, SECOND_NS
from ..calibration_log import CalibrationLog, RecoveryRecord
from ..decisions.calibration import RecoveryReport
from ..decisions.recovery import RecoveryKind
from ..errors import InvalidArgument
from ..principal import current_principal
from .placement import PlacementService
from .recovery import INCIDENT_CHARACTERS_MAX, RecoveryService
from .validation import actor_with_login, check_real, check_text, time_ns_of

DECISION_CHARACTERS_MAX, WORKLOAD_CHARACTERS_MAX, NOTE_CHARACTERS_MAX = 128, 256, 200
LOST_GPU_HOURS_MAX = 1e9
SECONDS_MAX = 366 * 86_400
#: A caller's clock may be ahead by this.
AHEAD_SECONDS_MAX = 600
#: Fields with times, in their order.
TIMES = ("fault_time", "detect_time", "decide_time", "act_time", "resume_time")


class RecoveryReportService(RecoveryService):
    """A RecoveryService that also stores reports."""

    def __init__(
        self, placement: PlacementService, calibration: CalibrationLog, wall_ns: Callable[[], int]
    ) -> None:
        super().__init__(placement)
        self._calibration, self._wall_ns = calibration, wall_ns

    async def ReportRecovery(
        self, request: recovery_pb2.ReportRecoveryRequest, context: Any
    ) -> recovery_pb2.ReportRecoveryResponse:
        """Store a recovery's result, once. Raises InvalidArgument, ServiceUnavailable."""
        reporter = actor_with_login(current_principal(context), "scheduler")
        record = record_of(request, reporter, self._wall_ns())
        if request.validate_only:
            known = self._calibration.is_known(reporter, request.incident)
        else:
            known = not self._calibration.add_recovery(record)
            await self._calibration.persisted()
        return recovery_pb2.ReportRecoveryResponse(known=known)


def record_of(
    request: recovery_pb2.ReportRecoveryRequest, reporter: str, now_ns: int
) -> RecoveryRecord:
    """Return a checked report. Raises InvalidArgument."""
    if not request.incident:
        reason = f"empty, expected your name for it, of 1 to {INCIDENT_CHARACTERS_MAX} characters"
        raise InvalidArgument("incident", reason)
    check_text("incident", request.incident, INCIDENT_CHARACTERS_MAX)
    check_text("decision_id", request.decision_id, DECISION_CHARACTERS_MAX)
    check_text("workload", request.workload, WORKLOAD_CHARACTERS_MAX)
    check_text("note", request.note, NOTE_CHARACTERS_MAX)
    check_real("lost_gpu_hours", request.lost_gpu_hours, LOST_GPU_HOURS_MAX)
    kinds = [0, *map(int, RecoveryKind)]
    if request.kind not in kinds:
        reason = (
            f"{request.kind}, expected a RecoveryKind, {kinds[1]} to {kinds[-1]}, or unspecified"
        )
        raise InvalidArgument("kind", reason)
    fault_ns, detect_ns, decide_ns, act_ns, resume_ns = _times(request, now_ns)
    report = RecoveryReport(
        incident=request.incident,
        reporter=reporter,
        time_ns=now_ns,
        kind=int(request.kind),
        fault_ns=fault_ns,
        detect_ns=detect_ns,
        decide_ns=decide_ns,
        act_ns=act_ns,
        resume_ns=resume_ns,
        success=request.success,
        restarted=request.restarted_processes,
        restored_from_peer=request.restored_from_peer,
    )
    return RecoveryRecord(
        report, request.decision_id, request.workload, request.lost_gpu_hours, request.note
    )


def _times(request: recovery_pb2.ReportRecoveryRequest, now_ns: int) -> list[int]:
    """Return the times in ns since 1970, 0 for unset ones. Raises InvalidArgument."""
    times: list[int] = []
    first, last = ("", 0), ("", 0)
    for name in TIMES:
        time_ns = time_ns_of(name, getattr(request, name))
        times.append(time_ns)
        if not time_ns:
            continue
        if time_ns < last[1]:
            seconds = (last[1] - time_ns) / SECOND_NS
            raise InvalidArgument(
                name, f"{seconds:,.1f} s before {last[0]}, expected at or after it"
            )
        if time_ns > now_ns + AHEAD_SECONDS_MAX * SECOND_NS:
            ahead = (time_ns - now_ns) / HOUR_NS
            raise InvalidArgument(
                name, f"{ahead:,.1f} h ahead of the aggregator's clock, expected a time in the past"
            )
        first, last = (first if first[1] else (name, time_ns)), (name, time_ns)
        if time_ns - first[1] > SECONDS_MAX * SECOND_NS:
            days = (time_ns - first[1]) / (24 * HOUR_NS)
            raise InvalidArgument(
                name, f"{days:,.0f} days after {first[0]}, expected at most {SECONDS_MAX // 86_400}"
            )
    return times
