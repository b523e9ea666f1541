"""Hosts that hold their gang up, told by who waits for whom (`fleet/gangs.py`): the host's own doing, or none of its doing.

A verdict on a host takes two minutes of windows in which it was the same host, seven of ten times (thresholds) and more
often than stalls that go round would choose it, and few others of its gang that are as long: else it is the gang's.
Longer at more work is the workload's (a pipeline stage, long sequences), and gaps on all hosts alike are a shared
service's; no host is to blame for either.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...counter_deltas import Codes, Flags, Floats, Indexes
from ...fleet import gangs as network
from ...fleet.devices import Names
from ...fleet.gangs import SIGNS, WINDOW_NS, WINDOWS, Sign, Standing, few_of
from ...model import Reason, State
from ...sql import quoted
from ..rule import Rule, Symptom
from ..view import Present
from .fabric import flapping_ports, ports_down, retransmitting_ports
from .host import networks, pauses
from .pcie import gpu_links, links_above

#: With so large a share of its excess as more work, the workload explains it.
WORK_SHARE_MAX = 0.5
#: Who computes no longer than the others by this share of what makes a host slow is as they are.
ALIKE_SHARE_MAX = 0.5
#: In a smaller gang nothing says which is the odd one: who waits may spin on its GPUs, and looks busier than the culprit.
HOSTS_MIN = 3
#: What befalls any host of a gang alike (stalls that go round) befalls the same one so often no more often than this.
CHANCE_MAX = 5e-6
#: Of larger gangs it takes as many windows as of one so large: their chance is smaller.
_HOSTS_TOLD = 64
#: Hosts of a gang that evidence is shown of.
HOSTS_SHOWN_MAX = 32


def _beyond_chance(windows: int, hosts: int) -> int:
    """Return in how many of *windows* it must be the same host of *hosts*; more than there are where none suffices."""
    chances = [
        math.comb(windows, k) * (hosts - 1) ** (windows - k) / hosts**windows
        for k in range(windows + 1)
    ]
    return next(k for k in range(windows + 2) if sum(chances[k:]) <= CHANCE_MAX)


#: [windows, hosts]
_BEYOND_CHANCE = np.array(
    [
        [_beyond_chance(n, max(hosts, 1)) for hosts in range(_HOSTS_TOLD + 1)]
        for n in range(WINDOWS + 1)
    ]
)

#: So many windows on end are beyond chance in any gang, even where it chooses between two.
_RUN_MIN = math.ceil(-math.log2(CHANCE_MAX))

_ALIKE = "it computes no longer than the others of its job for a minute or two, or an hour without such a job"
SLOW = Rule(
    "gang.slow_host", State.DEGRADED, Reason.STRAGGLER, _ALIKE, leave_seconds=3600.0, hazard_factor=1.5,
)  # fmt: skip
CONTENDED = Rule(
    "gang.cpu_contention", State.DEGRADED, Reason.HOST_CPU,
    "its GPUs have no more gaps than its gang's for a minute or two", hazard_factor=1.2,
)  # fmt: skip
STALLED = Rule(
    "gang.storage_stall", State.DEGRADED, Reason.STORAGE,
    "its GPUs have no more gaps than its gang's for a minute or two", hazard_factor=1.2,
)  # fmt: skip
UNKNOWN = Rule(
    "gang.unknown", State.WATCH, Reason.STRAGGLER, "it holds its gang up no longer",
)  # fmt: skip
#: What is known and blames no host.
WORKLOAD = Rule(
    "gang.workload", State.HEALTHY, Reason.NONE, "its share of the work is that of the others",
)  # fmt: skip
SHARED = Rule(
    "gang.shared_storage", State.HEALTHY, Reason.NONE, "its job waits for data no longer",
)  # fmt: skip


def long_hosts(present: Present) -> Iterator[Symptom]:
    """Name each host that all others of its job wait for while it computes."""
    standing = present.fleet.gangs.standing
    if standing is None:
        return
    least = present.threshold("gang.slow_ratio")
    found = settled(present, standing) & (standing.busy >= least)
    found &= _is_the_same(present, standing, standing.busy_often)
    found &= sizes(standing) >= HOSTS_MIN
    for host in _rows(found & _are_few(standing, found)):
        excess, work = float(standing.busy[host]), float(standing.work[host])
        told = f"computes {100 * excess:.0f} % longer than the others of its job, which wait for it"
        if work > WORK_SHARE_MAX * excess:
            words = f"{told}, and does {100 * work:.0f} % more work: its share of the job, no fault of the host"
            yield _long(present, standing, WORKLOAD, host, words)
        elif np.isfinite(work):
            words = f"{told}, at a normal clock and the same work: the host is slow, and nothing names a cause"
            yield _long(present, standing, SLOW, host, words)
        else:
            words = f"{told}; whether it has more to do is not known: nothing measures the work"
            yield _long(present, standing, UNKNOWN, host, words)


def alike(present: Present) -> frozenset[int]:
    """Return the hosts that compute no longer than the others of their job, by all windows: none of them is slow any more."""
    standing = present.fleet.gangs.standing
    if standing is None:
        return frozenset()
    with present.as_before():
        before = present.threshold("gang.slow_ratio")
    most = ALIKE_SHARE_MAX * min(before, present.threshold("gang.slow_ratio"))
    found = settled(present, standing) & (standing.busy < most) & (sizes(standing) >= HOSTS_MIN)
    return frozenset(_rows(found))


def gapped_hosts(present: Present) -> Iterator[Symptom]:
    """Name each host whose GPUs stand empty while those of its job wait for it, by what its cores or disks say."""
    standing = present.fleet.gangs.standing
    if standing is None:
        return
    least, pressure = present.threshold("gang.gap_ratio"), present.threshold("gang.pressure_ratio")
    known = settled(present, standing)
    found = known & (standing.gap >= least)
    found &= _is_the_same(present, standing, standing.gap_often, standing.gap_run)
    for host in _rows(found & _are_few(standing, found)):
        cpu, io, steal = (float(a[host]) for a in (standing.cpu, standing.io, standing.steal))
        told = f"nothing runs on its GPUs {100 * standing.gap[host]:.0f} % of the time, while the others of its job wait"
        cores = float(np.fmax(cpu, 2 * steal))  # a kernel without PSI tells of stolen time alone
        if cores >= pressure and not io > cores:
            words = (
                f"{told}: its cores are fought over ({_more(cpu)} waiting, {_more(steal)} stolen)"
            )
            yield _gapped(present, standing, CONTENDED, host, words)
        elif io >= pressure:
            words = f"{told}: it waits for data as they do not ({_more(io)} of the time in I/O)"
            yield _gapped(present, standing, STALLED, host, words)
        else:
            words = f"{told}; neither its cores nor its disks say why"
            yield _gapped(present, standing, UNKNOWN, host, words)
    yield from _gang_waits(
        present, standing, known & (standing.gap_median >= least) & (standing.io_median >= pressure)
    )


def _gang_waits(present: Present, standing: Standing, found: Flags) -> Iterator[Symptom]:
    """Say of each host that its gang waits alike: words and query are the gang's, as it may be the whole fleet that waits."""
    told: dict[int, Symptom] = {}
    for host in _rows(found):
        gang = int(standing.gang[host])
        if gang not in told:
            words = (
                f"its job waits for data on all hosts alike, {100 * standing.gap_median[host]:.0f} % of the time: "
                "a service they share, no host is to blame"
            )
            told[gang] = _gapped(present, standing, SHARED, host, words)
        yield replace(told[gang], host=host)


def settled(present: Present, standing: Standing) -> Flags:
    """Say of which hosts enough windows are known, and which are heard."""
    known = np.zeros(len(present.fleet), dtype=bool)
    enough = standing.windows >= present.threshold("gang.windows_count")
    known[: standing.gang.size] = enough & (standing.gang >= 0)
    return np.asarray((known & present.awake)[: standing.gang.size], dtype=bool)


def sizes(standing: Standing, among: Flags | None = None) -> Indexes:
    """Return for each host how many of its gang there are; *among*: of these."""
    member = standing.gang >= 0
    counted = member if among is None else member & among
    gangs = int(standing.gang.max(initial=-1)) + 1
    every = np.bincount(standing.gang[counted], minlength=gangs + 1)
    return np.where(member, every[np.where(member, standing.gang, gangs)], 0)


def _is_the_same(
    present: Present, standing: Standing, often: Floats, run: Codes | None = None
) -> Flags:
    """Say which hosts it was that *often* (a share of their windows) that neither noise nor chance tells it.

    *run*: in how many windows on end it was each, if that is counted further back than *often*.
    """
    hosts = np.minimum(sizes(standing), _HOSTS_TOLD)
    is_sure = np.rint(often * standing.windows) >= _BEYOND_CHANCE[standing.windows, hosts]
    if run is not None:
        is_sure |= run >= _RUN_MIN
    return np.asarray((often >= present.threshold("gang.identity_ratio")) & is_sure)


def _are_few(standing: Standing, found: Flags) -> Flags:
    """Say of which hosts few others of their gang are *found* too."""
    few = sizes(standing, found) <= few_of(sizes(standing))
    return np.asarray((standing.gang >= 0) & few, dtype=bool)


def _rows(found: Flags) -> list[int]:
    return np.flatnonzero(found).tolist()


def _more(ratio: float) -> str:
    return f"{100 * max(ratio, 0.0):.0f} % more" if np.isfinite(ratio) else "not known"


def _long(present: Present, standing: Standing, rule: Rule, host: int, words: str) -> Symptom:
    excess = float(standing.busy[host])
    return Symptom(
        rule=rule,
        host=host,
        device="host",
        signal=rule.name,
        value=round(1.0 + excess, 3),
        unit="times the median of its gang's others",
        normal=f"below {1.0 + present.threshold('gang.slow_ratio'):.2f}, "
        f"by {standing.windows[host]} windows of {WINDOW_NS // 10**9} s",
        words=words,
        sql=_gang_means_sql(
            present, standing, host, "gpu_fast_1s", "sm_active_ratio", "tensor_active_ratio"
        ),
        speed=1.0 / (1.0 + excess) if rule is SLOW else 1.0,
    )


def _gapped(present: Present, standing: Standing, rule: Rule, host: int, words: str) -> Symptom:
    gap = float((standing.gap_median if rule is SHARED else standing.gap)[host])
    return Symptom(
        rule=rule,
        host=host,
        device="host",
        signal=rule.name,
        value=round(gap, 3),
        unit="of the time" if rule is SHARED else "of the time more than its gang's others",
        normal=f"below {present.threshold('gang.gap_ratio'):g}",
        words=words,
        sql=_gang_means_sql(present, standing, host, "gpu_1s", "utilization_ratio"),
        speed=max(1.0 - gap, 0.05) if rule in (CONTENDED, STALLED) else 1.0,
    )


def _gang_means_sql(
    present: Present, standing: Standing, host: int, table: str, *columns: str
) -> str:
    """Return the query for the means of *columns* over the windows, by host of the gang."""
    hosts, gpus = members(present, standing, host, int(standing.gang[host]), HOSTS_SHOWN_MAX)
    means = ", ".join(f"avg({column}) AS {column}" for column in columns)
    seconds = WINDOWS * WINDOW_NS // 10**9 + 15
    return (
        f"SELECT host, {means} FROM readings.{table} WHERE {_are(hosts, gpus)} AND time BETWEEN "
        f"{present.moment(-seconds)} AND {present.moment(5)} GROUP BY host ORDER BY {columns[0]} DESC"
    )


def _are(hosts: list[str], gpus: list[str]) -> str:
    named = {"host": hosts, "device": gpus}
    told = [f"{key} IN ({', '.join(map(quoted, names))})" for key, names in named.items() if names]
    return f"({' OR '.join(told)})" if len(told) > 1 else "".join(told) or "false"


def members(
    present: Present, standing: Standing, host: int, gang: int, most: int
) -> tuple[list[str], list[str]]:
    """Return names of hosts of *gang*, *host* before others; of those that are not all its own, those of its GPUs.

    No further host once there are *most*.
    """
    hosts: list[str] = []
    gpus: list[str] = []
    others: Indexes = np.flatnonzero(standing.gang == gang)[: most + 1]
    for one in (host, *(one for one in others.tolist() if one != host)):
        if len(hosts) + len(gpus) >= most:
            break
        if standing.shared[one]:
            gpus += _own(present, standing, one, gang)
        else:
            hosts.append(present.fleet.names[one])
    return hosts, gpus


def _own(present: Present, standing: Standing, host: int, gang: int) -> list[str]:
    devices = present.fleet.devices["gpu"]
    own = (devices.host == host) & (standing.of_gpus(devices.host) == gang)
    return [devices.names[row] for row in _rows(own)]


def gap_sql(present: Present, host: int) -> str:
    """Return the query for how empty the GPUs of *host*, or of them those of its job, stood in each minute."""
    standing, which = present.fleet.gangs.standing, f"host = {quoted(present.fleet.names[host])}"
    if standing is not None and standing.shared[host]:
        which += f" AND {_are([], _own(present, standing, host, int(standing.gang[host])))}"
    return (
        "SELECT time_bucket(INTERVAL 1 MINUTE, time) AS minute, 1 - avg(utilization_ratio) AS empty_ratio "
        f"FROM readings.gpu_1s WHERE {which} AND time BETWEEN "
        f"{present.moment(-900)} AND {present.moment(5)} GROUP BY ALL ORDER BY minute"
    )


# ----------------------------------------------------------------------
# A job of one host whose GPUs stand empty as they did not before. Nobody beside it tells whose
# fault that is: it is watched.

_CLEARS = "its GPUs stand empty no more than before for two or three minutes"
DATA = Rule("alone.data_wait", State.WATCH, Reason.STORAGE, _CLEARS)
CORES = Rule("alone.cpu_wait", State.WATCH, Reason.HOST_CPU, _CLEARS)


def waiting_hosts(present: Present) -> Iterator[Symptom]:
    """Name each host with a job of its own that waits for data or for cores more than it did."""
    standing = present.fleet.gangs.standing
    if standing is None:
        return
    pressure = present.threshold("gang.pressure_ratio")
    found = settled(present, standing) & (sizes(standing) == 1)
    found &= standing.gap_more >= present.threshold("gang.gap_ratio")
    found &= standing.gap_more_often >= present.threshold("gang.identity_ratio")
    for host in np.flatnonzero(found).tolist():
        cpu, io = float(standing.cpu_more[host]), float(standing.io_more[host])
        if io >= pressure and not cpu > io:
            waits = f"it waits for I/O {100 * io:.0f} % more of the time"
            words = "whether its own disks and mounts are slow or a storage that others use too, a job of one host does not tell"
            yield _symptom(present, standing, DATA, host, f"{waits}: {words}")
        elif cpu >= pressure:
            waits = f"tasks wait for its cores {100 * cpu:.0f} % more of the time"
            words = "whether the job asks for more or somebody takes them, a job of one host does not tell"
            yield _symptom(present, standing, CORES, host, f"{waits}: {words}")


def _symptom(present: Present, standing: Standing, rule: Rule, host: int, words: str) -> Symptom:
    gap = float(standing.gap_more[host])
    return Symptom(
        rule=rule,
        host=host,
        device="host",
        signal=rule.name,
        value=round(gap, 3),
        unit="of the time more than before",
        normal=f"below {present.threshold('gang.gap_ratio'):g}",
        words=f"nothing runs on its GPUs {100 * gap:.0f} % more of the time than before in this job, and {words}",
        sql=gap_sql(present, host),
    )


# ----------------------------------------------------------------------
# A network that holds a job up: all its hosts move less than before, while their ports wait more.
# No host is to blame.
#
# Who waits for a slow host sends less too, but its ports have nothing to send and wait for nothing.
# A bad link makes others wait as well, and is named by its own rules: then nothing is said here.

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
    sign, shared = SIGNS[which], _shared_network(present, ports[which], members)
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
        yield replace(
            one, host=host, sql=_port_waits_sql(f"{quoted(names[host])}{others}", since, sign)
        )


def _shared_network(present: Present, ports: _Ports, members: Indexes) -> str:
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


def _port_waits_sql(names: str, since: str, sign: Sign) -> str:
    """Return the query for how much the ports of hosts waited in each minute, all of a host together."""
    step = f"greatest({sign.column}, lag({sign.column}) OVER ports) - lag({sign.column}) OVER ports"
    return (
        f"SELECT time_bucket(INTERVAL 1 MINUTE, time) AS minute, sum(waited) / 60 AS {sign.column}_per_second, host "
        f"FROM (SELECT host, time, {step} AS waited FROM readings.{sign.table} WHERE host IN ({names}) AND {since} "
        "WINDOW ports AS (PARTITION BY host, device ORDER BY time)) GROUP BY ALL ORDER BY host, minute"
    )
