"""A symptom: a rule's finding about one device, with evidence, and its course over time."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import exp, inf, log
from typing import NamedTuple

import numpy as np

from ...contract.signals import BY_NAME
from ...contract.xid.policy import Clears
from ..counter_deltas import Floats, Indexes
from ..declared.thresholds import is_rolled_out, rollout_message
from ..fleet.active_events import EventRecord
from ..fleet.peers import PEERS_MIN
from ..fleet.tables import FAST_SECONDS
from ..model import SEVERITY, Evidence, HealthState, Reason, SharedCause
from ..rule_declaration import RateRule, Rule, RuleRow, ThresholdRule
from ..sql import quoted
from .evidence_sql import timestamp_sql
from .view import FleetView


@dataclass(frozen=True, slots=True)
class Symptom:
    """A finding of one rule about one device now.

    `value` is in `unit`; `speed` below 1 costs relative speed.
    """

    rule: Rule
    host: int
    device: str
    signal: str
    value: float
    normal: str
    message: str
    sql: str
    unit: str = ""
    speed: float = 1.0
    #: Remaining share of the part, if known: lanes of a link, ports of a host. Work that needs no
    #: more does not notice, so this costs no relative speed.
    capacity_ratio: float = 1.0
    hazard_factor: float = 0.0  # 0: the rule's
    state: HealthState | None = None  # None: the rule's
    reason: Reason | None = None
    clears: str = ""
    #: The worst state that the symptom keeps up if it was in that state before: a state ends at
    #: another value than it begins. A symptom that is HEALTHY by itself begins nothing.
    retained_state: HealthState | None = None
    #: Owner of the fault, if it is not the device: several devices show one driver that does not
    #: respond.
    fault_source: str = ""
    #: The cause outside the host, if several hosts show this at once.
    shared_cause: SharedCause | None = None
    #: Among symptoms of equal weight the greater precedence is listed first; current readings
    #: precede reported events.
    precedence: tuple[float, ...] = (inf,)

    def fault_of(self, shared: Container[str]) -> str:
        """Return the fault's owner if *shared* causes explain all they may.

        Symptoms with the same owner are one fault.
        """
        if self.fault_source:
            return self.fault_source
        return f"shared {self.rule.shared}" if self.rule.shared in shared else self.parent_device

    @property
    def parent_device(self) -> str:
        """The device that has the symptom, or whose part has it.

        A GPU's link is a part of the GPU; EDAC counts one error at its controller, its row and its
        channel.
        """
        has_parts = self.device.startswith("GPU-") or self.signal.startswith("edac.")
        return self.device.partition("/")[0] if has_parts else self.device

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the symptom on its host over time."""
        return self.rule.name, self.device

    @property
    def log_hazard_delta(self) -> float:
        """Increase of ln(hazard) if nothing else is wrong with the device."""
        return log(self.hazard_factor or self.rule.hazard_factor)

    @property
    def severity(self) -> int:
        """Rank of the host state: higher is worse; HEALTHY is 0."""
        return len(SEVERITY) - 1 - SEVERITY.index(self.host_state)

    @property
    def host_state(self) -> HealthState:
        """The state that the symptom gives its host."""
        return self.rule.state if self.state is None else self.state

    @property
    def weight(self) -> tuple[int, float, tuple[float, ...]]:
        """Sort key: the strongest symptom has the greatest."""
        costs = self.log_hazard_delta - log(max(self.speed, 0.01))
        return self.severity, costs, self.precedence

    def without_weight(self, message: str, clears: str) -> Symptom:
        """Return the symptom as evidence without weight, for Reason.POLICY."""
        return replace(
            self, state=HealthState.HEALTHY, reason=Reason.POLICY, hazard_factor=1.0, speed=1.0,
            capacity_ratio=1.0, message=message, clears=clears,
        )  # fmt: skip

    def evidence(self, log_hazard_delta: float, score_delta: float, observed_ns: int) -> Evidence:
        """Return the symptom as evidence with these changes of ln(hazard) and score."""
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
            words=self.message,
            observed_ns=observed_ns,
            sql=self.sql,
        )


def short(device: str) -> str:
    """Return a device name shortened for messages: `GPU-3f2a…`, or `GPU-3f2a…/link4` for a part."""
    parent, slash, part = device.partition("/")
    if parent.startswith(("GPU-", "MIG-")) and len(parent) > 12:
        parent = f"{parent[:8]}…"
    return f"{parent}{slash}{part}"


#: RECENT_SECONDS after an event, ONE_EVENT of it remains in a sum over ten minutes. Many events
#: count no longer than that.
ONE_EVENT, RECENT_SECONDS = 0.6, 310.0


def threshold_symptoms(view: FleetView, entries: Iterable[ThresholdRule]) -> Iterator[Symptom]:
    """Name each device with a reading that is wrong by itself."""
    for entry in entries:
        table = view.fleet.tables[entry.table]
        rows = view.where(entry.table, entry.column, entry.condition)
        values = table.values_at(entry.column, rows)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            yield threshold_symptom(view, entry, row, value)


def threshold_symptom(view: FleetView, entry: ThresholdRule, row: int, value: float) -> Symptom:
    """Return *entry* as a symptom of the device in *row*."""
    host, device = view.name(entry.table, row)
    return Symptom(
        rule=entry.rule,
        host=host,
        device=device,
        signal=entry.signal,
        value=value,
        normal=entry.normal,
        message=f"{short(device)} {entry.message.format(value=value)}",
        sql=view.sql(entry.table, row, entry.columns or entry.column, entry.seconds),
    )


def rate_symptoms(view: FleetView, entries: Iterable[RateRule]) -> Iterator[Symptom]:
    """Name each device whose counter rises faster than its limit."""
    for entry in entries:
        rows, values, limit = _above_minimum(view, entry)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            peers = float(limit[view.fleet.simulated[view.name(entry.table, row)[0]] * 1])
            if value >= peers:
                yield _rate_symptom(view, entry, row, value, peers)


def _above_minimum(view: FleetView, entry: RateRule) -> tuple[Indexes, Floats, tuple[float, float]]:
    """Return (rows, values, limits of real and simulated devices), of rows over the lower limit."""
    constant = FAST_SECONDS if entry.per_second else 1.0
    minimum = entry.minimum if entry.per_second else max(ONE_EVENT, ONE_EVENT * entry.minimum)
    slow = not entry.per_second
    if slow:
        rows, events = recent_counts(view, entry.table, entry.column, minimum)
    else:
        rows, events = view.counting(entry.table, entry.column, minimum * constant)
    if not rows.size or not entry.peers_ratio:
        return rows, events / constant, (minimum, minimum)
    all_events = view.recent(entry.table, entry.column, slow=slow) / constant
    peer_medians = medians(view, entry.table, all_events)
    limits = [max(minimum, entry.peers_ratio * median) for median in peer_medians]
    return rows, events / constant, (limits[0], limits[1])


def recent_counts(
    view: FleetView,
    table: str,
    column: str,
    least: float = ONE_EVENT,
    within_seconds: float = RECENT_SECONDS,
) -> tuple[Indexes, Floats]:
    """Return (rows, events of about 600 s) with *least* events, the last within *within_seconds*.

    The sum of ten minutes alone would hold fifty events for most of an hour. The remainder of the
    ten-second sum shows the age of the last event; for n events at once it is too late by 10 s *
    ln(n).
    """
    rows, events = view.counting(table, column, least, slow=True)
    if rows.size:
        just_counted, _ = view.counting(table, column, exp(-within_seconds / FAST_SECONDS))
        is_recent = np.isin(rows, just_counted)
        rows, events = rows[is_recent], events[is_recent]
    return rows, events


def median_of_peers(view: FleetView, table: str, values: Floats) -> Floats:
    """Return per device the median of `medians` for its kind, real or simulated."""
    if not values.any():
        return np.zeros(values.shape)
    simulated = view.fleet.simulated[view.fleet.tables[table].devices.host]
    real_median, simulated_median = medians(view, table, values)
    return np.where(simulated, simulated_median, real_median)


def medians(view: FleetView, table: str, values: Floats) -> tuple[float, float]:
    """Return the medians over real and simulated devices; 0 for fewer than PEERS_MIN."""
    simulated = view.fleet.simulated[view.fleet.tables[table].devices.host]
    fresh = view.fresh(table)
    groups = [values[fresh & (simulated == kind)] for kind in (False, True)]
    result = [float(np.median(group)) if group.size >= PEERS_MIN else 0.0 for group in groups]
    return result[0], result[1]


class PeerOutlier(NamedTuple):
    """A counter that rises far faster than its peers'; values are per second."""

    row: int
    column: str
    rate: float
    peer_median: float
    limit: float


def peer_outliers(
    view: FleetView,
    table: str,
    columns: Iterable[str],
    least: float,
    ratio: float,
    median: Callable[[FleetView, str, Floats], Floats] = median_of_peers,
) -> Iterator[PeerOutlier]:
    """Yield per device the fastest counter far above its peers.

    Far: at least *least* events a second, and *ratio* times the peers' median. *median*: returns
    that per device; NaN skips the device.
    """
    names = list(columns)
    rates = np.array([view.rates(table, column) for column in names])
    if not (rates >= least).any():
        return
    peer_medians = np.array([median(view, table, column_rates) for column_rates in rates])
    limits = np.maximum(least, ratio * peer_medians)
    excess = np.where(rates >= limits, rates, 0.0)
    for row in np.flatnonzero(excess.any(axis=0)).tolist():
        index = int(excess[:, row].argmax())
        figures = (float(figure[index, row]) for figure in (rates, peer_medians, limits))
        yield PeerOutlier(row, names[index], *figures)


def _rate_symptom(
    view: FleetView, entry: RateRule, row: int, value: float, limit: float
) -> Symptom:
    host, device = view.name(entry.table, row)
    noun = entry.column.rpartition("_")[2]
    unit = f"{noun}/s" if entry.per_second else f"{noun} in 10 min"
    shown = round(value, 1) if entry.per_second else float(max(1, round(value)))
    per = "a second" if entry.per_second else "lately"
    return Symptom(
        rule=entry.rule,
        host=host,
        device=device,
        signal=entry.signal,
        value=shown,
        unit=unit,
        normal=f"below {max(limit, entry.minimum):.0f}" if max(limit, entry.minimum) > 1 else "0",
        message=f"{short(device)} {entry.message}: {shown:,.0f} {per}",
        sql=view.sql_with_peers(entry.table, row, entry.column, unit)
        if entry.peers_ratio and entry.per_second
        else view.sql_counter(
            entry.table, row, entry.column, unit, 10 if entry.per_second else 600
        ),
    )


#: Tolerance, in seconds, between our clock and the boot clock of a host.
SLACK_SECONDS = 2
#: The two clocks drift apart by a second in this time (100 parts in a million).
DRIFT_NS_PER_SECOND = 10**13


def event_symptom(
    view: FleetView,
    record: EventRecord,
    rule: Rule,
    message: str,
    *,
    state: HealthState | None = None,
    hazard_factor: float = 0.0,
    reason: Reason | None = None,
    precedence: tuple[float, ...] = (inf,),
) -> Symptom:
    """Return *record* as a symptom of *rule*; *message* follows the name of the device."""
    device_prefix = "" if record.device == "host" else f"{short(record.device)} "
    process_text = (
        f" (met by {record.process_name}, which may not be its cause)"
        if record.process_name
        else ""
    )
    return Symptom(
        rule=replace(rule, leave_seconds=0.0),
        host=record.host,
        device=record.device,
        signal=record.name,
        value=float(record.code),
        unit="code",
        normal="none",
        message=f"{device_prefix}{message}{process_text}; {_last_time_text(record)}",
        sql=event_query(view, record),
        state=state,
        reason=reason,
        clears=record.clears_when,
        hazard_factor=hazard_factor,
        precedence=precedence,
    )


def times_text(record: EventRecord) -> str:
    return f", {record.count:,} times" if record.count > 1 else ""


def _last_time_text(record: EventRecord) -> str:
    """Return the time of the last line: a record that arrives now may be hours old."""
    last_time = datetime.fromtimestamp(record.last_time_ns // 1_000_000_000, UTC)
    return f"{'last ' if record.count > 1 else ''}at {last_time:%Y-%m-%d %H:%M:%S} UTC"


def event_query(view: FleetView, record: EventRecord) -> str:
    """Return the query for the events that *record* is made of."""
    devices = ", ".join(map(quoted, _device_aliases(view, record)))
    return (
        "SELECT time, last_time, count, device, name, code, process_name, message, event_id FROM events "
        f"WHERE host = {quoted(view.fleet.names[record.host])} AND lower(device) IN ({devices}) "
        f"AND name = {quoted(record.name)} AND code = {record.code} AND {_event_condition(record)} ORDER BY time DESC"
    )


def _event_condition(record: EventRecord) -> str:
    """Return the condition that an event belongs to *record*.

    By event id, which is independent of clock changes, or by time if the record includes earlier
    events.
    """
    if not record.count_before:
        return f"event_id IN ({', '.join(map(quoted, record.incidents))})"
    since_ns, until_ns = _record_span(record)
    return f"last_time >= {timestamp_sql(since_ns)} AND time <= {timestamp_sql(until_ns)}"


def _device_aliases(view: FleetView, record: EventRecord) -> list[str]:
    """Return the device names in events of *record*: the kernel names a GPU by its PCI address."""
    if record.device == "host":
        return ["host", ""]
    known = view.fleet.attributes[record.host].get(("gpu", record.device), {})
    address = known.get("pci_address", "") if record.name.startswith("gpu.") else ""
    return [alias.lower() for alias in (record.device, address) if alias]


def _record_span(record: EventRecord) -> tuple[int, int]:
    """Return the whole seconds (first, last) of *record*, by our clock."""
    first_ns = min(
        [record.first_ns, *(incident.first_ns for incident in record.incidents.values())]
    )
    lasted_ns = record.last_ns - first_ns
    if record.clear_condition.clears is Clears.TIME:
        lasted_ns = min(lasted_ns, round(record.clear_condition.seconds * 1e9))
    second_ns, last_ns = 1_000_000_000, record.last_time_ns
    drift_seconds = SLACK_SECONDS + lasted_ns // DRIFT_NS_PER_SECOND
    since_ns = (last_ns - lasted_ns) // second_ns - SLACK_SECONDS - drift_seconds
    return since_ns * second_ns, (last_ns // second_ns + 1 + 2 * SLACK_SECONDS) * second_ns


RuleFunction = Callable[[FleetView], Iterator[Symptom]]


class Detector:
    """A function that finds symptoms of *rules*, distinguished by the same readings."""

    def __init__(self, name: str, rules: frozenset[str], find: RuleFunction) -> None:
        self.__name__, self.rules, self._find = name, rules, find

    def __call__(self, view: FleetView) -> Iterator[Symptom]:
        """Yield the symptoms that are active now."""
        return self._find(view)


def detects(*rules: Rule | RuleRow) -> Callable[[RuleFunction], Detector]:
    """Make a function the detector of *rules* (`rules/__init__.py` collects detectors)."""
    names = frozenset(rule.name if isinstance(rule, Rule) else rule.rule.name for rule in rules)
    return lambda function: Detector(function.__name__, names, function)


def row_detector(row: RuleRow) -> Detector:
    """Return the detector of a rule that is only a row."""

    def find(view: FleetView) -> Iterator[Symptom]:
        if isinstance(row, ThresholdRule):
            return threshold_symptoms(view, (row,))
        return rate_symptoms(view, (row,))

    return Detector(row.rule.name, frozenset((row.rule.name,)), find)


def evaluate_with_rollout(rule: RuleFunction, view: FleetView) -> list[Symptom]:
    """Return the symptoms of *rule*, by the previous thresholds where a roll-out has not arrived.

    Evaluate the rule twice: `FleetView.threshold` notes the thresholds that it reads, and returns
    previous values on request.
    """
    rollouts = view.fleet.declared.rollouts
    view.requested_thresholds.clear()
    now = list(rule(view))
    requested = view.requested_thresholds & rollouts.keys()
    if not requested:
        return now
    share = min(rollouts[name].share for name in requested)
    with view.with_previous_thresholds():
        before = list(rule(view))
    return list(_merge_rollout(view, share, now, before))


def _merge_rollout(
    view: FleetView, share: float, now: Sequence[Symptom], before: Sequence[Symptom]
) -> Iterator[Symptom]:
    """Yield *now* of hosts that are reached, and *before* of others, with their differences."""
    stays = {(symptom.host, symptom.key) for symptom in now}
    was = {(symptom.host, symptom.key) for symptom in before}
    names = view.fleet.names
    for symptom in now:
        if is_rolled_out(share, names[symptom.host]):
            yield symptom
        elif (symptom.host, symptom.key) not in was:
            yield _without_effect(symptom, share)
    for symptom in before:
        if is_rolled_out(share, names[symptom.host]):
            continue
        clears_later = (symptom.host, symptom.key) not in stays
        message = (
            f"{symptom.message}; no longer, by a threshold {rollout_message(share)}"
            if clears_later
            else symptom.message
        )
        yield replace(symptom, message=message)


def _without_effect(symptom: Symptom, share: float) -> Symptom:
    """Return *symptom* as evidence without weight, on a host beyond the roll-out."""
    rule = replace(symptom.rule, enter_seconds=0.0, leave_seconds=0.0)
    message = f"{symptom.message}, by a threshold {rollout_message(share)}"
    return replace(symptom, rule=rule).without_weight(
        message, "the roll-out reaches this host, or ends"
    )


# A pure state machine over the symptoms of one host: enter fast, leave slowly. A symptom is active
# after its rule's `enter_seconds` without a break, at the worst level it had, until it was absent
# (or milder) for `leave_seconds`. A symptom between the limits where a level begins and ends
# (`Symptom.retained_state`) keeps its level.

RuleAndDevice = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TrackedSymptom:
    """A symptom over time: its worst and its latest reading."""

    worst: Symptom  # the symptom that counts
    latest: Symptom
    since_ns: int  # start of the current unbroken presence
    last_seen_ns: int
    worst_seen_ns: int  # last time at its worst
    active: bool


TrackedSymptoms = Mapping[RuleAndDevice, TrackedSymptom]


def step(
    tracked: TrackedSymptoms,
    symptoms: Iterable[Symptom],
    now_ns: int,
    ended_rules: Container[str] = (),
) -> dict[RuleAndDevice, TrackedSymptom]:
    """Return the tracked symptoms after the host had exactly *symptoms* at *now_ns*.

    *ended_rules*: rules evaluated for long enough whose condition is false: their symptoms end at
    once.
    """
    result: dict[RuleAndDevice, TrackedSymptom] = {}
    for symptom in symptoms:
        current = result.get(symptom.key) or tracked.get(symptom.key)
        if symptom.retained_state is not None:
            if current is not None and current.active:
                symptom = _retain_state(symptom, symptom.retained_state, current.worst)
            elif symptom.host_state is HealthState.HEALTHY:
                continue
        result[symptom.key] = _observe(current, symptom, now_ns)
    for key, current in tracked.items():
        if key in result or key[0] in ended_rules:
            continue
        if current.active and not _is_over(current.worst, current.last_seen_ns, now_ns):
            result[key] = _ease(current, now_ns)
    return result


def freeze(tracked: TrackedSymptoms, elapsed_ns: int) -> dict[RuleAndDevice, TrackedSymptom]:
    """Return the tracked symptoms of a host silent for *elapsed_ns*, with shifted times."""
    return {
        key: replace(
            symptom,
            since_ns=symptom.since_ns + elapsed_ns,
            last_seen_ns=symptom.last_seen_ns + elapsed_ns,
            worst_seen_ns=symptom.worst_seen_ns + elapsed_ns,
        )
        for key, symptom in tracked.items()
    }


def _retain_state(symptom: Symptom, retained_state: HealthState, worst: Symptom) -> Symptom:
    """Return *symptom* in the state of the *worst* before it, up to *retained_state*."""
    state = max(retained_state, worst.host_state, key=SEVERITY.index)  # the milder
    if SEVERITY.index(state) >= SEVERITY.index(symptom.host_state):
        return symptom
    like = worst if state is worst.host_state else symptom
    return replace(symptom, state=state, normal=like.normal, clears=like.clears)


def _observe(tracked: TrackedSymptom | None, symptom: Symptom, now_ns: int) -> TrackedSymptom:
    if tracked is None:
        active = symptom.rule.enter_seconds <= 0
        return TrackedSymptom(symptom, symptom, now_ns, now_ns, now_ns, active)
    active = tracked.active or now_ns - tracked.since_ns >= symptom.rule.enter_seconds * 1e9
    if tracked.active and symptom.severity < tracked.worst.severity:
        milder = replace(tracked, latest=symptom, last_seen_ns=now_ns)
        return _ease(milder, now_ns)
    return TrackedSymptom(symptom, symptom, tracked.since_ns, now_ns, now_ns, active)


def _ease(tracked: TrackedSymptom, now_ns: int) -> TrackedSymptom:
    """Return *tracked* at its latest level once the worst was absent for long enough."""
    if not _is_over(tracked.worst, tracked.worst_seen_ns, now_ns):
        return tracked
    return replace(tracked, worst=tracked.latest, worst_seen_ns=tracked.last_seen_ns)


def _is_over(symptom: Symptom, last_ns: int, now_ns: int) -> bool:
    return now_ns - last_ns >= symptom.rule.leave_seconds * 1e9
