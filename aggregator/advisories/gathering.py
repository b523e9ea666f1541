"""Which new cases wait for others of the same cause: what hosts can share, and who is not alone.

A certain fault of a host's own device is proposed at once. If another host of one of its domains fell with it, it waits
like the rest: three such hosts are one cause. A cause that is found later takes the first one in (`shared_causes.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from .advisory import SILENCE_REASON, Case, is_own_device_fault, seconds_ns
from .shared_causes import domains_of
from .state import OpenCase, StateEditor

#: When cases began and of which host, in order, by the subject of what they may share.
BeginTimes = dict[str, list[tuple[int, str]]]


def gathering_keys(editor: StateEditor, waiting: Sequence[OpenCase]) -> set[str]:
    """Return the keys of those of *waiting* that wait for others of their cause. Silence has a longer wait of its own."""
    earliest_ns = editor.after(-editor.limits.gather_seconds)
    recent = [one.case for one in waiting if one.seen_ns > earliest_ns]
    recent = [case for case in recent if case.reason != SILENCE_REASON]
    own = [case for case in recent if is_own_device_fault(case)]
    begin_times = _begin_times(editor, own) if own else {}
    span_ns = seconds_ns(editor.limits.shared_seconds)
    return {
        case.key
        for case in recent
        if not is_own_device_fault(case) or _has_company(case, begin_times, span_ns)
    }


def _begin_times(editor: StateEditor, own: Sequence[Case]) -> BeginTimes:
    """Return when the cases began that may have begun with one of *own*."""
    span_ns = seconds_ns(editor.limits.shared_seconds)
    earliest_ns = min(case.since_ns for case in own) - span_ns
    latest_ns = max(case.since_ns for case in own) + span_ns
    begin_times: BeginTimes = defaultdict(list)
    for case in [one.case for one in editor.state.cases.values()]:
        if earliest_ns <= case.since_ns <= latest_ns:
            for domain in domains_of(case.place, case.reason):
                begin_times[domain.subject].append((case.since_ns, case.host))
    for times in begin_times.values():
        times.sort()
    return begin_times


def _has_company(case: Case, begin_times: BeginTimes, span_ns: int) -> bool:
    """Say whether another host, of one of the domains of *case*, fell within *span_ns* of it."""
    for domain in domains_of(case.place, case.reason):
        times = begin_times[domain.subject]
        for at in range(bisect_left(times, (case.since_ns - span_ns, "")), len(times)):
            since_ns, host = times[at]
            if since_ns > case.since_ns + span_ns:
                break
            if host != case.host:
                return True
    return False
