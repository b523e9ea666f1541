"""Limits on advisories: mutes, prices, and hosts out per rack, job, fleet and hour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from ...contract.text import counted
from .advisory import MOVE_WORK, Action, Advisory, AdvisoryState, Basis, Case, gravity, removes_host
from .advisory_limits import HOUR_NS, SECOND_NS
from .failure_domains import FailureDomains
from .state import SILENT, StateEditor

#: Prefix of the reason of a deferral that ends with the other actor's report.
OUT_ALREADY = "the host is out already: "

#: Maximum of devices named in an advisory.
NAMES_SHOWN_MAX = 16
#: Smaller changes of a price are ignored.
PRICE_STEP_RATIO = 1.25


def suppression_reason(editor: StateEditor, subject: str, first: Case) -> str:
    """Return why nothing may be requested of *subject* for its worst case; "" if allowed."""
    return _mute_reason(editor, subject, first) or _price_reason(first)


def unavailable_reason(editor: StateEditor, host: str, action: Action) -> str:
    """Return the reporter that has *host* out, so that *action* is not advised; "" for none.

    Silent hosts may get advice, and so may hosts out for new work only, if *action* moves running
    work.
    """
    unavailable_host = editor.state.taken.get(host)
    if unavailable_host is not None and unavailable_host.by != SILENT:
        return f"{OUT_ALREADY}{unavailable_host.by}"
    reports = editor.state.absent.get(host, {})
    if not reports or host in editor.state.holds:
        return ""
    if action in MOVE_WORK and all(report.new_work_only for report in reports.values()):
        return ""
    return f"{OUT_ALREADY}{', '.join(reports)}"


def _mute_reason(editor: StateEditor, subject: str, first: Case) -> str:
    until_ns = editor.muted_until_ns(subject, first.action)
    if not until_ns:
        return ""
    until = f"{datetime.fromtimestamp(until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    return (
        "the same advisory was rejected, withdrawn, done or expired, and is not repeated before "
        f"{until} "
        "(`gangline advise list --all` has it)"
    )


def _price_reason(first: Case) -> str:
    price = first.price
    wait = (
        first.basis is Basis.STATISTICAL and 0 < price.waiting_gpu_hours <= price.acting_gpu_hours
    )
    if not wait:
        return ""
    waiting, acting = price.waiting_gpu_hours, price.acting_gpu_hours
    return f"waiting costs less ({waiting:,.1f} GPU-hours) than acting ({acting:,.1f})"


def change_reason(before: Action, now: Action, reason: str) -> str:
    """Return why an advisory with the action *before* is reported again, with *now*."""
    if gravity(now) > gravity(before):
        return f"it has got worse: {reason}"
    if gravity(now) < gravity(before):
        return f"a lesser action is needed than before: {reason}"
    return f"it has changed: {reason}"


def is_material_change(before: Case, now: Case) -> bool:
    """Return whether *now* must be reported; later readings of the same need not."""
    compared = ("action", "then", "scope", "basis", "reason", "devices", "job", "place")
    return (
        any(getattr(before, name) != getattr(now, name) for name in compared)
        or before.checkpoint_seconds != now.checkpoint_seconds
        or _order_of_magnitude(before.count) != _order_of_magnitude(now.count)
        or _price_changed(before.price.waiting_gpu_hours, now.price.waiting_gpu_hours)
        or _price_changed(before.price.acting_gpu_hours, now.price.acting_gpu_hours)
    )


def _order_of_magnitude(count: int) -> int:
    return int(math.log10(max(count, 1)))


def _price_changed(before: float, now: float) -> bool:
    low, high = sorted((max(before, 0.1), max(now, 0.1)))  # prices below 0.1 GPU-hours are equal
    return high > PRICE_STEP_RATIO * low


def gravest_case(cases: Sequence[Case]) -> Case:
    """Return the most severe case, the oldest if several."""
    return min(cases, key=lambda case: (-gravity(case.action), case.since_ns, case.key))


def advisory_fields(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the fields of an advisory about cases of one host, led by the most severe."""
    first = gravest_case(cases)
    others = len(cases) - 1
    devices = sorted({device for case in cases for device in case.devices})[:NAMES_SHOWN_MAX]
    return {
        "action": first.action, "then": first.then, "scope": first.scope, "basis": first.basis,
        "reason": first.reason,
        "message": f"{first.message}; and {others} more" if others else first.message,
        "devices": tuple(devices), "cases": tuple(sorted(case.key for case in cases)),
        "place": first.place, "job": first.job, "confidence": first.confidence,
        "count": sum(case.count for case in cases), "price": first.price,
        "checkpoint_seconds": first.checkpoint_seconds, "hazard_per_hour": first.hazard_per_hour,
    }  # fmt: skip


OutMember = tuple[str, FailureDomains, str]  # host, place, job


def unavailable_hosts(editor: StateEditor) -> Iterator[OutMember]:
    """Yield every host that is out, whatever the actor, or granted to an executor."""
    state = editor.state
    for host, unavailable_host in state.taken.items():
        yield host, unavailable_host.place, unavailable_host.job
    for host, by_actor in state.absent.items():
        for declared_out in by_actor.values():
            yield host, declared_out.place, declared_out.job
    for host, hold in state.holds.items():
        yield host, hold.place, hold.job


def reserved_hosts(editor: StateEditor, excluded: str = "", grave: int = 0) -> Iterator[OutMember]:
    """Yield hosts that would be out if all proposals of at least severity *grave* were accepted.

    Less severe proposals yield: an unanswered suspicion must not keep the host of a dead GPU in
    service.
    """
    for advisory in editor.state.advisories.values():
        if (
            advisory.state is not AdvisoryState.PROPOSED
            or not removes_host(advisory.action)
            or advisory.name == excluded
        ):
            continue
        if gravity(advisory.action) >= grave:
            yield advisory.host, advisory.place, advisory.job


def refusal(
    editor: StateEditor, wanted: OutMember, name: str, *, granting: bool, grave: int = 0
) -> str:
    """Return the limit that forbids taking out *wanted*; "" if no limit does.

    *granting*: *wanted* is taken out now, not only proposed. *grave*: severity of the proposal;
    less severe proposals are ignored.
    """
    host, place, job = wanted
    members = list(unavailable_hosts(editor))
    out = {member[0] for member in members}
    if not granting:
        members += reserved_hosts(editor, name, grave)
    return (
        ("" if host in out else fleet_refusal(editor, members, name, granting=granting))
        or _group_refusal("rack", place.rack, editor.limits.rack_hosts_max, host, members)
        or _group_refusal("job", job, editor.limits.job_hosts_max, host, members)
    )


def fleet_refusal(
    editor: StateEditor, members: list[OutMember], name: str, *, granting: bool
) -> str:
    """Return why no further host may be taken out now; "" if one may."""
    limit = editor.limits.cluster_hosts_max(editor.state.hosts)
    if len({member[0] for member in members}) >= limit:
        return f"limit of {counted(limit, 'host')} out of service reached"
    return _rate_refusal(editor, name, granting=granting)


def _group_refusal(kind: str, group: str, limit: int, host: str, members: list[OutMember]) -> str:
    if not group:
        return ""
    field_index = 1 if kind == "rack" else 2
    hosts = {
        member[0]
        for member in members
        if (member[1].rack if field_index == 1 else member[2]) == group
    }
    if host in hosts or len(hosts) < limit:
        return ""
    return f"limit of {counted(limit, 'host')} of {kind} {group} out of service reached"


def _rate_refusal(editor: StateEditor, name: str, *, granting: bool) -> str:
    breaker = editor.state.fuse
    if breaker.position == "open":
        return "too many advisories or failures in a short time: the circuit breaker is open"
    if breaker.position == "half-open" and breaker.trial not in ("", name):
        return (
            f"one host at a time until {breaker.trial} succeeds: the circuit breaker is half-open"
        )
    return hourly_refusal(editor) if granting else ""


def hourly_refusal(editor: StateEditor) -> str:
    """Return the message that the hourly limit is reached; "" if it is not."""
    limit = editor.limits.hosts_per_hour_max
    if granted_in_hour(editor) < limit:
        return ""
    return f"limit of {counted(limit, 'host')} taken out per hour reached"


def granted_in_hour(editor: StateEditor) -> int:
    """Return the number of hosts that advice took out within the last hour."""
    return sum(granted_ns > editor.now_ns - HOUR_NS for granted_ns in editor.state.granted_ns)


def record_grant(editor: StateEditor, advisory: Advisory) -> None:
    """Count *advisory* as taking its host out now."""
    state = editor.state
    out = {member[0] for member in unavailable_hosts(editor)}
    if advisory.host not in out:
        state.granted_ns = [
            granted_ns for granted_ns in state.granted_ns if granted_ns > editor.now_ns - HOUR_NS
        ] + [editor.now_ns]
        if state.fuse.position == "half-open":
            state.fuse.trial = advisory.name
            state.fuse.until_ns = editor.after(editor.limits.breaker_seconds)
    editor.is_changed = True


def proposal_refusal(editor: StateEditor, grave: int) -> str:
    """Return why no action of severity *grave* may be proposed; "" if it may."""
    members = [*unavailable_hosts(editor), *reserved_hosts(editor, grave=grave)]
    return fleet_refusal(editor, members, "", granting=False)
