"""Stored inputs of a decision reproduce its response to the byte, for any fleet and request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.commands.decision import replayed_answer
from gangline.aggregator.decisions import inputs
from gangline.aggregator.decisions.inputs import InputsError, input_parts, restored_inputs
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.declared.model import ExchangeRates
from gangline.aggregator.errors import ServiceError
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.scoring.reported_factors import (
    NOTHING_REPORTED,
    ReportedFactor,
    ReportedFactors,
    ReportedThroughputs,
)
from gangline.aggregator.service import decision_recorder, placement_messages
from gangline.aggregator.service.decision_recorder import (
    DecisionRecorder,
    decoded_batch,
    encoded_batch,
)
from gangline.aggregator.service.decision_summary import kind_of
from gangline.aggregator.service.placement import PlacementService
from gangline.aggregator.service.recovery import RecoveryService
from gangline.aggregator.store.decision_records import DecisionRecord
from gangline.contract.wire import placement_pb2, recovery_pb2
from gangline.fingerprints.demand import DEMANDS, QUANTILES, SHARED_RESOURCES
from gangline.fingerprints.sensitivity import COMPONENTS, KnownWorkloads
from tests.aggregator.decisions.fleets import Node, snapshot_of
from tests.aggregator.decisions.test_planner import fleets, gangs


@dataclass
class ChangingSource:
    """The services' source of snapshots."""

    snapshot: Judgement | None = None


class RecordedService:
    """Services that record their decisions."""

    def __init__(self, snapshot: Judgement, *, is_dedicated: bool = False) -> None:
        self.source = ChangingSource(snapshot)
        self.batches: list[tuple[list[DecisionRecord], dict[str, bytes]]] = []
        self.recorder = DecisionRecorder(self.take, lambda: 10**18)
        self.placement = PlacementService(
            self.source, is_dedicated=is_dedicated, recorder=self.recorder
        )
        self.recovery = RecoveryService(self.placement)

    def take(self, encoded: bytes, count: int) -> bool:
        """Take a batch."""
        self.batches.append(decoded_batch(encoded))
        return True

    def ask(self, call: Callable[[Any, Any], Awaitable[Any]], request: Any) -> Any:
        """Return the response, or None if the request is refused."""

        async def guarded() -> Any:
            try:
                return await call(request, None)
            except ServiceError:
                return None
            finally:
                await self.recorder.flush()

        return asyncio.run(guarded())


def assert_replayed(service: RecordedService, answers: int) -> None:
    """Check that each recorded decision is reproduced from its parts, in any order."""
    records = [record for records, _ in service.batches for record in records]
    parts = {
        digest: part
        for _, encoded_parts in service.batches
        for digest, part in encoded_parts.items()
    }
    assert len(records) == answers
    for record in records:
        its_parts = [parts[digest] for digest in reversed(record.inputs)]
        again = asyncio.run(replayed_answer(kind_of(record.kind), record.request, its_parts))
        assert again == record.answer


def workloads(source: Any) -> KnownWorkloads:
    """Return the known needs of two jobs."""
    rows = [[source.random() for _ in range(2 * len(COMPONENTS))] for _ in range(2)]
    needs = np.array(rows, dtype=np.float32) / np.float32(2 * len(COMPONENTS))
    demands = np.full((2, len(DEMANDS), len(QUANTILES)), nan, dtype=np.float32)
    demands[0, DEMANDS.index("hbm_bytes")] = source.choice((60e9, 100e9))
    demands[1, DEMANDS.index("pcie_received")] = 40e9
    texts = ("a run of eight", "a run of seven")
    return KnownWorkloads({"seven": 1, "eight": 0}, texts, needs, demands)


@given(nodes=fleets(), needs=gangs(), source=st.randoms(use_true_random=False))
def test_any_decision_comes_out_again(
    nodes: list[Node], needs: GangRequirements, source: Any
) -> None:
    """Plans, evaluations, resizes and recoveries, free or blocked, are reproduced."""
    nodes = [replace(item, job=source.choice(("", "", "seven", "nine"))) for item in nodes]
    reserved = np.array(
        sorted(source.sample(range(len(nodes)), source.randrange(2))), dtype=np.intp
    )
    snapshot = replace(
        snapshot_of(nodes, source.choice(("", "the disk is full"))),
        reservations=(("reservations/3", reserved), ("reservations/4", np.zeros(0, dtype=np.intp))),
        tenants={"vision": ExchangeRates(2.0, nan, 0.1)},
        workloads=workloads(source), version=source.randrange(1, 1 << 40), model="lognormal-3",
    )  # fmt: skip
    links = snapshot.supplies.values
    links[:, SHARED_RESOURCES.index("pcie_received")] = source.choice((nan, 50e9))
    links[0, SHARED_RESOURCES.index("pcie_received")] = 25e9
    service = RecordedService(snapshot, is_dedicated=source.random() < 0.5)
    gang = placement_pb2.GangRequirements()
    placement_messages.apply_change(gang, needs)
    gang.length.FromNanoseconds(round(needs.hours * 3600e9))
    gang.tenant = source.choice(("", "vision", "nobody"))
    if source.random() < 0.5:
        gang.gpu_hours_per_currency_unit = needs.currency_rate
    gang.groups.tensor, gang.groups.pipeline = source.choice(((0, 0), (4, 2), (8, 1)))
    if source.random() < 0.3:
        gang.memory.hbm_bytes, gang.memory.page_cache_bytes = needs.memory.hbm_bytes, 1e9
        gang.memory.host_bytes_per_step = 20e9
        gang.memory.step.FromSeconds(2)
    if job := source.choice(("", "seven", "eight", "nine")):
        gang.workload.job = job
    plan = placement_pb2.PlanPlacementRequest(
        gang=gang, options_max=source.randrange(4), explain=source.random() < 0.5
    )
    if source.random() < 0.5:
        free = np.array([item.free for item in nodes])
        plan.candidates.node_bitmap = np.packbits(free, bitorder="little").tobytes()
    members = source.sample(range(len(nodes)), min(needs.nodes, len(nodes)))
    evaluated = placement_pb2.EvaluatePlacementRequest(gang=gang, node_index=members)
    evaluated.gang.nodes = 0
    resized = placement_pb2.PlanResizeRequest(gang=gang, current_node_index=members, explain=True)
    resized.gang.nodes = 0
    resized.gang.sizes.min_nodes, resized.gang.sizes.max_nodes = 1, len(nodes)
    failed = recovery_pb2.PlanRecoveryRequest(
        current_node_index=members, failed_node_index=members[:1], nodes_min=1, explain=True
    )
    failed.gang.length.FromSeconds(7200)
    failed.gang.tenant = gang.tenant
    replies = [
        service.ask(service.placement.PlanPlacement, plan),
        service.ask(service.placement.EvaluatePlacement, evaluated),
        service.ask(service.placement.PlanResize, resized),
        service.ask(service.recovery.PlanRecovery, failed),
    ]
    answered = [item for item in replies if item is not None]
    assert len({item.decision_id for item in answered}) == len(answered)
    assert_replayed(service, len(answered))


def test_who_was_excluded_before_the_disk_was_full_is_so_in_the_replay() -> None:
    """The nodes excluded before a degraded period are a part of the decision."""
    nodes = [Node(f"h{number}", hazard=1e-4 * (number + 1)) for number in range(4)]
    service = RecordedService(snapshot_of(nodes))
    request = placement_pb2.PlanPlacementRequest(gang=placement_pb2.GangRequirements(nodes=4))
    assert service.ask(service.placement.PlanPlacement, request).options
    broken = [replace(nodes[0], state=HealthState.UNHEALTHY), *nodes[1:]]
    service.source.snapshot = replace(snapshot_of(broken, "the disk is full"), version=2)
    assert service.ask(service.placement.PlanPlacement, request).options
    service.source.snapshot = replace(snapshot_of(broken), version=3)
    assert not service.ask(service.placement.PlanPlacement, request).options
    assert_replayed(service, 3)


def test_what_does_not_change_is_one_part() -> None:
    """10,000 names a second would be gigabytes a day: only changed columns are stored again."""
    nodes = [Node(f"h{number}") for number in range(6)]
    snapshot = snapshot_of(nodes)
    excluded = np.zeros(6, dtype=bool)
    first = dict(input_parts(snapshot, excluded))
    changed = replace(snapshot_of([replace(nodes[0], hazard=0.01), *nodes[1:]]), version=2)
    second = dict(input_parts(changed, excluded))
    assert len(second.keys() - first.keys()) == 3  # score, hazard, and the snapshot's own numbers


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda parts: parts[1:], "the part 'score' is missing"),
        (lambda parts: [*parts[:-1], b"x"], "a part is not what Gangline writes"),
        (lambda parts: [b'{"part": "score", "type": "|O", "shape": [1]}\n', *parts[1:]], "type"),
        (lambda parts: [parts[0].replace(b"[3]", b"[4]", 1), *parts[1:]], "a part is not what"),
        (
            lambda parts: [b'{"part": "score", "type": "<f4", "shape": [1]}\n0000', *parts[1:]],
            "do not belong together",
        ),
    ],
)
def test_parts_that_cannot_be_read(
    broken: Callable[[list[bytes]], list[bytes]], message: str
) -> None:
    """Parts from the network are parsed as data, and an error names the damage."""
    snapshot = snapshot_of([Node(f"h{number}") for number in range(3)])
    parts = [part for _, part in input_parts(snapshot, np.zeros(3, dtype=bool))]
    assert restored_inputs(parts).snapshot.names == snapshot.names
    with pytest.raises(InputsError, match=message):
        restored_inputs(broken(parts))


def test_a_part_that_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kB of compressed zeros could fill the reader's memory."""
    assert inputs.decompressed(inputs.compressed(b"x" * 1000)) == b"x" * 1000
    monkeypatch.setattr(inputs, "PART_BYTES_MAX", 999)
    with pytest.raises(InputsError, match="more than 999 bytes"):
        inputs.decompressed(inputs.compressed(b"x" * 1000))
    with pytest.raises(InputsError, match="cannot be read"):
        inputs.decompressed(b"nothing of the kind")
    with pytest.raises(InputsError, match="does not match its digest"):
        inputs.checked_part("00" * 16, inputs.compressed(b"x"))


def test_snapshots_and_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free thread to encode them, pending snapshots must not accumulate."""
    nodes = [Node(f"h{number}") for number in range(4)]
    service = RecordedService(snapshot_of(nodes))
    request = placement_pb2.PlanPlacementRequest(gang=placement_pb2.GangRequirements(nodes=1))

    async def plans(count: int) -> None:
        for version in range(count):
            service.source.snapshot = replace(snapshot_of(nodes), version=version + 1)
            await service.placement.PlanPlacement(request, None)
        await service.recorder.flush()

    asyncio.run(plans(10))
    assert service.recorder.take_dropped() == 10 - decision_recorder.SNAPSHOTS_WAITING_MAX
    assert service.recorder.take_dropped() == 0
    ((records, parts),) = service.batches
    total_bytes = sum(map(len, parts.values())) + sum(record.size_bytes for record in records)
    monkeypatch.setattr(decision_recorder, "BATCH_BYTES_MAX", total_bytes // 2)
    service.batches.clear()
    asyncio.run(plans(8))
    ((records, _),) = service.batches
    assert 0 < len(records) == 8 - service.recorder.take_dropped()


def test_a_batch_that_is_cut_off_is_refused() -> None:
    """The score process may die while it writes."""
    service = RecordedService(snapshot_of([Node("h0")]))
    request = placement_pb2.PlanPlacementRequest(gang=placement_pb2.GangRequirements(nodes=1))
    service.ask(service.placement.PlanPlacement, request)
    ((records, parts),) = service.batches
    encoded = encoded_batch(records, parts)
    assert decoded_batch(encoded) == (records, parts)
    with pytest.raises(ValueError, match="bytes at"):
        decoded_batch(encoded[:-1])


def test_costs_and_tenants_are_inputs_and_older_decisions_have_none() -> None:
    """Decisions without costs and tenants are replayed as such; malformed tenants are refused."""
    nodes = [Node("a", price=2.5, preemption=0.01), Node("b")]
    tenants = {"vision": ExchangeRates(2.0, nan, 0.1)}
    snapshot = replace(snapshot_of(nodes), tenants=tenants)
    parts = [part for _, part in input_parts(snapshot, np.zeros(2, dtype=bool))]
    restored = restored_inputs(parts).snapshot
    np.testing.assert_array_equal(restored.facts.costs.price, snapshot.facts.costs.price)
    np.testing.assert_array_equal(restored.facts.costs.preemption, snapshot.facts.costs.preemption)
    assert repr(restored.tenants) == repr(tenants)
    new = (b'"price_per_gpu_hour"', b'"preemptions_per_hour"', b'"tenants"')
    older = restored_inputs(
        part_bytes for part_bytes in parts if not any(name in part_bytes[:60] for name in new)
    )
    assert older.snapshot.tenants == {} and not older.snapshot.facts.costs.price.size
    for wrong in (b"7", b'["a"]', b'{"a": 1}', b'{"a": ["x", 1, 1]}', b'{"a": [1, 1, 1, 1]}'):
        other_parts = [part_bytes for part_bytes in parts if b'"tenants"' not in part_bytes[:60]]
        with pytest.raises(InputsError, match="do not belong together"):
            restored_inputs([*other_parts, b'{"part": "tenants"}\n' + wrong])


def test_factors_that_were_reported_are_inputs() -> None:
    """A decision was replayed with factors from later reports, and differed."""
    points = ReportedThroughputs(
        ("a", "b"), np.array([0, 1, 3]), np.array([4, 2, 8]), np.array([1.5, 0.1, 7.25]), np.array([1, 2, 3])
    )  # fmt: skip
    factors = ReportedFactors({"detect": ReportedFactor(0.1, 0.05, 0.3, 7)}, points)
    for reported in (factors, NOTHING_REPORTED, factors):
        snapshot = replace(snapshot_of([Node("h1")]), reported_factors=reported)
        parts = [part for _, part in input_parts(snapshot, np.zeros(1, dtype=bool))]
        restored = restored_inputs(parts).snapshot.reported_factors
        assert dict(restored.factors) == dict(reported.factors)
        assert restored.throughputs.points("b") == reported.throughputs.points("b")
