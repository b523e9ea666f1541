"""The judge's turn: every second all hosts are judged, and what follows is told to whoever is to know."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from grpc_health.v1 import health_pb2

from .advisories.engine import Book, Telling
from .auth.access import Door
from .clock_jump import Leaps
from .config import AggregatorConfig
from .declared.live import Live
from .fleet.fleet import Fleet
from .hazard.events import EventsError
from .hazard.history import incidents_of
from .hazard.models import Models
from .ingest.clocks import ClockWriter
from .ingest.findings import Findings
from .ingest.ingest import Ingest
from .model import OURSELVES
from .monitoring.alarms import ALARMS
from .scoring.evaluate import FAULT_RULES, JUDGED_FINDINGS, Judgement, judge
from .scoring.features import Faults
from .scoring.restart import Before, restore
from .service.grpc_server import SCORE, TELEMETRY
from .service.score_process import ScoreProcess
from .service.telemetry import TelemetryService
from .store.restored_state import NOT_LOOKED_AT
from .store.score_rows import ScoreLog
from .store.store import Store

log = logging.getLogger(__name__)

#: What is wrong with certificates or tokens, as a finding of the aggregator itself.
ACCESS_FINDING = "access.trouble"
#: A part of judging that fails, or all of it.
JUDGING_FINDING = "judging.failed"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Holder:
    """What the API answers from: swapped whole, never changed."""

    def __init__(self) -> None:
        self.snapshot: Judgement | None = None


#: Of a turn that took longer it was us who stood still (a process that was stopped), and no reason to rest for as long.
REST_SECONDS_MAX = 5.0


def rest_seconds(took: float, every: float) -> float:
    """Return how long to leave the loop to others after a turn that *took* seconds: half of the time is theirs.

    Ten thousand hosts that fall silent together take a second and more to judge: those that come back must be heard.
    """
    return max(min(took, REST_SECONDS_MAX), every - took)


@dataclass(slots=True)
class Judging:
    """Belongs to the loop. `begin`, then `run` until it is cancelled."""

    config: AggregatorConfig
    wall_ns: Callable[[], int]
    fleet: Fleet
    store: Store
    ingest: Ingest
    clocks: ClockWriter
    door: Door
    declared: Live
    models: Models
    book: Book
    telemetry: TelemetryService
    holder: Holder
    scores: ScoreProcess | None
    #: gRPC's health service.
    health: Any
    #: What stands against the aggregator itself, in words.
    alarms: Callable[[], tuple[str, ...]]
    before: Before
    #: Sees the clock set forward.
    leaps: Leaps
    #: What the last turn took.
    seconds: float = 0.0
    telling: Telling = field(init=False)
    _written: ScoreLog = field(default_factory=ScoreLog)
    _told: dict[str, str] = field(default_factory=dict[str, str])
    _reload: bool = False
    _leapt_ns: int = 0  # since the last judgement

    def __post_init__(self) -> None:
        self.telling = Telling(self.book)

    def begin(self) -> None:
        """Answer as before the restart, until the hosts have spoken."""
        self.leaps.look()
        if self.before.scores:
            snapshot = self._judged(self.wall_ns())
            self._show(snapshot)
            self._written.changed(snapshot)  # they stand in the store already

    def reload(self) -> None:
        """Read what people declared again, with the next turn."""
        self._reload = True

    async def run(self) -> None:
        """Take a turn every `judge_seconds`."""
        while True:
            begin = time.monotonic()
            try:
                await self.turn()
            except Exception as error:
                failed = f"judging failed: {type(error).__name__}: {error}"
                if failed != self._told.get(JUDGING_FINDING):
                    log.exception("judging failed; the snapshot before stays")
                with suppress(Exception):  # who tells may be what fails
                    self._say_failed(failed)
            self.seconds = time.monotonic() - begin
            await asyncio.sleep(rest_seconds(self.seconds, self.config.judge_seconds))

    async def turn(self) -> None:
        """Judge all hosts once."""
        for _ in self.fleet.advance_ahead():
            await asyncio.sleep(0)  # frames and calls that came meanwhile
        now_ns = self._mind_the_clock()
        self._look_around(now_ns)
        snapshot = self._in_doubt(self._judged(now_ns), now_ns)
        self._tell(JUDGING_FINDING, snapshot.failed, now_ns)
        first = self.holder.snapshot is None
        self._show(snapshot)
        try:
            await asyncio.sleep(0)  # who waits for an answer has one of this turn
        finally:  # what was shown is on record, also where our end comes in between
            self.store.submit_scores(snapshot, self._written.changed(snapshot))
            self.store.submit_findings(self.ingest.findings.changes(now_ns))
        self.telling.observe(snapshot, self.fleet.gpus)
        if first:
            await self.health.set(SCORE, _SERVING)
        await self.health.set(TELEMETRY, _NOT_SERVING if self.store.failing else _SERVING)

    def _mind_the_clock(self) -> int:
        """Return what our clock says. Where it leapt, that says nothing about hosts."""
        leap = self.leaps.look()
        if leap.leapt_ns:
            self._leap("our clock was set forward by", leap.leapt_ns, leap.now_ns)
            self.book.leap(leap.leapt_ns, leap.now_ns)
        if leap.stood_ns:
            self._leap("this machine stood still for", leap.stood_ns, leap.now_ns, stood=True)
            self.book.stood_still(leap.now_ns)
        return leap.now_ns

    def _leap(self, words: str, leapt_ns: int, now_ns: int, *, stood: bool = False) -> None:
        log.warning("%s %.0f s: hosts are as fresh as they were", words, leapt_ns / 1e9)
        self.fleet.leap(leapt_ns, now_ns, stood=stood)
        self.ingest.sessions.leap(leapt_ns, now_ns)
        self._leapt_ns += leapt_ns

    def _look_around(self, now_ns: int) -> None:
        """Bring up to date what is judged by beside readings."""
        self.ingest.step(now_ns)
        self.clocks.step(now_ns)
        self._tell(ACCESS_FINDING, self.door.trouble, now_ns)
        if self._reload:
            self.declared.ask()
        self._reload = False
        self.declared.step(now_ns)

    def _tell(self, name: str, words: str, now_ns: int) -> None:
        """Keep *words* as a finding of the aggregator's own; "" ends it."""
        if words == self._told.get(name, ""):
            return
        self.ingest.findings.clear(OURSELVES, name, now_ns)
        self._told[name] = words
        if words:
            self.ingest.findings.find(OURSELVES, name, words, now_ns, expires=False)

    def _say_failed(self, failed: str) -> None:
        """Let the snapshot before stand, and say so: to whoever asks for scores, and on record."""
        now_ns, before = self.wall_ns(), self.holder.snapshot
        self._tell(JUDGING_FINDING, failed, now_ns)
        self.store.submit_findings(self.ingest.findings.changes(now_ns))
        self.book.doubt(now_ns, failed)
        if before is None:
            return
        at = datetime.fromtimestamp(before.computed_ns // 1_000_000_000, UTC)
        words = f"{failed}; scores are of {at:%H:%M:%S} UTC"
        if words != before.degraded_reason:
            self._show(replace(before, version=before.version + 1, degraded_reason=words))

    def _judged(self, now_ns: int) -> Judgement:
        previous = self.holder.snapshot
        model, experience = self.models.in_use, self.book.experience
        before = None if previous else self.before
        judged = judge(self.fleet, now_ns, previous, before, model, experience, self._leapt_ns)
        self._leapt_ns = 0
        return judged

    def _in_doubt(self, snapshot: Judgement, now_ns: int) -> Judgement:
        """Return *snapshot* with what stands against the aggregator itself: a disk that takes nothing, alarms."""
        self.ingest.findings.say_not_stored(self.store.failing, now_ns)
        if trouble := self.store.trouble:
            self.telemetry.say_not_stored()
            reasons = filter(None, (snapshot.degraded_reason, trouble))
            snapshot = replace(snapshot, degraded_reason="; ".join(reasons))
        if alarms := (*self.alarms(), *filter(None, (self.declared.trouble,))):
            snapshot = replace(snapshot, alarms=alarms)
        return snapshot

    def _show(self, snapshot: Judgement) -> None:
        """Let every answer from now on be of *snapshot*."""
        self.holder.snapshot = snapshot
        if self.scores is not None:
            self.scores.tell(snapshot)


# ----------------------------------------------------------------------
# What the aggregator takes over from its store at a start: scores, findings and faults of before.


def remember(fleet: Fleet, store: Store, findings: Findings, now_ns: int) -> Before:
    """Make the hosts and findings of before known, and return what stands until each host has spoken again."""
    for host, expected in store.gpu_sets.items():
        fleet.known_gpus.restore(host, expected)
    before = restore(fleet, store.last_scores, now_ns)
    judged = _take_findings_over(fleet, store, findings, now_ns)
    return replace(before, findings=judged, faults=_faults(store, now_ns))


def _take_findings_over(
    fleet: Fleet, store: Store, findings: Findings, now_ns: int
) -> frozenset[tuple[str, str, str]]:
    """Take over what was found of hosts that are known still, and return what judging is to end."""
    judged: set[tuple[str, str, str]] = set()
    for one in store.open_findings:
        # An alarm is found anew, if it is so.
        is_alarm = one.host == OURSELVES and one.name.startswith(ALARMS)
        if is_alarm or (one.host not in fleet.index and one.host != OURSELVES):
            store.submit_findings([replace(one, cleared_ns=now_ns, clears_when=NOT_LOOKED_AT)])
            continue
        key = one.host, one.name, one.subject
        if one.name in JUDGED_FINDINGS:
            judged.add(key)
        expires = key not in judged and not one.name.startswith("clock.")
        findings.restore(one, now_ns, expires=expires)
    return frozenset(judged)


def _faults(store: Store, now_ns: int) -> Faults:
    """Return what is on record of each host, as training reads it."""
    try:
        with store.reading() as cursor:
            return Faults.of(incidents_of(cursor, FAULT_RULES, now_ns // 1000))
    except EventsError as error:
        log.error("hazards are told as if no host had failed before: %s", error)
        return Faults()
