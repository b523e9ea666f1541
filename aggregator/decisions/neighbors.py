"""How much a new gang and the running jobs on partly used nodes slow each other.

Predicted from demands and from the supply that each node has now, so a degraded link or disk is in the price. An unknown
demand, supply or pressure abstains: it costs nothing, and the evidence names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np

from ...contract.text import counted
from ...fingerprints.demand import MEASURED_RESOURCES, SHARED_RESOURCES
from ...fingerprints.interference import (
    ColocatedWorkload,
    Colocation,
    Slowdown,
    learned_key,
    predict_groups,
)
from ...fingerprints.interference_pressure import HOST
from ...fingerprints.sensitivity import COMPONENTS
from ..arrays import Floats, Indexes
from ..fleet.jobs import ResidentJob
from ..scoring.evaluate import Judgement
from .node_table import JobLoss, NeighborPrediction, NodeTable
from .quantity import Quantity, assumed

#: Different neighborhoods that are predicted per request; nodes in further ones abstain. A prediction of this many takes
#: about 3 ms, once per snapshot and job, and a plan may take 5.
NEIGHBORHOODS_MAX = 16
#: Shared candidates of a request that are predicted; further ones abstain.
NODES_MAX = 256
_NOT_SUPPLIED = NeighborPrediction(
    (), abstained=f"its supply is unknown, or over {NODES_MAX} candidates are shared"
)
#: The other jobs on a node.
Neighbors = tuple[ResidentJob, ...]
#: Component whose remaining speed limits a resource.
_LIMITED_BY = {
    "sm": "compute", "hbm_bandwidth": "memory", "pcie_received": "pcie", "pcie_transmitted": "pcie", "nvlink": "nvlink",
    "nic_received": "network", "nic_transmitted": "network", "cores": "host_cpu", "disk": "storage", "network_fs": "storage",
}  # fmt: skip
#: Indexes of resources of which a host may supply more than was seen.
MEASURED_ROWS = [SHARED_RESOURCES.index(name) for name in MEASURED_RESOURCES]
#: A demand with a lower p99 slows no other workload, whatever the supply (assumed: 1 % of a small host). Units: shares of a
#: GPU, cores, bytes per second.
_NEGLIGIBLE = {
    "sm": 0.01,
    "hbm_bandwidth": 0.01,
    "cores": 0.25,
    "memory_bandwidth": 1e9,
    "disk": 2e7,
    "network_fs": 2e7,
}
_NEGLIGIBLE_TRAFFIC = 2.5e8
_FLOORS: Floats = np.array(
    [[_NEGLIGIBLE.get(name, _NEGLIGIBLE_TRAFFIC)] for name in SHARED_RESOURCES]
)
#: Indexes of resources that a component limits, and of these components.
_LIMITED = [row for row, name in enumerate(SHARED_RESOURCES) if name in _LIMITED_BY]
_LIMITS = [COMPONENTS.index(_LIMITED_BY[SHARED_RESOURCES[row]]) for row in _LIMITED]


def without_negligible(demand: Floats) -> Floats:
    """Return the demand on SHARED_RESOURCES, with negligible demands as 0. *demand*: (DEMANDS, QUANTILES)."""
    shared = demand[: len(SHARED_RESOURCES)]
    return np.asarray(np.where(shared[:, -1:] < _FLOORS, 0.0, shared))


def supplies_now(snapshot: Judgement, nodes: Indexes, sharing: str) -> Floats:
    """Return the supply of each of *nodes* that workloads share, at the speed that its symptoms leave."""
    supplies = snapshot.supplies
    values: Floats = supplies.values[nodes].astype(np.float64)
    if sharing == HOST:
        values = supplies.on_hosts(nodes)
    values[:, _LIMITED] *= snapshot.component_speeds[nodes][:, _LIMITS].astype(np.float64)
    return values


class NeighborPredictions:
    """The predictions for one job in one snapshot, by node, each computed once."""

    def __init__(
        self, snapshot: Judgement, job: str, known: Mapping[int, NeighborPrediction] | None = None
    ) -> None:
        """*job*: name of a known workload, "" for none. *known*: recorded predictions; no others are made."""
        self._snapshot, self._job = snapshot, job
        self._is_replay = known is not None
        self._by_node: dict[int, NeighborPrediction | None] = dict(known or {})

    def of(self, nodes: Sequence[int]) -> dict[int, NeighborPrediction]:
        """Return the predictions for *nodes* with other jobs; in a replay, all recorded predictions."""
        if not self._is_replay:
            if not nodes:
                return {}
            new = [node for node in nodes if node not in self._by_node]
            self._by_node |= dict.fromkeys(new)
            self._by_node |= self._predicted(new)
            return {
                node: prediction
                for node in nodes
                if (prediction := self._by_node[node]) is not None
            }
        return {
            node: prediction for node, prediction in self._by_node.items() if prediction is not None
        }

    def _predicted(self, nodes: Sequence[int]) -> dict[int, NeighborPrediction]:
        snapshot, known = self._snapshot, self._snapshot.workloads
        result: dict[int, NeighborPrediction] = {}
        neighborhoods: dict[tuple[Any, ...], list[int]] = {}
        shared = [(node, residents) for node in nodes if (residents := self._residents(node))]
        supplied = [node for node, _ in shared if node < snapshot.supplies.switch.size]
        supplies = supplies_now(snapshot, np.array(supplied[:NODES_MAX], dtype=np.intp), HOST)
        supply_of = dict(zip(supplied, supplies, strict=False))
        for node, residents in shared:
            if (supply := supply_of.get(node)) is None:
                result[node] = _NOT_SUPPLIED
            else:
                models = snapshot.supplies.gpu_models
                model = models[node] if node < len(models) else ""
                neighborhoods.setdefault((residents, supply.tobytes(), model), []).append(node)
        groups: list[tuple[Colocation, Neighbors, list[int]]] = []
        demand_of: dict[str, Floats | None] = {}
        for (residents, _, gpu_model), members in neighborhoods.items():
            jobs = (self._job, *(job.name for job in residents))
            for job in jobs:
                if job not in demand_of:
                    demand_of[job] = _demand(snapshot, known.names.get(job))
            demands = [demand_of[job] for job in jobs]
            missing = [job for job, demand in zip(jobs, demands, strict=True) if demand is None]
            if missing:
                unnamed = "a job without a name" if self._job else "the gang"
                reason = f"the demand of {missing[0] or unnamed} is unknown"
            elif len(groups) >= NEIGHBORHOODS_MAX:
                reason = f"over {NEIGHBORHOODS_MAX} neighborhoods differ"
            else:
                rows = [known.names.get(job) for job in jobs]
                workloads = [
                    ColocatedWorkload(_learned(snapshot, row, gpu_model), gpu_model, demand=demand)
                    for row, demand in zip(rows, demands, strict=True)
                    if demand is not None
                ]
                colocation = _colocation(supply_of[members[0]], workloads)
                groups.append((colocation, residents, members))
                continue
            result |= dict.fromkeys(members, NeighborPrediction(jobs[1:], abstained=reason))
        learned = next((model for model in snapshot.interference if model.sharing == HOST), None)
        predictions = predict_groups([colocation for colocation, _, _ in groups], HOST, learned)
        for (_, residents, members), slowdowns in zip(groups, predictions, strict=True):
            result |= dict.fromkeys(members, _prediction(residents, slowdowns))
        return result

    def _residents(self, node: int) -> Neighbors:
        """Return the other jobs on *node*."""
        residents = self._snapshot.residents.get(node, ())
        return tuple(job for job in residents if not self._job or job.name != self._job)


def _prediction(residents: Neighbors, slowdowns: Sequence[Slowdown]) -> NeighborPrediction:
    jobs = tuple(job.name for job in residents)
    own, *others = slowdowns
    reason = next((slowdown.abstained for slowdown in slowdowns if slowdown.abstained), "")
    if reason:
        return NeighborPrediction(jobs, abstained=reason)
    losses = tuple(
        JobLoss(job.name, job.gpus, *(1.0 - 1.0 / ratio for ratio in slowdown[:3]))
        for job, slowdown in zip(residents, others, strict=True)
    )
    binding = own.binding or next((other.binding for other in others if other.binding), "")
    return NeighborPrediction(jobs, own.ratio, own.lower, own.upper, losses, binding)


def _demand(snapshot: Judgement, row: int | None) -> Floats | None:
    """Return the demand of the workload at *row*; None if no shared resource of it is known."""
    if row is None or row >= snapshot.workloads.demands.shape[0]:
        return None
    demand = without_negligible(snapshot.workloads.demands[row].astype(np.float64))
    return demand if np.isfinite(demand[:, -1]).any() else None


def _learned(snapshot: Judgement, row: int | None, gpu_model: str) -> str:
    """Return the key under which the workload at *row* is learned on *gpu_model*; "" if it has none."""
    ids = snapshot.workloads.workload_ids
    return learned_key(ids[row], gpu_model) if row is not None and row < len(ids) else ""


def _colocation(supply: Floats, workloads: Sequence[ColocatedWorkload]) -> Colocation:
    for row in MEASURED_ROWS:
        if sum(np.nan_to_num(workload.demand[row, -1]) for workload in workloads) > supply[row]:
            supply = supply.copy()
            supply[row] = nan  # the host may supply more than was ever seen
    return Colocation(workloads, supply)


def beside_neighbors(
    table: NodeTable, predictions: NeighborPredictions, nodes: Sequence[int]
) -> NodeTable:
    """Return *table* with the speed that the gang has beside the jobs on *nodes*.

    The order of the nodes stays: the search needs it by hazard only.
    """
    by_node = predictions.of(nodes)
    if not by_node:
        return table
    at = np.fromiter(by_node, dtype=np.intp, count=len(by_node))
    columns: dict[str, Any] = {}
    for name, ratio in (("speed", "ratio"), ("speed_lower", "upper"), ("speed_upper", "lower")):
        values: Floats = getattr(table, name).copy()
        values[at] /= [getattr(prediction, ratio) for prediction in by_node.values()]
        columns[name] = values
    return replace(table, neighbors=by_node, **columns)


def speed_alone(table: NodeTable, nodes: Indexes) -> Floats:
    """Return the speed of *nodes* without their neighbors: (3, nodes), value, lower and upper."""
    alone = np.stack((table.speed[nodes], table.speed_lower[nodes], table.speed_upper[nodes]))
    for position, node in enumerate(nodes.tolist() if table.neighbors else ()):
        if (prediction := table.neighbors.get(node)) is not None:
            alone[:, position] *= (prediction.ratio, prediction.upper, prediction.lower)
    return alone


def shared_evidence(table: NodeTable, nodes: Indexes) -> str:
    """Return the count of shared nodes, the worst prediction, and why nodes abstain; "" without a shared node."""
    shared = _shared(table, nodes)
    if not shared:
        return ""
    worst = max(shared, key=lambda prediction: prediction.ratio)
    text = f"{counted(len(shared), 'node')} beside running jobs"
    if not worst.abstained:
        by = f" ({worst.binding})" if worst.binding else ""
        text += f", slowest beside {', '.join(worst.jobs[:3])}: {100 * (worst.ratio - 1):.1f} % longer{by}"
    abstained = [prediction for prediction in shared if prediction.abstained]
    if abstained:
        text += f"; not predicted for {len(abstained)}: {abstained[0].abstained}"
    return text


def _shared(table: NodeTable, nodes: Indexes) -> list[NeighborPrediction]:
    """Return the predictions for *nodes*. Most plans have none: they must not pay for a pass over their nodes."""
    if not table.neighbors:
        return []
    return [table.neighbors[node] for node in nodes.tolist() if node in table.neighbors]


def lost_by_neighbors(table: NodeTable, nodes: Indexes, hours: float) -> Quantity | None:
    """Return the GPU-hours that running jobs lose beside a gang on *nodes*; None if no loss is predicted.

    A job on several of the nodes advances at the speed of its slowest.
    """
    worst: dict[str, JobLoss] = {}
    for prediction in _shared(table, nodes):
        for loss in prediction.losses:
            if loss.job not in worst or worst[loss.job].share < loss.share:
                worst[loss.job] = loss
    if not any(loss.upper > 0.0 for loss in worst.values()):
        return None
    value, lower, upper = (
        sum(loss.gpus * getattr(loss, bound) * hours for loss in worst.values())
        for bound in ("share", "lower", "upper")
    )
    named = sorted(worst.values(), key=lambda loss: -loss.gpus * loss.share)[:3]
    texts = [f"{loss.job} {100 * loss.share:.1f} % of {loss.gpus} GPUs" for loss in named]
    return assumed(value, lower, upper, f"over {hours:g} h: {', '.join(texts)}")


def search_costs(table: NodeTable, nodes: Indexes, members: int, hours: float) -> Floats:
    """Return a share of the neighbors' loss for each of *nodes*, in GPU-hours.

    The sum over any *members* of the nodes is at most the loss, which counts a job once.
    """
    counts: dict[str, int] = {}
    for prediction in table.neighbors.values():
        for loss in prediction.losses:
            counts[loss.job] = counts.get(loss.job, 0) + 1
    costs = np.zeros(nodes.size)
    for position, node in enumerate(nodes.tolist()):
        of_node = table.neighbors.get(node)
        for loss in of_node.losses if of_node is not None else ():
            costs[position] += loss.gpus * loss.share * hours / min(counts[loss.job], members)
    return costs


def encoded_predictions(predictions: Mapping[int, NeighborPrediction]) -> list[Any]:
    """Return *predictions* as JSON, for a decision's inputs."""
    return [[node, *prediction] for node, prediction in sorted(predictions.items())]


def decoded_predictions(rows: Sequence[Any]) -> dict[int, NeighborPrediction]:
    """Return the argument of `encoded_predictions`. Raises TypeError, ValueError."""
    result: dict[int, NeighborPrediction] = {}
    for node, jobs, ratio, lower, upper, losses, binding, abstained in rows:
        lost = tuple(JobLoss(*loss) for loss in losses)
        result[int(node)] = NeighborPrediction(
            tuple(jobs), ratio, lower, upper, lost, binding, abstained
        )
    return result
