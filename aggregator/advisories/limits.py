"""What is not asked for, whoever has room: what was answered lately, what costs more than waiting, and of whom others took out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from .advisory import (
    HOUR_NS,
    SECOND_NS,
    Action,
    Advisory,
    Basis,
    Case,
    Place,
    State,
    gravity,
    takes_out,
)
from .state import SILENT, Desk

WAITING_COSTS_LESS = "waiting costs less than acting"


def unasked(desk: Desk, subject: str, first: Case) -> str:
    """Return why nothing is asked of *subject* for *first*, the gravest of its cases; "" if it may be."""
    return _muted(desk, subject, first) or _priced_out(first)


def out_already(desk: Desk, host: str) -> str:
    """Return who has *host* out, so that nothing is advised for it; "" where nobody has. Of a silent one something may be."""
    taken = desk.memory.taken.get(host)
    if taken is not None and taken.by != SILENT:
        return f"the host is out already: {taken.by}"
    if host in desk.memory.absent and host not in desk.memory.holds:
        return f"the host is out already: {', '.join(desk.memory.absent[host])}"
    return ""


def _muted(desk: Desk, subject: str, first: Case) -> str:
    until_ns = desk.muted_until_ns(subject, first.action)
    if not until_ns:
        return ""
    until = f"{datetime.fromtimestamp(until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
    return (
        f"the same was rejected, withdrawn, done or expired: not again before {until} "
        "(`gangline advise list --all` has it)"
    )


def _priced_out(first: Case) -> str:
    price = first.price
    wait = (
        first.basis is Basis.STATISTICAL and 0 < price.waiting_gpu_hours <= price.acting_gpu_hours
    )
    return WAITING_COSTS_LESS if wait else ""


def news(before: Action, now: Action, words: str) -> str:
    """Return why an advisory that asked for *before*, and asks for *now*, is told again."""
    if gravity(now) > gravity(before):
        return f"more is wrong with it: {words}"
    if gravity(now) < gravity(before):
        return f"less is asked of it than before: {words}"
    return f"it is not as it was: {words}"


# ----------------------------------------------------------------------
# What an advisory says of the cases that it is made of, and when a case is news.

#: Devices and cases that an advisory names; of more it says how many.
NAMED_MAX = 16
#: A price that moved by less is the same.
PRICE_STEP_RATIO = 1.25


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


def lead(cases: Sequence[Case]) -> Case:
    """Return the gravest case, the oldest of as grave ones."""
    return min(cases, key=lambda one: (-gravity(one.action), one.since_ns, one.key))


def composed(cases: Sequence[Case]) -> dict[str, Any]:
    """Return what an advisory says of cases of one host: the gravest leads, the others stand beside."""
    first = lead(cases)
    others = len(cases) - 1
    devices = sorted({device for case in cases for device in case.devices})[:NAMED_MAX]
    return {
        "action": first.action, "then": first.then, "scope": first.scope, "basis": first.basis,
        "reason": first.reason,
        "words": f"{first.words}; {others} more beside it" if others else first.words,
        "devices": tuple(devices), "cases": tuple(sorted(case.key for case in cases)),
        "place": first.place, "job": first.job, "confidence": first.confidence,
        "count": sum(case.count for case in cases), "price": first.price,
        "checkpoint_seconds": first.checkpoint_seconds, "hazard_per_hour": first.hazard_per_hour,
    }  # fmt: skip


# ----------------------------------------------------------------------
# The blast radius: how many hosts may be out of a rack, of a job, of the fleet, and in an hour.

Member = tuple[str, Place, str]  # host, place, job


def unavailable(desk: Desk) -> Iterator[Member]:
    """Every host that is out, whoever took it out; what is lent to an executor counts as out."""
    memory = desk.memory
    for host, taken in memory.taken.items():
        yield host, taken.place, taken.job
    for host, told in memory.absent.items():
        for absent in told.values():
            yield host, absent.place, absent.job
    for host, hold in memory.holds.items():
        yield host, hold.place, hold.job


def reserved(desk: Desk, but: str = "", grave: int = 0) -> Iterator[Member]:
    """Every host that would be out if all that is proposed, as grave or graver, were accepted.

    What is milder yields: a suspicion that nobody has answered must not hold a dead GPU's host in service.
    """
    for one in desk.memory.advisories.values():
        if one.state is not State.PROPOSED or not takes_out(one.action) or one.name == but:
            continue
        if gravity(one.action) >= grave:
            yield one.host, one.place, one.job


def refusal(desk: Desk, wanted: Member, name: str, *, granting: bool, grave: int = 0) -> str:
    """Return why *wanted* may not be taken out; "" if it may.

    *granting*: now, not only proposed. *grave*: how grave what is proposed is.
    """
    host, place, job = wanted
    members = list(unavailable(desk))
    out = {one[0] for one in members}
    if not granting:
        members += reserved(desk, name, grave)
    return (
        ("" if host in out else everywhere(desk, members, name, granting=granting))
        or _group("rack", place.rack, desk.limits.rack_hosts_max, host, members)
        or _group("job", job, desk.limits.job_hosts_max, host, members)
    )


def everywhere(desk: Desk, members: list[Member], name: str, *, granting: bool) -> str:
    """Return why no host that is not out already may be taken out now, whichever it is; "" if one may."""
    most = desk.limits.cluster_hosts_max(desk.memory.hosts)
    if len({one[0] for one in members}) >= most:
        return f"limit of {_hosts(most)} out of service reached"
    return _rate(desk, name, granting=granting)


def _hosts(count: int) -> str:
    return f"{count} host{'' if count == 1 else 's'}"


def _group(kind: str, group: str, most: int, host: str, members: list[Member]) -> str:
    if not group:
        return ""
    at = 1 if kind == "rack" else 2
    hosts = {one[0] for one in members if (one[1].rack if at == 1 else one[2]) == group}
    if host in hosts or len(hosts) < most:
        return ""
    return f"limit of {_hosts(most)} of {kind} {group} out of service reached"


def _rate(desk: Desk, name: str, *, granting: bool) -> str:
    fuse = desk.memory.fuse
    if fuse.position == "open":
        return "too many advisories or failures in a short time: the circuit breaker is open"
    if fuse.position == "half-open" and fuse.trial not in ("", name):
        return f"one host at a time until {fuse.trial} succeeds: the circuit breaker is half-open"
    return hour_full(desk) if granting else ""


def hour_full(desk: Desk) -> str:
    """Return the message that as many hosts as allowed were taken out within an hour; "" if more may be."""
    most = desk.limits.hosts_per_hour_max
    if granted_in_hour(desk) < most:
        return ""
    return f"limit of {_hosts(most)} taken out per hour reached"


def granted_in_hour(desk: Desk) -> int:
    """Return how many hosts were taken out by advice within the hour that ends now."""
    return sum(one > desk.now_ns - HOUR_NS for one in desk.memory.granted_ns)


def grant(desk: Desk, advisory: Advisory) -> None:
    """Count *advisory* as taking its host out from now on."""
    memory = desk.memory
    out = {one[0] for one in unavailable(desk)}
    if advisory.host not in out:
        memory.granted_ns = [one for one in memory.granted_ns if one > desk.now_ns - HOUR_NS] + [
            desk.now_ns
        ]
        if memory.fuse.position == "half-open":
            memory.fuse.trial = advisory.name
    desk.touched = True


def full(desk: Desk, grave: int) -> str:
    """Return why nothing as grave may be proposed that takes a host out; "" if it may."""
    members = [*unavailable(desk), *reserved(desk, grave=grave)]
    return everywhere(desk, members, "", granting=False)
