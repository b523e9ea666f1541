"""The counts of the simulated evaluation: each row can fail, and counts its own subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from bench.quality.markdown import percent
from bench.quality.simulated import RunPlan, planned
from bench.quality.simulated_false import look_alikes
from bench.quality.simulated_feed import JUDGE, LIMITS, NamedState, Observed
from bench.quality.simulated_kinds import AFTER_ONSET_SECONDS, PASSED_SECONDS, Score, SimulatedCase
from bench.quality.simulated_moments import BEGINS, CHECKPOINT, PassingState
from bench.quality.simulated_page import page
from bench.quality.simulated_run import SimulatedRun
from bench.quality.simulated_score import score
from bench.quality.simulated_tables import baselines
from bench.quality.simulated_truth import GroundTruth
from gangline.aggregator.declared.thresholds import THRESHOLDS
from gangline.aggregator.fleet.gangs import WINDOW_NS
from gangline.aggregator.model import HealthState, Reason
from gangline.simulator.sampled_episodes import BEFORE_SECONDS
from gangline.simulator.world import World

CALM = World("healthy", 5, hosts=64)


def _named(host: str, *moments: float) -> list[NamedState]:
    """Return findings that name *host* as slow in its gang at these seconds of the world."""
    return [
        NamedState(
            JUDGE,
            host,
            "gang.slow_host",
            "host",
            HealthState.DEGRADED,
            Reason.STRAGGLER,
            moment,
            moment,
        )
        for moment in moments
    ]


def _said_in(*passed: PassingState, after: Sequence[float]) -> tuple[int, int]:
    """Return the number of passed beginnings of a host, and its findings, if it is named *after* seconds after each."""
    case = SimulatedCase("", "", -1, 1.0, (3,), 89_900.0, 91_200.0)
    host = CALM.names[3]
    named = _named(host, *(passing.begin + seconds for passing in passed for seconds in after))
    truth = GroundTruth(CALM, case.hosts, case.begin, case.end)
    result = score(
        case, Observed(named=named), truth, {}, [passing._replace(host=host) for passing in passed]
    )
    assert result.calm_hosts == 1
    return result.passed.total(), result.named_in_passing.total()


def test_what_is_said_of_a_job_once_its_windows_are_full_is_said_in_its_beginning() -> None:
    """Rules about gangs are silent in a job's first 90 s; the count ended after 60: 6,238 beginnings could not fail."""
    silent_seconds = THRESHOLDS["gang.windows_count"].default * WINDOW_NS / 1e9
    assert silent_seconds + 60.0 < PASSED_SECONDS
    begins = PassingState(BEGINS, "", 90_000.0, 90_000.0)
    assert _said_in(begins, after=(100.0,)) == (1, 1)
    assert _said_in(begins, after=(300.0,)) == (1, 0)


def test_who_is_named_at_each_of_its_checkpoints_is_counted_at_each() -> None:
    """A host that was named at all of its six was one of six."""
    checkpoints = [
        PassingState(CHECKPOINT, "", seconds, seconds + 20.0) for seconds in (90_000.0, 90_600.0)
    ]
    assert _said_in(*checkpoints, after=(30.0,)) == (2, 2)
    assert _said_in(*checkpoints, after=(30.0, 60.0)) == (2, 2)


@pytest.mark.slow
def test_of_a_fault_that_stood_before_we_looked_what_we_saw_counts() -> None:
    """A slow host stays slow: weeks of delay, and all hosts that ever shared a job with it waited for it."""
    world = World("quarter", 3, hosts=400)
    slow = [
        planned_case
        for planned_case in planned(world, RunPlan(per_class=2))
        if planned_case.class_name == "slow_host"
    ]
    assert len(slow) == 2 and all(planned_case.begin > 7200.0 for planned_case in slow)
    waited = 0
    for case in slow:
        assert case.end - case.begin == pytest.approx(BEFORE_SECONDS + AFTER_ONSET_SECONDS)
        truth = GroundTruth(world, case.hosts, case.begin, case.end)
        (struck,) = truth.of_cause(case.cause)
        result = score(
            case, Observed(named=_named(struck.host, case.begin + 100.0)), truth, {}
        ).found
        assert result is not None and (result.rule, result.delay_seconds) == (
            "gang.slow_host",
            100.0,
        )
        jobs = world.schedule.jobs
        mine = [jobs[number] for number in world.schedule.jobs_by_host[case.hosts[0]]]
        now = [job for job in mine if job.begin < case.end and job.end > case.begin]
        job_mates = {world.names[host] for job in now for host in job.hosts.tolist()}
        assert truth.victims([struck]) <= job_mates - {struck.host}
        waited += result.victims
    assert waited


def test_who_was_named_before_a_look_alike_and_again_while_it_stood_is_named_for_it_once() -> None:
    """The first name alone was kept, with nothing about it: the look-alike's row stayed 0."""
    row = next(row for row in CALM.schedule.rows if _lasts(row))
    host, begin = int(row["host"]), float(row["begin"])
    name = CALM.names[host]
    class_name = CALM.schedule.classes[int(row["cls"])].name
    case = SimulatedCase(
        class_name, "benign", int(row["cause"]), 1.0, (host,), begin - 180.0, begin + 600.0
    )
    truth = GroundTruth(CALM, case.hosts, case.begin, case.end)
    named = _named(name, *(begin + seconds for seconds in (-60.0, 60.0, 90.0)))
    result = score(case, Observed(named=named, steps=1), truth, {})
    assert [class_name in finding.about for finding in result.wrong] == [False, True]
    lines = look_alikes(_run(result)).splitlines()
    shown = next(line for line in lines if line.startswith(f"| `{class_name}`"))
    assert shown.split("|")[6].strip() == "1; 1 of 1, 1.00 [0.27, 1.00]"
    # Together with another fault that began meanwhile it is still a single host.
    changed = replace(result.wrong[1], about=(*result.wrong[1].about, "x"))
    again = replace(result, wrong=[*result.wrong, changed])
    assert shown in look_alikes(_run(again)).splitlines()


def _lasts(row: np.void) -> bool:
    """Return whether the row is a look-alike that begins during the span and lasts for minutes."""
    class_ = CALM.schedule.classes[int(row["cls"])]
    return class_.sort == "benign" and float(row["begin"]) > 600.0 < float(
        row["end"] - row["begin"]
    )


def test_the_page_says_that_limits_hold_advice_back_around_causes() -> None:
    """The page claimed that no limit held advice back in the hours; around causes limits may hold
    back a second host of a gang.
    """
    text = page(_run())
    around = text[text.index("- *Around causes*") :]
    assert f"{LIMITS.rack_hosts_max} hosts of a rack and {LIMITS.job_hosts_max} of a job" in around
    assert "held back, and not counted" in text[text.index("### Causes that hosts share") :]


def _run(*scores: Score) -> SimulatedRun:
    classes = CALM.settings.active_classes(CALM.scenario)
    return SimulatedRun("healthy", 5, 1, len(scores), 64, 1.0, classes, scores, 1.0)


def test_the_same_hosts_in_forty_hours_are_not_forty_times_as_many() -> None:
    """A power cap stays on the same hosts in every hour: "6813 of 74,014 [9 %, 9.4 %]" was an
    interval of 1,850 hosts.
    """
    named = Counter({"fixed limits": 10})
    hour = Score("", 1.0, calm_hosts=100, calm_named=named, plain_hosts=50)
    once, often = (baselines(_run(*[hour] * hours)) for hours in (1, 40))
    assert percent(10, 100) == "10 of 100 [6.1 %, 16 %]" and percent(10, 100) in once
    assert "400 of 4,000 [6.1 %, 16 %]" in often and "0 of 2,000 [0 %, 5.1 %]" in often
    assert "0 of 0 [0 %, 1e+02 %]" in baselines(_run())
