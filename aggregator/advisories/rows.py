"""Advisories as rows of the store: written on change, and read back after a restart."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import errors
from ..dataclass_json import from_plain, to_plain
from ..store.rows import table, time_us
from .advisory import Advisory
from .advisory_limits import AdvisoryLimits
from .messages import (
    Back,
    Event,
    Instruction,
    Out,
    Probation,
    Publish,
    PutBack,
    Refused,
    Renew,
    StillOut,
    TakenOut,
)
from .outcome_rows import CALIBRATION_COLUMNS, OUTCOME_COLUMNS, Connection
from .state import DeclaredOut, MachineState
from .state_machine import AdvisoryStateMachine
from .workloads import Gang

EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in typing.get_args(Event)}

#: After this many events the whole state is stored, so that a restart replays at most these.
EVENTS_PER_SNAPSHOT = 1000
#: Events kept for replays by people who look for reasons.
EVENTS_RETAINED_MAX = 100_000


#: Error of a Refused -> its name in stored decisions.
REFUSED_REASONS: dict[type[errors.ServiceError], str] = {
    errors.NotFound: "missing",
    errors.InvalidArgument: "field",
    errors.EtagMismatch: "etag",
    errors.FailedPrecondition: "state",
    errors.PermissionDenied: "owner",
    errors.AdviceFrozen: "frozen",
}


def to_json(one: Event | Instruction) -> str:
    """Return an event or instruction as JSON, without its kind, which is its class name."""
    plain = to_plain(one)
    if isinstance(one, Refused):
        plain = {"name": one.name, "why": REFUSED_REASONS[type(one.error)], "message": one.message}
    return json.dumps(plain, separators=(",", ":"))


def parse_event(kind: str, body: str) -> Event:
    """Return the event that was stored. Raises ValueError for an unknown kind or other fields."""
    body = body.replace('"words":', '"message":')  # the journal of a store before version 24
    try:
        return typing.cast(Event, from_plain(EVENTS[kind], json.loads(body)))
    except (KeyError, TypeError) as error:
        raise ValueError(f"event {kind!r}: unknown kind or fields: {error}") from error


@dataclass(slots=True)
class AdvisoryBatch:
    """The content of one transaction."""

    events: list[tuple[int, Event]] = field(default_factory=list)
    decisions: list[tuple[int, int, Instruction]] = field(default_factory=list)
    snapshot: tuple[int, int, str] | None = None
    outcomes: list[tuple[Any, ...]] = field(default_factory=list)
    #: Reported gangs, by workload; None: it has ended.
    gangs: dict[str, Gang | None] = field(default_factory=dict)
    #: Advisories whose hold was renewed or removed: copies, because ended ones may be forgotten.
    hold_changes: dict[str, Advisory] = field(default_factory=dict)
    #: Advisories with times moved by a clock jump or an outage, for watchers after the write.
    moved: set[str] = field(default_factory=set)
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
        return [i.advisory for _, _, i in self.decisions if isinstance(i, Publish)]

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
        "number:int time:time kind:str advisory:str host:str message:str body:str shadow:bool",
        [
            (
                number, time_us(now_ns), type(instruction).__name__, _name_of(instruction), _host_of(instruction), instruction.message,
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
    rows = [
        (host, by, report.message, time_us(report.since_ns), time_us(report.until_ns))
        for host, by, report in declared_out
    ]
    return table("host:str who:str why:str since:time until:time", rows)


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
        "scope:str basis:str reason:str message:str state:str state_message:str proposed:time "
        "expires:time act_by:time waiting_gpu_hours:float acting_gpu_hours:float arithmetic:str "
        "confidence:float hazard_per_hour:float devices:texts job:str count:int owner:str "
        "shadow:bool",
        [
            (
                advisory.name, advisory.revision, time_us(advisory.changed_ns), advisory.subject, list(advisory.hosts), advisory.action.name,
                advisory.then.name if advisory.then else None, advisory.scope.value, advisory.basis.name, advisory.reason, advisory.message,
                advisory.state.name, advisory.state_message, time_us(advisory.proposed_ns), time_us(advisory.expires_ns),
                time_us(advisory.price.act_by_ns), advisory.price.waiting_gpu_hours, advisory.price.acting_gpu_hours,
                advisory.price.arithmetic, advisory.confidence, advisory.hazard_per_hour, list(advisory.devices), advisory.job,
                advisory.count, advisory.owner, shadow,
            )
            for advisory in published
        ],
    )  # fmt: skip


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
