"""How packing is measured: pods arrive until the demand is met, all strategies get the same pods,
and each takes only free resources.
"""

from __future__ import annotations

import numpy as np

from bench.quality.placement_packing import (
    BEST_FIT,
    BLIND,
    PLAN,
    RANDOM,
    Cluster,
    arrivals,
    mixed_up,
    packed,
    ways,
)
from gangline.aggregator.decisions.stranding import FreeRoom, RequestShape

PODS = [
    RequestShape(1, 1.0, 4.0, 0.0),
    RequestShape(1, 0.5, 2.0, 0.0),
    RequestShape(2, 1.0, 30.0, 0.0),
    RequestShape(0, 0.0, 8.0, 0.0),
]


def cluster() -> Cluster:
    gpus = np.array([8, 8, 4, 4, 2, 2, 2, 2], dtype=np.intp)
    return Cluster(gpus, np.asarray(8.0 * gpus, dtype=np.float64), np.full(8, 1e12))


def test_pods_arrive_until_the_demand_is_met() -> None:
    """A share at another demand than the published one is not comparable."""
    demands = [pod.gpus * pod.gpu_share for pod in arrivals(PODS, 40.0, 3)]
    assert sum(demands) >= 40.0 > sum(demands[:-1])
    assert demands == [pod.gpus * pod.gpu_share for pod in arrivals(PODS, 40.0, 3)]


def test_every_way_allocates_what_is_there_and_no_more() -> None:
    """A strategy that allocates a GPU twice, or counts a rejected pod, would seem best."""
    tested = cluster()
    for name, choose in ways(tested, 3).items():
        room = tested.room()
        allocated = 0.0
        for pod in arrivals(PODS, 1.3 * 32.0, 3):
            place = choose(room, pod, tuple(PODS[:3]))
            fit = room.fits(pod)
            assert (place is not None) == fit.any(), name
            if place is not None:
                node, mask = place
                assert fit[node] and mask.bit_count() == pod.gpus
                before = room.gpus.sum()
                room.take(node, mask, pod)
                assert np.isclose(before - room.gpus.sum(), pod.gpus * pod.gpu_share)
                allocated += pod.gpus * pod.gpu_share
        assert np.isclose(allocated, 32.0 - room.gpus.sum())
        assert isinstance(room, FreeRoom)


def test_a_price_for_stranding_packs_more_than_random() -> None:
    """Pods that take a node whole find none where smaller ones are scattered."""
    gpus = np.full(12, 8, dtype=np.intp)
    tested = Cluster(gpus, np.full(12, 64.0), np.full(12, 1e12))
    pods = [*PODS[:2], RequestShape(8, 1.0, 32.0, 0.0)]
    shares = {name: np.mean([packed(tested, pods, seed, choose)[-1] for seed in range(4)]) for name, choose in ways(tested, 3).items()}  # fmt: skip
    assert set(shares) == {RANDOM, BEST_FIT, BLIND, PLAN}
    assert shares[PLAN] > shares[RANDOM] + 0.1


def test_a_demand_that_is_mixed_up_keeps_its_parts() -> None:
    """The control differs only in which parts belong together."""
    mixed = mixed_up(PODS, 1)
    assert sorted(pod.cores for pod in mixed) == sorted(pod.cores for pod in PODS if pod.gpus)
    assert all(pod.gpu_share == 1.0 for pod in mixed if pod.gpus > 1)
