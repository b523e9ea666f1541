"""The machine in service: a judgement in, rows written, then, and only then, the world is told.

Nothing is published that is not on disk: after a crash the machine stands where the world saw it. While the disk
takes nothing no advice comes, and whoever answers or tells is refused: what was taken even so counts once it is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from ..fleet.arrays import Codes
from ..judgement.experience import Experience, Outcomes, Return
from ..judgement.judge import Judgement
from ..refusals import (
    ROOM_SECONDS,
    Changed,
    Invalid,
    NotAllowed,
    NotFound,
    NotReady,
    OutOfDate,
    Refusal,
    TooMuch,
)
from . import rows, whatif
from .absent import HOSTS_MAX, room_for
from .advisory import Advisory, State
from .events import (
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
from .feed import Feed
from .gangs import Gang, Gangs
from .limits import Limits
from .machine import Machine
from .observing import Observer, in_kind

log = logging.getLogger(__name__)

T = TypeVar("T")
#: Events, decisions and reports that wait for the disk, and hosts that these name; from then on nothing is decided or
#: taken, which is advice withheld, not lost.
ROWS_WAITING_MAX, HOSTS_WAITING_MAX = 100_000, 200_000
#: Ids of outcomes that are known: one that is older and told again counts again.
OUTCOMES_KNOWN_MAX = 100_000

#: Why an answer was refused -> what is raised.
REFUSALS: dict[str, Callable[[str], Refusal]] = {
    "missing": NotFound,
    "etag": Changed,
    "state": OutOfDate,
    "owner": NotAllowed,
    "frozen": OutOfDate,
}


class Storing(Protocol):
    """What is needed of the store."""

    def in_transaction(self, work: Callable[[rows.Connection], T]) -> T:
        """Run *work* durably."""
        ...

    def reading(self) -> AbstractContextManager[rows.Connection]:
        """Return a context with a cursor for reading."""
        ...


class Book:
    """Belongs to the aggregator's loop."""

    def __init__(
        self,
        store: Storing,
        limits: Limits,
        observer: Observer,
        now_ns: int,
        *,
        shadow: bool,
        gangs: Gangs | None = None,
    ) -> None:
        """Take over what is stored, *gangs* too. Blocks for the store; raises ValueError where its rows are not ours."""

        def read(connection: rows.Connection) -> Any:
            for one in rows.gangs(connection):
                self.gangs.tell(one)
            restored = rows.restored(connection, limits)
            outcomes = Outcomes(*rows.calibration(connection))
            names = rows.outcome_names(connection, OUTCOMES_KNOWN_MAX)
            return *restored, dict.fromkeys(names), outcomes

        self._store, self._observer, self.shadow = store, observer, shadow
        self.gangs = Gangs() if gangs is None else gangs
        self._limits = limits
        self._machine: Machine
        self._outcomes: dict[str, None]  # the oldest first
        #: What they have shown so far.
        self.outcomes: Outcomes
        read_back = store.in_transaction(read)
        self._machine, self._number, self._outcomes, self.outcomes = read_back
        self._machine.resume(now_ns)
        memory = self._machine.memory
        #: Advisories as they are on disk: what anybody may be told.
        self._on_disk = {**memory.ended, **memory.advisories}
        self._batch = rows.Batch(memory=self._whole())
        self._is_memory_due = False
        self._writing = asyncio.Lock()
        self._flushing: set[asyncio.Task[None]] = set()
        self.feed = Feed(now_ns // 1_000_000, standing=self.standing)
        if not shadow:
            self.feed.begin(list(memory.advisories.values()))

    @property
    def machine(self) -> Machine:
        return self._machine

    def _whole(self) -> tuple[int, int, str]:
        memory = self._machine.memory
        return self._number, memory.now_ns, rows.memory_text(memory)

    @property
    def _is_full(self) -> bool:
        """Whether so much waits for the disk that no more is taken."""
        return self._batch.rows > ROWS_WAITING_MAX or self._batch.hosts > HOSTS_WAITING_MAX

    def check_room(self) -> None:
        """Raise NotReady where so much waits for the disk that nothing is taken."""
        if self._is_full:
            raise NotReady("the disk takes nothing, and no more can wait for it; try again later")

    def observe(self, judged: Judgement, gpus: Codes) -> None:
        """Tell the machine of a judgement, and of the time."""
        if self._is_full:
            return
        self._batch.gangs |= dict.fromkeys(self.gangs.expire(judged.computed_ns))
        for event in [*self._observer.events(self._machine.memory, judged, gpus)]:
            self._give(event)
        self._give(Tick(judged.computed_ns))

    def doubt(self, now_ns: int, words: str) -> None:
        """Judging itself failed, as *words* say: nothing is proposed or granted until the next judgement."""
        if in_kind(self._machine.memory.frozen) != in_kind(words):
            self._give(Frozen(now_ns, words))

    def _give(self, event: Event) -> list[Any]:
        event = self._machine.stamped(event)
        told = list(self._machine.step(event))
        if self._machine.touched:
            self._number += 1
            self._batch.events.append((self._number, event))
            self._batch.decisions += [(self._number, event.now_ns, one) for one in told]
            self._batch.named += sum(map(rows.hosts_in, (event, *told)))
            names = {one.name for one in told if isinstance(one, Renew | Probation)}
            self._batch.standing |= {
                name: self._on_disk[name] for name in names & self._on_disk.keys()
            }
            if self._number % rows.EVENTS_PER_MEMORY == 0:
                self._is_memory_due = True  # once, however many events come before it is written
        return told

    async def flush(self) -> None:
        """Write what waits, then tell of it. Raises what the store raises; what waits then goes on waiting.

        Who asks may be cancelled (a caller hangs up); what is being written goes on, or it would be written twice.
        """
        task = asyncio.create_task(self._flush())
        self._flushing.add(task)
        task.add_done_callback(self._flushed_once)
        await asyncio.shield(task)

    def _flushed_once(self, task: asyncio.Task[None]) -> None:
        self._flushing.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waits; nobody may

    async def _flush(self) -> None:
        async with self._writing:
            if self._batch.empty:
                return
            if self._is_memory_due:
                self.remember()
            batch, self._batch = self._batch, rows.Batch()
            batch.see_absent(self._machine.memory)
            try:
                await asyncio.to_thread(self._store.in_transaction, self._writer(batch))
            except BaseException:
                self._put_back(batch)
                raise
        ended = self._machine.memory.ended
        self._on_disk |= {one.name: one for one in batch.published}
        self._on_disk = {
            name: one for name, one in self._on_disk.items() if one.is_open or name in ended
        }
        if not self.shadow:
            for one in batch.told_of(self._on_disk):
                self.feed.publish(one)
        self._tell_moved(batch)

    def remember(self) -> None:
        """Have the memory written whole: at the end, so that a start by another version, or with other limits, goes on
        from what was decided, not from what it would have decided of the same events."""
        self._batch.memory, self._is_memory_due = self._whole(), False

    def leap(self, leapt_ns: int, now_ns: int) -> None:
        """Our clock, which says *now_ns*, was set forward by *leapt_ns*: nothing lapses, expires or is cleared by that."""
        self._machine.leap(leapt_ns, now_ns)
        # What was set by advice that has ended ends later, too.
        self._batch.moved |= {hold.name for hold in self._machine.memory.holds.values()}
        self._batch.gangs |= {one.workload: one for one in self.gangs.leap(leapt_ns, now_ns)}
        self._show_moved()
        self.remember()

    def stood_still(self, now_ns: int) -> None:
        """Our machine was suspended until *now_ns*: time passed, and nobody could reach us. Go on as after a restart."""
        self._machine.resume(now_ns)
        self._show_moved()
        self.remember()

    def _show_moved(self) -> None:
        """Tell of advisories as they are, but for a change that waits for the disk."""
        for name, one in self._machine.memory.advisories.items():
            told = self._on_disk.get(name)
            if told is None or told == one:
                continue
            self._batch.moved.add(name)
            if told.revision == one.revision:
                self._on_disk[name] = one

    def _tell_moved(self, batch: rows.Batch) -> None:
        """Tell watchers of the times that moved: who acts by those of before gives up too early, or too late."""
        changed = {one.name for one in batch.published}
        for name in sorted(batch.moved & self._on_disk.keys()):
            told, now = self._on_disk[name], self._machine.memory.advisories.get(name)
            if now is not None and now.revision == told.revision:
                self._on_disk[name] = told = now
            if not self.shadow and (told.is_open or name not in changed):
                self.feed.publish(told)

    def _writer(self, batch: rows.Batch) -> Callable[[rows.Connection], None]:
        return lambda connection: rows.write(connection, batch, shadow=self.shadow)

    def _put_back(self, batch: rows.Batch) -> None:
        after = self._batch
        self._batch = rows.Batch(
            [*batch.events, *after.events], [*batch.decisions, *after.decisions],
            after.memory or batch.memory, [*batch.outcomes, *after.outcomes],
            batch.gangs | after.gangs, batch.standing | after.standing,
            batch.moved | after.moved, batch.named + after.named,
        )  # fmt: skip

    async def answer(self, answer: Acked) -> Advisory:
        """Take an answer, and return the advisory as it then is. Raises a Refusal; NotReady where the disk fails."""
        answered = self.decide(answer)
        await self.flushed()
        return answered

    def would(self, answer: Acked) -> tuple[Advisory, int]:
        """Return how the advisory would then be, and when it would expire. Raises a Refusal."""
        self._check_answers()
        found = self._machine.would(answer)
        if isinstance(found, Refused):
            raise _refusal(found)
        # Whoever has it has set something already, which ends when it ends.
        is_lent = self._machine.memory.advisories[found.name].state is State.ACCEPTED
        return found, self.expires_ns(found) if is_lent else found.expires_ns

    def _check_answers(self) -> None:
        if self.shadow:
            raise OutOfDate(
                "advice is in shadow mode (advice_shadow): nothing of it is to be answered"
            )
        self.check_room()

    def decide(self, answer: Acked) -> Advisory:
        """Take an answer, to be on disk with `flushed`, and return the advisory as it then is. Raises a Refusal."""
        self._check_answers()
        told = self._give(answer)
        for one in told:
            if isinstance(one, Refused):
                raise _refusal(one)
        return next(
            one.advisory for one in reversed(told)
            if isinstance(one, Publish) and one.advisory.name == answer.name
        )  # fmt: skip

    def take_out(self, out: Sequence[TakenOut], back: PutBack) -> None:
        """Count hosts as out, or in service again, as somebody tells, to be on disk with `flushed`. Raises TooMuch, NotReady."""
        self.check_out(out)
        for event in out:
            self._give(event)
        self._give(back)

    def check_out(self, out: Sequence[TakenOut]) -> None:
        """Raise TooMuch or NotReady where *out* may not be told."""
        self.check_room()
        if not room_for(self._machine.memory, out):
            words = f"at most {HOSTS_MAX} hosts are told to be out, one for each who tells"
            raise TooMuch(words, ROOM_SECONDS)

    def check_gangs(self, told: Sequence[Gang]) -> None:
        """Raise TooMuch or NotReady where *told* may not be told."""
        self.check_room()
        if not self.gangs.room_for(told):
            words = "that is more gangs, or hosts of gangs, than are kept at once"
            raise TooMuch(words, ROOM_SECONDS)

    def take_gangs(self, told: Sequence[Gang], ended: Sequence[str]) -> None:
        """Keep what runs where, as a scheduler tells, to be on disk with `flushed`. Raises TooMuch, NotReady."""
        self.check_gangs(told)
        for one in told:
            self.gangs.tell(one)
            self._batch.gangs[one.workload] = one
        for workload in ended:
            if self.gangs.end(workload):
                self._batch.gangs[workload] = None

    @property
    def experience(self) -> Experience:
        """What judging is to know: who is back in service and watched, and what outcomes have shown."""
        memory = self._machine.memory
        returned = {
            host: Return(one.since_ns, one.until_ns)
            for host, one in memory.probation.items()
            if one.until_ns > memory.now_ns and host not in memory.holds
        }
        return Experience(returned, self.outcomes)

    async def expected(self, spans: Sequence[tuple[int, str, int, int]]) -> dict[int, float]:
        """Return `rows.expected`, read beside the writer."""

        def read() -> dict[int, float]:
            with self._store.reading() as connection:
                return rows.expected(connection, spans)

        return await asyncio.to_thread(read)

    def unknown_outcomes(self, names: Iterable[str]) -> int:
        """Return how many of *names* nobody has told of. Raises NotReady where none can be taken."""
        self.check_room()
        return len(set(names) - self._outcomes.keys())

    def take_outcomes(self, told: Iterable[rows.Happened]) -> int:
        """Keep what happened, to be on disk with `flushed`; of each id the first. Returns how many were new. Raises NotReady."""
        self.check_room()
        new = 0
        for one in told:
            if one.outcome in self._outcomes:
                continue
            self._outcomes[one.outcome] = None
            if len(self._outcomes) > OUTCOMES_KNOWN_MAX:
                del self._outcomes[next(iter(self._outcomes))]
            self._batch.outcomes.append(one.row)
            self._batch.named += one.hosts
            new += 1
            if one.expected is not None:
                interruptions, expected = self.outcomes
                self.outcomes = Outcomes(interruptions + one.interrupted, expected + one.expected)
        return new

    async def flushed(self) -> None:
        """Return once all that was taken is on disk. Raises NotReady where that fails: it counts once it is written."""
        try:
            await self.flush()
        except Exception as error:
            log.warning("advice cannot be stored: %s", error)
            raise NotReady(f"the disk does not take it yet: {error}") from error

    def what_if(self, rule: str, days: int, now_ns: int) -> whatif.Report:
        """Return what *rule* would have done. Blocks: for a thread of its own. Raises Invalid."""
        with self._store.reading() as connection:
            place = self._observer.place
            return whatif.evaluated(connection, rule, days, self._limits, now_ns, place)

    def known(self, name: str) -> Advisory | None:
        """Return the advisory *name*, open or ended a while ago; None in shadow mode."""
        return None if self.shadow else self._on_disk.get(name)

    def expires_ns(self, one: Advisory) -> int:
        """Return when *one* ends, or what it set does (`Memory.expires_ns`)."""
        return self._machine.memory.expires_ns(one)

    def standing(self) -> list[Advisory]:
        """Return what has ended, and of which something is still set on a host; nothing in shadow mode."""
        holds = self._machine.memory.holds.values()
        held = (self.known(name) for hold in holds for name in (hold.name, hold.earlier))
        return [one for one in held if one is not None and not one.is_open]

    def all_known(self) -> list[Advisory]:
        """Return what is open and what has ended a while ago; nothing in shadow mode."""
        return [] if self.shadow else list(self._on_disk.values())


def _refusal(one: Refused) -> Refusal:
    if one.why == "field":
        field, _, words = one.words.partition(": ")
        return Invalid(field, words)
    return REFUSALS[one.why](one.words)
