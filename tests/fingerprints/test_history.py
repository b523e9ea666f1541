"""A run against its own history: slower or not, and whether a host or the workload changed."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import numpy as np
import pytest

from gangline.fingerprints.drift import (
    RunPace,
    RunVerdict,
    drifting_hosts,
    verdict_of,
    waiting_explains,
)
from gangline.fingerprints.fingerprint import NUMBERS, Fingerprint
from gangline.fingerprints.history import compare_pace, student_quantile


@pytest.mark.parametrize("earlier", [1, 3, 8, 32])
def test_of_runs_that_are_as_before_one_in_a_hundred_is_slower(earlier: int) -> None:
    """Each false finding costs a day of search. Of 2,000, a hundredth and three deviations."""
    random = np.random.default_rng(1)
    slower = 0
    for _ in range(2000):
        paces = np.exp(random.normal(0, 0.02, earlier + 1))
        comparison = compare_pace(float(paces[0]), paces[1:].tolist())
        assert comparison is not None and comparison.runs == earlier
        slower += comparison.is_slower
    assert slower <= 33


@pytest.mark.parametrize("earlier", [1, 3, 20])
def test_a_run_that_is_slow_from_its_first_step_is_found(earlier: int) -> None:
    """Within itself it shows no change at all."""
    comparison = compare_pace(0.88, [1.0] * earlier)
    assert (
        comparison is not None and comparison.is_slower and comparison.ratio == pytest.approx(0.88)
    )
    assert comparison.lower < 0.88 < comparison.upper < 1


@pytest.mark.parametrize("pace, earlier", [(nan, [1.0]), (1.0, []), (1.0, [nan]), (0.0, [1.0]), (-1.0, [1.0])])  # fmt: skip
def test_without_a_pace_nothing_is_compared(pace: float, earlier: list[float]) -> None:
    """A step on which the signals disagree is not a pace of zero."""
    assert compare_pace(pace, earlier) is None


def test_the_quantile_is_that_of_the_tables() -> None:
    """Student's t at 95 %: 2.132, 1.812, 1.697."""
    quantiles = [student_quantile(freedom) for freedom in (4, 10, 30)]
    assert quantiles == pytest.approx([2.132, 1.812, 1.697], rel=0.01)


def runs(slow_host: str = "") -> list[RunPace]:
    """Twelve runs of three workloads on random four of ten hosts."""
    random = np.random.default_rng(4)
    runs_made = []
    for index in range(24):
        hosts = tuple(f"h{number}" for number in random.choice(10, 4, replace=False))
        pace = float(np.exp(random.normal(0, 0.01))) * (0.85 if slow_host in hosts else 1.0)
        runs_made.append(RunPace(f"w{index % 3}", pace, hosts))
    return runs_made


def test_a_host_that_is_slow_over_several_workloads_is_named_alone() -> None:
    """The host moves from job to job, and each job's owner searches the fault in their own code."""
    assert [host.host for host in drifting_hosts(runs("h3"))] == ["h3"]
    (drifting,) = drifting_hosts(runs("h3"))
    assert (
        drifting.workloads >= 2
        and drifting.lower < 0.87 < drifting.upper + 0.05
        and drifting.upper < 1
    )


def test_a_host_that_was_repaired_is_named_no_more() -> None:
    """Its slow runs stay on record for a year."""
    after = RunPace("w0", 1.0, ("h3", "h4", "h5"))
    assert drifting_hosts([*runs("h3"), after]) == []


def test_no_host_is_named_where_none_is_slow_or_a_workload_is() -> None:
    """A workload that became slow on all of its hosts is not a host's fault."""
    assert drifting_hosts(runs()) == []
    slow = [run._replace(ratio=run.ratio * (0.8 if run.workload == "w1" else 1)) for run in runs()]
    assert drifting_hosts(slow) == []
    together = [RunPace(f"w{index % 2}", 0.8 if index % 4 < 2 else 1.0, ("a", "b") if index % 4 < 2 else ("c", "d")) for index in range(12)]  # fmt: skip
    assert drifting_hosts(together) == []  # "a" and "b" cannot be told apart


def work(**numbers: float) -> Fingerprint:
    return Fingerprint(tuple(numbers.get(name, nan) for name in NUMBERS))


def test_waiting_tells_a_slow_host_from_more_work() -> None:
    """A model that grew and a host that slows all others both lengthen the step."""
    before = work(step_seconds=1.0, compute_ratio=0.8, tensor_ratio=0.4, compute_power_ratio=0.8)
    pace = compare_pace(0.8, [1.0] * 5)
    assert pace is not None
    waits = replace(before, values=work(step_seconds=1.25, compute_ratio=0.64, tensor_ratio=0.32, compute_power_ratio=0.8).values)  # fmt: skip
    grew = work(step_seconds=1.25, compute_ratio=0.8, tensor_ratio=0.55, compute_power_ratio=0.9)
    assert waiting_explains(pace, waits, [before] * 5) == pytest.approx(1.0)
    assert waiting_explains(pace, grew, [before] * 5) == pytest.approx(0.0)
    five = [before] * 5
    assert verdict_of(pace, grew, five, [], ["a"]) is RunVerdict.WORKLOAD_CHANGED
    assert verdict_of(pace, waits, five, [], ["a"]) is RunVerdict.SLOWER
    assert verdict_of(pace, waits, five, ["a"], ["a"]) is RunVerdict.SLOW_HOST
    assert verdict_of(pace, waits, five, ["b"], ["a"]) is RunVerdict.SLOWER
    assert verdict_of(compare_pace(1.0, [1.0]), waits, five, ["a"], ["a"]) is RunVerdict.AS_BEFORE
    assert verdict_of(None, waits, [before], ["a"], ["a"]) is RunVerdict.NOT_COMPARABLE
    assert verdict_of(None, waits, [], ["a"], ["a"]) is RunVerdict.NEVER_SEEN
    assert isnan(waiting_explains(pace, work(), [before]))
