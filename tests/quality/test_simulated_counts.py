"""Of what the simulated evaluation counts: each row must be able to fail, and counts what it says it does."""

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
from gangline.simulator.truth import BEFORE_SECONDS
from gangline.simulator.world import World

CALM = World("healthy", 5, hosts=64)


def _named(host: str, *moments: float) -> list[NamedState]:
    """Return that *host* was named as slow in its gang at these seconds of the world."""
    return [
        NamedState(
            JUDGE, host, "gang.slow_host", "host", HealthState.DEGRADED, Reason.STRAGGLER, at, at
        )
        for at in moments
    ]


def _said_in(*passed: PassingState, after: Sequence[float]) -> tuple[int, int]:
    """Return how many passed on a host, and what was said in them, if it is named *after* each began (seconds)."""
    case = SimulatedCase("", "", -1, 1.0, (3,), 89_900.0, 91_200.0)
    host = CALM.names[3]
    named = _named(host, *(one.begin + seconds for one in passed for seconds in after))
    truth = GroundTruth(CALM, case.hosts, case.begin, case.end)
    told = score(
        case, Observed(named=named), truth, {}, [one._replace(host=host) for one in passed]
    )
    assert told.calm_hosts == 1
    return told.passed.total(), told.named_in_passing.total()


def test_what_is_said_of_a_job_once_its_windows_are_full_is_said_in_its_beginning() -> None:
    """Rules about gangs say nothing in a job's first 90 s; what was counted ended after 60: 6,238 beginnings could not fail."""
    silent_seconds = THRESHOLDS["gang.windows_count"].default * WINDOW_NS / 1e9
    assert silent_seconds + 60.0 < PASSED_SECONDS
    begins = PassingState(BEGINS, "", 90_000.0, 90_000.0)
    assert _said_in(begins, after=(100.0,)) == (1, 1)
    assert _said_in(begins, after=(300.0,)) == (1, 0)


def test_who_is_named_at_each_of_its_checkpoints_is_counted_at_each() -> None:
    """A host that was named at all of its six was one of six."""
    checkpoints = [PassingState(CHECKPOINT, "", at, at + 20.0) for at in (90_000.0, 90_600.0)]
    assert _said_in(*checkpoints, after=(30.0,)) == (2, 2)
    assert _said_in(*checkpoints, after=(30.0, 60.0)) == (2, 2)


@pytest.mark.slow
def test_of_a_fault_that_stood_before_we_looked_what_we_saw_counts() -> None:
    """A slow host is slow for ever: weeks of delay, and all that ever shared a job with it waited for it."""
    world = World("quarter", 3, hosts=400)
    slow = [one for one in planned(world, RunPlan(per_class=2)) if one.class_name == "slow_host"]
    assert len(slow) == 2 and all(one.begin > 7200.0 for one in slow)
    waited = 0
    for case in slow:
        assert case.end - case.begin == pytest.approx(BEFORE_SECONDS + AFTER_ONSET_SECONDS)
        truth = GroundTruth(world, case.hosts, case.begin, case.end)
        (struck,) = truth.of_cause(case.cause)
        told = score(case, Observed(named=_named(struck.host, case.begin + 100.0)), truth, {}).found
        assert told is not None and (told.rule, told.delay_seconds) == ("gang.slow_host", 100.0)
        jobs = world.schedule.jobs
        mine = [jobs[number] for number in world.schedule.jobs_by_host[case.hosts[0]]]
        now = [job for job in mine if job.begin < case.end and job.end > case.begin]
        beside = {world.names[host] for job in now for host in job.hosts.tolist()}
        assert truth.victims([struck]) <= beside - {struck.host}
        waited += told.victims
    assert waited


def test_who_was_named_before_a_look_alike_and_again_while_it_stood_is_named_for_it_once() -> None:
    """The first name alone was kept, with nothing about it: the look-alike's row stayed 0."""
    row = next(one for one in CALM.schedule.rows if _lasts(one))
    host, begin = int(row["host"]), float(row["begin"])
    name = CALM.names[host]
    each = CALM.schedule.classes[int(row["cls"])].name
    case = SimulatedCase(
        each, "benign", int(row["cause"]), 1.0, (host,), begin - 180.0, begin + 600.0
    )
    truth = GroundTruth(CALM, case.hosts, case.begin, case.end)
    named = _named(name, *(begin + seconds for seconds in (-60.0, 60.0, 90.0)))
    told = score(case, Observed(named=named, steps=1), truth, {})
    assert [each in one.about for one in told.wrong] == [False, True]
    lines = look_alikes(_run(told)).splitlines()
    shown = next(line for line in lines if line.startswith(f"| `{each}`"))
    assert shown.split("|")[6].strip() == "1; 1 of 1, 1.00 [0.27, 1.00]"
    # Beside something else that began meanwhile it is one host still.
    beside = replace(told.wrong[1], about=(*told.wrong[1].about, "x"))
    again = replace(told, wrong=[*told.wrong, beside])
    assert shown in look_alikes(_run(again)).splitlines()


def _lasts(row: np.void) -> bool:
    """Say whether it is of a look-alike that begins while we look and stands for minutes."""
    each = CALM.schedule.classes[int(row["cls"])]
    return each.sort == "benign" and float(row["begin"]) > 600.0 < float(row["end"] - row["begin"])


def test_the_page_says_that_limits_hold_advice_back_around_causes() -> None:
    """It said that none do in the hours, and that false drains show first around causes: there two of a gang may."""
    text = page(_run())
    around = text[text.index("- *Around causes*") :]
    assert f"{LIMITS.rack_hosts_max} hosts of a rack and {LIMITS.job_hosts_max} of a job" in around
    assert "held back, and not counted" in text[text.index("### Causes that hosts share") :]


def _run(*scores: Score) -> SimulatedRun:
    classes = CALM.settings.active_classes(CALM.scenario)
    return SimulatedRun("healthy", 5, 1, len(scores), 64, 1.0, classes, scores, 1.0)


def test_the_same_hosts_in_forty_hours_are_not_forty_times_as_many() -> None:
    """A power cap stands on the same hosts in every hour: "6813 of 74,014 [9 %, 9.4 %]" was an interval of 1,850 hosts."""
    named = Counter({"fixed limits": 10})
    hour = Score("", 1.0, calm_hosts=100, calm_named=named, plain_hosts=50)
    once, often = (baselines(_run(*[hour] * hours)) for hours in (1, 40))
    assert percent(10, 100) == "10 of 100 [6.1 %, 16 %]" and percent(10, 100) in once
    assert "400 of 4,000 [6.1 %, 16 %]" in often and "0 of 2,000 [0 %, 5.1 %]" in often
    assert "0 of 0 [0 %, 1e+02 %]" in baselines(_run())
