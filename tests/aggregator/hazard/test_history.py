"""A node's history at 00:00: it must contain nothing later."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.aggregator.hazard.events import EventsError, FaultTable, parse_events
from gangline.aggregator.hazard.features import HISTORY_FEATURE_NAMES, features_of
from gangline.aggregator.hazard.history import state_at, units_of
from tests.aggregator.hazard.fleets import data_of, event, fault, recording


def known(nodes: int = 2) -> FaultTable:
    """Node a: a fault from 1.5 to 3.25 and an open one from 8.5; node b: none; until day 20."""
    rows = [*fault("a", 1.5, 3.25), event("a", 8.5, True), *fault("z", 19.5, 20.0)]
    return parse_events(data_of(rows)).with_nodes(nodes)


def test_units_are_nodes_that_are_up_and_positive_when_they_fail_within_seven_days() -> None:
    """A node in repair cannot interrupt a job: counted as healthy, it would rank best."""
    units = units_of(known())
    days = units.day[units.node == 0].tolist()
    assert days == [0, 1, 4, 5, 6, 7, 8]
    assert units.starts[units.node == 0].tolist() == [1, 1, 1, 1, 1, 1, 1]
    assert units.day.max() == 13  # 13 + 7 = 20, the end
    late = units.between(12, 13)
    assert late.starts[late.node == 1].tolist() == [
        0,
        1,
    ]  # a fault at 19.5 is within 7 days of 13, not of 12


def test_the_state_at_midnight() -> None:
    """Time since return counts from the end; faults count from the start."""
    units = units_of(known())
    state = units.take((units.node == 0) & (units.day == 5)).state
    assert state.since_return_days.tolist() == [1.75]
    assert state.count.tolist() == state.last_week.tolist() == [1.0]
    assert state.decayed[30.0].tolist() == pytest.approx([np.exp(-3.5 / 30)])
    never = units.take((units.node == 1) & (units.day == 5)).state
    assert never.since_return_days.tolist() == [np.inf]
    assert not features_of(never).any()


@pytest.mark.parametrize("day", [20, 55, 90])
def test_nothing_of_the_future_is_known(day: int) -> None:
    """A feature with a repair's future length made a model look good until it was used."""
    recorded = parse_events(data_of(recording(seed=3, nodes=20, days=110)))
    past = recorded.before(float(day))
    units = units_of(recorded)
    today = units.take(units.day == day)
    up, state = state_at(past, float(day))
    assert np.flatnonzero(up).tolist() == sorted(today.node.tolist())
    assert np.allclose(features_of(state)[today.node], features_of(today.state))


def test_features_a_day_ahead_are_those_of_that_day_if_nothing_happened() -> None:
    """A hazard over seven days uses the expected features of each day."""
    units = units_of(known())
    state = units.take((units.node == 0) & (units.day == 4)).state
    later = units.take((units.node == 0) & (units.day == 7)).state
    assert np.allclose(features_of(state, 3.0), features_of(later))
    assert features_of(state).shape == (1, len(HISTORY_FEATURE_NAMES))


def test_a_recording_that_is_too_short_or_too_large_is_refused() -> None:
    """Seven days must fit into the recording, and the table into memory."""
    with pytest.raises(EventsError, match="no window of 7 days fits"):
        units_of(parse_events(data_of(fault("a", 1.0, 2.0))))
    with pytest.raises(EventsError, match="100000 nodes x 9994 days"):
        units_of(parse_events(data_of(fault("a", 1.0, 10_000.0))).with_nodes(100_000))


def test_a_node_that_is_never_up_at_midnight_gives_no_unit() -> None:
    """The file's only node is down from its first second: this gave a traceback."""
    rows = [event("a", 0.0, starts=True), event("a", 30.0, starts=True, kind="CPU")]
    with pytest.raises(EventsError, match="no node is up at 00:00 of any day"):
        units_of(parse_events(data_of(rows)))


def test_more_nodes_and_days_than_memory_has_room_for_are_refused() -> None:
    """100,000 nodes for a year: the command filled a login node's memory, and was killed."""
    with pytest.raises(EventsError, match="100000 nodes x 94 days; at most 4000000 in all"):
        units_of(parse_events(data_of(fault("a", 5.0, 100.0))).with_nodes(100_000))
