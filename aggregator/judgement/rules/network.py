"""A network that holds a job up: all its hosts move less than before, while their ports wait more. No host is to blame.

Who waits for a slow host sends less too, but its ports have nothing to send and wait for nothing. A bad link makes others
wait as well, and is named by its own rules: then nothing is said here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...fleet import network
from ...fleet.arrays import Flags, Floats, Indexes
from ...fleet.devices import Names
from ...fleet.gangs import Standing
from ...fleet.network import SIGNS, Sign
from ...sql import quoted
from ...verdicts import Reason, State
from ..present import Present
from ..symptoms import Rule, Symptom
from .fabric import flapping_ports, ports_down, retransmitting_ports
from .gang import HOSTS_SHOWN_MAX, settled
from .parts import networks, pauses
from .pcie import gpu_links, links_above

#: So large a share of a job's hosts shows it, or it is not the network between them.
HOSTS_SHARE_MIN = 0.7
#: One port a host (by name) has so much of all the waiting: it is that rail.
RAIL_SHARE_MIN = 0.7
#: A rail is short on all hosts of a job alike: so many are asked which.
HOSTS_ASKED = 4
#: Names that words hold.
NAMES_SHOWN_MAX = 3
#: Rules that name one link, port or host behind it.
OF_ONE_LINK = (
    retransmitting_ports, ports_down, flapping_ports, networks, pauses, gpu_links, links_above,
)  # fmt: skip

CONGESTED = Rule(
    "network.congestion", State.WATCH, Reason.FABRIC,
    "its job moves as much as before, or its ports wait no more than before, for two or three minutes",
)  # fmt: skip


def congested_jobs(present: Present) -> Iterator[Symptom]:
    """Name what the hosts of a job share whose network makes all of them wait, at each of them."""
    standing = present.fleet.gangs.standing
    if standing is None:
        return
    shows = settled(present, standing) & (
        standing.slowed >= present.threshold("network.slowed_ratio")
    )
    shows &= standing.waits >= present.threshold("network.waits_ratio")
    shows &= standing.slowed_often >= present.threshold("gang.identity_ratio")
    if not shows.any():
        return
    sick = {one.host for rule in OF_ONE_LINK for one in rule(present)}
    waited = network.waited(present.fleet, present.now_ns)
    ports = [_ports(present, sign) for sign in SIGNS]
    for members in _gangs(standing, shows):
        own = members[shows[members]]
        if own.size >= HOSTS_SHARE_MIN * members.size and sick.isdisjoint(members.tolist()):
            yield from _of_job(present, standing, members, own, waited, ports)


class _Ports(NamedTuple):
    """All ports that a sign is read of, in the order of their hosts."""

    names: Names
    rates: Floats  # 0 where not read
    order: Indexes
    begins: Indexes  # of each host within `order`, and the end


def _ports(present: Present, sign: Sign) -> _Ports:
    devices = present.fleet.tables[sign.table].devices
    order = np.argsort(devices.host, kind="stable")
    begins = np.searchsorted(devices.host[order], np.arange(len(present.fleet) + 1))
    each = network.rates(present.fleet, sign.table, sign.column, present.now_ns)
    return _Ports(devices.names, np.nan_to_num(each), order, begins)


def _gangs(standing: Standing, shows: Flags) -> Iterator[Indexes]:
    """Yield the hosts of each gang of which any *shows* it, in one pass: it may be all of them."""
    wanted = np.isin(standing.gang, standing.gang[shows])
    hosts = np.flatnonzero(wanted)
    hosts = hosts[np.argsort(standing.gang[hosts], kind="stable")]
    yield from np.split(hosts, np.flatnonzero(np.diff(standing.gang[hosts])) + 1)


def _of_job(
    present: Present,
    standing: Standing,
    members: Indexes,
    own: Indexes,
    waited: Floats,
    ports: Sequence[_Ports],
) -> Iterator[Symptom]:
    least = np.array([[sign.least] for sign in SIGNS])
    which = int(np.nansum(waited[:, own] / least, axis=1).argmax())
    sign, shared = SIGNS[which], _shared(present, ports[which], members)
    slowed, waits = float(np.median(standing.slowed[own])), float(np.median(standing.waits[own]))
    if members.size == 1:
        told = f"its ports {sign.words} {waits:.1f} times as much as before, and it moves {100 * slowed:.0f} % less"
        words = f"{told}: {shared}"
    else:
        all_of = "all" if own.size == members.size else f"{own.size} of"
        told = f"{all_of} {members.size} hosts of its job move {100 * slowed:.0f} % less"
        told = f"{told} while their ports {sign.words} {waits:.1f} times as much as before"
        words = f"{told}: {shared} is congested; no host is to blame"
    one = Symptom(
        rule=CONGESTED,
        host=-1,
        device="host",
        signal=f"rdma.{sign.column}",
        value=round(waits, 2),
        unit="times its rate before",
        normal=f"below {present.threshold('network.waits_ratio'):g}, or no less moved than before",
        words=words,
        sql="",
    )
    since = f"time BETWEEN {present.moment(-900)} AND {present.moment(5)}"
    names = present.fleet.names
    others = "".join(f", {quoted(names[host])}" for host in own[: HOSTS_SHOWN_MAX - 1].tolist())
    for host in own.tolist():
        yield replace(one, host=host, sql=_sql(f"{quoted(names[host])}{others}", since, sign))


def _shared(present: Present, ports: _Ports, members: Indexes) -> str:
    """Return what the hosts share that is short: one rail, one leaf, or the network between them."""
    if members.size == 1:
        return "the network, or its way into it; a job of one host does not tell which"
    rail = _rail(ports, members)
    of_rail = f"rail {rail} of " if rail else ""
    places = [present.fleet.declared.place(present.fleet.names[host]) for host in members.tolist()]
    for what in ("leaf", "spine"):
        names = {getattr(place, what) for place in places}
        if len(names) == 1 and (name := names.pop()):
            return f"{of_rail}{what} {name}, which they share,"
    leaves = sorted({place.leaf for place in places} - {""})
    between = f" (leaves {', '.join(leaves[:NAMES_SHOWN_MAX])}{', ...' if len(leaves) > NAMES_SHOWN_MAX else ''})"
    return f"{of_rail}the network between them{between if leaves else ''}"


def _rail(ports: _Ports, members: Indexes) -> str:
    """Return the port, by name, on which most of the waiting is; "" where it is on several."""
    waits: dict[str, float] = defaultdict(float)
    for host in members[:HOSTS_ASKED].tolist():
        for row in ports.order[ports.begins[host] : ports.begins[host + 1]].tolist():
            waits[ports.names[row]] += float(ports.rates[row])
    most = max(waits, key=lambda name: waits[name], default="")
    is_one = len(waits) > 1 and waits[most] >= RAIL_SHARE_MIN * sum(waits.values()) > 0.0
    return most if is_one else ""


def _sql(names: str, since: str, sign: Sign) -> str:
    """Return the query for how much the ports of hosts waited in each minute, all of a host together."""
    step = f"greatest({sign.column}, lag({sign.column}) OVER ports) - lag({sign.column}) OVER ports"
    return (
        f"SELECT time_bucket(INTERVAL 1 MINUTE, time) AS minute, sum(waited) / 60 AS {sign.column}_per_second, host "
        f"FROM (SELECT host, time, {step} AS waited FROM readings.{sign.table} WHERE host IN ({names}) AND {since} "
        "WINDOW ports AS (PARTITION BY host, device ORDER BY time)) GROUP BY ALL ORDER BY host, minute"
    )
