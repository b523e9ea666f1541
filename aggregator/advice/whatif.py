"""What would a rule have done? Stored evidence of weeks, through the policy and the machine as they are now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from ..refusals import Invalid
from ..store.known import evidence_of, time_ns
from ..verdicts import Evidence, HostScore, Reason, State
from . import policy
from .advisory import Action, Case, lawful
from .advisory import State as AdvisoryState
from .costs import Fault, Workload, price
from .events import Acked, CaseGone, CaseSeen, Event, FleetSize, HeldBack, Publish, Tick, Well
from .limits import SECOND_NS, Limits, seconds_ns
from .machine import Machine

#: A score is stored at least so often while it stands (`store/scorelog.py`), with some time to spare.
GAP_SECONDS = 900.0
DAYS_MAX = 366
RULE_CHARACTERS_MAX = 80
#: Pieces of evidence that are read; beyond, the newest count.
ROWS_MAX = 500_000
#: A drain was right where the host was found faulty within so many days.
FOLLOWED_DAYS = 7
DAY_NS = 86_400 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of time in which the rule had something to say of one host."""

    case: Case
    first_ns: int
    last_ns: int
    faulty_ns: int = 0  # when it was next UNHEALTHY, within seven days of its begin; 0: it was not


@dataclass(frozen=True, slots=True)
class Report:
    """What would have come of a rule. `advised`: by (host, action), when."""

    episodes: tuple[Episode, ...]
    advised: tuple[tuple[int, str, str], ...]
    held_back: int
    at_once_max: int
    from_ns: int


_QUERY = """
SELECT e.*, s.state AS host_state, s.hazard_per_hour AS host_hazard,
       s.relative_speed AS host_speed, s.score_upper AS host_upper
FROM evidence AS e JOIN scores AS s USING (host, time, version)
WHERE e.time > make_timestamp($since) AND (e.log_hazard_delta > 0 OR e.relative_speed_factor < 1)
ORDER BY e.time DESC LIMIT {rows}
"""
_FAULTY = """
SELECT host, epoch_us(time) FROM scores
WHERE state = 'UNHEALTHY' AND time > make_timestamp($since) ORDER BY time
"""


def evaluated(
    connection: duckdb.DuckDBPyConnection, rule: str, days: int, limits: Limits, now_ns: int
) -> Report:
    """Return what *rule* would have done in the last *days*. Raises Invalid.

    *rule*: a code (`gpu.xid 95`), a row of the policy (`gpu_thermal`), a reason, or a signal.
    """
    if not 1 <= days <= DAYS_MAX:
        raise Invalid("days", f"{days}, expected 1 to {DAYS_MAX}")
    if not 0 < len(rule) <= RULE_CHARACTERS_MAX or not rule.isprintable():
        raise Invalid("rule", f"expected 1 to {RULE_CHARACTERS_MAX} characters, as 'gpu.xid 95'")
    since = {"since": (now_ns - days * DAY_NS) // 1000}
    cursor = connection.execute(_QUERY.format(rows=ROWS_MAX), since)
    names = [column[0] for column in cursor.description or ()]
    cases = [
        one
        for row in cursor.fetchall()
        if (one := _case(dict(zip(names, row, strict=True)), rule)) is not None
    ]
    faulty = connection.execute(_FAULTY, since).fetchall()
    hosts = connection.execute("SELECT count(*) FROM hosts").fetchone()
    episodes = _episodes(cases[::-1], faulty)
    return _replayed(episodes, limits, int(hosts[0]) if hosts else 0, now_ns - days * DAY_NS)


def _case(row: dict[str, Any], rule: str) -> tuple[Case, int] | None:
    """Return the case that a stored piece of evidence made, and when; None where the rule says nothing of it."""
    state = State.__members__.get(row.pop("host_state"), State.UNKNOWN)
    hazard, speed = row.pop("host_hazard") or 0.0, row.pop("host_speed")
    upper = row.pop("host_upper") or 1.0
    evidence: Evidence = evidence_of(row)
    host = HostScore(
        row["host"], 0, False, 0.0, 0.0, upper, state, hazard, 1.0 if speed is None else speed,
        Reason.NONE, "", "", 0,
    )  # fmt: skip
    asked = policy.asked(host, evidence, Workload())
    if asked is None or rule not in (asked.rule, evidence.reason.name, evidence.signal):
        return None
    at_ns = time_ns(row["time"])
    key = f"{host.host}/{asked.rule}/{evidence.device}"
    case = Case(
        key, host.host, evidence.reason.name, asked.basis, asked.action, asked.scope,
        evidence.words, at_ns, then=asked.then, hazard_per_hour=hazard,
    )  # fmt: skip
    case = lawful(case)
    fault = Fault(hazard, host.relative_speed, 8)
    cost = price(case.action, case.then, fault, Workload(), at_ns, case.basis)
    return replace(case, price=cost), at_ns


def _episodes(
    cases: Sequence[tuple[Case, int]], faulty: Sequence[tuple[str, int]]
) -> tuple[Episode, ...]:
    """Return *cases*, oldest first, put together where no more than a gap lies between."""
    open_: dict[str, Episode] = {}
    done: list[Episode] = []
    for case, at_ns in cases:
        before = open_.get(case.key)
        if before is not None and at_ns - before.last_ns <= seconds_ns(GAP_SECONDS):
            open_[case.key] = replace(before, last_ns=at_ns)
            continue
        if before is not None:
            done.append(before)
        open_[case.key] = Episode(case, at_ns, at_ns)
    bad: dict[str, list[int]] = {}
    for host, at_us in faulty:
        bad.setdefault(host, []).append(at_us * 1000)
    return tuple(
        replace(one, faulty_ns=_next(bad.get(one.case.host, ()), one.first_ns))
        for one in sorted([*done, *open_.values()], key=lambda one: (one.first_ns, one.case.key))
    )


def _next(moments: Sequence[int], after_ns: int) -> int:
    until = after_ns + FOLLOWED_DAYS * DAY_NS
    return next((at for at in moments if after_ns < at <= until), 0)


def _replayed(episodes: tuple[Episode, ...], limits: Limits, hosts: int, from_ns: int) -> Report:
    """Give the episodes to a machine whose advice is always accepted and done at once."""
    machine = Machine(limits)
    advised: list[tuple[int, str, str]] = []
    held: set[str] = set()
    most = 0
    for event in _events(episodes, hosts, from_ns, limits):
        answers: list[Event] = [event]
        while answers:
            for one in machine.step(answers.pop(0)):
                if isinstance(one, HeldBack):
                    held.add(one.key)
                if not isinstance(one, Publish) or one.advisory.state is not AdvisoryState.PROPOSED:
                    continue
                a = one.advisory
                if a.revision == 1 and a.action is not Action.RETURN_TO_SERVICE:
                    advised.append((event.now_ns, a.subject, a.action.name))
                done = (AdvisoryState.ACCEPTED, AdvisoryState.DONE)
                answers += [Acked(event.now_ns, a.name, to, "what-if") for to in done]
        most = max(most, len(machine.memory.holds))
    return Report(episodes, tuple(advised), len(held), most, from_ns)


def _events(
    episodes: tuple[Episode, ...], hosts: int, from_ns: int, limits: Limits
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
