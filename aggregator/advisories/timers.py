"""What time does: proposals expire, leases end, deferrals are over, holds are renewed or run out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from . import answers, limits
from .advisory import (
    HOUR_NS,
    Action,
    Advisory,
    Breaker,
    Renew,
    State,
    gravity,
    seconds_ns,
    takes_out,
)
from .answers import again_seconds, mute_all
from .limits import out_already
from .proposals import verified, verify_ns
from .shared_causes import lower, retell
from .state import Absent, Desk, Fuse, Hold, Memory, Mute, Told, Watched


def pass_time(desk: Desk) -> None:
    """Do what is due by now."""
    for one in list(desk.memory.advisories.values()):
        if one.state is State.ACCEPTED:
            _lapse(desk, one)
        elif words := _out_already(desk, one):
            desk.put_off(one, words, desk.after(desk.limits.defer_seconds))
        elif one.expires_ns <= desk.now_ns:
            if not desk.memory.frozen:  # else whoever accepted it was refused
                _expire(desk, one)
        elif one.state is State.DEFERRED and one.deferred_until_ns <= desk.now_ns:
            _again(desk, one)
    for hold in list(desk.memory.holds.values()):
        _hold(desk, hold)
    answers.expire(desk)
    _fuse(desk)
    _forget(desk)


def resume(desk: Desk) -> None:
    """After a restart: who could not reach us meanwhile has a lease's time to, and nobody saw that a host was well."""
    memory, least_ns = desk.memory, desk.after(desk.limits.lease_seconds)
    for name, one in memory.advisories.items():
        lease_ns = max(one.lease_until_ns, least_ns) if one.state is State.ACCEPTED else 0
        expires_ns = max(one.expires_ns, least_ns)
        memory.advisories[name] = replace(one, expires_ns=expires_ns, lease_until_ns=lease_ns)
        hold = memory.holds.get(one.host)
        if one.state is State.ACCEPTED and hold is not None and hold.name == name:
            hold.until_ns = max(
                hold.until_ns, least_ns
            )  # else its host is counted nowhere, and never returned
    for each in memory.holds.values():
        each.missed_ns = desk.now_ns if each.missed_ns else 0
    memory.well = dict.fromkeys(memory.well, desk.now_ns)


def thaw(desk: Desk) -> None:
    """The picture is no longer in doubt: what could not be accepted meanwhile may be for a lease's time at least."""
    least_ns = desk.after(desk.limits.lease_seconds)
    for one in list(desk.memory.advisories.values()):
        if one.state is not State.ACCEPTED and one.expires_ns < least_ns:
            words = "the picture was in doubt, and is no more: there is time to answer"
            desk.put(one, words, expires_ns=least_ns)


def leap(desk: Desk, leapt_ns: int) -> None:
    """Our clock was set forward: what is to end has as long to go as it had, and what was is as long ago as it was.

    A process that was stopped for a while is none of this: its time has passed, for those who wait for it, too.
    """
    memory = desk.memory
    for name, one in memory.advisories.items():
        memory.advisories[name] = _moved(one, leapt_ns)
    for standing in memory.cases.values():
        since_ns = standing.case.since_ns + leapt_ns
        standing.case, standing.seen_ns = (
            replace(standing.case, since_ns=since_ns),
            standing.seen_ns + leapt_ns,
        )
    for lasting in _lasting(memory):
        lasting.until_ns += leapt_ns
    for hold in memory.holds.values():
        hold.missed_ns += leapt_ns if hold.missed_ns else 0
    memory.absent_due_ns += leapt_ns if memory.absent_due_ns else 0
    memory.well = {host: since_ns + leapt_ns for host, since_ns in memory.well.items()}
    memory.granted_ns = [at_ns + leapt_ns for at_ns in memory.granted_ns]


def _moved(one: Advisory, leapt_ns: int) -> Advisory:
    """Return *one* with its ends, and when its cause began, later by so much; 0 is no time."""
    moved = {
        name: before_ns + leapt_ns
        for name in ("expires_ns", "lease_until_ns", "deferred_until_ns", "since_ns")
        if (before_ns := getattr(one, name))
    }
    return replace(one, **moved)


def _lasting(memory: Memory) -> Iterator[Absent | Fuse | Hold | Mute | Told | Watched]:
    """Yield all that lasts until a time."""
    yield from memory.holds.values()
    yield from memory.probation.values()
    yield from memory.held_back.values()
    for told in memory.absent.values():
        yield from told.values()
    for mute in memory.muted.values():
        yield from (mute, *mute.graver)
    if memory.fuse.position == "open":
        yield memory.fuse


def _lapse(desk: Desk, one: Advisory) -> None:
    """Lend it to whoever comes next: its owner was silent for too long."""
    if one.lease_until_ns > desk.now_ns:
        return
    words = f"{one.owner} was silent until its lease ended: whoever can may take it over"
    hold = desk.memory.holds.get(one.host)
    if hold is not None and hold.name == one.name:
        hold.unsure = not hold.confirmed
    expires = desk.after(desk.limits.proposal_seconds)
    keys = [key for key in one.cases if key in desk.memory.cases]
    cases = tuple(key for key in keys if desk.memory.cases[key].advisory == one.name)
    graver = [a for a in desk.open_of(one.host) if a.name != one.name] if one.host else []
    if asked := [a.name for a in graver if a.state is not State.ACCEPTED]:
        for key in cases:  # they go into what is asked for
            desk.memory.cases[key].advisory = ""
        words = f"{one.owner} was silent until its lease ended, and {asked[0]} asks for more"
        desk.put(one, words, state=State.WITHDRAWN, owner="", lease_until_ns=0)
        return
    desk.put(
        one,
        words,
        state=State.PROPOSED,
        owner="",
        lease_until_ns=0,
        expires_ns=expires,
        cases=cases,
    )


def _expire(desk: Desk, one: Advisory) -> None:
    desk.put(one, "nobody answered in time", state=State.EXPIRED)
    if one.action is not Action.RETURN_TO_SERVICE:
        mute_all(desk, one, again_seconds(desk, one))


def _out_already(desk: Desk, one: Advisory) -> str:
    """Return who else has the host of *one* out, where that puts it off; "" where it was put off for longer anyway."""
    waits = one.state is State.DEFERRED and one.deferred_until_ns > desk.now_ns
    if waits or one.action is Action.RETURN_TO_SERVICE:
        return ""
    return out_already(desk, one.host)


def _again(desk: Desk, one: Advisory) -> None:
    """Propose again what was put off, if there is room for it."""
    if desk.memory.frozen:
        return
    if takes_out(one.action):
        wanted = (one.host, one.place, one.job)
        grave = gravity(one.action)
        if words := limits.refusal(desk, wanted, one.name, granting=False, grave=grave):
            desk.put_off(one, words, desk.after(desk.limits.defer_seconds))
            return
    desk.put(one, "put off until now", state=State.PROPOSED, deferred_until_ns=0)


# ---- holds


def _hold(desk: Desk, hold: Hold) -> None:
    """Renew what we set while its cause stands; else let it run out, and take it away."""
    length = seconds_ns(desk.limits.hold_seconds)
    if hold.missed_ns and hold.host in desk.memory.well:
        hold.missed_ns, desk.touched = 0, True
    if hold.until_ns <= desk.now_ns:
        desk.clear(hold, "nothing that we set outlasts its expiry")
    elif hold.until_ns - desk.now_ns <= length // 2 and (words := _stands(desk, hold)):
        hold.until_ns = desk.now_ns + length
        desk.touched = True
        desk.say(Renew(hold.name, hold.host, hold.until_ns, words))
        if hold.earlier:  # what it set stands still, and is taken away with the rest
            desk.say(Renew(hold.earlier, hold.host, hold.until_ns, words))


def _stands(desk: Desk, hold: Hold) -> str:
    """Return why *hold* is to last; "" if it is not."""
    if hold.unsure:
        return ""
    if desk.memory.frozen:
        return "the fleet's picture is in doubt: what is set stays"
    set_by = desk.memory.advisories.get(hold.name)
    if not hold.confirmed or (set_by is not None and set_by.state is State.ACCEPTED):
        return "it is being carried out"  # also where something milder is done there already
    if any(one.case.host == hold.host for one in desk.memory.cases.values()):
        hold.missed_ns = 0
        return "what it was set for still stands"
    since = desk.memory.well.get(hold.host)
    if since is None:
        return _missed(desk, hold)
    if desk.is_muted(f"return {hold.host}", Action.RETURN_TO_SERVICE):
        return "its return was refused"
    if _is_put_off(desk, hold.host):
        return "its return was put off"
    waited = since + verify_ns(desk, hold.host) + seconds_ns(desk.limits.hold_seconds)
    return "its return waits to be accepted" if desk.now_ns < waited else ""


def _is_put_off(desk: Desk, host: str) -> bool:
    """Say whether somebody would have *host* return later."""
    return any(
        one.action is Action.RETURN_TO_SERVICE and one.state is State.DEFERRED
        for one in desk.open_of(host)
    )


def _missed(desk: Desk, hold: Hold) -> str:
    """Return why *hold*, whose host shows no fault and is not well either, is to last; "" where that was so for too long."""
    hold.missed_ns = hold.missed_ns or desk.now_ns
    if desk.now_ns - hold.missed_ns >= seconds_ns(desk.limits.missed_seconds):
        return ""
    return "nothing shows that it is well"


# ---- the breaker, and what is forgotten


def _fuse(desk: Desk) -> None:
    fuse = desk.memory.fuse
    if fuse.position == "open" and fuse.until_ns <= desk.now_ns:
        fuse.position, desk.touched = "half-open", True
        desk.say(Breaker("half-open", "one host is tried; if that goes well, advice is as before"))


def _forget(desk: Desk) -> None:
    memory, now_ns = desk.memory, desk.now_ns
    for until in (memory.muted, memory.probation):
        for key in [key for key, one in until.items() if one.until_ns <= now_ns]:
            del until[key]
            desk.touched = True
    old = now_ns - seconds_ns(desk.limits.ended_seconds)
    surplus = len(memory.ended) - desk.limits.ended_max
    standing = {name for hold in memory.holds.values() for name in (hold.name, hold.earlier)}
    for at, (name, one) in enumerate(list(memory.ended.items())):
        if at >= surplus and one.changed_ns > old:
            break  # in the order in which they ended
        if name not in standing:  # else who set it asks until when it stands
            del memory.ended[name]
            desk.touched = True
    while memory.granted_ns and memory.granted_ns[0] <= now_ns - HOUR_NS:
        memory.granted_ns.pop(0)
        desk.touched = True


def trim(desk: Desk) -> None:
    """Take cases that are gone out of their advisories; of a host's own, the gravest that is left leads."""
    for one in list(desk.memory.advisories.values()):
        found = [desk.memory.cases.get(key) for key in one.cases]
        for each in found:
            if each is not None and not each.advisory:  # it was gone for a moment only
                each.advisory, each.changed, desk.touched = one.name, bool(one.host), True
        left = [each for each in found if each is not None and each.advisory == one.name]
        if not left or len(left) == len(one.cases):
            continue
        words = f"{len(one.cases) - len(left)} of its {len(one.cases)} cases are gone"
        if not one.host:
            retell(desk, one, words)
        elif one.state is not State.ACCEPTED:
            lower(desk, one, left, words)  # else nothing calls for it any more, and it is withdrawn
        else:
            desk.put(one, words, cases=tuple(sorted(each.case.key for each in left)))


def withdraw_empty(desk: Desk) -> None:
    """Withdraw what nothing calls for any more. What is being carried out goes on: its host is verified first."""
    wanted = {one.advisory for one in desk.memory.cases.values()}
    for one in list(desk.memory.advisories.values()):
        if one.state is State.ACCEPTED or one.name in wanted:
            continue
        if one.action is not Action.RETURN_TO_SERVICE:
            desk.put(one, "what it was about is gone", state=State.WITHDRAWN)
            mute_all(desk, one, desk.limits.flap_seconds)
        elif (hold := desk.memory.holds.get(one.host)) is None:
            desk.put(one, "what was set ran out by itself", state=State.WITHDRAWN)
        elif not verified(desk, hold):
            desk.put(one, "it is not well again after all", state=State.WITHDRAWN)
