"""A symptom: what a rule sees wrong with one device at one moment, with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import exp, inf, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...contract.signals import BY_NAME
from ...contract.xid.policy import Clears
from ..counter_deltas import Flags, Floats, Indexes
from ..declared.model import coming, reaches
from ..fleet.active_events import Occurrence
from ..fleet.peers import PEERS_MIN
from ..fleet.tables import FAST_SECONDS
from ..model import SEVERITY, Evidence, Reason, State
from ..sql import quoted
from .evidence_sql import moment
from .view import Present


@dataclass(frozen=True, slots=True)
class Rule:
    """What a kind of symptom means. `hazard_factor`: how many times as likely a fault is with it alone.

    `shared`: what the devices of a host have in common that may cause it ("cooling"): several that show rules of one such
    cause at the same time may have one fault (`scoring.causes`). "": each device has its own.

    It counts once it was there for `enter_seconds` on end, and is over once it was away for
    `leave_seconds`; `clears` says the second in words.
    """

    name: str
    state: State
    reason: Reason
    clears: str
    enter_seconds: float = 0.0
    leave_seconds: float = 60.0
    hazard_factor: float = 1.0
    shared: str = ""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One device, one rule, now. `value` is in `unit`; `speed` below 1 costs relative speed."""

    rule: Rule
    host: int
    device: str
    signal: str
    value: float
    normal: str
    words: str
    sql: str
    unit: str = ""
    speed: float = 1.0
    hazard_factor: float = 0.0  # 0: the rule's
    state: State | None = None  # None: the rule's
    reason: Reason | None = None
    clears: str = ""
    #: The state at most that it keeps up where it had been in it: what ends a state lies beyond what begins it. Of one that
    #: is HEALTHY by itself it begins nothing.
    keeps: State | None = None
    #: Whose fault it shows, where it is not its device's: a driver's that does not answer, as several devices show.
    whose: str = ""
    #: Of two that weigh alike the greater is told first; what is read now, before what was reported.
    precedence: tuple[float, ...] = (inf,)

    def fault_of(self, shared: Container[str]) -> str:
        """Return whose fault it shows, where *shared* causes explain all they may: several symptoms of one are one fault."""
        if self.whose:
            return self.whose
        return f"shared {self.rule.shared}" if self.rule.shared in shared else self.whole

    @property
    def whole(self) -> str:
        """The device that it is a symptom of, or of a part of.

        A GPU's link is a part of it; EDAC counts one error at its controller, its row and its channel.
        """
        has_parts = self.device.startswith("GPU-") or self.signal.startswith("edac.")
        return self.device.partition("/")[0] if has_parts else self.device

    @property
    def key(self) -> tuple[str, str]:
        """What makes two symptoms of a host the same, moments apart."""
        return self.rule.name, self.device

    @property
    def log_hazard_delta(self) -> float:
        """What it adds to the logarithm of the hazard when nothing else is wrong with the device."""
        return log(self.hazard_factor or self.rule.hazard_factor)

    @property
    def severity(self) -> int:
        """How bad: higher is worse; HEALTHY is 0."""
        return len(SEVERITY) - 1 - SEVERITY.index(self.host_state)

    @property
    def host_state(self) -> State:
        """The state that it puts its host in."""
        return self.rule.state if self.state is None else self.state

    @property
    def weight(self) -> tuple[int, float, tuple[float, ...]]:
        """Sort key: which of several symptoms is the strongest."""
        costs = self.log_hazard_delta - log(max(self.speed, 0.01))
        return self.severity, costs, self.precedence

    def without_weight(self, words: str, clears: str) -> Symptom:
        """Return it as somebody's word has it: known, in the evidence, and of no weight."""
        return replace(
            self, state=State.HEALTHY, reason=Reason.POLICY, hazard_factor=1.0, speed=1.0,
            words=words, clears=clears,
        )  # fmt: skip

    def evidence(self, log_hazard_delta: float, score_delta: float, seen_ns: int) -> Evidence:
        """Return it, last seen at *seen_ns*, as evidence that moved ln(hazard) and score by so much."""
        known = BY_NAME.get(self.signal)
        return Evidence(
            signal=self.signal,
            device=self.device,
            value=self.value,
            unit=self.unit or (known.unit if known else ""),
            normal=self.normal,
            log_hazard_delta=log_hazard_delta,
            relative_speed_factor=self.speed,
            score_delta=score_delta,
            reason=self.rule.reason if self.reason is None else self.reason,
            words=self.words,
            observed_ns=seen_ns,
            sql=self.sql,
        )


def short(device: str) -> str:
    """Return a device's name as a sentence can bear it: `GPU-3f2a…` for a UUID, `GPU-3f2a…/link4` for a part of it."""
    whole, slash, part = device.partition("/")
    if whole.startswith(("GPU-", "MIG-")) and len(whole) > 12:
        whole = f"{whole[:8]}…"
    return f"{whole}{slash}{part}"


# ----------------------------------------------------------------------
# Rules that are a row of a table: a reading that is wrong by itself, and a counter that counts too
# much.

#: Says where cells of gauges or states are wrong.
Wrong = Callable[[NDArray[Any]], Flags]

#: A counter's memory of ten minutes holds one event for about five of them, and so long many are held, too.
ONE_EVENT, LATELY_SECONDS = 0.6, 310.0


@dataclass(frozen=True, slots=True)
class Standing:
    """A gauge or state of *table* that is wrong where `wrong` says so; NaN, no reading, never is.

    `words` follow the device's name; `{value}` in them is the reading.
    """

    rule: Rule
    table: str
    column: str
    wrong: Wrong
    words: str
    normal: str = "0"


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter of *table* that counts at least `least`: within ten minutes, or, `per_second`, a second.

    `peers_ratio`: and so many times what the median of all such devices counts; 0: whatever they do.
    """

    rule: Rule
    table: str
    column: str
    words: str
    least: float = 1.0
    per_second: bool = False
    peers_ratio: float = 0.0


def equals(*codes: int) -> Wrong:
    """Return what says where a state is one of *codes*."""
    return lambda values: np.isin(values, codes)


def above(limit: float) -> Wrong:
    """Return what says where a gauge or state is above *limit*."""
    return lambda values: np.asarray(values > limit, dtype=bool)


def beyond(limit: float) -> Wrong:
    """Return what says where a gauge is farther than *limit* from zero, either way."""
    return lambda values: np.asarray(np.abs(values) > limit, dtype=bool)


def standing(present: Present, entries: Iterable[Standing]) -> Iterator[Symptom]:
    """Name each device whose reading is wrong by itself."""
    for entry in entries:
        table = present.fleet.tables[entry.table]
        rows = present.where(entry.table, entry.column, entry.wrong)
        values = table.values_at(entry.column, rows)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            yield stands(present, entry, row, value)


def stands(present: Present, entry: Standing, row: int, value: float) -> Symptom:
    """Return *entry* as a symptom of the device in *row*."""
    host, device = present.name(entry.table, row)
    return Symptom(
        rule=entry.rule,
        host=host,
        device=device,
        signal=f"{present.fleet.tables[entry.table].devices.kind}.{entry.column}",
        value=value,
        normal=entry.normal,
        words=f"{short(device)} {entry.words.format(value=value)}",
        sql=present.sql(entry.table, row, entry.column, 600),
    )


def counted(present: Present, entries: Iterable[Counted]) -> Iterator[Symptom]:
    """Name each device that counts more than is right."""
    for entry in entries:
        rows, values, limit = _beyond(present, entry)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            peers = float(limit[present.fleet.simulated[present.name(entry.table, row)[0]] * 1])
            if value >= peers:
                yield _counts(present, entry, row, value, peers)


def _beyond(present: Present, entry: Counted) -> tuple[Indexes, Floats, tuple[float, float]]:
    """Return (rows, values, limit of real and of simulated devices), of rows that reach the least of limits."""
    constant = FAST_SECONDS if entry.per_second else 1.0
    least = entry.least if entry.per_second else max(ONE_EVENT, ONE_EVENT * entry.least)
    slow = not entry.per_second
    if slow:
        rows, events = counted_lately(present, entry.table, entry.column, least)
    else:
        rows, events = present.counting(entry.table, entry.column, least * constant)
    if not rows.size or not entry.peers_ratio:
        return rows, events / constant, (least, least)
    every = present.recent(entry.table, entry.column, slow=slow) / constant
    usual = medians(present, entry.table, every)
    limits = [max(least, entry.peers_ratio * median) for median in usual]
    return rows, events / constant, (limits[0], limits[1])


def counted_lately(
    present: Present,
    table: str,
    column: str,
    least: float = ONE_EVENT,
    within_seconds: float = LATELY_SECONDS,
) -> tuple[Indexes, Floats]:
    """Return (rows, events of about the last 600 s) where these are *least* or more, the last of them of *within_seconds*.

    The sum of ten minutes alone held fifty events for most of an hour. What is left of that of ten seconds tells how long
    ago the last was: of n at once too late by 10 s * ln(n).
    """
    rows, events = present.counting(table, column, least, slow=True)
    if rows.size:
        left, _ = present.counting(table, column, exp(-within_seconds / FAST_SECONDS))
        lately = np.isin(rows, left)
        rows, events = rows[lately], events[lately]
    return rows, events


def median_of_peers(present: Present, table: str, values: Floats) -> Floats:
    """Return the median over all devices of *table* that are simulated, or are not, alike.

    0 where they are too few to have one worth the name.
    """
    if not values.any():
        return np.zeros(values.shape)
    simulated = present.fleet.simulated[present.fleet.tables[table].devices.host]
    real, made = medians(present, table, values)
    return np.where(simulated, made, real)


def medians(present: Present, table: str, values: Floats) -> tuple[float, float]:
    """Return the median over the real devices of *table*, and over the simulated ones; 0 for too few."""
    simulated = present.fleet.simulated[present.fleet.tables[table].devices.host]
    fresh = present.fresh(table)
    groups = [values[fresh & (simulated == kind)] for kind in (False, True)]
    found = [float(np.median(group)) if group.size >= PEERS_MIN else 0.0 for group in groups]
    return found[0], found[1]


class Far(NamedTuple):
    """A counter of a device that counts far more than those of its peers; figures are of a second."""

    row: int
    column: str
    rate: float
    usual: float  # their median
    limit: float


def far_from_peers(
    present: Present,
    table: str,
    columns: Iterable[str],
    least: float,
    ratio: float,
    median: Callable[[Present, str, Floats], Floats] = median_of_peers,
) -> Iterator[Far]:
    """Yield of each device the fastest of its counters that count *least* a second, and *ratio* times what its peers do.

    *median*: of its peers, for each device; NaN: of this one nothing can be said.
    """
    names = list(columns)
    rates = np.array([present.rates(table, column) for column in names])
    if not (rates >= least).any():
        return
    usual = np.array([median(present, table, each) for each in rates])
    limits = np.maximum(least, ratio * usual)
    beyond = np.where(rates >= limits, rates, 0.0)
    for row in np.flatnonzero(beyond.any(axis=0)).tolist():
        at = int(beyond[:, row].argmax())
        figures = (float(each[at, row]) for each in (rates, usual, limits))
        yield Far(row, names[at], *figures)


def _counts(present: Present, entry: Counted, row: int, value: float, limit: float) -> Symptom:
    host, device = present.name(entry.table, row)
    kind = present.fleet.tables[entry.table].devices.kind
    noun = entry.column.rpartition("_")[2]
    unit = f"{noun}/s" if entry.per_second else f"{noun} in 10 min"
    shown = round(value, 1) if entry.per_second else float(max(1, round(value)))
    per = "a second" if entry.per_second else "lately"
    return Symptom(
        rule=entry.rule,
        host=host,
        device=device,
        signal=f"{kind}.{entry.column}",
        value=shown,
        unit=unit,
        normal=f"below {max(limit, entry.least):.0f}" if max(limit, entry.least) > 1 else "0",
        words=f"{short(device)} {entry.words}: {shown:,.0f} {per}",
        sql=present.sql_beside_peers(entry.table, row, entry.column, unit)
        if entry.peers_ratio and entry.per_second
        else present.sql_counted(
            entry.table, row, entry.column, unit, 10 if entry.per_second else 600
        ),
    )


def watch(
    name: str,
    reason: Reason,
    clears: str,
    factor: float,
    enter_seconds: float = 0.0,
    leave_seconds: float = 60.0,
) -> Rule:
    """Return a rule that is WATCH: worth a look, and no reason to take the host away."""
    return Rule(name, State.WATCH, reason, clears, enter_seconds, leave_seconds, factor)


def suspect(
    name: str,
    reason: Reason,
    clears: str,
    factor: float,
    enter_seconds: float = 0.0,
    leave_seconds: float = 60.0,
) -> Rule:
    """Return a rule that is SUSPECT: the host is likelier to fail than most."""
    return Rule(name, State.SUSPECT, reason, clears, enter_seconds, leave_seconds, factor)


# ----------------------------------------------------------------------
# From an event that stands to a symptom: words, query, and what clears it, the same for every rule.

#: Our clock and the boot clock of a host are of one opinion within so much.
SLACK_SECONDS = 2
#: And run apart by a second in so much (100 parts in a million).
DRIFT_NS_PER_SECOND = 10**13


def symptom(
    present: Present,
    record: Occurrence,
    rule: Rule,
    words: str,
    *,
    state: State | None = None,
    hazard_factor: float = 0.0,
    reason: Reason | None = None,
    precedence: tuple[float, ...] = (inf,),
) -> Symptom:
    """Return *record* as a symptom of *rule*; *words* follow the name of a device that is not the host."""
    who = "" if record.device == "host" else f"{short(record.device)} "
    process = f" (met by {record.process}, which need not be its cause)" if record.process else ""
    return Symptom(
        rule=replace(rule, leave_seconds=0.0),
        host=record.host,
        device=record.device,
        signal=record.name,
        value=float(record.code),
        unit="code",
        normal="none",
        words=f"{who}{words}{process}; {_written(record)}",
        sql=query(present, record),
        state=state,
        reason=reason,
        clears=record.clears_when,
        hazard_factor=hazard_factor,
        precedence=precedence,
    )


def times(record: Occurrence) -> str:
    """Return how often it was reported, to be put after what it is."""
    return f", {record.count:,} times" if record.count > 1 else ""


def _written(record: Occurrence) -> str:
    """Return when it was last written: what reaches us now may be of hours ago."""
    at = datetime.fromtimestamp(record.last_time_ns // 1_000_000_000, UTC)
    return f"{'last ' if record.count > 1 else ''}at {at:%Y-%m-%d %H:%M:%S} UTC"


def query(present: Present, record: Occurrence) -> str:
    """Return the query for the events that *record* is made of."""
    devices = ", ".join(map(quoted, _spellings(present, record)))
    return (
        "SELECT time, last_time, count, device, name, code, process_name, message, event_id FROM events "
        f"WHERE host = {quoted(present.fleet.names[record.host])} AND lower(device) IN ({devices}) "
        f"AND name = {quoted(record.name)} AND code = {record.code} AND {_which(record)} ORDER BY time DESC"
    )


def _which(record: Occurrence) -> str:
    """Return the condition that an event is of *record*: by its id, which no setting of a clock changes, or by its time."""
    if not record.count_before:
        return f"event_id IN ({', '.join(map(quoted, record.incidents))})"
    since_ns, until_ns = _span(record)
    return f"last_time >= {moment(since_ns)} AND time <= {moment(until_ns)}"


def _spellings(present: Present, record: Occurrence) -> list[str]:
    """Return how events name the device of *record*: the kernel knows a GPU by its PCI address."""
    if record.device == "host":
        return ["host", ""]
    known = present.fleet.attributes[record.host].get(("gpu", record.device), {})
    address = known.get("pci_address", "") if record.name.startswith("gpu.") else ""
    return [each.lower() for each in (record.device, address) if each]


def _span(record: Occurrence) -> tuple[int, int]:
    """Return within which whole seconds *record* was written, by our clock."""
    first_ns = min([record.first_ns, *(one.first_ns for one in record.incidents.values())])
    lasted_ns = record.last_ns - first_ns
    if record.ending.clears is Clears.TIME:
        lasted_ns = min(lasted_ns, round(record.ending.seconds * 1e9))
    second_ns, last_ns = 1_000_000_000, record.last_time_ns
    drift_seconds = SLACK_SECONDS + lasted_ns // DRIFT_NS_PER_SECOND
    since_ns = (last_ns - lasted_ns) // second_ns - SLACK_SECONDS - drift_seconds
    return since_ns * second_ns, (last_ns // second_ns + 1 + 2 * SLACK_SECONDS) * second_ns


# ----------------------------------------------------------------------
# Thresholds that are rolled out in steps: a rule is asked twice, with each, and what hosts are not
# told yet is shown.
#
# Rules know nothing of this: `Present.threshold` notes what each asks for, and answers as of before
# where it is told to.

StagedRule = Callable[[Present], Iterator[Symptom]]


def looked(rule: StagedRule, present: Present) -> list[Symptom]:
    """Return what *rule* sees; on hosts that a roll-out has not reached, by the thresholds of before."""
    rollouts = present.fleet.declared.rollouts
    present.asked.clear()
    now = list(rule(present))
    asked = present.asked & rollouts.keys()
    if not asked:
        return now
    share = min(rollouts[name].share for name in asked)
    with present.as_before():
        before = list(rule(present))
    return list(_chosen(present, share, now, before))


def _chosen(
    present: Present, share: float, now: Sequence[Symptom], before: Sequence[Symptom]
) -> Iterator[Symptom]:
    """Yield *now* of hosts that are reached and *before* of the others, of these with what would be else."""
    stays = {(one.host, one.key) for one in now}
    was = {(one.host, one.key) for one in before}
    names = present.fleet.names
    for one in now:
        if reaches(share, names[one.host]):
            yield one
        elif (one.host, one.key) not in was:
            yield _in_shadow(one, share)
    for one in before:
        if reaches(share, names[one.host]):
            continue
        gone = (one.host, one.key) not in stays
        words = f"{one.words}; no longer, by a threshold {coming(share)}" if gone else one.words
        yield replace(one, words=words)


def _in_shadow(symptom: Symptom, share: float) -> Symptom:
    """Return *symptom* as evidence that weighs nothing: it would count, were its host reached."""
    rule = replace(symptom.rule, enter_seconds=0.0, leave_seconds=0.0)
    words = f"{symptom.words}, by a threshold {coming(share)}"
    return replace(symptom, rule=rule).without_weight(
        words, "the roll-out reaches this host, or ends"
    )


# ----------------------------------------------------------------------
# When a symptom begins to count, and when it is over: enter fast, leave slowly.
#
# A pure state machine over the symptoms of one host: the same symptoms at the same times give the
# same holds. A symptom counts once it was there for its rule's `enter_seconds` on end. It then
# counts, at the worst level it had, until it was away (or milder) for `leave_seconds`. One that
# lies between what begins a level and what ends it (`Symptom.keeps`) is as bad as it was.

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Hold:
    """One symptom over time."""

    worst: Symptom  # what counts
    latest: Symptom
    since_ns: int  # there without a break since
    seen_ns: int  # last there
    worst_ns: int  # last there at its worst
    active: bool  # it counts


Holds = Mapping[Key, Hold]


def step(
    holds: Holds, symptoms: Iterable[Symptom], now_ns: int, over: Container[str] = ()
) -> dict[Key, Hold]:
    """Return the holds after the host showed *symptoms*, and no others, at *now_ns*.

    *over*: rules of which it was looked at long enough, and is not so: what they held ends at once.
    """
    result: dict[Key, Hold] = {}
    for symptom in symptoms:
        held = result.get(symptom.key) or holds.get(symptom.key)
        if symptom.keeps is not None:
            if held is not None and held.active:
                symptom = _kept(symptom, symptom.keeps, held.worst)
            elif symptom.host_state is State.HEALTHY:
                continue
        result[symptom.key] = _seen(held, symptom, now_ns)
    for key, held in holds.items():
        if key in result or key[0] in over:
            continue
        if held.active and not _over(held.worst, held.seen_ns, now_ns):
            result[key] = _eased(held, now_ns)
    return result


def paused(holds: Holds, elapsed_ns: int) -> dict[Key, Hold]:
    """Return the holds of a host that was not heard for *elapsed_ns*: its clock stood still."""
    return {
        key: replace(
            held,
            since_ns=held.since_ns + elapsed_ns,
            seen_ns=held.seen_ns + elapsed_ns,
            worst_ns=held.worst_ns + elapsed_ns,
        )
        for key, held in holds.items()
    }


def _kept(symptom: Symptom, keeps: State, worst: Symptom) -> Symptom:
    """Return *symptom* in the state of the *worst* before it, as far as it *keeps* that up."""
    state = max(keeps, worst.host_state, key=SEVERITY.index)  # the milder
    if SEVERITY.index(state) >= SEVERITY.index(symptom.host_state):
        return symptom
    like = worst if state is worst.host_state else symptom
    return replace(symptom, state=state, normal=like.normal, clears=like.clears)


def _seen(held: Hold | None, symptom: Symptom, now_ns: int) -> Hold:
    if held is None:
        active = symptom.rule.enter_seconds <= 0
        return Hold(symptom, symptom, now_ns, now_ns, now_ns, active)
    active = held.active or now_ns - held.since_ns >= symptom.rule.enter_seconds * 1e9
    if held.active and symptom.severity < held.worst.severity:
        milder = replace(held, latest=symptom, seen_ns=now_ns)
        return _eased(milder, now_ns)
    return Hold(symptom, symptom, held.since_ns, now_ns, now_ns, active)


def _eased(held: Hold, now_ns: int) -> Hold:
    """Return *held* at its latest level once the worst was away long enough."""
    if not _over(held.worst, held.worst_ns, now_ns):
        return held
    return replace(held, worst=held.latest, worst_ns=held.seen_ns)


def _over(symptom: Symptom, last_ns: int, now_ns: int) -> bool:
    return now_ns - last_ns >= symptom.rule.leave_seconds * 1e9
