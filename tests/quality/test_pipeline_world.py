"""The third world and its counts: invariants of any drawn scenario, and a slice through the real judge and tracker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.quality import jobs
from bench.quality.intervals import weighted_rate
from bench.quality.phase_forecasts import TrackedRun, track, window_probability
from bench.quality.pipeline_gangs import (
    ABLATIONS,
    CAUSES,
    VARIATIONS,
    GangPlan,
    macro_f1,
    precision,
    recall,
)
from bench.quality.pipeline_readings import EVIDENCE, DriverReadings, HostAgent
from bench.quality.pipeline_scenario import (
    CONTROL_KINDS,
    FAULT_KINDS,
    GPUS,
    GangScenario,
    HostFault,
)
from bench.quality.pipeline_steps import batch_orders
from bench.quality.pipeline_verdicts import (
    GangOutcome,
    HostVerdict,
    judge_scenario,
    pace_lost,
)
from bench.quality.pipeline_world import play, step_ends
from gangline.aggregator.model import Reason
from gangline.contract.signals import TABLES

SMALL = GangScenario(5, hosts=4, seconds=40, onset=20.0)


def _small(kind: str) -> GangScenario:
    if kind in FAULT_KINDS:
        return replace(SMALL, faults=(HostFault(kind, 0.2, 3, onset=10.0),))
    onset = 100.0 if kind == "resize" else SMALL.onset
    return replace(SMALL, control=kind, onset=onset)


@pytest.mark.parametrize("kind", [*FAULT_KINDS, *CONTROL_KINDS])
def test_all_time_is_accounted_for_and_the_same_scenario_gives_the_same_record(kind: str) -> None:
    """A world that loses time, counts it twice or changes from run to run gives irreproducible figures."""
    record, other = play(_small(kind)), play(_small(kind))
    assert np.array_equal(record.watts, other.watts) and np.array_equal(
        record.step_ends, other.step_ends
    )
    total = record.compute + record.stall + record.idle
    assert record.compute.min() >= 0 and total.max() <= 1 + 1e-4
    assert np.isfinite(record.watts).all() and (record.watts >= record.idle_watts - 1e-3).all()
    assert (np.diff(record.step_ends) > 0).all()
    if kind != "shared":  # there the first job ends its steps elsewhere
        assert np.array_equal(record.step_ends, step_ends(_small(kind)))


@pytest.mark.parametrize(("stages", "batches"), [(1, 1), (2, 4), (4, 8), (4, 2)])
def test_each_micro_batch_comes_once_and_after_all_that_it_needs(stages: int, batches: int) -> None:
    """An event before its cause would make bubbles that no pipeline has."""
    done: set[tuple[int, bool, int]] = set()
    for stage, is_backward, number in batch_orders(stages, batches):
        needed = (stage + 1, True, number) if is_backward else (stage - 1, False, number)
        assert needed in done or not 0 <= needed[0] < stages
        assert not is_backward or (stage, False, number) in done
        done.add((stage, is_backward, number))
    assert len(done) == 2 * stages * batches


@pytest.mark.parametrize("kind", ["silent_host", "silent_gpu"])
def test_the_culprit_computes_longest_at_the_same_work_and_costs_no_more_than_its_slowdown(
    kind: str,
) -> None:
    """A verdict from outside relies on this; a world that shows more gives the culprit away."""
    scenario = replace(SMALL, seconds=200, faults=(HostFault(kind, 0.3, 2, onset=0.0),))
    record = play(scenario)
    stage = next(rows for rows in record.runs[0].gpus if 2 in rows // GPUS).ravel()
    compute, work = (values.mean(axis=0)[stage] for values in (record.compute, record.work))
    assert stage[int(compute.argmax())] // GPUS == 2
    assert kind == "silent_host" or stage[int(compute.argmax())] % GPUS == 5
    assert work.std() / work.mean() < 0.03
    assert 0.02 < pace_lost(scenario) < 0.3 / 1.3 + 0.02


@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_that_is_withheld_never_arrives(name: str) -> None:
    """An ablation that leaves out nothing would prove that nothing matters."""
    for withheld in (False, True):
        scenario = replace(SMALL, withheld=frozenset({name} if withheld else ()))
        agent = HostAgent(
            DriverReadings(play(scenario), np.random.default_rng(1)), 0, np.random.default_rng(1)
        )
        for second in range(12):
            agent.frame(second, second * 1_000_000_000)
        arrived = {
            signal.column
            for table, sent in agent.tables.items()
            for index, signal in enumerate(TABLES[table])
            if any(sent.block.valid[index * sent.block.rows : (index + 1) * sent.block.rows])
        }
        assert bool(arrived & set(EVIDENCE[name])) is not withheld


def test_the_plan_has_every_kind_and_the_names_of_what_is_varied() -> None:
    """A fault or a control that is missing from the page is never measured."""
    plan = GangPlan.of_seed(3)
    assert {fault.faults[0].kind for fault in plan.faults} == set(FAULT_KINDS) == set(CAUSES)
    assert {control.control for control in plan.controls} == set(CONTROL_KINDS)
    assert {name for name, _ in plan.varied} == set(VARIATIONS)
    assert {name for name, _ in plan.ablated} == set(ABLATIONS)
    assert all(
        fault.host < host_fault.hosts for host_fault in plan.faults for fault in host_fault.faults
    )


def _verdict(reason: Reason, *seconds: float) -> HostVerdict:
    return HostVerdict(named=list(seconds), rules={("a.rule", reason): seconds[0]})


def test_named_early_or_elsewhere_is_false_blame_and_never_a_hit() -> None:
    """A judge that blames every host from the start would find every culprit at once."""
    scenario = GangScenario(1, (HostFault("silent_host", 0.1, 3, onset=100.0, heals=200.0),))
    right = GangOutcome(scenario, {3: _verdict(Reason.STRAGGLER, 150.0, 240.0)})
    early = GangOutcome(scenario, {3: _verdict(Reason.STRAGGLER, 90.0)})
    late = GangOutcome(scenario, {3: _verdict(Reason.STRAGGLER, 220.0)})
    other = GangOutcome(scenario, {4: _verdict(Reason.STRAGGLER, 150.0)})
    assert right.wrong == [] and right.first_named(scenario.faults[0]) == 150.0
    assert right.healing_seconds(scenario.faults[0]) == (40.0, True)
    assert [result.wrong for result in (early, late, other)] == [[3], [3], [4]]
    assert recall([right, early, late, other]).startswith("1 of 4")
    assert precision([right, early, late, other]).startswith("1 of 4")
    assert macro_f1([right]) == 1.0
    assert macro_f1([right, other]) == pytest.approx(2 / 3)
    assert macro_f1([GangOutcome(scenario, {3: _verdict(Reason.PCIE, 150.0)})]) == 0.0
    assert weighted_rate([], 1.0)[1] == pytest.approx(3.0, abs=0.01)  # the rule of three


def test_a_forecast_is_a_probability_of_any_window() -> None:
    """Brier scores need probabilities."""
    cases = [((30.0, 3.0, 0.8, 30.0, 0.0, 60.0), 1.0), ((90.0, 9.0, 0.8, 90.0, 0.0, 30.0), 0.2 / 3)]
    for arguments, wanted in cases:
        assert window_probability(*arguments) == pytest.approx(wanted)
    for end in (1.0, 27.0, 31.0, 200.0):
        assert 0.0 <= window_probability(30.0, 3.0, 0.7, 30.0, 0.0, end) <= 1.0


def test_the_tracker_knows_regular_checkpoints_of_the_third_world() -> None:
    """The score of states must come from the real tracker, with real checkpoints."""
    run: TrackedRun = track(("third", "checkpoint_30s", 3, True))
    hits, false, missed = run.in_the_end
    assert hits > 100 and 2 * hits / (2 * hits + false + missed) > 0.8
    assert run.windows[30.0].moments > 50


def test_the_judge_names_the_slow_gpu_of_the_third_world_and_nobody_where_experts_are_uneven() -> (
    None
):
    """The judge was developed with two other worlds: a success there alone proves little."""
    fault = HostFault("silent_gpu", 0.3, 3, onset=120.0)
    outcome = judge_scenario(GangScenario(3, (fault,), hosts=8, seconds=240))
    assert outcome.wrong == [] and outcome.first_named(fault) < 260
    assert outcome.gpus_named(3) == {5}
    assert judge_scenario(GangScenario(3, control="moe", hosts=8, seconds=200)).wrong == []


def test_one_section_takes_its_place_and_leaves_the_others() -> None:
    """A new run of a section must not lose the other sections' figures."""
    page = "head\n" + jobs.marked("stragglers", "old") + "\n\n" + jobs.marked("periods", "left")
    replaced = jobs.replaced(page, "stragglers", "new")
    assert (
        "old" not in replaced
        and "new" in replaced
        and replaced.endswith(jobs.marked("periods", "left"))
    )
    with pytest.raises(ValueError, match="no place for cpu_gang"):
        jobs.replaced(page, "cpu_gang", "text")
