"""Finds a common cause: when hosts of one rack fail within 2 s, the rack is blamed, not the hosts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from .advisory import SILENCE_REASON, Case, Scope
from .advisory_limits import AdvisoryLimits, seconds_ns
from .failure_domains import FailureDomains
from .state import OpenCase

#: Common domains of a rack, its power and its leaf.
_RACK_DOMAINS = (Scope.RACK, Scope.POWER_DOMAIN, Scope.LEAF)
_NETWORK_DOMAINS = (Scope.LEAF, Scope.RACK, Scope.SPINE)
#: Name of the domain of hosts without a declared location.
UNPLACED = "(no topology declared)"
#: Two simultaneous faults anywhere in a fleet are often independent: a fleet-wide cause must
#: explain this many times as many hosts.
FLEET_RATIO = 2
_FIELDS = {f.name.replace("_", "-"): i for i, f in enumerate(fields(FailureDomains))}


class CauseKind(NamedTuple):
    """A kind of shared cause: symptom, inspection, and domains, narrowest first."""

    kind: str
    symptom: str
    where_to_check: str
    domains: tuple[Scope, ...]


CAUSE_KINDS: dict[str, CauseKind] = {
    SILENCE_REASON: CauseKind(
        "silence", "fell silent", "its power, its switch, or the network to the aggregator",
        (*_RACK_DOMAINS, Scope.SPINE, Scope.FLEET),
    ),
    "POWER_CAP": CauseKind(
        "power", "were limited by their power", "its feed, its power supplies, its power caps",
        (Scope.RACK, Scope.POWER_DOMAIN),
    ),
    "THERMAL_THROTTLE": CauseKind(
        "cooling", "became too hot", "its coolant, its fans, its inlet air",
        (Scope.RACK, Scope.COOLING_DOMAIN),
    ),
    "RAIL_DOWN": CauseKind("network", "lost a link", "its switch and the cables of that switch", _NETWORK_DOMAINS),
    "FABRIC": CauseKind("network", "had trouble on the fabric", "its switch and the cables of that switch", _NETWORK_DOMAINS),
    "NVLINK_ERRORS": CauseKind(
        "NVLink", "had trouble on NVLink", "its NVLink switches", (Scope.NVLINK_DOMAIN, Scope.RACK)
    ),
    "STORAGE": CauseKind("storage", "had trouble with storage", "the storage that all use", (Scope.FLEET,)),
}  # fmt: skip


def cause_kind(reason: str) -> CauseKind:
    """Return the kind of shared cause of hosts with *reason*."""
    kind = reason.lower().replace("_", " ")
    return CAUSE_KINDS.get(reason) or CauseKind(
        kind, f"had the same trouble, {kind}", "what they share", _RACK_DOMAINS
    )


class Domain(NamedTuple):
    """A domain that hosts may share, with its subject and its rank among its kind (`width`)."""

    scope: Scope
    name: str
    kind: str
    subject: str
    width: int


@lru_cache(maxsize=65_536)
def domains_of(place: FailureDomains, reason: str) -> tuple[Domain, ...]:
    """Return the domains that may have caused a case of *reason* in *place*, narrowest first."""
    kind = cause_kind(reason)
    named = [(scope, _name_of(place, scope)) for scope in kind.domains]
    named = [(scope, name) for scope, name in named if name]
    if not named:
        named.append((Scope.FLEET, UNPLACED))
    return tuple(
        Domain(scope, name, kind.kind, f"{scope} {name} {kind.kind}", _width(scope, kind))
        for scope, name in named
    )


def _width(scope: Scope, what: CauseKind) -> int:
    """Return the rank of *scope* among the domains; the fleet comes last."""
    return len(Scope) if scope is Scope.FLEET else what.domains.index(scope)


def _name_of(place: FailureDomains, scope: Scope) -> str:
    if scope is Scope.FLEET:
        return "all"
    name: str = getattr(place, scope.value.replace("-", "_"))
    return name


@dataclass(frozen=True, slots=True)
class Cause:
    """Cases that began together in one domain."""

    domain: Domain
    since_ns: int
    keys: tuple[str, ...]
    hosts: tuple[str, ...]


def largest_cause(
    open_cases: Iterable[OpenCase], limits: AdvisoryLimits, fleet_hosts: int
) -> Cause | None:
    """Return the largest cause of *open_cases*, the narrowest if several; None for none."""
    groups: dict[Domain, list[OpenCase]] = defaultdict(list)
    for open_case in open_cases:
        for domain in domains_of(open_case.case.place, open_case.case.reason):
            groups[domain].append(open_case)
    best: Cause | None = None
    for domain, members in sorted(groups.items(), key=lambda item: item[0].width):
        hosts_min = limits.shared_hosts_min
        if domain.scope is Scope.FLEET:
            hosts_min = limits.shared_unplaced_hosts_min
        hosts_count = len(best.hosts) if best else 0
        if domain.scope is Scope.FLEET:
            hosts_count = max(FLEET_RATIO * hosts_count - 1, 0)
        if len(members) < hosts_min or len(_hosts(members)) <= hosts_count:
            continue
        together = _common_cause(members, domain.scope, limits, fleet_hosts)
        hosts = tuple(sorted(_hosts(together)))
        if len(hosts) >= hosts_min and len(hosts) > hosts_count:
            keys = tuple(sorted(open_case.case.key for open_case in together))
            since = min(open_case.case.since_ns for open_case in together)
            best = Cause(domain, since, keys, hosts)
    return best


def _hosts(open_cases: Iterable[OpenCase]) -> set[str]:
    return {open_case.case.host for open_case in open_cases}


def _common_cause(
    members: list[OpenCase], scope: Scope, limits: AdvisoryLimits, fleet_hosts: int
) -> list[OpenCase]:
    """Return the *members* with one cause: begun together, or most of the domain.

    Cases that began while the aggregator was down have no time of their own: hosts may have failed
    hours apart.
    """
    at_once = _at_once([m for m in members if not m.case.unseen], seconds_ns(limits.shared_seconds))
    unseen = [member for member in members if member.case.unseen]
    hosts = len(_hosts(unseen))
    domain_hosts = _domain_hosts([member.case for member in unseen], scope, fleet_hosts)
    is_most = 0 < domain_hosts < 2 * hosts
    return unseen if is_most and hosts > len(_hosts(at_once)) else at_once


def _at_once(members: list[OpenCase], span_ns: int) -> list[OpenCase]:
    """Return the *members* that began within *span_ns*: most hosts first, then most cases.

    A host with several faulty devices has several cases, but counts once.
    """
    ordered = sorted(members, key=lambda member: (member.case.since_ns, member.case.key))
    best, largest = slice(0, 0), (0, 0)
    cases_by_host: Counter[str] = Counter()
    first = 0
    for last, member in enumerate(ordered):
        cases_by_host[member.case.host] += 1
        while member.case.since_ns - ordered[first].case.since_ns > span_ns:
            before = ordered[first].case.host
            cases_by_host[before] -= 1
            if not cases_by_host[before]:
                del cases_by_host[before]
            first += 1
        if (len(cases_by_host), last - first + 1) > largest:
            best, largest = slice(first, last + 1), (len(cases_by_host), last - first + 1)
    return ordered[best]


def belongs_to_cause(
    open_case: OpenCase, subject: str, since_ns: int, limits: AdvisoryLimits
) -> bool:
    """Return whether *open_case* began with the cause *subject*, or soon after *since_ns*."""
    case = open_case.case
    after_ns = case.since_ns - since_ns
    if not -seconds_ns(limits.shared_seconds) <= after_ns <= seconds_ns(limits.shared_join_seconds):
        return False
    return any(domain.subject == subject for domain in domains_of(case.place, case.reason))


def cause_message(
    cases: Sequence[Case],
    hosts: int,
    scope: Scope,
    since_ns: int,
    fleet_hosts: int,
    limits: AdvisoryLimits,
) -> str:
    """Return the message about *cases* of one cause: hosts, symptom, time, and where to inspect.

    *hosts*: all that failed, including recovered ones. *fleet_hosts*: number of hosts in the fleet.
    """
    first = min(cases, key=lambda case: (case.since_ns, case.key))
    what = cause_kind(first.reason)
    domain_hosts = _domain_hosts(cases, scope, fleet_hosts)
    total = f" of {domain_hosts}" if domain_hosts >= hosts else ""
    where = _domain_text(first.place, scope, what)
    late = max(case.since_ns for case in cases) - since_ns
    time_text = f"at {datetime.fromtimestamp(since_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if first.unseen:
        symptom = f"were silent when the aggregator restarted {time_text}: likely"
    elif late <= seconds_ns(limits.shared_seconds):
        symptom = f"{what.symptom} within {limits.shared_seconds:g} s, {time_text}:"
    else:
        symptom = f"{what.symptom} one after the other, the first {time_text}:"
    detail = "" if first.reason == SILENCE_REASON else f"; {first.host}: {first.message}"
    return f"{hosts}{total} hosts {where} {symptom} one fault that they share. Check first: {what.where_to_check}{detail}"


def _domain_hosts(cases: Sequence[Case], scope: Scope, fleet_hosts: int) -> int:
    """Return the number of hosts in the domain; 0: unknown."""
    if scope is Scope.FLEET:
        return fleet_hosts
    index = _FIELDS[scope.value]
    return max((case.among[index] for case in cases if len(case.among) > index), default=0)


def _domain_text(place: FailureDomains, scope: Scope, what: CauseKind) -> str:
    if scope is Scope.FLEET:
        return "of the fleet" if Scope.FLEET in what.domains else "whose racks nobody declared"
    return f"of {scope.value.replace('-', ' ')} {_name_of(place, scope)}"
