"""Proposes advisories for hosts, and their return to service (causes: `shared_causes.py`)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Sequence

from . import limits
from .advisory import (
    SILENCE_REASON,
    Action,
    Advisory,
    AdvisoryState,
    Basis,
    Case,
    Scope,
    gravity,
    is_own_device_fault,
    removes_host,
)
from .advisory_limits import seconds_ns
from .common_cause import domains_of
from .limits import (
    advisory_fields,
    change_reason,
    gravest_case,
    suppression_reason,
    unavailable_reason,
)
from .shared_causes import group_shared_causes, lower_advisory
from .state import Hold, OpenCase, StateEditor

#: Subject of a possible shared cause -> begin and host of its cases, sorted.
BeginTimes = dict[str, list[tuple[int, str]]]

RELAPSES_COUNTED_MAX = 4


def gathering_keys(editor: StateEditor, waiting: Sequence[OpenCase]) -> set[str]:
    """Return the keys of cases that wait for others of their cause; silence waits longer.

    A certain fault of a host's own device is proposed at once, unless another host of one of its
    domains failed with it: three such hosts are one cause. A cause that is found later includes the
    first case (`shared_causes.py`).
    """
    earliest_ns = editor.after(-editor.limits.gather_seconds)
    recent = [open_case.case for open_case in waiting if open_case.seen_ns > earliest_ns]
    recent = [case for case in recent if case.reason != SILENCE_REASON]
    own = [case for case in recent if is_own_device_fault(case)]
    begin_times = _begin_times(editor, own) if own else {}
    span_ns = seconds_ns(editor.limits.shared_seconds)
    return {
        case.key
        for case in recent
        if not is_own_device_fault(case) or _has_company(case, begin_times, span_ns)
    }


def _begin_times(editor: StateEditor, own: Sequence[Case]) -> BeginTimes:
    """Return the times of cases that may have begun together with *own*."""
    span_ns = seconds_ns(editor.limits.shared_seconds)
    earliest_ns = min(case.since_ns for case in own) - span_ns
    latest_ns = max(case.since_ns for case in own) + span_ns
    begin_times: BeginTimes = defaultdict(list)
    for case in [open_case.case for open_case in editor.state.cases.values()]:
        if earliest_ns <= case.since_ns <= latest_ns:
            for domain in domains_of(case.place, case.reason):
                begin_times[domain.subject].append((case.since_ns, case.host))
    for times in begin_times.values():
        times.sort()
    return begin_times


def _has_company(case: Case, begin_times: BeginTimes, span_ns: int) -> bool:
    """Return whether another host, in a domain of *case*, failed within *span_ns* of it."""
    for domain in domains_of(case.place, case.reason):
        times = begin_times[domain.subject]
        for index in range(bisect_left(times, (case.since_ns - span_ns, "")), len(times)):
            since_ns, host = times[index]
            if since_ns > case.since_ns + span_ns:
                break
            if host != case.host:
                return True
    return False


def propose(editor: StateEditor) -> None:
    """Propose due advisories: causes first, then hosts, the most severe first, then returns."""
    waiting = _unassigned_cases(editor)
    if waiting:
        withheld_keys = group_shared_causes(editor, waiting)
        remaining = [open_case for open_case in waiting if open_case.case.key not in withheld_keys]
        new = [o for o in remaining if not o.advisory or o.changed]
        _propose_for_hosts(editor, new, withheld_keys)
    for hold in list(editor.state.holds.values()):
        _propose_return(editor, hold)


def _unassigned_cases(editor: StateEditor) -> list[OpenCase]:
    """Return the cases without an open advisory, or changed since."""
    result: list[OpenCase] = []
    for open_case in editor.state.cases.values():
        if open_case.advisory and open_case.advisory not in editor.state.advisories:
            hold = editor.state.holds.get(open_case.case.host)
            if hold is None or gravity(open_case.case.action) > gravity(hold.action):
                open_case.advisory, editor.is_changed = "", True
        if not open_case.advisory or open_case.changed:
            result.append(open_case)
    return result


def _propose_for_hosts(
    editor: StateEditor, waiting: Sequence[OpenCase], withheld_keys: Container[str]
) -> None:
    """Propose for hosts whose cases need not wait for others of their cause, the most severe first.

    *withheld_keys*: cases of a muted cause, which are not proposed for their hosts either.
    """
    due: dict[str, list[OpenCase]] = defaultdict(list)
    gathering = gathering_keys(editor, waiting)
    for open_case in waiting:
        if _is_due(editor, open_case, gathering):
            due[open_case.case.host].append(open_case)
    if not due:
        return
    cases_by_host: dict[str, list[OpenCase]] = defaultdict(list)
    for open_case in editor.state.cases.values():
        waits = not open_case.advisory and open_case.case.key in gathering
        if not waits and open_case.case.key not in withheld_keys:
            cases_by_host[open_case.case.host].append(open_case)
    order = sorted((-gravity(gravest_case(_cases(new)).action), host) for host, new in due.items())
    full, busy = "", {advisory.host for advisory in editor.state.advisories.values()}
    for grave, host in order:
        new, counts = due[host], removes_host(gravest_case(_cases(due[host])).action)
        if full and counts and host not in busy and host not in editor.state.holds:
            # if the whole fleet fails at once, hosts are not proposed one by one
            _hold_back(editor, new, full)
            continue
        _propose_for_host(editor, host, new, cases_by_host[host])
        if counts:
            full = full or limits.proposal_refusal(editor, -grave)  # the rest is no more severe


def _is_due(editor: StateEditor, one: OpenCase, gathering: Container[str]) -> bool:
    """Return whether a case need not wait any more for its cause, or a silent host for its boot."""
    if one.case.reason == SILENCE_REASON:
        return one.case.since_ns <= editor.after(-editor.limits.silent_seconds)
    return one.case.key not in gathering


def _cases(open_cases: Sequence[OpenCase]) -> list[Case]:
    return [open_case.case for open_case in open_cases]


def _hold_back(editor: StateEditor, new: Sequence[OpenCase], reason: str) -> None:
    for open_case in new:
        editor.hold_back(open_case.case, open_case.case.action, reason)


def _propose_for_host(
    editor: StateEditor, host: str, new: list[OpenCase], open_cases: list[OpenCase]
) -> None:
    """Propose an advisory for *host*, raise the open one, or record the reason against it."""
    before = editor.open_advisories(host)
    for back in [a for a in before if a.action is Action.RETURN_TO_SERVICE]:
        if back.state is not AdvisoryState.ACCEPTED:
            editor.put(back, "it is not healthy again after all", state=AdvisoryState.WITHDRAWN)
    requested = [a for a in before if a.action is not Action.RETURN_TO_SERVICE]
    now = next((a for a in requested if a.state is not AdvisoryState.ACCEPTED), None)
    first = gravest_case(_cases(new))
    covering = _covering(editor, host, requested)
    if covering is not None and gravity(first.action) <= gravity(covering[1]):
        for open_case in new:
            editor.assign(open_case, covering[0])
        return
    if reason := _blocking_reason(editor, host, first, now):
        if now is not None:
            _lower_or_withdraw(editor, now, open_cases)
        _hold_back(editor, [o for o in new if o.changed or not o.advisory], reason)
        return
    its_cases = [
        open_case
        for open_case in open_cases
        if not open_case.advisory or open_case.changed or (now and open_case.advisory == now.name)
    ]
    advisory = (
        _raise_advisory(editor, now, its_cases) if now else _new_advisory(editor, host, its_cases)
    )
    for open_case in its_cases:
        editor.assign(open_case, advisory.name)


def _covering(
    editor: StateEditor, host: str, before: Sequence[Advisory]
) -> tuple[str, Action] | None:
    """Return the advisory and action on *host* that cover its less severe cases."""
    hold = editor.state.holds.get(host)
    if hold is not None:
        return hold.name, hold.action
    accepted = [a for a in before if a.state is AdvisoryState.ACCEPTED]
    return (accepted[-1].name, accepted[-1].action) if accepted else None


def _blocking_reason(editor: StateEditor, host: str, first: Case, now: Advisory | None) -> str:
    """Return why *first* is not proposed; "" if it may be."""
    if reason := suppression_reason(editor, f"host {host}", first) or unavailable_reason(
        editor, host, first.action
    ):
        return reason
    if now is None and len(editor.state.advisories) >= editor.limits.open_max:
        return f"{editor.limits.open_max} advisories are open, which is the maximum"
    if not removes_host(first.action):
        return ""
    name, grave = now.name if now else "", gravity(first.action)
    wanted = host, first.place, first.job
    return limits.refusal(editor, wanted, name, granting=False, grave=grave)


def _new_advisory(editor: StateEditor, host: str, open_cases: Sequence[OpenCase]) -> Advisory:
    fields = advisory_fields(_cases(open_cases))
    return editor.put(
        Advisory(
            name=editor.next_name(), subject=f"host {host}", hosts=(host,), state=AdvisoryState.PROPOSED,
            state_message="", proposed_ns=editor.now_ns, changed_ns=editor.now_ns,
            expires_ns=editor.after(editor.limits.proposal_seconds), **fields,
        ),
        fields["message"],
    )  # fmt: skip


def _raise_advisory(editor: StateEditor, now: Advisory, open_cases: Sequence[OpenCase]) -> Advisory:
    """Update *now* to its cases; a more severe action is proposed again at once."""
    fields = advisory_fields(_cases(open_cases))
    if gravity(fields["action"]) > gravity(now.action):
        expires_ns = editor.after(editor.limits.proposal_seconds)
        fields |= {
            "state": AdvisoryState.PROPOSED,
            "deferred_until_ns": 0,
            "expires_ns": expires_ns,
        }
    return editor.put(now, change_reason(now.action, fields["action"], fields["message"]), **fields)


def _lower_or_withdraw(editor: StateEditor, now: Advisory, open_cases: Sequence[OpenCase]) -> None:
    """Lower *now* to its cases, or withdraw it; a more severe action waits."""
    its_cases = [open_case for open_case in open_cases if open_case.advisory == now.name]
    if not any(open_case.changed for open_case in its_cases):
        return
    first = gravest_case(_cases(its_cases))
    if gravity(first.action) > gravity(now.action):
        return
    reason = suppression_reason(editor, now.subject, first)
    if lower_advisory(
        editor, now, its_cases, change_reason(now.action, first.action, first.message)
    ):
        for open_case in its_cases:
            editor.assign(open_case, now.name)
        return
    editor.put(now, f"it is no longer needed: {reason}", state=AdvisoryState.WITHDRAWN)
    editor.mute(now.subject, now.action, editor.limits.flap_seconds)


def is_verified(editor: StateEditor, hold: Hold) -> bool:
    """Return whether the host of *hold* was well for long enough; longer after each relapse."""
    since = editor.state.well.get(hold.host)
    has_open_case = any(o.case.host == hold.host for o in editor.state.cases.values())
    if since is None or has_open_case:
        return False
    return editor.now_ns - since >= verify_ns(editor, hold.host)


def verify_ns(editor: StateEditor, host: str) -> int:
    """Return the time (ns) for which *host* must be well before it returns."""
    before = editor.state.probation.get(host)
    doublings = min(before.relapses, RELAPSES_COUNTED_MAX) if before else 0
    return seconds_ns(editor.limits.verify_seconds * 2**doublings)


def _is_unfinished(editor: StateEditor, hold: Hold) -> bool:
    """Return whether the advisory of *hold* is carried out by the owner of all effects on its host.

    An executor that returned its own earlier effect would end the work of a person on that host.
    """
    own, earlier = editor.state.advisories.get(hold.name), editor.find(hold.earlier)
    if own is None or own.state is not AdvisoryState.ACCEPTED:
        return False
    return not hold.earlier or (earlier is not None and earlier.owner == own.owner)


def _propose_return(editor: StateEditor, hold: Hold) -> None:
    """Propose the return of a healthy host, also if its owner still works on the advisory of *hold*.

    An eviction that a disruption budget refuses is repeated: without the return, on a healthy host.
    """
    host, is_unfinished = hold.host, _is_unfinished(editor, hold)
    has_other = len(editor.open_advisories(host)) > is_unfinished
    if has_other or not (hold.confirmed or is_unfinished) or not is_verified(editor, hold):
        return
    if editor.is_muted(f"return {host}", Action.RETURN_TO_SERVICE):
        return
    minutes = verify_ns(editor, host) / 60e9
    reason = f"it has been healthy for {minutes:.0f} min: what {hold.name} set can be removed"
    editor.put(
        Advisory(
            name=editor.next_name(), subject=f"host {host}", hosts=(host,),
            action=Action.RETURN_TO_SERVICE, scope=Scope.HOST, basis=Basis.VERIFIED, reason="NONE",
            message=reason, state=AdvisoryState.PROPOSED, state_message="", proposed_ns=editor.now_ns,
            expires_ns=editor.after(editor.limits.proposal_seconds), changed_ns=editor.now_ns,
            place=hold.place,
        ),
        reason,
    )  # fmt: skip
