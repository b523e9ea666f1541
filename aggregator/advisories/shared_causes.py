"""Shared causes: when hosts of one rack fail within two seconds, the rack is blamed, not the hosts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from ..model import SharedCause, SharedCauseKey
from . import policy
from .advisory import (
    SECOND_NS,
    SILENCE_REASON,
    Action,
    Advisory,
    AdvisoryLimits,
    AdvisoryState,
    Basis,
    Case,
    FailureDomains,
    Scope,
    gravity,
    is_own_device_fault,
    seconds_ns,
)
from .limits import NAMES_SHOWN_MAX, advisory_fields, gravest_case, suppression_reason
from .state import MachineState, OpenCase, StateEditor


class CauseKind(NamedTuple):
    """What hosts may share: as text, what became of them, where to look, and the domains, narrowest first."""

    kind: str
    symptom: str
    where_to_check: str
    domains: tuple[Scope, ...]


#: What a rack, its power and its leaf have in common.
_RACK_DOMAINS = (Scope.RACK, Scope.POWER_DOMAIN, Scope.LEAF)
_NETWORK_DOMAINS = (Scope.LEAF, Scope.RACK, Scope.SPINE)
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
#: Where nobody has said how hosts stand together.
UNPLACED = "(no topology declared)"
#: Two simultaneous faults anywhere in a fleet are often independent: a fleet-wide cause must explain this many times as many hosts.
FLEET_RATIO = 2
_FIELDS = {one.name.replace("_", "-"): at for at, one in enumerate(fields(FailureDomains))}


def cause_kind(reason: str) -> CauseKind:
    """Return what hosts would share that stand under *reason*."""
    kind = reason.lower().replace("_", " ")
    return CAUSE_KINDS.get(reason) or CauseKind(
        kind, f"had the same trouble, {kind}", "what they share", _RACK_DOMAINS
    )


class Domain(NamedTuple):
    """What hosts may share. `subject`: what an advisory about it is about. `width`: how much it takes in, against others."""

    scope: Scope
    name: str
    kind: str
    subject: str
    width: int


@lru_cache(maxsize=65_536)
def domains_of(place: FailureDomains, reason: str) -> tuple[Domain, ...]:
    """Return the domains that may have caused a case under *reason* in *place*, narrowest first."""
    what = cause_kind(reason)
    found = [(scope, _name_of(place, scope)) for scope in what.domains]
    found = [(scope, name) for scope, name in found if name]
    if not found:
        found.append((Scope.FLEET, UNPLACED))
    return tuple(
        Domain(scope, name, what.kind, f"{scope} {name} {what.kind}", _width(scope, what))
        for scope, name in found
    )


def _width(scope: Scope, what: CauseKind) -> int:
    """Return the place of *scope* among what is shared; the fleet's is behind all."""
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
    """Return the largest cause among *open_cases*, the narrowest of as large ones; None for none.

    *fleet_hosts*: how many there are.
    """
    groups: dict[Domain, list[OpenCase]] = defaultdict(list)
    for one in open_cases:
        for domain in domains_of(one.case.place, one.case.reason):
            groups[domain].append(one)
    best: Cause | None = None
    for domain, members in sorted(groups.items(), key=lambda item: item[0].width):
        hosts_min = _hosts_min(domain.scope, limits)
        hosts_count = len(best.hosts) if best else 0
        if domain.scope is Scope.FLEET:
            hosts_count = max(FLEET_RATIO * hosts_count - 1, 0)
        if len(members) < hosts_min or len(_hosts(members)) <= hosts_count:
            continue
        together = _common_cause(members, domain.scope, limits, fleet_hosts)
        hosts = tuple(sorted(_hosts(together)))
        if len(hosts) >= hosts_min and len(hosts) > hosts_count:
            keys = tuple(sorted(one.case.key for one in together))
            since = min(one.case.since_ns for one in together)
            best = Cause(domain, since, keys, hosts)
    return best


def _hosts_min(scope: Scope, limits: AdvisoryLimits) -> int:
    return limits.shared_unplaced_hosts_min if scope is Scope.FLEET else limits.shared_hosts_min


def _hosts(open_cases: Iterable[OpenCase]) -> set[str]:
    return {one.case.host for one in open_cases}


def _common_cause(
    members: list[OpenCase], scope: Scope, limits: AdvisoryLimits, fleet_hosts: int
) -> list[OpenCase]:
    """Return those of *members* that have one cause: that began at once, or else are most of the domain.

    What began while we were away has no time of its own: hosts may have fallen hours apart.
    """
    at_once = _at_once(
        [one for one in members if not one.case.unseen], seconds_ns(limits.shared_seconds)
    )
    unseen = [one for one in members if one.case.unseen]
    hosts, domain_hosts = (
        len(_hosts(unseen)),
        _domain_hosts([one.case for one in unseen], scope, fleet_hosts),
    )
    is_most = 0 < domain_hosts < 2 * hosts
    return unseen if is_most and hosts > len(_hosts(at_once)) else at_once


def _at_once(members: list[OpenCase], span_ns: int) -> list[OpenCase]:
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


def belongs_to_cause(
    open_case: OpenCase, subject: str, since_ns: int, limits: AdvisoryLimits
) -> bool:
    """Return whether *open_case* is one more of the cause *subject* that began then: with it, or after it."""
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
    """Return what *cases* of one cause say together: how many of how many, of what, since when, where to look.

    *hosts*: all that fell, those that are well again too. *fleet_hosts*: how many there are.
    """
    first = min(cases, key=lambda one: (one.since_ns, one.key))
    what = cause_kind(first.reason)
    domain_hosts = _domain_hosts(cases, scope, fleet_hosts)
    of = f" of {domain_hosts}" if domain_hosts >= hosts else ""
    where = _domain_text(first.place, scope, what)
    late = max(one.since_ns for one in cases) - since_ns
    at = f"at {datetime.fromtimestamp(since_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if first.unseen:
        symptom = f"were silent when the aggregator restarted {at}: likely"
    elif late <= seconds_ns(limits.shared_seconds):
        symptom = f"{what.symptom} within {limits.shared_seconds:g} s, {at}:"
    else:
        symptom = f"{what.symptom} one after the other, the first {at}:"
    detail = "" if first.reason == SILENCE_REASON else f"; {first.host}: {first.words}"
    return f"{hosts}{of} hosts {where} {symptom} one fault that they share. Check first: {what.where_to_check}{detail}"


def _domain_hosts(cases: Sequence[Case], scope: Scope, fleet_hosts: int) -> int:
    """Return how many hosts stand in the domain; 0: nobody counted."""
    if scope is Scope.FLEET:
        return fleet_hosts
    at = _FIELDS[scope.value]
    return max((one.among[at] for one in cases if len(one.among) > at), default=0)


def _domain_text(place: FailureDomains, scope: Scope, what: CauseKind) -> str:
    if scope is Scope.FLEET:
        return "of the fleet" if Scope.FLEET in what.domains else "whose racks nobody declared"
    return f"of {scope.value.replace('-', ' ')} {_name_of(place, scope)}"


# ----------------------------------------------------------------------
# Causes that are muted for a while: neither under another domain nor host by host.


def mute_members(editor: StateEditor, cause: Advisory, seconds: float) -> None:
    """Let nothing be said for this long of the cases in *cause*; of its hosts that are well again, for a moment."""
    well = set(cause.hosts)
    for one in editor.state.cases.values():
        if one.advisory == cause.name:
            well.discard(one.case.host)
            editor.mute(f"host {one.case.host}", one.case.action, seconds)
            editor.mute(_member_subject(one.case.host, one.case.reason), one.case.action, seconds)
    for host in sorted(well):
        moment = min(seconds, editor.limits.flap_seconds)
        editor.mute(_member_subject(host, cause.reason), Action.EVICT_NOW, moment)


def is_muted(editor: StateEditor, subject: str) -> bool:
    """Return whether the cause *subject* is muted now."""
    return editor.is_muted(subject, Action.INSPECT)


def muted_candidates(editor: StateEditor, candidates: Sequence[OpenCase]) -> list[OpenCase]:
    """Return those of *candidates* that were in a muted cause, and who fell with these or after them, as one joins a cause."""
    if not editor.state.muted:
        return []
    were_muted = [one for one in candidates if _was_muted(editor, one.case)]
    begin_times = _begin_times(editor, were_muted)
    if not begin_times:
        return were_muted
    known = {one.case.key for one in were_muted}
    return [
        one
        for one in candidates
        if one.case.key in known or _follows(editor, one.case, begin_times)
    ]


def hold_back(editor: StateEditor, muted: Iterable[OpenCase]) -> set[str]:
    """Say of each of *muted* until when and why nothing is said of it, and return their keys.

    Not of what an advisory is about, nor of what became graver than what was answered, nor of a host that is out by us.
    """
    muted = [one for one in muted if not one.advisory]
    if not muted:
        return set()
    ended = {one.subject: one for one in editor.state.ended.values() if not one.host}
    withheld_keys, reasons = set[str](), dict[tuple[Domain, ...], str]()
    for case in [one.case for one in muted]:
        graver = _was_muted(editor, case) and not editor.is_muted(_case_subject(case), case.action)
        if not graver and case.host not in editor.state.holds:
            domains = domains_of(case.place, case.reason)
            reasons[domains] = reasons.get(domains) or _mute_reason(editor, case, ended)
            editor.hold_back(case, case.action, reasons[domains])
            withheld_keys.add(case.key)
    return withheld_keys


def _member_subject(host: str, reason: str) -> str:
    """Return under what *host* is muted as one of those that share what is behind *reason*."""
    return f"{cause_kind(reason).kind} of {host}"


def _case_subject(case: Case) -> str:
    return _member_subject(case.host, case.reason)


def _was_muted(editor: StateEditor, case: Case) -> bool:
    return is_muted(editor, _case_subject(case))


def _begin_times(editor: StateEditor, were_muted: Sequence[OpenCase]) -> dict[str, list[int]]:
    """Return when cases of each muted cause began, in order."""
    begin_times: dict[str, set[int]] = defaultdict(set)
    for one in [one for one in were_muted if not one.case.unseen]:
        for domain in domains_of(one.case.place, one.case.reason):
            begin_times[domain.subject].add(one.case.since_ns)
    return {
        subject: sorted(times)
        for subject, times in begin_times.items()
        if is_muted(editor, subject)
    }


def _follows(editor: StateEditor, case: Case, begin_times: dict[str, list[int]]) -> bool:
    """Return whether *case* began with one of those that *begin_times*, or so soon after it that it would have joined their cause."""
    earliest_ns = case.since_ns - seconds_ns(editor.limits.shared_join_seconds)
    latest_ns = case.since_ns + seconds_ns(editor.limits.shared_seconds)
    for domain in domains_of(case.place, case.reason):
        times = begin_times.get(domain.subject, ())
        at = bisect_left(times, earliest_ns)
        if at < len(times) and times[at] <= latest_ns:
            return True
    return False


def _mute_reason(editor: StateEditor, case: Case, ended: dict[str, Advisory]) -> str:
    subjects = [domain.subject for domain in domains_of(case.place, case.reason)]
    ends = {subject: editor.muted_until_ns(subject, Action.INSPECT) for subject in subjects}
    subject = max(subjects, key=lambda each: ends[each])
    until_ns = ends[subject] or editor.muted_until_ns(_case_subject(case), case.action)
    until = f"{datetime.fromtimestamp(until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    before = ended.get(subject)
    outcome = (
        f"{before.name}: {before.state_words}" if before else "rejected, withdrawn, done or expired"
    )
    return f"of the same cause as before, {subject} ({outcome}): not again before {until}"


def shared_causes(state: MachineState) -> dict[SharedCauseKey, SharedCause]:
    """Return the cause of each open case that shares its cause with other hosts.

    An advisory that was answered or has expired names the cause as long as the cases last.
    """
    advisories = [
        one for one in (*state.ended.values(), *state.advisories.values()) if not one.host
    ]
    causes: dict[SharedCauseKey, SharedCause] = {}
    for advisory in sorted(advisories, key=lambda one: (one.is_open, one.changed_ns)):
        hosts_count, since_ns = len(advisory.hosts), advisory.since_ns or advisory.proposed_ns
        cause = SharedCause(advisory.subject, advisory.name, hosts_count, since_ns)
        for key in advisory.cases:
            if (one := state.cases.get(key)) is not None:
                for device in one.case.devices:
                    causes[one.case.host, one.case.reason, device] = cause
    return causes


# ----------------------------------------------------------------------
# One advisory for what hosts share: cases that fall together go into it, and out of it as they end.


def group_shared_causes(editor: StateEditor, waiting: Sequence[OpenCase]) -> set[str]:
    """Put cases of one cause into its advisory. Return the keys of those that are muted now."""
    _join_causes(editor, waiting)
    candidates = _candidates(editor)
    muted = muted_candidates(editor, candidates)
    candidates = _without(candidates, muted)
    in_hand = _in_hand(editor) if candidates else []
    while cause := largest_cause([*candidates, *in_hand], editor.limits, editor.state.hosts):
        members = _members(editor, cause, candidates)
        candidates = _without(candidates, members)
        if not members:  # each of its hosts is in an executor's hands already
            in_hand = [one for one in in_hand if one.case.key not in cause.keys]
            continue
        if is_muted(editor, cause.domain.subject):
            muted += members
            continue
        host_advisories = {one.advisory for one in members if one.advisory}
        new = _new_advisory(editor, cause, [one.case for one in members])
        for one in members:
            editor.assign(one, new.name)
        for name in sorted(host_advisories):
            _leave_host_advisory(editor, editor.state.advisories[name], new)
    return hold_back(editor, muted)


def _join_causes(editor: StateEditor, waiting: Sequence[OpenCase]) -> None:
    """Put what follows into the advisory of its cause, and tell that again."""
    for known in [a for a in editor.state.advisories.values() if not a.host]:
        since_ns = known.since_ns or known.proposed_ns
        joined = [
            one
            for one in waiting
            if not one.advisory and belongs_to_cause(one, known.subject, since_ns, editor.limits)
        ]
        changed = [one for one in waiting if one.changed and one.advisory == known.name]
        for one in (*joined, *changed):
            editor.assign(one, known.name)
        if joined or changed:
            update_cause(editor, known, _joined_message(joined), [one.case.host for one in joined])


def _members(editor: StateEditor, cause: Cause, candidates: Sequence[OpenCase]) -> list[OpenCase]:
    """Return the cases of *cause*: those that began together, and those that followed while it was muted."""
    together = set(cause.keys)
    subject, since_ns = cause.domain.subject, cause.since_ns
    members = [
        one
        for one in candidates
        if one.case.key in together
        or (not one.advisory and belongs_to_cause(one, subject, since_ns, editor.limits))
    ]
    return sorted(members, key=lambda one: one.case.key)


def _without(candidates: Sequence[OpenCase], others: Sequence[OpenCase]) -> list[OpenCase]:
    keys = {one.case.key for one in others}
    return [one for one in candidates if one.case.key not in keys]


def _candidates(editor: StateEditor) -> list[OpenCase]:
    """Return what may be of a cause: whatever has no advisory, or one of its own that nobody accepted."""
    advisories = editor.state.advisories
    return [
        one
        for one in editor.state.cases.values()
        if not one.advisory
        or (
            (a := advisories.get(one.advisory)) and a.host and a.state is not AdvisoryState.ACCEPTED
        )
    ]


def _in_hand(editor: StateEditor) -> list[OpenCase]:
    """Return the faults of hosts' own devices that an executor acts on: they tell of a cause, and continue by themselves."""
    advisories, holds = editor.state.advisories, editor.state.holds
    return [
        one
        for one in editor.state.cases.values()
        if one.advisory
        and is_own_device_fault(one.case)
        and (
            (a.host and a.state is AdvisoryState.ACCEPTED)
            if (a := advisories.get(one.advisory))
            else one.case.host in holds
        )
    ]


def _new_advisory(editor: StateEditor, cause: Cause, cases: Sequence[Case]) -> Advisory:
    scope = cause.domain.scope
    hosts = tuple(sorted({*cause.hosts, *(one.host for one in cases)}))
    fields = _cause_fields(editor, cases, hosts, scope, cause.since_ns)
    first = gravest_case(cases)
    return editor.put(
        Advisory(
            name=editor.next_name(), subject=cause.domain.subject, action=Action.INSPECT, scope=scope,
            basis=Basis.SHARED_CAUSE, reason=first.reason, state=AdvisoryState.PROPOSED, state_words="",
            proposed_ns=editor.now_ns, expires_ns=editor.after(editor.limits.proposal_seconds),
            changed_ns=editor.now_ns, place=first.place, since_ns=cause.since_ns, **fields,
        ),
        fields["words"],
    )  # fmt: skip


def _cause_fields(
    editor: StateEditor, cases: Sequence[Case], hosts: tuple[str, ...], scope: Scope, since_ns: int
) -> dict[str, Any]:
    """Return what an advisory for a cause says of its *cases*. *hosts*: all that fell."""
    message = cause_message(cases, len(hosts), scope, since_ns, editor.state.hosts, editor.limits)
    return {
        "hosts": hosts, "cases": tuple(sorted(one.key for one in cases)), "words": message,
        "count": sum(one.count for one in cases), "price": policy.combined_price(cases),
    }  # fmt: skip


def _leave_host_advisory(editor: StateEditor, host_advisory: Advisory, cause: Advisory) -> None:
    """Take the cases that went into that of their cause out of a host's own advisory; withdraw it with the last."""
    rest = [one for one in editor.state.cases.values() if one.advisory == host_advisory.name]
    reason = f"not this host's own fault: {cause.name}"
    if not rest or not lower_advisory(editor, host_advisory, rest, reason):
        editor.put(host_advisory, reason, state=AdvisoryState.WITHDRAWN)


def lower_advisory(
    editor: StateEditor, host_advisory: Advisory, remaining: Sequence[OpenCase], reason: str
) -> bool:
    """Let a host's own advisory ask for what the cases that are *remaining* in it call for.

    False: that was answered before (rejected, say), or costs more than waiting, and is not asked for in another's name:
    they are without one. What is graver by now is asked for again, as `propose` does: until then it asks for what it did.
    """
    cases = [one.case for one in remaining]
    if gravity(gravest_case(cases).action) > gravity(host_advisory.action):
        editor.put(host_advisory, reason, cases=tuple(sorted(one.key for one in cases)))
        return True
    if suppression_reason(editor, host_advisory.subject, gravest_case(cases)):
        for one in remaining:
            one.advisory, editor.is_changed = "", True
        return False
    editor.put(host_advisory, reason, **advisory_fields(cases))
    return True


def _joined_message(joined: Sequence[OpenCase]) -> str:
    hosts = sorted({one.case.host for one in joined})
    if not hosts:
        return "the state of its hosts has changed"
    more = f" and {len(hosts) - NAMES_SHOWN_MAX} more" if len(hosts) > NAMES_SHOWN_MAX else ""
    return f"of the same cause: {', '.join(hosts[:NAMES_SHOWN_MAX])}{more}"


def update_cause(
    editor: StateEditor, cause: Advisory, reason: str, joined: Sequence[str] = ()
) -> None:
    """Tell *cause* again as its cases are by now, with the hosts that *joined*."""
    cases = [one.case for one in editor.state.cases.values() if one.advisory == cause.name]
    hosts = tuple(sorted({*cause.hosts, *joined}))
    since_ns = cause.since_ns or cause.proposed_ns
    editor.put(cause, reason, **_cause_fields(editor, cases, hosts, cause.scope, since_ns))
