"""Counter algebra on arrays equals the scalar version, and leaky sums give rates at any sampling period."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator import counter_deltas
from gangline.contract.counters import CounterSpec, Observation, StepOutcome, classify, compare

values = (
    st.none()
    | st.sampled_from(
        [0, 1, 15, 16, 255, 65535, 65536, 2**31 - 16, 2**32 - 1, 2**32, 2**63 - 16, 2**64 - 1]
    )
    | st.integers(0, 2**64 - 1)
    | st.integers(2**32 - 1000, 2**32 + 1000)
)


elapsed = st.integers(-1, 2) | st.integers(0, 10_000_000 * 10**9)
natures = st.builds(
    CounterSpec,
    st.sampled_from([4, 8, 16, 32, 64]),
    st.booleans(),
    st.sampled_from([0, 0, 1000, 262_143_328_850]),
    st.sampled_from([2**64 - 1, 0xFFFE]),
    st.sampled_from([float("inf"), 1000.0, 1e9, 1e18]),
)


@given(st.lists(st.tuples(values, values, st.booleans(), elapsed), min_size=1, max_size=8), natures)
def test_arrays_and_scalars_agree(
    cells: list[tuple[int | None, int | None, bool, int]], nature: CounterSpec
) -> None:
    """Two algebras that differ would show one rate in an explanation and judge by another."""
    boots = [b"a" * 16, b"b" * 16]
    expected = [
        compare(
            Observation(older, 10, boots[0]),
            Observation(newer, 10 + nanoseconds, boots[0] if same else boots[1]),
            nature,
        )
        for older, newer, same, nanoseconds in cells
    ]
    usable = [older is not None and classify(older, nature) is None for older, *_ in cells]
    steps = counter_deltas.compare(
        np.array([[older or 0 for older, *_ in cells]], dtype=np.uint64),
        np.array([usable]),
        np.array([[newer or 0 for _, newer, *_ in cells]], dtype=np.uint64),
        np.array([[newer is not None for _, newer, *_ in cells]]),
        np.array([same for _, _, same, _ in cells]),
        np.array([nanoseconds for *_, nanoseconds in cells], dtype=np.int64),
        counter_deltas.Shape.of([nature]),
    )
    assert [StepOutcome(o) for o in steps.outcome[0]] == [e.outcome for e in expected]
    assert steps.counts[0].tolist() == [e.count for e in expected]


@pytest.mark.parametrize("seconds", [0.5, 1.0, 10.0, 300.0])
def test_a_steady_rate_is_found_at_any_pace(seconds: float) -> None:
    """An agent at 10 s and an agent at 1 s with the same errors must get the same rate."""
    held, constant, rate = 0.0, 10.0, 7.0
    for _ in range(1000):
        decayed = held * float(np.exp(-seconds / constant))
        held = decayed + rate * seconds * float(
            counter_deltas.spread(np.array([seconds]), constant)[0]
        )
    assert held / constant == pytest.approx(rate, rel=1e-6)
