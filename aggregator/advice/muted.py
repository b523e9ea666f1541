"""Causes of which nothing is to be said for a while: nor under another domain, nor host by host."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from .advisory import Action, Advisory, Case
from .causes import Domain, domains_of, sharing
from .desk import Desk, Standing
from .limits import SECOND_NS, seconds_ns


def mute_members(desk: Desk, cause: Advisory, seconds: float) -> None:
    """Let nothing be said for so long of the cases in *cause*; of its hosts that are well again, for a moment."""
    well = set(cause.hosts)
    for one in desk.memory.cases.values():
        if one.advisory == cause.name:
            well.discard(one.case.host)
            desk.mute(f"host {one.case.host}", one.case.action, seconds)
            desk.mute(_member(one.case.host, one.case.reason), one.case.action, seconds)
    for host in sorted(well):
        moment = min(seconds, desk.limits.flap_seconds)
        desk.mute(_member(host, cause.reason), Action.EVICT_NOW, moment)


def is_muted(desk: Desk, subject: str) -> bool:
    """Say whether nothing is to be said of the cause *subject* now."""
    return desk.is_muted(subject, Action.INSPECT)


def of_muted(desk: Desk, candidates: Sequence[Standing]) -> list[Standing]:
    """Return those of *candidates* that were in a muted cause, and who fell with these or after them, as one joins a cause."""
    if not desk.memory.muted:
        return []
    were = [one for one in candidates if _was_in(desk, one.case)]
    began = _began(desk, were)
    if not began:
        return were
    known = {one.case.key for one in were}
    return [one for one in candidates if one.case.key in known or _follows(desk, one.case, began)]


def hold_back(desk: Desk, quiet: Iterable[Standing]) -> set[str]:
    """Say of each of *quiet* until when and why nothing is said of it, and return their keys.

    Not of what an advisory is about, nor of what became graver than what was answered, nor of a host that is out by us.
    """
    quiet = [one for one in quiet if not one.advisory]
    if not quiet:
        return set()
    ended = {one.subject: one for one in desk.memory.ended.values() if not one.host}
    held, words = set[str](), dict[tuple[Domain, ...], str]()
    for case in [one.case for one in quiet]:
        graver = _was_in(desk, case) and not desk.is_muted(_member_of(case), case.action)
        if not graver and case.host not in desk.memory.holds:
            domains = domains_of(case.place, case.reason)
            words[domains] = words.get(domains) or _words(desk, case, ended)
            desk.hold_back(case, case.action, words[domains])
            held.add(case.key)
    return held


def _member(host: str, reason: str) -> str:
    """Return under what *host* is muted as one of those that share what is behind *reason*."""
    return f"{sharing(reason).kind} of {host}"


def _member_of(case: Case) -> str:
    return _member(case.host, case.reason)


def _was_in(desk: Desk, case: Case) -> bool:
    return is_muted(desk, _member_of(case))


def _began(desk: Desk, were: Sequence[Standing]) -> dict[str, list[int]]:
    """Return when cases of each muted cause began, in order."""
    began: dict[str, set[int]] = defaultdict(set)
    for one in [one for one in were if not one.case.unseen]:
        for domain in domains_of(one.case.place, one.case.reason):
            began[domain.subject].add(one.case.since_ns)
    return {subject: sorted(times) for subject, times in began.items() if is_muted(desk, subject)}


def _follows(desk: Desk, case: Case, began: dict[str, list[int]]) -> bool:
    """Say whether *case* began with one of those that *began*, or so soon after it that it would have joined their cause."""
    earliest_ns = case.since_ns - seconds_ns(desk.limits.shared_join_seconds)
    latest_ns = case.since_ns + seconds_ns(desk.limits.shared_seconds)
    for domain in domains_of(case.place, case.reason):
        times = began.get(domain.subject, ())
        at = bisect_left(times, earliest_ns)
        if at < len(times) and times[at] <= latest_ns:
            return True
    return False


def _words(desk: Desk, case: Case, ended: dict[str, Advisory]) -> str:
    subjects = [domain.subject for domain in domains_of(case.place, case.reason)]
    ends = {subject: desk.muted_until_ns(subject, Action.INSPECT) for subject in subjects}
    subject = max(subjects, key=lambda each: ends[each])
    until_ns = ends[subject] or desk.muted_until_ns(_member_of(case), case.action)
    until = f"{datetime.fromtimestamp(until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    before = ended.get(subject)
    why = (
        f"{before.name}: {before.state_words}" if before else "rejected, withdrawn, done or expired"
    )
    return f"of the same cause as before, {subject} ({why}): not again before {until}"
