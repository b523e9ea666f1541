"""Advisories as rows of the store: written on change, and read back after a restart."""

from __future__ import annotations

import json
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import expm1
from typing import Any, NamedTuple

import duckdb

from ..dataclass_json import from_plain, to_plain
from ..scoring.calibration import KNOTS_PER_HOUR, Calibration, ReportedOutcomes
from ..scoring.score import HAZARD_PER_HOUR_MAX
from ..store.rows import table, time_us
from .advisory import (
    Advisory,
    AdvisoryLimits,
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
from .state import DeclaredOut, MachineState
from .state_machine import AdvisoryStateMachine
from .workloads import Gang

# ----------------------------------------------------------------------
# Events, instructions and the memory as JSON, and back: a run can be stored and replayed.

EVENTS: dict[str, type[Event]] = {one.__name__: one for one in typing.get_args(Event)}


def to_json(one: Event | Instruction) -> str:
    """Return the body of *one*; its kind is the name of its class."""
    return json.dumps(to_plain(one), separators=(",", ":"))


def parse_event(kind: str, body: str) -> Event:
    """Return the event that was stored. Raises ValueError where it is not Gangline's."""
    try:
        return typing.cast(Event, from_plain(EVENTS[kind], json.loads(body)))
    except (KeyError, TypeError) as error:
        raise ValueError(f"event {kind!r}: unknown kind or fields: {error}") from error


Connection = duckdb.DuckDBPyConnection
#: After this many stored events the memory is stored whole, so that a restart replays no more than these.
EVENTS_PER_SNAPSHOT = 1000
#: This many are kept even so: who wants to know why can replay them.
EVENTS_RETAINED_MAX = 100_000


@dataclass(slots=True)
class AdvisoryBatch:
    """What one transaction writes."""

    events: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])
    decisions: list[tuple[int, int, Instruction]] = field(
        default_factory=list[tuple[int, int, Instruction]]
    )
    snapshot: tuple[int, int, str] | None = None
    outcomes: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    #: Gangs that were reported, by workload; None: it has ended.
    gangs: dict[str, Gang | None] = field(default_factory=dict[str, Gang | None])
    #: Advisories whose settings were extended or removed, as they were then: one that ended long ago is forgotten.
    hold_changes: dict[str, Advisory] = field(default_factory=dict[str, Advisory])
    #: Advisories whose times moved, by our clock or an outage: watchers are reported once this is written.
    moved: set[str] = field(default_factory=set[str])
    #: How often hosts are named in it, but for gangs: one event may be about ten thousand.
    host_mentions: int = 0
    #: What outcomes say of hazards, as rows; None: as written before.
    calibration: list[tuple[Any, ...]] | None = None
    #: All hosts that somebody says he took out; None: as written before.
    declared_out: list[tuple[str, str, DeclaredOut]] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.events or self.snapshot or self.outcomes or self.gangs or self.calibration)

    @property
    def rows(self) -> int:
        """How much waits to be written."""
        return len(self.events) + len(self.decisions) + len(self.outcomes) + len(self.gangs)

    @property
    def hosts(self) -> int:
        """How often hosts are named in it. A gang that is reported again takes the place of itself."""
        return self.host_mentions + sum(len(one.hosts) for one in self.gangs.values() if one)

    def collect_declared_out(self, state: MachineState) -> None:
        """Take from *state* who is out by others' word, if that must be rewritten."""
        if any(isinstance(one, Out | StillOut | Back) for _, _, one in self.decisions):
            self.declared_out = [
                (host, by, one)
                for host, by_actor in state.absent.items()
                for by, one in by_actor.items()
            ]

    @property
    def published(self) -> list[Advisory]:
        """The advisories that changed, in order."""
        return [one.advisory for _, _, one in self.decisions if isinstance(one, Publish)]

    def watch_updates(self, known: Mapping[str, Advisory]) -> Iterator[Advisory]:
        """Yield what watchers are reported, in order: what changed, and advisories whose settings were extended or removed.

        *known*: by name, as they are on disk by now. A change itself says how long it is in force: reported once more, it
        would stand as it is by now before as it was.
        """
        changed = {one.name for one in self.published}
        for _, _, one in self.decisions:
            if isinstance(one, Publish):
                yield one.advisory
            elif isinstance(one, Renew | Probation) and one.name not in changed:
                found = known.get(one.name) or self.hold_changes.get(one.name)
                if found is not None:
                    yield found


def named_hosts_count(one: Event | Instruction) -> int:
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


def state_json(state: MachineState) -> str:
    """Return *state* whole."""
    return json.dumps(to_plain(state), separators=(",", ":"))


def write(connection: Connection, batch: AdvisoryBatch, *, shadow: bool) -> None:
    """Write *batch*, in the caller's transaction."""
    if batch.snapshot is not None:
        number, time_ns, body = batch.snapshot
        connection.execute("DELETE FROM advice_memory")
        connection.execute(
            "DELETE FROM advice_events WHERE number + ? < ?", [EVENTS_RETAINED_MAX, number]
        )
        _insert(
            connection, "advice_memory",
            table("number:int time:time body:str", [(number, time_us(time_ns), body)]),
        )  # fmt: skip
    _insert(connection, "advice_events", _events(batch.events))
    _insert(connection, "advice_decisions", _decisions(batch.decisions, shadow))
    _insert(connection, "advisories", _advisories(batch.published, shadow))
    _insert(connection, "outcomes", table(OUTCOME_COLUMNS, batch.outcomes))
    if batch.calibration is not None:
        connection.execute("DELETE FROM hazard_calibration")
        _insert(connection, "hazard_calibration", table(CALIBRATION_COLUMNS, batch.calibration))
    if batch.declared_out is not None:
        connection.execute("DELETE FROM unavailable")
        _insert(connection, "unavailable", _declared_out(batch.declared_out))
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


def _declared_out(declared_out: Sequence[tuple[str, str, DeclaredOut]]) -> Any:
    return table(
        "host:str who:str why:str since:time until:time",
        [
            (host, by, one.words, time_us(one.since_ns), time_us(one.until_ns))
            for host, by, one in declared_out
        ],
    )


def _gangs(gangs: Sequence[Gang]) -> Any:
    return table(
        "workload:str hosts:texts gpus:int checkpoint_seconds:float until:time reporter:str "
        "time:time",
        [
            (
                one.workload, list(one.hosts), one.gpus, one.checkpoint_seconds,
                time_us(one.until_ns), one.reporter, time_us(one.reported_ns),
            )
            for one in gangs
        ],
    )  # fmt: skip


def read_gangs(connection: Connection) -> list[Gang]:
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


class ExpectedOutcome(NamedTuple):
    """What scores had expected of an outcome, all by KNOTS_PER_HOUR but for `interruptions`: P(an interruption)."""

    interruptions: float
    by_hazard: tuple[float, ...]
    #: Of which hazard an interruption was; sums to 1 at most, to less where it was not scored then.
    shares: tuple[float, ...]


class OutcomeRecord(NamedTuple):
    """An outcome: its id, who reported it, whether a job was interrupted, what was expected (None: unknown), its row, its hosts."""

    outcome: str
    reporter: str
    interrupted: bool
    expected: ExpectedOutcome | None
    row: tuple[Any, ...]
    host_hours: float
    hosts: int

    def add_to(self, reported: ReportedOutcomes, now_ns: int) -> None:
        """Add what is known of it to *reported*."""
        if self.expected is None:
            return
        chance, by_hazard, shares = self.expected
        interruptions = [self.interrupted * share for share in shares]
        reported.add(
            self.reporter, now_ns, ([(1.0 - chance) * one for one in interruptions], by_hazard),
            (
                [float(one > 0.0) for one in by_hazard],
                [self.host_hours * one / chance for one in by_hazard], interruptions, by_hazard,
            ),
        )  # fmt: skip


OUTCOME_COLUMNS = (
    "time:time outcome:str advisory:str reporter:str job:str hosts:texts started:time ended:time "
    "interrupted:bool blamed_host:str end_reason:str followed:bool lost_gpu_hours:float "
    "host_hours:float expected_interruptions:float reason:str expected_by_hazard:floats "
    "interruptions_by_hazard:floats decision:str plan_option:int throughput:float queue_seconds:float "
    "domains_spanned:figures communication_share:float"
)
CALIBRATION_COLUMNS = (
    "time:time hazard_per_hour:float outcomes:float host_hours:float interruptions:float expected:float "
    "interruptions_counted:float expected_counted:float factor:float"
)


def restore_machine(
    connection: Connection, limits: AdvisoryLimits
) -> tuple[AdvisoryStateMachine, int]:
    """Return the machine as it was, and the number of its last event. Raises ValueError where rows are not ours."""
    found = connection.execute("SELECT number, body FROM advice_memory ORDER BY number").fetchall()
    last, body = found[-1] if found else (0, "")
    state = from_plain(MachineState, json.loads(body)) if body else None
    machine = AdvisoryStateMachine(limits, state)
    events = connection.execute(
        "SELECT number, kind, body FROM advice_events WHERE number > ? ORDER BY number", [last]
    ).fetchall()
    for number, kind, text in events:
        machine.step(parse_event(kind, text))
        last = number
    return machine, last


_KNOTS = range(1, len(KNOTS_PER_HOUR) + 1)


def _by_knot(sum_: str) -> str:
    return f"[{', '.join(sum_.format(k=k) for k in _KNOTS)}]"


#: By reporter, as of the newest outcome: what `ReportedOutcomes.add` takes. Who reported most comes first.
_REPORTED = f"""
WITH known AS (
    SELECT *, 0.5 ** ((epoch_us(max(time) OVER ()) - epoch_us(time)) / 86400e6 / $1) AS weight
    FROM outcomes WHERE expected_by_hazard IS NOT NULL
)
SELECT
    reporter, epoch_us(max(max(time)) OVER ()) * 1000,
    {_by_knot("sum(weight * (1 - expected_interruptions) * interruptions_by_hazard[{k}])")},
    {_by_knot("sum(weight * expected_by_hazard[{k}])")},
    {_by_knot("sum((expected_by_hazard[{k}] > 0)::INTEGER)")},
    {_by_knot("sum(host_hours * expected_by_hazard[{k}] / expected_interruptions)")},
    {_by_knot("sum(interruptions_by_hazard[{k}])")},
    {_by_knot("sum(expected_by_hazard[{k}])")}
FROM known GROUP BY reporter ORDER BY sum(weight) DESC, reporter
"""


def read_outcome_stats(connection: Connection, half_life_days: float) -> ReportedOutcomes:
    """Return what schedulers reported, each outcome fading by half in *half_life_days*."""
    found = ReportedOutcomes(half_life_days)
    for reporter, time_ns, interruptions, expected, *totals in connection.execute(
        _REPORTED, [half_life_days]
    ).fetchall():
        found.add(reporter, time_ns, (interruptions, expected), totals)
    return found


def calibration_rows(
    now_ns: int, reported: ReportedOutcomes, calibration: Calibration
) -> list[tuple[Any, ...]]:
    """Return rows of `hazard_calibration`, of what *reported* says at *now_ns*."""
    columns = zip(
        KNOTS_PER_HOUR, *reported.totals.tolist(), calibration.interruptions, calibration.expected, calibration.factors,
        strict=True,
    )  # fmt: skip
    return [(time_us(now_ns), *each) for each in columns]


class OutcomeHost(NamedTuple):
    """A host of an outcome, by its number. `is_suspect`: an interruption may have come of it."""

    number: int
    host: str
    begin_ns: int
    end_ns: int
    is_interrupted: bool = False
    is_suspect: bool = True


#: A score counts until the next one, and no longer than this: one is stored every five minutes. So only time that was scored
#: counts.
SCORE_SECONDS_MAX = 600
#: Hosts of outcomes with their time, against the scores that were stored in it: without what outcomes added, else these would
#: make the next ones expect it, and no more than the limit of one fault's. A host that is UNHEALTHY, or in maintenance, counts
#: until then: its interruption is certain, or meant. Of an interrupted job nothing counts once that came of a suspect.
_EXPECTED = f"""
WITH stood AS (
    SELECT
        o.*, s.state IN ('UNHEALTHY', 'MAINTENANCE') AS is_out,
        least(s.hazard_per_hour * exp(-coalesce(s.log_hazard_outcomes, 0)), {HAZARD_PER_HOUR_MAX}) AS hazard,
        greatest(s.time, o.started) AS since,
        least(
            coalesce(lead(s.time) OVER (PARTITION BY o.number, o.host ORDER BY s.time, s.version), o.ended),
            s.time + INTERVAL {SCORE_SECONDS_MAX} SECOND, o.ended
        ) AS until
    FROM told AS o JOIN scores AS s ON s.host = o.host
        AND s.time BETWEEN o.started - INTERVAL {SCORE_SECONDS_MAX} SECOND AND o.ended
),
counted AS (
    SELECT
        number, host, is_suspect, hazard, since, stop, least(until, stop, host_stop) AS until,
        [greatest(0, 1 - abs(least(greatest(log10(hazard / {KNOTS_PER_HOUR[0]}), 0), {len(KNOTS_PER_HOUR) - 1}) - k))
            FOR k IN range({len(KNOTS_PER_HOUR)})] AS near
    FROM (
        SELECT
            *, coalesce(min(since) FILTER (is_out AND is_interrupted AND is_suspect) OVER (PARTITION BY number), ended) AS stop,
            coalesce(min(since) FILTER (is_out) OVER (PARTITION BY number, host), ended) AS host_stop
        FROM stood WHERE until > since
    )
    WHERE least(until, stop, host_stop) > since
),
hosts AS (
    SELECT
        number, host, {_by_knot("sum(hazard * near[{k}] * epoch_us(until - since)) / 3600e6")} AS hazards,
        CASE WHEN any_value(is_suspect) AND max(until) >= any_value(stop) THEN max_by(hazard, until) END AS last,
        max_by(near, until) AS near
    FROM counted GROUP BY number, host
)
SELECT
    number, {_by_knot("sum(hazards[{k}])")}, {_by_knot("coalesce(sum(last * near[{k}]) / sum(last), 0)")}, count(last)
FROM hosts GROUP BY number
"""


def expected_outcomes(
    connection: Connection, outcome_hosts: Sequence[OutcomeHost]
) -> dict[int, ExpectedOutcome]:
    """Return by outcome's number what the scores of then expected; no key: none is stored."""
    hosts = table(
        "number:int host:str started:time ended:time is_interrupted:bool is_suspect:bool",
        [(*one[:2], time_us(one.begin_ns), time_us(one.end_ns), *one[4:]) for one in outcome_hosts],
    )
    suspects = Counter(one.number for one in outcome_hosts if one.is_suspect)
    connection.register("told", hosts)
    try:
        found = connection.execute(_EXPECTED).fetchall()
    finally:
        connection.unregister("told")
    return {
        number: _expected_outcome(hazards, [share * scored / suspects[number] for share in shares])
        for number, hazards, shares, scored in found
        if sum(hazards) > 0.0
    }


def _expected_outcome(hazards: Sequence[float], shares: Sequence[float]) -> ExpectedOutcome:
    """Return P(an interruption) of *hazards*, summed over hosts and time by KNOTS_PER_HOUR."""
    chance = -expm1(-sum(hazards))
    by_hazard = tuple(chance * each / sum(hazards) for each in hazards)
    return ExpectedOutcome(chance, by_hazard, tuple(shares))


def outcome_names(connection: Connection, count: int) -> list[tuple[str, str]]:
    """Return reporter and id of the newest *count* outcomes, oldest first, so that one that is reported again is taken once."""
    rows = connection.execute(
        "SELECT reporter, outcome FROM outcomes WHERE outcome <> '' ORDER BY time DESC LIMIT ?",
        [count],
    ).fetchall()
    return [(reporter, name) for reporter, name in reversed(rows)]
