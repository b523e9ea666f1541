"""Links and networks that slow down a gang.

Errors on a link are only watched: most cost nothing. If the pace of the whole gang falls when one
host's link begins to have errors, and no host computes or stalls longer, that link is the cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ....fingerprints.group_statistics import outliers_max
from ...arrays import Flags, Floats, Indexes
from ...fleet import port_rates
from ...fleet.devices import DeviceNames
from ...fleet.gang_comparison import GangComparison
from ...fleet.port_rates import CONGESTION_COUNTERS, CongestionCounter
from ...model import Reason
from ...rule_catalogue import gang as rules
from ...rule_catalogue import network as network_rules
from ...rule_catalogue.faults import RATES
from ...sql import quoted
from ..detectors import detects, row_detector
from ..hysteresis import TrackedSymptom
from ..symptom import Symptom, short
from ..view import FleetView
from .fabric import flapping_ports, ports_down, retransmitting_ports
from .gang import HOSTS_MIN, HOSTS_SHOWN_MAX, settled
from .host import bonds, pauses
from .pcie import gpu_links, links_above

#: Reasons of evidence that concern links.
LINK_REASONS = (Reason.NVLINK_ERRORS, Reason.FABRIC, Reason.RAIL_DOWN, Reason.PCIE)
#: The errors must begin at most this long before, or after, the fall of the pace.
BEFORE_SECONDS, AFTER_SECONDS = 120.0, 60.0

#: A smaller share of a job's hosts means that the network between them is not the cause.
HOSTS_SHARE_MIN = 0.7
#: If the ports of one name have at least this share of all the waiting, the cause is that rail.
RAIL_SHARE_MIN = 0.7
#: Hosts of a job that are checked for a congested rail, which affects all of them alike.
HOSTS_SAMPLED = 4
#: Maximum leaf names in a message.
NAMES_SHOWN_MAX = 3
#: Counters of the table of faults that name a faulty port.
LINK_FAULTS = (
    "net.flaps", "link.uncorrectable", "rdma.symbol_errors", "nic.pause_storm", "nic.module",
)  # fmt: skip
#: Rules that name a faulty link, port or host.
LINK_RULES = (
    retransmitting_ports, ports_down, flapping_ports, *(row_detector(RATES[name]) for name in LINK_FAULTS), bonds, pauses, gpu_links,
    links_above,
)  # fmt: skip


@detects(rules.SLOW_LINK)
def slow_links(view: FleetView) -> Iterator[Symptom]:
    """Name each host whose link began to err as its gang's pace fell without another reason."""
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return
    for gang, fall in view.fleet.gangs.pace_falls.items():
        hosts = np.flatnonzero((comparison.gang == gang) & view.awake[: comparison.gang.size])
        if hosts.size < HOSTS_MIN or _is_explained(comparison, gang):
            continue
        links = {
            host: worst
            for host in hosts.tolist()
            if (worst := _link_symptom(view, host, fall.since_ns)) is not None
        }
        if len(links) > max(int(outliers_max(np.array([hosts.size]))[0]), 1):
            continue
        for host, link in links.items():
            name = view.fleet.gangs.jobs[gang].name
            job = f"job {name}" if name else "its job"
            yield Symptom(
                rule=rules.SLOW_LINK,
                host=host,
                device=link.device,
                signal=rules.SLOW_LINK.name,
                value=round(1.0 - fall.ratio, 3),
                unit="of the pace that its job had",
                normal="1.00",
                message=(
                    f"{job} goes {100 * fall.ratio:.0f} % slower since {short(link.device)} has errors "
                    f"({link.message}): all its hosts wait for this link"
                ),
                sql=_pace_sql(view, hosts.tolist()),
                speed=1.0 - fall.ratio,
                reason=link.rule.reason if link.reason is None else link.reason,
            )


def _is_explained(comparison: GangComparison, gang: int) -> bool:
    """Return whether a host or a GPU of *gang* is known to compute or stall longer than before."""
    member = comparison.gang == gang
    size = comparison.gpu_change.is_named.size
    gpus = comparison.gpu_change.is_named & (comparison.gpu_gang[:size] == gang)
    changed = comparison.busy_change.is_named | comparison.gap_change.is_named
    return bool((member & changed).any() or gpus.any())


def _link_symptom(view: FleetView, host: int, fell_ns: int) -> Symptom | None:
    """Return the worst symptom of a link of *host* that began as the pace fell."""
    candidates: list[Symptom] = []
    symptoms: dict[tuple[str, str], TrackedSymptom] = dict(view.fleet.active_symptoms.get(host, {}))
    for tracked in symptoms.values():
        symptom = tracked.worst
        reason = symptom.rule.reason if symptom.reason is None else symptom.reason
        began_seconds = (tracked.since_ns - fell_ns) / 1e9
        if (
            tracked.active
            and reason in LINK_REASONS
            and symptom.rule is not rules.SLOW_LINK
            and symptom.speed >= 1.0
            and -BEFORE_SECONDS <= began_seconds <= AFTER_SECONDS
        ):
            candidates.append(symptom)
    return max(candidates, key=lambda symptom: symptom.weight, default=None)


def _pace_sql(view: FleetView, hosts: list[int]) -> str:
    names = ", ".join(quoted(view.fleet.names[host]) for host in hosts[:32])
    return (
        "SELECT time_bucket(INTERVAL 10 SECOND, time) AS time, median(tensor_active_ratio) AS work FROM readings.gpu_fast_1s "
        f"WHERE host IN ({names}) AND time BETWEEN {view.timestamp_sql(-300)} AND {view.timestamp_sql(5)} "
        "GROUP BY ALL ORDER BY time"
    )


@detects(network_rules.CONGESTED)
def congested_jobs(view: FleetView) -> Iterator[Symptom]:
    """Name the congested network that makes all hosts of a job wait, as a symptom of each of them.

    Hosts that wait for a slow host also send less, but their ports have nothing to send and do not
    wait. A bad link makes others wait too, but its own rules name it, and then this rule reports
    nothing.
    """
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return
    shows = settled(view, comparison) & (
        comparison.slowed >= view.threshold("network.slowed_ratio")
    )
    shows &= comparison.waits >= view.threshold("network.waits_ratio")
    shows &= comparison.slowed_often >= view.threshold("gang.identity_ratio")
    if not shows.any():
        return
    hosts_with_link_faults = {symptom.host for rule in LINK_RULES for symptom in rule(view)}
    congestion = port_rates.congestion_rates(view.fleet, view.now_ns)
    ports = [_port_rates(view, counter) for counter in CONGESTION_COUNTERS]
    for members in _gangs(comparison, shows):
        affected = members[shows[members]]
        if affected.size >= HOSTS_SHARE_MIN * members.size and hosts_with_link_faults.isdisjoint(
            members.tolist()
        ):
            yield from _job_symptoms(view, comparison, members, affected, congestion, ports)


class _PortRates(NamedTuple):
    """All ports with a congestion counter, sorted by host."""

    names: DeviceNames
    rates: Floats  # 0 where not read
    order: Indexes
    begins: Indexes  # first index in `order` per host, and the end


def _port_rates(view: FleetView, counter: CongestionCounter) -> _PortRates:
    devices = view.fleet.tables[counter.table].devices
    order = np.argsort(devices.host, kind="stable")
    begins = np.searchsorted(devices.host[order], np.arange(len(view.fleet) + 1))
    rates = port_rates.port_rates(view.fleet, counter.table, counter.column, view.now_ns)
    return _PortRates(devices.names, np.nan_to_num(rates), order, begins)


def _gangs(comparison: GangComparison, shows: Flags) -> Iterator[Indexes]:
    """Yield the hosts of each gang with a host in *shows*, in one pass for all gangs."""
    wanted = np.isin(comparison.gang, comparison.gang[shows])
    hosts = np.flatnonzero(wanted)
    hosts = hosts[np.argsort(comparison.gang[hosts], kind="stable")]
    yield from np.split(hosts, np.flatnonzero(np.diff(comparison.gang[hosts])) + 1)


def _job_symptoms(
    view: FleetView,
    comparison: GangComparison,
    members: Indexes,
    affected: Indexes,
    congestion: Floats,
    ports: Sequence[_PortRates],
) -> Iterator[Symptom]:
    minimums = np.array([[counter.rate_min] for counter in CONGESTION_COUNTERS])
    which = int(np.nansum(congestion[:, affected] / minimums, axis=1).argmax())
    counter, shared = CONGESTION_COUNTERS[which], _shared_network(view, ports[which], members)
    slowed = float(np.median(comparison.slowed[affected]))
    waits = float(np.median(comparison.waits[affected]))
    if members.size == 1:
        statement = f"its ports {counter.description} {waits:.1f} times as much as before, and it moves {100 * slowed:.0f} % less"
        message = f"{statement}: {shared}"
    else:
        all_of = "all" if affected.size == members.size else f"{affected.size} of"
        statement = f"{all_of} {members.size} hosts of its job move {100 * slowed:.0f} % less"
        statement = f"{statement} while their ports {counter.description} {waits:.1f} times as much as before"
        message = f"{statement}: {shared} is congested; no host is at fault"
    symptom = Symptom(
        rule=network_rules.CONGESTED,
        host=-1,
        device="host",
        signal=f"rdma.{counter.column}",
        value=round(waits, 2),
        unit="times its rate before",
        normal=f"below {view.threshold('network.waits_ratio'):g}, or no less moved than before",
        message=message,
        sql="",
    )
    since = f"time BETWEEN {view.timestamp_sql(-900)} AND {view.timestamp_sql(5)}"
    names = view.fleet.names
    others = "".join(
        f", {quoted(names[host])}" for host in affected[: HOSTS_SHOWN_MAX - 1].tolist()
    )
    for host in affected.tolist():
        sql = _port_waits_sql(f"{quoted(names[host])}{others}", since, counter)
        yield replace(symptom, host=host, sql=sql)


def _shared_network(view: FleetView, ports: _PortRates, members: Indexes) -> str:
    """Return the congested part that the hosts share: rail, leaf, spine, or network."""
    if members.size == 1:
        return "the network, or its way into it; a job on one host does not show which"
    rail = _rail(ports, members)
    of_rail = f"rail {rail} of " if rail else ""
    places = [view.fleet.declared.place(view.fleet.names[host]) for host in members.tolist()]
    for what in ("leaf", "spine"):
        names = {getattr(place, what) for place in places}
        if len(names) == 1 and (name := names.pop()):
            return f"{of_rail}{what} {name}, which they share,"
    leaves = sorted({place.leaf for place in places} - {""})
    between = f" (leaves {', '.join(leaves[:NAMES_SHOWN_MAX])}{', ...' if len(leaves) > NAMES_SHOWN_MAX else ''})"
    return f"{of_rail}the network between them{between if leaves else ''}"


def _rail(ports: _PortRates, members: Indexes) -> str:
    """Return the name of the port with most of the waiting; "" if several ports share it."""
    waits: dict[str, float] = defaultdict(float)
    for host in members[:HOSTS_SAMPLED].tolist():
        for row in ports.order[ports.begins[host] : ports.begins[host + 1]].tolist():
            waits[ports.names[row]] += float(ports.rates[row])
    busiest = max(waits, key=lambda name: waits[name], default="")
    is_dominant = len(waits) > 1 and waits[busiest] >= RAIL_SHARE_MIN * sum(waits.values()) > 0.0
    return busiest if is_dominant else ""


def _port_waits_sql(names: str, since: str, counter: CongestionCounter) -> str:
    """Return the query for the waiting of ports per minute, summed by host."""
    step = f"greatest({counter.column}, lag({counter.column}) OVER ports) - lag({counter.column}) OVER ports"
    return (
        f"SELECT time_bucket(INTERVAL 1 MINUTE, time) AS minute, sum(waited) / 60 AS {counter.column}_per_second, host "
        f"FROM (SELECT host, time, {step} AS waited FROM readings.{counter.table} WHERE host IN ({names}) AND {since} "
        "WINDOW ports AS (PARTITION BY host, device ORDER BY time)) GROUP BY ALL ORDER BY host, minute"
    )
