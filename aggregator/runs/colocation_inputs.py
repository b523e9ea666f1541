"""Stores the facts of co-locations in the table `colocation_inputs`, and reads the pairs that train a model.

Demands of ended runs and supplies of hosts change, so they are stored with the comparison of the paces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
from duckdb import DuckDBPyConnection as Connection

from ...fingerprints.colocation import Effect
from ...fingerprints.demand import QUANTILES, SHARED_RESOURCES, Floats, HostSupply
from ...fingerprints.interference import ColocatedWorkload, Colocation, learned_key
from ...fingerprints.interference_pressure import HOST
from ...fingerprints.interference_training import Measured
from ..store.rows import replace_rows
from .colocations import RunColocation
from .run_history import RunHistory

_COLUMNS = (
    "run_id:str neighbor_run_id:str time:time sharing:str gpu_model:str workload_id:str neighbor_workload_id:str "
    "demand:floats neighbor_demand:floats supply:floats"
)
_SHAPE = len(SHARED_RESOURCES), len(QUANTILES)
#: Rows that a training reads, two for most pairs: with many more, the check of the model exceeds its time limit.
ROWS_MAX = 4000
#: Comparisons with a known effect of real runs, the newest first. A slowdown that did not end with the neighbor teaches nothing.
_PAIRS = f"""
SELECT
    i.run_id, i.neighbor_run_id, i.gpu_model, i.workload_id, i.neighbor_workload_id, i.demand, i.neighbor_demand, i.supply,
    c.slowdown_ratio
FROM colocations AS c JOIN colocation_inputs AS i USING (run_id, neighbor_run_id)
WHERE c.effect IN ('{Effect.SLOWER.value}', '{Effect.NONE.value}') AND NOT c.simulated AND i.sharing = ?
ORDER BY c.time DESC, i.run_id LIMIT {ROWS_MAX}
"""


class _PairRow(NamedTuple):
    run_id: str
    neighbor_run_id: str
    gpu_model: str
    workload_id: str
    neighbor_workload_id: str
    demand: Sequence[float]
    neighbor_demand: Sequence[float]
    supply: Sequence[float]
    slowdown_ratio: float


def input_rows(
    colocations: Iterable[RunColocation],
    history: RunHistory,
    supply: HostSupply,
    now_ns: int,
) -> list[dict[str, Any]]:
    """Return the rows of `colocation_inputs`; none for runs on one GPU, whose form of sharing is not known."""
    rows: list[dict[str, Any]] = []
    for colocation in colocations:
        ids = colocation.run.run_id, colocation.neighbor.run_id
        own, neighbor = (history.known_run(run_id) for run_id in ids)
        host = colocation.hosts[0] if colocation.hosts else supply.switch.size
        if own is None or neighbor is None or host >= supply.switch.size:
            continue
        if np.intersect1d(colocation.run.shared_rows, colocation.neighbor.shared_rows).size:
            continue
        demands = [history.demand(run_id)[: _SHAPE[0]].ravel().tolist() for run_id in ids]
        rows.append(
            {
                "run_id": ids[0], "neighbor_run_id": ids[1], "time": now_ns, "sharing": HOST,
                "gpu_model": own.fingerprint.gpu_model, "workload_id": own.workload_id,
                "neighbor_workload_id": neighbor.workload_id, "demand": demands[0], "neighbor_demand": demands[1],
                "supply": supply.on_hosts(np.array([host]))[0].tolist(),
            }
        )  # fmt: skip
    return rows


def put_inputs(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the facts of co-locations. Raises duckdb.Error."""
    if rows:
        replace_rows(connection, "colocation_inputs", _COLUMNS, rows, ("run_id", "neighbor_run_id"))


def read_measured(connection: Connection, sharing: str) -> list[Measured]:
    """Return the measured pairs of real runs, a pair once. Raises duckdb.Error."""
    rows = [_PairRow(*row) for row in connection.execute(_PAIRS, [sharing]).fetchall()]
    pairs: dict[frozenset[str], tuple[_PairRow, dict[str, float]]] = {}
    for row in rows:
        if np.size(row.demand) != np.prod(_SHAPE) or np.size(row.supply) != _SHAPE[0]:
            continue  # stored by a version with other resources
        pair = frozenset((row.run_id, row.neighbor_run_id))
        pairs.setdefault(pair, (row, {}))[1][row.run_id] = _ratio(row.slowdown_ratio)
    return [_measured(row, ratios) for row, ratios in pairs.values()]


def _measured(row: _PairRow, ratios: Mapping[str, float]) -> Measured:
    workloads = [
        ColocatedWorkload(
            learned_key(workload, row.gpu_model), row.gpu_model, demand=_demand(values)
        )
        for workload, values in (
            (row.workload_id, row.demand),
            (row.neighbor_workload_id, row.neighbor_demand),
        )
    ]
    supply = np.array(row.supply, dtype=np.float64)
    return Measured(
        Colocation(workloads, supply),
        (ratios.get(row.run_id, nan), ratios.get(row.neighbor_run_id, nan)),
        (row.workload_id, row.neighbor_workload_id),
    )


def _demand(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64).reshape(_SHAPE)


def _ratio(slowdown: float) -> float:
    """Return the time of a step beside the neighbor over that alone; *slowdown*: the lost share of the speed."""
    return 1.0 / (1.0 - slowdown) if isfinite(slowdown) and 0.0 <= slowdown < 1.0 else nan
