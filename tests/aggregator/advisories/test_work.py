"""Work on a sick host, known from processes and schedulers, decides the advice and its cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from gangline.aggregator.advisories.advisory import Action, Advisory, Basis
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.aggregator.advisories.engine import AdvisoryEngine
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.advisories.workloads import ScheduledGangs, WorkloadLookup
from gangline.contract.wire import advisory_pb2 as wire
from tests.aggregator.advisories.served import Tables, observe, served
from tests.worlds import World, gpu_of

GPUS = 2

NODE: dict[str, Any] = {"node": "nodes/h1", "reason": "burn-in"}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "nobody": ("out", {"actor": " "}, "actor: the caller's name"),
    "a long actor": ("out", {"actor": "x" * 129}, "actor: 129 characters, at most 128"),
    "no reason": ("out", {"nodes": [{"node": "nodes/h1"}]}, "nodes[0].reason: why it is out"),
    "two lines": ("out", {"nodes": [{**NODE, "reason": "a\nb"}]}, "one line"),
    "no node": ("out", {"nodes": [{**NODE, "node": "h1"}]}, "nodes[0].node: 'h1', expected nodes/NODE"),
    "both": ("out", {"nodes": [NODE], "returned_nodes": ["nodes/h1"]}, "returned_nodes: 'h1' is reported both"),
    "no time": ("out", {"nodes": [{**NODE, "ttl": {"nanos": 5}}]}, "nodes[0].ttl: 5e-09 s, expected 1 s"),
    "for ever": ("out", {"nodes": [{**NODE, "ttl": {"seconds": 604_801}}]}, "to 7 days, or none"),
    "backwards": ("out", {"nodes": [{**NODE, "ttl": {"seconds": -5}}]}, "nodes[0].ttl: -5 s"),
    "many": ("out", {"returned_nodes": ["nodes/a"] * 10_001}, "returned_nodes: 10001, at most 10000"),
    "no name": ("gangs", {"gangs": [{"nodes": ["nodes/h1"]}]}, "gangs[0].workload: its name"),
    "no hosts": ("gangs", {"gangs": [{"workload": "a"}]}, "gangs[0].nodes: 0, expected 1 to 10000"),
    "gpus": (
        "gangs", {"gangs": [{"workload": "a", "nodes": ["nodes/h1"], "gpus_count": 1_000_001}]},
        "gangs[0].gpus_count: 1000001, expected 0 to 1000000",
    ),
    "a cadence": (
        "gangs",
        {"gangs": [{"workload": "a", "nodes": ["nodes/h1"], "checkpoint_interval": {"nanos": 5}}]},
        "gangs[0].checkpoint_interval: 5e-09 s, expected 1 s to 7 days",
    ),
    "a gang twice": (
        "gangs",
        {"gangs": [{"workload": "a", "nodes": ["nodes/h1"]}, {"workload": "a", "nodes": ["nodes/h0"]}]},
        "gangs[1].workload: 'a' is in gangs[0] too, with other values; send it once",
    ),
    "runs and has ended": (
        "gangs",
        {"gangs": [{"workload": "a", "nodes": ["nodes/h1"]}], "ended_workloads": ["b", "a"]},
        "ended_workloads: 'a' is reported both as running and as ended",
    ),
    "out twice": (
        "out", {"nodes": [NODE, {**NODE, "reason": "kernel"}]},
        "nodes[1].node: 'nodes/h1' is in nodes[0] too, with other values; send it once",
    ),
    "many ended": ("gangs", {"ended_workloads": ["a"] * 10_001}, "ended_workloads: 10001, at most"),
}  # fmt: skip


@pytest.fixture
def store() -> Iterator[Tables]:
    with closing(Tables()) as tables:
        yield tables


def asked(store: Tables, query: str) -> list[tuple[Any, ...]]:
    return store.connection.execute(query).fetchall()


def working(world: World, job: str = "123", state: str = "running", **more: str) -> None:
    """Start a process of a Slurm job on each GPU of each host."""
    for host in world.hosts:
        for gpu in range(GPUS):
            process(world, host, gpu, job, state, **more)


def process(world: World, host: Any, gpu: int, job: str, state: str, **more: str) -> None:
    device = gpu_of(host, gpu)
    world.event(
        host, 0, device, "gpu.process", event_id=f"{host.boot_id.hex()}/{device}//{gpu}/{job}",
        attributes={"source": "slurm", "job_id": job, "state": state, **more},
    )  # fmt: skip


def book_of(store: Tables, world: World, **limits: Any) -> AdvisoryEngine:
    gangs = ScheduledGangs()
    observer = Observer(work=WorkloadLookup(world.fleet, gangs))
    limits = {"gather_seconds": 0.0, "cluster_share_max": 1.0, **limits}
    return AdvisoryEngine(
        store, AdvisoryLimits(**limits), observer, world.now_ns, shadow=False, gangs=gangs
    )


def sick(world: World, *hosts: int) -> None:
    """Report permanent data loss (XID 95) on a GPU of each of *hosts*."""
    for host in hosts:
        world.event(world.hosts[host], 95, gpu_of(world.hosts[host], 0))
    world.snapshot = world.run(5)


def advised(book: AdvisoryEngine, world: World) -> list[Advisory]:
    observe(book, world)
    asyncio.run(book.flush())
    return book.feed.open


def test_the_price_is_that_of_the_whole_gang(store: Tables) -> None:
    """A 4-host job died with one host, whose two GPUs alone were in the price."""
    world = World(hosts=5, gpus=GPUS, seconds=10)
    for host in world.hosts[:4]:
        for gpu in range(GPUS):
            process(world, host, gpu, "123", "running")
    sick(world, 0, 4)
    idle, gang = sorted(advised(book_of(store, world), world), key=lambda advisory: advisory.job)
    assert (idle.subject, idle.job) == ("host h4", "")
    assert (gang.subject, gang.job, gang.action) == ("host h0", "123", Action.EVICT_NOW)
    assert idle.action is Action.DRAIN_AFTER_JOB, "no job is known there that would be waited for"
    assert "= 8 GPUs x 8 h" in gang.price.arithmetic and "= 2 GPUs x" in idle.price.arithmetic
    assert gang.price.waiting_gpu_hours == pytest.approx(4 * idle.price.waiting_gpu_hours, rel=0.1)


def test_a_cadence_by_the_jobs_own_word_lets_it_drain_at_a_checkpoint(store: Tables) -> None:
    """An eviction threw an hour of work away, though the job writes a checkpoint every 15 min."""
    world = World(hosts=3, gpus=GPUS, seconds=10)
    working(world, checkpoint_seconds="900")
    sick(world, 1)
    (advisory,) = advised(book_of(store, world), world)
    assert (advisory.action, advisory.checkpoint_seconds) == (Action.DRAIN_AT_CHECKPOINT, 900.0)
    assert "checkpoint every 0.25 h (seen)" in advisory.price.arithmetic


def test_a_job_that_is_dead_loses_nothing_more(store: Tables) -> None:
    """Dead processes held the GPUs; the drain waited for the end of a job that had ended."""
    world = World(hosts=3, gpus=GPUS, seconds=10)
    working(world)
    for gpu in range(GPUS):
        process(world, world.hosts[1], gpu, "123", "dead")
    sick(world, 1)
    (advisory,) = advised(book_of(store, world), world)
    assert (advisory.action, advisory.basis) == (Action.EVICT_NOW, Basis.DEAD_JOB)
    assert "of restart and lost work" not in advisory.price.arithmetic


def test_no_more_hosts_of_one_job_than_may_be(store: Tables) -> None:
    """All three sick hosts of a gang were proposed: no limit knew that they had one job."""
    world = World(hosts=6, gpus=GPUS, seconds=10)
    working(world)
    sick(world, 0, 2, 4)
    book = book_of(store, world, job_hosts_max=2, shared_unplaced_hosts_min=99)
    assert len(advised(book, world)) == 2
    ((message,),) = asked(store, "SELECT message FROM advice_decisions WHERE kind = 'HeldBack'")
    assert message == "limit of 2 hosts of job 123 out of service reached"


def test_after_a_restart_a_host_that_has_not_spoken_works_at_what_it_did(
    store: Tables,
) -> None:
    """At each restart schedulers received the gang's end, and a second later its begin."""
    world = World(hosts=3, gpus=GPUS, seconds=10)
    working(world, checkpoint_seconds="900")
    sick(world, 1)
    (before,) = advised(book_of(store, world), world)
    world.fleet.jobs = type(world.fleet.jobs)()
    world.fleet.first_received_ns[1] = 0
    (after,) = advised(book_of(store, world), world)
    assert (after.job, after.revision) == (before.job, before.revision)
    working(world, checkpoint_seconds="900")
    world.fleet.first_received_ns[1] = world.now_ns
    (after,) = advised(book_of(store, world), world)
    assert after.revision == before.revision


async def test_a_schedulers_word_on_its_gang_counts_most_and_survives_a_restart(
    store: Tables,
) -> None:
    """The scheduler knows 512 GPUs where agents see two hosts, and the checkpoint interval."""
    world = World(hosts=3, gpus=GPUS, seconds=10)
    working(world)
    book = book_of(store, world)
    async with served(book, world) as (stub, _):
        gang = wire.Gang(workload="llm-7", nodes=["nodes/h1", "nodes/elsewhere"], gpus_count=512)
        gang.checkpoint_interval.FromSeconds(1800)
        request = wire.ReportGangsRequest(actor="slurm", gangs=[gang])
        response = await stub.ReportGangs(request)
        assert (response.gangs_count, list(response.unknown_nodes)) == (1, ["nodes/elsewhere"])
    sick(world, 1)
    again = book_of(store, world)
    observe(again, world)
    await again.flush()
    (advisory,) = again.feed.open
    assert (advisory.job, advisory.action) == ("llm-7", Action.DRAIN_AT_CHECKPOINT)
    assert "512 GPUs x" in advisory.price.arithmetic
    async with served(again, world) as (stub, _):
        ended = wire.ReportGangsRequest(actor="slurm", ended_workloads=["llm-7", "unknown"])
        assert (await stub.ReportGangs(ended)).gangs_count == 0
    observe(again, world)
    await again.flush()
    (advisory,) = again.feed.open
    assert (advisory.job, advisory.action) == ("123", Action.EVICT_NOW)
    assert asked(store, "SELECT * FROM gangs") == []


async def test_what_a_scheduler_does_not_say_again_ends(store: Tables) -> None:
    """The gangs of a scheduler that was stopped never ended."""
    world = World(hosts=2, gpus=GPUS, seconds=10)
    book = book_of(store, world)
    async with served(book, world) as (stub, _):
        gang = wire.Gang(workload="llm-7", nodes=["nodes/h1"])
        await stub.ReportGangs(wire.ReportGangsRequest(actor="slurm", gangs=[gang]))
    assert asked(store, "SELECT workload, hosts FROM gangs") == [("llm-7", ["h1"])]
    world.now_ns += 3601 * 10**9
    world.snapshot = world.run(1)
    observe(book, world)
    await book.flush()
    assert asked(store, "SELECT count(*) FROM gangs") == [(0,)]


async def test_what_a_report_may_not_be(store: Tables) -> None:
    """Each wrong field is answered with its correct form, and nothing of the request applies."""
    world = World(hosts=2, gpus=GPUS, seconds=2)
    book = book_of(store, world)
    async with served(book, world) as (stub, _):
        for case, (call, fields, reason) in REFUSED.items():
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                if call == "out":
                    request = wire.ReportUnavailableNodesRequest(**{"actor": "slurm", **fields})
                    await stub.ReportUnavailableNodes(request)
                else:
                    gangs = wire.ReportGangsRequest(**{"actor": "slurm", **fields})
                    await stub.ReportGangs(gangs)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT, case
            assert reason in (raised.value.details() or ""), case
    assert not book.machine.state.absent and not len(book.gangs)


async def test_hosts_that_others_took_out_are_counted_shown_and_end(store: Tables) -> None:
    """A scheduler had drained a host for burn-in, and advice exceeded the limit."""
    world = World(hosts=4, gpus=GPUS, seconds=10)
    book = book_of(store, world, cluster_share_max=0.25)
    async with served(book, world) as (stub, _):
        nodes = [
            wire.UnavailableNode(**NODE),
            wire.UnavailableNode(node="nodes/no", reason="x"),
        ]
        request = wire.ReportUnavailableNodesRequest(actor="slurm", nodes=nodes)
        for _ in range(2):  # reported again: one row of history
            response = await stub.ReportUnavailableNodes(request)
            assert (response.nodes_count, list(response.unknown_nodes)) == (1, ["nodes/no"])
        sick(world, 2)
        observe(book, world)
        await book.flush()
        listed = await stub.ListAdvisories(wire.ListAdvisoriesRequest())
        assert not listed.advisories and listed.unavailable_nodes_count == 1
        (held,) = listed.held_back
        assert (held.node, listed.held_back_count) == ("nodes/h2", 1)
        assert "XID" in held.reason_text and "out of service reached" in held.held_back_text
        elsewhere = await stub.ListAdvisories(wire.ListAdvisoriesRequest(node="nodes/h1"))
        assert not elsewhere.held_back
        (out,) = listed.unavailable_nodes
        assert (out.node, out.reason, out.actor) == ("nodes/h1", "burn-in", "slurm")
        other = wire.ReportUnavailableNodesRequest(actor="other", returned_nodes=["nodes/h1"])
        await stub.ReportUnavailableNodes(other)
        assert book.machine.state.absent  # another caller reported it
    again = book_of(store, world, cluster_share_max=0.25)
    assert again.machine.state.absent == book.machine.state.absent
    world.now_ns += 3601 * 10**9
    world.snapshot = world.run(1)
    observe(again, world)
    observe(again, world)
    await again.flush()
    assert not again.machine.state.absent and len(again.feed.open) == 1
    assert asked(store, "SELECT kind, host FROM advice_decisions ORDER BY number, kind LIMIT 5") == [
        ("Out", "h1"), ("StillOut", ""), ("HeldBack", "h2"), ("Back", "h1"), ("Publish", "h2"),
    ]  # fmt: skip
    assert asked(store, "SELECT count(*) FROM unavailable") == [(0,)]
