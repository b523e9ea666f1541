"""Latency of plans for 4,096 of 10,000 nodes at the client, against an echo of equal size.

The aggregator of `score_nodes` has declared racks, leaves and spines. Plans and echoes alternate:
without load, and with judging and ingest. ScoreNodes on this port runs beside 20 plans a second, and
beside plans that weigh groups: those run in a thread, and must not block the event loop.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np

from bench.measure import Result, percentile
from bench.score_nodes import (  # fmt: skip
    GPU_ROWS_PER_SECOND,
    HOSTS,
    LOAD_SECONDS,
    Call,
    _call,
    _child,
    _seconds,
    running_echo,
)
from gangline.contract.wire import interference_pb2, recovery_pb2
from gangline.contract.wire import placement_pb2 as wire

NODES = 4096
CALLS, WARM_UP_CALLS = 400, 20
LOADED_SECONDS = 10.0
PLAN = "/gangline.v1.PlacementService/PlanPlacement"
EVALUATE = "/gangline.v1.PlacementService/EvaluatePlacement"
RECOVER = "/gangline.v1.RecoveryService/PlanRecovery"
INTERFERE = "/gangline.v1.InterferenceService/PredictInterference"
GANG_NODES = 512
#: Targets: ratio to the echo, and seconds of the other calls at the client.
IDLE_RATIO, LOADED_SECONDS_MAX = 2.0, 0.005
OPTIONS_SECONDS_MAX, EVALUATE_SECONDS_MAX, RECOVERY_SECONDS_MAX = 0.015, 0.002, 0.002
SIZES, SIZES_SECONDS_MAX = 29, 0.005
PAIRS, PAIRS_SECONDS_MAX = 64, 0.005
SCORES = "/gangline.v1.ScoreService/ScoreNodes"
PLANS_PER_SECOND, BESIDE_RATIO, BESIDE_SECONDS = 20.0, 1.1, 8.0


def _requests() -> dict[str, bytes]:
    everyone = wire.PlacementCandidates(node_bitmap=b"\xff" * (HOSTS // 8))
    whole = wire.GangRequirements(nodes=NODES, gpus_per_node=8)
    within = wire.GangRequirements(nodes=NODES, gpus_per_node=8, node_score_min=0.99)
    within.invariants.within = wire.TIER_SPINE
    within.invariants.segment_nodes, within.invariants.segment_tier = 16, wire.TIER_LEAF
    elastic = wire.GangRequirements(gpus_per_node=8)
    elastic.sizes.min_nodes, elastic.sizes.max_nodes, elastic.sizes.multiple_of = 512, NODES, 128
    for nodes, throughput in ((512, 512.0), (1024, 1000.0), (2048, 1900.0)):
        elastic.throughputs.add(nodes=nodes, throughput=throughput)
    grouped = wire.GangRequirements(nodes=NODES, gpus_per_node=8)
    grouped.groups.tensor, grouped.groups.pipeline = 8, 8
    return {
        "grouped": wire.PlanPlacementRequest(gang=grouped, candidates=everyone).SerializeToString(),
        "sizes": wire.PlanPlacementRequest(gang=elastic, candidates=everyone).SerializeToString(),
        "one": wire.PlanPlacementRequest(gang=whole, candidates=everyone).SerializeToString(),
        "eight": wire.PlanPlacementRequest(gang=whole, candidates=everyone, options_max=8).SerializeToString(),
        "blockers": wire.PlanPlacementRequest(gang=within, candidates=everyone).SerializeToString(),
    }  # fmt: skip


def _recovery() -> bytes:
    """Return a request of a gang with three failed members on two leaves, spares and free nodes."""
    gang: Any = wire.GangRequirements(gpus_per_node=8)
    gang.length.FromSeconds(48 * 3600)
    bits = np.packbits(np.arange(HOSTS) >= GANG_NODES, bitorder="little").tobytes()
    candidates: Any = wire.PlacementCandidates(node_bitmap=bits)
    return recovery_pb2.PlanRecoveryRequest(
        gang=gang, current_node_index=range(GANG_NODES), failed_node_index=[3, 9, 200],
        hot_spare_node_index=range(GANG_NODES, GANG_NODES + 8), candidates=candidates, goes_on_in_process=True,
        nodes_min=GANG_NODES // 2,
    ).SerializeToString()  # fmt: skip


def _pairs() -> bytes:
    """Return a request of PAIRS pairs of workloads, described by four demands each."""
    rates = {"sm": 0.6, "hbm_bandwidth": 0.5, "pcie_received": 2e10, "nic_received": 5e10}
    demands = [
        interference_pb2.ResourceDemand(resource=name, p50=0.5 * rate, p95=rate, p99=rate)
        for name, rate in rates.items()
    ]
    workload = interference_pb2.ColocatedWorkload(demands=demands)
    colocations = [
        interference_pb2.Colocation(
            workloads=[workload, workload], sharing=interference_pb2.Sharing.keys()[1 + index % 4]
        )
        for index in range(PAIRS)
    ]
    return interference_pb2.PredictInterferenceRequest(colocations=colocations).SerializeToString()


def _alternate(
    plan: Call, echo: Call, request: bytes, seconds: float
) -> tuple[list[float], list[float]]:
    """Return the seconds of alternating plans and echoes; each goes first in every second round."""
    ours, theirs, at, end = list[float](), list[float](), 0, time.monotonic() + seconds
    for _ in range(WARM_UP_CALLS):
        plan(request)
        echo(request)
    while time.monotonic() < end or at < CALLS:
        pairs = [(ours, plan), (theirs, echo)]
        for found, call in pairs[:: 1 if at % 2 == 0 else -1]:
            found.append(_seconds(call, request))
        at += 1
    return ours, theirs


def _rows(ours: list[float], theirs: list[float], what: str, wanted: str) -> list[Result]:
    peer = "echo of as many bytes"
    return [
        Result(f"PlanPlacement p{round(share * 100)} at the client", percentile(ours, share) * 1e6, "us", peer,
               percentile(theirs, share) * 1e6, f"{what}; {len(ours)} calls{wanted if share > 0.9 else ''}")
        for share in (0.5, 0.99)
    ]  # fmt: skip


def _other(name: str, call: Call, request: bytes, limit: float, what: str) -> Result:
    for _ in range(5):
        call(request)
    result = [_seconds(call, request) for _ in range(CALLS // 4)]
    notes = f"{what}; {len(result)} calls; p50 {percentile(result, 0.5) * 1e3:.2f} ms"
    return Result(name, percentile(result, 0.99) * 1e3, "ms", "limit", limit * 1e3, notes)


def _beside(
    scores: Call, plan: Any, request: bytes | None, per_second: float
) -> tuple[list[float], list[float]]:
    """Return the seconds of *scores* calls, and of concurrent plans, at most one in flight."""
    result, plans, pending = list[float](), list[float](), None
    end, due = time.monotonic() + BESIDE_SECONDS, 0.0
    while (now := time.monotonic()) < end:
        if request is not None and now >= due and (pending is None or pending.done()):
            due, begin = now + 1.0 / per_second, time.perf_counter()
            pending = plan.future(request)
            pending.add_done_callback(
                lambda _, begin=begin: plans.append(time.perf_counter() - begin)
            )
        result.append(_seconds(scores, b""))
    if pending is not None:
        pending.result()
    return result, plans


def _beside_rows(channel: grpc.Channel, requests: dict[str, bytes]) -> list[Result]:
    scores = _call(channel, SCORES)
    plan: Any = channel.unary_unary(PLAN)
    for _ in range(WARM_UP_CALLS):
        scores(b"")
    peer, results = "the same without plans", list[Result]()
    for what, kind, per_second in (
        (f"{PLANS_PER_SECOND:g} plans/s of {NODES} nodes", "one", PLANS_PER_SECOND),
        ("plans with groups, one after another", "grouped", 1e9),
    ):
        quiet, _ = _beside(scores, plan, None, per_second)
        busy, plans = _beside(scores, plan, requests[kind], per_second)
        notes = (
            f"{len(plans)} plans beside {len(busy)} calls, a plan p50 {percentile(plans, 0.5) * 1e3:.1f} ms, p99 "
            f"{percentile(plans, 0.99) * 1e3:.1f} ms; p50 of the calls {percentile(busy, 0.5) / percentile(quiet, 0.5):.2f} times; "
            f"target: at most {BESIDE_RATIO:g}"
        )
        results.append(
            Result(f"ScoreNodes p99 with {what} beside", percentile(busy, 0.99) * 1e6, "us", peer,
                   percentile(quiet, 0.99) * 1e6, notes)
        )  # fmt: skip
    return results


def run(seed: int) -> list[Result]:
    """Return p50 and p99 of a plan, idle and loaded, and of the other calls idle."""
    requests, results = _requests(), list[Result]()
    with ExitStack() as stack:
        stdin, address = stack.enter_context(
            _child("score_server", "scores", "--hosts", str(HOSTS), "--places")
        )
        result = json.loads(address.readline())
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{result['port']}"))
        plan, evaluate = _call(channel, PLAN), _call(channel, EVALUATE)
        recover, lost = _call(channel, RECOVER), _recovery()
        recovered = recovery_pb2.PlanRecoveryResponse.FromString(recover(lost))
        interfere, pairs = _call(channel, INTERFERE), _pairs()
        predicted = interference_pb2.PredictInterferenceResponse.FromString(interfere(pairs))
        assert len(predicted.predictions) == PAIRS
        assert any(option.replacements for option in recovered.options)
        answer = plan(requests["one"])
        option = wire.PlanPlacementResponse.FromString(answer).options[0]
        assert len(option.node_index) == NODES
        sized = wire.PlanPlacementResponse.FromString(plan(requests["sizes"]))
        assert sized.options and len(sized.sizes) == SIZES
        blocked = wire.PlanPlacementResponse.FromString(plan(requests["blockers"]))
        assert blocked.blockers and not blocked.options
        echo = stack.enter_context(running_echo(len(answer)))
        size = f"{NODES} of {HOSTS} nodes, {len(answer)} bytes"
        ours, theirs = _alternate(plan, echo, requests["one"], 0.0)
        results += _rows(
            ours, theirs, f"{size}; idle otherwise", f"; target: at most {IDLE_RATIO:g}"
        )
        chosen = wire.EvaluatePlacementRequest(
            gang=wire.GangRequirements(gpus_per_node=8), node_index=option.node_index
        ).SerializeToString()
        results += [
            _other("PlanPlacement of 8 options, p99", plan, requests["eight"], OPTIONS_SECONDS_MAX, size),
            _other("blockers, each with priced changes, p99", plan, requests["blockers"], OPTIONS_SECONDS_MAX,
                   f"{len(blocked.blockers)} constraints in conflict"),
            _other(f"PlanPlacement of {SIZES} sizes, p99", plan, requests["sizes"], SIZES_SECONDS_MAX,
                   f"512 to {NODES} nodes; {len(sized.options[0].node_index)} chosen"),
            _other("EvaluatePlacement, p99", evaluate, chosen, EVALUATE_SECONDS_MAX, size),
            _other(f"PredictInterference of {PAIRS} pairs, p99", interfere, pairs, PAIRS_SECONDS_MAX,
                   "by description, in all forms of sharing"),
            _other("PlanRecovery, p99", recover, lost, RECOVERY_SECONDS_MAX,
                   f"3 of {GANG_NODES} members failed, {HOSTS} nodes, {len(recovered.options)} ways"),
        ]  # fmt: skip
        results += _beside_rows(channel, requests)
        stdin.write("judge\n")
        stdin.flush()
        load = ("--address", f"127.0.0.1:{result['whole']}", "--seed", str(seed),
                "--rows-per-second", str(GPU_ROWS_PER_SECOND), "--seconds", str(LOAD_SECONDS))  # fmt: skip
        with _child("gpu_rows", *load) as (go, told):
            told.readline()  # connected
            go.write("go\n")
            go.flush()
            told.readline()
            ours, theirs = _alternate(plan, echo, requests["one"], LOADED_SECONDS)
        over = sum(latency > LOADED_SECONDS_MAX for latency in ours) / len(ours)
        what = f"{size}; judged each second, {GPU_ROWS_PER_SECOND} rows/s beside it"
        results += _rows(
            ours,
            theirs,
            what,
            f"; beyond {LOADED_SECONDS_MAX * 1e3:g} ms {over:.2%}, wanted: none of p99",
        )
    return results
