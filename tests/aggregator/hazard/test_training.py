"""Which form is chosen: the simplest, whose ranking is known to hold, unless days ahead clearly speak for another."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.quality.made_up import made_up
from bench.quality.rankings import compared, table
from gangline.aggregator.hazard.baselines import BASELINES
from gangline.aggregator.hazard.features import FEATURES, NAMES
from gangline.aggregator.hazard.history import WINDOW_DAYS, State
from gangline.aggregator.hazard.model import HazardModel
from gangline.aggregator.hazard.training import FORMS

SIMPLEST = FORMS[0].names
#: Minutes, so that no two differ by less.
SINCE = st.lists(st.integers(0, 400 * 1440), min_size=2, max_size=20, unique=True)


def state_of(since_days: np.ndarray, count: np.ndarray) -> State:
    decayed = {days: count * np.exp(-since_days / days) for days in (7.0, 30.0, 90.0)}
    return State(since_days, count, decayed, count)


@settings(max_examples=50, deadline=None)
@given(
    minutes=SINCE,
    weights=st.tuples(*[st.floats(0.05, 5.0)] * len(SIMPLEST)),
    counts=st.integers(1, 50),
)
def test_the_simplest_form_ranks_exactly_as_the_time_since_return(
    minutes: list[int], weights: tuple[float, ...], counts: int
) -> None:
    """A calibrated model that swaps two hosts is another ranking than the one that was kept for being good."""
    own = dict(zip(SIMPLEST, weights, strict=True))
    model = HazardModel("", False, "", -6.0, tuple(own.get(name, 0.0) for name in NAMES))
    since = np.array([*sorted(minutes), np.inf]) / 1440
    # How often they failed must not matter.
    count = np.array([*np.linspace(counts, 1, len(minutes)), 0.0])
    chance = model.probability(state_of(since, count), WINDOW_DAYS)
    assert np.all(np.diff(np.minimum(chance, 0.999)) <= 0.0)
    # It is held to a fault an hour: those above are alike.
    assert np.all((np.diff(chance) < 0.0) | (chance[1:] > 0.999))
    baseline = BASELINES["time since return"](state_of(since, count))
    assert np.all(np.diff(baseline) < 0.0)


def test_where_recency_is_all_the_simple_ranking_is_kept() -> None:
    """A fitted model of counts ranked below the time since return on days ahead."""
    one = compared("recency, 1 / days", 300, 160, 100, seed=1)
    assert one is not None
    assert one.form.endswith(FORMS[0].name)
    assert one.figures["model"] == one.figures["time since return"]


def test_where_hosts_differ_for_good_counts_are_taken_in() -> None:
    """Five hosts of a hundred fail and fail again, whenever they returned."""
    one = compared("lemons", 300, 208, 120, seed=1)
    assert one is not None
    assert not one.form.endswith(FORMS[0].name)
    auc, recall = (np.array(one.figures["model"]) - one.figures["time since return"]).tolist()
    assert auc > 0.0 and recall > 0.05
    told = table([one])
    assert (
        f"| time since return | {auc:+.4f} ± 0.0000 | {recall:+.4f} ± 0.0000 | 0% | 0% | 100% |"
        in told
    )
    assert "| lemons | " in told and "| all alike | " not in told


def test_a_fleet_that_was_made_up_is_the_same_each_time() -> None:
    """A table of a rule's losses that nobody can make again."""
    one, again = (made_up("all of it", 50, 60, seed=2) for _ in range(2))
    assert one.start.tolist() == again.start.tolist()
    assert np.all(one.end > one.start) and len(one.start) > 10
    assert one.start.tolist() != made_up("all of it", 50, 60, seed=3).start.tolist()


def test_days_are_told_as_they_were() -> None:
    """`gangline explain` says when a host returned from what the feature holds of it."""
    returned = next(one for one in FEATURES if one.name == "returned")
    assert returned.said(float(np.log1p(30.0 / 12.25))) == "it returned from a fault 12.0 days ago"
