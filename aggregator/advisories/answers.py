"""Answers of executors and people to an advisory: accept, done, failed, reject, defer.

Each answer is applied or refused with an error.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import (
    AdviceFrozen,
    EtagMismatch,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServiceError,
)
from . import limits
from .advisory import (
    SILENCE_REASON,
    TERMINAL_STATES,
    TRANSITIONS,
    Action,
    Advisory,
    AdvisoryState,
    removes_host,
)
from .advisory_limits import seconds_ns
from .limits import unavailable_reason
from .messages import Acked, Act, Clear, Refused, Renew
from .muted_causes import mute_members
from .proposals import is_verified
from .state import Hold, StateEditor

#: States that an answer may set.
ANSWERABLE_STATES = (
    AdvisoryState.ACCEPTED,
    AdvisoryState.REJECTED,
    AdvisoryState.DEFERRED,
    AdvisoryState.DONE,
    AdvisoryState.FAILED,
)
ACTOR_CHARACTERS_MAX = 128
NOTE_CHARACTERS_MAX = 500
#: Range of a lease that an acceptance names.
LEASE_SECONDS_MIN, LEASE_SECONDS_MAX = 10.0, 7 * 86_400.0
#: Tolerance for an actor's clock ahead of the aggregator's, in the end of a deferral.
CLOCK_AHEAD_SECONDS_MAX = 600.0


def apply_answer(editor: StateEditor, event: Acked) -> None:
    """Apply *event*, or emit Refused with the error."""
    try:
        advisory = _answered_advisory(editor, event)
    except ServiceError as error:
        editor.emit(Refused(event.name, error))
        return
    match event.to:
        case AdvisoryState.ACCEPTED:
            _accept(editor, advisory, event)
        case AdvisoryState.DONE:
            _done(editor, advisory, event)
        case AdvisoryState.FAILED:
            _failed(editor, advisory, event)
        case AdvisoryState.REJECTED:
            _reject(editor, advisory, event)
        case _:
            _defer(editor, advisory, event)


def preview(editor: StateEditor, event: Acked) -> Advisory:
    """Return the advisory as *event* would change it. Changes nothing. Raises ServiceError."""
    advisory = _answered_advisory(editor, event)
    reason = f"{event.actor} would do this: nothing was changed"
    if event.to is AdvisoryState.DEFERRED:
        return replace(
            advisory, state_message=reason, **editor.deferral(_deferred_until_ns(editor, event))
        )
    if event.to is AdvisoryState.ACCEPTED:
        return _preview_accept(editor, advisory, event, reason)
    return replace(advisory, state=event.to, state_message=reason)


def _preview_accept(editor: StateEditor, advisory: Advisory, event: Acked, reason: str) -> Advisory:
    lease = _lease_until_ns(editor, advisory, event)
    after = replace(
        advisory, state=AdvisoryState.ACCEPTED, state_message=reason, lease_until_ns=lease
    )
    if advisory.state is AdvisoryState.ACCEPTED or not removes_host(advisory.action):
        return after
    if full := limits.refusal(
        editor, (advisory.host, advisory.place, advisory.job), advisory.name, granting=True
    ):
        until = editor.after(editor.limits.defer_seconds)
        return replace(advisory, state_message=full, **editor.deferral(until))
    return replace(after, expires_ns=editor.after(editor.limits.hold_seconds))


def _answered_advisory(editor: StateEditor, event: Acked) -> Advisory:
    """Return the advisory if the answer is valid. Raises ServiceError."""
    advisory = editor.find(event.name)
    if advisory is None:
        raise NotFound(f"no advisory {event.name!r} is known, or it ended long ago")
    _check_fields(event)
    if event.etag and event.etag != advisory.etag:
        raise EtagMismatch(
            f"etag {event.etag!r}: it is {advisory.etag!r} by now: {advisory.state_message}"
        )
    renews = advisory.state is AdvisoryState.ACCEPTED and event.to is AdvisoryState.ACCEPTED
    accepts = event.to is AdvisoryState.ACCEPTED and not renews
    if (
        accepts
        and advisory.state in (AdvisoryState.PROPOSED, AdvisoryState.DEFERRED)
        and advisory.action is not Action.RETURN_TO_SERVICE
        and (reason := unavailable_reason(editor, advisory.host, advisory.action))
    ):
        raise FailedPrecondition(f"{reason}: nothing is granted on it until it is back in service")
    if not renews and event.to not in TRANSITIONS.get(advisory.state, frozenset()):
        ended = "not from there"
        if advisory.state in TERMINAL_STATES:
            ended = "it has ended and has no further effect"
        raise FailedPrecondition(
            f"{advisory.name} is {advisory.state.name} ({advisory.state_message}): {ended}"
        )
    if event.to is AdvisoryState.DEFERRED and (error := _deferral_error(editor, event.until_ns)):
        raise InvalidArgument("defer_until_time", error)
    owned = renews or event.to in (AdvisoryState.DONE, AdvisoryState.FAILED)
    if owned and event.actor != advisory.owner:
        raise PermissionDenied(
            f"{advisory.name} is {advisory.owner!r} carries it out until its lease ends"
        )
    if accepts and editor.state.frozen:
        raise AdviceFrozen(
            f"nothing is granted while the fleet's state is in doubt: {editor.state.frozen}"
        )
    if accepts and advisory.action is Action.RETURN_TO_SERVICE:
        hold = editor.state.holds.get(advisory.host)
        if hold is None or not is_verified(editor, hold):
            raise FailedPrecondition(
                f"{advisory.host} is no longer healthy, or Gangline has set nothing on it"
            )
    return advisory


def _check_fields(event: Acked) -> None:
    if event.to not in ANSWERABLE_STATES:
        names = ", ".join(state.name for state in ANSWERABLE_STATES)
        message = f"{event.to.name} is not an answer; expected one of {names}"
        raise InvalidArgument("new_state", message)
    if not 0 < len(event.actor) <= ACTOR_CHARACTERS_MAX or not event.actor.isprintable():
        raise InvalidArgument("actor", f"the caller's name, 1 to {ACTOR_CHARACTERS_MAX} characters")
    if len(event.message) > NOTE_CHARACTERS_MAX or not (event.message or "-").isprintable():
        raise InvalidArgument("note", f"one line of at most {NOTE_CHARACTERS_MAX} characters")
    if event.to is AdvisoryState.REJECTED and not event.message.strip():
        message = "a rejection needs a reason, which improves the next advisory"
        raise InvalidArgument("note", message)
    if not event.lease_seconds:
        return
    if event.to is not AdvisoryState.ACCEPTED:
        raise InvalidArgument("lease", "only an acceptance has one")
    if not LEASE_SECONDS_MIN <= event.lease_seconds <= LEASE_SECONDS_MAX:
        expected = f"{LEASE_SECONDS_MIN:g} s to {LEASE_SECONDS_MAX / 86_400:g} days"
        raise InvalidArgument("lease", f"{event.lease_seconds:g} s, expected {expected}")


def _lease_until_ns(editor: StateEditor, advisory: Advisory, event: Acked) -> int:
    """Return the end of the lease: as named, else the default, but not earlier than before."""
    if event.lease_seconds:
        return editor.after(event.lease_seconds)
    left = advisory.lease_until_ns if advisory.state is AdvisoryState.ACCEPTED else 0
    return max(left, editor.after(editor.limits.lease_seconds))


def _accept(editor: StateEditor, advisory: Advisory, event: Acked) -> None:
    lease = _lease_until_ns(editor, advisory, event)
    if advisory.state is AdvisoryState.ACCEPTED:
        _restore_hold(editor, advisory)
        message = f"{event.actor} still works on it" + (
            f": {event.message}" if event.message else ""
        )
        editor.put(advisory, message, lease_until_ns=lease)
        return
    if removes_host(advisory.action) and (reason := _limit_reached(editor, advisory)):
        editor.defer(advisory, reason, editor.after(editor.limits.defer_seconds))
        return
    editor.state.token += 1
    message = f"accepted by {event.actor}" + (f": {event.message}" if event.message else "")
    accepted = editor.put(
        advisory, message, state=AdvisoryState.ACCEPTED, owner=event.actor, lease_until_ns=lease,
        token=editor.state.token,
    )  # fmt: skip
    if advisory.action is Action.RETURN_TO_SERVICE:
        hold = editor.state.holds[advisory.host]
        editor.emit(Clear(hold.name, hold.host, event.actor, advisory.message))
        return
    until = editor.after(editor.limits.hold_seconds)
    if removes_host(advisory.action):
        limits.record_grant(editor, accepted)
        _place_hold(editor, accepted, until)
    editor.emit(
        Act(
            accepted.name,
            accepted.host,
            accepted.action,
            accepted.scope,
            accepted.owner,
            accepted.token,
            until,
            message,
        )
    )


def _limit_reached(editor: StateEditor, advisory: Advisory) -> str:
    """Return why *advisory* may not take its host out; the hourly limit opens the breaker."""
    reason = limits.refusal(
        editor, (advisory.host, advisory.place, advisory.job), advisory.name, granting=True
    )
    if (
        reason
        and reason == limits.hourly_refusal(editor)
        and editor.state.fuse.position == "closed"
    ):
        editor.trip(editor.limits.breaker_seconds, reason)
    return reason


def _place_hold(editor: StateEditor, advisory: Advisory, until_ns: int) -> None:
    """Record the effect of *advisory* on its host; it replaces a less severe effect there."""
    state = editor.state
    before = state.holds.get(advisory.host)
    probation = state.probation.get(advisory.host)
    if before is None and probation is not None and probation.until_ns > editor.now_ns:
        state.probation[advisory.host] = replace(probation, relapses=probation.relapses + 1)
    earlier, action = _earlier_work(editor, before)
    state.holds[advisory.host] = Hold(
        advisory.name, advisory.host, advisory.action, advisory.owner, until_ns, advisory.place, advisory.job,
        confirmed=bool(earlier), earlier=earlier, earlier_action=action,
    )  # fmt: skip
    for other in editor.open_advisories(advisory.host):
        if other.name != advisory.name:
            editor.put(other, f"{advisory.name} took its place", state=AdvisoryState.WITHDRAWN)
            _reassign_cases(editor, other.name, advisory.name)


def _restore_hold(editor: StateEditor, advisory: Advisory) -> None:
    """Restore the hold of *advisory* if it expired: its owner still has the host out."""
    state = editor.state
    if not removes_host(advisory.action) or advisory.host in state.holds:
        return
    # the host had not come back, so this is not a relapse
    probation = state.probation.pop(advisory.host, None)
    until = editor.after(editor.limits.hold_seconds)
    _place_hold(editor, advisory, until)
    if probation is not None:
        state.probation[advisory.host] = probation
    editor.emit(Renew(advisory.name, advisory.host, until, "its owner still keeps it out"))


def _earlier_work(editor: StateEditor, before: Hold | None) -> tuple[str, Action | None]:
    """Return the advisory in force on the host, and its action; "" for none."""
    if before is None:
        return "", None
    known = editor.find(before.name)
    if before.confirmed and (known is None or known.state is AdvisoryState.DONE):
        return before.name, before.action
    return before.earlier, before.earlier_action


def _reassign_cases(editor: StateEditor, before: str, now: str) -> None:
    for open_case in editor.state.cases.values():
        if open_case.advisory == before:
            open_case.advisory = now


def _done(editor: StateEditor, advisory: Advisory, event: Acked) -> None:
    _restore_hold(editor, advisory)
    trial = editor.state.fuse.trial == advisory.name
    reason = f"done by {event.actor}" + (f": {event.message}" if event.message else "")
    editor.put(advisory, reason, state=AdvisoryState.DONE)
    hold = editor.state.holds.get(advisory.host)
    if advisory.action is Action.RETURN_TO_SERVICE:
        if hold is not None:
            if (unfinished := editor.state.advisories.get(hold.name)) is not None:
                ended = f"{advisory.name} returned the host before this was done"
                editor.put(
                    unfinished, ended, state=AdvisoryState.WITHDRAWN, owner="", lease_until_ns=0
                )
            editor.drop(hold, reason)
        return
    if not removes_host(advisory.action):
        mute_all(editor, advisory, repropose_seconds(editor, advisory))
        return
    if hold is not None and hold.name == advisory.name:
        hold.confirmed, hold.unsure, hold.earlier = True, False, ""
        if advisory.action is not Action.AVOID:
            # the job continued without this host, or is over; the rack and the fleet still miss it
            hold.job = ""
    editor.state.fuse.failures = 0
    if trial:
        editor.close_breaker(f"{advisory.name} went well")


def _failed(editor: StateEditor, advisory: Advisory, event: Acked) -> None:
    trial = editor.state.fuse.trial == advisory.name
    reason = f"{event.actor} failed to carry it out" + (
        f": {event.message}" if event.message else ""
    )
    editor.put(advisory, reason, state=AdvisoryState.FAILED)
    if advisory.action is Action.RETURN_TO_SERVICE:
        editor.mute(f"return {advisory.host}", advisory.action, editor.limits.again_seconds)
        return
    mute_all(editor, advisory, editor.limits.again_seconds)
    hold = editor.state.holds.get(advisory.host)
    if hold is not None and hold.name == advisory.name:
        hold.unsure = not hold.confirmed  # it may be half done: it counts as out until it expires
    if not removes_host(advisory.action):
        return
    breaker = editor.state.fuse
    breaker.failures += 1
    if trial:
        editor.trip(2 * breaker.seconds, f"the trial {advisory.name} failed")
    elif breaker.failures >= editor.limits.failures_max and breaker.position == "closed":
        editor.trip(editor.limits.breaker_seconds, f"{breaker.failures} failed in a row")


def _reject(editor: StateEditor, advisory: Advisory, event: Acked) -> None:
    before = advisory.state
    reason = f"rejected by {event.actor}: {event.message}"
    editor.put(advisory, reason, state=AdvisoryState.REJECTED)
    hold = editor.state.holds.get(advisory.host)
    if advisory.action is Action.RETURN_TO_SERVICE:
        editor.mute(f"return {advisory.host}", advisory.action, editor.limits.rejected_seconds)
        if before is AdvisoryState.ACCEPTED and hold is not None:
            hold.unsure = True  # it may be cleared already
        return
    mute_all(editor, advisory, editor.limits.rejected_seconds)
    if hold is not None and hold.name == advisory.name:
        editor.clear(hold, reason)


def _defer(editor: StateEditor, advisory: Advisory, event: Acked) -> None:
    reason = f"deferred by {event.actor}" + (f": {event.message}" if event.message else "")
    editor.defer(advisory, reason, _deferred_until_ns(editor, event))


def _deferred_until_ns(editor: StateEditor, event: Acked) -> int:
    """Return the end of the deferral by *event*."""
    until = event.until_ns or editor.after(editor.limits.defer_seconds)
    return min(until, editor.after(editor.limits.defer_seconds_max))


def _deferral_error(editor: StateEditor, until_ns: int) -> str:
    """Return the error in the end of a deferral; "" if it is valid. 0: not named."""
    maximum = editor.limits.defer_seconds_max
    if until_ns and until_ns <= editor.now_ns:
        return "expected a time in the future"
    if until_ns > editor.after(maximum + CLOCK_AHEAD_SECONDS_MAX):
        days = (until_ns - editor.now_ns) / seconds_ns(86_400)
        return f"{days:,.1f} days ahead, at most {maximum / 86_400:g}: defer it again then"
    return ""


def repropose_seconds(editor: StateEditor, advisory: Advisory) -> float:
    """Return the time until an ended *advisory* may be proposed again; a day for silence."""
    is_silence = advisory.host and advisory.reason == SILENCE_REASON
    return editor.limits.rejected_seconds if is_silence else editor.limits.again_seconds


def mute_all(editor: StateEditor, advisory: Advisory, seconds: float) -> None:
    """Mute *advisory*'s severity for its subject; for a shared cause also for its hosts."""
    editor.mute(advisory.subject, advisory.action, seconds)
    if not advisory.host:
        mute_members(editor, advisory, seconds)
