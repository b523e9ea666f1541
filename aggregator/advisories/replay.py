"""Replays stored evidence through the current policy and state machine, to show rules' effects."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from duckdb import DuckDBPyConnection as Connection

from ..errors import InvalidArgument
from ..model import Evidence, HealthState, HostScore, Reason
from ..store.restored_state import evidence_of, time_ns
from . import policy
from .advisory import Action, AdvisoryState, Case, restrict_to_basis
from .advisory_limits import SECOND_NS, AdvisoryLimits, seconds_ns
from .costs import Fault, Workload, price
from .failure_domains import FailureDomains
from .messages import Acked, CaseGone, CaseSeen, Event, FleetSize, HeldBack, Publish, Tick, Well
from .state_machine import AdvisoryStateMachine

#: An unchanged score is stored at least this often (`scoring/score_rows.py`), with a margin.
GAP_SECONDS = 900.0
DAYS_MAX = 366
RULE_CHARACTERS_MAX = 80
#: Maximum rows of evidence of a rule; with more, the newest count, and the report starts with them.
ROWS_MAX, ROWS_AT_ONCE = 500_000, 5000
#: A drain was right if the host was UNHEALTHY within this many days.
FAULT_WITHIN_DAYS = 7
DAY_NS = 86_400 * SECOND_NS

#: The newest rows, oldest first.
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
#: Times when hosts were UNHEALTHY: the first and the last of each hour.
_FAULTY = """
SELECT host, epoch_us(min(time)), epoch_us(max(time)) FROM scores
WHERE state = 'UNHEALTHY' AND time > make_timestamp($since) AND list_contains($hosts, host)
GROUP BY host, time_bucket(INTERVAL 1 HOUR, time)
"""


@dataclass(frozen=True, slots=True)
class RuleEpisode:
    """A period in which the rule had evidence of one host."""

    case: Case
    first_ns: int
    last_ns: int
    # next time it was UNHEALTHY, within FAULT_WITHIN_DAYS of the begin; 0: never
    faulty_ns: int = 0


class ReplayedAdvisory(NamedTuple):
    """An advisory that would have been proposed."""

    at_ns: int
    hosts: tuple[str, ...]
    subject: str
    action: str


class WithheldCase(NamedTuple):
    """A case for which nothing would have been proposed, and the reason."""

    at_ns: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The effects of a rule. `from_ns`: start of its evidence."""

    episodes: tuple[RuleEpisode, ...]
    advisories: tuple[ReplayedAdvisory, ...]
    withheld: tuple[WithheldCase, ...]
    at_once_max: int
    from_ns: int

    @property
    def withheld_count(self) -> int:
        """Number of cases that would have been held back."""
        return len({withheld.key for withheld in self.withheld})

    def withheld_reasons(self, episodes: Sequence[RuleEpisode]) -> list[str]:
        """Return for each of *episodes* the last reason that held its advice back, or ""."""
        by_case: dict[str, list[WithheldCase]] = defaultdict(list)  # by case, ordered by time
        for withheld in self.withheld:
            by_case[withheld.key].append(withheld)
        return [_last_reason_within(by_case.get(e.case.key, []), e) for e in episodes]

    def are_advised(self, episodes: Sequence[RuleEpisode]) -> list[bool]:
        """Return for each of *episodes* whether its host would have got advice during it."""
        at_ns: dict[str, list[int]] = defaultdict(list)  # by host, ordered by time
        for advisory in self.advisories:
            for host in advisory.hosts:
                at_ns[host].append(advisory.at_ns)
        return [_is_within(at_ns.get(episode.case.host, []), episode) for episode in episodes]


def _last_reason_within(withheld: Sequence[WithheldCase], one: RuleEpisode) -> str:
    last = bisect_right(withheld, _end_ns(one), key=lambda case: case.at_ns) - 1
    return withheld[last].reason if last >= 0 and withheld[last].at_ns >= one.first_ns else ""


def _end_ns(one: RuleEpisode) -> int:
    return one.last_ns + seconds_ns(GAP_SECONDS)


def _is_within(at_ns: Sequence[int], one: RuleEpisode) -> bool:
    first = bisect_left(at_ns, one.first_ns)
    return first < len(at_ns) and at_ns[first] <= _end_ns(one)


class EvidenceCase(NamedTuple):
    """A stored piece of evidence as a case: at first, and once it has lasted."""

    case: Case
    lasting: Case
    at_ns: int


def replay_rule(
    connection: Connection,
    rule: str,
    days: int,
    limits: AdvisoryLimits,
    now_ns: int,
    place: Callable[[str], FailureDomains],
) -> ReplayReport:
    """Return the effects of *rule* in the last *days*, with hosts at their current locations.

    *rule*: a code (`gpu.xid 95`), a row of the policy (`gpu_thermal`), a reason, or a signal.
    Raises InvalidArgument.
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
        evidence_case
        for row in reader
        if (evidence_case := _evidence_case(row, rule, place)) is not None
    )
    if not reader.count and (suggestion := policy.unknown_rule(rule)):
        raise InvalidArgument("rule", suggestion)
    hosts = {"hosts": sorted({episode.case.host for episode in episodes})}
    faulty = connection.execute(_FAULTY, {**since, **hosts}).fetchall()
    count = connection.execute("SELECT count(*) FROM hosts").fetchone()
    from_ns = max(now_ns - days * DAY_NS, _first_ns(connection, now_ns))
    if reader.count >= ROWS_MAX:
        from_ns = reader.oldest_ns
    return _replay(
        _with_next_fault(episodes, faulty), limits, int(count[0]) if count else 0, from_ns
    )


def _first_ns(connection: Connection, now_ns: int) -> int:
    """Return the time of the first stored score, or *now_ns*."""
    first = connection.execute("SELECT epoch_us(min(time)) FROM scores").fetchone()
    return now_ns if first is None or first[0] is None else min(now_ns, first[0] * 1000)


class _RowReader:
    """Iterates the rows of a result as dictionaries, in chunks, and counts them."""

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
    """Return the case of a stored piece of evidence; None if the rule does not apply to it."""
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
        result = restrict_to_basis(
            Case(
                key, host.host, evidence.reason.name, requested.basis, requested.action, requested.scope,
                evidence.message, at_ns, then=requested.then, hazard_per_hour=hazard, place=place(host.host),
            )
        )  # fmt: skip
        fault = Fault(hazard, host.relative_speed, 8)
        cost = price(result.action, requested.then, fault, Workload(), at_ns, result.basis)
        return replace(result, price=cost)

    first = policy.avoid_while_hung(requested, evidence, 0.0)
    initial = case(first)
    return EvidenceCase(initial, initial if first == requested else case(requested), at_ns)


def _episodes(evidence_cases: Iterable[EvidenceCase]) -> list[RuleEpisode]:
    """Return episodes of *evidence_cases* (oldest first), merged over gaps of up to GAP_SECONDS."""
    open_: dict[str, tuple[EvidenceCase, int]] = {}
    closed: list[RuleEpisode] = []
    for evidence_case in evidence_cases:
        key = evidence_case.case.key
        if key in open_ and evidence_case.at_ns - open_[key][1] > seconds_ns(GAP_SECONDS):
            closed.append(_episode(*open_.pop(key)))
        first, _ = open_.get(key, (evidence_case, 0))
        open_[key] = first, evidence_case.at_ns
    closed += [_episode(*opened) for opened in open_.values()]
    return sorted(closed, key=lambda episode: (episode.first_ns, episode.case.key))


def _episode(first: EvidenceCase, last_ns: int) -> RuleEpisode:
    lasted = last_ns - first.at_ns >= seconds_ns(policy.HUNG_SECONDS_MIN)
    return RuleEpisode(first.lasting if lasted else first.case, first.at_ns, last_ns)


def _with_next_fault(
    episodes: Sequence[RuleEpisode], faulty: Iterable[tuple[str, int, int]]
) -> tuple[RuleEpisode, ...]:
    """Return *episodes* with the next time their hosts were UNHEALTHY."""
    fault_moments: dict[str, set[int]] = {}
    for host, *moments in faulty:
        fault_moments.setdefault(host, set()).update(at_us * 1000 for at_us in moments)
    ordered = {host: sorted(moments) for host, moments in fault_moments.items()}

    def faulty_ns(episode: RuleEpisode) -> int:
        return _next_fault_ns(ordered.get(episode.case.host, ()), episode.first_ns)

    return tuple(replace(episode, faulty_ns=faulty_ns(episode)) for episode in episodes)


def _next_fault_ns(moments: Sequence[int], after_ns: int) -> int:
    until = after_ns + FAULT_WITHIN_DAYS * DAY_NS
    return next((moment for moment in moments if after_ns < moment <= until), 0)


def _replay(
    episodes: tuple[RuleEpisode, ...], limits: AdvisoryLimits, hosts: int, from_ns: int
) -> ReplayReport:
    """Run the episodes through a machine whose advice is always accepted and done at once."""
    machine = AdvisoryStateMachine(limits)
    advisories: list[ReplayedAdvisory] = []
    withheld: list[WithheldCase] = []
    at_once_max = 0
    for event in _with_ticks(machine, _events(episodes, hosts, from_ns, limits), limits):
        answers: list[Event] = [event]
        while answers:
            for instruction in machine.step(answers.pop(0)):
                if isinstance(instruction, HeldBack):
                    withheld.append(
                        WithheldCase(event.now_ns, instruction.key, instruction.message)
                    )
                if (
                    not isinstance(instruction, Publish)
                    or instruction.advisory.state is not AdvisoryState.PROPOSED
                ):
                    continue
                advisory = instruction.advisory
                if advisory.revision == 1 and advisory.action is not Action.RETURN_TO_SERVICE:
                    subject, action = advisory.subject, advisory.action.name
                    replayed = ReplayedAdvisory(event.now_ns, advisory.hosts, subject, action)
                    advisories.append(replayed)
                done = (AdvisoryState.ACCEPTED, AdvisoryState.DONE)
                answers += [Acked(event.now_ns, advisory.name, to, "what-if") for to in done]
        at_once_max = max(at_once_max, len(machine.state.holds))
    return ReplayReport(episodes, tuple(advisories), tuple(withheld), at_once_max, from_ns)


def _with_ticks(
    machine: AdvisoryStateMachine, events: Iterable[Event], limits: AdvisoryLimits
) -> Iterator[Event]:
    """Yield *events*, with Ticks between them that renew the holds."""
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
    for number, episode in enumerate(episodes):
        end = episode.last_ns + seconds_ns(GAP_SECONDS)
        begin = episode.first_ns + seconds_ns(limits.gather_seconds) + 1
        well = Well(end, episode.case.host, True)
        ill = Well(episode.first_ns, episode.case.host, False)
        moments.append((episode.first_ns, number, [ill, CaseSeen(episode.first_ns, episode.case)]))
        moments.append((begin, number, [Tick(begin)]))
        moments.append((end, number, [CaseGone(end, episode.case.key, "it was over"), well]))
        for after in (end + verify, end + 2 * verify, end + 16 * verify):
            moments.append((after, number, [Tick(after)]))
    for _, _, events in sorted(moments, key=lambda moment: moment[:2]):
        yield from events
