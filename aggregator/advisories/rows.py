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

EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in typing.get_args(Event)}


def to_json(one: Event | Instruction) -> str:
    """Return an event or instruction as JSON, without its kind, which is its class name."""
    return json.dumps(to_plain(one), separators=(",", ":"))


def parse_event(kind: str, body: str) -> Event:
    """Return the event that was stored. Raises ValueError for an unknown kind or other fields."""
    try:
        return typing.cast(Event, from_plain(EVENTS[kind], json.loads(body)))
    except (KeyError, TypeError) as error:
        raise ValueError(f"event {kind!r}: unknown kind or fields: {error}") from error


Connection = duckdb.DuckDBPyConnection
#: After this many events the whole state is stored, so that a restart replays at most these.
EVENTS_PER_SNAPSHOT = 1000
#: Events kept for replays by people who look for reasons.
EVENTS_RETAINED_MAX = 100_000


@dataclass(slots=True)
class AdvisoryBatch:
    """The content of one transaction."""

    events: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])
    decisions: list[tuple[int, int, Instruction]] = field(
        default_factory=list[tuple[int, int, Instruction]]
    )
    snapshot: tuple[int, int, str] | None = None
    outcomes: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    #: Reported gangs, by workload; None: it has ended.
    gangs: dict[str, Gang | None] = field(default_factory=dict[str, Gang | None])
    #: Advisories whose holds were renewed or removed, as of that time, since ended ones may be
    #: forgotten later.
    hold_changes: dict[str, Advisory] = field(default_factory=dict[str, Advisory])
    #: Advisories whose times moved by a clock jump or an outage: watchers receive them after the
    #: write.
    moved: set[str] = field(default_factory=set[str])
    #: Number of mentions of hosts, without gangs: a single event may name ten thousand.
    host_mentions: int = 0
    #: The calibration by outcomes, as rows; None: unchanged.
    calibration: list[tuple[Any, ...]] | None = None
    #: All hosts that actors reported out; None: unchanged.
    declared_out: list[tuple[str, str, DeclaredOut]] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.events or self.snapshot or self.outcomes or self.gangs or self.calibration)

    @property
    def rows(self) -> int:
        """Number of rows to write."""
        return len(self.events) + len(self.decisions) + len(self.outcomes) + len(self.gangs)

    @property
    def hosts(self) -> int:
        """Number of mentions of hosts. A gang that is reported again replaces itself."""
        return self.host_mentions + sum(len(gang.hosts) for gang in self.gangs.values() if gang)

    def collect_declared_out(self, state: MachineState) -> None:
        """Copy the hosts reported out from *state*, if a report changed."""
        if any(
            isinstance(instruction, Out | StillOut | Back) for _, _, instruction in self.decisions
        ):
            self.declared_out = [
                (host, by, declared_out)
                for host, by_actor in state.absent.items()
                for by, declared_out in by_actor.items()
            ]

    @property
    def published(self) -> list[Advisory]:
        """The advisories that changed, in order."""
        return [
            instruction.advisory
            for _, _, instruction in self.decisions
            if isinstance(instruction, Publish)
        ]

    def watch_updates(self, known: Mapping[str, Advisory]) -> Iterator[Advisory]:
        """Yield the advisories for watchers in order: changed, or with a hold renewed or removed.

        *known*: by name, as they are on disk. A changed advisory is sent only as it became: a
        second copy, with its current state, would arrive before the change.
        """
        changed = {advisory.name for advisory in self.published}
        for _, _, instruction in self.decisions:
            if isinstance(instruction, Publish):
                yield instruction.advisory
            elif isinstance(instruction, Renew | Probation) and instruction.name not in changed:
                advisory = known.get(instruction.name) or self.hold_changes.get(instruction.name)
                if advisory is not None:
                    yield advisory


def named_hosts_count(one: Event | Instruction) -> int:
    """Return the number of hosts that an event or instruction names, if it may be many, else 0."""
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
    """Return the whole *state* as JSON."""
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
        _insert(connection, "gangs", _gangs([gang for gang in batch.gangs.values() if gang]))


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
        [(n, time_us(event.now_ns), type(event).__name__, to_json(event)) for n, event in events],
    )


def _decisions(decisions: Sequence[tuple[int, int, Instruction]], shadow: bool) -> Any:
    return table(
        "number:int time:time kind:str advisory:str host:str words:str body:str shadow:bool",
        [
            (
                number, time_us(now_ns), type(instruction).__name__, _name_of(instruction), _host_of(instruction), instruction.words,
                "" if isinstance(instruction, Publish | StillOut) else to_json(instruction), shadow,
            )
            for number, now_ns, instruction in decisions
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
            (host, by, report.words, time_us(report.since_ns), time_us(report.until_ns))
            for host, by, report in declared_out
        ],
    )


def _gangs(gangs: Sequence[Gang]) -> Any:
    return table(
        "workload:str hosts:texts gpus:int checkpoint_seconds:float until:time reporter:str "
        "time:time",
        [
            (
                gang.workload, list(gang.hosts), gang.gpus, gang.checkpoint_seconds,
                time_us(gang.until_ns), gang.reporter, time_us(gang.reported_ns),
            )
            for gang in gangs
        ],
    )  # fmt: skip


def read_gangs(connection: Connection) -> list[Gang]:
    """Return the gangs that schedulers reported."""
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
                advisory.name, advisory.revision, time_us(advisory.changed_ns), advisory.subject, list(advisory.hosts), advisory.action.name,
                advisory.then.name if advisory.then else None, advisory.scope.value, advisory.basis.name, advisory.reason, advisory.words,
                advisory.state.name, advisory.state_words, time_us(advisory.proposed_ns), time_us(advisory.expires_ns),
                time_us(advisory.price.act_by_ns), advisory.price.waiting_gpu_hours, advisory.price.acting_gpu_hours,
                advisory.price.arithmetic, advisory.confidence, advisory.hazard_per_hour, list(advisory.devices), advisory.job,
                advisory.count, advisory.owner, shadow,
            )
            for advisory in published
        ],
    )  # fmt: skip


class ExpectedOutcome(NamedTuple):
    """The scores' prediction for an outcome: P(an interruption), the rest by KNOTS_PER_HOUR."""

    interruptions: float
    by_hazard: tuple[float, ...]
    #: Probabilities of the interruption's hazard; the sum is at most 1, less for hosts without a
    #: score.
    shares: tuple[float, ...]


class OutcomeRecord(NamedTuple):
    """An outcome with its row, and the expectation from scores (None: unknown)."""

    outcome: str
    reporter: str
    interrupted: bool
    expected: ExpectedOutcome | None
    row: tuple[Any, ...]
    host_hours: float
    hosts: int

    def add_to(self, reported: ReportedOutcomes, now_ns: int) -> None:
        """Add the outcome to *reported*, if it has an expectation."""
        if self.expected is None:
            return
        chance, by_hazard, shares = self.expected
        interruptions = [self.interrupted * share for share in shares]
        reported.add(
            self.reporter, now_ns, ([(1.0 - chance) * value for value in interruptions], by_hazard),
            (
                [float(value > 0.0) for value in by_hazard],
                [self.host_hours * value / chance for value in by_hazard], interruptions, by_hazard,
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
    """Return the stored machine, and its last event's number. Raises ValueError."""
    snapshots = connection.execute(
        "SELECT number, body FROM advice_memory ORDER BY number"
    ).fetchall()
    last, body = snapshots[-1] if snapshots else (0, "")
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


#: Arguments of `ReportedOutcomes.add` by reporter, as of the newest outcome. The largest reporter
#: comes first.
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
    """Return the reported outcomes; each halves in *half_life_days*."""
    result = ReportedOutcomes(half_life_days)
    for reporter, time_ns, interruptions, expected, *totals in connection.execute(
        _REPORTED, [half_life_days]
    ).fetchall():
        result.add(reporter, time_ns, (interruptions, expected), totals)
    return result


def calibration_rows(
    now_ns: int, reported: ReportedOutcomes, calibration: Calibration
) -> list[tuple[Any, ...]]:
    """Return the rows of `hazard_calibration` for *reported* at *now_ns*."""
    columns = zip(
        KNOTS_PER_HOUR, *reported.totals.tolist(), calibration.interruptions, calibration.expected, calibration.factors,
        strict=True,
    )  # fmt: skip
    return [(time_us(now_ns), *values) for values in columns]


class OutcomeHost(NamedTuple):
    """A host of an outcome, by number. `is_suspect`: it may have caused an interruption."""

    number: int
    host: str
    begin_ns: int
    end_ns: int
    is_interrupted: bool = False
    is_suspect: bool = True


#: A score counts until the next one, at most for this long: one is stored every five minutes. So
#: only scored time counts.
SCORE_SECONDS_MAX = 600
#: Hosts of outcomes with their time and the scores stored in it. Hazards exclude the addition by
#: outcomes, which would otherwise feed back, and are limited like a single fault's. A host counts
#: until it is UNHEALTHY or in maintenance, when its interruption is certain or intended; the
#: hosts of an interrupted job count only until a suspect host is.
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
    """Return the scores' expectation by outcome number; absent for outcomes without scores."""
    hosts = table(
        "number:int host:str started:time ended:time is_interrupted:bool is_suspect:bool",
        [
            (*host[:2], time_us(host.begin_ns), time_us(host.end_ns), *host[4:])
            for host in outcome_hosts
        ],
    )
    suspects = Counter(host.number for host in outcome_hosts if host.is_suspect)
    connection.register("told", hosts)
    try:
        expected = connection.execute(_EXPECTED).fetchall()
    finally:
        connection.unregister("told")
    return {
        number: _expected_outcome(hazards, [share * scored / suspects[number] for share in shares])
        for number, hazards, shares, scored in expected
        if sum(hazards) > 0.0
    }


def _expected_outcome(hazards: Sequence[float], shares: Sequence[float]) -> ExpectedOutcome:
    """Return the expectation for *hazards*, summed over hosts and time by KNOTS_PER_HOUR."""
    chance = -expm1(-sum(hazards))
    by_hazard = tuple(chance * hazard / sum(hazards) for hazard in hazards)
    return ExpectedOutcome(chance, by_hazard, tuple(shares))


def outcome_names(connection: Connection, count: int) -> list[tuple[str, str]]:
    """Return reporter and id of the newest *count* outcomes, oldest first."""
    rows = connection.execute(
        "SELECT reporter, outcome FROM outcomes WHERE outcome <> '' ORDER BY time DESC LIMIT ?",
        [count],
    ).fetchall()
    return [(reporter, name) for reporter, name in reversed(rows)]
