"""Memory and transfers of a placement: the price of a degraded link, blockers by p95, limits, and runs of other logins."""

from __future__ import annotations

import asyncio
from argparse import ArgumentTypeError
from collections.abc import Iterator
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from gangline.aggregator.commands.plan_memory import memory_option
from gangline.aggregator.errors import InvalidArgument, NotFound
from gangline.aggregator.principal import LOCAL, Principal, Role, set_principal
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.service.placement import PlacementService
from gangline.contract.wire import placement_pb2 as wire
from gangline.contract.wire.score_pb2 import Workload
from gangline.fingerprints.demand import DEMANDS, QUANTILES, SHARED_RESOURCES
from gangline.fingerprints.sensitivity import COMPONENTS, STORAGE, KnownWorkloads
from tests.aggregator.decisions.fleets import Node, snapshot_of
from tests.aggregator.decisions.test_inputs import RecordedService, assert_replayed

PCIE_RATE, DISK_RATE = 50e9, 10e9
#: Needs of a workload that never waits for PCIe or disks.
COMPUTING = [1.0, *(0.0 for _ in range(2 * len(COMPONENTS) - 1))]
RED, BLUE = (Principal(Role.SCHEDULER, name, proof=(1, 1)) for name in ("red", "blue"))
OFFLOAD = wire.MemoryNeeds(host_bytes_per_step=PCIE_RATE, step=Duration(seconds=2))
STEP = Duration(seconds=1)
WRONG = [
    (wire.MemoryNeeds(hbm_bytes=-1.0), "gang.memory.hbm_bytes"),
    (wire.MemoryNeeds(hbm_bytes=nan), "gang.memory.hbm_bytes"),
    (wire.MemoryNeeds(page_cache_bytes=2e15), "gang.memory.page_cache_bytes"),
    (wire.MemoryNeeds(hbm_bytes=1e9, smaller_batch_hbm_bytes=1e9), "gang.memory.smaller_batch_hbm_bytes"),
    (wire.MemoryNeeds(host_bytes_per_step=1e9), "gang.memory.step"),
    (wire.MemoryNeeds(step=STEP), "gang.memory.step"),
    (wire.MemoryNeeds(nvme_bytes_per_step=1e9, step=Duration()), "gang.memory.step"),
    (wire.MemoryNeeds(nvme_bytes_per_step=1e9, step=Duration(seconds=86_401)), "gang.memory.step"),
    (wire.MemoryNeeds(nvme_bytes_per_step=1e9, step=Duration(seconds=1, nanos=-1)), "gang.memory.step"),
]  # fmt: skip


class SourceStandIn:
    def __init__(self, snapshot: Judgement) -> None:
        self.snapshot = snapshot


@pytest.fixture(autouse=True)
def caller() -> Iterator[None]:
    set_principal(LOCAL)
    yield
    set_principal(LOCAL)


def demand(**values: float) -> Any:
    result = np.full((len(DEMANDS), len(QUANTILES)), nan, dtype=np.float32)
    for name, value in values.items():
        result[DEMANDS.index(name)] = value
    return result


def snapshot(slow_link: bool = False, slow_disk: bool = False) -> Judgement:
    """Return four nodes of 80 GB; the link of h0 has half of its lanes, the disks of h1 have a symptom."""
    judged = snapshot_of([Node(f"h{number}", hbm_bytes=80e9) for number in range(4)])
    links = judged.supplies.values
    links[:, SHARED_RESOURCES.index("pcie_received")] = PCIE_RATE
    links[1:, SHARED_RESOURCES.index("disk")] = (
        DISK_RATE  # h0 has shown less: its disks may be as fast
    )
    links[0, SHARED_RESOURCES.index("disk")] = DISK_RATE / 4
    if slow_link:
        links[0, SHARED_RESOURCES.index("pcie_received")] = PCIE_RATE / 2
    if slow_disk:
        judged.component_speeds[1, STORAGE] = 0.5
    owned = f"train ({RED.login})"
    known = KnownWorkloads(
        {"copying": 0, "large": 1, owned: 2, f"slurm/{owned}@5": 2},
        ("a copying run", "a large run", "a run of red"),
        np.array([COMPUTING] * 3, dtype=np.float32),
        np.stack(
            [demand(pcie_received=0.8 * PCIE_RATE), demand(hbm_bytes=100e9), demand(hbm_bytes=90e9)]
        ),
    )
    supplies = judged.supplies._replace(memory_bytes=np.full(4, 500e9, dtype=np.float32))
    return replace(judged, workloads=known, supplies=supplies)


def evaluated(judged: Judgement, nodes: list[int], **fields: Any) -> wire.PlacementOption:
    request = wire.EvaluatePlacementRequest(
        gang=wire.GangRequirements(**fields), node_index=nodes, explain=True
    )
    service = PlacementService(SourceStandIn(judged))
    return asyncio.run(service.EvaluatePlacement(request, None)).option


def planned(judged: Judgement, **fields: Any) -> wire.PlanPlacementResponse:
    request = wire.PlanPlacementRequest(gang=wire.GangRequirements(nodes=2, **fields), explain=True)
    return asyncio.run(PlacementService(SourceStandIn(judged)).PlanPlacement(request, None))


def test_a_degraded_link_costs_the_longer_transfers() -> None:
    """50 GB a step take 1 s of 2 s, and 2 s on half of the lanes: between 0 and 1 s more."""
    healthy, slow = (evaluated(snapshot(slow), [0], memory=OFFLOAD) for slow in (False, True))
    ratio = healthy.speed.value / slow.speed.value
    assert ratio == pytest.approx(1.25, rel=0.01)
    assert slow.speed.lower < slow.speed.value < slow.speed.upper
    assert healthy.speed.upper == pytest.approx(slow.speed.upper, rel=0.01), "all may overlap"
    assert slow.price.total_gpu_hours.value > healthy.price.total_gpu_hours.value
    assert slow.speed.source == wire.ESTIMATE_ASSUMED, "the overlap is assumed"
    assert "50 GB a step take 1 s of 2 s" in slow.speed.evidence
    assert "PCIe link at 0.50 of the full rate or more on 1 node: h0" in slow.speed.evidence
    assert "PCIe link at" not in healthy.speed.evidence


def test_a_symptom_of_disks_costs_the_longer_reads() -> None:
    memory = wire.MemoryNeeds(nvme_bytes_per_step=DISK_RATE, step=Duration(seconds=2))
    judged = snapshot(slow_disk=True)
    options = [evaluated(judged, [node], memory=memory) for node in (0, 1)]
    assert options[0].speed.value / options[1].speed.value == pytest.approx(1.25, rel=0.01)
    assert "disks at 0.50 of the full rate or more on 1 node: h1" in options[1].speed.evidence


def test_a_run_brings_its_transfers() -> None:
    """A run that copies at 0.8 of the full rate takes 1.6 times as long on half of the lanes."""
    judged = snapshot(slow_link=True)
    options = [evaluated(judged, [node], workload=Workload(job="copying")) for node in (1, 0)]
    assert options[0].speed.value / options[1].speed.value == pytest.approx(1.6, rel=0.02)
    plan = planned(judged, workload=Workload(job="copying"))
    assert 0 not in plan.options[0].node_index, "the search avoids the slow link"


def test_healthy_links_change_no_price() -> None:
    plain, declared = (evaluated(snapshot(), [0], **fields) for fields in ({}, {"memory": OFFLOAD}))
    assert declared.speed.value == plain.speed.value
    assert declared.price.total_gpu_hours.value == plain.price.total_gpu_hours.value


def test_memory_of_a_run_that_does_not_fit_is_a_blocker() -> None:
    reply = planned(snapshot(), workload=Workload(job="large"))
    (blocker,) = reply.blockers
    assert blocker.constraint == "gang.memory" and reply.proven
    assert "100 GB of HBM per GPU (p95 of large)" in blocker.message
    assert not blocker.relaxations


def test_the_relaxed_request_can_be_sent_again() -> None:
    memory = wire.MemoryNeeds(smaller_batch_hbm_bytes=70e9)
    reply = planned(snapshot(), workload=Workload(job="large"), memory=memory)
    (relaxation,) = reply.blockers[0].relaxations
    assert relaxation.change == "the smaller batch: 100 -> 70 GB of HBM per GPU"
    again = wire.PlanPlacementRequest(gang=relaxation.gang)
    service = PlacementService(SourceStandIn(snapshot()))
    assert asyncio.run(service.PlanPlacement(again, None)).options


def test_page_cache_is_free_memory_of_the_node() -> None:
    assert planned(snapshot(), memory=wire.MemoryNeeds(page_cache_bytes=400e9)).options
    (blocker,) = planned(snapshot(), memory=wire.MemoryNeeds(page_cache_bytes=600e9)).blockers
    assert "600 GB of page cache per node" in blocker.message
    assert blocker.relaxations[0].change == "page cache 600 -> 500 GB per node"


def test_unknown_memory_is_a_note() -> None:
    judged = snapshot()
    judged.supplies.hbm_bytes[2] = nan
    reply = planned(judged, memory=wire.MemoryNeeds(hbm_bytes=70e9))
    assert reply.options
    assert "the HBM of 1 of 4 nodes is not known: they count as large enough" in reply.notes


def test_page_cache_of_a_run_is_a_note() -> None:
    """A run takes the cache that it gets: less of it is slower, and no blocker."""
    judged = snapshot()
    judged.workloads.demands[0, DEMANDS.index("page_cache_bytes")] = 600e9
    reply = planned(judged, workload=Workload(job="copying"))
    assert reply.options
    (note,) = reply.notes
    assert note.startswith("copying used 600 GB of page cache (p95); 4 of 4 nodes have less")


def test_nodes_without_the_memory_are_named_as_violated() -> None:
    option = evaluated(snapshot(), [0, 1], memory=wire.MemoryNeeds(hbm_bytes=90e9))
    assert list(option.violations) == ["less memory than requested: 2 nodes"]


@pytest.mark.parametrize("job", [f"train ({RED.login})", f"slurm/train ({RED.login})@5"])
def test_a_run_of_another_login_is_not_found(job: str) -> None:
    """Neither its speeds, nor its memory, nor its name leave the service."""
    judged, workload = snapshot(), Workload(job=job)
    set_principal(RED)
    assert planned(judged, workload=workload).blockers, "90 GB do not fit"
    assert planned(judged, workload=Workload(job="train")).blockers, "its own name"
    set_principal(BLUE)
    with pytest.raises(NotFound) as raised:
        planned(judged, workload=workload)
    assert "red" not in str(raised.value).replace(job, "")
    with pytest.raises(NotFound):
        planned(judged, workload=Workload(job="train"))


def test_a_cached_table_is_not_another_logins() -> None:
    """Two logins name one job: each gets the run that is its own."""
    judged = snapshot()
    service = PlacementService(SourceStandIn(judged))
    request = wire.PlanPlacementRequest(
        gang=wire.GangRequirements(nodes=1, workload=Workload(job="train"))
    )
    set_principal(RED)
    assert asyncio.run(service.PlanPlacement(request, None)).blockers
    set_principal(BLUE)
    with pytest.raises(NotFound):
        asyncio.run(service.PlanPlacement(request, None))


def test_a_plan_for_a_logins_own_run_comes_out_again() -> None:
    """An operator replays a plan for the run that `train` names for the login red."""
    service = RecordedService(snapshot())
    set_principal(RED)
    memory = wire.MemoryNeeds(smaller_batch_hbm_bytes=70e9)
    request = wire.PlanPlacementRequest(
        gang=wire.GangRequirements(nodes=1, workload=Workload(job="train"), memory=memory)
    )
    assert service.ask(service.placement.PlanPlacement, request).blockers
    set_principal(LOCAL)
    assert_replayed(service, 1)


@pytest.mark.parametrize(("memory", "field"), WRONG)
def test_wrong_memory_is_refused_with_its_field(memory: wire.MemoryNeeds, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        planned(snapshot(), memory=memory)
    assert str(raised.value).startswith(field) and "expected" in str(raised.value)


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.25])
def test_a_slower_link_is_never_faster(share: float) -> None:
    judged = snapshot()
    judged.supplies.values[0, SHARED_RESOURCES.index("pcie_received")] = PCIE_RATE * share
    slower = snapshot()
    slower.supplies.values[0, SHARED_RESOURCES.index("pcie_received")] = PCIE_RATE * share * 0.9
    for fields in ({"memory": OFFLOAD}, {"workload": Workload(job="copying")}):
        fast, slow = (evaluated(world, [0], **fields).speed.value for world in (judged, slower))
        assert slow <= fast


def test_the_option_of_the_command_is_the_request() -> None:
    memory = memory_option("hbm=70.5GB,host-per-step=20GB,step=2.5s")
    assert memory == wire.MemoryNeeds(
        hbm_bytes=70.5e9, host_bytes_per_step=20e9, step=Duration(seconds=2, nanos=500_000_000)
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hbm",
        "hbm=70",
        "hbm=70s",
        "step=2GB",
        "hbm=1GB,hbm=2GB",
        "ram=1GB",
        "hbm=1e9GB",
        "hbm=-1GB",
    ],
)
def test_a_wrong_option_names_the_form(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="expected NAME=SIZE, as hbm=70GB"):
        memory_option(text)
