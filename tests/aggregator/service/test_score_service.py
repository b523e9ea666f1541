"""ScoreService over a real gRPC server, and the commands that speak to it."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration

from gangline import cli
from gangline.aggregator.model import Finding, HealthState, Reason
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.service.score import LISTINGS_MAX, ScoreService
from gangline.aggregator.service.status import ErrorInterceptor
from gangline.contract.client.connection import CommandError
from gangline.contract.client.score_client import ScoreClient
from gangline.contract.wire import score_pb2
from gangline.contract.wire.score_pb2_grpc import (
    ScoreServiceStub,
    add_ScoreServiceServicer_to_server,
)
from gangline.fingerprints.sensitivity import KnownWorkloads
from tests.processes import free_port
from tests.worlds import World, gpu_of, throttle

GUARD_SECONDS = 20.0


@dataclass
class Holder:
    snapshot: Judgement | None = None


@dataclass
class Served:
    """A server in a thread of its own, and a stub."""

    holder: Holder
    stub: Any
    port: int
    world: World = field(default_factory=lambda: World(gpus=2))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def fault(self) -> World:
        """Bring the four hosts into the states HEALTHY, silent, fatal XID, and HEALTHY."""
        self.world.run(10)
        self.world.hosts[1].silent = True
        self.world.event(self.world.hosts[2], 95, gpu_of(self.world.hosts[2], 0))
        self.holder.snapshot = self.world.run(20)
        return self.world


@pytest.fixture
def served() -> Iterator[Served]:
    holder, loop = Holder(), asyncio.new_event_loop()
    ready, ports = threading.Event(), list[int]()
    stop = asyncio.Event()

    async def serve() -> None:
        server = grpc.aio.server(interceptors=[ErrorInterceptor()])
        add_ScoreServiceServicer_to_server(ScoreService(holder), server)  # type: ignore[no-untyped-call]
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        ready.set()
        await stop.wait()
        await server.stop(None)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(GUARD_SECONDS)
    with grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
        stub: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
        yield Served(holder, stub, ports[0])
    loop.call_soon_threadsafe(stop.set)
    thread.join(GUARD_SECONDS)
    loop.close()


def refused(call: Any, request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as info:
        call(request, timeout=GUARD_SECONDS)
    error: Any = info.value
    return error.code(), error.details()


def test_without_a_snapshot_it_is_unavailable(served: Served) -> None:
    """A scheduler that asks in the first second must retry, not assume an empty fleet."""
    for call, request in (
        (served.stub.GetNodeScore, score_pb2.GetNodeScoreRequest(name="nodes/h0")),
        (served.stub.ListNodeScores, score_pb2.ListNodeScoresRequest()),
        (served.stub.ScoreNodes, score_pb2.ScoreNodesRequest()),
        (served.stub.GetNodeDictionary, score_pb2.GetNodeDictionaryRequest()),
    ):
        assert refused(call, request)[0] is grpc.StatusCode.UNAVAILABLE


def test_one_node_in_both_views(served: Served) -> None:
    """BASIC for loops, FULL with every contribution, its SQL, and the collectors' messages."""
    world = served.fault()
    basic = served.stub.GetNodeScore(score_pb2.GetNodeScoreRequest(name="nodes/h2"))
    assert basic.state == score_pb2.UNHEALTHY and basic.reason == score_pb2.REASON_XID_FATAL
    assert not basic.contributions and not basic.sources
    assert basic.horizon.seconds == 8 * 3600 and basic.data_age.seconds == 0
    full = served.stub.GetNodeScore(
        score_pb2.GetNodeScoreRequest(name="nodes/h2", view=score_pb2.FULL)
    )
    assert full.contributions[0].message == world.score(world.hosts[2]).evidence[0].message
    assert full.contributions[0].evidence_sql.startswith("SELECT")
    assert {s.source: s.outcome for s in full.sources} == dict.fromkeys(
        ("gpu_1s", "host_1s", "rdma_1s"), "ok"
    )


def test_a_score_is_of_the_horizon_that_was_asked_for(served: Served) -> None:
    """A job of three days was placed by its chance over eight hours; a floor of 0.9 was useless."""
    world = served.fault()
    day = Duration(seconds=24 * 3600)
    kept = world.score(world.hosts[2])
    node_score = served.stub.GetNodeScore(
        score_pb2.GetNodeScoreRequest(name="nodes/h2", view=score_pb2.FULL, horizon=day)
    )
    assert node_score.horizon == day
    assert node_score.score == pytest.approx(math.exp(-24 * kept.hazard_per_hour))
    assert node_score.score_lower == pytest.approx(kept.score_lower**3, abs=1e-9)
    without = math.exp(-24 * kept.hazard_per_hour / math.exp(kept.evidence[0].log_hazard_delta))
    assert node_score.contributions[0].score_delta == pytest.approx(node_score.score - without)
    listed = served.stub.ListNodeScores(score_pb2.ListNodeScoresRequest(horizon=day))
    assert {s.node: s.score for s in listed.node_scores}["nodes/h2"] == node_score.score
    well = world.score(world.hosts[0]).hazard_per_hour
    floor = math.exp(-well * 20)
    columns = served.stub.ScoreNodes(score_pb2.ScoreNodesRequest(horizon=day, score_floor=floor))
    assert columns.horizon == day and columns.score[2] == pytest.approx(node_score.score, abs=1e-6)
    assert not columns.allowed_bitmap[0] & 1
    columns = served.stub.ScoreNodes(score_pb2.ScoreNodesRequest(score_floor=floor))
    assert columns.horizon.seconds == 8 * 3600 and columns.allowed_bitmap[0] & 1


@pytest.mark.parametrize(
    ("method", "request_", "code", "message"),
    [
        ("GetNodeScore", {"name": "nodes/nobody"}, "NOT_FOUND", "'nobody'"),
        ("GetNodeScore", {"name": "h0"}, "INVALID_ARGUMENT", "expected nodes/NODE"),
        ("GetNodeScore", {"name": "nodes/"}, "INVALID_ARGUMENT", "expected nodes/NODE"),
        ("GetNodeScore", {"name": "nodes/" + "x" * 3_000_000}, "INVALID_ARGUMENT", "at most 253"),
        ("GetNodeScore", {"name": "nodes/h0", "view": 9}, "INVALID_ARGUMENT", "view"),
        ("ListNodeScores", {"page_size": 1001}, "INVALID_ARGUMENT", "expected 1 to 1000"),
        ("ListNodeScores", {"page_size": -1}, "INVALID_ARGUMENT", "page_size"),
        ("ListNodeScores", {"page_token": "x"}, "INVALID_ARGUMENT", "page_token"),
        ("ListNodeScores", {"page_token": "9-1"}, "INVALID_ARGUMENT", "has expired"),
        ("ScoreNodes", {"dictionary_version": 6}, "FAILED_PRECONDITION", "GetNodeDictionary"),
        ("ScoreNodes", {"score_floor": 1.5}, "INVALID_ARGUMENT", "expected 0 to 1"),
        ("ScoreNodes", {"score_floor": math.nan}, "INVALID_ARGUMENT", "score_floor"),
        ("ScoreNodes", {"node_bitmap": b"\xff"}, "INVALID_ARGUMENT", "there are 4 nodes"),
        ("ScoreNodes", {"horizon": {"seconds": 59}}, "INVALID_ARGUMENT", "59 s, expected 60 to"),
        ("ListNodeScores", {"horizon": {"seconds": 604801}}, "INVALID_ARGUMENT", "horizon"),
        ("ScoreNodes", {"workload": {}}, "INVALID_ARGUMENT", "either job or shares"),
        (
            "ScoreNodes",
            {"workload": {"job": "a", "shares": {"compute": 1}}},
            "INVALID_ARGUMENT",
            "either job or shares",
        ),
        ("ScoreNodes", {"workload": {"job": "a" * 513}}, "INVALID_ARGUMENT", "at most 512"),
        ("ScoreNodes", {"workload": {"job": "train-78"}}, "NOT_FOUND", "did you mean train-77?"),
        ("ScoreNodes", {"workload": {"job": "q"}}, "NOT_FOUND", "ops.runs"),
        (
            "ScoreNodes",
            {"workload": {"shares": {"pcie": -0.1}}},
            "INVALID_ARGUMENT",
            "workload.shares.pcie",
        ),
        (
            "ScoreNodes",
            {"workload": {"shares": {"compute": math.nan}}},
            "INVALID_ARGUMENT",
            "expected 0 to 1",
        ),
        (
            "ScoreNodes",
            {"workload": {"shares": {"compute": 0.9, "memory": 0.9}}},
            "INVALID_ARGUMENT",
            "together 1.8",
        ),
        ("ScoreNodes", {"workload": {"shares": {}}}, "INVALID_ARGUMENT", "more than 0"),
        (
            "GetNodeScore",
            {"name": "nodes/h0", "horizon": {"seconds": -9}},
            "INVALID_ARGUMENT",
            "none for 8 hours",
        ),
    ],
)
def test_a_wrong_request_is_told_what_would_be_right(
    served: Served, method: str, request_: dict[str, Any], code: str, message: str
) -> None:
    """These requests once returned INTERNAL, or worse, a result."""
    served.fault()
    assert isinstance(served.holder.snapshot, Judgement)
    needs = np.zeros((1, 14), dtype=np.float32)
    known = KnownWorkloads({"train-77": 0}, ("a run",), needs)
    served.holder.snapshot = replace(served.holder.snapshot, workloads=known)
    request = getattr(score_pb2, f"{method}Request")(**request_)
    status, details = refused(getattr(served.stub, method), request)
    assert status is grpc.StatusCode[code] and message in details


def test_a_workload_meets_only_what_it_is_bound_by(served: Served) -> None:
    """Compute-bound work avoids a throttled host, network-bound work a host with a port down."""
    world = served.world
    world.run(20)
    throttle(world.hosts[0], 0, 0.8)
    world.hosts[1].set("rdma_1s", "mlx5_0/1", port_state=1, physical_state=2)
    served.holder.snapshot = world.run(60)

    def slowdowns(**shares: float) -> list[float]:
        workload = score_pb2.Workload(shares=score_pb2.ComponentShares(**shares))
        reply = served.stub.ScoreNodes(score_pb2.ScoreNodesRequest(workload=workload))
        assert reply.workload_source == "shares of the request"
        return list(reply.expected_slowdown)

    compute, network = slowdowns(compute=0.9), slowdowns(network=0.5)
    assert compute[0] == pytest.approx(0.9 * (1 / 0.8 - 1), abs=0.03)
    assert compute[1:] == pytest.approx([0.0, 0.0, 0.0], abs=0.03)
    assert network == pytest.approx([0.0, 0.5, 0.0, 0.0]), "one of two ports"
    request = score_pb2.ScoreNodesRequest(
        node_bitmap=b"\x03", workload={"shares": {"compute": 0.9}}
    )
    assert list(served.stub.ScoreNodes(request).expected_slowdown) == compute[:2]
    assert not served.stub.ScoreNodes(score_pb2.ScoreNodesRequest()).expected_slowdown


def test_pages_are_of_one_snapshot_worst_first(served: Served) -> None:
    """The order changes each second; a listing must neither skip nor repeat a host."""
    served.fault()
    first = served.stub.ListNodeScores(score_pb2.ListNodeScoresRequest(page_size=2))
    served.world.hosts[1].silent = False
    served.holder.snapshot = served.world.run(3)
    second = served.stub.ListNodeScores(
        score_pb2.ListNodeScoresRequest(page_size=2, page_token=first.next_page_token)
    )
    names = [s.node for s in [*first.node_scores, *second.node_scores]]
    assert names == ["nodes/h2", "nodes/h1", "nodes/h3", "nodes/h0"]
    assert second.version == first.version and not second.next_page_token


def test_simulated_hosts_that_ended_are_not_listed(served: Served) -> None:
    """A day after `gangline run` its 32 hosts were listed as STALE above the real ones."""
    world = served.world
    simulated, real = world.hosts[:3], world.hosts[3]
    for index in range(3):
        world.fleet._simulated[index] = True
    world.run(10)
    for host in (*simulated, real):
        host.silent = True
    served.holder.snapshot = world.run(55)
    request = score_pb2.ListNodeScoresRequest()
    assert len(served.stub.ListNodeScores(request).node_scores) == 4
    served.holder.snapshot = world.run(10)
    reply = served.stub.ListNodeScores(request)
    assert [score.node for score in reply.node_scores] == [f"nodes/{real.name}"]
    assert not reply.degraded_reason  # their end is not an outage
    node_score = served.stub.GetNodeScore(score_pb2.GetNodeScoreRequest(name="nodes/h0"))
    assert node_score.state == score_pb2.STALE
    assert len(served.stub.ScoreNodes(score_pb2.ScoreNodesRequest()).node_index) == 4
    world.fleet._simulated[3] = True
    served.holder.snapshot = world.run(60)
    with ScoreClient(served.address) as client:
        listing = client.hosts()
    assert (listing.scores, listing.ended_hosts) == ([], 4)
    simulated[0].silent = False
    served.holder.snapshot = world.run(1)
    states = [score.state for score in served.stub.ListNodeScores(request).node_scores]
    assert len(states) == 4, "a host that falls silent while others run stays listed"


def test_old_listings_are_let_go(served: Served) -> None:
    """A client that requests pages endlessly must not keep every snapshot alive."""
    served.fault()
    first = served.stub.ListNodeScores(score_pb2.ListNodeScoresRequest(page_size=1))
    for _ in range(LISTINGS_MAX):
        served.holder.snapshot = served.world.run(1)
        served.stub.ListNodeScores(score_pb2.ListNodeScoresRequest(page_size=1))
    request = score_pb2.ListNodeScoresRequest(page_size=1, page_token=first.next_page_token)
    assert refused(served.stub.ListNodeScores, request)[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_columns_say_what_the_rows_say(served: Served) -> None:
    """The fast path and the explanation must never disagree."""
    world = served.fault()
    reply = served.stub.ScoreNodes(score_pb2.ScoreNodesRequest())
    names = served.stub.GetNodeDictionary(score_pb2.GetNodeDictionaryRequest()).names
    assert reply.dictionary_version == 7 and list(reply.node_index) == [0, 1, 2, 3]
    for position, index in enumerate(reply.node_index):
        host = world.score(world.hosts[index])
        assert names[index] == host.host
        assert reply.score[position] == pytest.approx(host.score, abs=1e-6)
        assert reply.state[position] == host.state and reply.reason[position] == host.reason
    assert list(reply.bucket) == [0, 2, 3, 0]
    assert bits(reply.allowed_bitmap, 4) == [1, 1, 0, 1]
    assert reply.valid_until.seconds > world.now_ns // 10**9


def test_a_host_that_was_never_heard_is_no_better_to_choose_for_a_finding() -> None:
    """A silent host with a finding was WATCH, and ranked before UNKNOWN hosts."""
    world = World(hosts=2, gpus=1)
    world.fleet.add_finding(Finding("h1", "identity.duplicate_name", "", "two of this name", 1))
    snapshot = evaluate(world.fleet, world.now_ns, None)
    assert [host.state.name for host in snapshot.hosts] == ["UNKNOWN", "WATCH"]
    assert list(snapshot.columns.bucket) == [2, 2]


def test_the_reply_without_a_filter_is_made_once_per_snapshot(served: Served) -> None:
    """A reply of 10,000 nodes is serialized once a second, not once a call."""
    served.fault()
    service = ScoreService(served.holder)
    replies = [asyncio.run(service.ScoreNodes(score_pb2.ScoreNodesRequest(), None)) for _ in "ab"]
    assert isinstance(replies[0], bytes) and replies[0] is replies[1]
    served.holder.snapshot = served.world.run(1)
    after = asyncio.run(service.ScoreNodes(score_pb2.ScoreNodesRequest(), None))
    assert isinstance(after, bytes)
    before = score_pb2.ScoreNodesResponse.FromString(replies[0])
    assert score_pb2.ScoreNodesResponse.FromString(after).score_version > before.score_version


def test_a_bitmap_selects_and_a_floor_disallows(served: Served) -> None:
    """A scheduler asks about the nodes that fit, and wants none below its floor."""
    served.fault()
    request = score_pb2.ScoreNodesRequest(
        dictionary_version=7, node_bitmap=bytes([0b1110]), score_floor=0.9986
    )
    reply = served.stub.ScoreNodes(request)
    assert list(reply.node_index) == [1, 2, 3]
    assert bits(reply.allowed_bitmap, 3) == [0, 0, 1]


def test_a_simulated_host_that_ended_is_not_allowed(served: Served) -> None:
    """After `gangline simulate` a scheduler must not place a job on a simulated host."""
    served.world.run(5)
    fleet = served.world.fleet
    for name, simulated in (("gone", True), ("real", False)):
        fleet.restore(name, simulated=simulated, gpus=8, last_received_ns=served.world.now_ns)
    served.holder.snapshot = served.world.run(10)
    unfiltered = score_pb2.ScoreNodesRequest()
    assert bits(served.stub.ScoreNodes(unfiltered).allowed_bitmap, 6) == [1] * 6
    served.holder.snapshot = served.world.run(60)
    assert bits(served.stub.ScoreNodes(unfiltered).allowed_bitmap, 6) == [1, 1, 1, 1, 0, 1]
    selected = score_pb2.ScoreNodesRequest(node_bitmap=bytes([0b110001]))
    assert bits(served.stub.ScoreNodes(selected).allowed_bitmap, 3) == [1, 0, 1]


def bits(bitmap: bytes, count: int) -> list[int]:
    unpacked = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    chosen: list[int] = unpacked[:count].tolist()
    return chosen


def test_the_wire_and_the_house_number_alike() -> None:
    """A state added to only one list would be shown as another state."""
    wire_states = {v.name: v.number for v in score_pb2.HealthState.DESCRIPTOR.values}
    assert {s.name: s.value for s in HealthState} == {k: v for k, v in wire_states.items() if v}
    wire_reasons = {v.name: v.number for v in score_pb2.ReasonCode.DESCRIPTOR.values if v.number}
    assert {f"REASON_{r.name}": r.value for r in Reason if r} == wire_reasons


# The commands.


def test_hosts_shows_the_worst_last(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal shows the end of a list."""
    served.fault()
    assert cli.main(["hosts", "--aggregator", served.address]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["HOST", "SCORE", "STATE"]
    assert [line.split()[0] for line in lines[1:5]] == ["h0", "h3", "h1", "h2"]
    assert "UNHEALTHY" in lines[4] and "XID 95" in lines[4]
    assert lines[5].startswith("4 hosts at ") and "2 HEALTHY, 1 STALE, 1 UNHEALTHY" in lines[5]
    assert "nothing wrong" in lines[1] and "\x1b" not in "".join(lines)


def test_hosts_as_json_and_by_state(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read JSON: an unknown value is null, never NaN."""
    served.fault()
    arguments = ["hosts", "--json", "--state", "stale", "--aggregator", served.address]
    assert cli.main(arguments) == cli.OK
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == cli.JSON_FORMAT
    assert [h["host"] for h in document["hosts"]] == ["h1"]
    assert document["hosts"][0]["state"] == "STALE"
    assert document["hosts"][0]["data_age_seconds"] == pytest.approx(20.0)
    assert document["hosts"][0]["relative_speed"] is None


def test_explain_reads_like_a_colleague(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """The state, the reason, its cost, its query, and its end."""
    served.fault()
    assert cli.main(["explain", "h2", "--aggregator", served.address]) == cli.OK
    text = capsys.readouterr().out
    for phrase in (
        "h2 is UNHEALTHY, last report 0 s ago.",
        "1. GPU-h2-0… XID 95: uncontained memory error",
        "costs the whole score: it is broken now",
        "FROM events WHERE host = 'h2' AND",
        "UNHEALTHY ends when the GPU is reset, or the host boots.",
        "Working collectors: gpu_1s, host_1s, rdma_1s",
    ):
        assert phrase in text, text
    assert cli.main(["explain", "h0", "--aggregator", served.address]) == cli.OK
    assert "There is no evidence against it." in capsys.readouterr().out


def test_explain_of_an_unknown_host_names_near_ones(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error is the most frequent cause; exit code 4 is for scripts."""
    served.fault()
    assert cli.main(["explain", "h22", "--aggregator", served.address]) == cli.NOT_FOUND
    assert "did you mean h2" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["watch", "--once"], ["hosts"], ["explain", "h2"]])
def test_json_says_of_which_form_it_is(
    served: Served, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """A script that read keys of another version failed in the middle of a night."""
    served.fault()
    assert cli.main([*command, "--json", "--aggregator", served.address]) == cli.OK
    assert json.loads(capsys.readouterr().out)["format"] == cli.JSON_FORMAT


def test_watch_once_prints_plainly(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe gets text, not cursor movements."""
    served.fault()
    assert cli.main(["watch", "--once", "--aggregator", served.address]) == cli.OK
    out = capsys.readouterr().out
    assert out.splitlines()[-2].startswith("h2") and "\x1b" not in out


@pytest.mark.parametrize("command", [["hosts"], ["explain", "h0"], ["watch", "--once"]])
def test_without_an_aggregator_it_says_what_to_do(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 3, and the command that starts an aggregator."""
    monkeypatch.setenv("GANGLINE_AGGREGATOR", f"127.0.0.1:{free_port()}")
    assert cli.main(command) == cli.NO_ANSWER
    message = capsys.readouterr().err
    assert "no aggregator answers at 127.0.0.1:" in message
    assert "start one with" in message and "GANGLINE_AGGREGATOR" in message


def test_just_started_is_told_from_not_there(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first snapshot takes a second; "start one" would be the wrong advice."""
    assert cli.main(["hosts", "--aggregator", served.address]) == cli.NO_ANSWER
    assert "has just started" in capsys.readouterr().err


def test_the_client_takes_all_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """More hosts than a page holds are all shown."""
    served.fault()
    monkeypatch.setattr("gangline.contract.client.score_client.PAGE_SIZE", 3)
    with ScoreClient(served.address) as client:
        assert len(client.hosts().scores) == 4
        assert client.names() == ["h0", "h1", "h2", "h3"]
        with pytest.raises(CommandError):
            client.host("nobody")
