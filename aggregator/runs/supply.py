"""Supply of each host: capacity of the resources that jobs share, from the latest readings. Owned by the fleet's thread; no I/O.

A caller multiplies a supply by the speed that symptoms leave (`Judgement.component_speeds`). The supply of memory bandwidth,
disks and network file systems is the highest rate that was ever seen: the host may supply more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from duckdb import DuckDBPyConnection as Connection

from ...fingerprints.demand import (
    LANE_BYTES_PER_SECOND,
    MEASURED_RESOURCES,
    SHARED_RESOURCES,
    HostSupply,
)
from ...fingerprints.sensitivity import known_link_rates
from ..arrays import Codes, Floats
from ..fleet.fleet import Fleet
from ..store.rows import replace_rows
from .demand import core_counts, host_demands

REFRESH_SECONDS = 10
#: A higher rate is stored if it is higher by this share.
RISE_MIN = 0.05
#: RDMA port state of an active port (InfiniBand, 14.2.5.6).
_ACTIVE = 4
_INDEX = {name: index for index, name in enumerate(SHARED_RESOURCES)}
_COLUMNS = "host:str resource:str value:float time:time"


class MeasuredSupply(NamedTuple):
    """The highest rate of a resource that a host has shown."""

    host: str
    resource: str
    value: float


class HostSupplies:
    """Supplies of all hosts: `step` once a second; `current` is at most REFRESH_SECONDS old."""

    def __init__(self) -> None:
        self.current = HostSupply()
        self._highest: dict[tuple[str, str], float] = {}
        self._changed: dict[tuple[str, str], float] = {}
        self._due_ns = 0
        #: Read when the fleet's shape changes: hosts with GPUs behind one switch (NaN: unknown), model and NVLink rate of each GPU.
        self._shape = (-1, 0, 0)
        self._has_switch: Floats = np.zeros(0)
        self._models: list[str] = []
        self._total: Floats = np.zeros(0)
        self._nvlink_rates: Floats = np.zeros(0)

    def restore(self, measured: Iterable[MeasuredSupply]) -> None:
        """Restore the highest rates that were stored."""
        for host, resource, value in measured:
            if resource in MEASURED_RESOURCES:
                self._highest[host, resource] = value

    def step(self, fleet: Fleet, now_ns: int) -> None:
        """Compute the supplies again if they are old."""
        period_ns = REFRESH_SECONDS * 1_000_000_000
        if now_ns < self._due_ns <= now_ns + period_ns:
            return
        self._due_ns = now_ns + period_ns
        self._measure(fleet)
        gpus = fleet.devices["gpu"]
        shape = fleet.shape_version, len(fleet), gpus.count
        if self._shape != shape:
            self._shape = shape
            self._has_switch, self._models = _shared_switches(fleet), _models(fleet)
            self._nvlink_rates = _nvlink_rates(self._models)
        supplies = np.full((len(fleet), len(SHARED_RESOURCES)), np.nan)
        has_gpu = np.bincount(gpus.host, minlength=len(fleet)) > 0
        for name in ("sm", "hbm_bandwidth"):
            supplies[has_gpu, _INDEX[name]] = 1.0
        link = _smallest(_pcie_rates(fleet), gpus.host, len(fleet))
        supplies[:, _INDEX["pcie_received"]] = supplies[:, _INDEX["pcie_transmitted"]] = link
        supplies[:, _INDEX["nvlink"]] = _smallest(self._nvlink_rates, gpus.host, len(fleet))
        supplies[:, _INDEX["nic_received"]] = supplies[:, _INDEX["nic_transmitted"]] = _ports(fleet)
        supplies[:, _INDEX["cores"]] = core_counts(fleet)
        for (host, resource), value in self._highest.items():
            if (index := fleet.index.get(host)) is not None:
                supplies[index, _INDEX[resource]] = value
        total = fleet.tables["gpu_10s"].gauge("memory_total_bytes")
        smallest = _smallest(total, gpus.host, len(fleet))
        available = np.full(len(fleet), np.nan)
        readings = fleet.tables["host_1s"]
        available[readings.devices.host] = readings.gauge("memory_available_bytes")
        self.current = HostSupply(
            supplies.astype(np.float32),
            smallest.astype(np.float32),
            np.where(self._has_switch == 1.0, link, self._has_switch).astype(np.float32),
            available.astype(np.float32),
            self._smallest_models(total, smallest, gpus.host),
        )

    def take_changes(self) -> list[MeasuredSupply]:
        """Return the highest rates that rose since the last call."""
        changes = [MeasuredSupply(*key, value) for key, value in self._changed.items()]
        self._changed.clear()
        return changes

    def put_back(self, changes: Iterable[MeasuredSupply]) -> None:
        """Return changes that could not be written."""
        for host, resource, value in changes:
            self._changed.setdefault((host, resource), value)

    def _smallest_models(self, total: Floats, smallest: Floats, hosts: Codes) -> tuple[str, ...]:
        before = self.current.gpu_models
        if len(before) == smallest.size and np.array_equal(total, self._total, equal_nan=True):
            return before
        self._total = total
        models = [""] * smallest.size
        for row in np.flatnonzero(total == smallest[hosts]).tolist():
            models[hosts[row]] = self._models[row]
        return tuple(models)

    def _measure(self, fleet: Fleet) -> None:
        everyone = np.arange(len(fleet), dtype=np.intp)
        rates = host_demands(fleet, everyone)
        for resource in MEASURED_RESOURCES:
            for host in np.flatnonzero(rates[resource] > 0.0).tolist():
                key, rate = (fleet.names[host], resource), float(rates[resource][host])
                if rate > self._highest.get(key, 0.0) * (1.0 + RISE_MIN):
                    self._highest[key] = self._changed[key] = rate


def _smallest(values: Floats, host_of_row: Codes, hosts: int) -> Floats:
    """Return the smallest known value of each host's devices; NaN if none is known."""
    result = np.full(hosts, np.nan)
    np.fmin.at(result, host_of_row, values)
    return result


def _pcie_rates(fleet: Fleet) -> Floats:
    """Return the capacity of each GPU's PCIe link in one direction, with its present lanes."""
    readings = fleet.tables["gpu_10s"]
    generation = np.nan_to_num(readings.gauge("pcie_generation_max_number"))
    per_lane = np.array(LANE_BYTES_PER_SECOND)
    is_known = (generation >= 0) & (generation < per_lane.size)
    known = np.where(is_known, generation, 0).astype(np.intp)
    return np.asarray(per_lane[known] * readings.gauge("pcie_width_lanes"))


def _shared_switches(fleet: Fleet) -> Floats:
    """Return 1 for each host with GPUs behind one PCIe switch, infinity without, NaN if the topology is unknown.

    Such GPUs share the rate of one link, because a switch has one link to the root.
    """
    result = np.full(len(fleet), np.nan)
    switches: dict[tuple[int, str], int] = {}
    gpus = fleet.devices["gpu"]
    for host, name in zip(gpus.host.tolist(), gpus.names, strict=True):
        attributes = fleet.attributes[host]
        address = attributes.get(("gpu", name), {}).get("pci_address", "")
        parents = attributes.get(("pcie", address), {}).get("parents", "").split()
        if not parents:
            continue
        if np.isnan(result[host]):
            result[host] = np.inf
        if len(parents) > 1:  # a port of a switch, and the switch's own port
            switches[host, parents[1]] = switches.get((host, parents[1]), 0) + 1
    for (host, _), count in switches.items():
        if count > 1:
            result[host] = 1.0
    return result


def _models(fleet: Fleet) -> list[str]:
    """Return the model of each GPU; "" if unknown."""
    gpus = fleet.devices["gpu"]
    keys = zip(gpus.host.tolist(), gpus.names, strict=True)
    return [fleet.attributes[host].get(("gpu", name), {}).get("name", "") for host, name in keys]


def _nvlink_rates(models: Sequence[str]) -> Floats:
    """Return the capacity of all NVLinks of each GPU in both directions, by model."""
    rates = {model: known_link_rates(model) for model in set(models)}
    by_model = {model: 2.0 * known.nvlink if known else np.nan for model, known in rates.items()}
    return np.array([by_model[model] for model in models], dtype=np.float64)


def _ports(fleet: Fleet) -> Floats:
    """Return the rate of all active RDMA ports of each host; NaN without a port."""
    ports = fleet.tables["rdma_1s"]
    rates = np.nan_to_num(ports.gauge("rate_bytes_per_second"))
    rates = np.where(ports.state("port_state") == _ACTIVE, rates, 0.0)
    hosts = ports.devices.host
    has_port = (
        np.bincount(hosts, ports.gauge("rate_bytes_per_second") > 0, minlength=len(fleet)) > 0
    )
    return np.where(has_port, np.bincount(hosts, rates, minlength=len(fleet)), np.nan)


def put_measured(connection: Connection, changes: Sequence[MeasuredSupply], now_ns: int) -> None:
    """Replace the highest rates of hosts. Raises duckdb.Error."""
    rows = [{**change._asdict(), "time": now_ns} for change in changes]
    replace_rows(connection, "measured_supply", _COLUMNS, rows, ("host", "resource"))


def read_measured(connection: Connection) -> list[MeasuredSupply]:
    """Return the highest rates of all hosts. Raises duckdb.Error."""
    rows = connection.execute("SELECT host, resource, value FROM measured_supply").fetchall()
    return [MeasuredSupply(*row) for row in rows]
