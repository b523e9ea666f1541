"""Decisions from the response to the store: in SQL, explained, and replayed to the byte."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from gangline import cli
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.errors import NotFound, ServiceUnavailable
from gangline.aggregator.server import Aggregator
from gangline.aggregator.service import decision as decision_service
from gangline.aggregator.service import decision_log, decision_recorder, shared_snapshot
from gangline.contract.wire import (
    decision_pb2,
    placement_pb2,
    recovery_pb2,
    reservation_pb2,
    score_pb2,
)
from gangline.contract.wire.decision_pb2_grpc import DecisionServiceStub
from gangline.contract.wire.placement_pb2_grpc import PlacementServiceStub
from gangline.contract.wire.recovery_pb2_grpc import RecoveryServiceStub
from gangline.contract.wire.reservation_pb2_grpc import ReservationServiceStub
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from tests.aggregator.conftest import Agent, Lab
from tests.aggregator.decisions.fleets import Node, snapshot_of
from tests.aggregator.service.test_score_process import answer, running
from tests.processes import GUARD_SECONDS

HOSTS = 4
PLAN = placement_pb2.PlanPlacementRequest(
    gang=placement_pb2.GangRequirements(nodes=2), options_max=2, explain=True
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are sent almost at once."""
    monkeypatch.setattr(decision_recorder, "BATCH_SECONDS", 0.01)


async def reporting_hosts(lab: Lab, one: Aggregator, until_end: AsyncExitStack) -> None:
    """Connect hosts that report, and wait until both processes have them in a snapshot."""
    for number in range(HOSTS):
        agent = await until_end.enter_async_context(lab.agent(one, Agent(f"h{number}")))
        await agent.send(agent.agent.message(1))
    known_since = 0
    async with asyncio.timeout(GUARD_SECONDS):
        while True:
            snapshot = one.snapshot_holder.snapshot
            if snapshot is not None and len(snapshot.names) == HOSTS:
                known_since = known_since or snapshot.version
                if one.scores is None or one.scores.version >= known_since:
                    return
            await asyncio.sleep(0.01)


async def explain(port: int, *arguments: str) -> int:
    command = ["explain", "--aggregator", f"127.0.0.1:{port}", *arguments]
    return await asyncio.to_thread(cli.main, command)


@pytest.mark.slow
async def test_by_default_the_port_after_listen_answers_scores_and_plans(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """The port for schedulers was off by default: a user called the judging loop."""
    default = AggregatorConfig().listen_scores
    with caplog.at_level("INFO"):
        async with (
            lab.aggregator(listen_scores=default) as aggregator,
            AsyncExitStack() as stack,
        ):
            assert aggregator.scores is not None
            await reporting_hosts(lab, aggregator, stack)
            assert f"also answered on 127.0.0.1:{aggregator.scores.port}" in caplog.text
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
                for port in (aggregator.port, aggregator.scores.port)
            ]
            for channel in channels:
                scores: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
                assert (
                    await scores.GetNodeDictionary(score_pb2.GetNodeDictionaryRequest())
                ).scores_port == aggregator.scores.port
            placement: Any = PlacementServiceStub(channels[1])  # type: ignore[no-untyped-call]
            plan = await placement.PlanPlacement(PLAN)
            assert plan.options
            recovery: Any = RecoveryServiceStub(channels[1])  # type: ignore[no-untyped-call]
            lost = recovery_pb2.PlanRecoveryRequest(
                current_node_index=[0, 1], failed_node_index=[1]
            )
            assert (await recovery.PlanRecovery(lost)).options
            # Stores and reservations have one writer, the aggregator.
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await recovery.ReportRecovery(recovery_pb2.ReportRecoveryRequest())
            assert "listen" in (refused.value.details() or "")
            reservation: Any = ReservationServiceStub(channels[1])  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await reservation.Reserve(reservation_pb2.ReserveRequest())
            assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.slow
def test_a_decision_of_either_port_is_stored_and_replayed(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """A week later the reason of a placement was unknown: response and snapshot were gone."""

    async def scenario() -> dict[str, Any]:
        replies: dict[str, Any] = {}
        async with (
            lab.aggregator(listen_scores="127.0.0.1:0") as aggregator,
            AsyncExitStack() as stack,
        ):
            await reporting_hosts(lab, aggregator, stack)
            assert aggregator.scores is not None
            for number, (name, port) in enumerate(
                (("listen", aggregator.port), ("scores", aggregator.scores.port)), 1
            ):
                channel = await stack.enter_async_context(
                    grpc.aio.insecure_channel(f"127.0.0.1:{port}")
                )
                placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
                recovery: Any = RecoveryServiceStub(channel)  # type: ignore[no-untyped-call]
                PLAN.request_id = name
                replies[name] = await placement.PlanPlacement(PLAN)
                replies[f"{name} evaluated"] = await placement.EvaluatePlacement(
                    placement_pb2.EvaluatePlacementRequest(node_index=[0, number])
                )
                resize = placement_pb2.PlanResizeRequest(current_node_index=[0, 1])
                resize.gang.length.FromSeconds(number * 3600)
                resize.gang.sizes.max_nodes, resize.gang.sizes.min_nodes = 4, 1
                replies[f"{name} resized"] = await placement.PlanResize(resize)
                failed = recovery_pb2.PlanRecoveryRequest(
                    current_node_index=[0, 1], failed_node_index=[1], incident=name
                )
                replies[f"{name} recovered"] = await recovery.PlanRecovery(failed)
            for name, reply in replies.items():
                assert (
                    await explain(aggregator.port, "decision", reply.decision_id, "--replay")
                    == cli.OK
                ), name
                assert "replay: byte-identical" in capsys.readouterr().out
        return replies

    replies = asyncio.run(scenario())
    rows = lab.rows("SELECT decision, kind, nodes, replayable, caller FROM ops.decisions")
    by_id = {row[0]: row[1:] for row in rows}
    assert by_id.keys() == {reply.decision_id for reply in replies.values()}
    assert by_id[replies["scores"].decision_id] == (
        "placement",
        2,
        True,
        "admin 'local' (by local)",
    )
    assert sorted(row[1] for row in rows) == sorted(
        2 * ["placement", "evaluation", "resize", "recovery"]
    )
    ((price,),) = lab.rows(
        f"SELECT price_gpu_hours FROM ops.decisions WHERE decision = '{replies['listen'].decision_id}'"
    )
    assert price == replies["listen"].options[0].price.total_gpu_hours.value


async def test_a_decision_is_explained_with_who_took_which_option(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reservation names its plan and option; both SQL and the command show them."""
    async with lab.aggregator() as aggregator, AsyncExitStack() as stack:
        await reporting_hosts(lab, aggregator, stack)
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}")
        )
        placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
        reservations: Any = ReservationServiceStub(channel)  # type: ignore[no-untyped-call]
        plan = await placement.PlanPlacement(PLAN)
        request = reservation_pb2.ReserveRequest(
            owner="slurm", node_index=plan.options[0].node_index, decision_id=plan.decision_id, option=1
        )  # fmt: skip
        reserved = (await reservations.Reserve(request)).reservation
        assert reserved.option == 1
        assert await explain(aggregator.port, "decision", plan.decision_id, "--replay") == cli.OK
        text = capsys.readouterr().out
        assert f"placement {plan.decision_id}" in text and "request: 2 nodes" in text
        assert f"chosen: option 1, by slurm: {reserved.name} of 2 nodes" in text
        assert "slowest member" in text and "replay: byte-identical" in text
        assert (
            await explain(aggregator.port, "decision", plan.decision_id, "--replay", "--json")
            == cli.OK
        )
        fields = json.loads(capsys.readouterr().out)
        assert fields["replay"]["identical"] and fields["choices"][0]["option"] == 1
        many = placement_pb2.PlanPlacementRequest(gang=placement_pb2.GangRequirements(nodes=9))
        blocked = await placement.PlanPlacement(many)
        assert await explain(aggregator.port, "decision", blocked.decision_id, "--replay") == cli.OK
        assert "gang.nodes: requested: 9 nodes" in capsys.readouterr().out
    rows = lab.rows("SELECT decision, chosen_option, chosen_by, blockers FROM ops.decisions")
    by_id = {row[0]: row[1:] for row in rows}
    assert by_id[plan.decision_id] == (1, "slurm", [])
    option, owner, (message, *_) = by_id[blocked.decision_id]
    assert option is None and owner is None and message.startswith("gang.nodes: requested: 9 nodes")


async def test_ids_that_no_decision_has(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped id and a deleted decision have different errors."""
    async with lab.aggregator() as aggregator:
        assert await explain(aggregator.port, "decision", "d12") == cli.FAILED
        assert "'d12', expected a letter and 20 hexadecimal digits" in capsys.readouterr().err
        assert await explain(aggregator.port, "decision", f"d{'0' * 20}") == cli.NOT_FOUND
        error = capsys.readouterr().err
        assert f"no decision 'd{'0' * 20}' is stored" in error and "decisions_days" in error
    for arguments in (["h1", "d12"], ["h1", "--replay"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(["explain", *arguments])
        assert ended.value.code == cli.USAGE and "decision ID" in capsys.readouterr().err


async def test_a_decision_whose_inputs_are_gone_says_so(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without stored inputs the response remains, and `--replay` fails with the reason."""
    async with (
        lab.aggregator(decision_inputs_bytes_max=0) as aggregator,
        AsyncExitStack() as stack,
    ):
        await reporting_hosts(lab, aggregator, stack)
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}")
        )
        placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
        plan = await placement.PlanPlacement(PLAN)
        assert await explain(aggregator.port, "decision", plan.decision_id) == cli.OK
        text = capsys.readouterr().out
        assert "not replayable: its inputs are no longer stored" in text
        assert "2 nodes in rank order" in text and "  h" in text
        assert (
            await explain(aggregator.port, "decision", plan.decision_id, "--replay") == cli.FAILED
        )
        assert "replay: not possible" in capsys.readouterr().out
    assert lab.rows("SELECT replayable FROM ops.decisions") == [(False,)]


async def test_what_is_too_much_is_dropped_and_counted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler in a tight loop gets its responses: records are dropped instead."""
    monkeypatch.setattr(decision_recorder, "DECISIONS_WAITING_MAX", 3)
    monkeypatch.setattr(decision_recorder, "BATCH_SECONDS", 60.0)
    async with lab.aggregator() as aggregator, AsyncExitStack() as stack:
        await reporting_hosts(lab, aggregator, stack)
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}")
        )
        placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
        for number in range(8):
            request = placement_pb2.PlanPlacementRequest(
                gang=placement_pb2.GangRequirements(nodes=1), request_id=str(number)
            )
            assert (await placement.PlanPlacement(request)).options
        await aggregator.decisions.settle()
        assert aggregator.store.dropped_decisions == 5
        monkeypatch.setattr(decision_log, "BATCHES_BYTES_MAX", 10)
        aggregator.decisions.add(b"x" * 11, 4)
        assert aggregator.store.dropped_decisions == 9
    assert lab.rows("SELECT count(*) FROM decisions") == [(3,)]


async def test_a_lookup_names_the_inputs_only_where_they_are_wanted(lab: Lab) -> None:
    """Inputs of a large fleet are some hundred kB: a caller may leave them out."""
    async with lab.aggregator() as aggregator, AsyncExitStack() as stack:
        await reporting_hosts(lab, aggregator, stack)
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}")
        )
        placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
        decisions: Any = DecisionServiceStub(channel)  # type: ignore[no-untyped-call]
        plan = await placement.PlanPlacement(PLAN)
        request = decision_pb2.GetDecisionRequest(decision_id=plan.decision_id)
        with_inputs = await decisions.GetDecision(request)
        request.without_inputs = True
        short = await decisions.GetDecision(request)
        assert with_inputs.inputs and not short.inputs
        assert short.answer == with_inputs.answer and short.kind == decision_pb2.DECISION_PLACEMENT
        assert list(short.hosts) and not short.not_replayable


@dataclass
class ReceivedBatches:
    """Replaces the log, and collects the batches of the score process."""

    received: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    batches: decision_log.ExpectedBatches = field(default_factory=decision_log.ExpectedBatches)
    dropped: int = 0

    def add(self, encoded: Any, count: int) -> None:
        self.received.append((count, decision_recorder.decoded_batch(encoded)))

    def count_dropped(self, count: int) -> None:
        self.dropped += count


async def test_the_score_process_sends_its_last_decisions_before_it_ends(tmp_path: Path) -> None:
    """A restart of the aggregator must not lose the last decisions, nor wait long for them."""
    snapshot = snapshot_of([Node(f"h{number}") for number in range(4)])
    received = ReceivedBatches()
    async with running(tmp_path, snapshot) as score_process:
        score_process.decisions = received  # type: ignore[assignment]
        await answer(score_process)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{score_process.port}") as channel:
            placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
            reply = await placement.PlanPlacement(PLAN)
    ((count, (records, parts)),) = received.received
    assert count == 1 and received.dropped == 0
    assert records[0].decision == reply.decision_id and set(records[0].inputs) == parts.keys()


def test_a_file_that_the_score_process_may_still_change_is_not_read() -> None:
    """A file that is mapped in place must be sealed."""
    descriptor = os.memfd_create("open", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, b"x")
    with pytest.raises(ValueError, match="expected a sealed one"):
        shared_snapshot.mapped_file(descriptor, 10)
    os.close(descriptor)
    descriptor = shared_snapshot.sealed_file(b"x" * 11)
    with pytest.raises(ValueError, match="11 bytes, expected a sealed one of 1 to 10"):
        shared_snapshot.mapped_file(descriptor, 10)
    os.close(descriptor)


class CommittingWriter:
    """Replaces the store: commits end at once."""

    failing = ""

    def run_on_writer_thread(self, work: Any) -> None:
        work(None)


@pytest.mark.parametrize("failing", ["", "the disk is full"])
def test_a_decision_that_is_not_stored_yet_is_waited_for(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision in the next commit was not found: "no decision is stored", for a moment."""
    settled: list[float] = []

    class Log:
        async def settle(self, seconds_max: float) -> None:
            settled.append(seconds_max)

    store = CommittingWriter()
    service = decision_service.DecisionService(Log(), store)  # type: ignore[arg-type]
    row = object()
    monkeypatch.setattr(service, "_read", lambda _: row if len(settled) >= 2 else None)
    monkeypatch.setattr(decision_service, "_message", lambda found, **_: found)
    monkeypatch.setattr(decision_service, "check_decision_id", lambda _, name: name)
    request: Any = decision_pb2.GetDecisionRequest(decision_id="d")
    assert asyncio.run(service.GetDecision(request, None)) is row
    assert settled == [decision_service.SETTLE_SECONDS_MAX] * 2
    monkeypatch.setattr(service, "_read", lambda _: None)
    store.failing = failing
    error, message = (ServiceUnavailable, failing) if failing else (NotFound, "is stored")
    with pytest.raises(error, match=message):
        asyncio.run(service.GetDecision(request, None))


async def test_a_batch_on_its_way_is_waited_for_though_an_earlier_one_arrives() -> None:
    """A batch that began while another was sent did not count as expected: its decisions were "not stored"."""
    batches = decision_log.ExpectedBatches()
    await batches.arrive(GUARD_SECONDS)  # nothing has begun
    batches.begin(1)
    batches.begin(2)
    waiting = asyncio.create_task(batches.arrive(GUARD_SECONDS))
    batches.receive(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    batches.begin(3)  # begun after the call: not waited for
    batches.receive(2)
    await waiting
    # The process ended: its batches never arrive, and the next process counts from 1.
    waiting = asyncio.create_task(batches.arrive(GUARD_SECONDS))
    await asyncio.sleep(0)
    batches.give_up()
    await waiting
    batches.begin(1)
    waiting = asyncio.create_task(batches.arrive(GUARD_SECONDS))
    await asyncio.sleep(0)
    assert not waiting.done()
    batches.receive(1)
    await waiting
    batches.begin(2)
    await batches.arrive(0.0)  # returns although the batch has not arrived


def test_the_recorder_numbers_its_batches() -> None:
    """The aggregator learns of each batch before its first decision is answered."""
    begun: list[int] = []
    recorder = decision_recorder.DecisionRecorder(lambda *_: True, lambda: 0, begun.append)
    snapshot = SimpleNamespace(dictionary_version=1, version=1)
    none: Any = None
    table: Any = SimpleNamespace(snapshot=snapshot, excluded=none, neighbors={})
    for _ in range(2):
        recorder.record(1, none, none, table)
    assert begun == [1] and recorder.batch_number == 0


@pytest.mark.slow
async def test_a_plan_is_explained_the_moment_it_is_returned(lab: Lab) -> None:
    """`gangline explain decision ID` failed right after `gangline plan`: "no decision is stored"."""
    async with (
        lab.aggregator(listen_scores="127.0.0.1:0") as aggregator,
        AsyncExitStack() as stack,
    ):
        await reporting_hosts(lab, aggregator, stack)
        assert aggregator.scores is not None
        ports = aggregator.port, aggregator.scores.port
        by_judging, by_score_process = [
            await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
            for port in ports
        ]
        decisions: Any = DecisionServiceStub(by_judging)  # type: ignore[no-untyped-call]

        async def plan_and_explain(channel: Any, request_id: str) -> None:
            placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
            gang = placement_pb2.GangRequirements(nodes=1)
            request = placement_pb2.PlanPlacementRequest(gang=gang, request_id=request_id)
            plan = await placement.PlanPlacement(request)
            wanted = decision_pb2.GetDecisionRequest(decision_id=plan.decision_id)
            assert (await decisions.GetDecision(wanted)).decision_id == plan.decision_id

        async def scheduler(number: int) -> None:
            for turn in range(20):
                channel = by_judging if number == 0 else by_score_process
                await plan_and_explain(channel, f"{number}-{turn}")

        async with asyncio.timeout(GUARD_SECONDS):
            await asyncio.gather(*(scheduler(number) for number in range(4)))
