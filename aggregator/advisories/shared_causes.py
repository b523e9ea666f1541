"""Shared causes: hosts of one rack that fall within two seconds have one fault, and it is not theirs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from . import policy
from .advisory import (
    SECOND_NS,
    SILENCE,
    Action,
    Advisory,
    Basis,
    Case,
    Limits,
    Place,
    Scope,
    State,
    gravity,
    seconds_ns,
)
from .limits import NAMED_MAX, composed, lead, unasked
from .state import Desk, Standing


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


# ----------------------------------------------------------------------
# Causes of which nothing is to be said for a while: nor under another domain, nor host by host.


def mute_members(desk: Desk, cause: Advisory, seconds: float) -> None:
    """Let nothing be said for so long of the cases in *cause*; of its hosts that are well again, for a moment."""
    well = set(cause.hosts)
    for one in desk.memory.cases.values():
        if one.advisory == cause.name:
            well.discard(one.case.host)
            desk.mute(f"host {one.case.host}", one.case.action, seconds)
            desk.mute(_member(one.case.host, one.case.reason), one.case.action, seconds)
    for host in sorted(well):
        moment = min(seconds, desk.limits.flap_seconds)
        desk.mute(_member(host, cause.reason), Action.EVICT_NOW, moment)


def is_muted(desk: Desk, subject: str) -> bool:
    """Say whether nothing is to be said of the cause *subject* now."""
    return desk.is_muted(subject, Action.INSPECT)


def of_muted(desk: Desk, candidates: Sequence[Standing]) -> list[Standing]:
    """Return those of *candidates* that were in a muted cause, and who fell with these or after them, as one joins a cause."""
    if not desk.memory.muted:
        return []
    were = [one for one in candidates if _was_in(desk, one.case)]
    began = _began(desk, were)
    if not began:
        return were
    known = {one.case.key for one in were}
    return [one for one in candidates if one.case.key in known or _follows(desk, one.case, began)]


def hold_back(desk: Desk, quiet: Iterable[Standing]) -> set[str]:
    """Say of each of *quiet* until when and why nothing is said of it, and return their keys.

    Not of what an advisory is about, nor of what became graver than what was answered, nor of a host that is out by us.
    """
    quiet = [one for one in quiet if not one.advisory]
    if not quiet:
        return set()
    ended = {one.subject: one for one in desk.memory.ended.values() if not one.host}
    held, words = set[str](), dict[tuple[Domain, ...], str]()
    for case in [one.case for one in quiet]:
        graver = _was_in(desk, case) and not desk.is_muted(_member_of(case), case.action)
        if not graver and case.host not in desk.memory.holds:
            domains = domains_of(case.place, case.reason)
            words[domains] = words.get(domains) or _words(desk, case, ended)
            desk.hold_back(case, case.action, words[domains])
            held.add(case.key)
    return held


def _member(host: str, reason: str) -> str:
    """Return under what *host* is muted as one of those that share what is behind *reason*."""
    return f"{sharing(reason).kind} of {host}"


def _member_of(case: Case) -> str:
    return _member(case.host, case.reason)


def _was_in(desk: Desk, case: Case) -> bool:
    return is_muted(desk, _member_of(case))


def _began(desk: Desk, were: Sequence[Standing]) -> dict[str, list[int]]:
    """Return when cases of each muted cause began, in order."""
    began: dict[str, set[int]] = defaultdict(set)
    for one in [one for one in were if not one.case.unseen]:
        for domain in domains_of(one.case.place, one.case.reason):
            began[domain.subject].add(one.case.since_ns)
    return {subject: sorted(times) for subject, times in began.items() if is_muted(desk, subject)}


def _follows(desk: Desk, case: Case, began: dict[str, list[int]]) -> bool:
    """Say whether *case* began with one of those that *began*, or so soon after it that it would have joined their cause."""
    earliest_ns = case.since_ns - seconds_ns(desk.limits.shared_join_seconds)
    latest_ns = case.since_ns + seconds_ns(desk.limits.shared_seconds)
    for domain in domains_of(case.place, case.reason):
        times = began.get(domain.subject, ())
        at = bisect_left(times, earliest_ns)
        if at < len(times) and times[at] <= latest_ns:
            return True
    return False


def _words(desk: Desk, case: Case, ended: dict[str, Advisory]) -> str:
    subjects = [domain.subject for domain in domains_of(case.place, case.reason)]
    ends = {subject: desk.muted_until_ns(subject, Action.INSPECT) for subject in subjects}
    subject = max(subjects, key=lambda each: ends[each])
    until_ns = ends[subject] or desk.muted_until_ns(_member_of(case), case.action)
    until = f"{datetime.fromtimestamp(until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    before = ended.get(subject)
    why = (
        f"{before.name}: {before.state_words}" if before else "rejected, withdrawn, done or expired"
    )
    return f"of the same cause as before, {subject} ({why}): not again before {until}"


# ----------------------------------------------------------------------
# One advisory for what hosts share: cases that fall together go into it, and out of it as they end.


def share(desk: Desk, waiting: Sequence[Standing]) -> set[str]:
    """Put cases of one cause into its advisory. Return the keys of those of which nothing is to be said now."""
    _join(desk, waiting)
    candidates = _candidates(desk)
    quiet = of_muted(desk, candidates)
    candidates = _without(candidates, quiet)
    while cause := found(candidates, desk.limits, desk.memory.hosts):
        members = _members(desk, cause, candidates)
        candidates = _without(candidates, members)
        if is_muted(desk, cause.domain.subject):
            quiet += members
            continue
        alone = {one.advisory for one in members if one.advisory}
        new = _new(desk, cause, [one.case for one in members])
        for one in members:
            desk.into(one, new.name)
        for name in sorted(alone):
            _leave(desk, desk.memory.advisories[name], new)
    return hold_back(desk, quiet)


def _join(desk: Desk, waiting: Sequence[Standing]) -> None:
    """Put what follows into the advisory of its cause, and tell that anew."""
    for known in [a for a in desk.memory.advisories.values() if not a.host]:
        since_ns = known.since_ns or known.proposed_ns
        joined = [
            one
            for one in waiting
            if not one.advisory and belongs(one, known.subject, since_ns, desk.limits)
        ]
        changed = [one for one in waiting if one.changed and one.advisory == known.name]
        for one in (*joined, *changed):
            desk.into(one, known.name)
        if joined or changed:
            retell(desk, known, _joined(joined), [one.case.host for one in joined])


def _members(desk: Desk, cause: Cause, candidates: Sequence[Standing]) -> list[Standing]:
    """Return the cases of *cause*: those that began together, and what followed while nothing was told of them."""
    together = set(cause.keys)
    subject, since_ns = cause.domain.subject, cause.since_ns
    members = [
        one
        for one in candidates
        if one.case.key in together
        or (not one.advisory and belongs(one, subject, since_ns, desk.limits))
    ]
    return sorted(members, key=lambda one: one.case.key)


def _without(candidates: Sequence[Standing], others: Sequence[Standing]) -> list[Standing]:
    keys = {one.case.key for one in others}
    return [one for one in candidates if one.case.key not in keys]


def _candidates(desk: Desk) -> list[Standing]:
    """Return what may be of a cause: whatever has no advisory, or one of its own that nobody accepted."""
    advisories = desk.memory.advisories
    return [
        one
        for one in desk.memory.cases.values()
        if not one.advisory
        or ((a := advisories.get(one.advisory)) and a.host and a.state is not State.ACCEPTED)
    ]


def _new(desk: Desk, cause: Cause, cases: Sequence[Case]) -> Advisory:
    scope = cause.domain.scope
    hosts = tuple(sorted({one.host for one in cases}))
    fields = _of_cause(desk, cases, hosts, scope, cause.since_ns)
    first = lead(cases)
    return desk.put(
        Advisory(
            name=desk.next_name(), subject=cause.domain.subject, action=Action.INSPECT, scope=scope,
            basis=Basis.SHARED_CAUSE, reason=first.reason, state=State.PROPOSED, state_words="",
            proposed_ns=desk.now_ns, expires_ns=desk.after(desk.limits.proposal_seconds),
            changed_ns=desk.now_ns, place=first.place, since_ns=cause.since_ns, **fields,
        ),
        fields["words"],
    )  # fmt: skip


def _of_cause(
    desk: Desk, cases: Sequence[Case], hosts: tuple[str, ...], scope: Scope, since_ns: int
) -> dict[str, Any]:
    """Return what an advisory for a cause says of its *cases*. *hosts*: all that fell."""
    words = words_of(cases, len(hosts), scope, since_ns, desk.memory.hosts, desk.limits)
    return {
        "hosts": hosts, "cases": tuple(sorted(one.key for one in cases)), "words": words,
        "count": sum(one.count for one in cases), "price": policy.together(cases),
    }  # fmt: skip


def _leave(desk: Desk, alone: Advisory, cause: Advisory) -> None:
    """Take the cases that went into that of their cause out of a host's own advisory; withdraw it with the last."""
    rest = [one for one in desk.memory.cases.values() if one.advisory == alone.name]
    words = f"not this host's own fault: {cause.name}"
    if not rest or not lower(desk, alone, rest, words):
        desk.put(alone, words, state=State.WITHDRAWN)


def lower(desk: Desk, alone: Advisory, left: Sequence[Standing], words: str) -> bool:
    """Let a host's own advisory ask for what the cases that are *left* in it call for.

    False: that was answered before (rejected, say), or costs more than waiting, and is not asked for in another's name:
    they are without one. What is graver by now is asked for anew, as `propose` does: until then it asks for what it did.
    """
    cases = [one.case for one in left]
    if gravity(lead(cases).action) > gravity(alone.action):
        desk.put(alone, words, cases=tuple(sorted(one.key for one in cases)))
        return True
    if unasked(desk, alone.subject, lead(cases)):
        for one in left:
            one.advisory, desk.touched = "", True
        return False
    desk.put(alone, words, **composed(cases))
    return True


def _joined(joined: Sequence[Standing]) -> str:
    hosts = sorted({one.case.host for one in joined})
    if not hosts:
        return "its hosts are not as they were"
    more = f" and {len(hosts) - NAMED_MAX} more" if len(hosts) > NAMED_MAX else ""
    return f"of the same cause: {', '.join(hosts[:NAMED_MAX])}{more}"


def retell(desk: Desk, cause: Advisory, why: str, joined: Sequence[str] = ()) -> None:
    """Tell *cause* anew as its cases are by now, with the hosts that *joined*."""
    cases = [one.case for one in desk.memory.cases.values() if one.advisory == cause.name]
    hosts = tuple(sorted({*cause.hosts, *joined}))
    since_ns = cause.since_ns or cause.proposed_ns
    desk.put(cause, why, **_of_cause(desk, cases, hosts, cause.scope, since_ns))
