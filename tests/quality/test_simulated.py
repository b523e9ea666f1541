"""`make evaluate` measures the judge: it must count findings, false findings, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, inf, isclose
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality import intervals
from bench.quality.kept import Pieces
from bench.quality.markdown import number, table
from bench.quality.simulated import RunPlan as Size
from bench.quality.simulated import judge_case, judged, planned
from bench.quality.simulated_baselines import BASELINES
from bench.quality.simulated_false import is_drain, rate_of, verdict
from bench.quality.simulated_feed import (
    JUDGE,
    LIMITS,
    UNLIMITED,
    NamedState,
    Observed,
    SimulatedAdvice,
    feed,
)
from bench.quality.simulated_kinds import DOMAIN, RIGHT, CaseFinding, Score, SimulatedCase, Wrong
from bench.quality.simulated_page import page
from bench.quality.simulated_run import SimulatedRun
from bench.quality.simulated_score import score
from bench.quality.simulated_truth import GroundTruth, node_days
from gangline.aggregator.advisories.advisory import Action, Basis
from gangline.aggregator.model import HealthState, Reason
from gangline.contract.wire import telemetry_pb2
from gangline.simulator.incidents import SHARED_PLACES
from gangline.simulator.scenario_file import load
from gangline.simulator.world import World, WorldStep

PARADE = World("parade", 1)


class OutsideOnly:
    """The part of a world that an aggregator can know. Access to its schedule is refused."""

    def __init__(self, world: World) -> None:
        self._one = world

    @property
    def names(self) -> list[str]:
        return self._one.names

    def devices(self, host: int) -> list[telemetry_pb2.Device]:
        return self._one.devices(host)

    def labels(self, host: int) -> dict[str, str]:
        return self._one.labels(host)

    def frames(self, hosts: Sequence[int], begin: float, end: float) -> Iterator[WorldStep]:
        return self._one.frames(hosts, begin, end)


def thermal() -> SimulatedCase:
    planned_ones = planned(PARADE, Size("parade", 1, 1))
    case = next(
        planned_case for planned_case in planned_ones if planned_case.class_name == "thermal"
    )
    return replace(case, weight=3.0, hosts=case.hosts[:10], end=case.begin + 420.0)


@pytest.mark.slow
def test_a_planted_fault_is_found_with_its_delay_and_no_truth_is_read() -> None:
    """A judge that could read the truth log would find everything, and the page would be worthless."""
    case = thermal()
    observed = feed(OutsideOnly(PARADE), case.hosts, case.begin, case.end)
    truth = GroundTruth(PARADE, case.hosts, case.begin, case.end)
    result = score(case, observed, truth, {})
    (struck,) = truth.of_cause(case.cause)
    assert result.found is not None
    assert result.found.rule == "gpu.thermal"
    assert result.found.part_is_right
    assert 0.0 < result.found.delay_seconds < struck.due - struck.begin + 60.0
    assert result.found.victims > 0 == result.found.victims_blamed
    assert not [finding for finding in result.wrong if finding.by == JUDGE]
    assert result == judge_case(PARADE, case)  # the same again


def test_a_healthy_span_counts_nothing() -> None:
    """With look-alikes alone no host is named, and no advice is given."""
    calm = World("healthy", 5, hosts=64)
    begin = 90_000.0
    case = SimulatedCase("", "", -1, 1.0, tuple(range(16)), begin, begin + 240.0)
    result = judge_case(calm, case)
    assert not [finding for finding in result.wrong if finding.by == JUDGE]
    assert result.days == pytest.approx(16 * 240 / 86400)
    assert (result.steps, result.calm_hosts, result.calm_named[JUDGE]) == (24, 16, 0)


def test_the_hours_are_of_the_whole_fleet_and_of_all_its_time() -> None:
    """A rate of false drains from chosen spans is only a rate of those spans."""
    size = Size("parade", 1, 5)
    spans = [span for span in planned(PARADE, size) if not span.class_name]
    assert [span.hosts for span in spans] == [tuple(range(64))] * 5
    part = (PARADE.seconds - 3600.0) / 5
    assert [int(span.begin // part) for span in spans] == [0, 1, 2, 3, 4]
    assert {span.end - span.begin for span in spans} == {3600.0}
    assert sum(span.weight * (span.end - span.begin) for span in spans) == pytest.approx(
        PARADE.seconds
    )
    assert spans == [span for span in planned(PARADE, size) if not span.class_name]


@pytest.mark.slow
def test_what_is_found_does_not_depend_on_the_number_of_processes_nor_on_how_often_it_was_cut_off(
    tmp_path: Path,
) -> None:
    """A page that differs with the number of cores could not be reproduced; and two hours of work
    were lost in the last minute.
    """
    first = thermal()
    cases = [replace(first, end=first.begin + 240.0), replace(first, hosts=first.hosts[:4]), first]
    pieces, shares = Pieces(tmp_path / "pieces"), list[float]()

    def progress(what: str, share: float) -> None:
        shares.append(share)

    single = judged(PARADE, cases, progress, 1, pieces)
    assert single == [judge_case(PARADE, case) for case in cases]
    (tmp_path / "pieces" / "0.pickle").unlink()
    (tmp_path / "pieces" / "1.pickle").write_bytes(b"half of")
    shares.clear()
    assert judged(PARADE, cases, progress, 2, pieces) == single
    assert len(shares) == 2, "what is whole is not judged again"
    pieces.forget()
    assert pieces.read(2) is None
    assert [result.steps for result in single] == [24, 42, 42]


def test_a_look_alike_is_watched_while_it_stands_and_a_reboot_until_its_host_is_back() -> None:
    """No return of a host was ever watched; and a look-alike of two hours only in its first five minutes."""
    cases = {
        planned_case.class_name: planned_case
        for planned_case in planned(PARADE, Size("parade", 1, 1))
    }
    rows = PARADE.schedule.rows
    for name in ("planned_reboot", "data_stall", "sequence_imbalance", "hung_collector"):
        mine = rows[rows["cause"] == cases[name].cause]
        assert cases[name].end == pytest.approx(float(mine["end"].max()) + 300.0)
    thermal = rows[rows["cause"] == cases["thermal"].cause][0]
    assert cases["thermal"].end == pytest.approx(thermal["begin"] + thermal["onset"] + 300.0)


def test_no_limit_on_hosts_that_are_out_hides_a_false_drain_in_the_hours() -> None:
    """If one of sixty-four hosts may be out at once, a second drain, false or not, would be held
    back and not counted.
    """
    hidden = [
        limits.cluster_hosts_max(64) < 64 or limits.rack_hosts_max < 64 or limits.job_hosts_max < 64
        for limits in (LIMITS, UNLIMITED)
    ]
    assert hidden == [True, False]


def _advised(host: str, seconds: float, action: Action = Action.DRAIN_AFTER_JOB) -> SimulatedAdvice:
    return SimulatedAdvice(
        seconds, f"a-{host}", f"host {host}", (host,), action, Basis.STATISTICAL, "FABRIC", ""
    )


def test_a_drain_is_false_where_no_fault_stands_and_only_there() -> None:
    """The budget limits drains of healthy hosts; drains of the culprit, or just after its fault, do not count."""
    case = thermal()
    truth = GroundTruth(PARADE, case.hosts, case.begin, case.end)
    (struck,) = truth.of_cause(case.cause)
    victim = min(truth.victims([struck]))
    late = struck.begin + 100.0
    observed = Observed(
        advised=[_advised(struck.host, late), _advised(victim, late), _advised("elsewhere", late)]
    )
    wrong = score(case, observed, truth, {}).wrong
    assert [(finding.what, finding.host) for finding in wrong if finding.what != "astray"] == [
        ("drain", victim)
    ]
    right = replace(_advised(struck.host, late), reason="THERMAL_THROTTLE")
    for advice, what in ((right, []), (_advised(struck.host, late), ["astray"])):
        assert [
            finding.what for finding in score(case, Observed(advised=[advice]), truth, {}).wrong
        ] == what
    early = Observed(advised=[_advised(struck.host, struck.begin - 50.0, Action.AVOID)])
    assert [finding.what for finding in score(case, early, truth, {}).wrong] == ["avoid"]


def test_a_drain_of_one_host_for_what_it_shares_is_counted_apart() -> None:
    """A failing power supply of a rack is not a host's fault: the hosts are ill, the reason is
    right, and no figure showed the drain.
    """
    cases = {
        planned_case.class_name: planned_case
        for planned_case in planned(PARADE, Size("parade", 1, 1))
    }
    scores = [_drained(cases[name], "POWER_CAP") for name in ("power_brake", "power_cap")]
    assert [[finding.what for finding in score.wrong] for score in scores] == [["alone"], []]
    assert [finding.what for finding in _drained(cases["power_brake"], "FABRIC").wrong] == [
        "astray"
    ]
    assert [
        finding.what for finding in _drained(cases["power_brake"], "POWER_CAP", True).wrong
    ] == ["alone"]
    hour = replace(scores[0], class_name="", found=None, shared=None)
    text = page(_run([*scores, hour, hour]))
    assert (
        "2 drains of the hours, and 1 around causes, were of a single host for a shared cause"
        in text
    )
    row = next(line for line in text.splitlines() if line.startswith("| drains of single hosts"))
    assert [cell.strip() for cell in row.split("|")[2:5:2]] == ["2", "1"]


def _drained(case: SimulatedCase, reason: str, is_avoided_before: bool = False) -> Score:
    """Return the score of a drain of only the first host that *case* struck."""
    truth = GroundTruth(PARADE, case.hosts, case.begin, case.end)
    struck = truth.of_cause(case.cause)[0]
    advice = [replace(_advised(struck.host, struck.begin + 60.0), reason=reason)]
    if is_avoided_before:
        advice.insert(0, _advised(struck.host, struck.begin - 1.0, Action.AVOID))
    places = {name: PARADE.location(index) for index, name in enumerate(PARADE.names)}
    return score(case, Observed(advised=advice), truth, places)


def test_a_shared_cause_is_wrong_where_no_two_of_its_hosts_share_one() -> None:
    """Two hosts of a rack with separate causes were reported as one rack; no figure counted this."""
    results = {
        planned_case.class_name: _told_as_one(planned_case)
        for planned_case in planned(PARADE, Size("parade", 1, 1))
    }
    assert [finding.what for finding in results["power_brake"].wrong] == []
    assert [finding.what for finding in results["thermal"].wrong] == ["cause"]
    text = page(_run([results["power_brake"], results["thermal"]]))
    assert "0 advisories of the hours, and 1 around causes, were for a cause that no two" in text


def _told_as_one(case: SimulatedCase) -> Score:
    """Return the score of a shared cause reported for the first host that *case* struck and another host."""
    truth = GroundTruth(PARADE, case.hosts, case.begin, case.end)
    struck = truth.of_cause(case.cause)
    if not struck:
        return Score("", 1.0)
    others = [finding.host for finding in struck[1:]] or sorted(
        {PARADE.names[host] for host in case.hosts} - {struck[0].host}
    )
    advised = replace(
        _advised(struck[0].host, struck[0].begin + 60.0, Action.INSPECT),
        hosts=(struck[0].host, others[0]),
        basis=Basis.SHARED_CAUSE,
    )
    places = {name: PARADE.location(index) for index, name in enumerate(PARADE.names)}
    return score(case, Observed(advised=[advised]), truth, places)


def test_a_victim_that_is_blamed_is_counted() -> None:
    """A host that waits for another is slow at 100 % utilization: to blame it is the classic error."""
    case = thermal()
    truth = GroundTruth(PARADE, case.hosts, case.begin, case.end)
    (struck,) = truth.of_cause(case.cause)
    victim = min(truth.victims([struck]))
    named = NamedState(
        JUDGE,
        victim,
        "gpu.straggler",
        "GPU-x",
        HealthState.DEGRADED,
        Reason.STRAGGLER,
        struck.begin + 30.0,
        inf,
    )
    result = score(case, Observed(named=[named]), truth, {})
    assert result.found is not None
    assert (result.found.rule, result.found.victims_blamed) == ("", 1)
    assert [finding.what for finding in result.wrong] == ["name"]


def test_only_who_had_to_wait_while_somebody_looked_is_a_victim() -> None:
    """Causes without victims, or with victims of next month, cannot go wrong: "in none of 247" counted fewer."""
    case = thermal()
    truth = GroundTruth(PARADE, case.hosts, case.begin, case.end)
    (struck,) = truth.of_cause(case.cause)
    assert truth.victims([struck])
    unseen = GroundTruth(PARADE, case.hosts, case.begin, struck.begin)
    assert not unseen.victims([struck])
    silent = replace(struck, each=load().classes["silent_corruption"])
    assert not truth.victims([silent])
    deadly = next(job for job in PARADE.schedule.jobs if job.killed_by >= 0 and job.hosts.size > 3)
    everyone = GroundTruth(PARADE, range(64), deadly.end - 1.0, deadly.end + 3600.0)
    killer = everyone.of_cause(deadly.killed_by)[0]
    at_once = replace(killer, begin=deadly.end)  # the job is dead as it begins
    assert everyone.victims([replace(killer, begin=deadly.end - 1.0)])
    assert not everyone.victims([at_once])


def test_hosts_on_which_a_look_alike_stood_are_told_apart_from_those_on_which_nothing_did() -> None:
    """A host in ten has a power cap at full load: findings on those hosts were counted as findings
    on "hosts on which nothing stood".
    """
    calm = World("healthy", 5, hosts=64)
    case = SimulatedCase("", "", -1, 1.0, tuple(range(16)), 90_000.0, 90_240.0)
    truth = GroundTruth(calm, case.hosts, case.begin, case.end)
    capped = next(fault.host for fault in truth.faults if fault.each.name == "full_load_cap")
    cry = NamedState("slow clock", capped, "x", "", HealthState.SUSPECT, Reason.NONE, 90_100.0, inf)
    result = score(case, Observed(named=[cry]), truth, {})
    assert (result.calm_hosts, result.calm_named["slow clock"]) == (16, 1)
    assert 0 < result.plain_hosts < 16 and result.plain_named["slow clock"] == 0
    text = page(_run([result]))
    assert "**named without a fault**" in text and "- without a look-alike either" in text


def test_the_page_is_the_same_in_whatever_order_things_were_counted() -> None:
    """The counts come from sets of strings, whose order differs by process: the page was not a function of its seed."""
    counts = [((rule, HealthState.WATCH), 1) for rule in ("c", "a", "b", "f", "e", "d", "g")]
    rows = [replace(_found(), rule=rule) for rule in ("c", "a", "b", "d")]
    wrong = [Wrong(JUDGE, "drain", "h", rule, rule, (), False) for rule in ("b", "a")]
    first, two = (
        page(
            _run(
                [
                    Score("data_stall", 1.0, named=Counter(dict(counts[::way])), hosts=1),
                    *(Score("thermal", 1.0, found=row) for row in rows[::way]),
                    Score("", 1.0, wrong=wrong[::way], days=1.0, passed=Counter(checkpoint=7)),
                    Score("", 1.0, named_in_passing=_passed(counts[::way])),
                ]
            )
        )
        for way in (1, -1)
    )
    assert first == two and "a WATCH 1, b WATCH 1, c WATCH 1, d WATCH 1, e WATCH 1 |" in first


def _passed(
    said: list[tuple[tuple[str, HealthState], int]],
) -> Counter[tuple[str, str, HealthState]]:
    return Counter({("checkpoint", rule, state): count for (rule, state), count in said})


def _found() -> CaseFinding:
    return CaseFinding(
        "thermal", "", 1.0, False, False, False, False, False, 0, 0, dict.fromkeys(BASELINES, False)
    )


def test_the_page_shows_zeros_weights_and_what_is_not_found() -> None:
    """A table without the rows of zero looks as if they had not been counted."""
    case = thermal()
    truth = GroundTruth(PARADE, case.hosts, case.begin, case.end)
    missed = score(case, Observed(steps=1, advised=[]), truth, {})
    victim = min(truth.victims(truth.of_cause(case.cause)))
    drained = score(case, Observed(advised=[_advised(victim, case.begin + 300.0)]), truth, {})
    hour = Score("", 2.0, days=10.0, calm_hosts=16)
    text = page(_run([missed, drained, hour]))
    assert "| `thermal` " in text
    assert "0 of 2, 0.00 [0.00, 0.57]" in text
    assert "- `thermal` (fall of the SM clock, as a ratio)" in text
    assert "**drains, all** " in text
    assert "| `stage_imbalance` " in text
    # None in the hours; one drain around a cause that stands for three: 3 a world of `node_days`.
    row = next(line for line in text.splitlines() if line.startswith("| **drains, all**"))
    stands_for = number(3.0 * 1000.0 / node_days(PARADE))
    assert [cell.strip() for cell in row.split("|")[2:6]] == ["0", "0 [0, 599]", "1", stands_for]
    assert "Garwood's exact interval: 0 of 1 hours, 0 [0, 300] such hours" in text
    assert text == page(_run([missed, drained, hour]))


def _run(scores: list[Score]) -> SimulatedRun:
    world = PARADE
    classes = world.settings.active_classes(world.scenario)
    return SimulatedRun("parade", 1, 1, 1, 64, 0.5, classes, tuple(scores), node_days(world))


def _hour(days: float, drains: int) -> Score:
    wrong = [Wrong(JUDGE, "drain", f"h{index}", "FABRIC", "", (), False) for index in range(drains)]
    return Score("", 1.0, wrong=wrong, days=days)


def test_the_rate_is_what_was_counted_over_what_was_looked_at() -> None:
    """Drains of one hour may be one mistake, and widen the interval as such; and so do those that might have been."""
    few = rate_of(_run([_hour(500.0, 1), _hour(500.0, 1), _hour(1000.0, 0)]), is_drain)
    assert (few.count, few.value) == (2, 1.0)
    assert round(2 * few.low, 2) == 0.36  # Garwood's, of two
    together = rate_of(_run([_hour(1000.0, 2), _hour(1000.0, 0)]), is_drain)
    assert together.value == 1.0 and together.high > few.high
    assert (few.together, rate_of(_run([_hour(9.0, 3)]), is_drain).together) == (2, 3)


def test_none_seen_is_no_proof_that_none_come_in_pairs() -> None:
    """The budget was "met, also at the upper end" in 3,226 node-days: computed for single drains,
    although two of a single cause were on record.
    """
    none = rate_of(_run([_hour(3226.0, 0)]), is_drain)
    assert [round(end, 2) for end in (none.low, none.high)] == [0.0, 1.86]
    assert verdict(_run([_hour(80.65, 0)] * 40)).startswith("**Neither")
    assert verdict(_run([_hour(80.65, 0)] * 75)).endswith("if no more than 2 come together.")


@pytest.mark.parametrize(
    ("days", "drains", "message"),
    [
        (80.0, 0, "**Neither shown nor refuted here**: `make evaluate HOURS=75`"),
        (6000.0, 0, "**Met**, also"),
        (1000.0, 9, "**Not met.**"),
    ],
)
def test_the_verdict_is_of_the_upper_end(days: float, drains: int, message: str) -> None:
    """None seen in eighty node-days was once read as none in the fleet."""
    one_each = (
        [_hour(days / 10, int(index < drains)) for index in range(10)]
        if drains
        else [_hour(days, 0)]
    )
    assert verdict(_run(one_each)).startswith(message)


@pytest.mark.slow
def test_a_switch_of_an_nvlink_domain_is_one_advisory_for_the_domain() -> None:
    """Eight hosts of one rack-scale NVLink domain at once: eight drains would empty the rack for one switch."""
    settings = load()
    parade = replace(settings.scenarios["parade"], nvlink_hosts=8)
    scenarios = {**settings.scenarios, "parade": parade}
    world = World("parade", 1, settings=replace(settings, scenarios=scenarios))
    of_all = planned(world, Size("parade", 1, 1))
    result = judge_case(
        world,
        next(planned_case for planned_case in of_all if planned_case.class_name == "nvlink_switch"),
    )
    assert result.found is not None and result.found.victims > 0 == result.found.victims_blamed
    assert result.shared is not None and (result.shared.named, result.shared.hosts) == (8, 8)
    assert (result.shared.shared, result.shared.right_domain, result.shared.drains) == (1, True, 0)


def test_every_fault_has_its_reasons_and_every_shared_one_its_domain() -> None:
    """A class without an entry ends the run after ten minutes, or is never rightly named."""
    faults = {name: class_ for name, class_ in load().classes.items() if class_.sort == "faults"}
    assert RIGHT.keys() == faults.keys()
    shared = {name for name, fault in faults.items() if fault.per in (*SHARED_PLACES, "job_hour")}
    assert DOMAIN.keys() == shared


def test_wilson() -> None:
    """Three of ten at 90 %, by hand."""
    low, high = intervals.wilson(3, 10)
    assert (round(low, 3), round(high, 3)) == (0.127, 0.558)
    assert intervals.wilson(0, 0) == (0.0, 1.0)


@given(st.floats(0.0, 50.0))
def test_the_gamma_function_of_shape_one_is_the_exponential(value: float) -> None:
    """The incomplete gamma function is the basis of the rates' intervals."""
    assert isclose(intervals.gamma_below(1.0, value), 1.0 - exp(-value), abs_tol=1e-12)


@given(st.integers(0, 40), st.floats(0.1, 100.0))
def test_equal_weights_give_the_exact_interval_of_a_count(count: int, weight: float) -> None:
    """Garwood's: with none seen 0 to 3.0, with 5 seen 1.97 to 10.51."""
    low, high = intervals.weighted_rate([weight] * count, weight)
    low, high = low / weight, high / weight
    assert low <= count <= high
    if count:
        assert isclose(intervals.gamma_below(count, low), 0.05, abs_tol=1e-6)
    assert isclose(1.0 - intervals.gamma_below(count + 1, high), 0.05, abs_tol=1e-6)


def test_one_heavy_weight_that_was_not_seen_widens_the_interval() -> None:
    """Nothing seen in a small sample is not nothing in the fleet."""
    assert intervals.weighted_rate([1.0], 100.0)[1] > 100.0 > intervals.weighted_rate([1.0], 1.0)[1]


def test_tables() -> None:
    assert table(["a", "long"], [["1", "2"]]) == "| a | long |\n|---|------|\n| 1 | 2    |"
    assert [number(value) for value in (0.0, 0.01234, 12.34, 1234.4, inf)] == [
        "0",
        "0.0123",
        "12.3",
        "1,234",
        "-",
    ]
