"""Advice as rows of the store: how it is written, and how a restart reads it back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import duckdb

from ..store.records import table, time_us
from .advisory import Advisory
from .desk import Absent, Memory
from .events import (
    Back,
    Event,
    Instruction,
    Out,
    Probation,
    Publish,
    PutBack,
    Renew,
    StillOut,
    TakenOut,
)
from .gangs import Gang
from .limits import HOUR_NS, Limits
from .machine import Machine
from .stored import event_of, made, plain, to_json

Connection = duckdb.DuckDBPyConnection
#: After so many stored events the memory is stored whole, so that a restart replays no more than these.
EVENTS_PER_MEMORY = 1000
#: So many are kept even so: who wants to know why can replay them.
EVENTS_KEPT = 100_000


@dataclass(slots=True)
class Batch:
    """What one transaction writes."""

    events: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])
    decisions: list[tuple[int, int, Instruction]] = field(
        default_factory=list[tuple[int, int, Instruction]]
    )
    memory: tuple[int, int, str] | None = None
    outcomes: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    #: Gangs that were told of, by workload; None: it has ended.
    gangs: dict[str, Gang | None] = field(default_factory=dict[str, Gang | None])
    #: Advisories of which something is set for longer, or no more, as they were then: one that ended long ago is forgotten.
    standing: dict[str, Advisory] = field(default_factory=dict[str, Advisory])
    #: Advisories whose times moved, by our clock or an outage: watchers are told once this is written.
    moved: set[str] = field(default_factory=set[str])
    #: How often hosts are named in it, but for gangs: one event may be about ten thousand.
    named: int = 0
    #: All hosts that somebody says he took out; None: as written before.
    absent: list[tuple[str, str, Absent]] | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.events or self.memory or self.outcomes or self.gangs)

    @property
    def rows(self) -> int:
        """How much waits to be written."""
        return len(self.events) + len(self.decisions) + len(self.outcomes) + len(self.gangs)

    @property
    def hosts(self) -> int:
        """How often hosts are named in it. A gang that is told again takes the place of itself."""
        return self.named + sum(len(one.hosts) for one in self.gangs.values() if one)

    def see_absent(self, memory: Memory) -> None:
        """Take from *memory* who is out by others' word, if that is to be written anew."""
        if any(isinstance(one, Out | StillOut | Back) for _, _, one in self.decisions):
            self.absent = [
                (host, by, one) for host, told in memory.absent.items() for by, one in told.items()
            ]

    @property
    def published(self) -> list[Advisory]:
        """The advisories that changed, in order."""
        return [one.advisory for _, _, one in self.decisions if isinstance(one, Publish)]

    def told_of(self, known: Mapping[str, Advisory]) -> Iterator[Advisory]:
        """Yield what watchers are told, in order: what changed, and that of which something is set for longer, or no more.

        *known*: by name, as they are on disk by now. What changed says by itself how long it stands: told of once more, it
        would stand as it is by now before as it was.
        """
        changed = {one.name for one in self.published}
        for _, _, one in self.decisions:
            if isinstance(one, Publish):
                yield one.advisory
            elif isinstance(one, Renew | Probation) and one.name not in changed:
                found = known.get(one.name) or self.standing.get(one.name)
                if found is not None:
                    yield found


def hosts_in(one: Event | Instruction) -> int:
    """Return how many hosts *one* names, where that may be many."""
    match one:
        case TakenOut():
            return len(one.members)
        case PutBack() | StillOut():
            return len(one.hosts)
        case Publish():
            return len(one.advisory.hosts)
        case _:
            return 0


def memory_text(memory: Memory) -> str:
    """Return *memory* whole."""
    return json.dumps(plain(memory), separators=(",", ":"))


def write(connection: Connection, batch: Batch, *, shadow: bool) -> None:
    """Write *batch*, in the caller's transaction."""
    if batch.memory is not None:
        number, time_ns, body = batch.memory
        connection.execute("DELETE FROM advice_memory")
        connection.execute("DELETE FROM advice_events WHERE number + ? < ?", [EVENTS_KEPT, number])
        _insert(
            connection, "advice_memory",
            table("number:int time:time body:str", [(number, time_us(time_ns), body)]),
        )  # fmt: skip
    _insert(connection, "advice_events", _events(batch.events))
    _insert(connection, "advice_decisions", _decisions(batch.decisions, shadow))
    _insert(connection, "advisories", _advisories(batch.published, shadow))
    _insert(connection, "outcomes", table(OUTCOME_COLUMNS, batch.outcomes))
    if batch.absent is not None:
        connection.execute("DELETE FROM unavailable")
        _insert(connection, "unavailable", _absent(batch.absent))
    if batch.gangs:
        names = list(batch.gangs)
        connection.execute("DELETE FROM gangs WHERE list_contains(?, workload)", [names])
        _insert(connection, "gangs", _gangs([one for one in batch.gangs.values() if one]))


def _insert(connection: Connection, name: str, arrow: Any) -> None:
    if arrow.num_rows:
        connection.register("new_advice", arrow)
        try:
            connection.execute(f"INSERT INTO {name} BY NAME SELECT * FROM new_advice")
        finally:
            connection.unregister("new_advice")


def _events(events: Sequence[tuple[int, Event]]) -> Any:
    return table(
        "number:int time:time kind:str body:str",
        [(n, time_us(one.now_ns), type(one).__name__, to_json(one)) for n, one in events],
    )


def _decisions(decisions: Sequence[tuple[int, int, Instruction]], shadow: bool) -> Any:
    return table(
        "number:int time:time kind:str advisory:str host:str words:str body:str shadow:bool",
        [
            (
                number, time_us(now_ns), type(one).__name__, _name_of(one), _host_of(one), one.words,
                "" if isinstance(one, Publish | StillOut) else to_json(one), shadow,
            )
            for number, now_ns, one in decisions
        ],
    )  # fmt: skip


def _name_of(one: Instruction) -> str:
    return one.advisory.name if isinstance(one, Publish) else getattr(one, "name", "")


def _host_of(one: Instruction) -> str:
    return one.advisory.host if isinstance(one, Publish) else getattr(one, "host", "")


def _absent(absent: Sequence[tuple[str, str, Absent]]) -> Any:
    return table(
        "host:str who:str why:str since:time until:time",
        [
            (host, by, one.words, time_us(one.since_ns), time_us(one.until_ns))
            for host, by, one in absent
        ],
    )


def _gangs(gangs: Sequence[Gang]) -> Any:
    return table(
        "workload:str hosts:texts gpus:int checkpoint_seconds:float until:time reporter:str "
        "time:time",
        [
            (
                one.workload, list(one.hosts), one.gpus, one.checkpoint_seconds,
                time_us(one.until_ns), one.by, time_us(one.told_ns),
            )
            for one in gangs
        ],
    )  # fmt: skip


def gangs(connection: Connection) -> list[Gang]:
    """Return what schedulers said runs where."""
    rows = connection.execute(
        "SELECT workload, hosts, gpus, checkpoint_seconds, epoch_us(until) * 1000, reporter, "
        "epoch_us(time) * 1000 FROM gangs"
    ).fetchall()
    return [Gang(name, tuple(hosts), *rest) for name, hosts, *rest in rows]


def _advisories(published: Sequence[Advisory], shadow: bool) -> Any:
    return table(
        "advisory:str revision:int time:time subject:str hosts:texts action:str then_action:str "
        "scope:str basis:str reason:str words:str state:str state_words:str proposed:time "
        "expires:time act_by:time waiting_gpu_hours:float acting_gpu_hours:float arithmetic:str "
        "confidence:float hazard_per_hour:float devices:texts job:str count:int owner:str "
        "shadow:bool",
        [
            (
                a.name, a.revision, time_us(a.changed_ns), a.subject, list(a.hosts), a.action.name,
                a.then.name if a.then else None, a.scope.value, a.basis.name, a.reason, a.words,
                a.state.name, a.state_words, time_us(a.proposed_ns), time_us(a.expires_ns),
                time_us(a.price.act_by_ns), a.price.waiting_gpu_hours, a.price.acting_gpu_hours,
                a.price.arithmetic, a.confidence, a.hazard_per_hour, list(a.devices), a.job,
                a.count, a.owner, shadow,
            )
            for a in published
        ],
    )  # fmt: skip


class Happened(NamedTuple):
    """An outcome: its id, whether a job was interrupted, how many were expected (None: unknown), its row, its hosts."""

    outcome: str
    interrupted: bool
    expected: float | None
    row: tuple[Any, ...]
    hosts: int


OUTCOME_COLUMNS = (
    "time:time outcome:str advisory:str reporter:str job:str hosts:texts started:time ended:time "
    "interrupted:bool blamed_host:str end_reason:str followed:bool lost_gpu_hours:float "
    "host_hours:float expected_interruptions:float reason:str"
)


def restored(connection: Connection, limits: Limits) -> tuple[Machine, int]:
    """Return the machine as it was, and the number of its last event. Raises ValueError where rows are not ours."""
    found = connection.execute("SELECT number, body FROM advice_memory ORDER BY number").fetchall()
    last, body = found[-1] if found else (0, "")
    memory = made(Memory, json.loads(body)) if body else None
    machine = Machine(limits, memory)
    events = connection.execute(
        "SELECT number, kind, body FROM advice_events WHERE number > ? ORDER BY number", [last]
    ).fetchall()
    for number, kind, text in events:
        machine.step(event_of(kind, text))
        last = number
    return machine, last


def calibration(connection: Connection) -> tuple[int, float]:
    """Return the interruptions that were reported, and how many the scores of then had expected."""
    found = connection.execute(
        "SELECT count(*) FILTER (WHERE interrupted), coalesce(sum(expected_interruptions), 0) "
        "FROM outcomes WHERE expected_interruptions IS NOT NULL"
    ).fetchone()
    return (int(found[0]), float(found[1])) if found else (0, 0.0)


#: Hosts of outcomes with their time, against the scores that were stored in it, as they were without outcomes:
#: else what these add would make the next ones expect it. A score counts for as long as it stood: they are stored on
#: change, too, and a minute of many would outweigh quiet hours.
_EXPECTED = """
WITH stood AS (
    SELECT
        o.number, o.host, o.hours, s.hazard_per_hour * exp(-coalesce(s.log_hazard_outcomes, 0)) AS hazard,
        greatest(s.time, o.started) AS since,
        coalesce(lead(s.time) OVER (PARTITION BY o.number, o.host ORDER BY s.time, s.version), o.ended) AS until
    FROM told AS o JOIN scores AS s ON s.host = o.host
        AND s.time BETWEEN o.started - INTERVAL 5 MINUTE AND o.ended
),
hosts AS (
    -- A microsecond more each: of a job that took no time, too, something counts.
    SELECT number, host, hours, sum(hazard * microseconds) / sum(microseconds) AS hazard
    FROM (SELECT *, greatest(epoch_us(until) - epoch_us(since), 0) + 1 AS microseconds FROM stood)
    GROUP BY number, host, hours
)
SELECT number, sum(hazard * hours) FROM hosts GROUP BY number
"""


def expected(
    connection: Connection, spans: Sequence[tuple[int, str, int, int]]
) -> dict[int, float]:
    """Return by outcome's number how many interruptions the scores of then expected; no key: none is stored.

    *spans*: (number, host, begin, end), in ns.
    """
    told = table(
        "number:int host:str started:time ended:time hours:float",
        [(n, host, time_us(a), time_us(b), (b - a) / HOUR_NS) for n, host, a, b in spans],
    )
    connection.register("told", told)
    try:
        return {
            int(number): float(sum_) for number, sum_ in connection.execute(_EXPECTED).fetchall()
        }
    finally:
        connection.unregister("told")


def outcome_names(connection: Connection, count: int) -> list[str]:
    """Return the ids of the newest *count* outcomes, oldest first, so that one that is told again is taken once."""
    rows = connection.execute(
        "SELECT outcome FROM outcomes WHERE outcome <> '' ORDER BY time DESC LIMIT ?", [count]
    ).fetchall()
    return [name for (name,) in reversed(rows)]
