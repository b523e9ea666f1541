"""RDMA ports, network interfaces, PCIe links and NVLinks: retransmissions, downs, losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import log

import numpy as np

from ...arrays import Flags, Floats
from ...fleet.activity import UTILIZATION_MIN
from ...fleet.peers import PEERS_MIN
from ...fleet.tables import FAST_SECONDS
from ...rule_catalogue import network as rules
from ...rule_catalogue import nvlink
from ...rule_declaration import Rule, equals
from ..detectors import detects
from ..rule_rows import (
    PeerOutlier,
    peer_outliers,
    rate_symptoms,
    recent_counts,
    threshold_symptom,
    threshold_symptoms,
)
from ..symptom import Symptom, short
from ..view import FleetView

#: Healthy ports retransmit now and then: the limit is `rdma.retransmissions_per_second`, sustained,
#: and this ratio to the peers' rate, because adaptive routing reorders packets everywhere alike.
PEERS_RATIO = 10.0
#: Bytes per second. Only moving packets can arrive out of order, so ports at or above one of these
#: rates are compared with ports at or above the same rate, and ports below both with each other
#: (assumed).
LIGHT_TRAFFIC, HEAVY_TRAFFIC = 1e6, 1e8
CHANGES, TABLE_AER = "rdma_1s_changes", "pcie_10s_changes"
#: After a boot drivers load, links train, and a subnet manager sweeps (assumed).
TRAINING_SECONDS = 300.0
ACTIVE, DISABLED = 4, 3
PER_TEN_MINUTES = "events in 10 min"

#: PORT_DOWN on a booting host, unless the port was down before the boot.
PORT_TRAINS = replace(rules.PORT_DOWN, enter_seconds=TRAINING_SECONDS)

#: Parts of the names of boards whose NVLinks lead to a bridge that a host may lack. Other boards
#: have their links on the baseboard.
BRIDGED_BOARDS = ("PCI", "NVL", "RTX", "Quadro", "A40", "A30", "L40")


@detects(rules.RETRANSMITS)
def retransmitting_ports(view: FleetView) -> Iterator[Symptom]:
    """Name each port that retransmits far more than its peers, by its largest counter."""
    minimum = view.threshold("rdma.retransmissions_per_second")
    for outlier in peer_outliers(
        view, CHANGES, rules.RETRANSMISSIONS, minimum, PEERS_RATIO, _median_at_same_traffic
    ):
        yield _retransmit_symptom(view, outlier, minimum)


def _median_at_same_traffic(view: FleetView, table: str, rates: Floats) -> Floats:
    """Return each port's median over ports of its link layer and class of traffic.

    With too few peers: NaN for ports with at least LIGHT_TRAFFIC, 0 for others.
    """
    result = np.zeros(rates.shape)
    if not rates.any():
        return result
    traffic = _traffic(view)
    simulated = view.fleet.simulated[view.fleet.tables[table].devices.host]
    kind = 2 * view.state("rdma_10s", "link_layer_code").astype(np.int64) + simulated
    for layer in np.unique(kind):
        alike = (kind == layer) & view.fresh(table)
        for minimum, below in (
            (-np.inf, LIGHT_TRAFFIC),
            (LIGHT_TRAFFIC, HEAVY_TRAFFIC),
            (HEAVY_TRAFFIC, np.inf),
        ):
            peers = rates[alike & (traffic >= minimum) & (np.isfinite(minimum) | (traffic < below))]
            unknown = np.nan if np.isfinite(minimum) else 0.0
            of_class = alike & (traffic >= minimum) & (traffic < below)
            result[of_class] = np.median(peers) if peers.size >= PEERS_MIN else unknown
    return result


def _traffic(view: FleetView) -> Floats:
    """Return the bytes per second of each port; 0 if nothing counts them."""
    return view.rates("rdma_1s", rules.TRAFFIC_COLUMNS[0]) + view.rates(
        "rdma_1s", rules.TRAFFIC_COLUMNS[1]
    )


def _peers_sql(view: FleetView, row: int) -> str:
    """Return the query for the peers of the port in *row*."""
    traffic = float(_traffic(view)[row])
    minimum = HEAVY_TRAFFIC if traffic >= HEAVY_TRAFFIC else LIGHT_TRAFFIC
    layer = int(view.state("rdma_10s", "link_layer_code")[row])
    since = f"time BETWEEN {view.timestamp_sql(-15)} AND {view.timestamp_sql(0)}"
    bytes_moved = " + ".join(
        f"coalesce(max({column}) - min({column}), 0)" for column in rules.TRAFFIC_COLUMNS
    )
    return (
        "SELECT host, device FROM readings.rdma_1s "
        "LEFT JOIN (SELECT host, device, link_layer_code FROM latest.rdma_10s) USING (host, device) "
        f"WHERE {since} AND coalesce(link_layer_code, 0) = {layer} GROUP BY host, device "
        f"HAVING ({bytes_moved}) {'>=' if traffic >= LIGHT_TRAFFIC else '<'} "
        f"{minimum:g} * greatest(epoch(max(time) - min(time)), 1)"
    )


def _retransmit_symptom(view: FleetView, one: PeerOutlier, least: float) -> Symptom:
    """Return the symptom of one retransmission counter."""
    host, device = view.name(CHANGES, one.row)
    unit = f"{one.column.rpartition('_')[2]}/s"
    excess = min(one.rate / least, 100.0)
    return Symptom(
        rule=rules.RETRANSMITS,
        host=host,
        device=device,
        signal=f"rdma.{one.column}",
        value=round(one.rate, 1),
        unit=unit,
        normal=f"below {one.limit:.0f}; its peers' median is {one.peer_median:.1f}",
        message=f"RDMA port {device}: {rules.RETRANSMISSIONS[one.column]} {one.rate:.0f}/s (its peers {one.peer_median:.0f})",
        sql=view.sql_with_peers(CHANGES, one.row, one.column, unit, _peers_sql(view, one.row)),
        hazard_factor=rules.RETRANSMITS.hazard_factor * (1.0 + log(max(excess, 1.0))),
        clears=f"each of its retransmission counters rises by less than {least:g} a second for 60 s",
    )


@detects(rules.PORT_DOWN)
def ports_down(view: FleetView) -> Iterator[Symptom]:
    """Name each port that is down and was up; others are not cabled, or disabled."""
    state = view.state("rdma_1s", "port_state")
    known = view.known("rdma_1s", "port_state")
    physical = view.state("rdma_1s", "physical_state")
    down = known & (state != ACTIVE) & (physical != DISABLED)
    expected = view.fleet.ever_up.ports_up | _up_elsewhere(view, known & (state == ACTIVE), known)
    host_of_port = view.fleet.devices["rdma"].host
    ports = np.bincount(
        host_of_port[known & (expected | (state == ACTIVE))], minlength=len(view.fleet)
    )
    ports_up = np.bincount(host_of_port[known & (state == ACTIVE)], minlength=len(view.fleet))
    for row in np.flatnonzero(down & expected).tolist():
        host, device = view.name("rdma_1s", row)
        is_new = view.host_now_ns[host] < TRAINING_SECONDS * 1e9
        yield Symptom(
            rule=PORT_TRAINS if is_new else rules.PORT_DOWN,
            host=host,
            device=device,
            signal="rdma.port_state",
            value=float(state[row]),
            unit="state",
            normal="4 (ACTIVE)",
            message=f"RDMA port {device} is down (state {state[row]}, physical {physical[row]})",
            sql=view.sql("rdma_1s", row, "port_state, physical_state", 120),
            capacity_ratio=float(ports_up[host] / max(ports[host], 1)),
        )


def _up_elsewhere(view: FleetView, up: Flags, known: Flags) -> Flags:
    """Return ports that are up, by name, on most of at least four hosts with one GPU model."""
    fleet, devices = view.fleet, view.fleet.devices["rdma"]
    expected = np.zeros(devices.count, dtype=bool)
    down = np.flatnonzero(known & ~up).tolist()
    if not down:
        return expected

    def alike(row: int) -> tuple[str, bool, str]:
        host = int(devices.host[row])
        model = fleet.reported_inventory.hardware(fleet.names[host]).model
        return devices.names[row], bool(fleet.simulated[host]), model

    named = {devices.names[row] for row in down}
    rows = [row for row in np.flatnonzero(known).tolist() if devices.names[row] in named]
    hosts, ups = Counter(map(alike, rows)), Counter(alike(row) for row in rows if up[row])
    for row in down:
        expected[row] = hosts[alike(row)] >= 4 and 2 * ups[alike(row)] > hosts[alike(row)]
    return expected


@detects(rules.PORT_FLAPS)
def flapping_ports(view: FleetView) -> Iterator[Symptom]:
    """Name each port whose link went down and came back."""
    rows, downs = recent_counts(view, CHANGES, "link_downed_events")
    for row, events in zip(rows.tolist(), downs.tolist(), strict=True):
        host, device = view.name(CHANGES, row)
        count = max(1, round(events))
        often = "once" if count == 1 else f"{count} times"
        yield Symptom(
            rule=rules.PORT_FLAPS,
            host=host,
            device=device,
            signal="rdma.link_downed_events",
            value=float(count),
            unit=PER_TEN_MINUTES,
            normal="0",
            message=f"RDMA port {device}: the link went down {often} lately",
            sql=view.sql_counter(CHANGES, row, "link_downed_events", PER_TEN_MINUTES, 600),
        )


@detects(rules.LINK_DOWN)
def interfaces_down(view: FleetView) -> Iterator[Symptom]:
    """Name each network interface that lost its carrier."""
    carrier = view.state("net_1s", "carrier_state")
    known = view.known("net_1s", "carrier_state")
    for row in np.flatnonzero(known & (carrier == 0) & view.fleet.ever_up.carriers).tolist():
        host, device = view.name("net_1s", row)
        yield Symptom(
            rule=rules.LINK_DOWN,
            host=host,
            device=device,
            signal="net.carrier_state",
            value=0.0,
            normal="1",
            message=f"network interface {device} lost its carrier",
            sql=view.sql("net_1s", row, "carrier_state", 120),
        )


@detects(rules.AER_LOST, rules.AER_CORRECTED)
def pcie_errors(view: FleetView) -> Iterator[Symptom]:
    """Name each PCIe link that lost transactions, or repairs many."""
    for row, (lost, column) in _lost(view).items():
        count = float(max(1, round(lost)))
        message = f"lost {count:.0f} transactions lately"
        sql = view.sql_counter(TABLE_AER, row, column, PER_TEN_MINUTES, 600)
        yield _aer_symptom(
            view, rules.AER_LOST, row, column, (count, PER_TEN_MINUTES), message, sql
        )
    minimum = view.threshold("pcie.corrected_per_second")
    rows, events = view.counting(TABLE_AER, rules.CORRECTED, minimum * FAST_SECONDS)
    for row, rate in zip(rows.tolist(), (events / FAST_SECONDS).tolist(), strict=True):
        value = round(rate, 1)
        message = f"repairs {value:.0f} errors a second"
        sql = view.sql_counter(TABLE_AER, row, rules.CORRECTED, "errors/s", 10)
        symptom = _aer_symptom(
            view, rules.AER_CORRECTED, row, rules.CORRECTED, (value, "errors/s"), message, sql
        )
        clears = f"less than {minimum:g} corrected link errors a second for 5 minutes"
        yield replace(symptom, normal=f"below {minimum:g}", clears=clears)


def _lost(view: FleetView) -> dict[int, tuple[float, str]]:
    """Return row -> (events, counter) of the largest counter: no signal has the sum."""
    largest: dict[int, tuple[float, str]] = {}
    for column in rules.LOST:
        rows, events = recent_counts(view, TABLE_AER, column)
        for row, count in zip(rows.tolist(), events.tolist(), strict=True):
            if row not in largest or count > largest[row][0]:
                largest[row] = count, column
    return dict(sorted(largest.items()))


def _aer_symptom(
    view: FleetView,
    rule: Rule,
    row: int,
    column: str,
    value: tuple[float, str],
    message: str,
    sql: str,
) -> Symptom:
    host, device = view.name(TABLE_AER, row)
    return Symptom(
        rule=rule,
        host=host,
        device=device,
        signal=f"pcie.{column}",
        value=value[0],
        unit=value[1],
        normal="0",
        message=f"PCIe link {device} {message}",
        sql=sql,
    )


@detects(*(row for row, _ in nvlink.DOWN), *nvlink.BIT_ERRORS, *nvlink.COUNTERS)
def links(view: FleetView) -> Iterator[Symptom]:
    """Name each link that was up and is down, or has far more errors than its peers' links.

    Links between AMD's GPUs (XGMI) are in the same tables, and are called by their own name. The
    host's other GPUs step together with the link's GPU and wait for it: the message counts them,
    and they are not at fault. No public error rates exist for healthy links, so the limits are
    assumed and conservative.
    """
    waiting: dict[int, list[str]] = {}
    for symptom in _links(view):
        if _is_xgmi(view, symptom.host, symptom.device):
            symptom = replace(symptom, message=symptom.message.replace("NVLink", "XGMI link"))
        if symptom.host not in waiting:
            waiting[symptom.host] = _waiting(view, symptom.host)
        gpu = symptom.device.partition("/")[0]
        others = len(waiting[symptom.host])
        if gpu.startswith("GPU-") and others and gpu not in waiting[symptom.host]:
            many = f"{others} other GPUs wait" if others > 1 else "other GPU waits"
            symptom = replace(
                symptom, message=f"{symptom.message}; its host's {many} for it meanwhile"
            )
        yield symptom


def _is_xgmi(view: FleetView, host: int, link: str) -> bool:
    """Return whether a link is AMD's, by the inventory of its GPU."""
    attributes = view.fleet.attributes[host].get(("gpu", link.partition("/")[0]), {})
    return attributes.get("vendor", "") == "AMD"


def _links(view: FleetView) -> Iterator[Symptom]:
    for entry, flags_name in nvlink.DOWN:
        down = view.where(entry.table, entry.column, entry.condition)
        once_up: Flags = getattr(view.fleet.ever_up, flags_name)
        for row in down[once_up[down]].tolist():
            if _should_be_up(view, *view.name(entry.table, row)):
                symptom = threshold_symptom(view, entry, row, 0.0)
                left = _share_up(view, row, once_up) if entry.table == nvlink.CHANGES else 1.0
                yield replace(symptom, capacity_ratio=left)
    yield from threshold_symptoms(view, nvlink.BIT_ERRORS)
    yield from rate_symptoms(view, nvlink.COUNTERS)


@detects(nvlink.NEVER_UP)
def links_never_up(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU with fewer NVLinks up since the boot than most GPUs of its host."""
    once_up: Flags = view.fleet.ever_up.nvlinks
    down = view.where(nvlink.CHANGES, "link_state", equals(0))
    never_up: dict[int, list[int]] = {}
    for row in down[~once_up[down]].tolist():
        never_up.setdefault(view.name(nvlink.CHANGES, row)[0], []).append(row)
    for host, rows in never_up.items():
        yield from _missing_links(view, host, rows)


def _missing_links(view: FleetView, host: int, never_up: list[int]) -> Iterator[Symptom]:
    devices = view.fleet.tables[nvlink.CHANGES].devices
    state = view.state(nvlink.CHANGES, "link_state")
    if _is_bridged(view, host, devices.names[never_up[0]].partition("/")[0]):
        return
    missing = Counter(devices.names[row].partition("/")[0] for row in never_up)
    up = Counter({devices.names[row].partition("/")[0]: 0 for row in devices.rows_of(host)})
    up.update(
        devices.names[row].partition("/")[0] for row in devices.rows_of(host) if state[row] > 0
    )
    whole = [gpu for gpu, links in up.items() if links == max(up.values()) and gpu not in missing]
    if len(whole) <= len(missing) or len(whole) < PEERS_MIN - 1:
        return
    kind = "XGMI links" if _is_xgmi(view, host, whole[0]) else "NVLinks"
    first_row = {devices.names[row].partition("/")[0]: row for row in reversed(never_up)}
    for gpu, links in missing.items():
        if not _should_be_up(view, host, gpu):
            continue
        yield Symptom(
            rule=nvlink.NEVER_UP,
            host=host,
            device=gpu,
            signal="nvlink.link_state",
            value=float(up[gpu]),
            unit="links",
            normal=f"{up[whole[0]]} links up, as on {len(whole)} other GPUs of the host",
            message=f"{short(gpu)}: {links} of its {kind} are inactive since the boot, and those of the host's "
            f"{len(whole)} other GPUs are up",
            sql=view.sql(nvlink.CHANGES, first_row[gpu], "link_state", 600),
            capacity_ratio=up[gpu] / up[whole[0]],
        )


def _is_bridged(view: FleetView, host: int, gpu: str) -> bool:
    """Return whether a GPU's bridge may be missing; True if its model is unknown."""
    name = view.fleet.attributes[host].get(("gpu", gpu), {}).get("name", "")
    return not name or any(part in name for part in BRIDGED_BOARDS)


def _share_up(view: FleetView, row: int, once_up: Flags) -> float:
    """Return the share of the GPU's links that were ever up and are up now."""
    host, link = view.name(nvlink.CHANGES, row)
    devices, gpu = view.fleet.tables[nvlink.CHANGES].devices, link.partition("/")[0]
    links = [
        r for r in devices.rows_of(host) if once_up[r] and devices.names[r].partition("/")[0] == gpu
    ]
    state = view.state(nvlink.CHANGES, "link_state")
    return sum(bool(state[r]) for r in links) / max(len(links), 1)


def _waiting(view: FleetView, host: int) -> list[str]:
    """Return the GPUs of *host* on which a kernel spins at low power."""
    fleet = view.fleet
    gpus = np.array(fleet.devices["gpu"].rows_of(host), dtype=np.intp)
    busy = view.gauge_at("gpu_1s", "utilization_ratio", gpus) >= UTILIZATION_MIN
    idle = ~fleet.activity.loaded[gpus]
    return [fleet.devices["gpu"].names[row] for row in gpus[busy & idle].tolist()]


def _should_be_up(view: FleetView, host: int, link: str) -> bool:
    """Return whether the host is past its boot, and the link's GPU is not split.

    Under MIG a GPU has no peers (NVIDIA, MIG User Guide: no GPU-to-GPU P2P), and its links may be
    off.
    """
    if view.host_now_ns[host] < TRAINING_SECONDS * 1e9:
        return False
    gpu = view.fleet.devices["gpu"].find(host, link.partition("/")[0])
    return gpu < 0 or view.state("gpu_10s_changes", "mig_mode_state")[gpu] != 1
