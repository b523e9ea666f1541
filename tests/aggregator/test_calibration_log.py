"""Reports close the loop: they are stored once, move the prices of the next plans, and are there after a restart."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import grpc
import pytest

from gangline import cli
from gangline.aggregator import calibration_log
from gangline.aggregator.calibration_log import CalibrationLog, RecoveryRecord, domains_of
from gangline.aggregator.commands.recover import REPORT_BYTES_MAX, report_of
from gangline.aggregator.decisions.calibration import ThroughputReport, reported_factors
from gangline.aggregator.decisions.requirements import PRICED_TIERS
from gangline.aggregator.errors import InvalidArgument, ServiceUnavailable
from gangline.aggregator.principal import LOCAL, set_principal
from gangline.aggregator.service.outcome import check_outcome, placement_of
from gangline.aggregator.service.placement import PlacementService
from gangline.aggregator.service.recovery_report import RecoveryReportService, record_of
from gangline.contract.client.connection import CommandError
from gangline.contract.wire import outcome_pb2, placement_pb2, recovery_pb2
from gangline.contract.wire.outcome_pb2_grpc import OutcomeServiceStub
from gangline.contract.wire.placement_pb2_grpc import PlacementServiceStub
from gangline.contract.wire.recovery_pb2_grpc import RecoveryServiceStub
from tests.aggregator.advisories.served import Tables
from tests.aggregator.decisions.test_factor_calibration import NOW_NS, recovery
from tests.aggregator.process import Process
from tests.aggregator.service.test_placement_service import SnapshotStandIn, placed_world
from tests.aggregator.service.test_score_process import answer, running
from tests.processes import GUARD_SECONDS

NOW_SECONDS = NOW_NS // 10**9

BAD_RECOVERIES: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"incident": ""}, "incident: empty, expected your name for it, of 1 to 128"),
    "a long name": ({"incident": "x" * 129}, "incident: 129 characters, at most 128"),
    "a decision": ({"decision_id": "x" * 129}, "decision_id: 129 characters"),
    "a workload": ({"workload": "a\nb"}, "workload: one line of printable"),
    "a note": ({"note": "x" * 201}, "note: 201 characters, at most 200"),
    "a kind": ({"kind": 9}, "kind: 9, expected a RecoveryKind, 1 to 7"),
    "a loss": ({"lost_gpu_hours": -1.0}, "lost_gpu_hours: -1, expected 0 to"),
    "no number": ({"lost_gpu_hours": float("nan")}, "lost_gpu_hours: nan, expected 0 to"),
    "an order": (
        {"decide_time": NOW_SECONDS - 7200},
        "decide_time: 4,440.0 s before detect_time, expected at or after it",
    ),
    "an order across a gap": (
        {"detect_time": None, "decide_time": None, "act_time": NOW_SECONDS - 7200},
        "act_time: 3,240.0 s before fault_time",
    ),
    "the future": (
        {"resume_time": NOW_SECONDS + 7200},
        "resume_time: 2.0 h ahead of the aggregator's clock, expected a time in the past",
    ),
    "more than a year": (
        {"fault_time": NOW_SECONDS - 400 * 86_400},
        "detect_time: 400 days after fault_time, expected at most 366",
    ),
    "before 1970": ({"fault_time": -5}, "fault_time: expected a time from 1970"),
}
BAD_OUTCOMES: dict[str, tuple[dict[str, Any], str]] = {
    "a decision": ({"decision_id": "x" * 129}, "outcomes[3].decision_id: 129 characters"),
    "an option": ({"option": 9}, "outcomes[3].option: 9, expected 0 to 8"),
    "a throughput": ({"throughput": -1.0}, "outcomes[3].throughput: -1, expected 0 to 1e+15"),
    "no number": ({"throughput": float("inf")}, "outcomes[3].throughput: inf, expected"),
    "no workload": ({"workload": ""}, "outcomes[3].workload: empty, expected the name whose"),
}


def report(
    incident_name: str, now_seconds: int, **changes: Any
) -> recovery_pb2.ReportRecoveryRequest:
    """Return a recovery by free nodes: 20 min to detect, 5 to decide, 30 to act, 10 to resume."""
    request = recovery_pb2.ReportRecoveryRequest(
        incident=incident_name, decision_id="r1", kind=recovery_pb2.RECOVERY_FREE_NODE, success=True,
        lost_gpu_hours=12.0, workload="train", note="GPU fell off the bus",
    )  # fmt: skip
    ended = now_seconds - 60
    for name, minutes in (("fault_time", 65), ("detect_time", 45), ("decide_time", 40), ("act_time", 10), ("resume_time", 0)):  # fmt: skip
        getattr(request, name).FromSeconds(ended - 60 * minutes)
    for name, value in changes.items():
        if name.endswith("_time"):
            request.ClearField(name)
            if value is not None:
                getattr(request, name).FromSeconds(value)
        else:
            setattr(request, name, value)
    return request


def outcome(number: int, nodes: list[str], throughput: float, now_seconds: int) -> Any:
    result = outcome_pb2.Outcome(
        outcome_id=f"run-{number}", workload="llama", nodes=[f"nodes/{name}" for name in nodes],
        decision_id="d1", option=1, throughput=throughput,
    )  # fmt: skip
    result.start_time.FromSeconds(now_seconds - 7200)
    result.end_time.FromSeconds(now_seconds - 60)
    result.queue_time.FromSeconds(90)
    return result


class Caller:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.recovery: Any = RecoveryServiceStub(channel)  # type: ignore[no-untyped-call]
        self.outcome: Any = OutcomeServiceStub(channel)  # type: ignore[no-untyped-call]
        self.placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]

    async def planned(self) -> recovery_pb2.RecoveryOption:
        """Return the price of waiting for the repair of one of two nodes."""
        request = recovery_pb2.PlanRecoveryRequest(
            gang=placement_pb2.GangRequirements(gpus_per_node=1),
            current_node_index=[0, 1], failed_node_index=[1], explain=True,
        )  # fmt: skip
        reply = await self.recovery.PlanRecovery(request, timeout=GUARD_SECONDS)
        waits = recovery_pb2.RECOVERY_WAIT_FOR_REPAIR
        option: recovery_pb2.RecoveryOption = next(
            option for option in reply.options if option.kind == waits
        )
        return option

    async def size_source(self) -> Any:
        """Return the source of the scaling of a gang of one or two nodes."""
        gang = placement_pb2.GangRequirements(
            gpus_per_node=1, workload_name="llama", sizes=placement_pb2.GangSizes(min_nodes=1, max_nodes=2)
        )  # fmt: skip
        reply = await self.placement.PlanPlacement(
            placement_pb2.PlanPlacementRequest(gang=gang), timeout=GUARD_SECONDS
        )
        return reply.sizes[0].scaling_efficiency.source


@pytest.mark.slow
def test_reports_move_prices_and_survive_a_restart(lab: Any, make_agent: Any, until: Any) -> None:
    """The loop as a scheduler closes it: from assumed to reported, once each, and the same after a restart."""

    async def life(*, is_first: bool) -> tuple[Any, Any]:
        async with AsyncExitStack() as stack:
            aggregator = await stack.enter_async_context(lab.aggregator())
            for host, run_id in (("a", b"r" * 16), ("b", b"s" * 16)):
                agent = make_agent(host=host, run_id=run_id)
                connection = await stack.enter_async_context(lab.agent(aggregator, agent))
                await connection.send(agent.message(1 if is_first else 2))
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}")
            caller = Caller(await stack.enter_async_context(channel))
            held = aggregator.snapshot_holder
            await until(lambda: held.snapshot and len(held.snapshot.names) == 2)
            if is_first:
                assert (
                    await caller.planned()
                ).detect_hours.source == placement_pb2.ESTIMATE_ASSUMED
                assert await caller.size_source() == placement_pb2.ESTIMATE_ASSUMED
            now = held.snapshot.computed_ns // 10**9
            for number in range(3):
                request = report(f"i{number}", now, validate_only=True)
                assert (await caller.recovery.ReportRecovery(request)).known is not is_first
                request.validate_only = False
                assert (await caller.recovery.ReportRecovery(request)).known is not is_first
                assert (await caller.recovery.ReportRecovery(request)).known
            runs = [outcome(1, ["a"], 100.0, now), outcome(2, ["a", "b"], 190.0, now)]
            reply = await caller.outcome.ReportOutcomes(
                outcome_pb2.ReportOutcomesRequest(outcomes=runs)
            )
            assert reply.accepted_count == (2 if is_first else 0)
            await until(lambda: held.snapshot.reported_factors.throughputs.workloads)
            await until(lambda: held.snapshot.reported_factors.get("detect"))
            file = lab.folder.parent / "report.json"
            file.write_text(json.dumps({"incident": "i1", "success": True}))
            server = ["--aggregator", f"127.0.0.1:{aggregator.port}", "--report", str(file)]
            assert await asyncio.to_thread(cli.main, ["recover", *server]) == cli.OK
            return await caller.planned(), await caller.size_source()

    for is_first in (True, False):
        option, sizes = asyncio.run(life(is_first=is_first))
        assert option.detect_hours.source == placement_pb2.ESTIMATE_REPORTED
        assert option.detect_hours.evidence.endswith("(3 reports)")
        assert 2.0 < 60.0 * option.detect_hours.value < 20.0
        assert option.act_hours.source == placement_pb2.ESTIMATE_ASSUMED  # no restart was reported
        assert sizes == placement_pb2.ESTIMATE_REPORTED
    assert lab.rows("SELECT count(*), sum(lost_gpu_hours) FROM recoveries") == [(3, 36.0)]
    reports_by_factor = dict(lab.rows("SELECT factor, reports FROM ops.calibration WHERE source = 'reported' AND workload = ''"))  # fmt: skip
    assert reports_by_factor == dict.fromkeys(
        ("detect", "decide", "restart", "act.free_node", "resume.storage"), 3
    )
    sizes = lab.rows(
        "SELECT nodes, value FROM ops.calibration WHERE workload = 'llama' ORDER BY nodes"
    )
    assert sizes == [(1, 100.0), (2, 190.0)]
    ((seconds, spanned, plan),) = lab.rows("SELECT queue_seconds, domains_spanned, decision FROM ops.outcomes WHERE outcome = 'run-2'")  # fmt: skip
    assert (seconds, spanned, plan) == (90.0, {}, "d1")  # no place was declared
    ((stopped, kind),) = lab.rows("SELECT DISTINCT stopped_seconds, kind FROM ops.recoveries")
    assert (stopped, kind) == (3900.0, "free_node")


@pytest.mark.slow
def test_an_answered_report_outlives_kill_9(lab: Any) -> None:
    """The aggregator is killed right after its answer: the report is stored, and counts once."""

    async def life(number: int) -> list[bool]:
        process = Process(lab.folder)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{process.port}") as channel:
                caller = Caller(channel)
                requests = [report(f"i{index}", int(time.time())) for index in range(number)]
                calls = [
                    caller.recovery.ReportRecovery(request, wait_for_ready=True)
                    for request in requests
                ]
                return [reply.known for reply in await asyncio.gather(*calls)]
        finally:
            process.end(signal.SIGKILL)

    assert asyncio.run(life(20)) == [False] * 20
    assert asyncio.run(life(21)) == [True] * 20 + [False]
    with duckdb.connect(str(lab.folder / "gangline.duckdb")) as connection:
        counts = connection.execute("SELECT count(*), count(DISTINCT incident) FROM recoveries")
        assert counts.fetchall() == [(21, 21)]


@pytest.mark.slow
def test_the_score_process_plans_with_what_was_reported_and_takes_no_reports(
    tmp_path: Path,
) -> None:
    """A scheduler that asks the fast port gets the same prices; its reports go where they can be stored."""
    factors = reported_factors([recovery(index) for index in range(3)], [], NOW_NS, 90.0)
    snapshot = replace(placed_world().run(20), reported_factors=factors)

    async def scenario() -> None:
        async with running(tmp_path, snapshot) as aggregator:
            await answer(aggregator)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}") as channel:
                caller = Caller(channel)
                assert (
                    await caller.planned()
                ).detect_hours.source == placement_pb2.ESTIMATE_REPORTED
                with pytest.raises(grpc.aio.AioRpcError, match="`listen` address") as refused:
                    await caller.recovery.ReportRecovery(report("i1", NOW_SECONDS))
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    asyncio.run(scenario())


def test_plans_of_several_sizes_take_the_throughput_that_was_reported() -> None:
    """A scheduler names the workload and no throughputs; where it has its own, these count."""
    runs = [
        ThroughputReport(
            f"o{size}", "slurm", NOW_NS, "llama", size, 100.0 * size**0.5, (0,) * 5, 0.2
        )
        for size in (1, 2, 4)
    ]
    factors = reported_factors([], runs, NOW_NS, 90.0)
    snapshot = replace(placed_world().run(20), reported_factors=factors)
    service = PlacementService(SnapshotStandIn(snapshot))
    gang = placement_pb2.GangRequirements(
        gpus_per_node=1, workload_name="llama", sizes=placement_pb2.GangSizes(allowed_nodes=[2, 4])
    )
    gang.length.FromSeconds(20 * 3600)

    async def sizes(**fields: Any) -> list[tuple[float, Any]]:
        request = placement_pb2.PlanPlacementRequest(gang=gang)
        request.gang.MergeFrom(placement_pb2.GangRequirements(**fields))
        reply = await service.PlanPlacement(request, None)
        both = [size.scaling_efficiency for size in reply.sizes]
        return [(round(factor.value, 3), factor.source) for factor in both]

    async def resized() -> Any:
        request = placement_pb2.PlanResizeRequest(
            gang=gang, current_node_index=[0, 1], explain=True
        )
        reply = await service.PlanResize(request, None)
        parts = reply.options[0].placement.price.parts
        return next(part.gpu_hours for part in parts if part.name == "scaling")

    reported = [(1.0, placement_pb2.ESTIMATE_REPORTED), (0.707, placement_pb2.ESTIMATE_REPORTED)]
    assert asyncio.run(sizes()) == reported
    assert asyncio.run(resized()).source == placement_pb2.ESTIMATE_REPORTED
    points = [placement_pb2.ThroughputPoint(nodes=size, throughput=size) for size in (2, 4)]
    assert asyncio.run(sizes(throughputs=points))[1] == (1.0, placement_pb2.ESTIMATE_DECLARED)
    gang.workload_name = "other"
    assert asyncio.run(sizes())[1][1] == placement_pb2.ESTIMATE_ASSUMED
    gang.workload_name = "x" * 257
    with pytest.raises(InvalidArgument, match=r"gang.workload_name: 257 characters, at most 256"):
        asyncio.run(sizes())


def test_the_domains_of_an_outcome_are_those_of_its_nodes() -> None:
    """A scheduler names nodes; the aggregator knows their leaves, unless a node has left the fleet."""
    snapshot = placed_world().run(20)
    placement = placement_of(snapshot, [0, 1], "train")
    assert placement.domains["spine"] == 1.0 and placement.domains["leaf"] >= 1.0
    everyone = placement_of(snapshot, list(range(8)), "train").domains
    leaves = {name: len(set(names)) for name, names in everyone_domains(snapshot).items()}
    assert everyone == {name: float(count) for name, count in leaves.items()}
    assert placement_of(snapshot, [0, -1], "train").domains == {}
    runs = ThroughputReport("o", "slurm", NOW_NS, "w", 8, 1.0, domains_of(everyone), 0.2)
    assert [domain > 0 for domain in runs.domains] == [
        tier.name.lower() in everyone for tier in PRICED_TIERS
    ]


def everyone_domains(snapshot: Any) -> dict[str, list[int]]:
    """Return per tier the domain of each node, for tiers where all nodes are known."""
    ids = {
        tier.name.lower(): snapshot.facts.domains.ids[tier.row].tolist() for tier in PRICED_TIERS
    }
    return {name: id_ for name, id_ in ids.items() if min(id_) >= 0}


@pytest.mark.parametrize("what", BAD_RECOVERIES)
def test_a_bad_report_names_its_field(what: str) -> None:
    """A scheduler's author reads which field is wrong, and what would be right; nothing of it is stored."""
    changes, message = BAD_RECOVERIES[what]
    with pytest.raises(InvalidArgument) as refused:
        record_of(report("i1", NOW_SECONDS, **changes), "slurm", NOW_NS)
    assert str(refused.value).startswith(message)


def test_times_are_optional() -> None:
    """A scheduler that knows only the time of resumption reports only that time; without any time
    it reports the success.
    """
    unset = dict.fromkeys(("fault_time", "detect_time", "decide_time", "act_time", "resume_time"))
    assert record_of(report("i1", NOW_SECONDS, **unset), "slurm", NOW_NS).report.hours() == {}
    unset.pop("resume_time")
    assert record_of(report("i1", NOW_SECONDS, **unset), "slurm", NOW_NS).report.hours() == {}


@pytest.mark.parametrize("what", BAD_OUTCOMES)
def test_a_bad_placement_outcome_names_its_field(what: str) -> None:
    changes, message = BAD_OUTCOMES[what]
    reported = outcome(1, ["a"], 5.0, NOW_SECONDS)
    for name, value in changes.items():
        setattr(reported, name, value)
    with pytest.raises(InvalidArgument) as refused:
        check_outcome(3, reported, NOW_NS)
    assert str(refused.value).startswith(message)
    reported = outcome(1, ["a"], 5.0, NOW_SECONDS)
    reported.queue_time.FromSeconds(-1)
    with pytest.raises(InvalidArgument, match=r"outcomes\[3\].queue_time: -1 s, expected 0 to"):
        check_outcome(3, reported, NOW_NS)


def test_a_report_at_the_prompt_is_json_of_limited_size(tmp_path: Path) -> None:
    """A hook of a scheduler writes JSON; a typo in a field's name is an error and not a report without it."""
    file = tmp_path / "report.json"
    file.write_text(
        '{"incident": "i1", "kind": "RECOVERY_SHRINK", "fault_time": "2026-11-24T02:10:00Z"}'
    )
    parsed = report_of(str(file))
    assert (parsed.incident, parsed.kind) == ("i1", recovery_pb2.RECOVERY_SHRINK)
    assert parsed.fault_time.seconds > 1_700_000_000
    bad = {
        '{"incidnt": "i1"}': 'no field named "incidnt"',
        "no json": "expected JSON of ReportRecoveryRequest",
        " " * (REPORT_BYTES_MAX + 1): "more than 65536 bytes",
        '{"fault_time": "yesterday"}': "expected JSON of ReportRecoveryRequest",
    }
    for text, message in bad.items():
        file.write_text(text)
        with pytest.raises(CommandError, match=message):
            report_of(str(file))
    with pytest.raises(CommandError, match="absent: No such file"):
        report_of(str(tmp_path / "absent"))


def record(number: int) -> RecoveryRecord:
    return RecoveryRecord(recovery(number), "", "", 0.0, "")


class FullDisk(Tables):
    is_full = True

    def in_transaction(self, work: Any, *, ahead: bool = False) -> Any:
        if self.is_full:
            raise OSError("no space left on device")
        return super().in_transaction(work, ahead=ahead)


def test_a_report_that_the_disk_refuses_counts_once_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The report was refused, the scheduler reported again, and the recovery counted twice."""
    monkeypatch.setattr(calibration_log, "WAITING_MAX", 2)

    async def scenario() -> None:
        store = FullDisk()
        log = CalibrationLog(store, NOW_NS)
        service = RecoveryReportService(
            PlacementService(SnapshotStandIn(None)), log, lambda: NOW_NS
        )
        set_principal(LOCAL)
        for number in (1, 1, 2):
            with pytest.raises(ServiceUnavailable, match="no space left"):
                await service.ReportRecovery(report(f"i{number}", NOW_SECONDS), None)
        with pytest.raises(ServiceUnavailable, match="2 recoveries wait for the disk"):
            await service.ReportRecovery(report("i3", NOW_SECONDS), None)
        store.is_full = False
        assert (await service.ReportRecovery(report("i1", NOW_SECONDS), None)).known
        rows = store.connection.execute("SELECT incident FROM recoveries ORDER BY 1").fetchall()
        assert rows == [("i1",), ("i2",)]
        log.step(NOW_NS)
        await log.close()
        assert store.connection.execute("SELECT count(*) FROM calibration").fetchall() == [(16,)]
        again = CalibrationLog(store, NOW_NS)
        assert again.factors.factors == log.factors.factors and again.is_known("scheduler", "i2")
        assert not again.is_known("scheduler", "i3")

    asyncio.run(scenario())


def test_throughputs_are_read_back_with_their_domains() -> None:
    """After a restart the costs of crossing are what they were, and runs without a throughput have no part."""
    store = Tables()
    store.connection.execute(
        "INSERT INTO outcomes BY NAME SELECT make_timestamp($1) AS time, 'o' || i AS outcome, 'slurm' AS reporter, "
        "'train' AS job, ['a', 'b'] AS hosts, CASE WHEN i < 40 THEN 100 - 10 * (i % 2) END AS throughput, "
        "MAP {'leaf': 1.0 + i % 2, 'spine': 1.0} AS domains_spanned, 0.4 AS communication_share FROM range(50) AS t(i)",
        [NOW_NS // 1000],
    )
    factors = CalibrationLog(store, NOW_NS).factors
    assert set(factors.factors) == {"topology.leaf"}
    cost = factors.factors["topology.leaf"]  # 100 / 90 - 1 of a share of 0.4, of which half crosses
    assert cost.value == pytest.approx(0.556, abs=0.05) and cost.reports == 40
    assert factors.throughputs.points("train") == [(2, 95.0)]


def test_reports_beyond_the_limits_push_out_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded; older reports are in the store."""
    for name in ("RECOVERIES_MAX", "THROUGHPUTS_MAX", "INCIDENTS_KNOWN_MAX"):
        monkeypatch.setattr(calibration_log, name, 3)

    async def scenario() -> None:
        log = CalibrationLog(Tables(), NOW_NS)
        assert [log.add_recovery(record(number)) for number in (1, 2, 3, 3, 4)] == [
            True, True, True, False, True,
        ]  # fmt: skip
        assert not log.is_known("slurm", "i1") and log.is_known("slurm", "i4")
        runs = [
            ThroughputReport(
                f"o{index}", "slurm", NOW_NS + index, f"w{index}", 8, 1.0, (1,) * 5, 0.2
            )
            for index in range(5)
        ]
        log.add_throughputs(runs)
        log.step(NOW_NS)
        await log.close()
        assert log.factors.factors["detect"].reports == 3
        assert log.factors.throughputs.workloads == ("w2", "w3", "w4")

    asyncio.run(scenario())


def by(reporter: str, number: int, minutes: float) -> RecoveryRecord:
    recovery_record = record(number)
    fault_ns = NOW_NS - 10**16
    detect_ns = fault_ns + int(minutes * 60 * 10**9)
    report = recovery_record.report._replace(
        reporter=reporter,
        fault_ns=fault_ns,
        detect_ns=detect_ns,
        decide_ns=0,
        act_ns=0,
        resume_ns=0,
    )
    return recovery_record._replace(report=report)


@pytest.mark.parametrize("count", [330, 9330, 10130])
def test_one_reporter_moves_no_price_by_the_number_of_its_reports(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """900 honest recoveries were detected in 3 minutes; one login's reports made it 18, 85 and 2,398."""
    monkeypatch.setattr(calibration_log, "WAITING_MAX", 100_000)
    monkeypatch.setattr(calibration_log, "RECOVERIES_MAX", 1000)
    scale = 10  # of the incident: the limit is 10,000

    async def scenario() -> list[float]:
        counts = []
        store = Tables()
        log = CalibrationLog(store, NOW_NS)
        for index in range(900 // scale):
            log.add_recovery(by(f"honest {index % 3}", index, 3.0))
        for index in range(count // scale):
            log.add_recovery(by("hostile", index, 4000.0))
        log.step(NOW_NS)
        await log.close()
        assert sum(reporter != "hostile" for reporter, _ in log._recoveries) == 900 // scale
        for current in (log, CalibrationLog(store, NOW_NS)):
            counts.append(current.factors.factors["detect"].value * 60.0)
        return counts

    alone, again = asyncio.run(scenario())
    assert alone == pytest.approx(again)
    bound = 3.0 * (4000.0 / 3.0) ** 0.51  # half of the weight, in the mean of logarithms
    assert alone < bound


def test_an_incident_is_of_its_reporter() -> None:
    """B reported "slurm-4711" first, and A's report of it was "known"."""

    async def scenario() -> None:
        store = Tables()
        log = CalibrationLog(store, NOW_NS)
        assert log.add_recovery(by("b", 1, 3.0)) and log.add_recovery(by("a", 1, 3.0))
        assert not log.add_recovery(by("a", 1, 3.0))
        await log.close()
        again = CalibrationLog(store, NOW_NS)
        assert (
            again.is_known("a", "i1") and again.is_known("b", "i1") and len(again._recoveries) == 2
        )

    asyncio.run(scenario())
