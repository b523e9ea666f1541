"""Factors between assumption and data, surer with each report, and bounded per reporter."""

from __future__ import annotations

from dataclasses import replace
from math import exp, isnan, log, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.decisions.calibration import (
    CROSSING_COST_MAX,
    DURATIONS,
    RecoveryReport,
    ThroughputReport,
    calibration_rows,
    duration_factor,
    report_weights,
    reported_factors,
)
from gangline.aggregator.decisions.price import (
    COMMUNICATION_SHARE,
    CROSSING,
    Members,
    crossing_costs,
    crossing_factor,
    lost_time,
    topology_factor,
)
from gangline.aggregator.decisions.quantity import QuantitySource, declared, duration_hours
from gangline.aggregator.decisions.recovery import ACT_MINUTES, RecoveryKind
from gangline.aggregator.decisions.requirements import PRICED_TIERS, GangRequirements, Tier
from gangline.aggregator.decisions.sampled_hours import POINTS, drawn
from gangline.aggregator.scoring.reported_factors import ReportedFactors
from tests.aggregator.decisions.test_price import members

DAY_NS = 86_400 * 10**9
NOW_NS = 20_000 * DAY_NS
MINUTE_NS = 60 * 10**9
HALF_LIFE_DAYS = 90.0


def recovery(
    number: int,
    minutes: tuple[float, ...] = (2.0, 1.0, 4.0, 3.0),
    kind: RecoveryKind = RecoveryKind.FREE_NODE,
    reporter: str = "slurm",
    **changes: bool,
) -> RecoveryReport:
    """Return a report whose fault, detection, decision, act and resumption are *minutes* apart."""
    times_ns = [NOW_NS - DAY_NS]
    for gap_minutes in minutes:
        times_ns.append(times_ns[-1] + round(gap_minutes * MINUTE_NS))
    flags = {"success": True, "restarted": False, "restored_from_peer": False, **changes}
    return RecoveryReport(f"i{number}", reporter, NOW_NS, int(kind), *times_ns, **flags)  # type: ignore[arg-type]


def run(
    number: int,
    throughput: float,
    leaves: int = 1,
    nodes: int = 8,
    workload: str = "train",
    reporter: str = "slurm",
    share: float = nan,
) -> ThroughputReport:
    """Return a run whose nodes are in *leaves* leaves of one spine."""
    domains = tuple({Tier.LEAF: leaves, Tier.RACK: 0}.get(tier, 1) for tier in PRICED_TIERS)
    return ThroughputReport(
        f"o{number}", reporter, NOW_NS - number, workload, nodes, throughput, domains, share
    )


def factors(
    recoveries: list[RecoveryReport], runs: list[ThroughputReport] | None = None
) -> ReportedFactors:
    return reported_factors(recoveries, runs or [], NOW_NS, HALF_LIFE_DAYS)


@given(
    st.sampled_from(sorted(DURATIONS)),
    st.lists(st.floats(1.0, 600_000.0), min_size=1, max_size=40),
)
def test_a_duration_lies_between_the_assumption_and_the_reports(
    factor: str, seconds: list[float]
) -> None:
    """The estimate lies between the assumption and the mean of the reports."""
    hours = np.array(seconds) / 3600.0
    factor_found = duration_factor(DURATIONS[factor], hours, np.ones(hours.size))
    assumed, reported = DURATIONS[factor][0] / 60.0, exp(float(np.log(hours).mean()))
    low, high = sorted((assumed, reported))
    assert low * (1 - 1e-9) <= factor_found.value <= high * (1 + 1e-9)
    assert factor_found.lower < factor_found.value < factor_found.upper


@given(st.sampled_from(sorted(DURATIONS)), st.floats(0.1, 600.0), st.integers(1, 60))
def test_the_interval_shrinks_with_reports_that_agree(
    factor: str, minutes: float, count: int
) -> None:
    """Each agreeing report narrows the interval."""
    hours = np.full(count + 1, minutes / 60.0)
    assumed = DURATIONS[factor]
    widths = [log(assumed[2] / assumed[1])]
    for size in (count, count + 1):
        estimate = duration_factor(assumed, hours[:size], np.ones(size))
        widths.append(log(estimate.upper / estimate.lower))
    assert widths[0] > widths[1] > widths[2]


def test_many_reports_give_their_median_and_their_own_spread() -> None:
    """90 of 100 incidents are within the interval, independent of the number of reports."""
    drawn = np.exp(np.random.default_rng(3).normal(log(0.5), 0.6, 4000))
    estimate = duration_factor((2.0, 0.2, 15.0), drawn, np.ones(drawn.size))
    assert estimate.value == pytest.approx(0.5, rel=0.03)
    within = (drawn > estimate.lower) & (drawn < estimate.upper)
    assert within.mean() == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("count", [1, 3, 10, 40])
def test_nine_of_ten_next_incidents_are_within_the_interval(count: int) -> None:
    """After any number of reports the interval covers nine of ten incidents of varying clusters."""
    assumed, random = DURATIONS["detect"], np.random.default_rng(count)
    # half of the variance for clusters, half for incidents
    deviation = log(assumed[2] / assumed[1]) / 3.2898 / 2**0.5
    within = []
    for _ in range(1500):
        median = log(assumed[0] / 60.0) + random.normal(0.0, deviation)
        hours = np.exp(random.normal(median, deviation, count + 1))
        estimate = duration_factor(assumed, hours[:-1], np.ones(count))
        within.append(estimate.lower < hours[-1] < estimate.upper)
    assert np.mean(within) == pytest.approx(0.9, abs=0.04)


@pytest.mark.parametrize("count", [0, 3, 30])
def test_half_and_nine_of_ten_recoveries_take_less_than_p50_and_p90(count: int) -> None:
    """P50 and P90 of a recovery are exact, in clusters that differ as assumed."""
    random = np.random.default_rng(7)
    names = ("detect", "decide", "act.free_node", "resume.storage")
    below = []
    for _ in range(250):
        drawn_minutes = []
        for name in names:
            value, lower, upper = DURATIONS[name]
            deviation = log(upper / lower) / 3.2898 / 2**0.5
            median = log(value) + random.normal(0.0, deviation)
            drawn_minutes.append(np.exp(random.normal(median, deviation, count + 20)))
        minutes = np.stack(drawn_minutes, axis=1)
        reports = factors([recovery(index, tuple(minutes[index])) for index in range(count)])
        hours = [duration_hours("", nan, DURATIONS[name], reports, name) for name in names]
        total = np.sort(
            sum(
                (drawn(factor_hours, index) for index, factor_hours in enumerate(hours)),
                np.zeros(POINTS),
            )
        )
        late = minutes[count:].sum(axis=1) / 60.0
        below.append([(late < total[round(share * (POINTS - 1))]).mean() for share in (0.5, 0.9)])
    assert np.mean(below, axis=0) == pytest.approx([0.5, 0.9], abs=0.04)


@given(st.permutations(range(12)))
def test_the_order_of_reports_does_not_matter(order: list[int]) -> None:
    """Reports arrive in any order, and in another order after a restart."""
    recoveries = [recovery(index, (1.0 + index, 2.0, 3.0 + index % 3, 1.0)) for index in range(12)]
    runs = [run(index, 100.0 + index % 5, 1 + index % 3, 8 << index % 2) for index in range(12)]
    expected = factors(recoveries, runs)
    reordered = factors([recoveries[index] for index in order], [runs[index] for index in order])
    assert reordered.factors == expected.factors
    assert reordered.throughputs.points("train") == expected.throughputs.points("train")


def test_each_report_counts_for_what_it_tells() -> None:
    """A restart counts as such, a failed recovery only until its decision, a wait not as an act."""
    plain = factors([recovery(1)]).factors
    assert set(plain) == {"detect", "decide", "restart", "act.free_node", "resume.storage"}
    restarted = factors([recovery(1, restarted=True, restored_from_peer=True)]).factors
    assert set(restarted) == {"detect", "decide", "restart", "act.restart", "resume.peer_memory"}
    assert set(factors([recovery(1, success=False)]).factors) == {"detect", "decide"}
    waited = factors([recovery(1, kind=RecoveryKind.WAIT_FOR_REPAIR)]).factors
    assert set(waited) == {"detect", "decide", "resume.storage"}
    unknown = recovery(1)._replace(detect_ns=0, act_ns=0)
    assert set(factors([unknown]).factors) == {"restart"}
    assert {factor for factor, _ in ACT_MINUTES.values()} <= set(DURATIONS)


def test_of_three_reporters_none_counts_for_more_than_twice_the_mean() -> None:
    """A scheduler with a broken clock reported a thousand recoveries of a week each."""
    reporters = ["a"] * 1000 + ["b"] * 4 + ["c"] * 4
    weights = report_weights(reporters, np.zeros(1008), HALF_LIFE_DAYS)
    weight_sums = [float(weights[first:end].sum()) for first, end in ((0, 1000), (1000, 1004), (1004, 1008))]  # fmt: skip
    assert weight_sums == pytest.approx([8.0, 4.0, 4.0])  # and none has more than half
    two = report_weights(reporters[:1004], np.zeros(1004), HALF_LIFE_DAYS)
    assert two.tolist() == pytest.approx([0.004] * 1000 + [1.0] * 4)  # half for each
    aged = report_weights(["a", "a"], np.array([0.0, 90.0]), HALF_LIFE_DAYS)
    assert aged == pytest.approx([1.0, 0.5])


def throughput_of(cost: float, leaves: int, share: float = COMMUNICATION_SHARE[0]) -> float:
    """Return the throughput of a run, by `topology_factor`, if crossing a leaf costs *cost*."""
    costs = [declared(cost if tier is Tier.LEAF else 0.0, "") for tier in PRICED_TIERS]
    spans = [leaves if tier is Tier.LEAF else 1 for tier in PRICED_TIERS]
    spanning: Members = replace(members(), domains=spans, unknown=[0] * len(PRICED_TIERS))
    return 100.0 * topology_factor(spanning, declared(share, ""), costs).value


@given(st.floats(0.0, 3.0), st.integers(1, 20), st.integers(2, 8), st.sampled_from((0.1, 0.5, nan)))
def test_a_cost_of_crossing_lies_between_the_assumption_and_the_runs(
    cost: float, pairs: int, leaves: int, share: float
) -> None:
    """Runs in one leaf and in several give the cost; a few runs change the assumption little."""
    known = COMMUNICATION_SHARE[0] if isnan(share) else share
    runs = [
        run(2 * pair + more, throughput_of(cost, leaves if more else 1, known), leaves if more else 1, share=share)
        for pair in range(pairs)
        for more in (0, 1)
    ]  # fmt: skip
    estimates = factors([], runs).factors
    assert set(estimates) == {crossing_factor(Tier.LEAF)}
    estimate, (value, lower, upper) = estimates[crossing_factor(Tier.LEAF)], CROSSING[Tier.LEAF]
    low, high = sorted((value, cost))
    assert low - 1e-6 <= estimate.value <= high + 1e-6
    assert estimate.upper - estimate.lower <= upper - lower + 1e-9
    assert estimate.reports == 2 * pairs


def test_many_runs_give_the_cost_that_they_were_made_with() -> None:
    """With 3 % of noise per run, 400 runs find 0.6 within a tenth, and the interval covers it."""
    noise = np.random.default_rng(5).normal(0.0, 0.03, 400)
    runs = [
        run(
            index,
            throughput_of(0.6, 1 + index % 4, 0.4) * exp(noise[index]),
            1 + index % 4,
            share=0.4,
        )
        for index in range(400)
    ]
    estimate = factors([], runs).factors[crossing_factor(Tier.LEAF)]
    assert estimate.value == pytest.approx(0.6, rel=0.1) and estimate.lower < 0.6 < estimate.upper
    assert estimate.upper - estimate.lower < 0.1


def test_absurd_throughputs_leave_costs_finite() -> None:
    """A reporter counted bytes in one run and terabytes in the next: the cost became 10 ** 16."""
    runs = [run(index, (1e15, 1e-300)[index % 2], 1 + index % 2) for index in range(20)]
    estimate = factors([], runs).factors[crossing_factor(Tier.LEAF)]
    assert 0.0 <= estimate.lower <= estimate.value <= estimate.upper <= 2.0 * CROSSING_COST_MAX


def test_runs_that_cannot_be_compared_say_nothing_of_crossing() -> None:
    """Differences between sizes, workloads or reporters' units are not the topology's."""
    alone = [run(1, 100.0, 1), run(2, 50.0, 2, nodes=16), run(3, 50.0, 2, workload="other")]
    alone += [run(4, 50.0, 2, reporter="other"), run(5, 50.0, 1)]
    assert factors([], alone).factors == {}


@given(st.permutations(["a", "b", "c"]))
def test_renaming_workloads_changes_nothing(names: list[str]) -> None:
    """The name of a workload does not affect costs."""
    renamed: dict[str, str] = dict(zip("xyz", names, strict=True))
    runs = [
        run(index, 100.0 + 7 * index % 11, 1 + index % 2, 8, workload="xyz"[index % 3])
        for index in range(18)
    ]
    before = factors([], runs)
    after = factors([], [report._replace(workload=renamed[report.workload]) for report in runs])
    assert after.factors == before.factors
    for old, new in renamed.items():
        assert after.throughputs.points(new) == before.throughputs.points(old)


def test_throughputs_are_medians_by_size_of_the_reporter_who_knows_most_sizes() -> None:
    """Schedulers that report one workload in tokens and in samples are not mixed."""
    runs = [run(1, 100.0), run(2, 104.0), run(3, 90.0), run(4, 190.0, nodes=16)]
    runs += [run(number, 7.0, reporter="other") for number in range(5, 20)]
    throughputs = factors([], runs).throughputs
    assert throughputs.points("train") == [(8, 100.0), (16, 190.0)]
    assert throughputs.points("nobody") == []
    rows = [row for row in calibration_rows(factors([], runs)) if row.factor == "throughput"]
    assert [(row.nodes, row.value, row.reports) for row in rows] == [(8, 100.0, 3), (16, 190.0, 1)]
    assert all(row.lower < row.value < row.upper for row in rows)


def test_a_price_takes_reports_in_place_of_assumptions() -> None:
    """Reports replace assumptions in a price, and the request's values replace reports."""
    reports = factors([recovery(number, (20.0, 5.0, 30.0, 10.0)) for number in range(40)])
    needs = GangRequirements(4, checkpoint_interval_hours=1.0)
    assumed, calibrated = (
        lost_time(requirements, 32) for requirements in (needs, replace(needs, reports=reports))
    )
    per, before = calibrated.per_interruption_hours, assumed.per_interruption_hours
    assert before.source is QuantitySource.ASSUMED
    assert per.source is QuantitySource.DECLARED  # the interval of the request is the least sure
    assert per.value > before.value and "restart 38.7 min (40 reports)" in per.evidence
    declaring = replace(needs, reports=reports, detect_hours=0.01)
    declares = lost_time(declaring, 32).per_interruption_hours
    assert "detect 0.6 min (request)" in declares.evidence
    runs = [run(number, throughput_of(0.6, 1 + number % 2), 1 + number % 2) for number in range(40)]
    costs = crossing_costs(factors([], runs))
    sources = {tier: cost.source for tier, cost in zip(PRICED_TIERS, costs, strict=True)}
    assert sources.pop(Tier.LEAF) is QuantitySource.REPORTED
    assert set(sources.values()) == {QuantitySource.ASSUMED}


def test_every_factor_has_a_row_with_and_without_reports() -> None:
    """The table includes assumed factors, and the number of reports of the others."""
    rows = {row.factor: row for row in calibration_rows(factors([recovery(1), recovery(2)]))}
    assert set(rows) == {*DURATIONS, *map(crossing_factor, PRICED_TIERS)}
    assert (rows["detect"].source, rows["detect"].reports) == ("reported", 2)
    assert (rows["act.shrink"].source, rows["act.shrink"].reports) == ("assumed", 0)
    assert rows["act.shrink"].value == rows["act.shrink"].assumed == 5.0
