"""Physics of shared resources: demand beyond supply stretches the work, never shortens it, and only up to a bound.

A demand has the quantiles of QUANTILES over the seconds of a workload. Two workloads do not choose their busy seconds
together, so the excess is the mean over all pairs of quantiles. A mean of the demands would hide the seconds in which
both are busy.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
import numpy.typing as npt

from .demand import QUANTILES, SHARED_RESOURCES

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Forms of sharing. The first three are on one GPU; "host" is on two GPUs of a host; "separate" shares nothing.
SHARINGS = ("time_slicing", "mps", "mig", "host", "separate")
TIME_SLICING, MPS, MIG, HOST, SEPARATE = SHARINGS
#: Limit of the reported slowdown: a workload at this limit makes no useful progress.
SLOWDOWN_MAX = 20.0
#: Share of the seconds that each quantile represents: the midpoints between the quantiles are the borders.
SECONDS_SHARES: Floats = np.array([0.725, 0.245, 0.03])
#: Resources that each form of sharing divides among the workloads. Time-sliced kernels do not overlap, so their HBM
#: bandwidth is never shared. A MIG instance owns its SMs and its HBM bandwidth; PCIe and the host are shared.
_NOT_DIVIDED = {
    TIME_SLICING: {"hbm_bandwidth"},
    MPS: set[str](),
    MIG: {"sm", "hbm_bandwidth"},
    HOST: {"sm", "hbm_bandwidth"},
    SEPARATE: set(SHARED_RESOURCES),
}
IS_DIVIDED: dict[str, Flags] = {
    sharing: np.array([name not in excluded for name in SHARED_RESOURCES])
    for sharing, excluded in _NOT_DIVIDED.items()
}
_SM = SHARED_RESOURCES.index("sm")
assert len(SECONDS_SHARES) == len(QUANTILES)


def pressures(demand: Floats, supply: Floats) -> Floats:
    """Return demand over supply, from 0 to 1; NaN where unknown.

    *demand*: (..., resources, quantiles); *supply*: (..., resources). A workload alone gets at most the supply. An
    infinite supply means that the workloads do not share the resource. Negative numbers are unknown.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = demand / np.asarray(supply)[..., None]
        ratio = np.where((demand >= 0.0) & (np.asarray(supply)[..., None] > 0.0), ratio, np.nan)
    return np.asarray(np.minimum(ratio, 1.0))


def excess_by_resource(own: Floats, others: Floats, sharing: str) -> Floats:
    """Return the excess of each resource: 0.5 if the workload takes 1.5 times as long.

    *own*: pressures of the workload (rows, resources, quantiles); *others*: the sum of the pressures of its neighbors; both 0 where
    unknown. A resource that is in use for a share `a` of the time takes turns with neighbors that use `b`: at most `a * b` is
    added. Work that fills gaps waits only for `a + b - 1`, the demand beyond the supply.
    """
    own_axis, other_axis = own[..., :, None], others[..., None, :]
    turns = own_axis * other_axis
    beyond = np.maximum(np.minimum(own_axis + other_axis - 1.0, turns), 0.0)
    if sharing == TIME_SLICING:
        beyond[..., _SM, :, :] = turns[..., _SM, :, :]
    excess = np.einsum("...ij,i,j->...", beyond, SECONDS_SHARES, SECONDS_SHARES)
    return np.asarray(np.where(IS_DIVIDED[sharing], excess, 0.0))


def memory_blocker(needed_bytes: Floats, supply_bytes: float) -> str:
    """Return why workloads do not fit into the HBM of a GPU together; "" if they fit, or if the bytes are unknown.

    *needed_bytes*: the p99 of each workload. A workload that does not fit fails: it is not slow.
    """
    known = np.asarray(needed_bytes, dtype=np.float64)
    known = known[np.isfinite(known) & (known > 0.0)]
    total = float(known.sum())
    if not isfinite(supply_bytes) or total <= supply_bytes:
        return ""
    return (
        f"HBM: the workloads need {total / 1e9:.1f} GB at their p99, the GPU has {supply_bytes / 1e9:.1f} GB: "
        "use a GPU with more memory, or a smaller batch"
    )
