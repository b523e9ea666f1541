"""Shared causes: when hosts of one rack fail within two seconds, the rack is blamed, not the hosts.

Cases that begin together go into one advisory for their cause, and leave it as they end. A cause is
muted as a whole: neither under another domain nor host by host is it proposed again.
"""

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
    """A kind of shared cause: symptom, inspection, and domains, narrowest first."""

    kind: str
    symptom: str
    where_to_check: str
    domains: tuple[Scope, ...]


#: Common domains of a rack, its power and its leaf.
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
#: Name of the domain of hosts without a declared location.
UNPLACED = "(no topology declared)"
#: Two simultaneous faults anywhere in a fleet are often independent: a fleet-wide cause must
#: explain this many times as many hosts.
FLEET_RATIO = 2
_FIELDS = {
    field.name.replace("_", "-"): index for index, field in enumerate(fields(FailureDomains))
}


def cause_kind(reason: str) -> CauseKind:
    """Return the kind of shared cause of hosts with *reason*."""
    kind = reason.lower().replace("_", " ")
    return CAUSE_KINDS.get(reason) or CauseKind(
        kind, f"had the same trouble, {kind}", "what they share", _RACK_DOMAINS
    )


class Domain(NamedTuple):
    """A domain that hosts may share. `subject` is its advisory's subject.

    `width`: rank among the domains of its kind.
    """

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
    """Return the largest cause of *open_cases*, the narrowest if several; None for none.

    *fleet_hosts*: number of hosts in the fleet.
    """
    groups: dict[Domain, list[OpenCase]] = defaultdict(list)
    for open_case in open_cases:
        for domain in domains_of(open_case.case.place, open_case.case.reason):
            groups[domain].append(open_case)
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
            keys = tuple(sorted(open_case.case.key for open_case in together))
            since = min(open_case.case.since_ns for open_case in together)
            best = Cause(domain, since, keys, hosts)
    return best


def _hosts_min(scope: Scope, limits: AdvisoryLimits) -> int:
    return limits.shared_unplaced_hosts_min if scope is Scope.FLEET else limits.shared_hosts_min


def _hosts(open_cases: Iterable[OpenCase]) -> set[str]:
    return {open_case.case.host for open_case in open_cases}


def _common_cause(
    members: list[OpenCase], scope: Scope, limits: AdvisoryLimits, fleet_hosts: int
) -> list[OpenCase]:
    """Return the *members* with one cause: begun together, or most of the domain.

    Cases that began while the aggregator was down have no time of their own: hosts may have failed
    hours apart.
    """
    at_once = _at_once(
        [member for member in members if not member.case.unseen], seconds_ns(limits.shared_seconds)
    )
    unseen = [member for member in members if member.case.unseen]
    hosts, domain_hosts = (
        len(_hosts(unseen)),
        _domain_hosts([member.case for member in unseen], scope, fleet_hosts),
    )
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
    detail = "" if first.reason == SILENCE_REASON else f"; {first.host}: {first.words}"
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


def mute_members(editor: StateEditor, cause: Advisory, seconds: float) -> None:
    """Mute the cases in *cause*; its recovered hosts for at most `flap_seconds`."""
    well = set(cause.hosts)
    for open_case in editor.state.cases.values():
        if open_case.advisory == cause.name:
            well.discard(open_case.case.host)
            editor.mute(f"host {open_case.case.host}", open_case.case.action, seconds)
            editor.mute(
                _member_subject(open_case.case.host, open_case.case.reason),
                open_case.case.action,
                seconds,
            )
    for host in sorted(well):
        moment = min(seconds, editor.limits.flap_seconds)
        editor.mute(_member_subject(host, cause.reason), Action.EVICT_NOW, moment)


def is_muted(editor: StateEditor, subject: str) -> bool:
    """Return whether the cause *subject* is muted now."""
    return editor.is_muted(subject, Action.INSPECT)


def muted_candidates(editor: StateEditor, candidates: Sequence[OpenCase]) -> list[OpenCase]:
    """Return the *candidates* of muted causes, and those that began with them or later."""
    if not editor.state.muted:
        return []
    were_muted = [candidate for candidate in candidates if _was_muted(editor, candidate.case)]
    begin_times = _begin_times(editor, were_muted)
    if not begin_times:
        return were_muted
    known = {candidate.case.key for candidate in were_muted}
    return [
        candidate
        for candidate in candidates
        if candidate.case.key in known or _follows(editor, candidate.case, begin_times)
    ]


def hold_back(editor: StateEditor, muted: Iterable[OpenCase]) -> set[str]:
    """Record for each of *muted* the reason and the end of its mute; return the keys.

    Exclude cases with an advisory, cases more severe than the answered one, and hosts that advice
    has out.
    """
    muted = [open_case for open_case in muted if not open_case.advisory]
    if not muted:
        return set()
    ended = {
        advisory.subject: advisory for advisory in editor.state.ended.values() if not advisory.host
    }
    withheld_keys, reasons = set[str](), dict[tuple[Domain, ...], str]()
    for case in [open_case.case for open_case in muted]:
        is_more_severe = _was_muted(editor, case) and not editor.is_muted(
            _case_subject(case), case.action
        )
        if not is_more_severe and case.host not in editor.state.holds:
            domains = domains_of(case.place, case.reason)
            reasons[domains] = reasons.get(domains) or _mute_reason(editor, case, ended)
            editor.hold_back(case, case.action, reasons[domains])
            withheld_keys.add(case.key)
    return withheld_keys


def _member_subject(host: str, reason: str) -> str:
    """Return the subject under which *host* is muted as a member of a cause with *reason*."""
    return f"{cause_kind(reason).kind} of {host}"


def _case_subject(case: Case) -> str:
    return _member_subject(case.host, case.reason)


def _was_muted(editor: StateEditor, case: Case) -> bool:
    return is_muted(editor, _case_subject(case))


def _begin_times(editor: StateEditor, were_muted: Sequence[OpenCase]) -> dict[str, list[int]]:
    """Return the sorted begins of cases of each muted cause."""
    begin_times: dict[str, set[int]] = defaultdict(set)
    for open_case in [open_case for open_case in were_muted if not open_case.case.unseen]:
        for domain in domains_of(open_case.case.place, open_case.case.reason):
            begin_times[domain.subject].add(open_case.case.since_ns)
    return {
        subject: sorted(times)
        for subject, times in begin_times.items()
        if is_muted(editor, subject)
    }


def _follows(editor: StateEditor, case: Case, begin_times: dict[str, list[int]]) -> bool:
    """Return whether *case* began with *begin_times*, or soon enough to join."""
    earliest_ns = case.since_ns - seconds_ns(editor.limits.shared_join_seconds)
    latest_ns = case.since_ns + seconds_ns(editor.limits.shared_seconds)
    for domain in domains_of(case.place, case.reason):
        times = begin_times.get(domain.subject, ())
        index = bisect_left(times, earliest_ns)
        if index < len(times) and times[index] <= latest_ns:
            return True
    return False


def _mute_reason(editor: StateEditor, case: Case, ended: dict[str, Advisory]) -> str:
    subjects = [domain.subject for domain in domains_of(case.place, case.reason)]
    ends = {subject: editor.muted_until_ns(subject, Action.INSPECT) for subject in subjects}
    subject = max(subjects, key=lambda candidate: ends[candidate])
    until_ns = ends[subject] or editor.muted_until_ns(_case_subject(case), case.action)
    until = f"{datetime.fromtimestamp(until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    before = ended.get(subject)
    outcome = (
        f"{before.name}: {before.state_words}" if before else "rejected, withdrawn, done or expired"
    )
    return f"of the same cause as before, {subject} ({outcome}): not again before {until}"


def shared_causes(state: MachineState) -> dict[SharedCauseKey, SharedCause]:
    """Return the cause of each open case that shares its cause with other hosts.

    An answered or expired advisory names the cause as long as the cases last.
    """
    advisories = [
        advisory
        for advisory in (*state.ended.values(), *state.advisories.values())
        if not advisory.host
    ]
    causes: dict[SharedCauseKey, SharedCause] = {}
    for advisory in sorted(
        advisories, key=lambda advisory: (advisory.is_open, advisory.changed_ns)
    ):
        hosts_count, since_ns = len(advisory.hosts), advisory.since_ns or advisory.proposed_ns
        cause = SharedCause(advisory.subject, advisory.name, hosts_count, since_ns)
        for key in advisory.cases:
            if (open_case := state.cases.get(key)) is not None:
                for device in open_case.case.devices:
                    causes[open_case.case.host, open_case.case.reason, device] = cause
    return causes


def group_shared_causes(editor: StateEditor, waiting: Sequence[OpenCase]) -> set[str]:
    """Put cases of one cause into its advisory. Return the keys of muted cases."""
    _join_causes(editor, waiting)
    candidates = _candidates(editor)
    muted = muted_candidates(editor, candidates)
    candidates = _without(candidates, muted)
    in_hand = _in_hand(editor) if candidates else []
    while cause := largest_cause([*candidates, *in_hand], editor.limits, editor.state.hosts):
        members = _members(editor, cause, candidates)
        candidates = _without(candidates, members)
        if not members:  # all of its hosts are with an executor already
            in_hand = [open_case for open_case in in_hand if open_case.case.key not in cause.keys]
            continue
        if is_muted(editor, cause.domain.subject):
            muted += members
            continue
        host_advisories = {open_case.advisory for open_case in members if open_case.advisory}
        new = _new_advisory(editor, cause, [open_case.case for open_case in members])
        for open_case in members:
            editor.assign(open_case, new.name)
        for name in sorted(host_advisories):
            _leave_host_advisory(editor, editor.state.advisories[name], new)
    return hold_back(editor, muted)


def _join_causes(editor: StateEditor, waiting: Sequence[OpenCase]) -> None:
    """Add joining cases to the advisories of their causes, and publish these."""
    for known in [advisory for advisory in editor.state.advisories.values() if not advisory.host]:
        since_ns = known.since_ns or known.proposed_ns
        joined = [
            open_case
            for open_case in waiting
            if not open_case.advisory
            and belongs_to_cause(open_case, known.subject, since_ns, editor.limits)
        ]
        changed = [
            open_case
            for open_case in waiting
            if open_case.changed and open_case.advisory == known.name
        ]
        for open_case in (*joined, *changed):
            editor.assign(open_case, known.name)
        if joined or changed:
            update_cause(
                editor,
                known,
                _joined_message(joined),
                [open_case.case.host for open_case in joined],
            )


def _members(editor: StateEditor, cause: Cause, candidates: Sequence[OpenCase]) -> list[OpenCase]:
    """Return the cases of *cause*: begun together, or joined while it was muted."""
    together = set(cause.keys)
    subject, since_ns = cause.domain.subject, cause.since_ns
    members = [
        candidate
        for candidate in candidates
        if candidate.case.key in together
        or (
            not candidate.advisory and belongs_to_cause(candidate, subject, since_ns, editor.limits)
        )
    ]
    return sorted(members, key=lambda candidate: candidate.case.key)


def _without(candidates: Sequence[OpenCase], others: Sequence[OpenCase]) -> list[OpenCase]:
    keys = {open_case.case.key for open_case in others}
    return [open_case for open_case in candidates if open_case.case.key not in keys]


def _candidates(editor: StateEditor) -> list[OpenCase]:
    """Return cases without an advisory, or in a host's own that is not accepted."""
    advisories = editor.state.advisories
    return [
        open_case
        for open_case in editor.state.cases.values()
        if not open_case.advisory
        or (
            (advisory := advisories.get(open_case.advisory))
            and advisory.host
            and advisory.state is not AdvisoryState.ACCEPTED
        )
    ]


def _in_hand(editor: StateEditor) -> list[OpenCase]:
    """Return faults of hosts' own devices in an executor's hands, as evidence of a cause."""
    advisories, holds = editor.state.advisories, editor.state.holds
    return [
        open_case
        for open_case in editor.state.cases.values()
        if open_case.advisory
        and is_own_device_fault(open_case.case)
        and (
            (advisory.host and advisory.state is AdvisoryState.ACCEPTED)
            if (advisory := advisories.get(open_case.advisory))
            else open_case.case.host in holds
        )
    ]


def _new_advisory(editor: StateEditor, cause: Cause, cases: Sequence[Case]) -> Advisory:
    scope = cause.domain.scope
    hosts = tuple(sorted({*cause.hosts, *(case.host for case in cases)}))
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
    """Return the fields of an advisory for a cause with *cases*. *hosts*: all that failed."""
    message = cause_message(cases, len(hosts), scope, since_ns, editor.state.hosts, editor.limits)
    return {
        "hosts": hosts, "cases": tuple(sorted(case.key for case in cases)), "words": message,
        "count": sum(case.count for case in cases), "price": policy.combined_price(cases),
    }  # fmt: skip


def _leave_host_advisory(editor: StateEditor, host_advisory: Advisory, cause: Advisory) -> None:
    """Remove the cases of *cause* from a host's own advisory; withdraw it with the last."""
    rest = [
        open_case
        for open_case in editor.state.cases.values()
        if open_case.advisory == host_advisory.name
    ]
    reason = f"not this host's own fault: {cause.name}"
    if not rest or not lower_advisory(editor, host_advisory, rest, reason):
        editor.put(host_advisory, reason, state=AdvisoryState.WITHDRAWN)


def lower_advisory(
    editor: StateEditor, host_advisory: Advisory, remaining: Sequence[OpenCase], reason: str
) -> bool:
    """Lower a host's own advisory to the action of its *remaining* cases.

    Return False if that action is suppressed (it was rejected, or costs more than waiting): the
    cases then have no advisory. A more severe action is left to `propose`; until then the advisory
    keeps its action.
    """
    cases = [open_case.case for open_case in remaining]
    if gravity(gravest_case(cases).action) > gravity(host_advisory.action):
        editor.put(host_advisory, reason, cases=tuple(sorted(open_case.key for open_case in cases)))
        return True
    if suppression_reason(editor, host_advisory.subject, gravest_case(cases)):
        for open_case in remaining:
            open_case.advisory, editor.is_changed = "", True
        return False
    editor.put(host_advisory, reason, **advisory_fields(cases))
    return True


def _joined_message(joined: Sequence[OpenCase]) -> str:
    hosts = sorted({open_case.case.host for open_case in joined})
    if not hosts:
        return "the state of its hosts has changed"
    more = f" and {len(hosts) - NAMES_SHOWN_MAX} more" if len(hosts) > NAMES_SHOWN_MAX else ""
    return f"of the same cause: {', '.join(hosts[:NAMES_SHOWN_MAX])}{more}"


def update_cause(
    editor: StateEditor, cause: Advisory, reason: str, joined: Sequence[str] = ()
) -> None:
    """Publish *cause* with its current cases, and the hosts that *joined*."""
    cases = [
        open_case.case
        for open_case in editor.state.cases.values()
        if open_case.advisory == cause.name
    ]
    hosts = tuple(sorted({*cause.hosts, *joined}))
    since_ns = cause.since_ns or cause.proposed_ns
    editor.put(cause, reason, **_cause_fields(editor, cases, hosts, cause.scope, since_ns))
