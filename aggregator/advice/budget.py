"""The blast radius: how many hosts may be out of a rack, of a job, of the fleet, and in an hour."""

from __future__ import annotations

from collections.abc import Iterator

from .advisory import Advisory, Place, State, gravity, takes_out
from .desk import Desk
from .limits import HOUR_NS

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
        return f"as many hosts are out, or are to be, as may be at once: {most}"
    return _rate(desk, name, granting=granting)


def _group(kind: str, group: str, most: int, host: str, members: list[Member]) -> str:
    if not group:
        return ""
    at = 1 if kind == "rack" else 2
    hosts = {one[0] for one in members if (one[1].rack if at == 1 else one[2]) == group}
    if host in hosts or len(hosts) < most:
        return ""
    return f"as many hosts of {kind} {group} are out, or are to be, as may be at once: {most}"


def _rate(desk: Desk, name: str, *, granting: bool) -> str:
    fuse = desk.memory.fuse
    if fuse.position == "open":
        return "so much was advised, or failed, lately that we may be wrong: the breaker is open"
    if fuse.position == "half-open" and fuse.trial not in ("", name):
        return f"one host at a time until {fuse.trial} went well: the breaker is half-open"
    if granting and granted_in_hour(desk) >= desk.limits.hosts_per_hour_max:
        return f"as many hosts were taken out within an hour as may be: {desk.limits.hosts_per_hour_max}"
    return ""


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
