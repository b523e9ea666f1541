"""Memory and transfers of a gang's members: as the request declares them, else of the run that it names."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from ...contract.wire import placement_pb2
from ...fingerprints.demand import DEMANDS, QUANTILES, Floats
from ..decisions.node_table import NodeTable
from ..decisions.requirements import GangRequirements, MemoryRequirements
from ..decisions.transfers import LINKS, Transfers
from ..errors import InvalidArgument
from ..scoring.evaluate import Judgement
from . import placement_messages as messages
from .known_runs import visible_name
from .validation import check_real, span_seconds

BYTES_MAX = 1e15
STEP_SECONDS_MIN, STEP_SECONDS_MAX = 1e-3, 86_400.0
_SIZES = (
    "hbm_bytes", "smaller_batch_hbm_bytes", "host_bytes_per_step", "nvme_bytes_per_step", "page_cache_bytes",
)  # fmt: skip
_HBM, _PAGE_CACHE = DEMANDS.index("hbm_bytes"), DEMANDS.index("page_cache_bytes")
_P95 = QUANTILES.index(0.95)
#: Demands whose larger quantile is the use of each of LINKS.
_LINK_DEMANDS = (("pcie_received", "pcie_transmitted"), ("disk",), ("network_fs",))


def requirements_in(snapshot: Judgement, gang: placement_pb2.GangRequirements) -> GangRequirements:
    """Return a gang's requirements, with the memory of the run that it names. Raises InvalidArgument."""
    needs = messages.requirements_of(gang, snapshot.reported_factors, snapshot.tenants)
    return replace(needs, memory=_memory_of(gang, snapshot))


def transfers_of(gang: placement_pb2.GangRequirements, snapshot: Judgement) -> Transfers | None:
    """Return the transfers of a member; None if none is declared or known. Raises InvalidArgument."""
    memory = _checked(gang)
    sizes = memory.host_bytes_per_step, memory.nvme_bytes_per_step, 0.0
    rates = _known_rates(_demand_of(gang, snapshot))
    if not any(sizes) and not np.isfinite(rates).any():
        return None
    step = span_seconds("gang.memory.step", memory.step) if any(sizes) else 1.0
    return Transfers(sizes, step, rates)


def memory_notes(
    table: NodeTable, needs: GangRequirements, gang: placement_pb2.GangRequirements
) -> list[str]:
    """Return notes on nodes whose memory is not known, and on less free memory than the named run used as page cache.

    A run fills the page cache that it gets, so the use of a run is only a note.
    """
    supplies, count = table.snapshot.supplies, len(table)
    notes: list[str] = []
    for supply, needed, name in (
        (supplies.hbm_bytes, needs.memory.hbm_bytes, "HBM"),
        (supplies.memory_bytes, needs.memory.page_cache_bytes, "free memory"),
    ):
        unknown = count - int(np.isfinite(supply[:count]).sum())
        if needed and unknown:
            notes.append(
                f"the {name} of {unknown} of {count} nodes is not known: they count as large enough"
            )
    used = float(_demand_of(gang, table.snapshot)[_PAGE_CACHE, _P95])
    small = int((supplies.memory_bytes[:count] < used).sum())
    if small and not needs.memory.page_cache_bytes:
        notes.append(
            f"{gang.workload.job} used {used / 1e9:.4g} GB of page cache (p95); {small} of {count} nodes have less memory free, "
            "so it may read more from disks there"
        )
    return notes


def _memory_of(gang: placement_pb2.GangRequirements, snapshot: Judgement) -> MemoryRequirements:
    memory = _checked(gang)
    hbm_bytes, source = memory.hbm_bytes, "the request"
    if not hbm_bytes:
        known = float(_demand_of(gang, snapshot)[_HBM, _P95])
        if isfinite(known):
            hbm_bytes, source = known, f"p95 of {gang.workload.job}"
    smaller = memory.smaller_batch_hbm_bytes
    return MemoryRequirements(
        hbm_bytes, smaller if smaller < hbm_bytes else 0.0, memory.page_cache_bytes, source
    )


def _checked(gang: placement_pb2.GangRequirements) -> placement_pb2.MemoryNeeds:
    """Return the declared memory. Raises InvalidArgument."""
    memory: Any = gang.memory
    for name in _SIZES:
        check_real(f"gang.memory.{name}", getattr(memory, name), BYTES_MAX)
    if memory.hbm_bytes and memory.smaller_batch_hbm_bytes >= memory.hbm_bytes:
        raise InvalidArgument(
            "gang.memory.smaller_batch_hbm_bytes",
            f"{memory.smaller_batch_hbm_bytes:g}, expected less than hbm_bytes, {memory.hbm_bytes:g}",
        )
    has_transfers = bool(memory.host_bytes_per_step or memory.nvme_bytes_per_step)
    if has_transfers != memory.HasField("step"):
        raise InvalidArgument(
            "gang.memory.step",
            "expected together with host_bytes_per_step or nvme_bytes_per_step: the length of the step with these bytes",
        )
    if has_transfers:
        seconds = span_seconds("gang.memory.step", memory.step)
        if not STEP_SECONDS_MIN <= seconds <= STEP_SECONDS_MAX:
            reason = f"{seconds:.10g} s, expected {STEP_SECONDS_MIN:g} to {STEP_SECONDS_MAX:.0f}"
            raise InvalidArgument("gang.memory.step", reason)
    return gang.memory


def _demand_of(gang: placement_pb2.GangRequirements, snapshot: Judgement) -> Floats:
    """Return the demand (DEMANDS, QUANTILES) of the run that the request names; NaN if unknown or not visible."""
    known = snapshot.workloads
    visible = visible_name(gang.workload.job, known.names) if gang.workload.job else None
    row = known.names[visible] if visible is not None else len(known.demands)
    if row >= len(known.demands):
        return np.full((len(DEMANDS), len(QUANTILES)), np.nan)
    return np.asarray(known.demands[row], dtype=np.float64)


def _known_rates(demand: Floats) -> Floats:
    rates = np.full((len(LINKS), len(QUANTILES)), np.nan)
    for row, names in enumerate(_LINK_DEMANDS):
        for name in names:
            rates[row] = np.fmax(rates[row], demand[DEMANDS.index(name)])
    return rates
