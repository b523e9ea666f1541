"""Stranded GPUs: free GPUs that a placement leaves on a node and that later requests cannot use.

  stranded = mean over the demand of (free GPUs - usable GPUs), half of it with usable for one request, half for many
  growth   = stranded GPUs after the request, less stranded GPUs before it

Usable for one request of a kind are the GPUs with at least the requested share free; none, if the
node has too few such GPUs, too few cores or too little memory. This is the measure of Weng et al.,
"Beware of Fragmentation" (USENIX ATC 2023). It does not detect that four free GPUs with cores for
one request are three GPUs too many. Usable for many are the GPUs that requests of the kind take
until no more fit. The half is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..arrays import Bytes, Flags, Floats, Indexes

#: GPUs of a node that fit in a mask, and maximum kinds of requests in a demand.
NODE_GPUS_MAX, SHAPES_MAX = 8, 64
#: Tolerance of comparisons of GPU shares.
SHARE_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Resources that one member takes on a node.

    `gpu_share`: share of each of its GPUs. `weight`: relative frequency of such requests.
    """

    gpus: int
    gpu_share: float = 1.0
    cores: float = 0.0
    memory_bytes: float = 0.0
    weight: float = 1.0


#: Demand if the expected requests are unknown: whole GPUs, each size equally often (assumed).
DEMAND_ASSUMED = tuple(RequestShape(gpus) for gpus in (1, 2, 4, 8))


@dataclass(frozen=True, slots=True)
class FreeRoom:
    """Free resources of nodes. `gpus` (nodes, 8): the free share of each, 0 if absent."""

    gpus: Floats
    cores: Floats
    memory_bytes: Floats

    def of(self, nodes: Indexes) -> FreeRoom:
        """Return the room of some nodes, by index."""
        return FreeRoom(self.gpus[nodes], self.cores[nodes], self.memory_bytes[nodes])

    def fits(self, shape: RequestShape) -> Flags:
        """Return which nodes have room for one member of *shape*."""
        enough = (self.gpus >= shape.gpu_share - SHARE_EPSILON).sum(axis=1) >= shape.gpus
        enough &= self.cores >= shape.cores
        return np.asarray(enough & (self.memory_bytes >= shape.memory_bytes), dtype=bool)

    def take(self, node: int, mask: int, shape: RequestShape) -> None:
        """Subtract *shape* from *node* in place, with its GPUs from *mask*."""
        taken = [gpu for gpu in range(NODE_GPUS_MAX) if mask >> gpu & 1]
        self.gpus[node, taken] = np.maximum(self.gpus[node, taken] - shape.gpu_share, 0.0)
        self.cores[node] -= shape.cores
        self.memory_bytes[node] -= shape.memory_bytes


def room_of_masks(gpus: Indexes, masks: dict[int, int]) -> FreeRoom:
    """Return the room of nodes with whole GPUs: *masks* by node, all of *gpus* elsewhere."""
    free = (np.arange(NODE_GPUS_MAX) < np.asarray(gpus)[:, None]).astype(np.float64)
    for node, mask in masks.items():
        free[node] = [mask >> gpu & 1 for gpu in range(NODE_GPUS_MAX)]
    unlimited = np.full(len(free), np.inf)
    return FreeRoom(free, unlimited, unlimited.copy())


class StrandingGrowth(NamedTuple):
    """By node: growth of stranded GPUs, and a byte with the GPUs to take (bit g the g-th)."""

    gpus: Floats
    masks: Bytes


class _Demand(NamedTuple):
    counts: Floats
    shares: Floats
    cores: Floats
    memory_bytes: Floats
    weights: Floats


def _demand_of(shapes: Sequence[RequestShape]) -> _Demand:
    if not 1 <= len(shapes) <= SHAPES_MAX:
        raise ValueError(f"a demand of {len(shapes)} shapes: expected 1 to {SHAPES_MAX}")
    rows = np.array([(s.gpus, s.gpu_share, s.cores, s.memory_bytes, s.weight) for s in shapes]).T
    if not (rows[4] >= 0.0).all() or rows[4].sum() <= 0.0:
        raise ValueError("weights of a demand: expected none negative, and one above 0")
    return _Demand(rows[0], rows[1], rows[2], rows[3], rows[4] / rows[4].sum())


def stranded_gpus(room: FreeRoom, demand: Sequence[RequestShape]) -> Floats:
    """Return each node's free GPUs that *demand* cannot use. Raises ValueError: invalid demand."""
    wanted = _demand_of(demand)
    free = room.gpus[:, :, None]
    total = room.gpus.sum(axis=1)[:, None]
    # number of requested shares free on each GPU
    slots = np.floor((free + SHARE_EPSILON) / wanted.shares)
    is_usable = slots >= 1.0
    count = np.floor(np.where(wanted.counts > 1, is_usable, slots).sum(axis=1) / wanted.counts)
    for left, requested in ((room.cores, wanted.cores), (room.memory_bytes, wanted.memory_bytes)):
        bound = np.floor(left[:, None] / np.where(requested > 0.0, requested, 1.0) + SHARE_EPSILON)
        count = np.where(requested > 0.0, np.minimum(count, bound), count)
    usable_often = np.maximum(count, 0.0) * wanted.counts * wanted.shares
    usable_once = np.where(count >= 1.0, (free * is_usable).sum(axis=1), 0.0)
    return np.asarray(
        (total - 0.5 * (usable_once + usable_often)) @ wanted.weights, dtype=np.float64
    )


def stranding_growth(
    room: FreeRoom, shape: RequestShape, demand: Sequence[RequestShape]
) -> StrandingGrowth:
    """Return each node's growth of stranded GPUs by *shape*; inf if it does not fit.

    For a share of one GPU each GPU is tried; for several GPUs the least free sufficient ones are
    taken.
    """
    count = room.cores.size
    growth, masks = np.full(count, np.inf), np.zeros(count, dtype=np.uint8)
    rows = np.flatnonzero(room.fits(shape))
    if not rows.size:
        return StrandingGrowth(growth, masks)
    near = room.of(rows)
    after = FreeRoom(
        near.gpus.copy(), near.cores - shape.cores, near.memory_bytes - shape.memory_bytes
    )
    enough = near.gpus >= shape.gpu_share - SHARE_EPSILON
    least_first = np.argsort(np.where(enough, near.gpus, np.inf), axis=1, kind="stable")
    before = stranded_gpus(near, demand)
    if shape.gpus == 1:
        # GPUs with equal free shares are equivalent: try one of each.
        best = np.full(rows.size, np.inf)
        chosen = np.zeros(rows.size, dtype=np.intp)
        ordered = np.take_along_axis(np.where(enough, near.gpus, np.inf), least_first, axis=1)
        for rank in range(NODE_GPUS_MAX):
            is_new = np.isfinite(ordered[:, rank])
            if rank:
                is_new &= ordered[:, rank] > ordered[:, rank - 1] + SHARE_EPSILON
            tried = np.flatnonzero(is_new)
            if not tried.size:
                continue
            gpus = near.gpus[tried].copy()
            gpus[np.arange(tried.size), least_first[tried, rank]] -= shape.gpu_share
            then = FreeRoom(np.maximum(gpus, 0.0), after.cores[tried], after.memory_bytes[tried])
            lost = stranded_gpus(then, demand)
            is_less = lost < best[tried] - SHARE_EPSILON
            best[tried[is_less]] = lost[is_less]
            chosen[tried[is_less]] = least_first[tried[is_less], rank]
        growth[rows] = best - before
        masks[rows] = 1 << chosen
        return StrandingGrowth(growth, masks)
    taken = least_first[:, : shape.gpus]
    left = np.take_along_axis(after.gpus, taken, axis=1) - shape.gpu_share
    np.put_along_axis(after.gpus, taken, np.maximum(left, 0.0), axis=1)
    growth[rows] = stranded_gpus(after, demand) - before
    masks[rows] = (1 << taken).sum(axis=1) if shape.gpus else 0
    return StrandingGrowth(growth, masks)
