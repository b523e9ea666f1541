"""Muted causes: a muted cause is proposed neither under another domain nor host by host."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from .advisory import Action, Advisory, Case
from .advisory_limits import SECOND_NS, seconds_ns
from .common_cause import Domain, cause_kind, domains_of
from .state import OpenCase, StateEditor


def mute_members(editor: StateEditor, cause: Advisory, seconds: float) -> None:
    """Mute the cases in *cause*; its recovered hosts for at most `flap_seconds`."""
    well = set(cause.hosts)
    for open_case in editor.state.cases.values():
        if open_case.advisory == cause.name:
            well.discard(open_case.case.host)
            editor.mute(f"host {open_case.case.host}", open_case.case.action, seconds)
            case = open_case.case
            editor.mute(_member_subject(case.host, case.reason), case.action, seconds)
    for host in sorted(well):
        moment = min(seconds, editor.limits.flap_seconds)
        editor.mute(_member_subject(host, cause.reason), Action.EVICT_NOW, moment)


def is_muted(editor: StateEditor, subject: str) -> bool:
    """Return whether the cause *subject* is muted now."""
    return editor.is_muted(subject, Action.INSPECT)


def muted_candidates(editor: StateEditor, candidates: Sequence[OpenCase]) -> list[OpenCase]:
    """Return the *candidates* of muted causes, and those that began with them or later."""
    if not editor.state.muted:
        return []
    were_muted = [candidate for candidate in candidates if _was_muted(editor, candidate.case)]
    begin_times = _begin_times(editor, were_muted)
    if not begin_times:
        return were_muted
    known = {candidate.case.key for candidate in were_muted}
    return [c for c in candidates if c.case.key in known or _follows(editor, c.case, begin_times)]


def hold_back(editor: StateEditor, muted: Iterable[OpenCase]) -> set[str]:
    """Record for each of *muted* the reason and the end of its mute; return the keys.

    Exclude cases with an advisory, cases more severe than the answered one, and hosts that advice
    has out.
    """
    muted = [open_case for open_case in muted if not open_case.advisory]
    if not muted:
        return set()
    ended = {a.subject: a for a in editor.state.ended.values() if not a.host}
    withheld_keys, reasons = set[str](), dict[tuple[Domain, ...], str]()
    for case in [open_case.case for open_case in muted]:
        is_more_severe = _was_muted(editor, case) and not editor.is_muted(
            _case_subject(case), case.action
        )
        if not is_more_severe and case.host not in editor.state.holds:
            domains = domains_of(case.place, case.reason)
            reasons[domains] = reasons.get(domains) or _mute_reason(editor, case, ended)
            editor.hold_back(case, case.action, reasons[domains])
            withheld_keys.add(case.key)
    return withheld_keys


def _member_subject(host: str, reason: str) -> str:
    """Return the subject under which *host* is muted as a member of a cause with *reason*."""
    return f"{cause_kind(reason).kind} of {host}"


def _case_subject(case: Case) -> str:
    return _member_subject(case.host, case.reason)


def _was_muted(editor: StateEditor, case: Case) -> bool:
    return is_muted(editor, _case_subject(case))


def _begin_times(editor: StateEditor, were_muted: Sequence[OpenCase]) -> dict[str, list[int]]:
    """Return the sorted begins of cases of each muted cause."""
    begin_times: dict[str, set[int]] = defaultdict(set)
    for open_case in [open_case for open_case in were_muted if not open_case.case.unseen]:
        for domain in domains_of(open_case.case.place, open_case.case.reason):
            begin_times[domain.subject].add(open_case.case.since_ns)
    return {
        subject: sorted(times)
        for subject, times in begin_times.items()
        if is_muted(editor, subject)
    }


def _follows(editor: StateEditor, case: Case, begin_times: dict[str, list[int]]) -> bool:
    """Return whether *case* began with *begin_times*, or soon enough to join."""
    earliest_ns = case.since_ns - seconds_ns(editor.limits.shared_join_seconds)
    latest_ns = case.since_ns + seconds_ns(editor.limits.shared_seconds)
    for domain in domains_of(case.place, case.reason):
        times = begin_times.get(domain.subject, ())
        index = bisect_left(times, earliest_ns)
        if index < len(times) and times[index] <= latest_ns:
            return True
    return False


def _mute_reason(editor: StateEditor, case: Case, ended: dict[str, Advisory]) -> str:
    subjects = [domain.subject for domain in domains_of(case.place, case.reason)]
    ends = {subject: editor.muted_until_ns(subject, Action.INSPECT) for subject in subjects}
    subject = max(subjects, key=lambda candidate: ends[candidate])
    until_ns = ends[subject] or editor.muted_until_ns(_case_subject(case), case.action)
    until = f"{datetime.fromtimestamp(until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    before = ended.get(subject)
    outcome = (
        f"{before.name}: {before.state_message}"
        if before
        else "rejected, withdrawn, done or expired"
    )
    return f"of the same cause as before, {subject} ({outcome}): not again before {until}"
