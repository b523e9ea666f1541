"""One advisory for what hosts share: cases that fall together go into it, and out of it as they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import causes, costs, muted
from .advisory import Action, Advisory, Basis, Case, Scope, State, gravity
from .asking import unasked
from .composing import NAMED_MAX, composed, lead
from .desk import Desk, Standing


def share(desk: Desk, waiting: Sequence[Standing]) -> set[str]:
    """Put cases of one cause into its advisory. Return the keys of those of which nothing is to be said now."""
    _join(desk, waiting)
    candidates = _candidates(desk)
    quiet = muted.of_muted(desk, candidates)
    candidates = _without(candidates, quiet)
    while cause := causes.found(candidates, desk.limits, desk.memory.hosts):
        members = _members(desk, cause, candidates)
        candidates = _without(candidates, members)
        if muted.is_muted(desk, cause.domain.subject):
            quiet += members
            continue
        alone = {one.advisory for one in members if one.advisory}
        new = _new(desk, cause, [one.case for one in members])
        for one in members:
            desk.into(one, new.name)
        for name in sorted(alone):
            _leave(desk, desk.memory.advisories[name], new)
    return muted.hold_back(desk, quiet)


def _join(desk: Desk, waiting: Sequence[Standing]) -> None:
    """Put what follows into the advisory of its cause, and tell that anew."""
    for known in [a for a in desk.memory.advisories.values() if not a.host]:
        since_ns = known.since_ns or known.proposed_ns
        joined = [
            one
            for one in waiting
            if not one.advisory and causes.belongs(one, known.subject, since_ns, desk.limits)
        ]
        changed = [one for one in waiting if one.changed and one.advisory == known.name]
        for one in (*joined, *changed):
            desk.into(one, known.name)
        if joined or changed:
            retell(desk, known, _joined(joined), [one.case.host for one in joined])


def _members(desk: Desk, cause: causes.Cause, candidates: Sequence[Standing]) -> list[Standing]:
    """Return the cases of *cause*: those that began together, and what followed while nothing was told of them."""
    together = set(cause.keys)
    subject, since_ns = cause.domain.subject, cause.since_ns
    members = [
        one
        for one in candidates
        if one.case.key in together
        or (not one.advisory and causes.belongs(one, subject, since_ns, desk.limits))
    ]
    return sorted(members, key=lambda one: one.case.key)


def _without(candidates: Sequence[Standing], others: Sequence[Standing]) -> list[Standing]:
    keys = {one.case.key for one in others}
    return [one for one in candidates if one.case.key not in keys]


def _candidates(desk: Desk) -> list[Standing]:
    """Return what may be of a cause: whatever has no advisory, or one of its own that nobody accepted."""
    advisories = desk.memory.advisories
    return [
        one
        for one in desk.memory.cases.values()
        if not one.advisory
        or ((a := advisories.get(one.advisory)) and a.host and a.state is not State.ACCEPTED)
    ]


def _new(desk: Desk, cause: causes.Cause, cases: Sequence[Case]) -> Advisory:
    scope = cause.domain.scope
    hosts = tuple(sorted({one.host for one in cases}))
    fields = _of_cause(desk, cases, hosts, scope, cause.since_ns)
    first = lead(cases)
    return desk.put(
        Advisory(
            name=desk.next_name(), subject=cause.domain.subject, action=Action.INSPECT, scope=scope,
            basis=Basis.SHARED_CAUSE, reason=first.reason, state=State.PROPOSED, state_words="",
            proposed_ns=desk.now_ns, expires_ns=desk.after(desk.limits.proposal_seconds),
            changed_ns=desk.now_ns, place=first.place, since_ns=cause.since_ns, **fields,
        ),
        fields["words"],
    )  # fmt: skip


def _of_cause(
    desk: Desk, cases: Sequence[Case], hosts: tuple[str, ...], scope: Scope, since_ns: int
) -> dict[str, Any]:
    """Return what an advisory for a cause says of its *cases*. *hosts*: all that fell."""
    words = causes.words_of(cases, len(hosts), scope, since_ns, desk.memory.hosts, desk.limits)
    return {
        "hosts": hosts, "cases": tuple(sorted(one.key for one in cases)), "words": words,
        "count": sum(one.count for one in cases), "price": costs.together(cases),
    }  # fmt: skip


def _leave(desk: Desk, alone: Advisory, cause: Advisory) -> None:
    """Take the cases that went into that of their cause out of a host's own advisory; withdraw it with the last."""
    rest = [one for one in desk.memory.cases.values() if one.advisory == alone.name]
    words = f"not this host's own fault: {cause.name}"
    if not rest or not lower(desk, alone, rest, words):
        desk.put(alone, words, state=State.WITHDRAWN)


def lower(desk: Desk, alone: Advisory, left: Sequence[Standing], words: str) -> bool:
    """Let a host's own advisory ask for what the cases that are *left* in it call for.

    False: that was answered before (rejected, say), or costs more than waiting, and is not asked for in another's name:
    they are without one. What is graver by now is asked for anew, as `propose` does: until then it asks for what it did.
    """
    cases = [one.case for one in left]
    if gravity(lead(cases).action) > gravity(alone.action):
        desk.put(alone, words, cases=tuple(sorted(one.key for one in cases)))
        return True
    if unasked(desk, alone.subject, lead(cases)):
        for one in left:
            one.advisory, desk.touched = "", True
        return False
    desk.put(alone, words, **composed(cases))
    return True


def _joined(joined: Sequence[Standing]) -> str:
    hosts = sorted({one.case.host for one in joined})
    if not hosts:
        return "its hosts are not as they were"
    more = f" and {len(hosts) - NAMED_MAX} more" if len(hosts) > NAMED_MAX else ""
    return f"of the same cause: {', '.join(hosts[:NAMED_MAX])}{more}"


def retell(desk: Desk, cause: Advisory, why: str, joined: Sequence[str] = ()) -> None:
    """Tell *cause* anew as its cases are by now, with the hosts that *joined*."""
    cases = [one.case for one in desk.memory.cases.values() if one.advisory == cause.name]
    hosts = tuple(sorted({*cause.hosts, *joined}))
    since_ns = cause.since_ns or cause.proposed_ns
    desk.put(cause, why, **_of_cause(desk, cases, hosts, cause.scope, since_ns))
