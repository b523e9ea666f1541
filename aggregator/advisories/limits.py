"""Limits on advisories: what was answered recently, what costs more than waiting, and hosts that others took out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from .advisory import (
    HOUR_NS,
    MOVE_WORK,
    SECOND_NS,
    Action,
    Advisory,
    AdvisoryState,
    Basis,
    Case,
    FailureDomains,
    gravity,
    removes_host,
)
from .state import SILENT, StateEditor

#: Begin of the reason of a deferral that ends with the others' report.
OUT_ALREADY = "the host is out already: "


def suppression_reason(editor: StateEditor, subject: str, first: Case) -> str:
    """Return why nothing is asked of *subject* for *first*, the gravest of its cases; "" if it may be."""
    return _mute_reason(editor, subject, first) or _price_reason(first)


def unavailable_reason(editor: StateEditor, host: str, action: Action) -> str:
    """Return the reporter that has *host* out, so that *action* is not advised; "" for none. Silent hosts may get advice.

    An action that moves running work is advised although a report keeps new work off *host*.
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
    """Return why an advisory that asked for *before*, and asks for *now*, is reported again."""
    if gravity(now) > gravity(before):
        return f"it has got worse: {reason}"
    if gravity(now) < gravity(before):
        return f"a lesser action is needed than before: {reason}"
    return f"it has changed: {reason}"


# ----------------------------------------------------------------------
# What an advisory says of the cases that it is made of, and when a case is news.

#: Devices and cases that an advisory names; of more it says how many.
NAMES_SHOWN_MAX = 16
#: A price that moved by less is the same.
PRICE_STEP_RATIO = 1.25


def is_material_change(before: Case, now: Case) -> bool:
    """Return whether *now* is news: not for a later reading of the same, nor for each line of a storm."""
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
    low, high = sorted((max(before, 0.1), max(now, 0.1)))  # below 0.1 GPU-hours all is one
    return high > PRICE_STEP_RATIO * low


def gravest_case(cases: Sequence[Case]) -> Case:
    """Return the gravest case, the oldest of as grave ones."""
    return min(cases, key=lambda one: (-gravity(one.action), one.since_ns, one.key))


def advisory_fields(cases: Sequence[Case]) -> dict[str, Any]:
    """Return what an advisory says of cases of one host: the gravest leads, the others stand beside."""
    first = gravest_case(cases)
    others = len(cases) - 1
    devices = sorted({device for case in cases for device in case.devices})[:NAMES_SHOWN_MAX]
    return {
        "action": first.action, "then": first.then, "scope": first.scope, "basis": first.basis,
        "reason": first.reason,
        "words": f"{first.words}; and {others} more" if others else first.words,
        "devices": tuple(devices), "cases": tuple(sorted(case.key for case in cases)),
        "place": first.place, "job": first.job, "confidence": first.confidence,
        "count": sum(case.count for case in cases), "price": first.price,
        "checkpoint_seconds": first.checkpoint_seconds, "hazard_per_hour": first.hazard_per_hour,
    }  # fmt: skip


# ----------------------------------------------------------------------
# The blast radius: how many hosts may be out of a rack, of a job, of the fleet, and in an hour.

OutMember = tuple[str, FailureDomains, str]  # host, place, job


def unavailable_hosts(editor: StateEditor) -> Iterator[OutMember]:
    """Every host that is out, no matter who took it out; what is lent to an executor counts as out."""
    state = editor.state
    for host, unavailable_host in state.taken.items():
        yield host, unavailable_host.place, unavailable_host.job
    for host, by_actor in state.absent.items():
        for declared_out in by_actor.values():
            yield host, declared_out.place, declared_out.job
    for host, hold in state.holds.items():
        yield host, hold.place, hold.job


def reserved_hosts(editor: StateEditor, excluded: str = "", grave: int = 0) -> Iterator[OutMember]:
    """Every host that would be out if all that is proposed, as grave or graver, were accepted.

    What is milder yields: a suspicion that nobody has answered must not hold a dead GPU's host in service.
    """
    for one in editor.state.advisories.values():
        if (
            one.state is not AdvisoryState.PROPOSED
            or not removes_host(one.action)
            or one.name == excluded
        ):
            continue
        if gravity(one.action) >= grave:
            yield one.host, one.place, one.job


def refusal(
    editor: StateEditor, wanted: OutMember, name: str, *, granting: bool, grave: int = 0
) -> str:
    """Return why *wanted* may not be taken out; "" if it may.

    *granting*: now, not only proposed. *grave*: how grave what is proposed is.
    """
    host, place, job = wanted
    members = list(unavailable_hosts(editor))
    out = {one[0] for one in members}
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
    """Return why no host that is not out already may be taken out now, whichever it is; "" if one may."""
    limit = editor.limits.cluster_hosts_max(editor.state.hosts)
    if len({one[0] for one in members}) >= limit:
        return f"limit of {_hosts(limit)} out of service reached"
    return _rate_refusal(editor, name, granting=granting)


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def _group_refusal(kind: str, group: str, limit: int, host: str, members: list[OutMember]) -> str:
    if not group:
        return ""
    at = 1 if kind == "rack" else 2
    hosts = {one[0] for one in members if (one[1].rack if at == 1 else one[2]) == group}
    if host in hosts or len(hosts) < limit:
        return ""
    return f"limit of {_hosts(limit)} of {kind} {group} out of service reached"


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
    """Return the message that as many hosts as allowed were taken out within an hour; "" if more may be."""
    limit = editor.limits.hosts_per_hour_max
    if granted_in_hour(editor) < limit:
        return ""
    return f"limit of {_hosts(limit)} taken out per hour reached"


def granted_in_hour(editor: StateEditor) -> int:
    """Return how many hosts were taken out by advice within the hour that ends now."""
    return sum(one > editor.now_ns - HOUR_NS for one in editor.state.granted_ns)


def record_grant(editor: StateEditor, advisory: Advisory) -> None:
    """Count *advisory* as taking its host out from now on."""
    state = editor.state
    out = {one[0] for one in unavailable_hosts(editor)}
    if advisory.host not in out:
        state.granted_ns = [one for one in state.granted_ns if one > editor.now_ns - HOUR_NS] + [
            editor.now_ns
        ]
        if state.fuse.position == "half-open":
            state.fuse.trial = advisory.name
            state.fuse.until_ns = editor.after(editor.limits.breaker_seconds)
    editor.is_changed = True


def proposal_refusal(editor: StateEditor, grave: int) -> str:
    """Return why nothing as grave may be proposed that takes a host out; "" if it may."""
    members = [*unavailable_hosts(editor), *reserved_hosts(editor, grave=grave)]
    return fleet_refusal(editor, members, "", granting=False)
