"""The judging loop: scores all hosts every second and soon after fatal events.

Also publishes snapshots, restores state after a start, and detects jumps of the wall clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from grpc_health.v1 import health_pb2

from ..contract.token_bucket import TokenBucket
from .advisories.engine import AdvisoryEngine
from .advisories.publisher import Publisher
from .auth.access import AccessControl
from .calibration_log import CalibrationLog
from .config import AggregatorConfig
from .declared_reload import DeclaredReloader
from .fleet.fleet import Fleet
from .hazard.events import EventsError
from .hazard.models import ModelRegistry
from .hazard.store_history import read_incidents
from .ingest.clocks import ClockWriter
from .ingest.findings import ActiveFindings
from .ingest.ingest import Ingest
from .model import AGGREGATOR_HOST
from .monitoring.alarms import ALARMS
from .reservations import Reservations
from .runs.interference_models import InterferenceModels
from .runs.run_log import RunLog
from .scoring.checkpoint import MemoryLog, restore
from .scoring.evaluate import Judgement, evaluate
from .scoring.features import FaultHistory
from .scoring.findings import EVALUATED_FINDINGS
from .scoring.score_rows import ScoreLog
from .service.grpc_server import PLACEMENT, RECOVERY, SCORE, TELEMETRY
from .service.score_process import ScoreProcess
from .service.telemetry import TelemetryService
from .store.restored_state import NOT_REEVALUATED, unscored_hosts
from .store.store import Store

log = logging.getLogger(__name__)

#: Finding about certificates or tokens.
ACCESS_FINDING = "access.trouble"
#: Finding that judging failed, entirely or in part.
JUDGING_FINDING = "judging.failed"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

#: Upper bound of the rest. A longer turn means a stopped process, not slow judging.
REST_SECONDS_MAX = 5.0
#: Delay of an early turn after its event, so that simultaneous reports are judged together.
EARLY_DELAY_SECONDS = 0.05
#: Token bucket of early turns: share of loop time, and burst. Over budget, events wait for the
#: regular turn.
EARLY_SHARE_MAX = 0.1
EARLY_BURST_SECONDS = 1.0
#: Smaller differences silence no host, and may pass between reads of two clocks on a busy machine.
JUMP_NS_MIN = 5_000_000_000
#: If reading the clocks takes longer, the process was stopped in between, and they are read again.
READ_SPREAD_NS_MAX = 1_000_000_000
#: Maximum attempts to read the clocks.
READS_MAX = 3


class SnapshotHolder:
    """Holds the API's snapshot, which is replaced as a whole, never changed."""

    def __init__(self) -> None:
        self.snapshot: Judgement | None = None


def rest_seconds(turn_seconds: float, period_seconds: float) -> float:
    """Return the rest after a turn: to the end of the period, at least as long as the turn.

    When 10,000 hosts go silent at once a turn takes over 1 s; reconnecting hosts need the other
    half.
    """
    return max(min(turn_seconds, REST_SECONDS_MAX), period_seconds - turn_seconds)


class EarlyTurns:
    """Rate limit of early turns. All times are seconds of one clock."""

    def __init__(self) -> None:
        self._bucket = TokenBucket(EARLY_SHARE_MAX, EARLY_BURST_SECONDS, 0.0)

    def begins_at(self, requested_at: float, turn_ended_at: float, turn_seconds: float) -> float:
        """Return the earliest start of the turn requested at *requested_at*."""
        rested_at = turn_ended_at + min(turn_seconds, REST_SECONDS_MAX)
        return max(requested_at + EARLY_DELAY_SECONDS, rested_at, self._bucket.paid_at)

    def spend(self, seconds: float, now: float) -> None:
        """Charge an early turn of *seconds* that ended at *now*."""
        self._bucket.take(seconds, now)


@dataclass(slots=True)
class JudgeLoop:
    """The loop over turns of judging: `begin`, then `run` until cancelled."""

    config: AggregatorConfig
    wall_ns: Callable[[], int]
    fleet: Fleet
    store: Store
    ingest: Ingest
    clocks: ClockWriter
    access_control: AccessControl
    declared: DeclaredReloader
    models: ModelRegistry
    advisory_engine: AdvisoryEngine
    telemetry: TelemetryService
    snapshot_holder: SnapshotHolder
    scores: ScoreProcess | None
    #: gRPC's health servicer.
    health: Any
    #: Returns messages about the aggregator itself.
    alarms: Callable[[], tuple[str, ...]]
    #: Predecessor of the first judgement.
    restored: Judgement
    jump_detector: ClockJumpDetector
    #: Fingerprints of running jobs.
    runs: RunLog
    reservations: Reservations
    #: Reports of recoveries and throughputs.
    calibration: CalibrationLog
    interference: InterferenceModels
    #: Duration of the last turn.
    turn_seconds: float = 0.0
    #: Number of early turns since the start.
    early_turns: int = 0
    publisher: Publisher = field(init=False)
    _score_log: ScoreLog = field(default_factory=ScoreLog)
    _memory_log: MemoryLog = field(init=False)
    _reported: dict[str, str] = field(default_factory=dict)
    _reload: bool = False
    _jump_ns: int = 0  # since the last judgement
    _early: EarlyTurns = field(default_factory=EarlyTurns)
    #: Set while an event waits for an early turn, and its time.
    _requested: asyncio.Event = field(default_factory=asyncio.Event)
    _requested_at: float = 0.0

    def __post_init__(self) -> None:
        self.publisher = Publisher(self.advisory_engine)
        self._memory_log = MemoryLog(self.restored)

    def begin(self) -> None:
        """Answer with the scores from before the restart until hosts have reported."""
        self.jump_detector.check()
        if self.restored.settling:
            snapshot = self._evaluate(self.wall_ns())
            self._publish(snapshot)
            self._score_log.take_changed(snapshot)  # already stored

    def reload(self) -> None:
        """Reload the declarations in the next turn."""
        self._reload = True

    def request_early_turn(self) -> None:
        """Request an early turn, after a fatal event. Call it in the loop's thread."""
        if not self._requested.is_set():
            self._requested_at = time.monotonic()
            self._requested.set()

    async def run(self) -> None:
        """Take a turn every `judge_seconds`, and early turns after fatal events."""
        early = False
        while True:
            begin = time.monotonic()
            try:
                await self.turn()
            except Exception as error:
                failed = f"judging failed: {type(error).__name__}: {error}"
                if failed != self._reported.get(JUDGING_FINDING):
                    log.exception("judging failed; the previous snapshot stays in force")
                with suppress(Exception):  # the report itself may fail
                    self._report_failure(failed)
            ended = time.monotonic()
            self.turn_seconds = ended - begin
            if early:
                self.early_turns += 1
                self._early.spend(self.turn_seconds, ended)
            early = await self._rest(
                ended, ended + rest_seconds(self.turn_seconds, self.config.judge_seconds)
            )

    async def _rest(self, ended: float, until: float) -> bool:
        """Wait until *until* or until an early turn may begin; return whether it is early."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._requested.wait(), until - time.monotonic())
        if not self._requested.is_set():
            return False
        begins = self._early.begins_at(self._requested_at, ended, self.turn_seconds)
        await asyncio.sleep(min(begins, until) - time.monotonic())
        return begins < until

    async def turn(self) -> None:
        """Judge all hosts once."""
        for _ in self.fleet.advance_ahead():
            await asyncio.sleep(0)  # let frames and calls in between run
        now_ns = self._check_clock()
        self._refresh_inputs(now_ns)
        self._requested.clear()  # this turn includes all events so far
        snapshot = self._with_degradation(self._evaluate(now_ns), now_ns)
        self._report_finding(JUDGING_FINDING, snapshot.failed, now_ns)
        first = self.snapshot_holder.snapshot is None
        self._publish(snapshot)
        try:
            await asyncio.sleep(0)  # waiting calls get an answer of this turn
        finally:  # store published scores even if cancelled here
            scored = self._score_log.take_changed(snapshot)
            indexes = (score.node_index for score in scored)
            memories = self._memory_log.take_due(snapshot, self.fleet, indexes)
            self.store.submit_scores(snapshot, scored, memories)
            self.store.submit_findings(self.ingest.findings.changes(now_ns))
        self.publisher.observe(snapshot, self.fleet.gpus)
        self.runs.reported_factors = self.calibration.factors
        self.runs.step(now_ns, snapshot.job_faults)
        self.calibration.step(now_ns)
        if first:
            for name in (SCORE, PLACEMENT, RECOVERY):
                await self.health.set(name, _SERVING)
        await self.health.set(TELEMETRY, _NOT_SERVING if self.store.failing else _SERVING)

    def close(self) -> None:
        """Store the memory of hosts after the last turn of a clean end."""
        if snapshot := self.snapshot_holder.snapshot:
            due = self._memory_log.take_due(snapshot, self.fleet, snapshot.tracked_symptoms)
            self.store.submit_scores(snapshot, (), due)

    def _check_clock(self) -> int:
        """Apply a jump of the clock, which must not age readings; return the wall time."""
        jump = self.jump_detector.check()
        if jump.jump_ns:
            self._apply_clock_jump("the clock was set forward by", jump.jump_ns, jump.now_ns)
            self.advisory_engine.apply_clock_jump(jump.jump_ns, jump.now_ns)
        if jump.suspended_ns:
            self._apply_clock_jump(
                "this machine was suspended for", jump.suspended_ns, jump.now_ns, suspended=True
            )
            self.advisory_engine.resume_after_suspend(jump.now_ns)
        return jump.now_ns

    def _apply_clock_jump(
        self, message: str, jump_ns: int, now_ns: int, *, suspended: bool = False
    ) -> None:
        log.warning("%s %.0f s: the ages of hosts' readings are kept", message, jump_ns / 1e9)
        self.fleet.apply_clock_jump(jump_ns, now_ns, suspended=suspended)
        self.ingest.sessions.apply_clock_jump(jump_ns, now_ns)
        self._jump_ns += jump_ns

    def _refresh_inputs(self, now_ns: int) -> None:
        """Update the inputs of judging other than readings."""
        self.ingest.step(now_ns)
        self.clocks.step(now_ns)
        self._report_finding(ACCESS_FINDING, self.access_control.error, now_ns)
        if self._reload:
            self.declared.request_poll()
        self._reload = False
        self.declared.step(now_ns)

    def _report_finding(self, name: str, message: str, now_ns: int) -> None:
        """Keep *message* as a finding of the aggregator; "" clears it."""
        if message == self._reported.get(name, ""):
            return
        self.ingest.findings.clear(AGGREGATOR_HOST, name, now_ns)
        self._reported[name] = message
        if message:
            self.ingest.findings.find(AGGREGATOR_HOST, name, message, now_ns, expires=False)

    def _report_failure(self, failed: str) -> None:
        """Keep the last snapshot, and mark it degraded for callers and in the store."""
        now_ns, before = self.wall_ns(), self.snapshot_holder.snapshot
        self._report_finding(JUDGING_FINDING, failed, now_ns)
        self.store.submit_findings(self.ingest.findings.changes(now_ns))
        self.advisory_engine.suspend(now_ns, failed)
        if before is None:
            return
        computed_at = datetime.fromtimestamp(before.computed_ns // 1_000_000_000, UTC)
        message = f"{failed}; scores are of {computed_at:%H:%M:%S} UTC"
        if message != before.degraded_reason:
            self._publish(replace(before, version=before.version + 1, degraded_reason=message))

    def _evaluate(self, now_ns: int) -> Judgement:
        previous = self.snapshot_holder.snapshot or self.restored
        model, outcome_feedback = self.models.in_use, self.advisory_engine.outcome_feedback
        judged = evaluate(self.fleet, now_ns, previous, model, outcome_feedback, self._jump_ns)
        self._jump_ns = 0
        return replace(
            judged, workloads=self.runs.workloads(now_ns), supplies=self.runs.supplies.current,
            interference=self.interference.in_use,
        )  # fmt: skip

    def _with_degradation(self, snapshot: Judgement, now_ns: int) -> Judgement:
        """Return *snapshot* with findings about the aggregator: a failing disk, alarms."""
        self.ingest.findings.report_not_storing(self.store.failing, now_ns)
        if store_error := self.store.failure_summary:
            self.telemetry.report_not_storing()
            reasons = filter(None, (snapshot.degraded_reason, store_error))
            snapshot = replace(snapshot, degraded_reason="; ".join(reasons))
        if alarms := (*self.alarms(), *filter(None, (self.declared.error,))):
            snapshot = replace(snapshot, alarms=alarms)
        return snapshot

    def _publish(self, snapshot: Judgement) -> None:
        """Make *snapshot* the basis of all answers."""
        reserved = self.reservations.node_indexes(self.fleet.index, len(snapshot.names))
        snapshot = replace(
            snapshot, reservations=reserved, reported_factors=self.calibration.factors
        )
        self.snapshot_holder.snapshot = snapshot
        if self.scores is not None:
            self.scores.publish(snapshot)


def restore_from_store(fleet: Fleet, store: Store, ingest: Ingest, now_ns: int) -> Judgement:
    """Restore hosts and findings from the store; return the predecessor of the first judgement."""
    for host, expected in store.gpu_sets.items():
        fleet.known_gpus.restore(host, expected)
    restored = restore(fleet, store.last_scores, now_ns, _faults(store, now_ns))
    # Hosts that had sent no readings, or no score was stored yet: their events may be fatal.
    for known in unscored_hosts(store.known_hosts, store.recent_events, fleet.index, now_ns):
        fleet.restore(known.host, simulated=known.simulated, gpus=known.gpus, last_received_ns=0)
        ingest.replay_events(known.host)
    _restore_findings(fleet, store, ingest.findings, now_ns)
    return restored


def _restore_findings(fleet: Fleet, store: Store, findings: ActiveFindings, now_ns: int) -> None:
    """Restore findings of known hosts. Judging ends its own findings; the others expire."""
    for finding in store.open_findings:
        # Active alarms are found again.
        is_alarm = finding.host == AGGREGATOR_HOST and finding.name.startswith(ALARMS)
        if is_alarm or (finding.host not in fleet.index and finding.host != AGGREGATOR_HOST):
            store.submit_findings(
                [replace(finding, cleared_ns=now_ns, clears_when=NOT_REEVALUATED)]
            )
            continue
        expires = finding.name not in EVALUATED_FINDINGS and not finding.name.startswith("clock.")
        findings.restore(finding, now_ns, expires=expires)


def _faults(store: Store, now_ns: int) -> FaultHistory:
    """Return the recorded faults of each host, as training reads them."""
    try:
        with store.reading() as cursor:
            return FaultHistory.of(read_incidents(cursor, now_ns // 1000))
    except EventsError as error:
        log.error("hazards assume that no host has failed before: %s", error)
        return FaultHistory()


class ClockJump(NamedTuple):
    """The wall clock's time, its forward jump since the last check, and the time suspended."""

    now_ns: int
    jump_ns: int = 0
    suspended_ns: int = 0


class ClockJumpDetector:
    """Detects forward jumps of the wall clock, which must not make hosts silent or symptoms old.

    A suspended machine's monotonic clock stops while time passes. A virtual machine with all clocks
    stopped, until its wall clock is corrected, looks like a clock that was set forward. A stopped
    process causes no jump: its monotonic clock continued. Belongs to a single thread.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int],
        steady_ns: Callable[[], int],
        boottime_ns: Callable[[], int] | None = None,
    ) -> None:
        """*steady_ns*: an even clock, such as CLOCK_MONOTONIC.

        *boottime_ns*: an even clock that includes suspends, such as CLOCK_BOOTTIME; None: no
        suspends.
        """
        self._wall_ns, self._steady_ns = wall_ns, steady_ns
        self._boottime_ns = boottime_ns or steady_ns
        self._before: tuple[int, ...] | None = None  # the clocks at the last check

    def check(self) -> ClockJump:
        """Return the wall clock's time, and its jump since the last check; 0 without a jump.

        If each attempt is interrupted, the earlier check remains the reference, so that a stop is
        never a jump.
        """
        now_ns = 0
        for _ in range(READS_MAX):
            begin_ns = self._boottime_ns()
            steady_ns, now_ns, boottime_ns = self._steady_ns(), self._wall_ns(), self._boottime_ns()
            if boottime_ns - begin_ns <= READ_SPREAD_NS_MAX:
                return self._since_last(now_ns, steady_ns, boottime_ns)
        return ClockJump(now_ns)

    def _since_last(self, *clocks: int) -> ClockJump:
        before, self._before = self._before, clocks
        if before is None:
            return ClockJump(clocks[0])
        wall_ns, steady_ns, boottime_ns = (
            now - then for now, then in zip(clocks, before, strict=True)
        )
        suspended_ns = _significant_ns(min(boottime_ns, wall_ns) - steady_ns)
        return ClockJump(
            clocks[0], _significant_ns(wall_ns - steady_ns - suspended_ns), suspended_ns
        )


def _significant_ns(ns: int) -> int:
    return ns if ns >= JUMP_NS_MIN else 0
