"""Latency of the Kubernetes executor: a real API server with RBAC, real advice over gRPC.

From PROPOSED until another client reads the taint, and until all pods of an evicted gang are
deleted. Peer: the same JSON patch by a script that knows the node and keeps no ledger.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench.measure import Result, percentile
from gangline.aggregator.advisories.advisory import Action
from gangline.executors.context import ExecutorContext
from gangline.executors.executor import Executor
from gangline.executors.kubernetes.api import ApiServer
from gangline.executors.kubernetes.settings import KubernetesConfig
from gangline.executors.kubernetes.state import ConfigMapLedger
from gangline.executors.model import PlaceHold, RemoveHold
from gangline.executors.settings import NodeNames
from tests.executors.advice_server import AdviceServer, connected_client, serving_advice
from tests.executors.kubernetes_site import KubernetesSite
from tests.kubernetes_cluster import MISSING, UsedCluster, executor_cluster, has_kubernetes
from tests.processes import GUARD_SECONDS

RUNS = 20
PAUSE_SECONDS = 0.002


def run(seed: int) -> list[Result]:
    """Measure, if Kubernetes is installed."""
    if not has_kubernetes():
        print(MISSING, file=sys.stderr)
        return []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        cluster = stack.enter_context(executor_cluster(folder))
        advice = stack.enter_context(serving_advice())
        site = KubernetesSite(cluster)
        floor = [_by_hand(site) for _ in range(RUNS)]
        _start_executor(cluster, site, advice, stack)
        source = random.Random(seed)
        nodes = [f"n{source.randint(1, 8)}" for _ in range(RUNS)]
        taints = [_avoid(site, advice, node) for node in nodes]
        evictions = [_evict(site, advice) for _ in range(RUNS // 2)]
    peer = percentile(floor, 0.5)
    notes = f"{RUNS} runs: p95 {percentile(taints, 0.95) * 1000:.0f} ms; by hand p95 {percentile(floor, 0.95) * 1000:.0f} ms"
    gone = f"{len(evictions)} gangs of 3 pods: p95 {percentile(evictions, 0.95) * 1000:.0f} ms"
    return [
        Result("PROPOSED to a taint that others read, p50", 1000 * percentile(taints, 0.5), "ms", "the same patch by hand", 1000 * peer, notes),
        Result("PROPOSED to all pods of a gang evicted, p50", 1000 * percentile(evictions, 0.5), "ms", "one patch by hand", 1000 * peer, gone),
    ]  # fmt: skip


def _start_executor(
    cluster: UsedCluster, site: KubernetesSite, advice: AdviceServer, stack: ExitStack
) -> None:
    # The store behind this advice server is a stand-in for a single caller.
    config, wake = KubernetesConfig(report_outcomes=False), threading.Event()
    api = ApiServer(cluster.access)
    stack.callback(api.close)
    client = stack.enter_context(connected_client(advice, config.actor, wake.set))
    ledger = ConfigMapLedger(api, config.namespace, config.state_name)
    executor = Executor(
        ExecutorContext(config, site.kubernetes, client, ledger, NodeNames()), wake=wake
    )
    thread = threading.Thread(target=executor.run)
    thread.start()
    stack.callback(thread.join)
    stack.callback(executor.stop)
    _until(client.is_live)


def _until(condition: Callable[[], object]) -> float:
    end = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(PAUSE_SECONDS)
    return time.perf_counter()


def _is_tainted(site: KubernetesSite, node: str) -> bool:
    return any(taint.startswith("gangline.io/avoid") for taint in site.people.taints(node))


def _by_hand(site: KubernetesSite) -> float:
    begin = time.perf_counter()
    site.kubernetes.apply([PlaceHold("a1", "why", "gangline_a1", "n1", 600)])
    end = _until(lambda: _is_tainted(site, "n1"))
    site.kubernetes.apply([RemoveHold("a1", "why", "gangline_a1")])
    return end - begin


def _avoid(site: KubernetesSite, advice: AdviceServer, node: str) -> float:
    advice.fault(node, Action.AVOID)
    begin = time.perf_counter()
    end = _until(lambda: _is_tainted(site, node))
    _heal(site, advice, node)
    return end - begin


def _heal(site: KubernetesSite, advice: AdviceServer, node: str) -> None:
    advice.heal(node)
    _until(lambda: not site.ours())


def _evict(site: KubernetesSite, advice: AdviceServer) -> float:
    job = site.submit(3)
    _until(lambda: job in advice.gangs())
    before = {pod["metadata"]["uid"] for pod in site.people.pods()}
    node = min(site.kubernetes._pods.current().values(), key=lambda pod: pod.node).node
    advice.fault(node, Action.EVICT_NOW, job=job)
    begin = time.perf_counter()
    end = _until(
        lambda: not before & {
            pod["metadata"]["uid"] for pod in site.people.pods() if not pod["metadata"].get("deletionTimestamp")
        }
    )  # fmt: skip
    site.cancel(job)
    _heal(site, advice, node)
    _until(lambda: not site.people.remove_pods())
    return end - begin
