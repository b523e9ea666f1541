"""How recoveries are measured: the oracle is never beaten, a wrong world shows, and one seed is one world."""

from __future__ import annotations

import numpy as np
import pytest

from bench.quality.placement_recovery import (
    case_of,
    costs,
    covered,
    luck_of,
    mean_regret,
    outcomes,
    site_of,
)
from gangline.aggregator.decisions.recovery import RecoveryKind, plan_recovery


def test_the_oracle_is_never_beaten_and_a_way_at_random_is_worse() -> None:
    """A regret below zero would mean that the oracle knows less than the plan."""
    results = outcomes(3, sites=8, incidents=3, draws=60)
    assert len(results) >= 10
    assert all(result.chosen_mean >= result.best_mean - 1e-9 for result in results)
    assert 0.0 <= mean_regret(results) < mean_regret(results, "random_mean")
    assert results == outcomes(3, sites=8, incidents=3, draws=60)


def test_a_world_that_is_slower_shows_in_the_calibration() -> None:
    """A measure of calibration that cannot fail measures nothing."""
    fast, slow = (outcomes(4, sites=8, incidents=2, draws=4, scale=scale) for scale in (0.2, 6.0))
    assert covered(fast)[0] > covered(slow)[0] + 0.3
    assert covered(slow)[1] < 0.8


def test_waiting_for_a_repair_costs_the_whole_gang_for_as_long() -> None:
    """The world must compute the costs itself, not by the planner's prices."""
    source = np.random.default_rng(5)
    for _ in range(20):
        case = case_of(site_of(source), source)
        plan = plan_recovery(case.table, case.candidates, case.needs, case.incident)
        luck = luck_of(case, 50, np.array([1000.0]), source)
        by_kind = {option.kind: costs(case, option, luck) for option in plan.options}
        waits = by_kind[RecoveryKind.WAIT_FOR_REPAIR]
        gpus = 8.0 * case.incident.current.size
        assert (waits > 720.0 * gpus).all()  # repairs are cut there
        for kind in (RecoveryKind.STANDBY, RecoveryKind.FREE_NODE):
            if kind in by_kind:
                assert (by_kind[kind] < waits).all()


@pytest.mark.parametrize("hangs", [0.0, 1.0])
def test_a_hang_is_noticed_at_the_time_out(hangs: float) -> None:
    """The mixture of crashes and hangs is what no lognormal is."""
    source = np.random.default_rng(6)
    case = case_of(site_of(source), source)
    object.__setattr__(case.site, "hang_share", hangs)
    luck = luck_of(case, 200, None, source)
    assert (np.unique(luck.detect).size == 1) == (hangs == 1.0)
