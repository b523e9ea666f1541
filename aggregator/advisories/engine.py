"""Runs the advisory state machine: judgements in, rows committed, then subscribers notified.

Nothing is published before it is on disk: after a crash the machine resumes in the state that
subscribers saw. While the disk accepts no writes, no advice is published, and answers and reports
are rejected. An answer accepted before that counts once it is written.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from ..arrays import Codes
from ..errors import (
    CAPACITY_RETRY_SECONDS,
    FailedPrecondition,
    ResourceExhausted,
    ServiceUnavailable,
)
from ..model import TransactionalStore
from ..scoring.calibration import HALF_LIFE_DAYS, Calibration, ReportedOutcomes
from ..scoring.evaluate import Judgement
from ..scoring.score import OutcomeFeedback, Return
from ..store.answer_journal import AnswerJournal, AnswerRecord
from . import outcome_rows, replay, rows
from .advisory import Advisory, AdvisoryState
from .advisory_limits import AdvisoryLimits
from .declared_out import HOSTS_MAX, has_room_for
from .messages import (
    Acked,
    Event,
    Frozen,
    Probation,
    Publish,
    PutBack,
    Refused,
    Renew,
    TakenOut,
    Tick,
)
from .observer import Observer, without_numbers
from .shared_causes import shared_causes
from .state_machine import AdvisoryStateMachine
from .watch_feed import WatchFeed
from .workloads import Gang, ScheduledGangs

log = logging.getLogger(__name__)

#: Events, decisions and reports that wait for the disk, and hosts that these name. Over this limit
#: no event is accepted and nothing is decided: advice is withheld, not lost.
ROWS_WAITING_MAX, HOSTS_WAITING_MAX = 100_000, 200_000
#: Ids of known outcomes; an older outcome that is reported again counts again.
OUTCOMES_KNOWN_MAX = 100_000

IDENTITY_CHARACTERS = 16
#: Outcomes fade by the hour, so that a score without changes stays the same.
CALIBRATED_NS = 3600 * 10**9


class AdvisoryEngine:
    """The state machine with its store and watchers. Belongs to the aggregator's loop."""

    def __init__(
        self,
        store: TransactionalStore,
        limits: AdvisoryLimits,
        observer: Observer,
        now_ns: int,
        *,
        shadow: bool,
        gangs: ScheduledGangs | None = None,
        outcomes_half_life_days: float = HALF_LIFE_DAYS,
        journal: AnswerJournal | None = None,
        folder_identity: str = "",
    ) -> None:
        """Continue from the stored rows and the *journal*. Blocks; raises ValueError.

        *journal* None: an answer waits for the store. *folder_identity* differs after a restore.
        """

        def read(connection: outcome_rows.Connection) -> Any:
            for gang in rows.read_gangs(connection):
                self.gangs.update(gang)
            restored = rows.restore_machine(connection, limits)
            outcomes = outcome_rows.read_outcome_stats(connection, outcomes_half_life_days)
            names = outcome_rows.outcome_names(connection, OUTCOMES_KNOWN_MAX)
            return *restored, dict.fromkeys(names), outcomes

        self._store, self._observer, self.shadow = store, observer, shadow
        self.gangs = ScheduledGangs() if gangs is None else gangs
        self._limits = limits
        self._machine: AdvisoryStateMachine
        self._outcomes: dict[tuple[str, str], None]  # by reporter and id, the oldest first
        #: Their sums; `outcomes` and `_calibrated_ns` are the calibration from these and its time.
        self._reported: ReportedOutcomes
        read_back = store.in_transaction(read)
        self._machine, self._number, self._outcomes, self._reported = read_back
        #: The batch that waits for the disk, and the batch that the store is writing.
        self._batch, self._writing_batch = rows.AdvisoryBatch(), rows.AdvisoryBatch()
        self._on_disk = dict[str, Advisory]()
        self._is_snapshot_due = False
        self._journal = journal
        self._replay_journal()
        #: Number of the last event on disk, and of the last event with published decisions.
        self._durable_number = self._published_number = self._number
        self._machine.resume(now_ns)
        state = self._machine.state
        state.store = state.store or uuid.uuid4().hex[:IDENTITY_CHARACTERS]
        #: Distinguishes this store's tokens from another's, or from those before a restore.
        self.store_identity = state.store + folder_identity
        #: Advisories as they are on disk: only these are visible outside.
        self._on_disk = {**state.ended, **state.advisories}
        self._batch.snapshot = self._state_snapshot()
        #: Changes of the state other than by events, and the number of them in the store: the
        #: journal alone cannot restore these.
        self._state_changes, self._stored_state_changes = 1, 0
        self.outcomes: Calibration
        self._calibrated_ns = 0
        self._calibrate(now_ns)
        self._writing, self._journaling = asyncio.Lock(), asyncio.Lock()
        self._flushing: set[asyncio.Task[None]] = set()
        self.feed = WatchFeed(now_ns // 1_000_000, ended_with_holds=self.ended_with_holds)
        if not shadow:
            self.feed.restore(list(state.advisories.values()))

    @property
    def machine(self) -> AdvisoryStateMachine:
        return self._machine

    def _replay_journal(self) -> None:
        """Apply the acknowledged answers that the store lacks."""
        for record in self._journal.replayed if self._journal else ():
            if record.number <= self._number:
                continue
            if record.number != self._number + 1:
                log.error("answers from event %d on do not follow the store's %d: they are lost", record.number, self._number)  # fmt: skip
                return
            self._step(rows.parse_event(record.kind, record.body))

    def _state_snapshot(self) -> tuple[int, int, str]:
        state = self._machine.state
        return self._number, state.now_ns, rows.state_json(state)

    @property
    def _is_full(self) -> bool:
        """Whether ROWS_WAITING_MAX or HOSTS_WAITING_MAX is exceeded."""
        return self._batch.rows > ROWS_WAITING_MAX or self._batch.hosts > HOSTS_WAITING_MAX

    def check_room(self) -> None:
        """Raise ServiceUnavailable if the queue for the disk is full."""
        if self._is_full:
            raise ServiceUnavailable(
                "the disk does not accept writes, and the queue for it is full. Try again later"
            )

    def observe(self, judgement: Judgement, gpus: Codes) -> None:
        """Run the machine on a judgement and its time."""
        if self._is_full:
            return
        self._batch.gangs |= dict.fromkeys(self.gangs.expire(judgement.computed_ns))
        if abs(judgement.computed_ns - self._calibrated_ns) >= CALIBRATED_NS and self._reported:
            self._calibrate(judgement.computed_ns)
        for event in [*self._observer.events(self._machine.state, judgement, gpus)]:
            self._step(event)
        self._step(Tick(judgement.computed_ns))

    def suspend(self, now_ns: int, reason: str) -> None:
        """Freeze advice after judging failed with *reason*, until the next judgement."""
        if without_numbers(self._machine.state.frozen) != without_numbers(reason):
            self._step(Frozen(now_ns, reason))

    def _step(self, event: Event) -> list[Any]:
        event = self._machine.stamped(event)
        instructions = list(self._machine.step(event))
        if self._machine.is_changed:
            self._number += 1
            self._batch.events.append((self._number, event))
            self._batch.decisions += [(self._number, event.now_ns, i) for i in instructions]
            self._batch.host_mentions += sum(map(rows.named_hosts_count, (event, *instructions)))
            names = {i.name for i in instructions if isinstance(i, Renew | Probation)}
            self._batch.hold_changes |= {
                name: self._on_disk[name] for name in names & self._on_disk.keys()
            }
            if self._number % rows.EVENTS_PER_SNAPSHOT == 0:
                self._is_snapshot_due = True  # once, however many events come before it is written
        return instructions

    async def flush(self) -> None:
        """Write the waiting batch, then publish. Raises the store's errors, and keeps the batch.

        A caller may be cancelled (a client closes the connection); the write continues, or it would
        be repeated.
        """
        await self._run_shielded(self._flush())

    async def _run_shielded(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._flushing.add(task)
        task.add_done_callback(self._flush_done)
        await asyncio.shield(task)

    def _flush_done(self, task: asyncio.Task[None]) -> None:
        self._flushing.discard(task)
        if not task.cancelled():
            task.exception()  # raised in the waiting caller, if any

    async def _flush(self) -> None:
        async with self._writing:
            if self._batch.is_empty:
                return
            if self._is_snapshot_due:
                self.snapshot_state()
            batch, self._batch = self._batch, rows.AdvisoryBatch()
            self._writing_batch = batch
            batch.collect_declared_out(self._machine.state)
            number = self._number
            state_changes = self._state_changes
            try:
                await asyncio.to_thread(self._write_batch, batch, number)
            except BaseException:
                self._requeue(batch)
                raise
            finally:
                self._writing_batch = rows.AdvisoryBatch()
            self._stored_state_changes = state_changes
            self._durable_number = max(self._durable_number, number)
        self._publish(batch)
        self._publish_shifted(batch)

    def _write_batch(self, batch: rows.AdvisoryBatch, number: int) -> None:
        self._store.in_transaction(self._writer(batch), ahead=True)
        if self._journal is not None:
            self._journal.mark_stored(number)

    def _publish(self, batch: rows.AdvisoryBatch) -> None:
        """Publish the stored decisions of *batch*, except those published from the journal."""
        decisions = [a for a in batch.decisions if a[0] > self._published_number]
        if decisions:
            self._published_number = decisions[-1][0]
        new = rows.AdvisoryBatch(decisions=decisions, hold_changes=batch.hold_changes)
        ended = self._machine.state.ended
        self._on_disk |= {advisory.name: advisory for advisory in new.published}
        self._on_disk = {name: a for name, a in self._on_disk.items() if a.is_open or name in ended}
        if not self.shadow:
            for advisory in new.watch_updates(self._on_disk):
                self.feed.publish(advisory)

    def snapshot_state(self) -> None:
        """Queue a snapshot of the whole state, at the end.

        A start by another version, or with other limits, then continues from the decisions made,
        not from those it would make for the same events.
        """
        self._batch.snapshot, self._is_snapshot_due = self._state_snapshot(), False

    def apply_clock_jump(self, jump_ns: int, now_ns: int) -> None:
        """Shift all times after our clock jumped by *jump_ns* to *now_ns*: nothing may expire."""
        self._machine.apply_clock_jump(jump_ns, now_ns)
        # Effects of ended advice end later, too.
        self._batch.moved |= {hold.name for hold in self._machine.state.holds.values()}
        self._batch.gangs |= {
            gang.workload: gang for gang in self.gangs.apply_clock_jump(jump_ns, now_ns)
        }
        self._refresh_shifted()
        self.snapshot_state()
        self._state_changes += 1

    def resume_after_suspend(self, now_ns: int) -> None:
        """Continue as after a restart: until *now_ns* the machine was suspended and unreachable."""
        self._machine.resume(now_ns)
        self._refresh_shifted()
        self.snapshot_state()
        self._state_changes += 1

    def _refresh_shifted(self) -> None:
        """Show advisories with their shifted times, except those with unwritten changes."""
        for name, advisory in self._machine.state.advisories.items():
            stored = self._on_disk.get(name)
            if stored is None or stored == advisory:
                continue
            self._batch.moved.add(name)
            if stored.revision == advisory.revision:
                self._on_disk[name] = advisory

    def _publish_shifted(self, batch: rows.AdvisoryBatch) -> None:
        """Publish the shifted times to watchers, which would otherwise stop too early or late."""
        changed = {advisory.name for advisory in batch.published}
        for name in sorted(batch.moved & self._on_disk.keys()):
            stored, now = self._on_disk[name], self._machine.state.advisories.get(name)
            if now is not None and now.revision == stored.revision:
                self._on_disk[name] = stored = now
            if not self.shadow and (stored.is_open or name not in changed):
                self.feed.publish(stored)

    def _writer(self, batch: rows.AdvisoryBatch) -> Callable[[outcome_rows.Connection], None]:
        return lambda connection: rows.write(connection, batch, shadow=self.shadow)

    def _requeue(self, batch: rows.AdvisoryBatch) -> None:
        newer = self._batch
        self._batch = rows.AdvisoryBatch(
            [*batch.events, *newer.events], [*batch.decisions, *newer.decisions],
            newer.snapshot or batch.snapshot, [*batch.outcomes, *newer.outcomes],
            batch.gangs | newer.gangs, batch.hold_changes | newer.hold_changes,
            batch.moved | newer.moved, batch.host_mentions + newer.host_mentions,
            calibration=newer.calibration or batch.calibration,
        )  # fmt: skip

    async def answer(self, answer: Acked) -> Advisory:
        """Apply an answer; return the advisory once it is durable. Raises ServiceError."""
        answered = self.apply_answer(answer)
        await self.answers_durable()
        return answered

    def preview(self, answer: Acked) -> tuple[Advisory, int]:
        """Return the advisory after the answer, and its expiry. Raises a ServiceError."""
        self._check_answers()
        result = self._machine.preview(answer)
        # The owner of an accepted advisory has an effect already, which ends with it.
        is_accepted = self._machine.state.advisories[result.name].state is AdvisoryState.ACCEPTED
        return result, self.expires_ns(result) if is_accepted else result.expires_ns

    def _check_answers(self) -> None:
        if self.shadow:
            raise FailedPrecondition(
                "advice is in shadow mode (advice_shadow) and cannot be answered"
            )
        self.check_room()

    def apply_answer(self, answer: Acked) -> Advisory:
        """Apply an answer and return the advisory; `persisted` stores it. Raises a ServiceError."""
        self._check_answers()
        instructions = self._step(answer)
        for instruction in instructions:
            if isinstance(instruction, Refused):
                raise instruction.error
        return next(
            instruction.advisory for instruction in reversed(instructions)
            if isinstance(instruction, Publish) and instruction.advisory.name == answer.name
        )  # fmt: skip

    def declare_out(self, out: Sequence[TakenOut], back: PutBack) -> None:
        """Count hosts as out, or as in service again, as an actor reports them.

        Await `persisted` to make this durable. Raises ResourceExhausted, ServiceUnavailable.
        """
        self.check_declared_out(out)
        for event in out:
            self._step(event)
        self._step(back)

    def check_declared_out(self, out: Sequence[TakenOut]) -> None:
        """Raise ResourceExhausted or ServiceUnavailable if *out* may not be reported."""
        self.check_room()
        if not has_room_for(self._machine.state, out):
            message = f"at most {HOSTS_MAX} hosts can be reported out, one entry for each reporter"
            raise ResourceExhausted(message, CAPACITY_RETRY_SECONDS)

    def check_gangs(self, gangs: Sequence[Gang]) -> None:
        """Raise ResourceExhausted or ServiceUnavailable if *gangs* may not be reported."""
        self.check_room()
        if not self.gangs.has_room_for(gangs):
            message = "more gangs, or hosts of gangs, than can be kept"
            raise ResourceExhausted(message, CAPACITY_RETRY_SECONDS)

    def update_gangs(self, gangs: Sequence[Gang], ended: Sequence[str]) -> None:
        """Record running gangs as a scheduler reports them.

        Await `persisted` to make this durable. Raises ResourceExhausted, ServiceUnavailable.
        """
        self.check_gangs(gangs)
        for gang in gangs:
            self.gangs.update(gang)
            self._batch.gangs[gang.workload] = gang
        for workload in ended:
            if self.gangs.end(workload):
                self._batch.gangs[workload] = None

    def open_advisories(self) -> list[Advisory]:
        """Return the open advisories that are on disk; none in shadow mode."""
        if self.shadow:
            return []
        return [advisory for advisory in self._on_disk.values() if advisory.is_open]

    @property
    def outcome_feedback(self) -> OutcomeFeedback:
        """Feedback for judging: hosts on probation, calibration, and shared causes."""
        state = self._machine.state
        returned = {
            host: Return(probation.since_ns, probation.until_ns)
            for host, probation in state.probation.items()
            if probation.until_ns > state.now_ns and host not in state.holds
        }
        return OutcomeFeedback(returned, self.outcomes, shared_causes(state))

    async def expected_outcomes(
        self, spans: Sequence[outcome_rows.OutcomeHost]
    ) -> dict[int, outcome_rows.ExpectedOutcome]:
        """Return `outcome_rows.expected_outcomes`, read in parallel to the writer."""

        def read() -> dict[int, outcome_rows.ExpectedOutcome]:
            with self._store.reading() as connection:
                return outcome_rows.expected_outcomes(connection, spans)

        return await asyncio.to_thread(read)

    def count_new_outcomes(self, names: Iterable[tuple[str, str]]) -> int:
        """Return how many of *names* (by reporter) are new. Raises ServiceUnavailable."""
        self.check_room()
        return len(set(names) - self._outcomes.keys())

    def _calibrate(self, now_ns: int) -> None:
        """Compute the calibration by outcomes at *now_ns*. Made durable by `persisted`."""
        self.outcomes, self._calibrated_ns = self._reported.calibration(now_ns), now_ns
        self._batch.calibration = outcome_rows.calibration_rows(
            now_ns, self._reported, self.outcomes
        )

    def add_outcomes(self, outcomes: Iterable[outcome_rows.OutcomeRecord], now_ns: int) -> int:
        """Record outcomes, the first of each id; return the number of new outcomes.

        Outcomes fade with age at *now_ns*, a time of our clock. Raises ServiceUnavailable.
        """
        self.check_room()
        new = 0
        for outcome in outcomes:
            key = outcome.reporter, outcome.outcome
            if key in self._outcomes:
                continue
            self._outcomes[key] = None
            if len(self._outcomes) > OUTCOMES_KNOWN_MAX:
                del self._outcomes[next(iter(self._outcomes))]
            self._batch.outcomes.append(outcome.row)
            self._batch.host_mentions += outcome.hosts
            new += 1
            outcome.add_to(self._reported, now_ns)
        if new:
            self._calibrate(now_ns)
        return new

    async def persisted(self) -> None:
        """Return once all events are on disk.

        Raises ServiceUnavailable if the write fails; the events count once a later write succeeds.
        """
        try:
            await self.flush()
        except Exception as error:
            log.warning("advice cannot be stored: %s", error)
            raise ServiceUnavailable(f"it cannot be written to disk yet: {error}") from error

    async def answers_durable(self) -> None:
        """Return once all events are in the journal or the store. Raises ServiceUnavailable."""
        if self._journal is None:
            return await self.persisted()
        await self._run_shielded(self._journal_events(self._journal))

    async def _journal_events(self, journal: AnswerJournal) -> None:
        async with self._journaling:
            if self._durable_number >= self._number:
                return
            if self._stored_state_changes < self._state_changes:
                await self.persisted()
                return
            batches, number = (self._writing_batch, self._batch), self._number
            records = [
                AnswerRecord(event_number, type(event).__name__, rows.to_json(event))
                for batch in batches
                for event_number, event in batch.events
                if event_number > self._durable_number
            ]
            decisions = [decision for batch in batches for decision in batch.decisions]
            hold_changes = batches[0].hold_changes | batches[1].hold_changes
            try:
                await asyncio.to_thread(journal.append, records)
            except ResourceExhausted:  # the store is so far behind that the journal is full
                await self.persisted()
                return
            self._durable_number = max(self._durable_number, number)
            self._publish(rows.AdvisoryBatch(decisions=decisions, hold_changes=hold_changes))

    def what_if(self, rule: str, days: int, now_ns: int) -> replay.ReplayReport:
        """Return the effects that *rule* would have had. Blocks; raises InvalidArgument."""
        with self._store.reading() as connection:
            place = self._observer.place
            return replay.replay_rule(connection, rule, days, self._limits, now_ns, place)

    def find(self, name: str) -> Advisory | None:
        """Return the advisory *name*, open or recently ended; None in shadow mode."""
        return None if self.shadow else self._on_disk.get(name)

    def expires_ns(self, one: Advisory) -> int:
        """Return the end of an advisory, or of its effect (`MachineState.expires_ns`)."""
        return self._machine.state.expires_ns(one)

    def ended_with_holds(self) -> list[Advisory]:
        """Return the ended advisories that still have an effect on a host; none in shadow mode."""
        holds = self._machine.state.holds.values()
        with_holds = (self.find(name) for hold in holds for name in (hold.name, hold.earlier))
        return [a for a in with_holds if a is not None and not a.is_open]

    def known_advisories(self) -> list[Advisory]:
        """Return open and recently ended advisories; none in shadow mode."""
        return [] if self.shadow else list(self._on_disk.values())
