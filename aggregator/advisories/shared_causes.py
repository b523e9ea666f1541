"""Advisories about shared causes: cases that begin together join one advisory, and leave as they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model import SharedCause, SharedCauseKey
from . import costs
from .advisory import (
    Action,
    Advisory,
    AdvisoryState,
    Basis,
    Case,
    Scope,
    gravity,
    is_own_device_fault,
)
from .common_cause import Cause, belongs_to_cause, cause_message, largest_cause
from .limits import NAMES_SHOWN_MAX, advisory_fields, gravest_case, suppression_reason
from .muted_causes import hold_back, is_muted, muted_candidates
from .state import MachineState, OpenCase, StateEditor


def shared_causes(state: MachineState) -> dict[SharedCauseKey, SharedCause]:
    """Return the cause of each open case that shares its cause with other hosts.

    An ended advisory, whether answered or expired, still names the cause while its cases last.
    """
    advisories = [
        advisory
        for advisory in (*state.ended.values(), *state.advisories.values())
        if not advisory.host
    ]
    causes: dict[SharedCauseKey, SharedCause] = {}
    for advisory in sorted(
        advisories, key=lambda advisory: (advisory.is_open, advisory.changed_ns)
    ):
        hosts_count, since_ns = len(advisory.hosts), advisory.since_ns or advisory.proposed_ns
        cause = SharedCause(advisory.subject, advisory.name, hosts_count, since_ns)
        for key in advisory.cases:
            if (open_case := state.cases.get(key)) is not None:
                for device in open_case.case.devices:
                    causes[open_case.case.host, open_case.case.reason, device] = cause
    return causes


def group_shared_causes(editor: StateEditor, waiting: Sequence[OpenCase]) -> set[str]:
    """Put cases of one cause into its advisory. Return the keys of muted cases."""
    _join_causes(editor, waiting)
    candidates = _candidates(editor)
    muted = muted_candidates(editor, candidates)
    candidates = _without(candidates, muted)
    in_hand = _in_hand(editor) if candidates else []
    while cause := largest_cause([*candidates, *in_hand], editor.limits, editor.state.hosts):
        members = _members(editor, cause, candidates)
        candidates = _without(candidates, members)
        if not members:  # all of its hosts are with an executor already
            in_hand = [open_case for open_case in in_hand if open_case.case.key not in cause.keys]
            continue
        if is_muted(editor, cause.domain.subject):
            muted += members
            continue
        host_advisories = {open_case.advisory for open_case in members if open_case.advisory}
        new = _new_advisory(editor, cause, [open_case.case for open_case in members])
        for open_case in members:
            editor.assign(open_case, new.name)
        for name in sorted(host_advisories):
            _leave_host_advisory(editor, editor.state.advisories[name], new)
    return hold_back(editor, muted)


def _join_causes(editor: StateEditor, waiting: Sequence[OpenCase]) -> None:
    """Add joining cases to the advisories of their causes, and publish these."""
    for known in [advisory for advisory in editor.state.advisories.values() if not advisory.host]:
        since_ns = known.since_ns or known.proposed_ns
        joined = [
            open_case
            for open_case in waiting
            if not open_case.advisory
            and belongs_to_cause(open_case, known.subject, since_ns, editor.limits)
        ]
        changed = [o for o in waiting if o.changed and o.advisory == known.name]
        for open_case in (*joined, *changed):
            editor.assign(open_case, known.name)
        if joined or changed:
            update_cause(editor, known, _joined_message(joined), [o.case.host for o in joined])


def _members(editor: StateEditor, cause: Cause, candidates: Sequence[OpenCase]) -> list[OpenCase]:
    """Return the cases of *cause*: begun together, or joined while it was muted."""
    together = set(cause.keys)
    subject, since_ns = cause.domain.subject, cause.since_ns
    members = [
        candidate
        for candidate in candidates
        if candidate.case.key in together
        or (
            not candidate.advisory and belongs_to_cause(candidate, subject, since_ns, editor.limits)
        )
    ]
    return sorted(members, key=lambda candidate: candidate.case.key)


def _without(candidates: Sequence[OpenCase], others: Sequence[OpenCase]) -> list[OpenCase]:
    keys = {open_case.case.key for open_case in others}
    return [open_case for open_case in candidates if open_case.case.key not in keys]


def _candidates(editor: StateEditor) -> list[OpenCase]:
    """Return cases without an advisory, or in a host's own that is not accepted."""
    advisories = editor.state.advisories
    return [
        open_case
        for open_case in editor.state.cases.values()
        if not open_case.advisory
        or (
            (advisory := advisories.get(open_case.advisory))
            and advisory.host
            and advisory.state is not AdvisoryState.ACCEPTED
        )
    ]


def _in_hand(editor: StateEditor) -> list[OpenCase]:
    """Return faults of hosts' own devices in an executor's hands, as evidence of a cause."""
    advisories, holds = editor.state.advisories, editor.state.holds
    return [
        open_case
        for open_case in editor.state.cases.values()
        if open_case.advisory
        and is_own_device_fault(open_case.case)
        and (
            (advisory.host and advisory.state is AdvisoryState.ACCEPTED)
            if (advisory := advisories.get(open_case.advisory))
            else open_case.case.host in holds
        )
    ]


def _new_advisory(editor: StateEditor, cause: Cause, cases: Sequence[Case]) -> Advisory:
    scope = cause.domain.scope
    hosts = tuple(sorted({*cause.hosts, *(case.host for case in cases)}))
    fields = _cause_fields(editor, cases, hosts, scope, cause.since_ns)
    first = gravest_case(cases)
    return editor.put(
        Advisory(
            name=editor.next_name(), subject=cause.domain.subject, action=Action.INSPECT, scope=scope,
            basis=Basis.SHARED_CAUSE, reason=first.reason, state=AdvisoryState.PROPOSED, state_message="",
            proposed_ns=editor.now_ns, expires_ns=editor.after(editor.limits.proposal_seconds),
            changed_ns=editor.now_ns, place=first.place, since_ns=cause.since_ns, **fields,
        ),
        fields["message"],
    )  # fmt: skip


def _cause_fields(
    editor: StateEditor, cases: Sequence[Case], hosts: tuple[str, ...], scope: Scope, since_ns: int
) -> dict[str, Any]:
    """Return the fields of an advisory for a cause with *cases*. *hosts*: all that failed."""
    message = cause_message(cases, len(hosts), scope, since_ns, editor.state.hosts, editor.limits)
    return {
        "hosts": hosts, "cases": tuple(sorted(case.key for case in cases)), "message": message,
        "count": sum(case.count for case in cases), "price": costs.combined_price(cases),
    }  # fmt: skip


def _leave_host_advisory(editor: StateEditor, host_advisory: Advisory, cause: Advisory) -> None:
    """Remove the cases of *cause* from a host's own advisory; withdraw it with the last."""
    rest = [o for o in editor.state.cases.values() if o.advisory == host_advisory.name]
    reason = f"not this host's own fault: {cause.name}"
    if not rest or not lower_advisory(editor, host_advisory, rest, reason):
        editor.put(host_advisory, reason, state=AdvisoryState.WITHDRAWN)


def lower_advisory(
    editor: StateEditor, host_advisory: Advisory, remaining: Sequence[OpenCase], reason: str
) -> bool:
    """Lower a host's own advisory to the action of its *remaining* cases.

    Return False if that action is suppressed (it was rejected, or costs more than waiting): the
    cases then have no advisory. A more severe action is left to `propose`; until then the advisory
    keeps its action.
    """
    cases = [open_case.case for open_case in remaining]
    if gravity(gravest_case(cases).action) > gravity(host_advisory.action):
        editor.put(host_advisory, reason, cases=tuple(sorted(open_case.key for open_case in cases)))
        return True
    if suppression_reason(editor, host_advisory.subject, gravest_case(cases)):
        for open_case in remaining:
            open_case.advisory, editor.is_changed = "", True
        return False
    editor.put(host_advisory, reason, **advisory_fields(cases))
    return True


def _joined_message(joined: Sequence[OpenCase]) -> str:
    hosts = sorted({open_case.case.host for open_case in joined})
    if not hosts:
        return "the state of its hosts has changed"
    more = f" and {len(hosts) - NAMES_SHOWN_MAX} more" if len(hosts) > NAMES_SHOWN_MAX else ""
    return f"of the same cause: {', '.join(hosts[:NAMES_SHOWN_MAX])}{more}"


def update_cause(
    editor: StateEditor, cause: Advisory, reason: str, joined: Sequence[str] = ()
) -> None:
    """Publish *cause* with its current cases, and the hosts that *joined*."""
    cases = [o.case for o in editor.state.cases.values() if o.advisory == cause.name]
    hosts = tuple(sorted({*cause.hosts, *joined}))
    since_ns = cause.since_ns or cause.proposed_ns
    editor.put(cause, reason, **_cause_fields(editor, cases, hosts, cause.scope, since_ns))
