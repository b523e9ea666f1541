"""Of what the simulated evaluation counts: each row must be able to fail, and counts what it says it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.quality.markdown import percent
from bench.quality.simulated_feed import JUDGE, Named, Said
from bench.quality.simulated_kinds import PASSED_SECONDS, Case, Score
from bench.quality.simulated_moments import BEGINS, CHECKPOINT, Passing
from bench.quality.simulated_run import Run
from bench.quality.simulated_score import score
from bench.quality.simulated_tables import baselines
from bench.quality.simulated_truth import Truth
from gangline.agent.simulated.world import World
from gangline.aggregator.declared.thresholds import THRESHOLDS
from gangline.aggregator.fleet.gangs import WINDOW_NS
from gangline.aggregator.verdicts import Reason, State

CALM = World("healthy", 5, hosts=64)


def _named(host: str, *moments: float) -> list[Named]:
    """Return that *host* was named as slow in its gang at these seconds of the world."""
    return [
        Named(JUDGE, host, "gang.slow_host", "host", State.DEGRADED, Reason.STRAGGLER, at, at)
        for at in moments
    ]


def _said_in(*passed: Passing, after: Sequence[float]) -> tuple[int, int]:
    """Return how many passed on a host, and what was said in them, if it is named *after* each began (seconds)."""
    case = Case("", "", -1, 1.0, (3,), 89_900.0, 91_200.0)
    host = CALM.names[3]
    named = _named(host, *(one.begin + seconds for one in passed for seconds in after))
    truth = Truth(CALM, case.hosts, case.begin, case.end)
    told = score(case, Said(named=named), truth, {}, [one._replace(host=host) for one in passed])
    assert told.calm_hosts == 1
    return told.passed.total(), told.said_in_passing.total()


def test_what_is_said_of_a_job_once_its_windows_are_full_is_said_in_its_beginning() -> None:
    """Rules about gangs say nothing in a job's first 90 s; what was counted ended after 60: 6,238 beginnings could not fail."""
    silent_seconds = THRESHOLDS["gang.windows_count"].default * WINDOW_NS / 1e9
    assert silent_seconds + 60.0 < PASSED_SECONDS
    begins = Passing(BEGINS, "", 90_000.0, 90_000.0)
    assert _said_in(begins, after=(100.0,)) == (1, 1)
    assert _said_in(begins, after=(300.0,)) == (1, 0)


def test_who_is_named_at_each_of_its_checkpoints_is_counted_at_each() -> None:
    """A host that was named at all of its six was one of six."""
    checkpoints = [Passing(CHECKPOINT, "", at, at + 20.0) for at in (90_000.0, 90_600.0)]
    assert _said_in(*checkpoints, after=(30.0,)) == (2, 2)
    assert _said_in(*checkpoints, after=(30.0, 60.0)) == (2, 2)


def _run(*scores: Score) -> Run:
    classes = CALM.settings.befalling(CALM.scenario)
    return Run("healthy", 5, 1, len(scores), 64, 1.0, classes, scores, 1.0)


def test_the_same_hosts_in_forty_hours_are_not_forty_times_as_many() -> None:
    """A power cap stands on the same hosts in every hour: "6813 of 74,014 [9 %, 9.4 %]" was an interval of 1,850 hosts."""
    named = Counter({"fixed limits": 10})
    hour = Score("", 1.0, calm_hosts=100, calm_named=named, plain_hosts=50)
    once, often = (baselines(_run(*[hour] * hours)) for hours in (1, 40))
    assert percent(10, 100) == "10 of 100 [6.1 %, 16 %]" and percent(10, 100) in once
    assert "400 of 4,000 [6.1 %, 16 %]" in often and "0 of 2,000 [0 %, 5.1 %]" in often
    assert "0 of 0 [0 %, 1e+02 %]" in baselines(_run())
