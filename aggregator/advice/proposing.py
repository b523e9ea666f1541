"""What is proposed: cases of a host in one advisory, hosts of one cause in one, and returns once verified."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from . import budget, causes
from .advisory import Action, Advisory, Basis, Case, Scope, State, gravity, takes_out
from .desk import SILENT, Desk, Hold, Standing
from .limits import seconds_ns

#: Devices and cases that an advisory names; of more it says how many.
NAMED_MAX = 16
#: A price that moved by less is the same.
PRICE_STEP_RATIO = 1.25
RELAPSES_COUNTED_MAX = 4


def material(before: Case, now: Case) -> bool:
    """Say whether *now* is news: not for a later reading of the same, nor for each line of a storm."""
    same = ("action", "then", "scope", "basis", "reason", "devices", "job", "place")
    return (
        any(getattr(before, name) != getattr(now, name) for name in same)
        or before.checkpoint_seconds != now.checkpoint_seconds
        or _decade(before.count) != _decade(now.count)
        or _moved(before.price.waiting_gpu_hours, now.price.waiting_gpu_hours)
        or _moved(before.price.acting_gpu_hours, now.price.acting_gpu_hours)
    )


def _decade(count: int) -> int:
    return int(math.log10(max(count, 1)))


def _moved(before: float, now: float) -> bool:
    low, high = sorted((max(before, 0.1), max(now, 0.1)))  # below 0.1 GPU-hours all is one
    return high > PRICE_STEP_RATIO * low


def propose(desk: Desk) -> None:
    """Propose what is due: causes first, then hosts, the gravest first, then returns."""
    waiting = _waiting(desk)
    if waiting:
        _share(desk, waiting)
        _for_hosts(desk, [one for one in waiting if not one.advisory or one.changed])
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


def _lead(standings: Sequence[Standing]) -> Case:
    """Return the gravest case, the oldest of as grave ones."""
    return min(
        (one.case for one in standings), key=lambda c: (-gravity(c.action), c.since_ns, c.key)
    )


# ---- causes


def _share(desk: Desk, waiting: list[Standing]) -> None:
    """Put cases of one cause into its advisory."""
    memory = desk.memory
    for known in [a for a in memory.advisories.values() if not a.host]:
        joined = [
            one
            for one in waiting
            if not one.advisory
            and causes.belongs(one, known.subject, known.proposed_ns, desk.limits)
        ]
        if joined:
            _join(desk, known, joined)

    def muted(subject: str) -> bool:
        return desk.is_muted(subject, Action.INSPECT)

    while cause := causes.found(_candidates(desk), desk.limits, muted):
        members = [memory.cases[key] for key in cause.keys]
        alone = {one.advisory for one in members if one.advisory}
        new = _of_cause(desk, cause, members)
        for one in members:
            _into(desk, one, new.name)
        for name in sorted(alone):
            _leave(desk, memory.advisories[name], new)


def _candidates(desk: Desk) -> list[Standing]:
    """Return what may be of a cause: whatever has no advisory, or one of its own that nobody accepted."""
    advisories = desk.memory.advisories
    return [
        one
        for one in desk.memory.cases.values()
        if not one.advisory
        or ((a := advisories.get(one.advisory)) and a.host and a.state is not State.ACCEPTED)
    ]


def _of_cause(desk: Desk, cause: causes.Cause, members: Sequence[Standing]) -> Advisory:
    words = (
        f"{len(cause.hosts)} hosts of {cause.domain.scope} {cause.domain.name} fell within "
        f"{desk.limits.shared_seconds:g} s ({_lead(members).words}): one fault of their {cause.domain.kind}, "
        "not one each; look there before at any of them"
    )
    lead = _lead(members)
    return desk.put(
        Advisory(
            name=desk.next_name(), subject=cause.domain.subject, hosts=cause.hosts, action=Action.INSPECT,
            scope=cause.domain.scope, basis=Basis.SHARED_CAUSE, reason=lead.reason, words=words,
            state=State.PROPOSED, state_words="", proposed_ns=desk.now_ns,
            expires_ns=desk.after(desk.limits.proposal_seconds), changed_ns=desk.now_ns,
            cases=cause.keys, place=lead.place, count=sum(one.case.count for one in members),
        ),
        words,
    )  # fmt: skip


def _leave(desk: Desk, alone: Advisory, cause: Advisory) -> None:
    """Take the cases that went into that of their cause out of a host's own advisory; withdraw it with the last."""
    rest = [one for one in desk.memory.cases.values() if one.advisory == alone.name]
    words = f"not this host's own fault: {cause.name}"
    if rest:
        desk.put(alone, words, **composed(rest))
    else:
        desk.put(alone, words, state=State.WITHDRAWN)


def _join(desk: Desk, cause: Advisory, joined: Sequence[Standing]) -> None:
    for one in joined:
        _into(desk, one, cause.name)
    members = [one for one in desk.memory.cases.values() if one.advisory == cause.name]
    hosts = tuple(sorted({*cause.hosts, *(one.case.host for one in joined)}))
    words = f"of the same cause: {', '.join(sorted({one.case.host for one in joined})[:NAMED_MAX])}"
    keys = tuple(sorted(one.case.key for one in members))
    desk.put(cause, words, hosts=hosts, cases=keys, count=sum(one.case.count for one in members))


# ---- hosts


def _for_hosts(desk: Desk, waiting: Sequence[Standing]) -> None:
    """Propose for hosts that waited long enough for others of their cause, the gravest first."""
    due: dict[str, list[Standing]] = defaultdict(list)
    for one in waiting:
        if one.seen_ns <= desk.after(-desk.limits.gather_seconds):
            due[one.case.host].append(one)
    if not due:
        return
    standing: dict[str, list[Standing]] = defaultdict(list)
    for one in desk.memory.cases.values():
        standing[one.case.host].append(one)
    order = sorted(due.items(), key=lambda item: (-gravity(_lead(item[1]).action), item[0]))
    full, busy = "", {one.host for one in desk.memory.advisories.values()}
    for host, new in order:
        if full and host not in busy and host not in desk.memory.holds:
            _hold_back(desk, new, full)  # a fleet that fails at once is not asked host by host
            continue
        _for_host(desk, host, new, standing[host])
        full = full or budget.full(desk, gravity(_lead(new).action))  # what comes is no graver


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
    lead = _lead(new)
    covering = _covering(desk, host, asked)
    if covering is not None and gravity(lead.action) <= gravity(covering[1]):
        for one in new:
            _into(desk, one, covering[0])
        return
    if words := _against(desk, host, lead, now):
        _hold_back(desk, new, words)
        return
    of_it = [
        one
        for one in standing
        if not one.advisory or one.changed or (now and one.advisory == now.name)
    ]
    made = _raised(desk, now, of_it) if now else _new(desk, host, of_it)
    for one in of_it:
        _into(desk, one, made.name)


def _into(desk: Desk, one: Standing, name: str) -> None:
    one.advisory, one.changed, desk.touched = name, False, True
    desk.no_longer_held_back(one.case.key)


def _covering(desk: Desk, host: str, before: Sequence[Advisory]) -> tuple[str, Action] | None:
    """Return what is being done, or is done, about *host*, that its milder cases go under."""
    hold = desk.memory.holds.get(host)
    if hold is not None:
        return hold.name, hold.action
    accepted = [a for a in before if a.state is State.ACCEPTED]
    return (accepted[-1].name, accepted[-1].action) if accepted else None


def _against(desk: Desk, host: str, lead: Case, now: Advisory | None) -> str:
    """Return why *lead* is not proposed; "" if it is to be."""
    taken = desk.memory.taken.get(host)
    if desk.is_muted(f"host {host}", lead.action):
        return "the same was rejected, withdrawn, done or expired a short while ago"
    if taken is not None and taken.by != SILENT:
        return f"the host is out already: {taken.by}"
    if host in desk.memory.absent and host not in desk.memory.holds:
        return f"the host is out already: {', '.join(desk.memory.absent[host])}"
    if now is None and len(desk.memory.advisories) >= desk.limits.open_max:
        return f"{desk.limits.open_max} advisories are open, and no more may be"
    if (
        lead.basis is Basis.STATISTICAL
        and 0 < lead.price.waiting_gpu_hours <= lead.price.acting_gpu_hours
    ):
        return "waiting costs less than acting"
    if not takes_out(lead.action):
        return ""
    name, grave = now.name if now else "", gravity(lead.action)
    wanted = host, lead.place, lead.job
    return budget.refusal(desk, wanted, name, granting=False, grave=grave)


def _new(desk: Desk, host: str, standings: Sequence[Standing]) -> Advisory:
    fields = composed(standings)
    return desk.put(
        Advisory(
            name=desk.next_name(), subject=f"host {host}", hosts=(host,), state=State.PROPOSED,
            state_words="", proposed_ns=desk.now_ns, changed_ns=desk.now_ns,
            expires_ns=desk.after(desk.limits.proposal_seconds), **fields,
        ),
        fields["words"],
    )  # fmt: skip


def _raised(desk: Desk, now: Advisory, standings: Sequence[Standing]) -> Advisory:
    fields = composed(standings)
    words = f"more is wrong with it: {fields['words']}"
    return desk.put(now, words, **fields)


def composed(standings: Sequence[Standing]) -> dict[str, Any]:
    """Return what an advisory says of cases of one host: the gravest leads, the others stand beside."""
    lead, cases = _lead(standings), [one.case for one in standings]
    others = len(cases) - 1
    devices = sorted({device for case in cases for device in case.devices})[:NAMED_MAX]
    return {
        "action": lead.action, "then": lead.then, "scope": lead.scope, "basis": lead.basis,
        "reason": lead.reason,
        "words": f"{lead.words}; {others} more beside it" if others else lead.words,
        "devices": tuple(devices), "cases": tuple(sorted(case.key for case in cases)),
        "place": lead.place, "job": lead.job, "confidence": lead.confidence,
        "count": sum(case.count for case in cases), "price": lead.price,
        "checkpoint_seconds": lead.checkpoint_seconds, "hazard_per_hour": lead.hazard_per_hour,
    }  # fmt: skip


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
