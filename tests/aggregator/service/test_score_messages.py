"""Columns written directly in wire format: protobuf must read its own encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gangline.aggregator.service.score_messages import packed
from gangline.contract.wire import score_pb2

INDEXES = st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([2**n for n in range(32)]))
SINGLES = st.lists(st.floats(width=32))


@given(INDEXES, SINGLES)
def test_packed_columns_are_the_bytes_of_protobuf(indexes: list[int], singles: list[float]) -> None:
    """A scheduler's own protobuf reads them: one byte off, and each score is another node's."""
    columns: dict[str, NDArray[Any]] = {
        "gpu_index": np.array(indexes, dtype=np.int64),
        "gpu_hazard_spread": np.array(singles, dtype=np.float32),
    }
    ours = packed(score_pb2.ScoreNodesResponse, columns)
    theirs = score_pb2.ScoreNodesResponse(gpu_index=indexes, gpu_hazard_spread=singles)
    assert ours == theirs.SerializeToString(deterministic=True)
