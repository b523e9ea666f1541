"""Shared causes: hosts of one rack that fall within two seconds have one fault, and it is not theirs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from .advisory import SILENCE, Case, Place, Scope
from .desk import Standing
from .limits import Limits, seconds_ns


class Sharing(NamedTuple):
    """What hosts may share: in words, what became of them, where to look, and the domains, narrowest first."""

    kind: str
    fell: str
    look: str
    domains: tuple[Scope, ...]


#: What a rack, its power and its leaf have in common.
_ANY = (Scope.RACK, Scope.POWER_DOMAIN, Scope.LEAF)
_NETWORK = (Scope.LEAF, Scope.RACK, Scope.SPINE)
SHARED: dict[str, Sharing] = {
    SILENCE: Sharing(
        "silence", "fell silent", "its power, its switch, or the way from there to us",
        (*_ANY, Scope.SPINE, Scope.FLEET),
    ),
    "POWER_CAP": Sharing(
        "power", "were held down by their power", "its feed, its power supplies, who caps it",
        (Scope.RACK, Scope.POWER_DOMAIN),
    ),
    "THERMAL_THROTTLE": Sharing(
        "cooling", "became too hot", "its coolant, its fans, the air before it",
        (Scope.RACK, Scope.COOLING_DOMAIN),
    ),
    "RAIL_DOWN": Sharing("network", "lost a link", "its switch and that one's cables", _NETWORK),
    "FABRIC": Sharing("network", "had trouble on the fabric", "its switch and that one's cables", _NETWORK),
    "NVLINK_ERRORS": Sharing(
        "NVLink", "had trouble on NVLink", "its NVLink switches", (Scope.NVLINK_DOMAIN, Scope.RACK)
    ),
    "STORAGE": Sharing("storage", "had trouble with storage", "the storage that all use", (Scope.FLEET,)),
}  # fmt: skip
#: Where nobody has said how hosts stand together.
UNPLACED = "(no topology declared)"
#: Two things at once anywhere in a fleet are often two: it is the fleet's where it explains so many times as many hosts.
FLEET_RATIO = 2
_FIELDS = {one.name.replace("_", "-"): at for at, one in enumerate(fields(Place))}


def sharing(reason: str) -> Sharing:
    """Return what hosts would share that stand under *reason*."""
    kind = reason.lower().replace("_", " ")
    return SHARED.get(reason) or Sharing(
        kind, f"had the same trouble, {kind}", "what they share", _ANY
    )


class Domain(NamedTuple):
    """What hosts may share. `subject`: what an advisory about it is about. `width`: how much it takes in, against others."""

    scope: Scope
    name: str
    kind: str
    subject: str
    width: int


@lru_cache(maxsize=65_536)
def domains_of(place: Place, reason: str) -> tuple[Domain, ...]:
    """Return the domains that may have caused a case under *reason* in *place*, narrowest first."""
    what = sharing(reason)
    found = [(scope, _name_of(place, scope)) for scope in what.domains]
    found = [(scope, name) for scope, name in found if name]
    if not found:
        found.append((Scope.FLEET, UNPLACED))
    return tuple(
        Domain(scope, name, what.kind, f"{scope} {name} {what.kind}", _width(scope, what))
        for scope, name in found
    )


def _width(scope: Scope, what: Sharing) -> int:
    """Return the place of *scope* among what is shared; the fleet's is behind all."""
    return len(Scope) if scope is Scope.FLEET else what.domains.index(scope)


def _name_of(place: Place, scope: Scope) -> str:
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


def found(standings: Iterable[Standing], limits: Limits, fleet_hosts: int) -> Cause | None:
    """Return the largest cause among *standings*, the narrowest of as large ones; None for none.

    *fleet_hosts*: how many there are.
    """
    groups: dict[Domain, list[Standing]] = defaultdict(list)
    for one in standings:
        for domain in domains_of(one.case.place, one.case.reason):
            groups[domain].append(one)
    best: Cause | None = None
    for domain, members in sorted(groups.items(), key=lambda item: item[0].width):
        least = _least(domain.scope, limits)
        before = len(best.hosts) if best else 0
        if domain.scope is Scope.FLEET:
            before = max(FLEET_RATIO * before - 1, 0)
        if len(members) < least or len(_hosts(members)) <= before:
            continue
        together = _together(members, domain.scope, limits, fleet_hosts)
        hosts = tuple(sorted(_hosts(together)))
        if len(hosts) >= least and len(hosts) > before:
            keys = tuple(sorted(one.case.key for one in together))
            since = min(one.case.since_ns for one in together)
            best = Cause(domain, since, keys, hosts)
    return best


def _least(scope: Scope, limits: Limits) -> int:
    return limits.shared_unplaced_hosts_min if scope is Scope.FLEET else limits.shared_hosts_min


def _hosts(standings: Iterable[Standing]) -> set[str]:
    return {one.case.host for one in standings}


def _together(
    members: list[Standing], scope: Scope, limits: Limits, fleet_hosts: int
) -> list[Standing]:
    """Return those of *members* that have one cause: that began at once, or else are most of the domain.

    What began while we were away has no time of its own: hosts may have fallen hours apart.
    """
    at_once = _at_once(
        [one for one in members if not one.case.unseen], seconds_ns(limits.shared_seconds)
    )
    unseen = [one for one in members if one.case.unseen]
    hosts, whole = len(_hosts(unseen)), _counted([one.case for one in unseen], scope, fleet_hosts)
    is_most = 0 < whole < 2 * hosts
    return unseen if is_most and hosts > len(_hosts(at_once)) else at_once


def _at_once(members: list[Standing], span_ns: int) -> list[Standing]:
    """Return those of *members* that began within *span_ns* of each other: of most hosts, then most cases.

    A host has as many cases as it has devices that are ill, and is one host all the same.
    """
    ordered = sorted(members, key=lambda one: (one.case.since_ns, one.case.key))
    best, most = slice(0, 0), (0, 0)
    of_host: Counter[str] = Counter()
    first = 0
    for last, one in enumerate(ordered):
        of_host[one.case.host] += 1
        while one.case.since_ns - ordered[first].case.since_ns > span_ns:
            before = ordered[first].case.host
            of_host[before] -= 1
            if not of_host[before]:
                del of_host[before]
            first += 1
        if (len(of_host), last - first + 1) > most:
            best, most = slice(first, last + 1), (len(of_host), last - first + 1)
    return ordered[best]


def belongs(standing: Standing, subject: str, since_ns: int, limits: Limits) -> bool:
    """Say whether *standing* is one more of the cause *subject* that began then: with it, or after it."""
    case = standing.case
    after_ns = case.since_ns - since_ns
    if not -seconds_ns(limits.shared_seconds) <= after_ns <= seconds_ns(limits.shared_join_seconds):
        return False
    return any(domain.subject == subject for domain in domains_of(case.place, case.reason))


def words_of(
    cases: Sequence[Case], hosts: int, scope: Scope, since_ns: int, fleet_hosts: int, limits: Limits
) -> str:
    """Return what *cases* of one cause say together: how many of how many, of what, since when, where to look.

    *hosts*: all that fell, those that are well again too. *fleet_hosts*: how many there are.
    """
    first = min(cases, key=lambda one: (one.since_ns, one.key))
    what = sharing(first.reason)
    whole = _counted(cases, scope, fleet_hosts)
    of = f" of {whole}" if whole >= hosts else ""
    where = _where(first.place, scope, what)
    late = max(one.since_ns for one in cases) - since_ns
    at = f"at {datetime.fromtimestamp(since_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if first.unseen:
        fell = f"were silent when we came back {at}: likely"
    elif late <= seconds_ns(limits.shared_seconds):
        fell = f"{what.fell} within {limits.shared_seconds:g} s, {at}:"
    else:
        fell = f"{what.fell} one after the other, the first {at}:"
    told = "" if first.reason == SILENCE else f"; {first.host}: {first.words}"
    return (
        f"{hosts}{of} hosts {where} {fell} one fault of what they share, not one each. "
        f"Look there ({what.look}) before at any of them{told}"
    )


def _counted(cases: Sequence[Case], scope: Scope, fleet_hosts: int) -> int:
    """Return how many hosts stand in the domain; 0: nobody counted."""
    if scope is Scope.FLEET:
        return fleet_hosts
    at = _FIELDS[scope.value]
    return max((one.among[at] for one in cases if len(one.among) > at), default=0)


def _where(place: Place, scope: Scope, what: Sharing) -> str:
    if scope is Scope.FLEET:
        return "of the fleet" if Scope.FLEET in what.domains else "whose racks nobody declared"
    return f"of {scope.value.replace('-', ' ')} {_name_of(place, scope)}"
