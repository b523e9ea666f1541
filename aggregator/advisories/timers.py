"""Timers of advisories: proposals and leases expire, deferrals end, holds are renewed or expire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from . import declared_out, limits
from .advisory import Action, Advisory, AdvisoryState, gravity, removes_host
from .advisory_limits import HOUR_NS, seconds_ns
from .answers import mute_all, repropose_seconds
from .limits import unavailable_reason
from .messages import Breaker, Renew
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
    """Apply everything that is due."""
    for advisory in list(editor.state.advisories.values()):
        if advisory.state is AdvisoryState.ACCEPTED:
            _end_lease(editor, advisory)
        elif reason := _deferral_reason(editor, advisory):
            editor.defer(advisory, reason, editor.after(editor.limits.defer_seconds))
        elif advisory.expires_ns <= editor.now_ns:
            if not editor.state.frozen:  # accepting it was refused while frozen
                _expire_proposal(editor, advisory)
        elif (
            advisory.state is AdvisoryState.DEFERRED and advisory.deferred_until_ns <= editor.now_ns
        ):
            _repropose(editor, advisory)
    for hold in list(editor.state.holds.values()):
        _renew_or_clear(editor, hold)
    declared_out.expire_declared_out(editor)
    _half_open_breaker(editor)
    _forget_expired(editor)


def resume(editor: StateEditor) -> None:
    """Continue after a restart: leases, proposals and active holds last at least a lease's time.

    A fault may have outlasted the outage. Until judging shows otherwise, its host stays out of
    service.
    """
    state, minimum_ns = editor.state, editor.after(editor.limits.lease_seconds)
    faulty = {open_case.case.host for open_case in state.cases.values()}
    for name, advisory in state.advisories.items():
        if advisory.state is AdvisoryState.ACCEPTED:
            lease_ns = max(advisory.lease_until_ns, minimum_ns)
        else:
            lease_ns = 0
        expires_ns = max(advisory.expires_ns, minimum_ns)
        state.advisories[name] = replace(advisory, expires_ns=expires_ns, lease_until_ns=lease_ns)
        hold = state.holds.get(advisory.host)
        if advisory.state is AdvisoryState.ACCEPTED and hold is not None and hold.name == name:
            hold.until_ns = max(
                hold.until_ns, minimum_ns
            )  # without the hold its host would count nowhere, and never return
    for hold in state.holds.values():
        hold.missed_ns = editor.now_ns if hold.missed_ns else 0
        if hold.host in faulty and not hold.unsure:
            hold.until_ns = max(hold.until_ns, minimum_ns)
    state.well = dict.fromkeys(state.well, editor.now_ns)


def unfreeze(editor: StateEditor) -> None:
    """Extend the time to answer to at least a lease's time: nothing was accepted while frozen."""
    minimum_ns = editor.after(editor.limits.lease_seconds)
    for advisory in list(editor.state.advisories.values()):
        if advisory.state is not AdvisoryState.ACCEPTED and advisory.expires_ns < minimum_ns:
            reason = (
                "the fleet's state was in doubt and is clear again: the time to answer is extended"
            )
            editor.put(advisory, reason, expires_ns=minimum_ns)


def apply_clock_jump(editor: StateEditor, jump_ns: int) -> None:
    """Shift all times after our clock was set forward: remaining times and ages stay.

    This is not for a process that was stopped for a while: then time has passed, for its clients
    too.
    """
    state = editor.state
    for name, advisory in state.advisories.items():
        state.advisories[name] = _shifted(advisory, jump_ns)
    for open_case in state.cases.values():
        since_ns = open_case.case.since_ns + jump_ns
        open_case.case = replace(open_case.case, since_ns=since_ns)
        open_case.seen_ns = open_case.seen_ns + jump_ns
    for timed in _timed_entries(state):
        timed.until_ns += jump_ns
    for hold in state.holds.values():
        hold.missed_ns += jump_ns if hold.missed_ns else 0
    state.absent_due_ns += jump_ns if state.absent_due_ns else 0
    state.well = {host: since_ns + jump_ns for host, since_ns in state.well.items()}
    state.granted_ns = [at_ns + jump_ns for at_ns in state.granted_ns]


def _shifted(advisory: Advisory, jump_ns: int) -> Advisory:
    """Return *advisory* with its ends and its cause's begin shifted by *jump_ns*; 0 stays."""
    shifted = {
        name: before_ns + jump_ns
        for name in ("expires_ns", "lease_until_ns", "deferred_until_ns", "since_ns")
        if (before_ns := getattr(advisory, name))
    }
    return replace(advisory, **shifted)


def _timed_entries(
    state: MachineState,
) -> Iterator[DeclaredOut | CircuitBreaker | Hold | Mute | HoldBackNotice | HostProbation]:
    """Yield all entries with an `until_ns`."""
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
    """End the lease of a silent owner: propose the advisory again."""
    if advisory.lease_until_ns > editor.now_ns:
        return
    reason = f"{advisory.owner} was silent until its lease ended: another executor may take it over"
    hold = editor.state.holds.get(advisory.host)
    if hold is not None and hold.name == advisory.name:
        hold.unsure = not hold.confirmed
    expires = editor.after(editor.limits.proposal_seconds)
    keys = [key for key in advisory.cases if key in editor.state.cases]
    cases = tuple(key for key in keys if editor.state.cases[key].advisory == advisory.name)
    others = editor.open_advisories(advisory.host) if advisory.host else []
    others = [other for other in others if other.name != advisory.name]
    if open_others := [other.name for other in others if other.state is not AdvisoryState.ACCEPTED]:
        for key in cases:  # the open advisory takes them over
            editor.state.cases[key].advisory = ""
        reason = f"{advisory.owner} was silent until its lease ended, and {open_others[0]} takes its place"
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
    """Return why another actor's report defers *advisory*; "" if it is deferred longer."""
    waits = advisory.state is AdvisoryState.DEFERRED and advisory.deferred_until_ns > editor.now_ns
    if waits or advisory.action is Action.RETURN_TO_SERVICE:
        return ""
    return unavailable_reason(editor, advisory.host, advisory.action)


def _repropose(editor: StateEditor, advisory: Advisory) -> None:
    """Propose a deferred advisory again, unless a limit refuses it."""
    if editor.state.frozen:
        return
    if removes_host(advisory.action):
        wanted = (advisory.host, advisory.place, advisory.job)
        grave = gravity(advisory.action)
        if reason := limits.refusal(editor, wanted, advisory.name, granting=False, grave=grave):
            editor.defer(advisory, reason, editor.after(editor.limits.defer_seconds))
            return
    editor.put(advisory, "deferred until now", state=AdvisoryState.PROPOSED, deferred_until_ns=0)


def _renew_or_clear(editor: StateEditor, hold: Hold) -> None:
    """Renew an effect while its cause lasts; otherwise let it expire and remove it."""
    length = seconds_ns(editor.limits.hold_seconds)
    if hold.missed_ns and hold.host in editor.state.well:
        hold.missed_ns, editor.is_changed = 0, True
    if hold.until_ns <= editor.now_ns:
        editor.clear(hold, "nothing that Gangline sets outlasts its expiry")
    elif hold.until_ns - editor.now_ns <= length // 2 and (reason := _renewal_reason(editor, hold)):
        hold.until_ns = editor.now_ns + length
        editor.is_changed = True
        editor.emit(Renew(hold.name, hold.host, hold.until_ns, reason))
        if hold.earlier:  # its effect is still in force, and is removed with the rest
            editor.emit(Renew(hold.earlier, hold.host, hold.until_ns, reason))


def _renewal_reason(editor: StateEditor, hold: Hold) -> str:
    """Return why *hold* must be renewed; "" if it must not."""
    if hold.unsure:
        return ""
    if editor.state.frozen:
        return "the fleet's state is in doubt: what is set stays"
    set_by = editor.state.advisories.get(hold.name)
    if not hold.confirmed or (set_by is not None and set_by.state is AdvisoryState.ACCEPTED):
        return "it is being carried out"  # also if a less severe action is in force there
    if any(open_case.case.host == hold.host for open_case in editor.state.cases.values()):
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
    return any(
        advisory.action is Action.RETURN_TO_SERVICE and advisory.state is AdvisoryState.DEFERRED
        for advisory in editor.open_advisories(host)
    )


def _missing_reason(editor: StateEditor, hold: Hold) -> str:
    """Return why *hold* is renewed for a host without a fault that is not known to be healthy.

    "" after `missed_seconds` in this state.
    """
    hold.missed_ns = hold.missed_ns or editor.now_ns
    if editor.now_ns - hold.missed_ns >= seconds_ns(editor.limits.missed_seconds):
        return ""
    return "nothing shows that it is healthy"


def _half_open_breaker(editor: StateEditor) -> None:
    breaker = editor.state.fuse
    if breaker.position == "open" and breaker.until_ns <= editor.now_ns:
        breaker.position, editor.is_changed = "half-open", True
        editor.emit(Breaker("half-open", "one host is tried; if that succeeds, advice resumes"))
    elif breaker.trial and breaker.until_ns <= editor.now_ns:
        # The owner may renew its lease for days: an eviction that a disruption budget refuses is
        # repeated. Such a trial shows nothing either way.
        reason = f"the trial {breaker.trial} did not end in time: another host may be tried"
        breaker.trial, editor.is_changed = "", True
        editor.emit(Breaker("half-open", reason))


def _forget_expired(editor: StateEditor) -> None:
    state, now_ns = editor.state, editor.now_ns
    for expiring in (state.muted, state.probation):
        for key in [key for key, entry in expiring.items() if entry.until_ns <= now_ns]:
            del expiring[key]
            editor.is_changed = True
    old = now_ns - seconds_ns(editor.limits.ended_seconds)
    surplus = len(state.ended) - editor.limits.ended_max
    held_names = {name for hold in state.holds.values() for name in (hold.name, hold.earlier)}
    for index, (name, advisory) in enumerate(list(state.ended.items())):
        if index >= surplus and advisory.changed_ns > old:
            break  # they are in the order of their ends
        if name not in held_names:  # the owner of a hold still asks for the end of its effect
            del state.ended[name]
            editor.is_changed = True
    while state.granted_ns and state.granted_ns[0] <= now_ns - HOUR_NS:
        state.granted_ns.pop(0)
        editor.is_changed = True


def remove_closed_cases(editor: StateEditor) -> None:
    """Remove closed cases from their advisories; the most severe remaining case leads."""
    for advisory in list(editor.state.advisories.values()):
        open_cases = [editor.state.cases.get(key) for key in advisory.cases]
        for open_case in open_cases:
            if open_case is not None and not open_case.advisory:  # it was closed for a moment only
                open_case.advisory, open_case.changed = advisory.name, bool(advisory.host)
                editor.is_changed = True
        remaining = [o for o in open_cases if o is not None and o.advisory == advisory.name]
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
            )  # otherwise no case requests it any more, and it is withdrawn
        else:
            editor.put(advisory, reason, cases=tuple(sorted(o.case.key for o in remaining)))


def withdraw_empty(editor: StateEditor) -> None:
    """Withdraw advisories without cases, except accepted ones: their hosts are verified first."""
    wanted = {open_case.advisory for open_case in editor.state.cases.values()}
    for advisory in list(editor.state.advisories.values()):
        if advisory.state is AdvisoryState.ACCEPTED or advisory.name in wanted:
            continue
        if advisory.action is not Action.RETURN_TO_SERVICE:
            editor.put(advisory, "its cause is gone", state=AdvisoryState.WITHDRAWN)
            mute_all(editor, advisory, editor.limits.flap_seconds)
        elif (hold := editor.state.holds.get(advisory.host)) is None:
            editor.put(advisory, "the hold expired", state=AdvisoryState.WITHDRAWN)
        elif not is_verified(editor, hold):
            editor.put(advisory, "it is not healthy again after all", state=AdvisoryState.WITHDRAWN)
