"""The machine in service: a judgement in, rows written, then, and only then, the world is told.

Nothing is published that is not on disk: after a crash the machine stands where the world saw it. While the disk
takes nothing no advice comes, and whoever answers or tells is refused: what was taken even so counts once it is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from ..counter_deltas import Codes
from ..errors import (
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
from ..scoring.calibration import HALF_LIFE_DAYS, Calibration, Reported
from ..scoring.evaluate import Judgement
from ..scoring.score import Experience, Return
from . import replay, rows
from .advisory import (
    Acked,
    Advisory,
    Event,
    Frozen,
    Limits,
    Probation,
    Publish,
    PutBack,
    Refused,
    Renew,
    State,
    TakenOut,
    Tick,
)
from .answers import HOSTS_MAX, room_for
from .observer import Observer, in_kind
from .state_machine import Machine
from .workloads import Gang, Gangs

# ----------------------------------------------------------------------
# Who watches advice: what changed, in order, each with a token from which a broken watch goes on.

#: Changes that are remembered; whoever comes back for older ones gets all that is open instead.
CHANGES_MAX = 10_000
#: Watchers at once.
WATCHERS_MAX = 256
#: A watcher that nothing is told for so long gets a bookmark.
BOOKMARK_SECONDS = 15.0


class Change(NamedTuple):
    """One advisory as it became; `number` is the token. `advisory` None: a bookmark.

    `number` None: it is one of all that is open, and nobody can go on from it: the rest of them would be missing.
    """

    number: int | None
    advisory: Advisory | None


class Feed:
    """Of one loop. `begun_ms` tells the feed of one start from that of another."""

    def __init__(
        self,
        begun_ms: int,
        changes_max: int = CHANGES_MAX,
        standing: Callable[[], list[Advisory]] = list,
    ) -> None:
        """*standing*: returns what has ended, and of which something is still set on a host."""
        self.begun_ms, self._standing = begun_ms, standing
        self.last = 0
        #: Who watches now.
        self.watchers = 0
        self._changes: deque[Change] = deque(maxlen=changes_max)
        self._open: dict[str, Advisory] = {}
        self._news = asyncio.Event()

    def publish(self, advisory: Advisory) -> None:
        """Tell all that watch."""
        self.last += 1
        self._changes.append(Change(self.last, advisory))
        if advisory.is_open:
            self._open[advisory.name] = advisory
        else:
            self._open.pop(advisory.name, None)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def begin(self, advisories: list[Advisory]) -> None:
        """Begin with these, after a restart."""
        self._open = {one.name: one for one in advisories}

    @property
    def open(self) -> list[Advisory]:
        """What is open, oldest first."""
        return list(self._open.values())

    def after(self, number: int) -> list[Change] | None:
        """Return what came after *number*; None when that is forgotten or was never."""
        forgotten = self.last - len(self._changes)  # up to this one
        if not forgotten <= number <= self.last:
            return None
        return list(islice(self._changes, number - forgotten, None))

    async def watch(
        self, number: int | None, bookmark_seconds: float = BOOKMARK_SECONDS
    ) -> AsyncIterator[Change]:
        """Yield what came after *number*, then what comes; for None, or what is forgotten, first all that stands."""
        at = number
        while True:
            news = self._news
            fresh = None if at is None else self.after(at)
            if fresh is None:  # it begins, or came back or read so late that changes are forgotten
                fresh = self._all()
            at = self.last
            for change in fresh:
                yield change
            if self.last != at:
                continue
            try:
                await asyncio.wait_for(news.wait(), bookmark_seconds)
            except TimeoutError:
                yield Change(at, None)

    def _all(self) -> list[Change]:
        """Return what is set still by what has ended and all that is open, with the bookmark that ends it."""
        told = [*self._standing(), *self.open]
        return [*(Change(None, one) for one in told), Change(self.last, None)]


log = logging.getLogger(__name__)

T = TypeVar("T")
#: Events, decisions and reports that wait for the disk, and hosts that these name; from then on nothing is decided or
#: taken, which is advice withheld, not lost.
ROWS_WAITING_MAX, HOSTS_WAITING_MAX = 100_000, 200_000
#: Ids of outcomes that are known: one that is older and told again counts again.
OUTCOMES_KNOWN_MAX = 100_000

#: Outcomes fade by the hour, so that a score that nothing moves stays the same.
CALIBRATED_NS = 3600 * 10**9

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
        outcomes_half_life_days: float = HALF_LIFE_DAYS,
    ) -> None:
        """Take over what is stored, *gangs* too. Blocks for the store; raises ValueError where its rows are not ours."""

        def read(connection: rows.Connection) -> Any:
            for one in rows.gangs(connection):
                self.gangs.tell(one)
            restored = rows.restored(connection, limits)
            outcomes = rows.reported(connection, outcomes_half_life_days)
            names = rows.outcome_names(connection, OUTCOMES_KNOWN_MAX)
            return *restored, dict.fromkeys(names), outcomes

        self._store, self._observer, self.shadow = store, observer, shadow
        self.gangs = Gangs() if gangs is None else gangs
        self._limits = limits
        self._machine: Machine
        self._outcomes: dict[str, None]  # the oldest first
        #: What they have shown so far, and what that says of hazards, as of when.
        self._reported: Reported
        read_back = store.in_transaction(read)
        self._machine, self._number, self._outcomes, self._reported = read_back
        self._machine.resume(now_ns)
        memory = self._machine.memory
        #: Advisories as they are on disk: what anybody may be told.
        self._on_disk = {**memory.ended, **memory.advisories}
        self._batch = rows.Batch(memory=self._whole())
        self.outcomes: Calibration
        self._calibrated_ns = 0
        self._calibrate(now_ns)
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
        if abs(judged.computed_ns - self._calibrated_ns) >= CALIBRATED_NS and self._reported:
            self._calibrate(judged.computed_ns)
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
            calibration=after.calibration or batch.calibration,
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

    async def expected(self, spans: Sequence[rows.Span]) -> dict[int, rows.Expected]:
        """Return `rows.expected`, read beside the writer."""

        def read() -> dict[int, rows.Expected]:
            with self._store.reading() as connection:
                return rows.expected(connection, spans)

        return await asyncio.to_thread(read)

    def unknown_outcomes(self, names: Iterable[str]) -> int:
        """Return how many of *names* nobody has told of. Raises NotReady where none can be taken."""
        self.check_room()
        return len(set(names) - self._outcomes.keys())

    def _calibrate(self, now_ns: int) -> None:
        """Work out what outcomes say of hazards at *now_ns*, to be on disk with `flushed`."""
        self.outcomes, self._calibrated_ns = self._reported.calibration(now_ns), now_ns
        self._batch.calibration = rows.calibration_rows(now_ns, self._reported, self.outcomes)

    def take_outcomes(self, told: Iterable[rows.Happened], now_ns: int) -> int:
        """Keep what happened, to be on disk with `flushed`; of each id the first. Returns how many were new. Raises NotReady.

        *now_ns*: of our clock, from which on they fade.
        """
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
            one.add_to(self._reported, now_ns)
        if new:
            self._calibrate(now_ns)
        return new

    async def flushed(self) -> None:
        """Return once all that was taken is on disk. Raises NotReady where that fails: it counts once it is written."""
        try:
            await self.flush()
        except Exception as error:
            log.warning("advice cannot be stored: %s", error)
            raise NotReady(f"the disk does not take it yet: {error}") from error

    def what_if(self, rule: str, days: int, now_ns: int) -> replay.Report:
        """Return what *rule* would have done. Blocks: for a thread of its own. Raises Invalid."""
        with self._store.reading() as connection:
            place = self._observer.place
            return replay.evaluated(connection, rule, days, self._limits, now_ns, place)

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


# ----------------------------------------------------------------------
# Advice beside judging: the book is given each judgement, and writes and tells in a task of its
# own.

#: At the end what is being written is waited for so long; what is not written by then is worked out anew.
END_SECONDS = 2.0


class Telling:
    """Belongs to the loop, as *book* does."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""

    def observe(self, judged: Judgement, gpus: Codes) -> None:
        """Tell the book of a judgement. What it decides is written, then told. Never raises."""
        try:
            self._book.observe(judged, gpus)
        except Exception:
            # What was decided before it failed is remembered, and so is to be written.
            log.exception("advice failed; what was advised before stands")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        try:
            await self._book.flush()
            self._trouble = ""
        except Exception as error:  # noqa: BLE001 - the disk's, DuckDB's: it is tried again
            if str(error) != self._trouble:
                log.warning("advice cannot be stored, and so is not given: %s", error)
            self._trouble = str(error)

    async def end(self) -> None:
        """Write what waits, and all that is remembered, within END_SECONDS."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=END_SECONDS / 2)
        self._book.remember()
        await asyncio.wait([asyncio.create_task(self._flush())], timeout=END_SECONDS / 2)
