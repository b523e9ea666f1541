"""Hangs from the activity of GPUs: the late members, the limit of time, and pauses that are not reported."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.fingerprints.standstill import (
    LEARNING_SECONDS,
    LIMIT_SECONDS,
    LIMIT_SECONDS_MAX,
    WORKING_LIMIT_SECONDS,
    GpuActivity,
    PhaseShares,
    RunPast,
    activities,
    limit_seconds,
    standstill_of,
)

WORKED = RunPast(moved_seconds=LEARNING_SECONDS)
W, S, C, M, U, Q = (
    GpuActivity.WAITS,
    GpuActivity.STALLS,
    GpuActivity.COMPUTES,
    GpuActivity.MOVES,
    GpuActivity.UNKNOWN,
    GpuActivity.SILENT,
)


def test_each_constant_second_has_its_activity() -> None:
    """compute, wait, host stall, checkpoint, idle."""
    rows = np.array(
        [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1],
         [0, 0.5, 0, 0.5, 0], [0.8, 0.2, 0, 0, 0], [np.nan] * 5]
    )  # fmt: skip
    names = [GpuActivity(code).name for code in activities(PhaseShares(*rows.T))]
    assert names == [
        "COMPUTES", "WAITS", "STALLS", "WAITS", "STALLS", "WAITS", "MOVES", "UNKNOWN",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("members", "late"),
    [
        ([W, W, W, S], [3]),
        ([W, W, C, W], [2]),
        ([W, W, W, Q], [3]),
        ([W, S], [1]),
        ([W] * 6 + [S] * 2, [6, 7]),
        ([W] * 4, []),
        ([W] * 19 + [U], []),
        ([W, W, W, M], None),  # a member works
        ([S] * 4, None),  # none waits: the job ends, or is paused
        ([C] * 4, None),  # a long step
        ([W, S, S, S], None),
        ([W, W, W, U], None),  # too little is known
        ([W], None),  # a single GPU waits for no other
        ([], None),
    ],
)
def test_the_late_members_are_those_that_do_not_wait(
    members: list[GpuActivity], late: list[int] | None
) -> None:
    seconds = 40.0 + np.arange(len(members), dtype=np.float64)
    result = standstill_of(np.array(members, dtype=np.int8), seconds)
    assert (None if result is None else result.late.tolist()) == late
    assert result is None or result.seconds == 40.0


def test_the_limit_grows_with_what_the_run_did_before() -> None:
    """A checkpoint, an evaluation on one rank, and the first stop of an unknown run are not reported at once."""
    assert limit_seconds(WORKED, is_working=False) == LIMIT_SECONDS
    assert limit_seconds(WORKED._replace(longest_seconds=45.0), is_working=False) == 90.0
    assert limit_seconds(WORKED, is_working=True) == WORKING_LIMIT_SECONDS
    assert limit_seconds(RunPast(), is_working=False) > LIMIT_SECONDS
    assert limit_seconds(RunPast(1e6, 1e6), is_working=False) == LIMIT_SECONDS_MAX
