"""PlacementService over a judged fleet: plans for schedulers, and errors for invalid requests."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest

from gangline import cli
from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared.model import NOTHING
from gangline.aggregator.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServiceUnavailable,
)
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.service import placement
from gangline.aggregator.service.placement import PlacementService
from gangline.contract.client.plan_text import fold_names
from gangline.contract.wire import placement_pb2 as wire
from gangline.contract.wire.placement_pb2_grpc import PlacementServiceStub
from gangline.contract.wire.score_pb2 import ComponentShares, Workload
from tests.aggregator.decisions.fleets import Node, snapshot_of
from tests.aggregator.service.test_score_process import answer, handed_over, running
from tests.processes import GUARD_SECONDS
from tests.worlds import World, gpu_of


@dataclass
class SnapshotStandIn:
    snapshot: Judgement | None = None


def placed_world(hosts: int = 8) -> World:
    """Return hosts in two leaves with two racks each; the fourth gets a fatal XID."""
    world = World(hosts, 2)
    places = {
        f"h{number}": HostPlacement(
            rack=f"r{number // 2}", leaf=f"leaf-{number // 4}", spine="spine-0", power_domain=f"pdu-{number % 2}",
            rails=(f"leaf-{number // 4}",),
        )
        for number in range(hosts)
    }  # fmt: skip
    world.fleet.declared = replace(NOTHING, places=places, places_version=1)
    world.run(8)
    world.event(world.hosts[3], 95, gpu_of(world.hosts[3], 0))
    return world


def gang(nodes: int = 2, **fields: Any) -> wire.GangRequirements:
    return wire.GangRequirements(nodes=nodes, **fields)


def plan(
    snapshot: Judgement | None, request: wire.PlanPlacementRequest
) -> wire.PlanPlacementResponse:
    return asyncio.run(PlacementService(SnapshotStandIn(snapshot)).PlanPlacement(request, None))


def everyone(count: int) -> wire.PlacementCandidates:
    return wire.PlacementCandidates(
        node_bitmap=np.packbits(np.ones(count, dtype=bool), bitorder="little").tobytes()
    )


def test_a_plan_of_a_judged_fleet() -> None:
    """From frames to nodes: a healthy leaf with whole racks is chosen, and the price adds up."""
    snapshot = placed_world().run(20)
    assert snapshot.columns.state[3] == HealthState.UNHEALTHY
    request = wire.PlanPlacementRequest(
        gang=gang(4, invariants=wire.PlacementInvariants(
            within=wire.TIER_LEAF, segment_nodes=2, segment_tier=wire.TIER_RACK)),
        candidates=everyone(8), options_max=8, explain=True,
    )  # fmt: skip
    reply = plan(snapshot, request)
    (option, *_) = reply.options
    assert sorted(option.node_index) == [4, 5, 6, 7]
    assert [node // 2 for node in option.node_index] in ([2, 2, 3, 3], [3, 3, 2, 2])
    total = sum(part.gpu_hours.value for part in option.price.parts)
    assert option.price.total_gpu_hours.value == pytest.approx(total)
    assert 0 < option.goodput.value <= 1 and option.goodput.lower < option.goodput.upper
    assert option.topology_factor.source == wire.ESTIMATE_ASSUMED
    assert option.topology_factor.evidence
    spanned = {span.tier: span.domains for span in option.spanned}
    assert spanned[wire.TIER_LEAF] == 1 and spanned[wire.TIER_RACK] == 2
    assert {span.tier: (span.nodes_before, span.nodes_after) for span in option.strands}[
        wire.TIER_LEAF
    ] == (4, 3)
    assert not reply.blockers and reply.decision_id == plan(snapshot, request).decision_id
    assert reply.decision_id != plan(replace(snapshot, version=99), request).decision_id


def test_the_process_that_answers_schedulers_answers_the_same(tmp_path: Path) -> None:
    """The score process also plans, from its copy of the snapshot."""
    snapshot = placed_world().run(20)
    request = wire.PlanPlacementRequest(gang=gang(3), candidates=everyone(8), options_max=4)
    expected = plan(handed_over(snapshot), request)

    async def scenario() -> Any:
        async with running(tmp_path, snapshot) as score_process:
            await answer(score_process)
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{score_process.port}")
            stub: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
            planned = await stub.PlanPlacement(request, timeout=GUARD_SECONDS)
            priced = await stub.EvaluatePlacement(
                wire.EvaluatePlacementRequest(node_index=planned.options[0].node_index),
                timeout=GUARD_SECONDS,
            )
            await channel.close()
            return planned, priced

    reply, priced = asyncio.run(scenario())
    reply.ClearField("solve_time")
    expected.ClearField("solve_time")
    assert reply == expected
    cost = reply.options[0].price.total_gpu_hours.value
    assert priced.option.price.total_gpu_hours.value == pytest.approx(cost)


def test_nothing_fits_is_an_answer() -> None:
    """`16 free GPUs start no 16-GPU job`: status OK, with constraints and a change that fits."""
    snapshot = placed_world().run(20)
    request = wire.PlanPlacementRequest(
        gang=gang(4, invariants=wire.PlacementInvariants(within=wire.TIER_RACK)),
        candidates=everyone(8),
    )
    reply = plan(snapshot, request)
    assert not reply.options and reply.proven
    blockers = {blocker.constraint: blocker for blocker in reply.blockers}
    assert set(blockers) == {"gang.nodes", "gang.invariants.within"}
    change = blockers["gang.invariants.within"].relaxations[0]
    assert change.change == "within one rack -> one leaf" and change.price.total_gpu_hours.value > 0
    again = wire.PlanPlacementRequest(gang=change.gang, candidates=request.candidates)
    assert plan(snapshot, again).options


def test_without_an_allocation_the_answer_says_whose_word_it_is() -> None:
    """Without candidates, nodes that run jobs are left out, and the response names its source."""
    nodes = [Node("a", job="81"), Node("b"), Node("c")]
    reply = plan(snapshot_of(nodes), wire.PlanPlacementRequest(gang=gang(2)))
    assert sorted(reply.options[0].node_index) == [1, 2]
    assert "2 nodes on which no agent reports a job" in reply.candidates_source


def test_free_gpus_of_a_shared_node_are_chosen() -> None:
    """The free half of a node is used, aligned."""
    candidates = wire.PlacementCandidates(
        node_bitmap=b"\x00",
        shared_node_index=[0, 1],
        shared_gpu_mask=bytes([0b11110001, 0b00000011]),
    )
    reply = plan(snapshot_of([Node("a"), Node("b")]), wire.PlanPlacementRequest(
        gang=gang(1, gpus_per_node=4), candidates=candidates))  # fmt: skip
    assert list(reply.options[0].node_index) == [0]
    assert reply.options[0].gpu_mask == bytes([0b11110000])


def test_a_workload_meets_its_own_speed_of_each_node() -> None:
    """Memory-bound work is not slowed by a low clock."""
    snapshot = snapshot_of([Node("a"), Node("b")])
    speeds = snapshot.component_speeds.copy()
    speeds[0, 0] = 0.5  # its SM clock
    snapshot = replace(snapshot, component_speeds=speeds)
    speed = {}
    for name, shares in (
        ("compute", ComponentShares(compute=1.0)),
        ("memory", ComponentShares(memory=1.0)),
    ):
        reply = plan(
            snapshot, wire.PlanPlacementRequest(gang=gang(2, workload=Workload(shares=shares)))
        )
        speed[name] = reply.options[0].speed.value
    assert speed["memory"] == pytest.approx(1.0) and speed["compute"] == pytest.approx(0.5)


def test_the_caller_is_told_what_its_own_nodes_break() -> None:
    """A scheduler that chose nodes itself gets their price, and the broken invariants."""
    nodes = [
        Node(f"h{number}", places=("", "", f"l{number // 2}", "", "", "", ""))
        for number in range(4)
    ]
    nodes[2] = replace(nodes[2], state=HealthState.UNHEALTHY)
    service = PlacementService(SnapshotStandIn(snapshot_of(nodes)))
    request = wire.EvaluatePlacementRequest(
        gang=gang(0, invariants=wire.PlacementInvariants(within=wire.TIER_LEAF)), node_index=[2, 1]
    )
    option = asyncio.run(service.EvaluatePlacement(request, None)).option
    assert list(option.node_index) == [2, 1]
    assert list(option.violations) == [
        "UNHEALTHY, in maintenance, or gone: 1 node", "the nodes are not within one leaf",
    ]  # fmt: skip


def invariants(**fields: Any) -> Callable[[wire.PlanPlacementRequest], None]:
    return lambda request: request.gang.invariants.MergeFrom(wire.PlacementInvariants(**fields))


def of_gang(**fields: Any) -> Callable[[wire.PlanPlacementRequest], None]:
    def change(request: wire.PlanPlacementRequest) -> None:
        for name, value in fields.items():
            setattr(request.gang, name, value)

    return change


def seconds(name: str, value: float) -> Callable[[wire.PlanPlacementRequest], None]:
    return lambda request: getattr(request.gang, name).FromNanoseconds(round(value * 1e9))


def candidates(**fields: Any) -> Callable[[wire.PlanPlacementRequest], None]:
    return lambda request: request.candidates.MergeFrom(wire.PlacementCandidates(**fields))


def preference(*ones: tuple[int, float]) -> Callable[[wire.PlanPlacementRequest], None]:
    def change(request: wire.PlanPlacementRequest) -> None:
        for tier, hours in ones:
            request.gang.preferences.add(tier=cast(Any, tier), gpu_hours_per_domain=hours)

    return change


def workload(request: wire.PlanPlacementRequest) -> None:
    request.gang.workload.job = "nobody"


REFUSED: list[tuple[str, Callable[[wire.PlanPlacementRequest], None]]] = [
    ("gang.nodes: 0, expected 1 to 100000", of_gang(nodes=0)),
    ("gang.nodes: 100001, expected 1 to 100000", of_gang(nodes=100_001)),
    ("gang.gpus_per_node: 65, expected 0 to 64", of_gang(gpus_per_node=65)),
    ("gang.node_score_min: 1.5, expected 0 to 1", of_gang(node_score_min=1.5)),
    ("gang.node_score_min: nan, expected 0 to 1", of_gang(node_score_min=nan)),
    ("gang.survival_min: 1, expected 0 to below 1", of_gang(survival_min=1.0)),
    ("gang.communication_share: -0.1, expected 0 to 1", of_gang(communication_share=-0.1)),
    ("gang.gpu_hours_per_stranded_gpu_hour: nan", of_gang(gpu_hours_per_stranded_gpu_hour=nan)),
    ("gang.tenant: 129 characters, at most 128", of_gang(tenant="x" * 129)),
    ("gang.length: 59 s, expected 60 to 31536000", seconds("length", 59)),
    ("gang.restart: 604801 s, expected 0 to 604800", seconds("restart", 604_801)),
    ("gang.checkpoint_interval: 0 s, expected 1 to 604800", seconds("checkpoint_interval", 0)),
    ("gang.invariants.within: 9, expected TIER_NVLINK_DOMAIN to TIER_COOLING_DOMAIN", invariants(within=9)),
    ("gang.invariants.segment_nodes: 3 does not divide the 4 nodes; expected a divisor, or nodes = 3",
     invariants(segment_nodes=3, segment_tier=wire.TIER_RACK)),
    ("gang.invariants.segment_tier: expected together with segment_nodes", invariants(segment_nodes=2)),
    ("gang.invariants.segment_tier: 6, expected TIER_NVLINK_DOMAIN to TIER_CORE",
     invariants(segment_nodes=2, segment_tier=wire.TIER_POWER_DOMAIN)),
    ("gang.invariants.spread_nodes_max: expected together with spread_over", invariants(spread_nodes_max=2)),
    ("gang.preferences[1].tier: TIER_LEAF is listed twice", preference((3, 1.0), (3, 2.0))),
    ("gang.preferences[0].tier: unspecified", preference((0, 1.0))),
    ("gang.preferences[0].gpu_hours_per_domain: -1, expected 0 to 1e+09", preference((3, -1.0))),
    ("candidates.node_bitmap: index 4 is set, expected below 4", candidates(node_bitmap=b"\x1f")),
    ("candidates.node_bitmap: 1048577 bytes, expected at most 1048576", candidates(node_bitmap=bytes((1 << 20) + 1))),
    ("candidates.shared_gpu_mask: 0 bytes for 1 of shared_node_index, expected one each", candidates(shared_node_index=[1])),
    ("candidates.shared_node_index: 4, expected 0 to 3", candidates(shared_node_index=[4], shared_gpu_mask=b"\x01")),
    ("candidates.shared_node_index: 1 is listed twice", candidates(shared_node_index=[1, 1], shared_gpu_mask=b"\x01\x01")),
    ("options_max: 9, expected 0 to 8", lambda request: setattr(request, "options_max", 9)),
    ("request_id: 129 characters", lambda request: setattr(request, "request_id", "x" * 129)),
]  # fmt: skip


@pytest.mark.parametrize(("message", "change"), REFUSED, ids=[one[0][:40] for one in REFUSED])
def test_what_a_request_may_not_be(
    message: str, change: Callable[[wire.PlanPlacementRequest], None]
) -> None:
    """Each field has its limit; the error names the field, its value, and the limit."""
    request = wire.PlanPlacementRequest(gang=gang(4))
    change(request)
    with pytest.raises(InvalidArgument) as refused:
        plan(snapshot_of([Node(f"h{number}") for number in range(4)]), request)
    assert str(refused.value).startswith(message)


def test_what_cannot_be_answered_yet() -> None:
    """Each failure has its own status: no snapshot, another epoch's indexes, an unknown job."""
    snapshot, request = snapshot_of([Node("a")]), wire.PlanPlacementRequest(gang=gang(1))
    with pytest.raises(ServiceUnavailable):
        plan(None, request)
    other = wire.PlanPlacementRequest(gang=gang(1))
    other.candidates.dictionary_version = 6
    with pytest.raises(FailedPrecondition, match="the version is now 7"):
        plan(snapshot, other)
    workload(request)
    with pytest.raises(NotFound):
        plan(snapshot, request)


@pytest.mark.parametrize(
    ("message", "nodes"),
    [
        ("0 nodes, expected 1 to", []),
        ("4, expected below 4", [4]),
        ("a node is listed twice", [1, 1]),
    ],
)
def test_which_nodes_cannot_be_priced(message: str, nodes: list[int]) -> None:
    """An index of another fleet must not price an unrelated node."""
    service = PlacementService(
        SnapshotStandIn(snapshot_of([Node(f"h{number}") for number in range(4)]))
    )
    with pytest.raises(InvalidArgument, match=message):
        asyncio.run(
            service.EvaluatePlacement(wire.EvaluatePlacementRequest(node_index=nodes), None)
        )


def test_only_so_many_plans_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that sends a thousand plans at once must wait, and memory does not grow."""
    monkeypatch.setattr(placement, "PLANS_MAX", 2)
    service = PlacementService(SnapshotStandIn(snapshot_of([Node("a")])))

    async def scenario() -> list[Any]:
        calls = [
            service.PlanPlacement(wire.PlanPlacementRequest(gang=gang(1), options_max=2), None)
            for _ in range(5)
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    replies = asyncio.run(scenario())
    assert sum(isinstance(reply, ResourceExhausted) for reply in replies) == 3
    assert all(reply.options for reply in replies if not isinstance(reply, Exception))


def test_the_client_on_the_page_works(tmp_path: Path) -> None:
    """The client in docs/placement.md gets a plan, or takes the cheapest change."""
    page = (Path(placement.__file__).parents[2] / "docs/placement.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    snapshot = snapshot_of(
        [
            Node(f"h{number}", places=("", "", "", f"r{number // 4}", "", "", ""))
            for number in range(8)
        ]
    )

    async def client(nodes: int, port: int) -> str:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, cwd="/",
            env={**os.environ, "GANGLINE_AGGREGATOR": f"127.0.0.1:{port}", "NODES": str(nodes)},
        )  # fmt: skip
        out, _ = await asyncio.wait_for(child.communicate(), GUARD_SECONDS)
        assert child.returncode == 0
        return out.decode()

    async def scenario() -> list[str]:
        async with running(tmp_path, snapshot) as score_process:
            await answer(score_process)
            return [await client(nodes, score_process.port) for nodes in (8, 12)]

    fits, does_not = asyncio.run(scenario())
    assert fits.startswith("8 nodes, ") and "slowest member" in fits
    assert "gang.nodes | 12 -> 8 nodes" in does_not and "8 nodes, " in does_not


async def test_a_plan_at_the_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`gangline plan` prints options and prices; exit code 1 and changes if nothing fits."""
    places = [
        ("", "s0", f"l{number // 4}", f"r{number // 2}", "", f"p{number % 2}", "")
        for number in range(8)
    ]
    snapshot = snapshot_of(
        [Node(f"gpu-{number:03d}", places=place) for number, place in enumerate(places)]
    )
    file = tmp_path / "free.txt"
    file.write_text("gpu-000\ngpu-001 gpu-002\ngpu-003\n")

    async with running(tmp_path, snapshot) as score_process:
        await answer(score_process)
        address = f"127.0.0.1:{score_process.port}"

        async def run(*arguments: str) -> tuple[int, str]:
            code = await asyncio.to_thread(cli.main, ["plan", "--aggregator", address, *arguments])
            captured = capsys.readouterr()
            return code, captured.out + captured.err

        code, out = await run("--nodes", "4", "--segments", "2:rack", "--options", "2", "--explain")
        assert code == cli.OK and "1 leaf, 2 racks" in out and "interruptions by members" in out
        assert "gpu-[000-003]" in out or "gpu-[004-007]" in out
        code, out = await run(
            "--nodes", "4", "--spread", "1:power-domain", "--candidates", str(file)
        )
        assert code == cli.FAILED and "at most 1 -> 2 nodes in one power domain: starts now" in out
        code, out = await run("--evaluate", "gpu-000,gpu-004", "--within", "leaf")
        assert code == cli.OK and "not satisfied: the nodes are not within one leaf" in out
        code, out = await run("--evaluate", "gpu-9")
        assert code == cli.FAILED and "'gpu-9': no host with this name has registered" in out
        code, out = await run(
            "--nodes", "4", "--groups", "8x2x2", "--tenant", "vision", "--explain"
        )
        assert code == cli.OK and "16 data groups of 2 GPUs" in out
        assert "ranks: tensor, data, pipeline; aligned: " in out
        assert "note: tenant 'vision' is not declared" in out
        code, out = await run("--nodes", "9", "--groups", "8x5")
        assert code == cli.FAILED and "gang.groups: 8 x 5 x 1" in out and "72 GPUs" in out
        code, out = await run(
            "--nodes", "9", "--gpu-hours-per-currency-unit", "1", "--priority", "3", "--job-priority", "a=1"
        )  # fmt: skip
        assert code == cli.FAILED and "note: gpu_hours_per_currency_unit has no effect" in out
        code, out = await run("--nodes", "2", "--json")
        assert (
            code == cli.OK
            and json.loads(out)["options"][0]["price"]["total_gpu_hours"]["value"] > 0
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--segments", "4"], "expected NODES:TIER, as 4:rack"),
        (["--spread", "x:rack"], "expected NODES:TIER, as 4:rack"),
        (["--nodes", "0"], "expected a number from 1 to 999999"),
        (["--score-min", "2"], "expected a number from 0 to 1"),
        (["--within", "row"], "invalid choice: 'row'"),
        (["--groups", "8"], "expected TENSORxPIPELINE or TENSORxPIPELINExDATA"),
        (["--groups", "8x0x2"], "expected TENSORxPIPELINE or TENSORxPIPELINExDATA"),
        (["--gpu-hours-per-delay-hour", "-1"], "expected GPU-hours, a number from 0 to 1e+09"),
        (["--gpu-hours-per-currency-unit", "nan"], "expected GPU-hours, a number from 0"),
        (["--priority", "9999999999"], "expected a whole number from -2147483648"),
        (["--job-priority", "7"], "expected JOB=PRIORITY, as 4711=100"),
    ],
)
def test_options_that_cannot_be(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong usage is reported before any call."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", *arguments])
    assert ended.value.code == cli.USAGE and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["a1", "a2", "a3"], ["a[1-3]"]),
        (["gpu-009", "gpu-010", "gpu-012"], ["gpu-[009-010]", "gpu-012"]),
        (["a9", "a10"], ["a9", "a10"]),
        (["b2", "b1", "head"], ["b2", "b1", "head"]),
    ],
)
def test_names_are_folded_in_their_order(names: list[str], folded: list[str]) -> None:
    """A launcher needs rank order: folding must not sort."""
    assert fold_names(names) == folded


def resize(fields: dict[str, Any], snapshot: Judgement | None = None) -> wire.PlanResizeResponse:
    request = wire.PlanResizeRequest(
        gang=gang(0), current_node_index=[0, 1], candidates=everyone(8)
    )
    request.gang.length.FromSeconds(48 * 3600)
    request.gang.sizes.allowed_nodes.extend([2, 4])
    for nodes, throughput in ((1, 1.0), (2, 2.0), (4, 3.95)):
        request.gang.throughputs.add(nodes=nodes, throughput=throughput)
    for name, value in fields.items():
        target: Any = request
        *path, last = name.split(".")
        for part in path:
            target = getattr(target, part)
        if value is None:
            target.ClearField(last)
        elif isinstance(value, list):
            target.ClearField(last)
            getattr(target, last).extend(value)
        elif last in ("length", "reshard", "checkpoint_age"):
            getattr(target, last).FromSeconds(value)
        else:
            setattr(target, last, value)
    service = PlacementService(SnapshotStandIn(snapshot or placed_world().run(20)))
    return asyncio.run(service.PlanResize(request, None))


def test_a_gang_that_runs_grows_onto_well_nodes() -> None:
    """A scalable job on two of eight hosts grows to four, without the broken host."""
    reply = resize({"checkpoint_on_demand": True, "gang.communication_share": 0.0})
    first = reply.options[0]
    assert first.kind == wire.RESIZE_GROW and len(first.placement.node_index) == 4
    assert len(first.joined_node_index) == 2 and not first.left_node_index
    assert 3 not in first.joined_node_index and not first.reason
    assert first.gain_gpu_hours.lower > reply.gain_gpu_hours_min > 0
    stay = next(option for option in reply.options if option.kind == wire.RESIZE_STAY)
    assert list(stay.placement.node_index) == [0, 1] and stay.gain_gpu_hours.value == 0
    settled = resize(
        {"current_node_index": list(first.placement.node_index), "checkpoint_on_demand": True}
    )
    assert settled.options[0].kind == wire.RESIZE_STAY
    assert all(option.reason for option in settled.options[1:])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gang.sizes": None}, "gang.sizes: unset, expected the sizes"),
        ({"gang.length": None}, "gang.length: unset, expected the remaining time"),
        ({"gang.nodes": 3}, "gang.nodes: 3, expected 2"),
        ({"current_node_index": []}, "current_node_index: empty"),
        ({"current_node_index": [0, 0]}, "current_node_index: a node is listed twice"),
        ({"current_node_index": [8]}, "current_node_index: 8, expected below 8"),
        ({"gang.gpus_per_node": 4}, "gang.gpus_per_node: 4, and member 0 has 2"),
        ({"reshard": 700_000}, "reshard: 700000 s, expected 0 to 604800"),
        ({"checkpoint_age": 700_000}, "checkpoint_age: 700000 s"),
        ({"gain_gpu_hours_min": nan}, "gain_gpu_hours_min: nan"),
        ({"gain_gpu_hours_min": -1.0}, "gain_gpu_hours_min: -1"),
        ({"gang.sizes.allowed_nodes": [2, 2]}, "gang.sizes.allowed_nodes: a size is listed twice"),
        ({"gang.sizes.allowed_nodes": list(range(1, 66))}, "gang.sizes.allowed_nodes: 65 sizes"),
        ({"gang.sizes.min_nodes": 1}, "gang.sizes.allowed_nodes: expected alone"),
        ({"gang.sizes.free_gpu_value": 1.5}, "gang.sizes.free_gpu_value: 1.5"),
        ({"gang.sizes.allowed_nodes": [], "gang.sizes.max_nodes": 4}, "gang.sizes.min_nodes: 0"),
        (
            {"gang.sizes.allowed_nodes": [], "gang.sizes.min_nodes": 5, "gang.sizes.max_nodes": 7,
             "gang.sizes.powers_of_two": True},
            "gang.sizes: no size is 5 to 7 nodes, a power of two",
        ),
    ],
)  # fmt: skip
def test_mistakes_of_sizes_are_named_by_field(fields: dict[str, Any], message: str) -> None:
    """An invalid request of sizes is refused with the correct form."""
    with pytest.raises(InvalidArgument) as refused:
        resize(fields)
    assert message in f"{refused.value.field}: {refused.value.field_message}"
