"""The action of each policy text, and its costs."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.advisories import advisory, policy
from gangline.aggregator.advisories.advisory import Action, Basis, Scope
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.aggregator.advisories.costs import (
    AFTER_JOB_ACTIONS,
    Fault,
    Workload,
    acting_cost,
    checkpoint_hours,
    price,
    waiting_cost,
)
from gangline.aggregator.advisories.messages import Instruction, Publish, Tick
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.advisories.policy import (
    PolicyAction,
    UnknownPolicyText,
    parse_policy_text,
    requested_action,
)
from gangline.aggregator.advisories.state_machine import AdvisoryStateMachine
from gangline.aggregator.model import Evidence, HealthState, HostScore, Reason
from gangline.contract.faults.table import builtin
from gangline.contract.wire import advisory_pb2
from gangline.contract.xid.policy import SCOPES
from gangline.contract.xid.policy import policy as xid_rows
from gangline.contract.xid.policy import sxid_policy as sxid_rows
from tests.worlds import World

NOW = 1_760_000_000_000_000_000
QUIET = Fault(2e-4, 1.0, 8)
GANG = Workload("train", 512, 0.1, 1800.0)

FAULTS = st.builds(Fault, st.floats(0, 60), st.floats(0.05, 1), st.integers(1, 16))
WORKS = st.builds(
    Workload, st.just("j"), st.integers(1, 100_000), st.floats(0, 10),
    st.sampled_from((0.0, 600.0, 86_400.0)), st.booleans(),
)  # fmt: skip


def test_every_word_of_every_policy_is_an_action_or_nothing() -> None:
    """A new policy row had a text that no executor carries out."""
    rows: list[Any] = [*xid_rows().values(), *sxid_rows().values(), *builtin().rows]
    for text in filter(None, (row.action for row in rows)):
        parse_policy_text(text)
    with pytest.raises(UnknownPolicyText, match="ACTION_BY_PREFIX"):
        parse_policy_text("pray")


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("drain now; stop touching that device; reboot the host", PolicyAction(Action.EVICT_NOW, Action.REBOOT)),
        ("drain and reset the GPU", PolicyAction(Action.DRAIN_AT_CHECKPOINT, Action.RESET_GPU)),
        ("watch; reset the GPU at the end of the job", PolicyAction(Action.DRAIN_AFTER_JOB, Action.RESET_GPU)),
        ("let the jobs end, start none, then reset the GPU", PolicyAction(Action.DRAIN_AND_RESET)),
        ("end its peer-to-peer work; recover the IMEX domain", PolicyAction(Action.DRAIN_P2P, Action.RECOVER_IMEX_DOMAIN)),
        ("look at fans, airflow or coolant of this host", PolicyAction(Action.INSPECT)),
        ("restart the application", PolicyAction(None)),
        ("none; it raises the hazard", PolicyAction(None)),
    ],
)  # fmt: skip
def test_words_as_actions(message: str, advice: PolicyAction) -> None:
    """The text of the table is the action that a scheduler receives."""
    assert parse_policy_text(message) == advice


def test_numbers_and_names_are_those_of_the_wire() -> None:
    """A scheduler drained a host that it should have returned."""
    for ours, theirs in (
        (Action, advisory_pb2.Action), (Basis, advisory_pb2.Basis),
        (advisory.AdvisoryState, advisory_pb2.AdvisoryState),
    ):  # fmt: skip
        numbers = {name: number for name, number in theirs.items() if number}
        assert {member.name: int(member) for member in ours} == numbers
    assert {member for member in SCOPES if member != "unknown"} <= {
        member.value for member in Scope
    }
    assert set(advisory.GRAVITY) == set(Action) and len(advisory.GRAVITY) == len(Action)


def host(state: HealthState, evidence: Evidence) -> HostScore:
    return HostScore(
        "h1", 0, False, 0.1, 0.05, 0.2, state, 1.0, 1.0, evidence.reason, "", "", NOW, (evidence,)
    )


def evidence(signal: str, value: float, reason: Reason = Reason.XID_FATAL) -> Evidence:
    return Evidence(
        signal, "GPU-1", value, "", "", 3.0, 1.0, -0.5, reason, "it is so", NOW, "SELECT 1"
    )


def test_only_a_fatal_row_of_an_unhealthy_host_is_certain() -> None:
    """XID 79 is certain; the same host under another suspicion is not."""
    request = requested_action(
        host(HealthState.UNHEALTHY, evidence("gpu.xid", 79)), evidence("gpu.xid", 79), Workload()
    )
    assert request is not None
    assert (request.action, request.basis) == (Action.EVICT_NOW, Basis.DETERMINISTIC)
    request = requested_action(
        host(HealthState.SUSPECT, evidence("gpu.xid", 92)), evidence("gpu.xid", 92), Workload()
    )
    assert request is None or request.basis is Basis.STATISTICAL
    for state in (
        HealthState.HEALTHY,
        HealthState.STALE,
        HealthState.UNKNOWN,
        HealthState.MAINTENANCE,
    ):
        assert (
            requested_action(host(state, evidence("gpu.xid", 79)), evidence("gpu.xid", 79), GANG)
            is None
        )


def test_what_is_milder_than_its_host_has_no_right_to_what_its_state_asks_for() -> None:
    """Readings missing during a hang drained the host, although the hang itself did not."""
    worst, milder = (
        evidence("collector.outcome_state", 4.0),
        evidence("gpu.unseen_seconds", 20.0, Reason.BLIND),
    )
    unhealthy = replace(host(HealthState.UNHEALTHY, worst), evidence=(worst, milder))
    assert requested_action(unhealthy, worst, Workload()) is not None
    assert requested_action(unhealthy, milder, Workload()) is None
    alone = requested_action(host(HealthState.SUSPECT, milder), milder, Workload())
    assert alone is not None and alone.action is Action.DRAIN_AFTER_JOB


def test_a_dead_job_waits_for_no_checkpoint() -> None:
    """The drain at the next checkpoint of a job that had crashed never came."""
    xid = evidence("gpu.xid", 95)
    request = requested_action(host(HealthState.UNHEALTHY, xid), xid, replace(GANG, dead=True))
    assert request is not None
    assert (request.action, request.basis) == (Action.EVICT_NOW, Basis.DEAD_JOB)


def test_the_arithmetic_by_hand() -> None:
    """512 GPUs, 0.05 per hour, 0.6 h each: 8 / (20 + 0.6) = 0.388 times, 0.233 h, 119 GPU-hours."""
    lost, arithmetic = waiting_cost(Fault(0.05, 1.0, 8), GANG)
    assert lost == pytest.approx(512 * 0.6 * 8 / 20.6) and "512 GPUs x 8 h" in arithmetic
    assert waiting_cost(Fault(0.0, 0.9, 8), GANG)[0] == pytest.approx(512 * 8 * 0.1)
    assert waiting_cost(Fault(0.0, nan, 8), GANG)[0] == 0.0
    lost, arithmetic = acting_cost(Action.EVICT_NOW, Action.RESET_GPU, QUIET, GANG)
    assert lost == pytest.approx(512 * (0.2 + 0.25) + 8 * 0.25) and "out" in arithmetic
    assert (
        acting_cost(Action.EVICT_NOW, Action.RESET_GPU, QUIET, replace(GANG, dead=True))[0] == 2.0
    )


def test_act_by_is_when_waiting_has_cost_as_much() -> None:
    """If acting costs half as much, the moment is at half of the horizon."""
    cost = price(
        Action.DRAIN_AT_CHECKPOINT, Action.RESET_GPU, Fault(60.0, 1.0, 8), GANG, NOW, Basis.DETERMINISTIC
    )  # fmt: skip
    share = cost.acting_gpu_hours / cost.waiting_gpu_hours
    assert cost.act_by_ns - NOW == pytest.approx(8 * 3600e9 * share)
    assert price(Action.AVOID, None, QUIET, Workload(), NOW, Basis.STATISTICAL).act_by_ns == 0


@given(
    hazard=st.floats(0, 60), speed=st.floats(0, 1) | st.just(nan), gpus=st.integers(1, 16),
    gang=st.integers(0, 100_000), interval=st.floats(0, 86_400),
)  # fmt: skip
def test_waiting_never_costs_more_than_the_whole_gang(
    hazard: float, speed: float, gpus: int, gang: int, interval: float
) -> None:
    """A hazard of one per minute cost more GPU-hours than exist."""
    lost, _ = waiting_cost(Fault(hazard, speed, gpus), Workload("j", gang, 0.0, interval))
    assert 0.0 <= lost <= 8.0 * max(gang, gpus) * (1 + 1e-9)


@given(action=st.sampled_from(Action), fault=FAULTS, work=WORKS)
def test_both_prices_count_the_same_job_over_the_same_time(
    action: Action, fault: Fault, work: Workload
) -> None:
    """A drain after the job is a form of waiting: only the price of waiting had the job."""
    cost = price(action, None, fault, work, NOW, Basis.DETERMINISTIC)
    gang, alone = max(work.gang_gpus, fault.gpus), Fault(0.0, 1.0, fault.gpus)
    out = acting_cost(action, None, alone, replace(work, dead=True))[0]
    of_the_job = cost.acting_gpu_hours - out
    restart = gang * (0.2 + checkpoint_hours(work, fault)[0] / 2.0)
    if action in AFTER_JOB_ACTIONS and not work.dead:
        assert of_the_job == pytest.approx(0.0) and cost.act_by_ns == 0
        assert "after the running job" in cost.arithmetic
    elif work.dead:
        assert of_the_job == pytest.approx(0.0)
    elif action in (Action.EVICT_NOW, Action.RESET_GPU, Action.REBOOT):
        assert of_the_job == pytest.approx(restart)
    elif action is Action.DRAIN_AT_CHECKPOINT:
        until = min(checkpoint_hours(work, fault)[0] / 2.0, 8.0)
        assert of_the_job == pytest.approx(gang * 0.2 + cost.waiting_gpu_hours * until / 8.0)


@given(fault=FAULTS, work=WORKS)
def test_what_has_no_end_is_not_waited_for(fault: Fault, work: Workload) -> None:
    """XID 95 under a job without known checkpoints: the drain waited for the end of a hung job."""
    xid = evidence("gpu.xid", 95)
    request = requested_action(host(HealthState.UNHEALTHY, xid), xid, replace(work, dead=False))
    assert request is not None
    now = policy.evict_without_checkpoint(request, fault, work)
    evicts = acting_cost(Action.EVICT_NOW, request.then, fault, work)[0]
    no_end = work.checkpoint_seconds == 0 and waiting_cost(fault, work)[0] > evicts
    assert now.action is (Action.EVICT_NOW if no_end else Action.DRAIN_AT_CHECKPOINT)
    unknown = policy.evict_without_checkpoint(request, fault, Workload())
    assert unknown == request, "no job is known there: none is waited for"
    suspected = request._replace(basis=Basis.STATISTICAL)
    assert policy.evict_without_checkpoint(suspected, fault, work) == suspected


def test_a_call_that_hangs_is_avoided_before_it_is_drained() -> None:
    """A collector hung for four minutes while its GPU trained on; that cost a host for a day."""
    for signal in policy.HUNG_CALL_SIGNALS:
        hang = evidence(signal, 2.0, Reason.DRIVER_HUNG)
        drain = requested_action(host(HealthState.UNHEALTHY, hang), hang, Workload())
        assert drain is not None and advisory.gravity(drain.action) > advisory.gravity(Action.AVOID)
        young = policy.avoid_while_hung(drain, hang, policy.HUNG_SECONDS_MIN - 1.0)
        assert (young.action, young.then, young.basis) == (Action.AVOID, None, Basis.STATISTICAL)
        assert young.rule == drain.rule  # the same case, so that its age is known
        assert policy.avoid_while_hung(drain, hang, policy.HUNG_SECONDS_MIN) == drain
        dead = drain._replace(basis=Basis.DEAD_JOB)
        assert policy.avoid_while_hung(dead, hang, 0.0) == dead
    code = evidence("gpu.xid", 119.0)
    at_once = requested_action(host(HealthState.UNHEALTHY, code), code, Workload())
    assert at_once is not None and policy.avoid_while_hung(at_once, code, 0.0) == at_once


def test_a_hang_that_lasts_is_drained_after_all() -> None:
    """If avoiding costs more than it can save, nothing is proposed until the hang has lasted."""
    world, machine, observer = World(), AdvisoryStateMachine(AdvisoryLimits()), Observer()
    world.run(10)
    world.hosts[0].set("collector_10s", "gpu_1s", outcome_state=4)

    def given() -> list[Action]:
        world.run(5)
        assert world.snapshot is not None
        instructions: list[Instruction] = []
        for event in [*observer.events(machine.state, world.snapshot, world.fleet.gpus)]:
            instructions += machine.step(event)
        instructions += machine.step(Tick(world.snapshot.computed_ns))
        return [item.advisory.action for item in instructions if isinstance(item, Publish)]

    assert [given() for _ in range(3)] == [[], [], []]
    for item in machine.state.cases.values():
        item.seen_ns -= int(policy.HUNG_SECONDS_MIN * 1e9)
    assert given() == [Action.DRAIN_AFTER_JOB]
    assert given() == []
