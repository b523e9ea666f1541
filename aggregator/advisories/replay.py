"""Replays weeks of stored evidence through the current policy and state machine, to show what a rule would have done."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import duckdb

from ..errors import InvalidArgument
from ..model import Evidence, HealthState, HostScore, Reason
from ..store.restored_state import evidence_of, time_ns
from . import policy
from .advisory import (
    SECOND_NS,
    Acked,
    Action,
    AdvisoryLimits,
    AdvisoryState,
    Case,
    CaseGone,
    CaseSeen,
    Event,
    FailureDomains,
    FleetSize,
    HeldBack,
    Publish,
    Tick,
    Well,
    restrict_to_basis,
    seconds_ns,
)
from .policy import Fault, Workload, price
from .state_machine import AdvisoryStateMachine

#: An unchanged score is stored at least this often (`scoring/score_rows.py`), with some time to spare.
GAP_SECONDS = 900.0
DAYS_MAX = 366
RULE_CHARACTERS_MAX = 80
#: Pieces of a rule's evidence that are read; beyond, the newest count, and the report says since when.
ROWS_MAX, ROWS_AT_ONCE = 500_000, 5000
#: A drain was right if the host was found faulty within this many days.
FAULT_WITHIN_DAYS = 7
DAY_NS = 86_400 * SECOND_NS


@dataclass(frozen=True, slots=True)
class RuleEpisode:
    """A stretch of time in which the rule had something to say of one host."""

    case: Case
    first_ns: int
    last_ns: int
    faulty_ns: int = 0  # when it was next UNHEALTHY, within seven days of its begin; 0: it was not


class ReplayedAdvisory(NamedTuple):
    """An advisory that would have been proposed."""

    at_ns: int
    hosts: tuple[str, ...]
    subject: str
    action: str


class WithheldCase(NamedTuple):
    """A case for which nothing would have been proposed then, and why."""

    at_ns: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What would have come of a rule. `from_ns`: since then its evidence was read."""

    episodes: tuple[RuleEpisode, ...]
    advisories: tuple[ReplayedAdvisory, ...]
    withheld: tuple[WithheldCase, ...]
    at_once_max: int
    from_ns: int

    @property
    def withheld_count(self) -> int:
        """How many cases would have been held back."""
        return len({one.key for one in self.withheld})

    def withheld_reasons(self, episodes: Sequence[RuleEpisode]) -> list[str]:
        """Say of each of *episodes* what held advice about it back, last; "" where nothing did."""
        found: dict[str, list[WithheldCase]] = defaultdict(list)  # by case, in the order of time
        for one in self.withheld:
            found[one.key].append(one)
        return [_last_reason_within(found.get(one.case.key, []), one) for one in episodes]

    def are_advised(self, episodes: Sequence[RuleEpisode]) -> list[bool]:
        """Say of each of *episodes* whether advice about its host would have been given while it lasted."""
        at_ns: dict[str, list[int]] = defaultdict(list)  # by host, in the order of time
        for one in self.advisories:
            for host in one.hosts:
                at_ns[host].append(one.at_ns)
        return [_is_within(at_ns.get(one.case.host, []), one) for one in episodes]


def _last_reason_within(withheld: Sequence[WithheldCase], one: RuleEpisode) -> str:
    last = bisect_right(withheld, _end_ns(one), key=lambda each: each.at_ns) - 1
    return withheld[last].reason if last >= 0 and withheld[last].at_ns >= one.first_ns else ""


def _end_ns(one: RuleEpisode) -> int:
    return one.last_ns + seconds_ns(GAP_SECONDS)


def _is_within(at_ns: Sequence[int], one: RuleEpisode) -> bool:
    first = bisect_left(at_ns, one.first_ns)
    return first < len(at_ns) and at_ns[first] <= _end_ns(one)


#: The newest rows, at most this many, the oldest first.
_QUERY = """
FROM (
    SELECT e.*, s.state AS host_state, s.hazard_per_hour AS host_hazard,
           s.relative_speed AS host_speed, s.score_upper AS host_upper
    FROM evidence AS e JOIN scores AS s USING (host, time, version)
    WHERE e.time > make_timestamp($since) AND (e.log_hazard_delta > 0 OR e.relative_speed_factor < 1)
        AND (list_contains($signals, e.signal) OR list_contains($reasons, e.reason))
    ORDER BY e.time DESC LIMIT $rows
) ORDER BY time, host, device
"""
#: When hosts were UNHEALTHY: the first and the last moment of each hour.
_FAULTY = """
SELECT host, epoch_us(min(time)), epoch_us(max(time)) FROM scores
WHERE state = 'UNHEALTHY' AND time > make_timestamp($since) AND list_contains($hosts, host)
GROUP BY host, time_bucket(INTERVAL 1 HOUR, time)
"""


class EvidenceCase(NamedTuple):
    """One stored piece of evidence as a case, and as the case that it is once it has lasted."""

    case: Case
    lasting: Case
    at_ns: int


def replay_rule(
    connection: duckdb.DuckDBPyConnection,
    rule: str,
    days: int,
    limits: AdvisoryLimits,
    now_ns: int,
    place: Callable[[str], FailureDomains],
) -> ReplayReport:
    """Return what *rule* would have done in the last *days*, with hosts standing where they do now. Raises InvalidArgument.

    *rule*: a code (`gpu.xid 95`), a row of the policy (`gpu_thermal`), a reason, or a signal.
    """
    if not 1 <= days <= DAYS_MAX:
        raise InvalidArgument("days", f"{days}, expected 1 to {DAYS_MAX}")
    if not 0 < len(rule) <= RULE_CHARACTERS_MAX or not rule.isprintable():
        raise InvalidArgument(
            "rule", f"expected 1 to {RULE_CHARACTERS_MAX} characters, as 'gpu.xid 95'"
        )
    rule = policy.normalize_rule(rule)
    since = {"since": (now_ns - days * DAY_NS) // 1000}
    signals, reasons = policy.evidence_of_rule(rule)
    parameters = {**since, "signals": signals, "reasons": reasons, "rows": ROWS_MAX}
    reader = _RowReader(connection.execute(_QUERY, parameters))
    episodes = _episodes(
        one for row in reader if (one := _evidence_case(row, rule, place)) is not None
    )
    if not reader.count and (suggestion := policy.unknown_rule(rule)):
        raise InvalidArgument("rule", suggestion)
    hosts = {"hosts": sorted({one.case.host for one in episodes})}
    faulty = connection.execute(_FAULTY, {**since, **hosts}).fetchall()
    count = connection.execute("SELECT count(*) FROM hosts").fetchone()
    from_ns = max(now_ns - days * DAY_NS, _first_ns(connection, now_ns))
    if reader.count >= ROWS_MAX:
        from_ns = reader.oldest_ns
    return _replay(
        _with_next_fault(episodes, faulty), limits, int(count[0]) if count else 0, from_ns
    )


def _first_ns(connection: duckdb.DuckDBPyConnection, now_ns: int) -> int:
    """Return since when scores are stored: `history_days` ago at most, and not before the aggregator was there."""
    first = connection.execute("SELECT epoch_us(min(time)) FROM scores").fetchone()
    return now_ns if first is None or first[0] is None else min(now_ns, first[0] * 1000)


class _RowReader:
    """Rows of an answer as dictionaries, a few at a time; counts them."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._names = [column[0] for column in cursor.description or ()]
        self.count = self.oldest_ns = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while rows := self._cursor.fetchmany(ROWS_AT_ONCE):
            for values in rows:
                row = dict(zip(self._names, values, strict=True))
                self.oldest_ns = self.oldest_ns or time_ns(row["time"])
                self.count += 1
                yield row


def _evidence_case(
    row: dict[str, Any], rule: str, place: Callable[[str], FailureDomains]
) -> EvidenceCase | None:
    """Return what a stored piece of evidence was; None where the rule says nothing of it."""
    state = HealthState.__members__.get(row.pop("host_state"), HealthState.UNKNOWN)
    hazard, speed = row.pop("host_hazard") or 0.0, row.pop("host_speed")
    upper = row.pop("host_upper") or 1.0
    evidence: Evidence = evidence_of(row)
    host = HostScore(
        row["host"], 0, False, 0.0, 0.0, upper, state, hazard, 1.0 if speed is None else speed,
        Reason.NONE, "", "", 0,
    )  # fmt: skip
    requested = policy.requested_action(host, evidence, Workload())
    if requested is None or rule not in (requested.rule, evidence.reason.name, evidence.signal):
        return None
    at_ns = time_ns(row["time"])

    def case(requested: policy.RequestedAction) -> Case:
        key = f"{host.host}/{requested.rule}/{evidence.device}"
        made = restrict_to_basis(
            Case(
                key, host.host, evidence.reason.name, requested.basis, requested.action, requested.scope,
                evidence.words, at_ns, then=requested.then, hazard_per_hour=hazard, place=place(host.host),
            )
        )  # fmt: skip
        fault = Fault(hazard, host.relative_speed, 8)
        cost = price(made.action, requested.then, fault, Workload(), at_ns, made.basis)
        return replace(made, price=cost)

    first = policy.avoid_while_hung(requested, evidence, 0.0)
    initial = case(first)
    return EvidenceCase(initial, initial if first == requested else case(requested), at_ns)


def _episodes(evidence_cases: Iterable[EvidenceCase]) -> list[RuleEpisode]:
    """Return *evidence_cases*, oldest first, put together where no more than a gap lies between."""
    open_: dict[str, tuple[EvidenceCase, int]] = {}
    closed: list[RuleEpisode] = []
    for one in evidence_cases:
        key = one.case.key
        if key in open_ and one.at_ns - open_[key][1] > seconds_ns(GAP_SECONDS):
            closed.append(_episode(*open_.pop(key)))
        first, _ = open_.get(key, (one, 0))
        open_[key] = first, one.at_ns
    closed += [_episode(*each) for each in open_.values()]
    return sorted(closed, key=lambda one: (one.first_ns, one.case.key))


def _episode(first: EvidenceCase, last_ns: int) -> RuleEpisode:
    lasted = last_ns - first.at_ns >= seconds_ns(policy.HUNG_SECONDS_MIN)
    return RuleEpisode(first.lasting if lasted else first.case, first.at_ns, last_ns)


def _with_next_fault(
    episodes: Sequence[RuleEpisode], faulty: Iterable[tuple[str, int, int]]
) -> tuple[RuleEpisode, ...]:
    """Return *episodes* with when their hosts were next UNHEALTHY."""
    fault_moments: dict[str, set[int]] = {}
    for host, *moments in faulty:
        fault_moments.setdefault(host, set()).update(at_us * 1000 for at_us in moments)
    ordered = {host: sorted(moments) for host, moments in fault_moments.items()}
    return tuple(
        replace(one, faulty_ns=_next_fault_ns(ordered.get(one.case.host, ()), one.first_ns))
        for one in episodes
    )


def _next_fault_ns(moments: Sequence[int], after_ns: int) -> int:
    until = after_ns + FAULT_WITHIN_DAYS * DAY_NS
    return next((at for at in moments if after_ns < at <= until), 0)


def _replay(
    episodes: tuple[RuleEpisode, ...], limits: AdvisoryLimits, hosts: int, from_ns: int
) -> ReplayReport:
    """Give the episodes to a machine whose advice is always accepted and done at once."""
    machine = AdvisoryStateMachine(limits)
    advisories: list[ReplayedAdvisory] = []
    withheld: list[WithheldCase] = []
    most = 0
    for event in _with_ticks(machine, _events(episodes, hosts, from_ns, limits), limits):
        answers: list[Event] = [event]
        while answers:
            for one in machine.step(answers.pop(0)):
                if isinstance(one, HeldBack):
                    withheld.append(WithheldCase(event.now_ns, one.key, one.words))
                if not isinstance(one, Publish) or one.advisory.state is not AdvisoryState.PROPOSED:
                    continue
                advisory = one.advisory
                if advisory.revision == 1 and advisory.action is not Action.RETURN_TO_SERVICE:
                    advisories.append(
                        ReplayedAdvisory(
                            event.now_ns, advisory.hosts, advisory.subject, advisory.action.name
                        )
                    )
                done = (AdvisoryState.ACCEPTED, AdvisoryState.DONE)
                answers += [Acked(event.now_ns, advisory.name, to, "what-if") for to in done]
        most = max(most, len(machine.state.holds))
    return ReplayReport(episodes, tuple(advisories), tuple(withheld), most, from_ns)


def _with_ticks(
    machine: AdvisoryStateMachine, events: Iterable[Event], limits: AdvisoryLimits
) -> Iterator[Event]:
    """Yield *events*, and the time between them while a host is out: else what holds it runs out unrenewed."""
    every = seconds_ns(limits.hold_seconds) // 2
    for event in events:
        while machine.state.holds and machine.state.now_ns + every < event.now_ns:
            yield Tick(machine.state.now_ns + every)
        yield event


def _events(
    episodes: tuple[RuleEpisode, ...], hosts: int, from_ns: int, limits: AdvisoryLimits
) -> Iterator[Event]:
    yield FleetSize(from_ns, hosts)
    moments: list[tuple[int, int, list[Event]]] = []
    verify = seconds_ns(limits.verify_seconds)
    for number, one in enumerate(episodes):
        end = one.last_ns + seconds_ns(GAP_SECONDS)
        begin = one.first_ns + seconds_ns(limits.gather_seconds) + 1
        well = Well(end, one.case.host, True)
        ill = Well(one.first_ns, one.case.host, False)
        moments.append((one.first_ns, number, [ill, CaseSeen(one.first_ns, one.case)]))
        moments.append((begin, number, [Tick(begin)]))
        moments.append((end, number, [CaseGone(end, one.case.key, "it was over"), well]))
        for after in (end + verify, end + 2 * verify, end + 16 * verify):
            moments.append((after, number, [Tick(after)]))
    for _, _, events in sorted(moments, key=lambda one: one[:2]):
        yield from events
