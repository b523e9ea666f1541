"""What executors and people answer: accept, done, failed, reject, defer. Each is taken, or refused in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from . import limits
from .advisory import (
    ENDED,
    SILENCE,
    TRANSITIONS,
    Acked,
    Act,
    Action,
    Advisory,
    Back,
    Clear,
    Out,
    PutBack,
    Refused,
    Renew,
    State,
    StillOut,
    TakenOut,
    seconds_ns,
    takes_out,
)
from .limits import out_already
from .proposals import verified
from .shared_causes import mute_members
from .state import Absent, Desk, Hold, Memory

#: What may be answered; the other states are ours to say.
ANSWERS = (State.ACCEPTED, State.REJECTED, State.DEFERRED, State.DONE, State.FAILED)
ACTOR_CHARACTERS_MAX = 128
WORDS_CHARACTERS_MAX = 500
#: Who accepts may name a lease from the one to the other.
LEASE_SECONDS_MIN, LEASE_SECONDS_MAX = 10.0, 7 * 86_400.0
#: By so much the clock of who puts off may be ahead of ours.
AHEAD_SECONDS_MAX = 600.0


def ack(desk: Desk, event: Acked) -> None:
    """Take *event*, or say why it changes nothing."""
    one = desk.known(event.name)
    why, words = _against(desk, one, event)
    if one is None or why:
        desk.say(Refused(event.name, why, words))
        return
    match event.to:
        case State.ACCEPTED:
            _accept(desk, one, event)
        case State.DONE:
            _done(desk, one, event)
        case State.FAILED:
            _failed(desk, one, event)
        case State.REJECTED:
            _reject(desk, one, event)
        case _:
            _defer(desk, one, event)


def would(desk: Desk, event: Acked) -> Advisory | Refused:
    """Return how the advisory would stand after *event*, or why that would change nothing. Does nothing."""
    one = desk.known(event.name)
    why, words = _against(desk, one, event)
    if one is None or why:
        return Refused(event.name, why, words)
    words = f"{event.actor} would have it so: nothing was done"
    if event.to is State.DEFERRED:
        return replace(one, state_words=words, **desk.deferral(_until(desk, event)))
    if event.to is State.ACCEPTED:
        return _would_accept(desk, one, event, words)
    return replace(one, state=event.to, state_words=words)


def _would_accept(desk: Desk, one: Advisory, event: Acked, words: str) -> Advisory:
    lease = _lease_until(desk, one, event)
    after = replace(one, state=State.ACCEPTED, state_words=words, lease_until_ns=lease)
    if one.state is State.ACCEPTED or not takes_out(one.action):
        return after
    if full := limits.refusal(desk, (one.host, one.place, one.job), one.name, granting=True):
        until = desk.after(desk.limits.defer_seconds)
        return replace(one, state_words=full, **desk.deferral(until))
    return replace(after, expires_ns=desk.after(desk.limits.hold_seconds))


def _against(desk: Desk, one: Advisory | None, event: Acked) -> tuple[str, str]:
    """Return (kind, words) of what is against the answer; ("", "") for nothing."""
    if one is None:
        return "missing", f"no advisory {event.name!r} is known, or it ended long ago"
    if wrong := _field(event):
        return "field", wrong
    if event.etag and event.etag != one.etag:
        return "etag", f"etag {event.etag!r}: it is {one.etag!r} by now: {one.state_words}"
    renews = one.state is State.ACCEPTED and event.to is State.ACCEPTED
    takes = event.to is State.ACCEPTED and one.state in (State.PROPOSED, State.DEFERRED)
    if (
        takes
        and one.action is not Action.RETURN_TO_SERVICE
        and (words := out_already(desk, one.host))
    ):
        return "state", f"{words}: nothing is granted there until it is in service again"
    if not renews and event.to not in TRANSITIONS.get(one.state, frozenset()):
        ended = (
            "it has ended and nothing more comes of it" if one.state in ENDED else "not from there"
        )
        return "state", f"{one.name} is {one.state.name} ({one.state_words}): {ended}"
    if event.to is State.DEFERRED and (wrong := _moment(desk, event.until_ns)):
        return "field", f"defer_until_time: {wrong}"
    owned = renews or event.to in (State.DONE, State.FAILED)
    if owned and event.actor != one.owner:
        return "owner", f"{one.name} is {one.owner!r}'s to carry out until its lease ends"
    if event.to is State.ACCEPTED and not renews and desk.memory.frozen:
        return "frozen", f"nothing is granted while the picture is in doubt: {desk.memory.frozen}"
    if event.to is State.ACCEPTED and not renews and one.action is Action.RETURN_TO_SERVICE:
        hold = desk.memory.holds.get(one.host)
        if hold is None or not verified(desk, hold):
            return "state", f"{one.host} is not well any more, or nothing of ours is set on it"
    return "", ""


def _field(event: Acked) -> str:
    if event.to not in ANSWERS:
        return f"new_state: {event.to.name} is not to be answered; expected one of {_names()}"
    if not 0 < len(event.actor) <= ACTOR_CHARACTERS_MAX or not event.actor.isprintable():
        return f"actor: who answers, in 1 to {ACTOR_CHARACTERS_MAX} characters"
    if len(event.words) > WORDS_CHARACTERS_MAX or not (event.words or "-").isprintable():
        return f"note: one line of at most {WORDS_CHARACTERS_MAX} characters"
    if event.to is State.REJECTED and not event.words.strip():
        return "note: a rejection says why; the next advisory is better for it"
    return _lease(event)


def _lease(event: Acked) -> str:
    """Return what is wrong with the lease that *event* names; "" for nothing."""
    if not event.lease_seconds:
        return ""
    if event.to is not State.ACCEPTED:
        return "lease: only who accepts names one"
    if not LEASE_SECONDS_MIN <= event.lease_seconds <= LEASE_SECONDS_MAX:
        most = f"{LEASE_SECONDS_MAX / 86_400:g} days"
        return f"lease: {event.lease_seconds:g} s, expected {LEASE_SECONDS_MIN:g} s to {most}"
    return ""


def _names() -> str:
    return ", ".join(one.name for one in ANSWERS)


# ---- accepted


def _lease_until(desk: Desk, one: Advisory, event: Acked) -> int:
    """Return until when who accepts holds *one*: for as long as named, else for the usual time and no less than is left."""
    if event.lease_seconds:
        return desk.after(event.lease_seconds)
    left = one.lease_until_ns if one.state is State.ACCEPTED else 0
    return max(left, desk.after(desk.limits.lease_seconds))


def _accept(desk: Desk, one: Advisory, event: Acked) -> None:
    lease = _lease_until(desk, one, event)
    if one.state is State.ACCEPTED:
        _hold_anew(desk, one)
        desk.put(one, f"{event.actor} is still at it", lease_until_ns=lease)
        return
    if takes_out(one.action) and (words := _too_much(desk, one)):
        desk.put_off(one, words, desk.after(desk.limits.defer_seconds))
        return
    desk.memory.token += 1
    said = f"accepted by {event.actor}" + (f": {event.words}" if event.words else "")
    taken = desk.put(
        one, said, state=State.ACCEPTED, owner=event.actor, lease_until_ns=lease,
        token=desk.memory.token,
    )  # fmt: skip
    if one.action is Action.RETURN_TO_SERVICE:
        hold = desk.memory.holds[one.host]
        desk.say(Clear(hold.name, hold.host, event.actor, one.words))
        return
    until = desk.after(desk.limits.hold_seconds)
    if takes_out(one.action):
        limits.grant(desk, taken)
        _hold(desk, taken, until)
    desk.say(
        Act(
            taken.name, taken.host, taken.action, taken.scope, taken.owner, taken.token, until, said
        )
    )


def _too_much(desk: Desk, one: Advisory) -> str:
    """Return why *one* may not take its host out now; a rate that is reached opens the breaker."""
    words = limits.refusal(desk, (one.host, one.place, one.job), one.name, granting=True)
    if words and words == limits.hour_full(desk) and desk.memory.fuse.position == "closed":
        desk.trip(desk.limits.breaker_seconds, words)
    return words


def _hold(desk: Desk, one: Advisory, until_ns: int) -> None:
    """Keep what is being set on the host; a milder one that is set there goes over to it."""
    memory = desk.memory
    before = memory.holds.get(one.host)
    watched = memory.probation.get(one.host)
    if before is None and watched is not None and watched.until_ns > desk.now_ns:
        memory.probation[one.host] = replace(watched, relapses=watched.relapses + 1)
    earlier, action = _done_before(desk, before)
    memory.holds[one.host] = Hold(
        one.name, one.host, one.action, one.owner, until_ns, one.place, one.job,
        confirmed=bool(earlier), earlier=earlier, earlier_action=action,
    )  # fmt: skip
    for other in desk.open_of(one.host):
        if other.name != one.name:
            desk.put(other, f"{one.name} took its place", state=State.WITHDRAWN)
            _rename(desk, other.name, one.name)


def _hold_anew(desk: Desk, one: Advisory) -> None:
    """Keep again what the owner of *one* set, where that ran out meanwhile: its host is out, whatever we said of it."""
    memory = desk.memory
    if not takes_out(one.action) or one.host in memory.holds:
        return
    watched = memory.probation.pop(one.host, None)  # it had not come back: this is no relapse
    until = desk.after(desk.limits.hold_seconds)
    _hold(desk, one, until)
    if watched is not None:
        memory.probation[one.host] = watched
    desk.say(Renew(one.name, one.host, until, "its owner has it out still"))


def _done_before(desk: Desk, before: Hold | None) -> tuple[str, Action | None]:
    """Return the advisory whose work stands on the host already, and its action; "" for none."""
    if before is None:
        return "", None
    known = desk.known(before.name)
    if before.confirmed and (known is None or known.state is State.DONE):
        return before.name, before.action
    return before.earlier, before.earlier_action


def _rename(desk: Desk, before: str, now: str) -> None:
    for standing in desk.memory.cases.values():
        if standing.advisory == before:
            standing.advisory = now


# ---- done, failed


def _done(desk: Desk, one: Advisory, event: Acked) -> None:
    _hold_anew(desk, one)
    trial = desk.memory.fuse.trial == one.name
    words = f"done by {event.actor}" + (f": {event.words}" if event.words else "")
    desk.put(one, words, state=State.DONE)
    hold = desk.memory.holds.get(one.host)
    if one.action is Action.RETURN_TO_SERVICE:
        if hold is not None:
            desk.drop(hold, words)
        return
    if not takes_out(one.action):
        mute_all(desk, one, again_seconds(desk, one))
        return
    if hold is not None and hold.name == one.name:
        hold.confirmed, hold.unsure, hold.earlier = True, False, ""
        if one.action is not Action.AVOID:
            hold.job = (
                ""  # it went on without this host, or is over; the rack and the fleet still miss it
            )
    desk.memory.fuse.failures = 0
    if trial:
        desk.close_fuse(f"{one.name} went well")


def _failed(desk: Desk, one: Advisory, event: Acked) -> None:
    trial = desk.memory.fuse.trial == one.name
    words = f"{event.actor} did not manage" + (f": {event.words}" if event.words else "")
    desk.put(one, words, state=State.FAILED)
    if one.action is Action.RETURN_TO_SERVICE:
        desk.mute(f"return {one.host}", one.action, desk.limits.again_seconds)
        return
    mute_all(desk, one, desk.limits.again_seconds)
    hold = desk.memory.holds.get(one.host)
    if hold is not None and hold.name == one.name:
        hold.unsure = not hold.confirmed  # it may be half done: it counts as out until it expires
    if not takes_out(one.action):
        return
    fuse = desk.memory.fuse
    fuse.failures += 1
    if trial:
        desk.trip(2 * fuse.seconds, f"the trial {one.name} failed")
    elif fuse.failures >= desk.limits.failures_max and fuse.position == "closed":
        desk.trip(desk.limits.breaker_seconds, f"{fuse.failures} failed on end")


# ---- rejected, deferred


def _reject(desk: Desk, one: Advisory, event: Acked) -> None:
    was = one.state
    words = f"rejected by {event.actor}: {event.words}"
    desk.put(one, words, state=State.REJECTED)
    hold = desk.memory.holds.get(one.host)
    if one.action is Action.RETURN_TO_SERVICE:
        desk.mute(f"return {one.host}", one.action, desk.limits.rejected_seconds)
        if was is State.ACCEPTED and hold is not None:
            hold.unsure = True  # it may be cleared already
        return
    mute_all(desk, one, desk.limits.rejected_seconds)
    if hold is not None and hold.name == one.name:
        desk.clear(hold, words)


def _defer(desk: Desk, one: Advisory, event: Acked) -> None:
    words = f"put off by {event.actor}" + (f": {event.words}" if event.words else "")
    desk.put_off(one, words, _until(desk, event))


def _until(desk: Desk, event: Acked) -> int:
    """Return until when *event* puts off."""
    until = event.until_ns or desk.after(desk.limits.defer_seconds)
    return min(until, desk.after(desk.limits.defer_seconds_max))


def _moment(desk: Desk, until_ns: int) -> str:
    """Return what is wrong with the end of a deferral; "" for nothing. 0: none is named."""
    most = desk.limits.defer_seconds_max
    if until_ns and until_ns <= desk.now_ns:
        return "a moment that is still to come"
    if until_ns > desk.after(most + AHEAD_SECONDS_MAX):
        days = (until_ns - desk.now_ns) / seconds_ns(86_400)
        return f"{days:,.1f} days ahead, at most {most / 86_400:g}: put it off again then"
    return ""


def again_seconds(desk: Desk, one: Advisory) -> float:
    """Return for how long *one*, which is over while its case stands, is not proposed again: a silent host, for a day."""
    asked_once = one.host and one.reason == SILENCE
    return desk.limits.rejected_seconds if asked_once else desk.limits.again_seconds


def mute_all(desk: Desk, one: Advisory, seconds: float) -> None:
    """Propose nothing as grave of what *one* was about for so long; nor of the hosts of a cause."""
    desk.mute(one.subject, one.action, seconds)
    if not one.host:
        mute_members(desk, one, seconds)


# ----------------------------------------------------------------------
# Hosts that somebody took out himself, and tells us of: budgets count them, for as long as he says
# so.
#
# By the same word ends what advice that has ended holds out, which would else stand for as long as
# its fault does.

#: Hosts that are told of at once; one of whom two tell is two.
HOSTS_MAX = 50_000


def room_for(memory: Memory, out: Iterable[TakenOut]) -> bool:
    """Say whether so many may be told of, too."""
    absent = memory.absent
    new = {
        (one.host, event.by)
        for event in out
        for one in event.members
        if event.by not in absent.get(one.host, ())
    }
    return sum(map(len, absent.values())) + len(new) <= HOSTS_MAX


def taken_out(desk: Desk, event: TakenOut) -> None:
    """Count the hosts of *event* as out until it ends, or until it is said again."""
    memory, again = desk.memory, list[str]()
    if event.until_ns <= desk.now_ns:
        return
    for one in event.members:
        told = memory.absent.setdefault(one.host, {})
        before = told.get(event.by)
        since_ns = before.since_ns if before else desk.now_ns
        told[event.by] = Absent(event.words, since_ns, event.until_ns, one.place, one.job)
        if before is None or before.words != event.words:
            desk.say(Out(one.host, event.by, event.until_ns, event.words))
        else:
            again.append(one.host)
    if again:
        desk.say(StillOut(event.by, tuple(again), event.until_ns, event.words))
    memory.absent_due_ns = min(memory.absent_due_ns or event.until_ns, event.until_ns)
    desk.touched = True


def put_back(desk: Desk, event: PutBack) -> None:
    """Count them as in service again, but for what others took out.

    Of a host that he did not take out himself he gives up what advice set that has ended; what is being carried out goes on.
    """
    for host in event.hosts:
        if event.by in desk.memory.absent.get(host, ()):
            _forget(desk, host, event.by, f"{event.by} put it back")
        elif hold := desk.memory.holds.get(host):
            _give_up(desk, hold, f"{event.by} says that it is in service again")


def _give_up(desk: Desk, hold: Hold, words: str) -> None:
    """Have what an advisory set that has ended taken away. Where its fault stands it is not asked for again at once."""
    if hold.name in desk.memory.advisories:
        return
    for one in desk.open_of(hold.host):
        if one.action is Action.RETURN_TO_SERVICE and one.state is not State.ACCEPTED:
            desk.put(one, words, state=State.WITHDRAWN)
    desk.clear(hold, words)
    desk.mute(f"host {hold.host}", hold.action, desk.limits.again_seconds)


def expire(desk: Desk) -> None:
    """Forget what nobody said again in time."""
    memory, now_ns = desk.memory, desk.now_ns
    if not memory.absent or now_ns < memory.absent_due_ns:
        return
    for host, told in list(memory.absent.items()):
        for by in [by for by, one in told.items() if one.until_ns <= now_ns]:
            _forget(desk, host, by, f"{by} did not say again that it is out")
    ends = [one.until_ns for told in memory.absent.values() for one in told.values()]
    memory.absent_due_ns = min(ends, default=0)
    desk.touched = True


def _forget(desk: Desk, host: str, by: str, words: str) -> None:
    told = desk.memory.absent[host]
    del told[by]
    if not told:
        del desk.memory.absent[host]
    desk.touched = True
    desk.say(Back(host, by, words))
