"""The pace of a job: a job that was slow for an hour was at 100 % after five minutes."""

from __future__ import annotations

from math import isnan, nan

import pytest

from gangline.aggregator.runs.job_pace import (
    STEPS,
    SUSTAINED_WINDOWS,
    WARMUP_WINDOWS,
    PaceTracker,
    PaceWindow,
    Works,
)

WINDOW_NS = 10_000_000_000


def tracked(*works: float, tracker: PaceTracker | None = None) -> PaceTracker:
    """Return a tracker that saw windows of these steps a second, NaN for none."""
    tracker = tracker or PaceTracker()
    begin = tracker.windows[-1].time_ns + WINDOW_NS if tracker.windows else WINDOW_NS
    for number, work in enumerate(works):
        window: Works = (work, nan, 0.5)
        tracker.observe(PaceWindow(begin + number * WINDOW_NS, window))
    return tracker


@pytest.mark.parametrize("slow_windows", [6, 60, 360])
def test_a_job_that_lost_a_third_stays_at_two_thirds(slow_windows: int) -> None:
    """The pace is relative to the best minute of the run, however long ago that minute was."""
    tracker = tracked(*[3.0] * 12, *[2.0] * slow_windows)
    assert tracker.current == pytest.approx(2 / 3)
    assert tracker.reference is not None and tracker.reference.name == "best minute of this run"


def test_a_single_fast_window_and_the_start_are_no_reference() -> None:
    """A sustained pace is a median of a minute after the first windows of the run."""
    tracker = tracked(*[9.0] * WARMUP_WINDOWS, *[2.0] * 20, 8.0, *[2.0] * 6)
    assert tracker.current == pytest.approx(1.0)


def test_a_pause_is_no_change_of_the_reference() -> None:
    """Windows without a step, as in a checkpoint, do not change the pace."""
    tracker = tracked(*[2.0] * 12, *[nan] * 3)
    assert isnan(tracker.current)
    assert tracked(2.0, 2.0, tracker=tracker).current == pytest.approx(1.0)


def test_earlier_runs_are_the_reference_of_a_run_that_was_slow_from_its_first_step() -> None:
    """Its own best minute is slow, too: the earlier runs of the workload were faster."""
    tracker = tracked(*[2.0] * 12)
    tracker.set_earlier(2.5)
    assert tracker.current == pytest.approx(0.8)
    assert (
        tracker.reference is not None and tracker.reference.name == "earlier runs of this workload"
    )
    tracker.set_earlier(1.5)
    assert tracker.current == pytest.approx(1.0), "its own best is faster"
    tracker.set_earlier(nan)
    assert tracker.current == pytest.approx(1.0)


def test_the_reference_survives_a_restart() -> None:
    """After an upgrade of the aggregator the slow pace would have become the best."""
    before = tracked(*[3.0] * 12)
    after = tracked(*[2.0] * SUSTAINED_WINDOWS, tracker=PaceTracker(before.references))
    assert after.current == pytest.approx(2 / 3)


def test_a_change_is_found_once_where_it_begins() -> None:
    """The largest difference of the medians within half a minute is the change."""
    tracker = tracked(*[2.0, 2.02, 1.98] * 4, *[1.6, 1.61, 1.59] * 3)
    (change,) = tracker.changes()
    assert change.window == 12 and change.ratio == pytest.approx(-0.2, abs=0.02)
    assert tracked(*[2.0, 2.05, 1.95] * 8).changes() == []


def test_the_measure_is_the_best_that_most_windows_have() -> None:
    """Steps count if they are known most of the time; the compute share is always there."""
    assert tracked(*[nan] * 8, *[2.0] * 9).measure == STEPS
    assert tracked(*[nan] * 8, *[2.0] * 5).measure != STEPS
