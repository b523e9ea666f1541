"""Proposes advisories: one per host for its cases, and returns to service once verified. Shared causes: `shared_causes.py`."""

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
    seconds_ns,
)
from .limits import (
    advisory_fields,
    change_reason,
    gravest_case,
    suppression_reason,
    unavailable_reason,
)
from .shared_causes import domains_of, group_shared_causes, lower_advisory
from .state import Hold, OpenCase, StateEditor

# ----------------------------------------------------------------------
# Which new cases wait for others of the same cause: what hosts can share, and who is not alone.
#
# A certain fault of a host's own device is proposed at once. If another host of one of its domains fell with it, it
# waits like the rest: three such hosts are one cause. A cause that is found later takes the first one in
# (`shared_causes.py`).

#: When cases began and of which host, in order, by the subject of what they may share.
BeginTimes = dict[str, list[tuple[int, str]]]


def gathering_keys(editor: StateEditor, waiting: Sequence[OpenCase]) -> set[str]:
    """Return the keys of those of *waiting* that wait for others of their cause. Silence has a longer wait of its own."""
    earliest_ns = editor.after(-editor.limits.gather_seconds)
    recent = [one.case for one in waiting if one.seen_ns > earliest_ns]
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
    """Return when the cases began that may have begun with one of *own*."""
    span_ns = seconds_ns(editor.limits.shared_seconds)
    earliest_ns = min(case.since_ns for case in own) - span_ns
    latest_ns = max(case.since_ns for case in own) + span_ns
    begin_times: BeginTimes = defaultdict(list)
    for case in [one.case for one in editor.state.cases.values()]:
        if earliest_ns <= case.since_ns <= latest_ns:
            for domain in domains_of(case.place, case.reason):
                begin_times[domain.subject].append((case.since_ns, case.host))
    for times in begin_times.values():
        times.sort()
    return begin_times


def _has_company(case: Case, begin_times: BeginTimes, span_ns: int) -> bool:
    """Say whether another host, of one of the domains of *case*, fell within *span_ns* of it."""
    for domain in domains_of(case.place, case.reason):
        times = begin_times[domain.subject]
        for at in range(bisect_left(times, (case.since_ns - span_ns, "")), len(times)):
            since_ns, host = times[at]
            if since_ns > case.since_ns + span_ns:
                break
            if host != case.host:
                return True
    return False


RELAPSES_COUNTED_MAX = 4


def propose(editor: StateEditor) -> None:
    """Propose what is due: causes first, then hosts, the gravest first, then returns."""
    waiting = _unassigned_cases(editor)
    if waiting:
        withheld_keys = group_shared_causes(editor, waiting)
        remaining = [one for one in waiting if one.case.key not in withheld_keys]
        _propose_for_hosts(
            editor, [one for one in remaining if not one.advisory or one.changed], withheld_keys
        )
    for hold in list(editor.state.holds.values()):
        _propose_return(editor, hold)


def _unassigned_cases(editor: StateEditor) -> list[OpenCase]:
    """Return the cases without an advisory; what an ended one left is without one again."""
    found: list[OpenCase] = []
    for one in editor.state.cases.values():
        if one.advisory and one.advisory not in editor.state.advisories:
            hold = editor.state.holds.get(one.case.host)
            if hold is None or gravity(one.case.action) > gravity(hold.action):
                one.advisory, editor.is_changed = "", True
        if not one.advisory or one.changed:
            found.append(one)
    return found


# ---- hosts


def _propose_for_hosts(
    editor: StateEditor, waiting: Sequence[OpenCase], withheld_keys: Container[str]
) -> None:
    """Propose for hosts that wait no longer for others of their cause, the gravest first.

    *withheld_keys*: cases of a cause that is muted now; they are not reported here either.
    """
    due: dict[str, list[OpenCase]] = defaultdict(list)
    gathering = gathering_keys(editor, waiting)
    for one in waiting:
        if _is_due(editor, one, gathering):
            due[one.case.host].append(one)
    if not due:
        return
    cases_by_host: dict[str, list[OpenCase]] = defaultdict(list)
    for one in editor.state.cases.values():
        waits = not one.advisory and one.case.key in gathering
        if not waits and one.case.key not in withheld_keys:
            cases_by_host[one.case.host].append(one)
    order = sorted((-gravity(gravest_case(_cases(new)).action), host) for host, new in due.items())
    full, busy = "", {one.host for one in editor.state.advisories.values()}
    for grave, host in order:
        new, counts = due[host], removes_host(gravest_case(_cases(due[host])).action)
        if full and counts and host not in busy and host not in editor.state.holds:
            _hold_back(editor, new, full)  # a fleet that fails at once is not asked host by host
            continue
        _propose_for_host(editor, host, new, cases_by_host[host])
        if counts:
            full = full or limits.proposal_refusal(editor, -grave)  # what comes is no graver


def _is_due(editor: StateEditor, one: OpenCase, gathering: Container[str]) -> bool:
    """Return whether *one* waits no longer for others of its cause; a silent host, for its own boot."""
    if one.case.reason == SILENCE_REASON:
        return one.case.since_ns <= editor.after(-editor.limits.silent_seconds)
    return one.case.key not in gathering


def _cases(open_cases: Sequence[OpenCase]) -> list[Case]:
    return [one.case for one in open_cases]


def _hold_back(editor: StateEditor, new: Sequence[OpenCase], reason: str) -> None:
    for one in new:
        editor.hold_back(one.case, one.case.action, reason)


def _propose_for_host(
    editor: StateEditor, host: str, new: list[OpenCase], open_cases: list[OpenCase]
) -> None:
    """Propose for *host*, raise what is proposed, or say why not."""
    before = editor.open_advisories(host)
    for back in [a for a in before if a.action is Action.RETURN_TO_SERVICE]:
        if back.state is not AdvisoryState.ACCEPTED:
            editor.put(back, "it is not healthy again after all", state=AdvisoryState.WITHDRAWN)
    requested = [a for a in before if a.action is not Action.RETURN_TO_SERVICE]
    now = next((a for a in requested if a.state is not AdvisoryState.ACCEPTED), None)
    first = gravest_case(_cases(new))
    covering = _covering(editor, host, requested)
    if covering is not None and gravity(first.action) <= gravity(covering[1]):
        for one in new:
            editor.assign(one, covering[0])
        return
    if reason := _blocking_reason(editor, host, first, now):
        if now is not None:
            _lower_or_withdraw(editor, now, open_cases)
        _hold_back(editor, [one for one in new if one.changed or not one.advisory], reason)
        return
    its_cases = [
        one
        for one in open_cases
        if not one.advisory or one.changed or (now and one.advisory == now.name)
    ]
    advisory = (
        _raise_advisory(editor, now, its_cases) if now else _new_advisory(editor, host, its_cases)
    )
    for one in its_cases:
        editor.assign(one, advisory.name)


def _covering(
    editor: StateEditor, host: str, before: Sequence[Advisory]
) -> tuple[str, Action] | None:
    """Return what is being done, or is done, about *host*, that its milder cases go under."""
    hold = editor.state.holds.get(host)
    if hold is not None:
        return hold.name, hold.action
    accepted = [a for a in before if a.state is AdvisoryState.ACCEPTED]
    return (accepted[-1].name, accepted[-1].action) if accepted else None


def _blocking_reason(editor: StateEditor, host: str, first: Case, now: Advisory | None) -> str:
    """Return why *first* is not proposed; "" if it must be."""
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
            state_words="", proposed_ns=editor.now_ns, changed_ns=editor.now_ns,
            expires_ns=editor.after(editor.limits.proposal_seconds), **fields,
        ),
        fields["words"],
    )  # fmt: skip


def _raise_advisory(editor: StateEditor, now: Advisory, open_cases: Sequence[OpenCase]) -> Advisory:
    """Tell *now* as its cases are by now. What is graver is asked for again: nobody has put it off, or let it wait."""
    fields = advisory_fields(_cases(open_cases))
    if gravity(fields["action"]) > gravity(now.action):
        expires_ns = editor.after(editor.limits.proposal_seconds)
        fields |= {
            "state": AdvisoryState.PROPOSED,
            "deferred_until_ns": 0,
            "expires_ns": expires_ns,
        }
    return editor.put(now, change_reason(now.action, fields["action"], fields["words"]), **fields)


def _lower_or_withdraw(editor: StateEditor, now: Advisory, open_cases: Sequence[OpenCase]) -> None:
    """Let *now* ask for no more than its cases do by now; withdraw it where that is not asked for. What is graver waits."""
    its_cases = [one for one in open_cases if one.advisory == now.name]
    if not any(one.changed for one in its_cases):
        return
    first = gravest_case(_cases(its_cases))
    if gravity(first.action) > gravity(now.action):
        return
    reason = suppression_reason(editor, now.subject, first)
    if lower_advisory(editor, now, its_cases, change_reason(now.action, first.action, first.words)):
        for one in its_cases:
            editor.assign(one, now.name)
        return
    editor.put(now, f"it is no longer needed: {reason}", state=AdvisoryState.WITHDRAWN)
    editor.mute(now.subject, now.action, editor.limits.flap_seconds)


# ---- returns


def is_verified(editor: StateEditor, hold: Hold) -> bool:
    """Return whether the host of *hold* was well for long enough; longer after each relapse."""
    since = editor.state.well.get(hold.host)
    has_open_case = any(one.case.host == hold.host for one in editor.state.cases.values())
    return (
        since is not None
        and not has_open_case
        and editor.now_ns - since >= verify_ns(editor, hold.host)
    )


def verify_ns(editor: StateEditor, host: str) -> int:
    """Return for how long *host* has to be well before it returns."""
    before = editor.state.probation.get(host)
    doublings = min(before.relapses, RELAPSES_COUNTED_MAX) if before else 0
    return seconds_ns(editor.limits.verify_seconds * 2**doublings)


def _propose_return(editor: StateEditor, hold: Hold) -> None:
    host = hold.host
    if not hold.confirmed or not is_verified(editor, hold) or editor.open_advisories(host):
        return
    if editor.is_muted(f"return {host}", Action.RETURN_TO_SERVICE):
        return
    minutes = verify_ns(editor, host) / 60e9
    reason = f"it has been healthy for {minutes:.0f} min: what {hold.name} set can be removed"
    editor.put(
        Advisory(
            name=editor.next_name(), subject=f"host {host}", hosts=(host,),
            action=Action.RETURN_TO_SERVICE, scope=Scope.HOST, basis=Basis.VERIFIED, reason="NONE",
            words=reason, state=AdvisoryState.PROPOSED, state_words="", proposed_ns=editor.now_ns,
            expires_ns=editor.after(editor.limits.proposal_seconds), changed_ns=editor.now_ns,
            place=hold.place,
        ),
        reason,
    )  # fmt: skip
