"""The second world: invariants of any drawn plan, and an episode through the real judge."""

from __future__ import annotations

import numpy as np
import pytest

from bench.quality import bsp_world as bsp
from bench.quality.bsp_world import Plan, play
from bench.quality.straggler_replay import REASONS, judge


@pytest.mark.parametrize("kind", [*bsp.NODE_KINDS, *bsp.CONTROL_KINDS])
def test_all_time_is_accounted_for_and_the_same_plan_gives_the_same_episode(kind: str) -> None:
    """A world that loses time, or changes from run to run, gives irreproducible figures."""
    plan = Plan(kind, 0.1, hosts=4, seed=5, seconds=120, onset=60.0)
    episode, other = play(plan), play(plan)
    assert np.array_equal(episode.watts, other.watts) and np.array_equal(
        episode.shares, other.shares
    )
    sums = episode.shares.sum(axis=3)
    runs = sums > 0
    assert runs.mean() > 0.4 and np.allclose(sums[runs], 1.0, atol=1e-6)
    assert (
        (np.diff(episode.steps) > 0).all()
        and np.isfinite(episode.watts).all()
        and (episode.watts > 0).all()
    )


@pytest.mark.parametrize("kind", ["healthy", "silent", "gpu", "cpu", "heat"])
def test_all_ranks_do_the_same_work_whoever_is_slow(kind: str) -> None:
    """In a synchronous gang work counters are equal by construction: a world where they are not gives the culprit away."""
    episode = play(Plan(kind, 0.15, hosts=4, seed=6, seconds=300, onset=100.0))
    work = episode.work[1200:].sum(axis=0)
    assert work.std() / work.mean() < 0.02


@pytest.mark.parametrize("kind", ["silent", "gpu"])
def test_the_culprit_is_the_one_that_does_not_wait(kind: str) -> None:
    """The whole judgment relies on this property."""
    episode = play(Plan(kind, 0.15, hosts=4, seed=6, seconds=300, onset=100.0))
    waits = episode.shares[1200:, ..., bsp.WAIT].mean(axis=0)
    host, gpu = divmod(int(waits.argmin()), bsp.GPUS)
    assert host == 3 and (kind == "silent" or gpu == 5)


def test_each_kind_of_fault_has_a_reason_that_names_it() -> None:
    """A kind without one could never be right."""
    assert REASONS.keys() == set(bsp.NODE_KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("has_gpm", [True, False])
def test_the_judge_names_the_culprit_of_another_world_and_nobody_in_a_control(
    has_gpm: bool,
) -> None:
    """The simulator and the judge have the same author: success there may not transfer."""
    plan = Plan("silent", 0.15, hosts=8, seed=3, seconds=320, has_gpm=has_gpm)
    outcome = judge(plan)
    assert outcome.is_named(3) and outcome.wrong == []
    for kind in ("stages", "checkpoints_often"):
        assert judge(Plan(kind, 0.15, hosts=8, seed=3, seconds=320, has_gpm=has_gpm)).wrong == []
