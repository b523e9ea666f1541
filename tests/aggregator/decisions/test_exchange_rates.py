"""Delay, money and stranded GPUs in GPU-hours, by rates that the request or its tenant declares."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import exp, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.decisions import planner, recovery
from gangline.aggregator.decisions.price import GangPrice
from gangline.aggregator.decisions.quantity import QuantitySource
from gangline.aggregator.decisions.relaxations import expected_repair_wait, repair_wait_hours
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.declared.model import ExchangeRates
from gangline.aggregator.errors import InvalidArgument
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.service.placement import PlacementService
from gangline.aggregator.service.placement_messages import requirements_of
from gangline.contract.wire import placement_pb2 as wire
from tests.aggregator.decisions.fleets import Node, snapshot_of, table_of
from tests.aggregator.decisions.test_planner import fleets, gangs, planned

TENANTS = {"vision": ExchangeRates(4.0, 0.5, 0.1), "batch": ExchangeRates(0.0, nan, nan)}


def parts_of(price: GangPrice) -> dict[str, float]:
    return {part.name: part.gpu_hours.value for part in price.parts}


def money_of(choice: planner.PlacementChoice, nodes: list[Node], needs: GangRequirements) -> float:
    """Return the cost of a plan in currency."""
    hours = (needs.gpus_per_node or 8) * needs.hours
    return sum(float(np.float32(nodes[index].price)) * hours for index in choice.nodes.tolist())


def test_the_request_counts_more_than_its_tenant() -> None:
    """A request's rate wins over its tenant's default, also a rate of 0."""
    gang = wire.GangRequirements(nodes=1, tenant="vision", gpu_hours_per_delay_hour=0.0)
    gang.gpu_hours_per_stranded_gpu_hour = 0.3
    needs = requirements_of(gang, tenants=TENANTS)
    assert (needs.delay_rate, needs.currency_rate, needs.stranded_gpu_rate) == (0.0, 0.5, 0.3)
    assert needs.rate_text("currency_rate") == (
        "0.5 GPU-hours a unit of currency (declared for tenant vision)"
    )
    assert "(the request)" in needs.rate_text("stranded_gpu_rate")
    needs = requirements_of(wire.GangRequirements(nodes=1, tenant="batch"), tenants=TENANTS)
    assert (needs.delay_rate, needs.currency_rate, needs.stranded_gpu_rate) == (0.0, 0.0, 0.0)
    assert requirements_of(wire.GangRequirements(nodes=1), tenants=TENANTS).currency_rate == 0.0


@pytest.mark.parametrize(
    "field",
    ["gpu_hours_per_delay_hour", "gpu_hours_per_currency_unit", "gpu_hours_per_stranded_gpu_hour"],
)
@pytest.mark.parametrize("value", [-1.0, nan, 2e9])
def test_a_rate_has_limits(field: str, value: float) -> None:
    """A mistyped rate would outweigh everything else."""
    gang = wire.GangRequirements(nodes=1)
    setattr(gang, field, value)
    with pytest.raises(InvalidArgument, match=f"gang.{field}"):
        requirements_of(gang)


class Source:
    """The source of the service's snapshot."""

    def __init__(self, snapshot: Judgement) -> None:
        self.snapshot = snapshot


def answered(snapshot: Judgement, gang: wire.GangRequirements) -> wire.PlanPlacementResponse:
    request = wire.PlanPlacementRequest(gang=gang, explain=True)
    return asyncio.run(PlacementService(Source(snapshot)).PlanPlacement(request, None))


def test_what_has_no_effect_is_said() -> None:
    """A mistyped tenant, or a rate without declared prices, would go unnoticed."""
    snapshot = replace(snapshot_of([Node("a")]), tenants=TENANTS)
    reply = answered(snapshot, wire.GangRequirements(nodes=1, tenant="visoin"))
    assert len(reply.notes) == 1 and "tenant 'visoin' is not declared" in reply.notes[0]
    reply = answered(snapshot, wire.GangRequirements(nodes=1, tenant="vision"))
    assert len(reply.notes) == 1 and "price_per_gpu_hour" in reply.notes[0]
    priced = replace(snapshot_of([Node("a", price=2.0)]), tenants=TENANTS)
    reply = answered(priced, wire.GangRequirements(nodes=1, tenant="vision"))
    assert not reply.notes
    (money,) = [part for part in reply.options[0].price.parts if part.name == "money"]
    assert money.gpu_hours.value == pytest.approx(8 * 24 * 2.0 * 0.5)
    assert money.gpu_hours.source == wire.ESTIMATE_DECLARED
    assert "tenant vision" in money.gpu_hours.evidence


def test_money_decides_between_nodes() -> None:
    """Whether a cheaper node is worth its lower speed depends on the rate alone."""
    nodes = [Node("dear", price=4.0), Node("cheap", speed=0.9, price=1.0)]
    for rate, chosen in ((0.0, 0), (0.01, 0), (0.1, 1)):
        (option, *_) = planned(nodes, GangRequirements(1, gpus_per_node=8, currency_rate=rate))
        assert option.nodes.tolist() == [chosen], rate


def test_a_price_that_nobody_declared_is_as_the_others() -> None:
    """An unknown price widens the interval, and is never zero."""
    nodes = [Node("a", price=1.0), Node("b", price=3.0), Node("c")]
    table, candidates = table_of(nodes)
    needs = GangRequirements(1, gpus_per_node=8, hours=10.0, currency_rate=1.0)
    unknown = planner.evaluate_nodes(table, candidates, needs, np.array([2])).price
    (part,) = [price_part.gpu_hours for price_part in unknown.parts if price_part.name == "money"]
    assert (part.lower, part.value, part.upper) == (80.0, 160.0, 240.0)
    assert (
        part.source is QuantitySource.ASSUMED and "no price is declared for 1 node" in part.evidence
    )
    known = planner.evaluate_nodes(table, candidates, needs, np.array([0])).price
    width = unknown.total.upper - unknown.total.lower
    assert width == pytest.approx(known.total.upper - known.total.lower + 160.0)


@given(nodes=fleets(8), needs=gangs(), rates=st.tuples(*[st.floats(0.0, 5.0)] * 2))
def test_a_higher_rate_never_makes_a_plan_that_costs_more_win(
    nodes: list[Node], needs: GangRequirements, rates: tuple[float, float]
) -> None:
    """A caller with a higher rate for money must not pay more."""
    nodes = [replace(item, price=1.0 + index % 3) for index, item in enumerate(nodes)]
    plans = [planned(nodes, replace(needs, currency_rate=rate)) for rate in sorted(rates)]
    if plans[0]:
        before, after = (money_of(item[0], nodes, needs) for item in plans)
        costs = [item[0].price.total.value for item in plans]
        assert after <= before * (1 + 1e-6) or max(rates) - min(rates) < 1e-6
        assert costs[0] <= costs[1] * (1 + 1e-6) + 1e-6


def test_spot_capacity_is_a_part_of_its_own() -> None:
    """Two nodes with 0.01 preemptions per hour, in survival and price, as declared."""
    needs = GangRequirements(
        2, gpus_per_node=8, hours=10.0, detect_hours=0.1, decide_hours=0.1, restart_hours=0.3,
        checkpoint_interval_hours=1.0, checkpoint_write_hours=0.0,
    )  # fmt: skip
    plain = [Node("a", hazard=1e-3), Node("b", hazard=1e-3)]
    spot = [replace(item, preemption=0.01) for item in plain]
    (without,), (on_spot,) = planned(plain, needs), planned(spot, needs)
    assert "spot preemption" not in parts_of(without.price)
    # 160 GPU-hours, 1 h lost per preemption: half a checkpoint interval, and 0.5 h to restart.
    pace = on_spot.price.speed.value * on_spot.price.topology.value
    assert parts_of(on_spot.price)["spot preemption"] == pytest.approx(160 * pace * 0.02, rel=1e-6)
    assert parts_of(on_spot.price)["interruptions by members"] == pytest.approx(
        parts_of(without.price)["interruptions by members"], rel=1e-6
    )
    ratio = on_spot.price.survival.value / without.price.survival.value
    assert ratio == pytest.approx(exp(-0.2), rel=1e-6)
    (part,) = [item for item in on_spot.price.parts if item.name == "spot preemption"]
    assert part.gpu_hours.source is QuantitySource.DECLARED


def test_a_floor_of_survival_counts_preemption() -> None:
    """A gang that must survive a day avoids capacity that is preempted daily."""
    nodes = [Node("spot", price=1.0, preemption=0.05), Node("kept", price=9.0)]
    needs = GangRequirements(1, gpus_per_node=8, survival_min=0.9, currency_rate=1.0)
    assert [option.nodes.tolist() for option in planned(nodes, needs)] == [[1]]
    assert planned(nodes, replace(needs, survival_min=0.0))[0].nodes.tolist() == [0]


def test_the_mean_of_a_wait_by_simulation() -> None:
    """3 of 5 nodes, median 20 h: mean and interval agree with 200,000 draws."""
    draws = 20.0 * np.exp(
        np.log(311.0 / 20.0) / 1.2816 * np.random.default_rng(7).standard_normal((200_000, 5))
    )
    third = np.sort(draws, axis=1)[:, 2]
    wait = expected_repair_wait(5, 3, 20.0)
    assert wait.value == pytest.approx(third.mean(), rel=0.03)
    assert wait.lower == pytest.approx(np.quantile(third, 0.05), rel=0.03)
    assert wait.upper == pytest.approx(np.quantile(third, 0.95), rel=0.03)
    assert wait.lower < repair_wait_hours(5, 3, 20.0)[0] < wait.value


@pytest.mark.parametrize(("rate", "waits_first"), [(0.0, False), (0.001, True), (5.0, False)])
def test_a_wait_for_repairs_costs_by_the_rate(rate: float, waits_first: bool) -> None:
    """Without a rate an immediate start comes first; with a rate the cheaper change does."""
    broken = Node("b", state=HealthState.UNHEALTHY)
    nodes = [Node("a"), broken, Node("c", free=False, job="81")]
    needs = GangRequirements(2, gpus_per_node=8, delay_rate=rate)
    table, candidates = table_of(nodes)
    candidates = replace(candidates, nodes=candidates.nodes | np.array([False, True, False]))
    from gangline.aggregator.decisions.blockers import find_blockers

    blockers_found = find_blockers(table, candidates, needs).blockers
    (waits,) = [
        relaxation
        for blocker in blockers_found
        for relaxation in blocker.relaxations
        if relaxation.start_hours
    ]
    assert ("delay" in parts_of(waits.price)) == (rate > 0.0)
    total = sum(parts_of(waits.price).values())
    assert waits.price.total.value == pytest.approx(total)
    if rate:
        expected = expected_repair_wait(1, 1, 20.0).value
        assert parts_of(waits.price)["delay"] == pytest.approx(rate * expected)
    other_relaxations = [
        relaxation
        for blocker in blockers_found
        for relaxation in blocker.relaxations
        if not relaxation.start_hours
    ]
    assert (
        waits.price.total.value
        < min(relaxation.price.total.value for relaxation in other_relaxations)
    ) == (waits_first or rate == 0.0)


def test_a_recovery_that_waits_pays_for_the_delay() -> None:
    """If an hour of delay costs as much as the gang, waiting for repairs is the most expensive."""
    nodes = [Node(f"h{number}") for number in range(5)]
    table, candidates = table_of(nodes)
    incident = recovery.Incident(np.arange(4), np.array([0]))
    rates = (
        GangRequirements(4, gpus_per_node=8),
        GangRequirements(4, gpus_per_node=8, delay_rate=9.0),
    )
    plans = [recovery.plan_recovery(table, candidates, needs, incident) for needs in rates]
    for before, after in zip(*(sorted(item.options, key=_kind) for item in plans), strict=True):
        parts = {part.name: part.gpu_hours for part in after.parts}
        assert sum(item.value for item in parts.values()) == pytest.approx(after.total.value)
        added = after.total.value - before.total.value
        assert added == pytest.approx(parts["delay"].value)
        hours = sum(item.value for item in after.hours.values())
        waits = after.kind is recovery.RecoveryKind.WAIT_FOR_REPAIR
        assert added > 9.0 * 20.0 if waits else added < 9.0 * 3.0 * hours
        assert "9 GPU-hours an hour of delay" in parts["delay"].evidence


def _kind(option: Any) -> int:
    return int(option.kind)
