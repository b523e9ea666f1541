"""Timers of advisories: proposals and leases expire, deferrals end, holds are renewed or expire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from . import answers, limits
from .advisory import (
    HOUR_NS,
    Action,
    Advisory,
    AdvisoryState,
    Breaker,
    Renew,
    gravity,
    removes_host,
    seconds_ns,
)
from .answers import mute_all, repropose_seconds
from .limits import unavailable_reason
from .proposals import is_verified, verify_ns
from .shared_causes import lower_advisory, update_cause
from .state import (
    CircuitBreaker,
    DeclaredOut,
    Hold,
    HoldBackNotice,
    HostProbation,
    MachineState,
    Mute,
    StateEditor,
)


def expire(editor: StateEditor) -> None:
    """Do what is due by now."""
    for advisory in list(editor.state.advisories.values()):
        if advisory.state is AdvisoryState.ACCEPTED:
            _end_lease(editor, advisory)
        elif reason := _deferral_reason(editor, advisory):
            editor.defer(advisory, reason, editor.after(editor.limits.defer_seconds))
        elif advisory.expires_ns <= editor.now_ns:
            if not editor.state.frozen:  # else anyone who accepted it was refused
                _expire_proposal(editor, advisory)
        elif (
            advisory.state is AdvisoryState.DEFERRED and advisory.deferred_until_ns <= editor.now_ns
        ):
            _repropose(editor, advisory)
    for hold in list(editor.state.holds.values()):
        _renew_or_clear(editor, hold)
    answers.expire_declared_out(editor)
    _half_open_breaker(editor)
    _forget_expired(editor)


def resume(editor: StateEditor) -> None:
    """Continue after a restart: leases, proposals and holds of active faults last for at least a lease's time.

    A fault may have outlasted the outage. Until judging says otherwise, its host stays out of service.
    """
    state, least_ns = editor.state, editor.after(editor.limits.lease_seconds)
    faulty = {one.case.host for one in state.cases.values()}
    for name, advisory in state.advisories.items():
        lease_ns = (
            max(advisory.lease_until_ns, least_ns)
            if advisory.state is AdvisoryState.ACCEPTED
            else 0
        )
        expires_ns = max(advisory.expires_ns, least_ns)
        state.advisories[name] = replace(advisory, expires_ns=expires_ns, lease_until_ns=lease_ns)
        hold = state.holds.get(advisory.host)
        if advisory.state is AdvisoryState.ACCEPTED and hold is not None and hold.name == name:
            hold.until_ns = max(
                hold.until_ns, least_ns
            )  # else its host is counted nowhere, and never returned
    for hold in state.holds.values():
        hold.missed_ns = editor.now_ns if hold.missed_ns else 0
        if hold.host in faulty and not hold.unsure:
            hold.until_ns = max(hold.until_ns, least_ns)
    state.well = dict.fromkeys(state.well, editor.now_ns)


def unfreeze(editor: StateEditor) -> None:
    """The picture is no longer in doubt: what could not be accepted meanwhile may be for a lease's time at least."""
    least_ns = editor.after(editor.limits.lease_seconds)
    for advisory in list(editor.state.advisories.values()):
        if advisory.state is not AdvisoryState.ACCEPTED and advisory.expires_ns < least_ns:
            reason = (
                "the fleet's state was in doubt and is clear again: the time to answer is extended"
            )
            editor.put(advisory, reason, expires_ns=least_ns)


def apply_clock_jump(editor: StateEditor, jump_ns: int) -> None:
    """The aggregator's clock was set forward: shift all times, so that remaining times and ages stay the same.

    A process that was stopped for a while is none of this: its time has passed, for those who wait for it, too.
    """
    state = editor.state
    for name, advisory in state.advisories.items():
        state.advisories[name] = _shifted(advisory, jump_ns)
    for open_case in state.cases.values():
        since_ns = open_case.case.since_ns + jump_ns
        open_case.case, open_case.seen_ns = (
            replace(open_case.case, since_ns=since_ns),
            open_case.seen_ns + jump_ns,
        )
    for timed in _timed_entries(state):
        timed.until_ns += jump_ns
    for hold in state.holds.values():
        hold.missed_ns += jump_ns if hold.missed_ns else 0
    state.absent_due_ns += jump_ns if state.absent_due_ns else 0
    state.well = {host: since_ns + jump_ns for host, since_ns in state.well.items()}
    state.granted_ns = [at_ns + jump_ns for at_ns in state.granted_ns]


def _shifted(advisory: Advisory, jump_ns: int) -> Advisory:
    """Return *advisory* with its ends, and when its cause began, later by so much; 0 is no time."""
    shifted = {
        name: before_ns + jump_ns
        for name in ("expires_ns", "lease_until_ns", "deferred_until_ns", "since_ns")
        if (before_ns := getattr(advisory, name))
    }
    return replace(advisory, **shifted)


def _timed_entries(
    state: MachineState,
) -> Iterator[DeclaredOut | CircuitBreaker | Hold | Mute | HoldBackNotice | HostProbation]:
    """Yield all that lasts until a time."""
    yield from state.holds.values()
    yield from state.probation.values()
    yield from state.held_back.values()
    for by_actor in state.absent.values():
        yield from by_actor.values()
    for mute in state.muted.values():
        yield from (mute, *mute.graver)
    if state.fuse.position == "open" or state.fuse.trial:
        yield state.fuse


def _end_lease(editor: StateEditor, advisory: Advisory) -> None:
    """Lend it to anyone who comes next: its owner was silent for too long."""
    if advisory.lease_until_ns > editor.now_ns:
        return
    reason = f"{advisory.owner} was silent until its lease ended: another executor may take it over"
    hold = editor.state.holds.get(advisory.host)
    if hold is not None and hold.name == advisory.name:
        hold.unsure = not hold.confirmed
    expires = editor.after(editor.limits.proposal_seconds)
    keys = [key for key in advisory.cases if key in editor.state.cases]
    cases = tuple(key for key in keys if editor.state.cases[key].advisory == advisory.name)
    graver = (
        [a for a in editor.open_advisories(advisory.host) if a.name != advisory.name]
        if advisory.host
        else []
    )
    if open_graver := [a.name for a in graver if a.state is not AdvisoryState.ACCEPTED]:
        for key in cases:  # they go into what is asked for
            editor.state.cases[key].advisory = ""
        reason = (
            f"{advisory.owner} was silent until its lease ended, and {open_graver[0]} asks for more"
        )
        editor.put(advisory, reason, state=AdvisoryState.WITHDRAWN, owner="", lease_until_ns=0)
        return
    editor.put(
        advisory,
        reason,
        state=AdvisoryState.PROPOSED,
        owner="",
        lease_until_ns=0,
        expires_ns=expires,
        cases=cases,
    )


def _expire_proposal(editor: StateEditor, advisory: Advisory) -> None:
    editor.put(advisory, "no answer in time", state=AdvisoryState.EXPIRED)
    if advisory.action is not Action.RETURN_TO_SERVICE:
        mute_all(editor, advisory, repropose_seconds(editor, advisory))


def _deferral_reason(editor: StateEditor, advisory: Advisory) -> str:
    """Return who else has the host of *advisory* out, where that puts it off; "" where it was put off for longer anyway."""
    waits = advisory.state is AdvisoryState.DEFERRED and advisory.deferred_until_ns > editor.now_ns
    if waits or advisory.action is Action.RETURN_TO_SERVICE:
        return ""
    return unavailable_reason(editor, advisory.host, advisory.action)


def _repropose(editor: StateEditor, advisory: Advisory) -> None:
    """Propose again what was put off, if there is room for it."""
    if editor.state.frozen:
        return
    if removes_host(advisory.action):
        wanted = (advisory.host, advisory.place, advisory.job)
        grave = gravity(advisory.action)
        if reason := limits.refusal(editor, wanted, advisory.name, granting=False, grave=grave):
            editor.defer(advisory, reason, editor.after(editor.limits.defer_seconds))
            return
    editor.put(advisory, "deferred until now", state=AdvisoryState.PROPOSED, deferred_until_ns=0)


# ---- holds


def _renew_or_clear(editor: StateEditor, hold: Hold) -> None:
    """Renew what we set while its cause lasts; otherwise let it expire and remove it."""
    length = seconds_ns(editor.limits.hold_seconds)
    if hold.missed_ns and hold.host in editor.state.well:
        hold.missed_ns, editor.is_changed = 0, True
    if hold.until_ns <= editor.now_ns:
        editor.clear(hold, "nothing that Gangline sets outlasts its expiry")
    elif hold.until_ns - editor.now_ns <= length // 2 and (reason := _renewal_reason(editor, hold)):
        hold.until_ns = editor.now_ns + length
        editor.is_changed = True
        editor.emit(Renew(hold.name, hold.host, hold.until_ns, reason))
        if hold.earlier:  # what it set is still in force, and is removed with the rest
            editor.emit(Renew(hold.earlier, hold.host, hold.until_ns, reason))


def _renewal_reason(editor: StateEditor, hold: Hold) -> str:
    """Return why *hold* is to last; "" if it is not."""
    if hold.unsure:
        return ""
    if editor.state.frozen:
        return "the fleet's state is in doubt: what is set stays"
    set_by = editor.state.advisories.get(hold.name)
    if not hold.confirmed or (set_by is not None and set_by.state is AdvisoryState.ACCEPTED):
        return "it is being carried out"  # also where something milder is done there already
    if any(one.case.host == hold.host for one in editor.state.cases.values()):
        hold.missed_ns = 0
        return "its cause still holds"
    since = editor.state.well.get(hold.host)
    if since is None:
        return _missing_reason(editor, hold)
    if editor.is_muted(f"return {hold.host}", Action.RETURN_TO_SERVICE):
        return "its return was rejected"
    if _is_return_deferred(editor, hold.host):
        return "its return was deferred"
    waited = since + verify_ns(editor, hold.host) + seconds_ns(editor.limits.hold_seconds)
    return "its return waits to be accepted" if editor.now_ns < waited else ""


def _is_return_deferred(editor: StateEditor, host: str) -> bool:
    """Return whether somebody would have *host* return later."""
    return any(
        advisory.action is Action.RETURN_TO_SERVICE and advisory.state is AdvisoryState.DEFERRED
        for advisory in editor.open_advisories(host)
    )


def _missing_reason(editor: StateEditor, hold: Hold) -> str:
    """Return why *hold*, whose host shows no fault and is not well either, is to last; "" where that was so for too long."""
    hold.missed_ns = hold.missed_ns or editor.now_ns
    if editor.now_ns - hold.missed_ns >= seconds_ns(editor.limits.missed_seconds):
        return ""
    return "nothing shows that it is healthy"


# ---- the breaker, and what is forgotten


def _half_open_breaker(editor: StateEditor) -> None:
    breaker = editor.state.fuse
    if breaker.position == "open" and breaker.until_ns <= editor.now_ns:
        breaker.position, editor.is_changed = "half-open", True
        editor.emit(Breaker("half-open", "one host is tried; if that succeeds, advice resumes"))
    elif breaker.trial and breaker.until_ns <= editor.now_ns:
        # Its owner may renew it for days: an eviction that a disruption budget refuses is repeated. That shows nothing either way.
        reason = f"the trial {breaker.trial} did not end in time: another host may be tried"
        breaker.trial, editor.is_changed = "", True
        editor.emit(Breaker("half-open", reason))


def _forget_expired(editor: StateEditor) -> None:
    state, now_ns = editor.state, editor.now_ns
    for expiring in (state.muted, state.probation):
        for key in [key for key, one in expiring.items() if one.until_ns <= now_ns]:
            del expiring[key]
            editor.is_changed = True
    old = now_ns - seconds_ns(editor.limits.ended_seconds)
    surplus = len(state.ended) - editor.limits.ended_max
    held_names = {name for hold in state.holds.values() for name in (hold.name, hold.earlier)}
    for at, (name, one) in enumerate(list(state.ended.items())):
        if at >= surplus and one.changed_ns > old:
            break  # in the order in which they ended
        if name not in held_names:  # else its owner asks until when it is in force
            del state.ended[name]
            editor.is_changed = True
    while state.granted_ns and state.granted_ns[0] <= now_ns - HOUR_NS:
        state.granted_ns.pop(0)
        editor.is_changed = True


def remove_closed_cases(editor: StateEditor) -> None:
    """Take cases that are gone out of their advisories; of a host's own, the gravest that is left leads."""
    for advisory in list(editor.state.advisories.values()):
        open_cases = [editor.state.cases.get(key) for key in advisory.cases]
        for each in open_cases:
            if each is not None and not each.advisory:  # it was gone for a moment only
                each.advisory, each.changed, editor.is_changed = (
                    advisory.name,
                    bool(advisory.host),
                    True,
                )
        remaining = [
            each for each in open_cases if each is not None and each.advisory == advisory.name
        ]
        if not remaining or len(remaining) == len(advisory.cases):
            continue
        reason = (
            f"{len(advisory.cases) - len(remaining)} of its {len(advisory.cases)} cases are gone"
        )
        if not advisory.host:
            update_cause(editor, advisory, reason)
        elif advisory.state is not AdvisoryState.ACCEPTED:
            lower_advisory(
                editor, advisory, remaining, reason
            )  # else nothing calls for it any more, and it is withdrawn
        else:
            editor.put(advisory, reason, cases=tuple(sorted(each.case.key for each in remaining)))


def withdraw_empty(editor: StateEditor) -> None:
    """Withdraw what nothing calls for any more. What is being carried out continues: its host is verified first."""
    wanted = {one.advisory for one in editor.state.cases.values()}
    for one in list(editor.state.advisories.values()):
        if one.state is AdvisoryState.ACCEPTED or one.name in wanted:
            continue
        if one.action is not Action.RETURN_TO_SERVICE:
            editor.put(one, "its cause is gone", state=AdvisoryState.WITHDRAWN)
            mute_all(editor, one, editor.limits.flap_seconds)
        elif (hold := editor.state.holds.get(one.host)) is None:
            editor.put(one, "the hold expired", state=AdvisoryState.WITHDRAWN)
        elif not is_verified(editor, hold):
            editor.put(one, "it is not healthy again after all", state=AdvisoryState.WITHDRAWN)
