"""Hosts that differ from their declaration, and hosts on probation after advice took them out.

A value that a host did not report is not a difference: missing is not zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...arrays import Flags, Floats
from ...declared.drift import Difference
from ...declared.expectations import Expectation
from ...declared.moments import format_time
from ...rule_catalogue import agent as rules
from ...sql import quoted
from ..detectors import detects
from ..evidence_sql import timestamp_sql
from ..score import Return
from ..symptom import Symptom
from ..view import FleetView

#: A port has its declared speed from this share of it on: drivers round.
SPEED_SHARE = 0.99
ACTIVE = 4

#: Part of an item's name -> unit of its value; other items are counts.
_UNITS = {"gigabytes": "GB", "gigabits_per_second": "Gb/s", "lanes": "lanes"}
SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
#: Days since the return -> fault rate relative to a host that never failed: 276, 27, 17, 12 and 7
#: against 2.5 in 1,000 node-days (400 nodes over 348 days, stepfun-ai/InfiniteHBD-Trace).
FACTORS = ((1.0, 110.4), (3.0, 10.8), (7.0, 6.8), (14.0, 4.8), (30.0, 2.8))
#: Factor after the last of FACTORS.
LATER_FACTOR = 1.5


@detects(rules.UNEXPECTED, *rules.UNEXPECTED_ITEMS.values())
def differences(view: FleetView) -> Iterator[Symptom]:
    """Name the differences of each host from the declaration of its model."""
    fleet = view.fleet
    if not fleet.declared.expectations:
        return
    fleet.expectations.update(fleet.declared, fleet.reported_inventory, fleet.names)
    expected = fleet.expectations.expected
    for host, host_differences in fleet.expectations.differences.items():
        if view.awake[host]:
            for difference in host_differences:
                yield _symptom(host, difference, expected[host])
    for host, difference in (*_ports(view), *_links(view), *_slots(view)):
        yield _symptom(host, difference, expected[host])


def _symptom(host: int, one: Difference, expected: Expectation) -> Symptom:
    return Symptom(
        rule=rules.UNEXPECTED_ITEMS[one.item],
        host=host,
        device="host",
        signal=f"expected.{one.item}",
        value=one.actual,
        unit=next((unit for noun, unit in _UNITS.items() if noun in one.item), ""),
        normal=one.normal,
        message=f"{one.message} ({expected.name}, {expected.where})",
        sql=one.sql,
        clears=f"{one.item} is {one.normal}, or {expected.where} is changed",
    )


FoundDifferences = Iterator[tuple[int, Difference]]


def _ports(view: FleetView) -> FoundDifferences:
    """Yield hosts whose RDMA ports that are up differ from the declaration in number or speed."""
    if not _is_expected(view, "rdma_ports", "rdma_port_gigabits_per_second"):
        return
    state = view.state("rdma_1s", "port_state")
    up = _count(view, "rdma_1s", state == ACTIVE)
    known = _count(view, "rdma_1s", view.known("rdma_1s", "port_state")) > 0
    wanted = view.fleet.expectations.expected_values("rdma_ports")
    for host in np.flatnonzero(known & (up != wanted) & np.isfinite(wanted)).tolist():
        message = f"{up[host]:g} RDMA ports are up, {wanted[host]:g} expected"
        sql = _ports_sql(view, host)
        yield host, Difference("rdma_ports", float(up[host]), f"{wanted[host]:g} up", message, sql)
    rate = view.gauge("rdma_1s", "rate_bytes_per_second") * 8 / 1e9
    slowest = _least(view, "rdma_1s", np.where(state == ACTIVE, rate, np.nan))
    wanted = view.fleet.expectations.expected_values("rdma_port_gigabits_per_second")
    for host in np.flatnonzero(slowest < SPEED_SHARE * wanted).tolist():
        message = f"an RDMA port runs at {slowest[host]:.0f} Gb/s, {wanted[host]:g} expected"
        normal = f"at least {wanted[host]:g} Gb/s"
        sql = _ports_sql(view, host)
        item = "rdma_port_gigabits_per_second"
        yield host, Difference(item, float(slowest[host]), normal, message, sql)


def _ports_sql(view: FleetView, host: int) -> str:
    columns = (
        f"port_state = {ACTIVE} AS active, rate_bytes_per_second * 8 / 1e9 AS gigabits_per_second"
    )
    return f"{view.sql_last_of_each('rdma_1s', host, columns, 15)} ORDER BY active, gigabits_per_second, device"


def _links(view: FleetView) -> FoundDifferences:
    """Yield hosts with fewer NVLinks up than declared, over all of their GPUs."""
    if not _is_expected(view, "nvlinks_per_gpu"):
        return
    table = "nvlink_10s_changes"
    up = _count(view, table, view.state(table, "link_state") > 0)
    known = _count(view, table, view.known(table, "link_state")) > 0
    gpus = view.gpus_read  # a missing GPU is reported as missing, not by its links
    wanted = view.fleet.expectations.expected_values("nvlinks_per_gpu") * gpus
    for host in np.flatnonzero(known & (up < wanted)).tolist():
        message = f"{up[host]:g} NVLinks of {gpus[host]} GPUs are up, {wanted[host]:g} expected"
        sql = f"{view.sql_last_of_each(table, host, 'link_state', 120)} ORDER BY link_state, device"
        yield host, Difference("nvlinks_up", float(up[host]), f"{wanted[host]:g} up", message, sql)


def _slots(view: FleetView) -> FoundDifferences:
    """Yield hosts whose GPUs and slots support less than the declared PCIe link."""
    for item, column, form in (
        ("gpu_pcie_width_lanes", "pcie_width_max_lanes", "{:g} PCIe lanes"),
        ("gpu_pcie_generation", "pcie_generation_max_number", "PCIe generation {:g}"),
    ):
        if not _is_expected(view, item):
            continue
        wanted = view.fleet.expectations.expected_values(item)
        has = _least(view, "gpu_10s", view.gauge("gpu_10s", column))
        for host in np.flatnonzero(has < wanted).tolist():
            message = f"a GPU has {form.format(has[host])} at best, {wanted[host]:g} expected"
            sql = f"{view.sql_last_of_each('gpu_10s', host, column, 30)} ORDER BY {column}, device"
            yield host, Difference(item, float(has[host]), f"{wanted[host]:g}", message, sql)


def _is_expected(view: FleetView, *items: str) -> bool:
    """Return whether any of *items* is declared for any host; if not, skip their large tables."""
    return any(np.isfinite(view.fleet.expectations.expected_values(item)).any() for item in items)


def _count(view: FleetView, table: str, which: Flags) -> Floats:
    hosts = view.fleet.tables[table].devices.host
    return np.bincount(hosts[which], minlength=len(view.fleet)).astype(np.float64)


def _least(view: FleetView, table: str, values: Floats) -> Floats:
    """Return the minimum of each host's *values*; NaN if it has none."""
    minimum = np.full(len(view.fleet), np.inf)
    known = np.isfinite(values)
    np.minimum.at(minimum, view.fleet.tables[table].devices.host[known], values[known])
    return np.where(np.isfinite(minimum), minimum, np.nan)


def factor_after(days: float) -> float:
    """Return the relative fault rate *days* after a return."""
    return next((factor for until, factor in FACTORS if days < until), LATER_FACTOR)


def returned_hosts(
    view: FleetView, returned: Mapping[str, Return], *, is_trained: bool
) -> Iterator[Symptom]:
    """Yield the hosts on probation. *is_trained*: a trained model already weighs the return."""
    fleet = view.fleet
    for name, probation in returned.items():
        host = fleet.index.get(name)
        if host is None or not fleet.first_received_ns[host] or view.now_ns >= probation.until_ns:
            continue
        days = max(view.now_ns - probation.since_ns, 0) / DAY_NS
        factor = 1.0 if is_trained else factor_after(days)
        if is_trained:
            often = ""
        else:
            often = f"; this soon after a return hosts fail {factor:,.3g} times as often as others"
        yield Symptom(
            rule=rules.HOST_RETURNED,
            host=host,
            device="host",
            signal=rules.HOST_RETURNED.name,
            value=days,
            unit="days",
            normal="not recently taken out by advice",
            message=f"back in service since {format_time(probation.since_ns)}, and watched{often}",
            sql="SELECT time, kind, advisory, message FROM ops.advice_history "
            f"WHERE host = {quoted(name)} AND time BETWEEN {timestamp_sql(probation.since_ns - SECOND_NS)} AND {timestamp_sql(view.now_ns)} ORDER BY time DESC",
            hazard_factor=factor,
            # a new fault of the host must not replace this one
            fault_source=rules.HOST_RETURNED.name,
            clears=f"it stays well until {format_time(probation.until_ns)}",
        )
