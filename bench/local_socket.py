"""The health check on the agent's Unix socket against an echo of equal size, by one real gRPC
client.

Two echoes alternate with the health check in one run: one on the same server (the cost of the
check), one on a server of grpcio, in C below a Python handler (the cost of our server). Each server
is a process of its own; the health check goes to an idle server, and to a complete agent that
samples this machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from bench.local_server import ECHO
from bench.measure import Result, cpu_seconds, percentile
from gangline.agent.local import agent_service
from gangline.contract.wire.nvhcd_pb2 import HealthCheckRequest, HealthCheckResponse

CALLS, WARM_UP_CALLS = 6000, 300
SECONDS_MAX = 30.0


@contextmanager
def _agent(folder: Path) -> Iterator[Path]:
    names = ("spool", "events", "state", "run")
    sets = [option for n in names for option in ("--set", f"{n}_folder={folder / n}")]
    command = [sys.executable, "-m", "gangline.cli", "agent", "--aggregator", "127.0.0.1:9", *sets]
    with open(folder / "log", "wb") as log, subprocess.Popen(command, stderr=log) as child:
        path, end = folder / "run/agent.sock", time.monotonic() + SECONDS_MAX
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.05)
        yield path
        child.terminate()


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[tuple[Path, int]]:
    path = folder / f"{kind}.sock"
    command = [sys.executable, "-m", "bench.local_server", kind, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        child.stdout.readline()
        yield path, child.pid
        child.stdin.close()


def _measure(folder: Path) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of each call by name, and the servers' CPU seconds a call."""
    with ExitStack() as stack:
        agent_socket, agent_pid = stack.enter_context(_server("agent", folder))
        grpcios, their_pid = stack.enter_context(_server("grpcio", folder))
        whole = stack.enter_context(_agent(folder))
        whole_channel = stack.enter_context(grpc.insecure_channel(f"unix:{whole}"))
        agent_channel = stack.enter_context(grpc.insecure_channel(f"unix:{agent_socket}"))
        their_channel = stack.enter_context(grpc.insecure_channel(f"unix:{grpcios}"))
        request = HealthCheckRequest(args=["--no-slurm"]).SerializeToString()
        answer = HealthCheckResponse(
            success=True, output=agent_service.HealthyResult().output
        ).SerializeToString()
        calls: dict[str, tuple[Callable[..., bytes], bytes]] = {
            "health": (agent_channel.unary_unary(agent_service.HEALTH_CHECK_PATH), request),
            "echo": (agent_channel.unary_unary(ECHO), answer),
            "agent": (whole_channel.unary_unary(agent_service.HEALTH_CHECK_PATH), request),
            "grpcio": (their_channel.unary_unary(ECHO), answer),
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        before = cpu_seconds(agent_pid), cpu_seconds(their_pid)
        for number in range(CALLS + WARM_UP_CALLS):
            # each call goes first in turn: a later call to the same server finds it awake
            at = number % len(calls)
            names = [*calls][at:] + [*calls][:at]
            for name in names:
                ask, message = calls[name]
                began = time.perf_counter()
                ask(message, timeout=SECONDS_MAX)
                if number >= WARM_UP_CALLS:
                    seconds[name].append(time.perf_counter() - began)
        call_count = CALLS + WARM_UP_CALLS
        spent = {
            "ours": (cpu_seconds(agent_pid) - before[0]) / (2 * call_count),
            "grpcio": (cpu_seconds(their_pid) - before[1]) / call_count,
        }
    return seconds, spent


def run(seed: int) -> list[Result]:
    """Measure. *seed* is ignored."""
    with tempfile.TemporaryDirectory() as folder:
        seconds, spent = _measure(Path(folder))
    results = [
        Result(
            f"{what}, p{share * 100:g}",
            percentile(seconds[label], share) * 1e6,
            "us",
            peer,
            percentile(seconds[name], share) * 1e6,
            f"{CALLS} calls each, alternating",
        )
        for share in (0.5, 0.99)
        for label, what, name, peer in (
            ("health", "health check", "echo", "echo on the same socket"),
            ("health", "health check", "grpcio", "bare grpcio echo"),
            ("agent", "health check of an agent at work", "grpcio", "bare grpcio echo"),
        )
    ]
    notes = "CPU of the server's process, user and system"
    cost = Result(
        "CPU a call", spent["ours"] * 1e6, "us", "bare grpcio echo", spent["grpcio"] * 1e6, notes
    )
    return [*results, cost]
