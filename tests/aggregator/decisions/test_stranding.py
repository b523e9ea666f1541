"""Stranded GPUs within nodes: by hand, against an independent count, and in plans."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.decisions import node_search, planner
from gangline.aggregator.decisions.node_search import Candidates
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.decisions.stranding import (
    DEMAND_ASSUMED,
    SHAPES_MAX,
    FreeRoom,
    RequestShape,
    room_of_masks,
    stranded_gpus,
    stranding_growth,
)
from tests.aggregator.decisions.fleets import Node, table_of

SHARES = (0.25, 0.5, 1.0)


def counted(
    free: list[float], cores: float, memory: float, demand: tuple[RequestShape, ...]
) -> float:
    """Return the stranded GPUs of one node, by definition."""
    total = sum(request_shape.weight for request_shape in demand)
    lost = 0.0
    for request_shape in demand:
        usable = [gpu for gpu in free if gpu >= request_shape.gpu_share]
        fits = (
            len(usable) >= request_shape.gpus
            and cores >= request_shape.cores
            and memory >= request_shape.memory_bytes
        )
        for_one = sum(usable) if fits else 0.0
        left, left_cores, left_memory, for_many = sorted(free), cores, memory, 0.0
        # Requests arrive until none fits, each on the GPUs with most free.
        while (
            left[-request_shape.gpus] >= request_shape.gpu_share
            and left_cores >= request_shape.cores
            and left_memory >= request_shape.memory_bytes
        ):
            left = sorted(
                left[: -request_shape.gpus]
                + [gpu - taken_of(request_shape) for gpu in left[-request_shape.gpus :]]
            )
            left_cores, left_memory = (
                left_cores - request_shape.cores,
                left_memory - request_shape.memory_bytes,
            )
            for_many += request_shape.gpus * request_shape.gpu_share
        lost += request_shape.weight / total * (sum(free) - 0.5 * (for_one + for_many))
    return lost


def taken_of(one: RequestShape) -> float:
    """Return a request's use of a GPU: requests of several GPUs take whole GPUs."""
    return one.gpu_share if one.gpus == 1 else 1.0


shapes = st.builds(
    RequestShape, st.integers(1, 4), st.sampled_from(SHARES), st.sampled_from((0.0, 4.0, 8.0)),
    st.sampled_from((0.0, 1e9)), st.sampled_from((1.0, 2.0)),
)  # fmt: skip


@st.composite
def rooms(draw: Any) -> FreeRoom:
    count = draw(st.integers(1, 4))
    free = st.lists(st.sampled_from((0.0, 0.25, 0.5, 0.75, 1.0)), min_size=8, max_size=8)
    gpus = np.array([draw(free) for _ in range(count)])
    cores = np.array([draw(st.sampled_from((0.0, 6.0, 12.0))) for _ in range(count)])
    memory = np.array([draw(st.sampled_from((0.0, 2e9))) for _ in range(count)])
    return FreeRoom(gpus, cores, memory)


@given(room=rooms(), shape=shapes, demand=st.lists(shapes, min_size=1, max_size=3).map(tuple))
def test_growth_is_what_is_counted_and_the_least_for_one_gpu(
    room: FreeRoom, shape: RequestShape, demand: tuple[RequestShape, ...]
) -> None:
    """The growth must belong to the GPUs of the mask."""
    growth = stranding_growth(room, shape, demand)
    fits = room.fits(shape)
    assert (np.isfinite(growth.gpus) == fits).all()
    for node in np.flatnonzero(fits).tolist():
        mask = int(growth.masks[node])
        assert mask.bit_count() == shape.gpus
        before = counted(room.gpus[node].tolist(), room.cores[node], room.memory_bytes[node], demand)  # fmt: skip
        assert before == pytest.approx(float(stranded_gpus(room, demand)[node]))

        def after(gpus: tuple[int, ...], node: int = node, before: float = before) -> float:
            then = room.of(np.array([node]))
            then.take(0, sum(1 << gpu for gpu in gpus), shape)
            return counted(then.gpus[0].tolist(), then.cores[0], then.memory_bytes[0], demand) - before  # fmt: skip

        taken = tuple(gpu for gpu in range(8) if mask >> gpu & 1)
        assert all(room.gpus[node, gpu] >= shape.gpu_share for gpu in taken)
        assert float(growth.gpus[node]) == pytest.approx(after(taken))
        if shape.gpus == 1:
            enough = np.flatnonzero(room.gpus[node] >= shape.gpu_share).tolist()
            minimum = min(after(pair) for pair in combinations(enough, 1))
            assert float(growth.gpus[node]) == pytest.approx(minimum)


@pytest.mark.parametrize("demand", [(), (RequestShape(1),) * (SHAPES_MAX + 1)])
def test_a_demand_has_a_limit(demand: tuple[RequestShape, ...]) -> None:
    """Each kind of request costs time for each node of each plan."""
    room = room_of_masks(np.array([8]), {})
    with pytest.raises(ValueError, match=f"expected 1 to {SHAPES_MAX}"):
        stranding_growth(room, RequestShape(1), demand)
    with pytest.raises(ValueError, match="one above 0"):
        stranded_gpus(room, (RequestShape(1, weight=0.0),))


def fleet() -> tuple[Any, Candidates]:
    """Return 600 free nodes: the last has two GPUs left, the last but one three."""
    table, free = table_of([Node(f"n{number}") for number in range(600)])
    return table, Candidates(free.nodes, {599: 0b00000110, 598: 0b11100000})


def test_a_plan_takes_the_gpus_that_strand_least() -> None:
    """Two GPUs out of a whole node strand six; out of a pair they strand none."""
    table, candidates = fleet()
    needs = GangRequirements(1, gpus_per_node=2, stranded_gpu_rate=0.5)
    best = planner.plan(table, candidates, needs)[0]
    assert best.nodes.tolist() == [599] and best.gpu_masks.tolist() == [0b110]
    part = next(price_part for price_part in best.price.parts if price_part.name == "stranded GPUs")
    room = room_of_masks(np.array([8]), {0: 0b110})
    before = float(stranded_gpus(room, DEMAND_ASSUMED)[0])
    assert before == pytest.approx(1.0)  # half of the requests need more than two
    assert part.gpu_hours.value == pytest.approx(-before * 24.0 * 0.5)
    total = sum(price_part.gpu_hours.value for price_part in best.price.parts)
    assert best.price.total.value == pytest.approx(total)
    assert best.gap_gpu_hours == pytest.approx(0.0, abs=1e-6)
    worse = planner.evaluate_nodes(table, candidates, needs, np.array([3]))
    assert worse.price.total.value > best.price.total.value
    assert worse.gap_gpu_hours >= worse.price.total.value - best.price.total.value - 1e-6


def test_health_and_stranding_are_weighed_in_gpu_hours() -> None:
    """A node about to fail is not worth the fragment that it fills, a slightly worse node is."""
    needs = GangRequirements(1, gpus_per_node=2, stranded_gpu_rate=0.5, hours=24.0)
    for hazard, expected in ((2e-4, {599}), (1.2, set(range(599)))):
        nodes = [
            Node(f"n{number}", hazard=hazard if number == 599 else 1.8e-4) for number in range(600)
        ]
        table, free = table_of(nodes)
        candidates = Candidates(free.nodes, {599: 0b110})
        assert set(planner.plan(table, candidates, needs)[0].nodes.tolist()) <= expected
    assert planner.plan(*table_of([Node("a")]), GangRequirements(1, stranded_gpu_rate=1.0))


def test_whole_nodes_and_requests_without_a_price_are_as_before() -> None:
    """Stranding counts only for a part of a node and with a rate."""
    table, candidates = fleet()
    for needs in (GangRequirements(2, gpus_per_node=2), GangRequirements(2, stranded_gpu_rate=1.0)):
        search = node_search.Search.of(table, candidates, needs)
        assert search.strands_within(search.pool.nodes) is None
    floor = GangRequirements(2, gpus_per_node=2, stranded_gpu_rate=1.0, survival_min=0.5)
    option = planner.plan(table, candidates, floor)[0]
    assert option.gpu_masks.size == 2  # priced, but not searched for
