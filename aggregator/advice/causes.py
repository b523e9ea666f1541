"""Shared causes: hosts of one rack that fall within two seconds have one fault, and it is not theirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .advisory import Place, Scope
from .desk import Standing
from .limits import Limits, seconds_ns

#: Reason -> (what is shared, in words; the domains that may share it, narrowest first).
SHARED: dict[str, tuple[str, tuple[Scope, ...]]] = {
    "POWER_CAP": ("power", (Scope.RACK, Scope.POWER_DOMAIN)),
    "THERMAL_THROTTLE": ("cooling", (Scope.RACK, Scope.COOLING_DOMAIN)),
    "RAIL_DOWN": ("network", (Scope.LEAF, Scope.RACK, Scope.SPINE)),
    "FABRIC": ("network", (Scope.LEAF, Scope.RACK, Scope.SPINE)),
    "NVLINK_ERRORS": ("NVLink", (Scope.NVLINK_DOMAIN, Scope.RACK)),
    "STORAGE": ("storage", (Scope.FLEET,)),
}
#: Of all others: what a rack, its power and its leaf have in common.
OTHERWISE = (Scope.RACK, Scope.POWER_DOMAIN, Scope.LEAF)
#: Where nobody has said how hosts stand together.
UNPLACED = "(no topology declared)"


def kind_of(reason: str) -> str:
    """Return what hosts would share that stand under *reason*."""
    return SHARED[reason][0] if reason in SHARED else reason.lower().replace("_", " ")


class Domain(NamedTuple):
    """What hosts may share. `subject`: what an advisory about it is about."""

    scope: Scope
    name: str
    kind: str
    subject: str


@lru_cache(maxsize=65_536)
def domains_of(place: Place, reason: str) -> tuple[Domain, ...]:
    """Return the domains that may have caused a case under *reason* in *place*, narrowest first."""
    names = {
        Scope.RACK: place.rack,
        Scope.POWER_DOMAIN: place.power_domain,
        Scope.COOLING_DOMAIN: place.cooling_domain,
        Scope.LEAF: place.leaf,
        Scope.SPINE: place.spine,
        Scope.NVLINK_DOMAIN: place.nvlink_domain,
        Scope.FLEET: "all",
    }
    wanted = SHARED[reason][1] if reason in SHARED else OTHERWISE
    found = [(scope, names[scope]) for scope in wanted if names[scope]]
    if not found:
        found.append((Scope.FLEET, UNPLACED))
    kind = kind_of(reason)
    return tuple(Domain(scope, name, kind, f"{scope} {name} {kind}") for scope, name in found)


@dataclass(frozen=True, slots=True)
class Cause:
    """Cases that began together in one domain."""

    domain: Domain
    since_ns: int
    keys: tuple[str, ...]
    hosts: tuple[str, ...]


def found(
    standings: Iterable[Standing], limits: Limits, muted: Callable[[str], bool]
) -> Cause | None:
    """Return the largest cause among *standings*, the narrowest of as large ones; None for none.

    *muted*: of these subjects nothing is to be said now.
    """
    groups: dict[Domain, list[Standing]] = defaultdict(list)
    for one in standings:
        for domain in domains_of(one.case.place, one.case.reason):
            groups[domain].append(one)
    best: Cause | None = None
    for domain, members in groups.items():
        unplaced = domain.scope is Scope.FLEET
        least = limits.shared_unplaced_hosts_min if unplaced else limits.shared_hosts_min
        if len(members) < least or muted(domain.subject):
            continue
        together = _together(members, seconds_ns(limits.shared_seconds))
        hosts = tuple(sorted({one.case.host for one in together}))
        if len(hosts) >= least and (best is None or len(hosts) > len(best.hosts)):
            keys = tuple(sorted(one.case.key for one in together))
            since = min(one.case.since_ns for one in together)
            best = Cause(domain, since, keys, hosts)
    return best


def _together(members: list[Standing], span_ns: int) -> list[Standing]:
    """Return the most of *members* that began within *span_ns* of each other."""
    ordered = sorted(members, key=lambda one: (one.case.since_ns, one.case.key))
    best: list[Standing] = []
    first = 0
    for last, one in enumerate(ordered):
        while one.case.since_ns - ordered[first].case.since_ns > span_ns:
            first += 1
        if last - first + 1 > len(best):
            best = ordered[first : last + 1]
    return best


def belongs(standing: Standing, subject: str, since_ns: int, limits: Limits) -> bool:
    """Say whether *standing* is one more of the cause *subject* that began then."""
    case = standing.case
    if all(domain.subject != subject for domain in domains_of(case.place, case.reason)):
        return False
    return abs(case.since_ns - since_ns) <= seconds_ns(limits.shared_join_seconds)
