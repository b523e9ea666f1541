"""`make evaluate` says how good judging is: it must count what is found, what is wrongly said, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, inf, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality import intervals
from bench.quality.markdown import number, table
from bench.quality.simulated import Plan as Size
from bench.quality.simulated import judge_case, planned
from bench.quality.simulated_feed import JUDGE, Advised, Named, Said, feed
from bench.quality.simulated_kinds import Case, Score
from bench.quality.simulated_page import page
from bench.quality.simulated_run import Run
from bench.quality.simulated_score import score
from bench.quality.simulated_truth import Truth, node_days
from gangline.agent.simulated.world import World
from gangline.agent.simulated.world.world import Step
from gangline.aggregator.advice.advisory import Action, Basis
from gangline.aggregator.verdicts import Reason, State
from gangline.fingerprints.wire import telemetry_pb2

PARADE = World("parade", 1)


class OutsideOnly:
    """What an aggregator can know of a world. Whoever asks for its schedule is refused."""

    def __init__(self, world: World) -> None:
        self._one = world

    @property
    def names(self) -> list[str]:
        return self._one.names

    def devices(self, host: int) -> list[telemetry_pb2.Device]:
        return self._one.devices(host)

    def labels(self, host: int) -> dict[str, str]:
        return self._one.labels(host)

    def frames(self, hosts: Sequence[int], begin: float, end: float) -> Iterator[Step]:
        return self._one.frames(hosts, begin, end)


def thermal() -> Case:
    """The parade's first hot GPU, with few hosts beside it."""
    planned_ones = planned(PARADE, Size("parade", 1, 1))
    case = next(each for each in planned_ones if each.class_name == "thermal")
    few = case.hosts[:10]
    near = frozenset(PARADE.names[host] for host in few)
    end = case.begin + 420.0
    return replace(case, weight=3.0, hosts=few, near=near, far=frozenset(), end=end)


def test_a_planted_fault_is_found_with_its_delay_and_no_truth_is_read() -> None:
    """A judge that could look into the truth log would find everything, and the page would be worth nothing."""
    case = thermal()
    said = feed(OutsideOnly(PARADE), case.hosts, case.begin, case.end)
    truth = Truth(PARADE, case.hosts, case.begin, case.end)
    told = score(case, said, truth, {})
    (struck,) = truth.of_cause(case.cause)
    assert told.found is not None
    assert told.found.rule == "gpu.thermal"
    assert told.found.part_is_right
    assert 0.0 < told.found.delay_seconds < struck.due - struck.begin + 60.0
    assert told.found.victims > 0 == told.found.victims_blamed
    assert not [one for one in told.wrong if one.by == JUDGE]
    assert told == judge_case(PARADE, case)  # the same again


def test_a_healthy_episode_counts_nothing() -> None:
    """Of look-alikes alone nobody is named, and nothing is advised."""
    calm = World("healthy", 5, hosts=64)
    names, begin = frozenset(calm.names[:16]), 90_000.0
    case = Case("", "", -1, 1.0, tuple(range(16)), frozenset(), names, begin, begin + 240.0)
    told = judge_case(calm, case)
    assert not [one for one in told.wrong if one.by == JUDGE]
    assert told.far_days == pytest.approx(16 * 240 / 86400)
    assert told.steps == 24


def _advised(host: str, seconds: float, action: Action = Action.DRAIN_AFTER_JOB) -> Advised:
    return Advised(
        seconds, f"a-{host}", f"host {host}", (host,), action, Basis.STATISTICAL, "FABRIC", ""
    )


def test_a_drain_is_false_where_no_fault_stands_and_only_there() -> None:
    """Drains of healthy hosts are what the budget is about; of the culprit, or just after its fault, they are not."""
    case = thermal()
    truth = Truth(PARADE, case.hosts, case.begin, case.end)
    (struck,) = truth.of_cause(case.cause)
    victim = min(truth.victims([struck]))
    late = struck.begin + 100.0
    said = Said(
        advised=[_advised(struck.host, late), _advised(victim, late), _advised("elsewhere", late)]
    )
    wrong = score(case, said, truth, {}).wrong
    assert [(one.what, one.host, one.near) for one in wrong] == [("drain", victim, True)]
    early = Said(advised=[_advised(struck.host, struck.begin - 50.0, Action.AVOID)])
    assert [one.what for one in score(case, early, truth, {}).wrong] == ["avoid"]


def test_a_victim_that_is_blamed_is_counted() -> None:
    """A host that waits for another is at 100 % utilisation and slow: to blame it is the classic error."""
    case = thermal()
    truth = Truth(PARADE, case.hosts, case.begin, case.end)
    (struck,) = truth.of_cause(case.cause)
    victim = min(truth.victims([struck]))
    named = Named(
        JUDGE,
        victim,
        "gpu.straggler",
        "GPU-x",
        State.DEGRADED,
        Reason.STRAGGLER,
        struck.begin + 30.0,
        inf,
    )
    told = score(case, Said(named=[named]), truth, {})
    assert told.found is not None
    assert (told.found.rule, told.found.victims_blamed) == ("", 1)
    assert [one.what for one in told.wrong] == ["name"]


def test_the_page_shows_zeros_weights_and_what_is_not_found() -> None:
    """A table that leaves out what was not seen reads as if nobody had looked."""
    case = thermal()
    truth = Truth(PARADE, case.hosts, case.begin, case.end)
    missed = score(case, Said(steps=1, advised=[]), truth, {})
    victim = min(truth.victims(truth.of_cause(case.cause)))
    drained = score(case, Said(advised=[_advised(victim, case.begin + 300.0)]), truth, {})
    quiet = Score("", 2.0, far_days=10.0, far_hosts=16)
    text = page(_run([missed, drained, quiet]))
    assert "| `thermal` " in text
    assert "0 of 2, 0.00 [0.00, 0.57]" in text
    assert "- `thermal` (fall of the SM clock, as a ratio)" in text
    assert "**drains, all** " in text
    assert "| `stage_imbalance` " in text
    # One drain near a cause that stands for three: 3 a world of `node_days`.
    assert f"| 1            | {number(3.0 * 1000.0 / node_days(PARADE))} [" in text
    assert text == page(_run([missed, drained, quiet]))


def _run(scores: list[Score]) -> Run:
    world = PARADE
    return Run(
        "parade", 1, 1, 1, 64, 0.5, world.schedule.classes, tuple(scores), 20.0, node_days(world)
    )


def test_wilson() -> None:
    """Three of ten at 90 %, by hand."""
    low, high = intervals.wilson(3, 10)
    assert (round(low, 3), round(high, 3)) == (0.127, 0.558)
    assert intervals.wilson(0, 0) == (0.0, 1.0)


@given(st.floats(0.0, 50.0))
def test_the_gamma_function_of_shape_one_is_the_exponential(value: float) -> None:
    """What the rates' intervals are made of."""
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
    """As text they are read, too."""
    assert table(["a", "long"], [["1", "2"]]) == "| a | long |\n|---|------|\n| 1 | 2    |"
    assert [number(value) for value in (0.0, 0.01234, 12.34, 1234.4, inf)] == [
        "0",
        "0.0123",
        "12.3",
        "1,234",
        "-",
    ]
