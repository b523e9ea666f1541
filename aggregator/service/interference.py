"""InterferenceService: how much co-located workloads slow each other, and whether they are isolated; calls change nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf, isfinite, isnan, nan
from typing import Any, NamedTuple

import numpy as np

from ...contract.wire import interference_pb2 as wire
from ...contract.wire.interference_pb2_grpc import InterferenceServiceServicer
from ...contract.wire.placement_pb2 import (
    ESTIMATE_ASSUMED,
    ESTIMATE_MEASURED,
    Estimate,
    EstimateSource,
)
from ...fingerprints.demand import DEMANDS, QUANTILES, SHARED_RESOURCES, Floats
from ...fingerprints.interference import (
    ColocatedWorkload,
    Colocation,
    InterferenceModel,
    Slowdown,
    learned_key,
    predict_groups,
)
from ...fingerprints.interference_pressure import HOST, MIG, MPS, TIME_SLICING, memory_blocker
from ...fingerprints.sensitivity import KnownWorkloads, LinkRates, known_link_rates
from ..decisions.neighbors import MEASURED_ROWS, supplies_now, without_negligible
from ..errors import FailedPrecondition, InvalidArgument, NotFound, ServiceUnavailable
from ..fleet.fleet import Fleet
from ..scoring.evaluate import Judgement
from .isolation import check_isolation
from .known_runs import similar_names, visible_name
from .score import SnapshotSource
from .validation import check_range, check_text, node_of

#: Limits of a request.
COLOCATIONS_MAX, WORKLOADS_MIN, WORKLOADS_MAX = 64, 2, 8
NAME_CHARACTERS_MAX, MODEL_CHARACTERS_MAX = 512, 128
#: Larger demands are mistakes.
DEMAND_MAX = 1e15
SHARINGS = {
    wire.SHARING_UNSPECIFIED: HOST,
    wire.SHARING_HOST: HOST,
    wire.SHARING_TIME_SLICING: TIME_SLICING,
    wire.SHARING_MPS: MPS,
    wire.SHARING_MIG: MIG,
}
#: HBM of GPU models, by a part of the name, in bytes (vendors' data sheets).
HBM_BYTES = {"A100": 80e9, "H100": 80e9, "H200": 141e9, "B200": 180e9}
DEFAULT_MODEL = "H100"
_DEMAND_ROWS = {name: row for row, name in enumerate(DEMANDS)}
_UNKNOWN = (nan,) * len(QUANTILES)
_HBM = DEMANDS.index("hbm_bytes")
_NVLINK = SHARED_RESOURCES.index("nvlink")


class _PreparedDemand(NamedTuple):
    """The demand of a workload: `shared` (SHARED_RESOURCES, QUANTILES), NaN unknown; `measured`: p99 of each of MEASURED_ROWS.

    `workload_id`, `gpu_model`: "" for a demand that no run has.
    """

    shared: Floats
    measured: tuple[float, ...]
    hbm_bytes: float
    workload_id: str = ""
    gpu_model: str = ""

    def on(self, gpu_model: str, *, has_node: bool) -> ColocatedWorkload:
        """Return the workload on GPUs of a model. Without a node *gpu_model* may be a part of the name of the run's own GPUs."""
        if not has_node and gpu_model in self.gpu_model:
            gpu_model = self.gpu_model
        key = learned_key(self.workload_id, gpu_model)
        return ColocatedWorkload(key, gpu_model, demand=self.shared)


class _PreparedSupply(NamedTuple):
    """Capacity for the workloads of a co-location, the HBM of one GPU, and the GPU model of the node ("" if unknown)."""

    values: Floats
    measured: tuple[float, ...]
    hbm_bytes: float
    gpu_model: str = ""


class _RequestedColocation(NamedTuple):
    """A co-location of the request, with demands in place of names."""

    demands: list[_PreparedDemand]
    colocation: Colocation
    sharing: str
    hbm_bytes: float


class _KnownDemands:
    """Demands of the runs that one snapshot knows, prepared at the first request for each."""

    def __init__(self, known: KnownWorkloads) -> None:
        self.known = known
        self._runs: dict[int, _PreparedDemand] = {}
        self._classes: dict[str, _PreparedDemand] = {}

    def of_run(self, name: str) -> _PreparedDemand:
        """Return the demand of a run that the caller may see. Raises NotFound."""
        known = self.known
        visible = visible_name(name, known.names)
        if visible is None:
            raise NotFound(_unknown(name, known))
        row = known.names[visible]
        if row not in self._runs:
            demand = known.demands[row].astype(np.float64)
            model = known.gpu_models[row] if row < len(known.gpu_models) else ""
            self._runs[row] = _prepared(demand, known.workload_ids[row], model)
        return self._runs[row]

    def of_class(self, name: str) -> _PreparedDemand:
        """Return the median demand of the runs of a class. Raises NotFound."""
        known = self.known
        if name not in self._classes:
            rows = [row for row, own in enumerate(known.classes) if own == name]
            demands = known.demands[rows].astype(np.float64)
            if not np.isfinite(demands).any():
                names = ", ".join(sorted({own for own in known.classes if own})) or "none"
                raise NotFound(
                    f"no run of the class {name!r} has a known demand; known classes: {names}"
                )
            self._classes[name] = _prepared(_median(demands))
        return self._classes[name]


class InterferenceService(InterferenceServiceServicer):
    """Coroutines of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(self, source: SnapshotSource, fleet: Fleet | None = None) -> None:
        """*fleet*: the jobs of hosts, for VerifyIsolation; None in the score process."""
        self._source, self._fleet = source, fleet
        self._demands = _KnownDemands(KnownWorkloads())

    async def PredictInterference(
        self, request: wire.PredictInterferenceRequest, context: Any
    ) -> wire.PredictInterferenceResponse:
        """Return the slowdown of each workload of each co-location.

        Raises InvalidArgument, NotFound, ServiceUnavailable.
        """
        snapshot = self._snapshot()
        check_range("colocations", len(request.colocations), 1, COLOCATIONS_MAX)
        supplies: dict[tuple[str, str, str], _PreparedSupply] = {}
        requested = [
            self._requested(snapshot, f"colocations[{index}]", colocation, supplies)
            for index, colocation in enumerate(request.colocations)
        ]
        response = wire.PredictInterferenceResponse(version=snapshot.version)
        learned = {model.sharing for model in snapshot.interference}
        predictions = _predict(requested, snapshot.interference)
        for group, slowdowns in zip(requested, predictions, strict=True):
            prediction = response.predictions.add(blocker=_blocker(group))
            source = ESTIMATE_MEASURED if group.sharing in learned else ESTIMATE_ASSUMED
            prediction.slowdowns.extend(_message(slowdown, source) for slowdown in slowdowns)
        return response

    async def VerifyIsolation(
        self, request: wire.VerifyIsolationRequest, context: Any
    ) -> wire.VerifyIsolationResponse:
        """Return the verdict on each boundary between two jobs on a host.

        Raises InvalidArgument, NotFound, FailedPrecondition, ServiceUnavailable.
        """
        if self._fleet is None:
            raise FailedPrecondition(
                "VerifyIsolation is answered at the address `listen` of the aggregator, not here"
            )
        snapshot = self._snapshot()
        checked = check_isolation(request, self._fleet, visible_name)
        response = checked.response
        response.version = snapshot.version
        if not checked.is_priced:
            return response
        workloads = [wire.ColocatedWorkload(run=run) for run in checked.runs]
        if "" in checked.runs:
            response.cost_unknown = "training names no run, so its demand is unknown"
            return response
        colocation = wire.Colocation(
            workloads=workloads, sharing=checked.sharing, node=request.node
        )
        try:
            predicted = await self.PredictInterference(
                wire.PredictInterferenceRequest(colocations=[colocation]), context
            )
        except NotFound as error:
            response.cost_unknown = str(error)
        else:
            response.cost.CopyFrom(predicted.predictions[0])
        return response

    def _snapshot(self) -> Judgement:
        snapshot = self._source.snapshot
        if not isinstance(snapshot, Judgement):
            raise ServiceUnavailable("the fleet is not judged yet; try again in a second")
        if self._demands.known is not snapshot.workloads:
            self._demands = _KnownDemands(snapshot.workloads)
        return snapshot

    def _requested(
        self,
        snapshot: Judgement,
        field: str,
        colocation: wire.Colocation,
        supplies: dict[tuple[str, str, str], _PreparedSupply],
    ) -> _RequestedColocation:
        """Return the co-location with its demands and supply. *supplies*: cache of the request."""
        check_range(f"{field}.workloads", len(colocation.workloads), WORKLOADS_MIN, WORKLOADS_MAX)
        check_text(f"{field}.gpu_model", colocation.gpu_model, MODEL_CHARACTERS_MAX)
        sharing = SHARINGS.get(colocation.sharing)
        if sharing is None:
            names = ", ".join(wire.Sharing.keys()[1:])
            raise InvalidArgument(
                f"{field}.sharing", f"{colocation.sharing}, expected one of {names}"
            )
        place = colocation.node, colocation.gpu_model, sharing
        if place not in supplies:
            supplies[place] = _supply(snapshot, field, colocation, sharing)
        supply = supplies[place]
        demands = [
            self._demand(f"{field}.workloads[{index}]", workload)
            for index, workload in enumerate(colocation.workloads)
        ]
        values = supply.values
        for at, row in enumerate(MEASURED_ROWS):
            if sum(demand.measured[at] for demand in demands) > supply.measured[at]:
                values = values.copy()
                values[row] = nan  # the host may supply more than was ever seen
        model = supply.gpu_model or colocation.gpu_model or DEFAULT_MODEL
        has_node = bool(colocation.node)
        workloads = [demand.on(model, has_node=has_node) for demand in demands]
        hbm_bytes = inf if sharing == HOST else supply.hbm_bytes
        return _RequestedColocation(demands, Colocation(workloads, values), sharing, hbm_bytes)

    def _demand(self, field: str, workload: wire.ColocatedWorkload) -> _PreparedDemand:
        given = [bool(workload.run), bool(workload.workload_class), bool(workload.demands)]
        if sum(given) != 1:
            raise InvalidArgument(field, "expected exactly one of run, workload_class and demands")
        if workload.demands:
            return _prepared(_described(f"{field}.demands", workload.demands))
        if workload.workload_class:
            check_text(f"{field}.workload_class", workload.workload_class, NAME_CHARACTERS_MAX)
            return self._demands.of_class(workload.workload_class)
        check_text(f"{field}.run", workload.run, NAME_CHARACTERS_MAX)
        return self._demands.of_run(workload.run)


def _unknown(name: str, known: KnownWorkloads) -> str:
    near = similar_names(name, known)
    hint = f"did you mean {near}?" if near else "ops.run_demand has those that are known"
    return f"no run {name!r} has a known demand; {hint}"


def _described(field: str, demands: Sequence[wire.ResourceDemand]) -> Floats:
    """Return the demand of a description. Raises InvalidArgument."""
    rows: list[tuple[float, ...]] = [_UNKNOWN] * len(DEMANDS)
    for index, demand in enumerate(demands):
        row = _DEMAND_ROWS.get(demand.resource)
        if row is None:
            raise InvalidArgument(
                f"{field}[{index}].resource",
                f"{demand.resource[:64]!r}, expected one of {', '.join(DEMANDS)}",
            )
        if rows[row] is not _UNKNOWN:
            raise InvalidArgument(
                f"{field}[{index}].resource", f"{demand.resource} is given twice; send it once"
            )
        values = (demand.p50, demand.p95, demand.p99)
        if not (0.0 <= values[0] <= values[1] <= values[2] <= DEMAND_MAX):  # also rejects NaN
            shown = ", ".join(f"{value:g}" for value in values)
            raise InvalidArgument(
                f"{field}[{index}]", f"{shown}, expected 0 <= p50 <= p95 <= p99 <= {DEMAND_MAX:g}"
            )
        rows[row] = values
    return np.array(rows)


def _supply(
    snapshot: Judgement, field: str, colocation: wire.Colocation, sharing: str
) -> _PreparedSupply:
    """Return the supply of the node as it is now, or of a healthy host; and the HBM of a GPU."""
    model, node_model = colocation.gpu_model or DEFAULT_MODEL, ""
    if not colocation.node:
        rates = known_link_rates(model)
        hbm_bytes = next((size for name, size in HBM_BYTES.items() if name in model), nan)
        if rates is None or not isfinite(hbm_bytes):
            names = ", ".join(HBM_BYTES)
            raise InvalidArgument(
                f"{field}.gpu_model",
                f"{model!r}, expected one of {names}; or name a node that has such GPUs",
            )
        values = _healthy_supply(rates)
    else:
        name = node_of(colocation.node, f"{field}.node")
        if name not in snapshot.names:
            raise NotFound(f"no node {name!r}: no host of that name has ever registered")
        index, supplies = snapshot.names.index(name), snapshot.supplies
        if index >= supplies.hbm_bytes.size:
            raise NotFound(f"node {name!r} has sent no readings of its supply")
        values = supplies_now(snapshot, np.array([index]), sharing)[0]
        hbm_bytes = float(supplies.hbm_bytes[index])
        node_model = supplies.gpu_models[index] if index < len(supplies.gpu_models) else ""
    if sharing == HOST:
        values[_NVLINK] = inf  # every GPU has NVLinks of its own
    measured = tuple(values[MEASURED_ROWS].tolist())
    hbm_bytes = hbm_bytes if isfinite(hbm_bytes) else inf
    return _PreparedSupply(values, measured, hbm_bytes, node_model)


def _healthy_supply(rates: LinkRates) -> Floats:
    """Return the supply of a host whose cores, memory bandwidth and disks suffice for any workload."""
    known = {
        "sm": 1.0, "hbm_bandwidth": 1.0, "pcie_received": rates.pcie, "pcie_transmitted": rates.pcie,
        "nvlink": 2.0 * rates.nvlink, "nic_received": 8 * rates.network, "nic_transmitted": 8 * rates.network,
    }  # fmt: skip
    return np.array([known.get(name, inf) for name in SHARED_RESOURCES])


def _predict(
    requested: Sequence[_RequestedColocation], models: Sequence[InterferenceModel]
) -> list[list[Slowdown]]:
    """Return the slowdowns of each co-location; those of one form of sharing are computed together."""
    by_sharing: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(requested):
        by_sharing[group.sharing].append(index)
    result: list[list[Slowdown]] = [[] for _ in requested]
    for sharing, indexes in by_sharing.items():
        model = next((model for model in models if model.sharing == sharing), None)
        groups = [requested[index].colocation for index in indexes]
        for index, slowdowns in zip(indexes, predict_groups(groups, sharing, model), strict=True):
            result[index] = slowdowns
    return result


def _blocker(group: _RequestedColocation) -> str:
    needed = [demand.hbm_bytes for demand in group.demands if isfinite(demand.hbm_bytes)]
    if sum(needed) <= group.hbm_bytes:
        return ""
    return memory_blocker(np.array(needed), group.hbm_bytes)


def _prepared(demand: Floats, workload_id: str = "", gpu_model: str = "") -> _PreparedDemand:
    """Return a demand (DEMANDS, QUANTILES) without what is negligible."""
    shared = without_negligible(demand)
    measured = tuple(0.0 if isnan(rate) else rate for rate in shared[MEASURED_ROWS, -1].tolist())
    return _PreparedDemand(shared, measured, float(demand[_HBM, -1]), workload_id, gpu_model)


def _median(demands: Floats) -> Floats:
    result = np.full(demands.shape[1:], np.nan)
    known = np.isfinite(demands[:, :, 0])
    for row in np.flatnonzero(known.any(axis=0)).tolist():
        result[row] = np.median(demands[known[:, row], row], axis=0)
    return result


def _message(slowdown: Slowdown, source: EstimateSource) -> wire.WorkloadSlowdown:
    estimate: Any = Estimate(
        value=slowdown.ratio,
        lower=slowdown.lower,
        upper=slowdown.upper,
        source=source,
        evidence=slowdown.evidence,
    )
    return wire.WorkloadSlowdown(
        slowdown=estimate, binding_resource=slowdown.binding, abstained=slowdown.abstained
    )
