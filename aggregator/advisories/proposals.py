"""What is proposed: cases of a host in one advisory, and returns once verified. Of what hosts share: `shared_causes.py`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence

from . import limits
from .advisory import (
    SILENCE,
    Action,
    Advisory,
    Basis,
    Case,
    Scope,
    State,
    gravity,
    seconds_ns,
    takes_out,
)
from .limits import composed, lead, news, out_already, unasked
from .shared_causes import lower, share
from .state import Desk, Hold, Standing

RELAPSES_COUNTED_MAX = 4


def propose(desk: Desk) -> None:
    """Propose what is due: causes first, then hosts, the gravest first, then returns."""
    waiting = _waiting(desk)
    if waiting:
        held = share(desk, waiting)
        left = [one for one in waiting if one.case.key not in held]
        _for_hosts(desk, [one for one in left if not one.advisory or one.changed], held)
    for hold in list(desk.memory.holds.values()):
        _return(desk, hold)


def _waiting(desk: Desk) -> list[Standing]:
    """Return the cases without an advisory; what an ended one left is without one again."""
    found: list[Standing] = []
    for one in desk.memory.cases.values():
        if one.advisory and one.advisory not in desk.memory.advisories:
            hold = desk.memory.holds.get(one.case.host)
            if hold is None or gravity(one.case.action) > gravity(hold.action):
                one.advisory, desk.touched = "", True
        if not one.advisory or one.changed:
            found.append(one)
    return found


# ---- hosts


def _for_hosts(desk: Desk, waiting: Sequence[Standing], held: Container[str]) -> None:
    """Propose for hosts that waited long enough for others of their cause, the gravest first.

    *held*: cases of a cause of which nothing is said now; nor is it here.
    """
    due: dict[str, list[Standing]] = defaultdict(list)
    for one in waiting:
        if _is_due(desk, one):
            due[one.case.host].append(one)
    if not due:
        return
    standing: dict[str, list[Standing]] = defaultdict(list)
    for one in desk.memory.cases.values():
        if one.case.key not in held:
            standing[one.case.host].append(one)
    order = sorted((-gravity(lead(_cases(new)).action), host) for host, new in due.items())
    full, busy = "", {one.host for one in desk.memory.advisories.values()}
    for grave, host in order:
        new, counts = due[host], takes_out(lead(_cases(due[host])).action)
        if full and counts and host not in busy and host not in desk.memory.holds:
            _hold_back(desk, new, full)  # a fleet that fails at once is not asked host by host
            continue
        _for_host(desk, host, new, standing[host])
        if counts:
            full = full or limits.full(desk, -grave)  # what comes is no graver


def _is_due(desk: Desk, one: Standing) -> bool:
    """Say whether *one* waited long enough for others of its cause; a silent host, for its own boot."""
    if one.case.reason == SILENCE:
        return one.case.since_ns <= desk.after(-desk.limits.silent_seconds)
    return one.seen_ns <= desk.after(-desk.limits.gather_seconds)


def _cases(standings: Sequence[Standing]) -> list[Case]:
    return [one.case for one in standings]


def _hold_back(desk: Desk, new: Sequence[Standing], words: str) -> None:
    for one in new:
        desk.hold_back(one.case, one.case.action, words)


def _for_host(desk: Desk, host: str, new: list[Standing], standing: list[Standing]) -> None:
    """Propose for *host*, raise what is proposed, or say why not."""
    before = desk.open_of(host)
    for back in [a for a in before if a.action is Action.RETURN_TO_SERVICE]:
        if back.state is not State.ACCEPTED:
            desk.put(back, "it is not well again after all", state=State.WITHDRAWN)
    asked = [a for a in before if a.action is not Action.RETURN_TO_SERVICE]
    now = next((a for a in asked if a.state is not State.ACCEPTED), None)
    first = lead(_cases(new))
    covering = _covering(desk, host, asked)
    if covering is not None and gravity(first.action) <= gravity(covering[1]):
        for one in new:
            desk.into(one, covering[0])
        return
    if words := _against(desk, host, first, now):
        if now is not None:
            _less(desk, now, standing)
        _hold_back(desk, [one for one in new if one.changed or not one.advisory], words)
        return
    of_it = [
        one
        for one in standing
        if not one.advisory or one.changed or (now and one.advisory == now.name)
    ]
    made = _raised(desk, now, of_it) if now else _new(desk, host, of_it)
    for one in of_it:
        desk.into(one, made.name)


def _covering(desk: Desk, host: str, before: Sequence[Advisory]) -> tuple[str, Action] | None:
    """Return what is being done, or is done, about *host*, that its milder cases go under."""
    hold = desk.memory.holds.get(host)
    if hold is not None:
        return hold.name, hold.action
    accepted = [a for a in before if a.state is State.ACCEPTED]
    return (accepted[-1].name, accepted[-1].action) if accepted else None


def _against(desk: Desk, host: str, first: Case, now: Advisory | None) -> str:
    """Return why *first* is not proposed; "" if it is to be."""
    if words := unasked(desk, f"host {host}", first) or out_already(desk, host):
        return words
    if now is None and len(desk.memory.advisories) >= desk.limits.open_max:
        return f"{desk.limits.open_max} advisories are open, and no more may be"
    if not takes_out(first.action):
        return ""
    name, grave = now.name if now else "", gravity(first.action)
    wanted = host, first.place, first.job
    return limits.refusal(desk, wanted, name, granting=False, grave=grave)


def _new(desk: Desk, host: str, standings: Sequence[Standing]) -> Advisory:
    fields = composed(_cases(standings))
    return desk.put(
        Advisory(
            name=desk.next_name(), subject=f"host {host}", hosts=(host,), state=State.PROPOSED,
            state_words="", proposed_ns=desk.now_ns, changed_ns=desk.now_ns,
            expires_ns=desk.after(desk.limits.proposal_seconds), **fields,
        ),
        fields["words"],
    )  # fmt: skip


def _raised(desk: Desk, now: Advisory, standings: Sequence[Standing]) -> Advisory:
    """Tell *now* as its cases are by now. What is graver is asked for anew: nobody has put it off, or let it wait."""
    fields = composed(_cases(standings))
    if gravity(fields["action"]) > gravity(now.action):
        expires_ns = desk.after(desk.limits.proposal_seconds)
        fields |= {"state": State.PROPOSED, "deferred_until_ns": 0, "expires_ns": expires_ns}
    return desk.put(now, news(now.action, fields["action"], fields["words"]), **fields)


def _less(desk: Desk, now: Advisory, standing: Sequence[Standing]) -> None:
    """Let *now* ask for no more than its cases do by now; withdraw it where that is not asked for. What is graver waits."""
    of_it = [one for one in standing if one.advisory == now.name]
    if not any(one.changed for one in of_it):
        return
    first = lead(_cases(of_it))
    if gravity(first.action) > gravity(now.action):
        return
    why = unasked(desk, now.subject, first)
    if lower(desk, now, of_it, news(now.action, first.action, first.words)):
        for one in of_it:
            desk.into(one, now.name)
        return
    desk.put(now, f"nothing calls for it any more: {why}", state=State.WITHDRAWN)
    desk.mute(now.subject, now.action, desk.limits.flap_seconds)


# ---- returns


def verified(desk: Desk, hold: Hold) -> bool:
    """Say whether the host of *hold* was well for long enough; longer after each relapse."""
    since = desk.memory.well.get(hold.host)
    stands = any(one.case.host == hold.host for one in desk.memory.cases.values())
    return since is not None and not stands and desk.now_ns - since >= verify_ns(desk, hold.host)


def verify_ns(desk: Desk, host: str) -> int:
    """Return for how long *host* has to be well before it returns."""
    before = desk.memory.probation.get(host)
    doublings = min(before.relapses, RELAPSES_COUNTED_MAX) if before else 0
    return seconds_ns(desk.limits.verify_seconds * 2**doublings)


def _return(desk: Desk, hold: Hold) -> None:
    host = hold.host
    if not hold.confirmed or not verified(desk, hold) or desk.open_of(host):
        return
    if desk.is_muted(f"return {host}", Action.RETURN_TO_SERVICE):
        return
    minutes = verify_ns(desk, host) / 60e9
    words = (
        f"nothing was wrong with it for {minutes:.0f} min: what {hold.name} set can be taken away"
    )
    desk.put(
        Advisory(
            name=desk.next_name(), subject=f"host {host}", hosts=(host,),
            action=Action.RETURN_TO_SERVICE, scope=Scope.HOST, basis=Basis.VERIFIED, reason="NONE",
            words=words, state=State.PROPOSED, state_words="", proposed_ns=desk.now_ns,
            expires_ns=desk.after(desk.limits.proposal_seconds), changed_ns=desk.now_ns,
            place=hold.place,
        ),
        words,
    )  # fmt: skip
