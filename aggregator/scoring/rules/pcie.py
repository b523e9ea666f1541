"""PCIe links that run narrower or slower than both ends support: judged only under traffic.

An idle link narrows by itself (ASPM, dynamic link power), and a fast card in a slow slot is not a
fault: a link's capability is the smaller of its two ends'.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...arrays import Flags, Floats
from ...rule_catalogue import pcie as rules
from ...rule_catalogue.pcie import SPEED, SPEED_MAX, WIDTH, WIDTH_MAX
from ...sql import quoted
from .. import evidence_sql
from ..detectors import detects
from ..symptom import Symptom, short
from ..view import FleetView

#: A GPU or an adapter that moves this many bytes per second uses its link (assumed: under 1 % of
#: the capacity of sixteen lanes of the third generation, and no link sleeps at this rate).
TRAFFIC_BYTES_PER_SECOND = 1e8


@detects(rules.GPU_WIDTH, rules.GPU_GENERATION)
def gpu_links(view: FleetView) -> Iterator[Symptom]:
    """Name each GPU under load with fewer PCIe lanes, or a lower generation, than possible.

    The driver's maximum already considers both GPU and slot.
    """
    loaded = _gpus_loaded(view)
    # Between two steps of a job a GPU waits for seconds: an idle link trains to a lower generation,
    # but not to fewer lanes.
    at_work = loaded | np.isfinite(view.clock)
    for rule, column, noun, is_in_use in (
        (rules.GPU_WIDTH, "pcie_width{}_lanes", "PCIe lanes", at_work),
        (rules.GPU_GENERATION, "pcie_generation{}_number", "PCIe generation", loaded),
    ):
        now_column, most_column = column.format(""), column.format("_max")
        now, maximum = view.gauge("gpu_10s", now_column), view.gauge("gpu_10s", most_column)
        for row in np.flatnonzero((now < maximum) & (now > 0) & is_in_use).tolist():
            host, device = view.name("gpu_10s", row)
            yield Symptom(
                rule=rule,
                host=host,
                device=device,
                signal=f"gpu.{now_column}",
                value=float(now[row]),
                normal=f"{maximum[row]:.0f} under load",
                message=f"{short(device)} runs on {_share_text(noun, now[row], maximum[row])} under load",
                # Each generation has twice the rate of the previous.
                capacity_ratio=float(
                    now[row] / maximum[row]
                    if rule is rules.GPU_WIDTH
                    else 2.0 ** (now[row] - maximum[row])
                ),
                sql=view.sql("gpu_10s", row, f"{now_column}, {most_column}", 120),
            )


def _share_text(noun: str, now: float, most: float) -> str:
    if noun == "PCIe lanes":
        return f"{now:.0f} of {most:.0f} {noun}"
    return f"{noun} {now:.0f} of {most:.0f}"


@detects(rules.SLOW_LINK)
def links_above(view: FleetView) -> Iterator[Symptom]:
    """Name each slow link between a GPU or an adapter under load and the root."""
    below = {
        column: _below_maximum(view, column, maximum)
        for column, maximum in ((SPEED, SPEED_MAX), (WIDTH, WIDTH_MAX))
    }
    reported: set[int] = set()  # eight GPUs share the link above their switch
    for kind, loaded in (("gpu", _gpus_loaded(view)), ("rdma", _moving(view, "rdma"))):
        links = view.fleet.pcie_topology.links(view.fleet, kind)
        for column, most_column in ((SPEED, SPEED_MAX), (WIDTH, WIDTH_MAX)):
            loaded_at = below[column][links.lower] & loaded[links.user]
            at_links = np.flatnonzero(loaded_at)
            now = view.gauge_at("pcie_10s", column, links.lower[at_links])
            # If the other end's maximum is unknown, the NaN stays: the link is not judged.
            maximum = np.minimum(
                *(view.gauge_at("pcie_10s", most_column, ends[at_links]) for ends in links[1:])
            )
            for index in np.flatnonzero((now < maximum) & (now > 0)).tolist():
                row, user = int(links.lower[at_links[index]]), int(links.user[at_links[index]])
                ends = [int(functions[at_links[index]]) for functions in links[1:]]
                if row not in reported and not _is_reported_by_driver(view, kind, row, user):
                    reported.add(row)
                    name = view.fleet.devices[kind].names[user]
                    yield _link_symptom(
                        view, row, column, (float(now[index]), float(maximum[index])), name, ends
                    )


def _below_maximum(view: FleetView, column: str, most_column: str) -> Flags:
    """Return functions below their own maximum at the last reading; others are not slow."""
    table = view.fleet.tables["pcie_10s"]
    with np.errstate(invalid="ignore"):
        return table.raw(column) < table.raw(most_column)


def _is_reported_by_driver(view: FleetView, kind: str, row: int, user: int) -> bool:
    """Return whether the link is the GPU's own, which `gpu_links` judges by its driver."""
    if kind != "gpu" or not np.isfinite(view.gauge("gpu_10s", "pcie_width_lanes")[user]):
        return False
    host, name = view.name("gpu_10s", user)
    gpu_address = view.fleet.attributes[host].get(("gpu", name), {}).get("pci_address", "")
    return view.fleet.devices["pcie"].names[row] == gpu_address


def _link_symptom(
    view: FleetView, row: int, column: str, speeds: tuple[float, float], user: str, ends: list[int]
) -> Symptom:
    host, device = view.name("pcie_10s", row)
    now, maximum = (_with_unit(column, value) for value in speeds)
    return Symptom(
        rule=rules.SLOW_LINK,
        host=host,
        device=device,
        signal=f"pcie.{column}",
        value=speeds[0],
        normal=f"{maximum} under load",
        message=f"PCIe link {device} runs at {now} of {maximum} while {short(user)} uses it",
        sql=_ends_sql(view, ends),
        capacity_ratio=speeds[0] / speeds[1],
    )


def _ends_sql(view: FleetView, ends: list[int]) -> str:
    """Return the query for the readings of both ends of a link."""
    host, names = view.name("pcie_10s", ends[0])[0], view.fleet.devices["pcie"].names
    devices = ", ".join(quoted(names[end]) for end in ends)
    return (
        f"SELECT time, device, {SPEED}, {SPEED_MAX}, {WIDTH}, {WIDTH_MAX} FROM readings.pcie_10s "
        f"WHERE host = {quoted(view.fleet.names[host])} AND device IN ({devices}) "
        f"AND {evidence_sql.within(view.now_ns, 125, evidence_sql.LATER_SECONDS)} ORDER BY time, device"
    )


def _with_unit(column: str, value: float) -> str:
    return f"{value / 1e9:g} GT/s" if column == SPEED else f"{value:.0f} lanes"


def _gpus_loaded(view: FleetView) -> Flags:
    computing = view.fleet.activity.loaded & view.fresh("gpu_1s")
    moved: Floats = np.zeros(computing.shape)
    for column in ("pcie_transmitted_bytes_per_second", "pcie_received_bytes_per_second"):
        moved += np.nan_to_num(_of_gpus(view, "gpu_fast_1s", column))
    return computing | (moved > TRAFFIC_BYTES_PER_SECOND)


def _of_gpus(view: FleetView, table: str, column: str) -> Floats:
    """Return a gauge of another GPU table by the rows of `gpu_1s`; NaN if it lacks a GPU."""
    kind = view.fleet.tables[table].devices.kind
    rows = view.fleet.pcie_topology.rows(view.fleet, "gpu", kind)
    values = view.gauge(table, column)
    return np.where(rows >= 0, np.append(values, np.nan)[rows], np.nan)


def _moving(view: FleetView, kind: str) -> Flags:
    table = f"{kind}_1s"
    rates = view.rates(table, "received_bytes") + view.rates(table, "transmitted_bytes")
    return rates > TRAFFIC_BYTES_PER_SECOND
