"""Latency of the scheduler extender against an echo of equal size, and of kube-scheduler with and
without it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from typing import Any

from bench.measure import Result, percentile
from gangline.aggregator.executors.kubernetes_api import ApiAccess, ApiError, ApiServer
from tests.aggregator.executors.serving_extender import mirror_node, write_mirror
from tests.aggregator.executors.test_extender_scheduler import configuration
from tests.kubernetes_cluster import (
    ADMIN_TOKEN,
    MISSING,
    NAMESPACE,
    People,
    RealKubernetes,
    has_kubernetes,
    pod_path,
    running_kubernetes,
)
from tests.processes import GUARD_SECONDS, free_port

NODES = 5000
#: Nodes in one request: a scheduler of 5,000 nodes considers a tenth of them.
SHOWN = 500
ROUNDS, REQUESTS, PODS = 5, 1000, 200
CREATORS = 4


def run(seed: int, nodes: int = NODES) -> list[Result]:
    """Measure the answer, and the scheduler if Kubernetes is installed. *seed* is ignored."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        mirror = Path(folder, "mirror", "nodes")
        mirror.parent.mkdir()
        with fresh_mirror(mirror, nodes), extender_process(mirror) as port:
            results = [answers(port, path) for path in ("filter", "prioritize")]
            if not has_kubernetes():
                print(MISSING, file=sys.stderr)
                return results
            cluster = Path(folder, "cluster")
            cluster.mkdir()
            with running_kubernetes(cluster) as real:
                return [*results, *scheduler(real, port, nodes)]


@contextmanager
def fresh_mirror(path: Path, nodes: int) -> Iterator[None]:
    """Run a mirror that is written every 3 s, as by `gangline mirror`: reading it is part of the
    measurement.
    """
    result = [
        mirror_node(f"n{index}", index % 4, ready=index % 100 != 7) for index in range(1, nodes + 1)
    ]
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            write_mirror(path, result)
            ended.wait(3.0)

    write_mirror(path, result)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def extender_process(mirror: Path) -> Iterator[int]:
    """Run the extender as in production; yield its port."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("gangline")), "executor", "kubernetes", "extender",
               "--set", f"extender_listen=127.0.0.1:{port}", "--set", f"extender_mirror={mirror}"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + GUARD_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            assert time.monotonic() < end and process.poll() is None, "the extender does not answer"
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(GUARD_SECONDS)


class Echo(asyncio.Protocol):
    """Answers each *taken* bytes with *given* bytes."""

    def __init__(self, taken: int, given: int) -> None:
        self._taken, self._given, self._waiting = taken, b"x" * given, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._waiting += len(data)
        while self._waiting >= self._taken:
            self._waiting -= self._taken
            self._transport.write(self._given)


def _echo(taken: int, given: int, port: int, ready: ProcessEvent) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: Echo(taken, given), "127.0.0.1", port)
        ready.set()
        await asyncio.sleep(3600)

    asyncio.run(serve())


def answers(port: int, verb: str) -> Result:
    """Compare the p99 of an answer with the p99 of the echo, alternating."""
    names = [f"n{10 * index + 1}" for index in range(SHOWN)]
    pod = {"metadata": {"name": "train-0", "namespace": NAMESPACE}, "spec": {"containers": [{"name": "main", "image": "none"}]}}  # fmt: skip
    body = json.dumps(
        {"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")
    ).encode()  # as Go writes it
    path = f"/extender/v1/{verb}"
    request = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body  # fmt: skip
    with socket.create_connection(("127.0.0.1", port), GUARD_SECONDS) as ours:
        size = _first_size(ours, request)
        context = multiprocessing.get_context("spawn")
        ready, echo_port = context.Event(), free_port()
        process = context.Process(target=_echo, args=(len(request), size, echo_port, ready), daemon=True)  # fmt: skip
        process.start()
        assert ready.wait(GUARD_SECONDS)
        with socket.create_connection(("127.0.0.1", echo_port), GUARD_SECONDS) as echo:
            echo.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            rounds = [_round(ours, echo, request, size) for _ in range(ROUNDS)]
        process.terminate()
        process.join(GUARD_SECONDS)
    p99 = sorted(
        ((percentile(one, 0.99), percentile(two, 0.99)) for one, two in rounds), key=lambda pair: pair[0] / pair[1]
    )  # fmt: skip
    value, floor = p99[ROUNDS // 2]
    middle = statistics.median(percentile(one, 0.5) / percentile(two, 0.5) for one, two in rounds)
    notes = (
        f"{ROUNDS} rounds of {REQUESTS} requests, by turns with the echo: ratio of p99 {p99[0][0] / p99[0][1]:.2f} to {p99[-1][0] / p99[-1][1]:.2f}, "
        f"of medians {middle:.2f}"
    )
    return Result(f"extender, {verb} of {SHOWN} names, p99", 1e6 * value, "µs", f"an echo of as many bytes ({size})", 1e6 * floor, notes)  # fmt: skip


def _first_size(plain: socket.socket, request: bytes) -> int:
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.sendall(request)
    answer = bytearray()
    while b"\r\n\r\n" not in answer:
        answer += plain.recv(1 << 16)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head, head
    length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += plain.recv(1 << 16)
    return len(head) + 4 + length


def _round(ours: socket.socket, echo: socket.socket, request: bytes, size: int) -> tuple[list[float], list[float]]:  # fmt: skip
    """Return the seconds of REQUESTS answers of both, alternating: other load affects both equally."""
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(REQUESTS):
        for plain, durations in zip((ours, echo), seconds, strict=True):
            begin, left = time.perf_counter(), size
            plain.sendall(request)
            while left:
                left -= len(plain.recv(1 << 17))
            durations.append(time.perf_counter() - begin)
    return seconds


def scheduler(real: RealKubernetes, port: int, nodes: int) -> list[Result]:
    """Compare the time that the scheduler needs for a pod, with the extender and without, by turns."""
    access = real.access(ADMIN_TOKEN)
    with closing(ApiServer(access)) as api:
        people = People(access)
        end = time.monotonic() + GUARD_SECONDS
        while True:
            try:
                people.add_namespace()
                break
            except ApiError:
                assert time.monotonic() < end
                time.sleep(0.2)
        _create(access, [_node(index) for index in range(1, nodes + 1)], "/api/v1/nodes")
        both = configuration(port)
        ranks = {key: value for key, value in both.items() if key != "filterVerb"}
        result: dict[str, list[float]] = {"without it": [], "ranks": [], "ranks and filters": []}
        for number in range(ROUNDS):
            for name, extenders in zip(result, ([], [ranks], [both]), strict=True):
                result[name].append(
                    _schedule(real, api, extenders, f"{name[-2:]}{number}".replace(" ", ""))
                )
        people.api.close()
    return [
        _compare(name, result[name], result["without it"], nodes)
        for name in result
        if name != "without it"
    ]


def _compare(name: str, ours: list[float], peer: list[float], nodes: int) -> Result:
    value, floor = statistics.median(ours), statistics.median(peer)
    notes = (
        f"{ROUNDS} rounds of {PODS} pods by turns: {1 / value:.0f} pods/s with it, {1 / floor:.0f} without: {floor / value:.2f} of the rate; "
        f"rounds {_rates(ours)}, and {_rates(peer)}"
    )
    return Result(f"kube-scheduler, {nodes} nodes, a pod, with an extender that {name}", 1000 * value, "ms", "without it", 1000 * floor, notes)  # fmt: skip


def _rates(seconds: list[float]) -> str:
    return f"{1 / max(seconds):.0f} to {1 / min(seconds):.0f}"


def _node(at: int) -> Any:
    resources = {"cpu": "64", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"capacity": resources, "allocatable": resources, "conditions": conditions}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{at}"}, "status": status}


def _pod(name: str) -> Any:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [container], "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _create(access: ApiAccess, things: list[Any], path: str) -> None:
    def some(first: int) -> None:
        with closing(ApiServer(access)) as api:
            for thing in things[first::CREATORS]:
                api.call("POST", path, thing)

    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(some, range(CREATORS)))


def _schedule(real: RealKubernetes, api: ApiServer, extenders: list[Any], prefix: str) -> float:
    """Create pods while no scheduler runs; return the seconds a pod takes, from the first one bound
    to the last.
    """
    real.stop_scheduler()
    _create(api.access, [_pod(f"{prefix}-{index}") for index in range(PODS)], f"/api/v1/namespaces/{NAMESPACE}/pods")  # fmt: skip
    pods, version = api.list_all("/api/v1/pods")
    watch = api.watch("/api/v1/pods", version)
    real.start_scheduler(extenders=extenders)
    bound: dict[str, float] = {}
    for kind, pod in watch:
        name = pod["metadata"].get("name", "")
        if kind == "MODIFIED" and name.startswith(f"{prefix}-") and pod["spec"].get("nodeName"):
            bound.setdefault(name, time.monotonic())
        if len(bound) == PODS:
            break
    watch.close()
    times = sorted(bound.values())
    for pod in pods:
        api.call("DELETE", pod_path(pod), {"gracePeriodSeconds": 0})
    return (times[-1] - times[0]) / (PODS - 1)
