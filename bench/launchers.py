"""NVIDIA's launcher: its client at an agent's health check and at the attribution service.

Peer of the health check: a grpcio echo. Each version asks by a new connection each time, as its
launcher does. Without `GANGLINE_NVRX` (tests/rigs/nvrx.sh) the result is empty.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import closing, contextmanager
from pathlib import Path

import grpc

from bench.measure import Result, percentile
from gangline.executors.launchers.attribution import AttributionBoard, HealthView, health_view
from gangline.executors.launchers.attribution_clients import AttributionClients
from gangline.executors.launchers.attribution_server import AttributionServer
from gangline.executors.launchers.cycle_info import CycleInfo
from gangline.executors.model import Advice, ScheduledJob, SchedulerState
from tests.nvrx import MISSING, VERSIONS, has_nvrx, run_nvrx

ROUNDS, CALLS, POLLS = 5, 400, 110
JOBS, HOSTS_PER_JOB, FAULTS = 200, 50, 50
LIMIT_SECONDS, START_SECONDS_MAX = 0.05, 30.0
ECHO = "/bench.Bench/Echo"


@contextmanager
def _agent(folder: Path) -> Iterator[Path]:
    """Run a whole agent that samples this machine; yield its socket."""
    names = ("spool", "events", "state", "run")
    sets = [option for n in names for option in ("--set", f"{n}_folder={folder / n}")]
    command = [sys.executable, "-m", "gangline.cli", "agent", "--aggregator", "127.0.0.1:9", *sets]
    with open(folder / "log", "wb") as log, subprocess.Popen(command, stderr=log) as child:
        path, end = folder / "run/agent.sock", time.monotonic() + START_SECONDS_MAX
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.05)
        yield path
        child.terminate()


class _Echo(grpc.GenericRpcHandler):
    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


def _serve_echo(path: str) -> None:
    """Serve the echo at a socket until stdin ends."""
    server = grpc.server(futures.ThreadPoolExecutor(1), [_Echo()])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    print("ready", flush=True)
    sys.stdin.read()


@contextmanager
def _echo(folder: Path) -> Iterator[Path]:
    """Run the echo in a process of its own; yield its socket."""
    path = folder / "echo.sock"
    command = [sys.executable, "-m", "bench.launchers", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin and child.stdout
        child.stdout.readline()
        yield path
        child.stdin.close()


def _view() -> HealthView:
    now = time.time()
    jobs, cycles = {}, {}
    for index in range(JOBS):
        hosts = frozenset(f"gpu{index * HOSTS_PER_JOB + k:05}" for k in range(HOSTS_PER_JOB))
        jobs[str(index)] = ScheduledJob(str(index), "RUNNING", hosts, started=now - 600)
        cycles[str(index)] = CycleInfo(
            str(index), 0, 1, now + 600, 0.0, f"/logs/{index}_cycle1.log", hosts, frozenset()
        )
    faults = [
        Advice(f"a{index}", "", "EVICT_NOW", "PROPOSED", f"gpu{index * 199:05}", reason="XID 79", basis="DETERMINISTIC")
        for index in range(1, FAULTS + 1)
    ]  # fmt: skip
    return health_view(SchedulerState({}, jobs), cycles, faults, HealthView(), now, is_live=True)


def _health(folder: Path, version: str) -> Result:
    ratios, ours, echoes = [], [], []
    with _agent(folder) as agent, _echo(folder) as echo:
        for _ in range(ROUNDS):
            got = run_nvrx(version, "health", agent, CALLS, echo, ECHO)
            ours.append(percentile(got["seconds"][10:], 0.99))
            echoes.append(percentile(got["echo_seconds"][10:], 0.99))
            ratios.append(ours[-1] / echoes[-1])
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return Result(
        f"health check by the client of {version}, p99", statistics.median(ours) * 1e3, "ms", "an echo of grpcio, a new channel each",
        statistics.median(echoes) * 1e3, f"medians of {ROUNDS} rounds of {CALLS} calls in turns; ratios {shown}",
    )  # fmt: skip


def _attribution(version: str) -> list[Result]:
    board = AttributionBoard(60.0, AttributionClients(lambda name: ["127.0.0.1"]))
    board.view = _view()
    worst, plain = [], []
    with closing(AttributionServer(board, "127.0.0.1:0")) as server:
        server.start()
        for index in range(ROUNDS):
            log = f"/logs/{index * 30}_cycle0.log"
            got = run_nvrx(version, "attribution", f"http://{server.address}", log, "log", POLLS, SLURM_JOB_ID=str(index * 30))  # fmt: skip
            worst.append(percentile(got["seconds"][10:], 0.99))
            plain.append(percentile(got["answer_seconds"][10:], 0.99))
    return [
        Result(
            f"{what}, p99", statistics.median(values) * 1e3, "ms", "limit", LIMIT_SECONDS * 1e3,
            f"median of {ROUNDS} rounds of {POLLS} calls, {how}; {', '.join(f'{value * 1e3:.1f}' for value in values)} ms",
        )
        for what, values, how in (
            (f"attribution by the client of {version}", worst, "a new connection and TLS context each"),
            ("attribution by plain HTTP", plain, "a new connection each"),
        )
    ]  # fmt: skip


def run(seed: int) -> list[Result]:
    """Measure. *seed* is ignored."""
    if not has_nvrx():
        print(MISSING, file=sys.stderr)
        return []
    results = []
    for version in VERSIONS:
        with tempfile.TemporaryDirectory() as folder:
            results.append(_health(Path(folder), version))
        results += _attribution(version)
    return results


if __name__ == "__main__":
    _serve_echo(sys.argv[1])
